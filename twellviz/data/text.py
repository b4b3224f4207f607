"""Reading text files, with an error that says which line is wrong."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from twellviz.errors import TextError


class Document(NamedTuple):
    """One text and where it is from."""

    text: str
    source: str | None = None


def read_jsonl(path: str | os.PathLike[str]) -> list[Document]:
    """Read JSON lines: one object a line with a string ``text`` and, if known, a string ``source``.

    Blank lines are skipped; other keys are ignored.

    Parameters
    ----------
    path : path

    Returns
    -------
    list of Document
        At least one.

    Raises
    ------
    TextError
        The file is missing or empty; a line is not UTF-8, not a JSON object, has no string ``text``, an
        empty one, or one that no UTF-8 can hold (half a surrogate pair). Names file and line.
    """
    return list(iter_jsonl(path))


def iter_jsonl(path: str | os.PathLike[str]) -> Iterator[Document]:
    """:func:`read_jsonl` line by line, for files that do not fit into memory."""
    name, n_documents = os.fspath(path), 0
    try:
        with Path(path).open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _parse(line.rstrip(b"\n"), f"{name}, line {number}")
                    n_documents += 1
    except OSError as error:
        raise TextError(f"cannot read {name}: {error.strerror or error}") from error
    if not n_documents:
        raise TextError(f'{name} holds no documents: one {{"text": ...}} a line is needed')


def read_text(path: str | os.PathLike[str]) -> str:
    """Read a plain UTF-8 text file (a byte order mark is dropped).

    Raises
    ------
    TextError
        The file is missing, empty, or not UTF-8; names the byte.
    """
    text = _decode(_read_bytes(path), os.fspath(path)).removeprefix("\ufeff")
    if not text.strip():
        raise TextError(f"{os.fspath(path)} is empty: give a file with text in it")
    return text


def _read_bytes(path: str | os.PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise TextError(f"cannot read {os.fspath(path)}: {error.strerror or error}") from error


def _decode(raw: bytes, where: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise TextError(
            f"{where}: byte {error.start} (0x{raw[error.start]:02x}) is not UTF-8; convert the file, for example "
            "with iconv -t UTF-8"
        ) from error


def _parse(line: bytes, where: str) -> Document:
    try:
        record = json.loads(_decode(line, where).removeprefix("\ufeff"))
    except json.JSONDecodeError as error:
        raise TextError(f"{where}, column {error.colno}: not JSON ({error.msg})") from error
    except RecursionError as error:
        raise TextError(f"{where}: JSON nested too deeply; an object with a text is needed") from error
    if not isinstance(record, dict):
        raise TextError(f'{where}: a JSON object with "text" is needed, found {type(record).__name__}')
    text, source = record.get("text"), record.get("source")
    if not isinstance(text, str):
        keys = ", ".join(map(repr, record)) or "none"
        raise TextError(f'{where}: needs a string "text"; its keys: {keys}')
    if not text.strip():
        raise TextError(f'{where}: "text" is empty; remove the line')
    check_encodable(text, where)
    return Document(text, source if isinstance(source, str) else None)


def check_encodable(text: str, where: str) -> None:
    """Raise TextError if ``text`` holds half a surrogate pair, which UTF-8 and tokenizers cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TextError(f"{where}: character {error.start} is half a surrogate pair; remove it") from error
