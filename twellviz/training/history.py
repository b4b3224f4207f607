"""The history of a run: one flat row of numbers a step, and the CSV file that holds the same.

Columns: ``step`` (from 0), ``tokens`` (learnt from before the step), ``lr``, ``l1_coefficient``, ``loss``,
``cross_entropy``, ``l1``, ``l0`` and ``l0_0 .. l0_{L-1}`` (mean active neurons of a token), ``dead`` and
``dead_0 ..`` (share of neurons that no token of the step fired), ``grad_norm`` (before clipping),
``validation_loss`` (before the update of this step, like ``loss``; nan where not measured), ``tokens_per_second``.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO, TypeAlias

from twellviz._atomic import write_text_atomically
from twellviz.errors import CheckpointError

Row: TypeAlias = dict[str, float]
COUNTS = ("step", "tokens")


def columns(n_layers: int) -> list[str]:
    """Names of the columns of a model with this many layers."""
    per_layer = [f"{name}{i}" for name in ("l0_", "dead_") for i in range(n_layers)]
    return [
        *("step", "tokens", "lr", "l1_coefficient", "loss", "cross_entropy", "l1", "l0", "dead", "grad_norm"),
        *("validation_loss", "tokens_per_second"),
        *per_layer,
    ]


def to_row(names: Sequence[str], values: Iterable[float]) -> Row:
    """A row from its columns; counts become whole numbers again."""
    return {name: int(value) if name in COUNTS else value for name, value in zip(names, values, strict=True)}


class CsvLog:
    """``log.csv``, written line by line, so that a dashboard can follow and a killed run leaves what it did.

    Parameters
    ----------
    path : Path
    names : sequence of str
        Columns.
    rows : sequence of Row
        Rows of the steps before, when resuming: the file is written anew with them.
    """

    def __init__(self, path: Path, names: Sequence[str], rows: Sequence[Row]) -> None:
        self._names = names
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(self._cells(row) for row in rows)
        write_text_atomically(path, text.getvalue())
        self._file: TextIO = path.open("a", newline="", encoding="utf-8")
        self._writer = csv.writer(self._file, lineterminator="\n")

    def write(self, row: Row) -> None:
        """Append a row and hand it to the operating system."""
        self._writer.writerow(self._cells(row))
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _cells(self, row: Row) -> list[str]:
        # repr gives the shortest digits that read back to the same bits.
        return [str(int(row[name])) if name in COUNTS else repr(float(row[name])) for name in self._names]


def read_log(path: str | os.PathLike[str]) -> list[Row]:
    """Rows of a ``log.csv``, to the last bit; a half-written last line is left out.

    Raises
    ------
    CheckpointError
        The file is missing or no log.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"cannot read the log {os.fspath(path)}: {error}") from error
    whole = [line for line in lines if line.endswith("\n")]
    names, *rows = csv.reader(whole) if whole else [[]]
    if names[:2] != list(COUNTS) or any(len(row) != len(names) for row in rows):
        raise CheckpointError(f"{os.fspath(path)} is no training log: its first columns should be {', '.join(COUNTS)}")
    try:
        return [to_row(names, map(float, row)) for row in rows]
    except ValueError as error:
        raise CheckpointError(f"{os.fspath(path)}: {error}") from error
