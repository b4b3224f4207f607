"""Documents one after the other out of files or a dataset, in constant memory.

Local Parquet is read with ``pyarrow``; a named dataset goes through ``datasets`` in streaming mode, from the network or
from shards that were downloaded before.
"""

from __future__ import annotations

import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from twellviz.data.text import Document, check_encodable, iter_jsonl
from twellviz.errors import TextError

PIECE_CHARACTERS = 1 << 20
"""A text file is read in pieces of about this many characters."""
_READ_CHARACTERS = 1 << 16
_ROWS = 256
_CONNECT_SECONDS = 8.0


class Piece(NamedTuple):
    """A stretch of a document; all of it except for long text files.

    Tokens of the pieces of a document, put together, are those of the document.
    """

    text: str
    source: str | None
    starts: bool = True
    ends: bool = True


@dataclass(frozen=True, kw_only=True)
class HubDataset:
    """A dataset of Parquet shards with a text column, at one revision.

    Attributes
    ----------
    path, name, revision : str
        As ``datasets.load_dataset`` takes them.
    column : str
        The one with the text.
    terms : str
    """

    path: str
    name: str
    revision: str
    column: str
    terms: str


DATASETS = {
    "fineweb-edu": HubDataset(
        path="HuggingFaceFW/fineweb-edu",
        name="sample-10BT",
        revision="87f09149ef4734204d70ed1d046ddc9ca3f2b8f9",
        column="text",
        terms="ODC-By 1.0; the pages keep their own terms",
    )
}


def read_files(paths: Sequence[str | os.PathLike[str]]) -> Iterator[Piece]:
    """Documents of ``.parquet`` and ``.jsonl`` files and of plain text, in the order given.

    Parquet needs a column ``text``; ``source`` is read where there is one. Rows without text are passed over.

    Raises
    ------
    TextError
        A file is missing or not what its name says; names file and row, line or byte.
    """
    for given in paths:
        path = Path(given)
        if not path.is_file():
            raise TextError(f"cannot read {path}: there is no such file")
        readers: dict[str, Callable[[Path], Iterator[Piece]]] = {".parquet": _read_parquet, ".jsonl": _read_lines}
        yield from readers.get(path.suffix, _read_plain)(path)


def read_dataset(dataset: HubDataset, shards: Sequence[str | os.PathLike[str]] = ()) -> Iterator[Piece]:
    """Documents of a dataset through ``datasets`` in streaming mode, in its own order.

    Parameters
    ----------
    dataset : HubDataset
    shards : sequence of path, optional
        Parquet files of it on this machine; nothing is asked of the network then.

    Raises
    ------
    TextError
        The network, the dataset or a shard cannot be read.
    """
    from datasets import load_dataset

    if not shards:
        _check_reachable(dataset)
    # The files of a list are streamed in the order of the list.
    arguments: dict[str, Any] = (
        {"path": "parquet", "data_files": {"train": [os.fspath(shard) for shard in shards]}}
        if shards
        else {"path": dataset.path, "name": dataset.name, "revision": dataset.revision}
    )
    try:
        stream = load_dataset(**arguments, split="train", streaming=True)
        for row in stream:
            if dataset.column not in row:
                raise TextError(f"{dataset.path} has no column {dataset.column!r}: its columns are {', '.join(row)}")
            piece = _piece(row[dataset.column], row.get("source"), dataset.path)
            if piece is not None:
                yield piece
    except TextError:
        raise
    # datasets, pyarrow and the HTTP client below raise errors of many kinds.
    except Exception as error:
        where = ", ".join(map(str, shards)) or f"{dataset.path} from the network"
        raise TextError(f"cannot read {where}: {type(error).__name__}: {error}") from error


def only_sources(pieces: Iterable[Piece], wanted: Sequence[str]) -> Iterator[Piece]:
    """Pieces whose ``source`` is one of ``wanted``; all where nothing is wanted.

    Raises
    ------
    TextError
        One of them does not occur.
    """
    if not wanted:
        yield from pieces
        return
    seen: set[str | None] = set()
    for piece in pieces:
        seen.add(piece.source)
        if piece.source in wanted:
            yield piece
    if missing := [name for name in wanted if name not in seen]:
        found = ", ".join(sorted(name for name in seen if name is not None)) or "none"
        raise TextError(f"source {', '.join(missing)}: not in this text, whose sources are: {found}")


def _read_parquet(path: Path) -> Iterator[Piece]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if "text" not in names:
                raise TextError(f'{path} has no column "text": its columns are {", ".join(names)}')
            columns = [name for name in ("text", "source") if name in names]
            for batch in file.iter_batches(_ROWS, columns=columns):
                for row in batch.to_pylist():
                    piece = _piece(row["text"], row.get("source"), str(path))
                    if piece is not None:
                        yield piece
    except (pyarrow.ArrowException, OSError) as error:
        raise TextError(f"{path} is truncated or no Parquet file ({error}): copy it again") from error


def _read_lines(path: Path) -> Iterator[Piece]:
    for document in iter_jsonl(path):
        yield _whole(document)


def _read_plain(path: Path) -> Iterator[Piece]:
    """A text file as one document in pieces, cut where a byte-level BPE has a boundary anyway."""
    rest, starts = "", True
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            while block := file.read(_READ_CHARACTERS):
                rest += block
                if len(rest) >= PIECE_CHARACTERS and (cut := _boundary(rest)):
                    yield Piece(rest[:cut], path.name, starts=starts, ends=False)
                    rest, starts = rest[cut:], False
    except UnicodeDecodeError as error:
        raise TextError(
            f"{path}: byte 0x{error.object[error.start]:02x} is not UTF-8 ({error.reason}); convert the file, for "
            "example with iconv -t UTF-8"
        ) from error
    except OSError as error:
        raise TextError(f"cannot read {path}: {error.strerror or error}") from error
    if starts and not rest.strip():
        raise TextError(f"{path} is empty: give a file with text in it")
    yield Piece(rest, path.name, starts=starts, ends=True)


def _boundary(text: str) -> int:
    """Last place before the final white space of a run, where pre-tokenisation cuts too; 0 if there is none.

    GPT-2's rule gives the last space of a run to the word after it and makes one piece of those before.
    """
    for place in range(len(text) - 2, 0, -1):
        if text[place] in " \n" and not text[place + 1].isspace():
            return place
    return 0


def _piece(text: object, source: object, where: str) -> Piece | None:
    if not isinstance(text, str) or not text.strip():
        return None
    check_encodable(text, where)
    return Piece(text, source if isinstance(source, str) else None)


def _whole(document: Document) -> Piece:
    return Piece(document.text, document.source)


def _check_reachable(dataset: HubDataset) -> None:
    """Ask the hub for the revision within seconds; ``datasets`` itself would try for minutes."""
    if os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "TRUE", "YES", "ON"):
        return  # Then datasets looks into its cache alone, at once.
    hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    url = f"{hub}/api/datasets/{dataset.path}/revision/{dataset.revision}"
    answers: list[Exception | None] = []

    def ask() -> None:
        try:
            with urllib.request.urlopen(url, timeout=_CONNECT_SECONDS):
                answers.append(None)
        except urllib.error.HTTPError as error:
            # Any answer is a network; that the hub wants a token or a pause, datasets knows how to handle.
            answers.append(error if error.code == 404 else None)
        except OSError as error:
            answers.append(error)

    # In a thread, because looking up a name has no time limit of its own.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_CONNECT_SECONDS + 1)
    problem = answers[0] if answers else TimeoutError("no answer")
    if problem is not None:
        reason = getattr(problem, "reason", problem)
        raise TextError(
            f"{dataset.path} cannot be reached at {hub} ({reason}). Without a network, give Parquet shards of it that "
            "were downloaded elsewhere, or any local .parquet, .jsonl or text files, as SOURCE"
        )
