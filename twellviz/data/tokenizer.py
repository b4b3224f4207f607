"""A byte-level BPE tokenizer with character offsets, over a file of the ``tokenizers`` library."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from twellviz._atomic import write_text_atomically
from twellviz.data.paths import data_path
from twellviz.data.text import check_encodable
from twellviz.errors import ConfigError, TextError

if TYPE_CHECKING:
    from twellviz.data.tokens import TokenArray

END_OF_TEXT = "<|endoftext|>"
MIN_VOCAB_SIZE = 257
"""The 256 bytes and the separator: below, some text would have no tokens."""


class Encoding(NamedTuple):
    """Tokens of one text.

    Attributes
    ----------
    ids : int32 [n]
    offsets : int32 [n, 2]
        First and one past the last character of each token. Tokens that hold a part of the bytes of one
        character all carry that whole character.
    """

    ids: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int32]


class Tokenizer:
    """Text to token ids and back.

    Use :meth:`load`. Text is never read as control: a ``<|endoftext|>`` inside a text becomes ordinary
    tokens, so that untrusted text cannot fake the end of a document.

    Attributes
    ----------
    vocab_size : int
    end_of_text : int
        Id of the document separator.
    sha256 : str
        Hash of the tokenizer's content, kept in checkpoints and traces.
    """

    def __init__(self, backend: Any, *, end_of_text: int) -> None:
        backend.encode_special_tokens = True
        self._backend = backend
        self.end_of_text = end_of_text
        self.vocab_size: int = backend.get_vocab_size()
        self.sha256 = hashlib.sha256(backend.to_str().encode()).hexdigest()

    @classmethod
    def load(cls, path: str | os.PathLike[str] | None = None) -> Tokenizer:
        """Read a ``tokenizer.json``, or that of a folder; the shipped one (2048 entries) if no path is given.

        Raises
        ------
        TextError
            The file is missing, truncated, no tokenizer, or has no ``<|endoftext|>``.
        """
        from tokenizers import Tokenizer as Backend

        path = data_path("tokenizer/tokenizer.json") if path is None else Path(path)
        if path.is_dir():
            path /= "tokenizer.json"
        if not path.is_file():
            raise TextError(f"no tokenizer at {path}: give the path of a tokenizer.json")
        try:
            backend = Backend.from_file(str(path))
        # The library raises bare Exception for whatever is wrong with the file.
        except Exception as error:
            raise TextError(f"{path} is not a tokenizer.json of the tokenizers library ({error})") from error
        end_of_text = backend.token_to_id(END_OF_TEXT)
        if end_of_text is None:
            raise TextError(f"{path} has no {END_OF_TEXT} entry, which separates documents: use another tokenizer")
        return cls(backend, end_of_text=end_of_text)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write ``tokenizer.json``, whole or not at all."""
        return write_text_atomically(path, self._backend.to_str(pretty=True) + "\n")

    def encode(self, text: str) -> Encoding:
        """Token ids and the characters they stand for.

        Parameters
        ----------
        text : str

        Returns
        -------
        Encoding

        Raises
        ------
        TextError
            The text is empty, or holds half a surrogate pair.
        """
        if not text:
            raise TextError("text is empty: give at least one character")
        check_encodable(text, "text")
        encoding = self._backend.encode(text, add_special_tokens=False)
        ids = np.asarray(encoding.ids, dtype=np.int32)
        return Encoding(ids, np.asarray(encoding.offsets, dtype=np.int32).reshape(ids.size, 2))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, on all threads of the library; no offsets, nothing added."""
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [list(encoding.ids) for encoding in encodings]

    def encode_documents(self, texts: Sequence[str]) -> TokenArray:
        """All texts in one array, each followed by ``end_of_text``; uint16, or uint32 above 65,536 entries."""
        parts: list[int] = []
        for ids in self.encode_batch(texts):
            parts += ids
            parts.append(self.end_of_text)
        return np.asarray(parts, dtype=np.uint16 if self.vocab_size <= 1 << 16 else np.uint32)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ``ids``; bytes that are not UTF-8 on their own become U+FFFD.

        To show the text of single tokens, use the offsets of :meth:`encode`.

        Raises
        ------
        TextError
            An id is outside ``0 .. vocab_size - 1``.
        """
        numbers = [int(i) for i in ids]
        for i in numbers:
            if not 0 <= i < self.vocab_size:
                raise TextError(f"token id {i}: ids run from 0 to {self.vocab_size - 1}")
        return str(self._backend.decode(numbers, skip_special_tokens=False))

    def __repr__(self) -> str:
        return f"Tokenizer(vocab_size={self.vocab_size}, sha256={self.sha256[:12]!r})"


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE tokenizer; the same texts in the same order give the same tokenizer.

    Parameters
    ----------
    texts : iterable of str
    vocab_size : int
        At least 257: 256 bytes and ``<|endoftext|>``, which gets id 0.

    Raises
    ------
    ConfigError
        ``vocab_size`` is too small, or larger than what the texts give.
    TextError
        There is no text.
    """
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers, trainers

    if vocab_size < MIN_VOCAB_SIZE:
        raise ConfigError(f"vocab_size={vocab_size}: at least {MIN_VOCAB_SIZE} (256 bytes and {END_OF_TEXT})")
    corpus = [text for text in texts if text]
    if not corpus:
        raise TextError("no text to train a tokenizer on: give at least one that is not empty")
    backend = Backend(models.BPE())
    # No post-processor: it would cut the leading space of a word out of the token's offsets.
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(corpus, trainer)
    if backend.get_vocab_size() < vocab_size:
        raise ConfigError(
            f"vocab_size={vocab_size}: these texts give only {backend.get_vocab_size()} entries; "
            "ask for fewer or give more text"
        )
    return Tokenizer(backend, end_of_text=0)  # The trainer numbers special tokens first.
