"""A tokenised text on disk, read in place: the ids, where documents start, and which tokenizer made them.

The file is a safetensors file (8 bytes of header length, a JSON header, then the arrays), so that any safetensors
reader opens it and nothing is unpickled. Its header is padded with spaces to a fixed 4096 bytes, which lets the ids be
written as they come and the header afterwards; ids and documents of any number take constant memory.

=====================  ==========================================================================================
in the header          what it is
=====================  ==========================================================================================
``tokens``             uint16 [n_tokens], or uint32 for vocabularies above 65,536 entries
``padding``            uint8, at most 7 bytes: the next array starts at a multiple of 8
``document_starts``    uint64 [n_documents], index of the first token of each document, ascending
``__metadata__``       ``format`` (``twellviz.tokens``), ``version``, ``vocab_size``, ``end_of_text``,
                       ``tokenizer_sha256``, ``tokens_sha256``, ``made`` (JSON: command, sources, date)
=====================  ==========================================================================================
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedRandom, BufferedWriter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from twellviz._atomic import writing
from twellviz.errors import ConfigError, TextError

if TYPE_CHECKING:
    from twellviz.data.tokenizer import Tokenizer
    from twellviz.data.tokens import TokenArray

FORMAT = "twellviz.tokens"
VERSION = "1"
SUFFIX = ".tokens"
_HEADER_BYTES = 4096
_DTYPES: dict[str, np.dtype[Any]] = {"U16": np.dtype("<u2"), "U32": np.dtype("<u4")}
_COPY_BYTES = 1 << 20


@dataclass(frozen=True, eq=False)
class TokenMap:
    """A tokenised text, its ids mapped from disk. Use :meth:`open`.

    Attributes
    ----------
    path : Path
    tokens : uint16 or uint32 [n_tokens]
        Read-only memory map; each document is followed by ``end_of_text``.
    document_starts : uint64 [n_documents]
        Read-only memory map.
    vocab_size : int
        Entries of the tokenizer; every id is below.
    end_of_text : int
    tokenizer_sha256 : str
        :attr:`twellviz.data.Tokenizer.sha256` of the tokenizer that made it.
    tokens_sha256 : str
        SHA-256 of the bytes of ``tokens``.
    made : dict
        Command, sources and date.
    """

    path: Path
    tokens: TokenArray
    document_starts: npt.NDArray[np.uint64]
    vocab_size: int
    end_of_text: int
    tokenizer_sha256: str
    tokens_sha256: str
    made: dict[str, Any] = field(repr=False)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Map the file that :func:`write_token_map` wrote; reads no more than its header.

        Raises
        ------
        TextError
            The file is missing, truncated, of another format or version.
        """
        path = Path(path)
        offset, header = _read_header(path)
        info = header.pop("__metadata__", {})
        if not isinstance(info, dict) or info.get("format") != FORMAT:
            raise TextError(f"{path} is no token map: make one with python -m twellviz tokenize")
        if info.get("version") != VERSION:
            raise TextError(f"{path} is a token map of version {info.get('version')!r}: this program reads {VERSION!r}")
        try:
            tokens = _map(path, header["tokens"], offset)
            starts = _map(path, header["document_starts"], offset)
            found = cls(
                path=path,
                tokens=tokens,
                document_starts=starts,
                vocab_size=int(info["vocab_size"]),
                end_of_text=int(info["end_of_text"]),
                tokenizer_sha256=info["tokenizer_sha256"],
                tokens_sha256=info["tokens_sha256"],
                made=json.loads(info["made"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise TextError(f"{path} is a damaged token map ({error!r}): make it again") from error
        if tokens.dtype != _dtype(found.vocab_size):
            raise TextError(f"{path} is a damaged token map: {tokens.dtype} ids of {found.vocab_size} entries")
        return found

    def __len__(self) -> int:
        return len(self.tokens)

    def document(self, number: int) -> TokenArray:
        """Ids of a document, its end included."""
        if not 0 <= number < len(self.document_starts):
            raise ConfigError(f"number={number}: {self.path} has documents 0 to {len(self.document_starts) - 1}")
        last = number + 1 == len(self.document_starts)
        end = len(self.tokens) if last else int(self.document_starts[number + 1])
        return self.tokens[int(self.document_starts[number]) : end]

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raise ConfigError unless this text was made with ``tokenizer``."""
        if tokenizer.sha256 != self.tokenizer_sha256:
            raise ConfigError(
                f"{self.path} was made with the tokenizer {self.tokenizer_sha256[:12]} ({self.vocab_size} entries) and "
                f"not with {tokenizer.sha256[:12]} ({tokenizer.vocab_size} entries): give its own tokenizer, or "
                "tokenise the text again"
            )

    def verify(self) -> None:
        """Read all ids and raise TextError if they are not those that were written."""
        if _hash_file(self.path, _HEADER_BYTES, self.tokens.nbytes) != self.tokens_sha256:
            raise TextError(f"{self.path} is damaged: its ids have another SHA-256 than its header says; make it again")


class TokenMapWriter:
    """Fills a token map; see :func:`write_token_map`.

    Attributes
    ----------
    n_tokens, n_documents : int
        Written so far.
    """

    def __init__(self, tokens: BufferedWriter, starts: BufferedRandom, dtype: np.dtype[Any]) -> None:
        self._tokens, self._starts, self._dtype = tokens, starts, dtype
        self._hash = hashlib.sha256()
        self.n_tokens = self.n_documents = 0

    def start_document(self) -> None:
        """The next id begins a document."""
        self._starts.write(np.array(self.n_tokens, "<u8").tobytes())
        self.n_documents += 1

    def append(self, ids: npt.ArrayLike) -> None:
        """Add ids to the current document."""
        data = np.asarray(ids).astype(self._dtype).tobytes()
        self._hash.update(data)
        self._tokens.write(data)
        self.n_tokens += len(data) // self._dtype.itemsize

    @property
    def n_bytes(self) -> int:
        """Bytes of the ids so far."""
        return self.n_tokens * self._dtype.itemsize

    @property
    def tokens_sha256(self) -> str:
        """SHA-256 of the ids so far."""
        return self._hash.hexdigest()


@contextmanager
def write_token_map(
    path: str | os.PathLike[str], tokenizer: Tokenizer, made: Mapping[str, Any]
) -> Iterator[TokenMapWriter]:
    """A writer whose token map stands at ``path`` when the context is left without an error, and not before.

    Parameters
    ----------
    path : path
    tokenizer : Tokenizer
        Its vocabulary size, end of text and hash go into the header.
    made : mapping
        What JSON holds, at most about 3 kB: command, sources, date.

    Raises
    ------
    ConfigError
        ``made`` is too long.
    TextError
        No document was written.
    """
    path = Path(path)
    longest = 1 << 62
    # Before the work and not after it.
    _header(tokenizer, made, "0" * 64, n_tokens=longest, n_documents=longest)
    with writing(path) as temporary:
        starts_path = temporary.with_name("document_starts")
        with temporary.open("wb") as tokens, starts_path.open("w+b") as starts:
            tokens.write(bytes(_HEADER_BYTES))
            writer = TokenMapWriter(tokens, starts, _dtype(tokenizer.vocab_size))
            yield writer
            if writer.n_documents == 0:
                raise TextError("no documents: a token map needs at least one; check the sources and filters")
            tokens.write(bytes(-writer.n_bytes % 8))
            starts.seek(0)
            while block := starts.read(_COPY_BYTES):
                tokens.write(block)
            tokens.seek(0)
            sizes = {"n_tokens": writer.n_tokens, "n_documents": writer.n_documents}
            tokens.write(_header(tokenizer, made, writer.tokens_sha256, **sizes))
        starts_path.unlink()


def _header(
    tokenizer: Tokenizer, made: Mapping[str, Any], tokens_sha256: str, *, n_tokens: int, n_documents: int
) -> bytes:
    dtype = _dtype(tokenizer.vocab_size)
    n_bytes = n_tokens * dtype.itemsize
    n_padding = -n_bytes % 8
    end = n_bytes + n_padding
    entries: dict[str, Any] = {
        "__metadata__": {
            "format": FORMAT,
            "version": VERSION,
            "vocab_size": str(tokenizer.vocab_size),
            "end_of_text": str(tokenizer.end_of_text),
            "tokenizer_sha256": tokenizer.sha256,
            "tokens_sha256": tokens_sha256,
            "made": json.dumps(dict(made)),
        },
        "tokens": {
            "dtype": next(name for name, stored in _DTYPES.items() if stored == dtype),
            "shape": [n_tokens],
            "data_offsets": [0, n_bytes],
        },
        "padding": {"dtype": "U8", "shape": [n_padding], "data_offsets": [n_bytes, end]},
        "document_starts": {
            "dtype": "U64",
            "shape": [n_documents],
            "data_offsets": [end, end + 8 * n_documents],
        },
    }
    text = json.dumps(entries).encode()
    room = _HEADER_BYTES - 8
    if len(text) > room:
        raise ConfigError(f"made: {len(text) - room} bytes too many for a header of {_HEADER_BYTES}; say less there")
    return room.to_bytes(8, "little") + text.ljust(room)


def _read_header(path: Path) -> tuple[int, dict[str, Any]]:
    """Where the arrays begin, and the header as JSON."""
    if not path.is_file():
        raise TextError(f"no token map at {path}: make one with python -m twellviz tokenize")
    with path.open("rb") as file:
        n_header = int.from_bytes(file.read(8), "little")
        # Ours have one size; a number from a foreign file must not be taken for a size to read.
        text = file.read(n_header) if n_header == _HEADER_BYTES - 8 else b""
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TextError(f"{path} is no token map: make one with python -m twellviz tokenize") from error
    if not isinstance(header, dict):
        raise TextError(f"{path} is no token map: make one with python -m twellviz tokenize")
    return _HEADER_BYTES, header


def _map(path: Path, entry: Mapping[str, Any], offset: int) -> npt.NDArray[Any]:
    dtypes: dict[str, np.dtype[Any]] = {**_DTYPES, "U64": np.dtype("<u8")}
    dtype = dtypes[entry["dtype"]]
    (n_items,) = entry["shape"]
    begin, end = entry["data_offsets"]
    if end - begin != n_items * dtype.itemsize or n_items < 0 or begin < 0:
        raise ValueError(f"{n_items} items of {dtype} in {end - begin} bytes")
    if n_items == 0:
        return np.zeros(0, dtype)
    # numpy raises ValueError where the file ends before the array does.
    return np.memmap(path, dtype, mode="r", offset=offset + begin, shape=(n_items,))


def _dtype(vocab_size: int) -> np.dtype[Any]:
    return _DTYPES["U16" if vocab_size <= 1 << 16 else "U32"]


def _hash_file(path: Path, offset: int, n_bytes: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        file.seek(offset)
        while n_bytes and (block := file.read(min(n_bytes, _COPY_BYTES))):
            digest.update(block)
            n_bytes -= len(block)
    return digest.hexdigest()
