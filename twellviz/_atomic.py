"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from twellviz.errors import ConfigError

TEMPORARY_PREFIX = ".writing-"


def write_atomically(path: str | os.PathLike[str], write: Callable[[Path], object]) -> Path:
    """Let ``write`` fill a temporary file beside ``path``, then rename it into place.

    The content reaches the disk before the name does, so that a process killed at any moment leaves the
    old file or the new one. What it leaves besides is a folder called ``.writing-*``, in which no reader looks
    and which :func:`sweep` removes.

    Parameters
    ----------
    path : path
        Where the file shall stand; its folder is created.
    write : callable
        Called with the temporary path.

    Returns
    -------
    Path
        ``path``.
    """
    with writing(path) as temporary:
        write(temporary)
    return Path(path)


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """:func:`write_atomically` as a context, for what is filled bit by bit: the temporary path to fill."""
    check_file_name(path)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # A folder and not a file: safetensors writes a temporary file of its own beside the one it is asked for.
    folder = path.parent / f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
    folder.mkdir()
    try:
        temporary = folder / path.name
        temporary.touch()
        mode = temporary.stat().st_mode
        yield temporary
        # safetensors gives its files to their owner alone.
        temporary.chmod(mode)
        _sync(temporary)
        temporary.replace(path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _sync(path.parent)


def check_file_name(path: str | os.PathLike[str]) -> None:
    """Raise ConfigError where a file cannot stand at ``path``; long work asks before it begins."""
    if Path(path).is_dir():
        raise ConfigError(f"{os.fspath(path)!r} is {'no file name' if path == '' else 'a folder'}: name a file")


def write_text_atomically(path: str | os.PathLike[str], text: str) -> Path:
    """:func:`write_atomically` for UTF-8 text."""
    return write_atomically(path, lambda temporary: temporary.write_bytes(text.encode()))


def sweep(folder: Path) -> None:
    """Remove what killed writers left in ``folder``."""
    for leftover in folder.glob(f"{TEMPORARY_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _sync(path: Path) -> None:
    # Windows opens no folder; there a rename is durable by itself.
    if os.name == "nt" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
