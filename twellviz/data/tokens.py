"""A split of the text as one array of token ids."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from twellviz.data.paths import data_path
from twellviz.data.text import read_jsonl
from twellviz.data.tokenizer import Tokenizer
from twellviz.errors import ConfigError

TokenArray: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]
"""uint16, or uint32 for vocabularies above 65,536 entries."""

SPLITS = ("train", "validation")


def load_tokens(split: str | os.PathLike[str], tokenizer: Tokenizer) -> TokenArray:
    """Tokens of a split, documents separated by ``<|endoftext|>``.

    Kept in memory, so that a second call with the same text and tokenizer is free.

    Parameters
    ----------
    split : {"train", "validation"} or path
        The shipped text, or a JSON lines file of one's own.
    tokenizer : Tokenizer

    Returns
    -------
    uint16 or uint32 [n_tokens]
        Read-only; uint16 for vocabularies up to 65,536 entries.

    Raises
    ------
    ConfigError
        ``split`` is neither a split nor an existing file.
    TextError
        The file is not what :func:`read_jsonl` takes.
    """
    path = data_path(f"text/{split}.jsonl") if split in SPLITS else Path(split)
    if not path.is_file():
        raise ConfigError(f"split={os.fspath(split)!r}: choose one of {', '.join(SPLITS)}, or give a JSON lines file")
    status = path.stat()
    return _load(path, status.st_mtime_ns, status.st_size, _Keyed(tokenizer))


class _Keyed:
    """A tokenizer that compares by content, for the cache."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def __hash__(self) -> int:
        return hash(self.tokenizer.sha256)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Keyed) and other.tokenizer.sha256 == self.tokenizer.sha256


@lru_cache(maxsize=8)
def _load(path: Path, modified_ns: int, size: int, keyed: _Keyed) -> TokenArray:
    tokens = keyed.tokenizer.encode_documents([document.text for document in read_jsonl(path)])
    tokens.setflags(write=False)
    return tokens
