"""Which thread touched which cell of an array: the content of the pictures, without drawing.

Letters: none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twellviz.errors import ConfigError
from twellviz.kernel_trace.lockstep import steps
from twellviz.kernel_trace.recording import ATOMIC, GLOBAL, LOCAL, READ, Storage
from twellviz.kernel_trace.trace import WARP, KernelTrace

OWNERS = ("thread", "warp", "block")
LETTERS = "RWA"
MAX_ROWS, MAX_COLUMNS = 32, 32

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Cell:
    """One cell of a picture.

    Attributes
    ----------
    index : tuple of int
    label : str
        ``R``, ``W`` or ``A`` (read, written, atomic) and who did it; empty for an untouched cell.
    owner : int
        Number of the first owner, for its colour; -1 for an untouched cell.
    now : bool
        Whether it is touched in the step that is shown.
    value : str
        What it holds; ``?`` for a cell that nothing wrote.
    """

    index: tuple[int, ...]
    label: str
    owner: int
    now: bool
    value: str


@dataclass(frozen=True)
class CellGrid:
    """An array as rows of cells.

    Attributes
    ----------
    rows : tuple of tuple of Cell
    row_labels : tuple of str
        Index of the first cell of each row.
    title : str
        Array, time and place that are shown.
    notices : tuple of str
        What is left out.
    """

    rows: tuple[tuple[Cell, ...], ...]
    row_labels: tuple[str, ...]
    title: str
    notices: tuple[str, ...]


def cell_grid(
    trace: KernelTrace,
    array: str,
    *,
    step: int | None = None,
    epoch: int | None = None,
    block: int | None = None,
    thread: int = 0,
    by: str = "thread",
    width: int = 16,
    rows: slice = slice(0, MAX_ROWS),
    columns: slice = slice(0, MAX_COLUMNS),
) -> CellGrid:
    """Who touched which cell.

    A cell shows its writers, or its readers if nothing wrote it. With ``step`` it shows the latest access up to that
    step, and the cells of the step itself are marked.

    Parameters
    ----------
    trace : KernelTrace
    array : str
    step : int, optional
        A step of :func:`twellviz.kernel_trace.steps`.
    epoch : int, optional
        Only accesses after this many barriers.
    block : int, optional
        Only accesses of this block; for shared and local arrays block 0 if left out.
    thread : int
        Whose copy, of a local array.
    by : {"thread", "warp", "block"}
    width : int
        Cells of a row, for arrays of one axis.
    rows, columns : slice
        Part that is shown, at most 32 by 32.

    Raises
    ------
    TraceError
        No such array, step or block.
    ConfigError
        An option has a value that does not exist.
    """
    if by not in OWNERS:
        raise ConfigError(f"by={by!r}: choose one of {', '.join(OWNERS)}")
    if width < 1:
        raise ConfigError(f"width={width}: at least 1 cell in a row is needed")
    storage = trace.find(array, block=block or 0, thread=thread)
    numbers = _layout(storage, width)
    shown = numbers[rows, columns][:MAX_ROWS, :MAX_COLUMNS]
    mine = np.flatnonzero((trace.storage == storage.id) & np.isin(trace.cell, shown))
    mine = mine[np.argsort(steps(trace).step[mine], kind="stable")]
    chosen = mine[_chosen(trace, mine, step, epoch, block, until=False)]
    labels, owners = _labels(trace, storage, chosen, by, latest=step is not None)
    values = _values(trace, storage, mine[_chosen(trace, mine, step, epoch, block, until=True)], shown)
    now = set(trace.cell[chosen[steps(trace).step[chosen] == step]].tolist()) if step is not None else set()
    made = tuple(
        tuple(Cell(storage.index(c), labels.get(c, ""), owners.get(c, -1), c in now, values[c]) for c in row if c >= 0)
        for row in shown.tolist()
    )
    made = tuple(row for row in made if row)
    first = tuple("[" + ", ".join(map(str, row[0].index)) + "]" for row in made)
    return CellGrid(made, first, _title(trace, storage, step, epoch, block), _notices(numbers, shown))


def owner_of(trace: KernelTrace, order: int, by: str) -> int:
    """Number of the thread (in its block), warp (in its block) or block of an access."""
    thread = int(trace.thread[order]) % trace.threads_per_block
    return {"thread": thread, "warp": thread // WARP, "block": int(trace.block_of[order])}[by]


def _chosen(
    trace: KernelTrace, places: Ints, step: int | None, epoch: int | None, block: int | None, *, until: bool
) -> NDArray[np.bool_]:
    """Which accesses belong to the picture; with ``until`` those of earlier epochs and of other blocks too."""
    keep = np.ones(len(places), dtype=bool)
    if step is not None:
        steps(trace).members(step)  # checks that it exists
        keep &= steps(trace).step[places] <= step
    if epoch is not None:
        keep &= trace.epoch[places] <= epoch if until else trace.epoch[places] == epoch
    if block is not None and not (until and epoch is None):
        keep &= trace.block_of[places] == block
    return keep


def _labels(
    trace: KernelTrace, storage: Storage, chosen: Ints, by: str, *, latest: bool
) -> tuple[dict[int, str], dict[int, int]]:
    """Label and first owner of each touched cell; of its latest step only, or of all."""
    by_cell: dict[int, list[int]] = {}
    for order in chosen.tolist():
        by_cell.setdefault(int(trace.cell[order]), []).append(order)
    when = steps(trace).step
    labels: dict[int, str] = {}
    owners: dict[int, int] = {}
    for cell, orders in by_cell.items():
        if latest:
            orders = [order for order in orders if when[order] == when[orders[-1]]]
        operation = max(int(trace.operation[order]) for order in orders)
        who = [order for order in orders if trace.operation[order] == operation]
        names = list(dict.fromkeys(_owner_name(trace, order, by, storage) for order in who))
        owners[cell] = owner_of(trace, who[0], by)
        labels[cell] = LETTERS[operation] + (names[0] if len(names) == 1 else f"\u00d7{len(names)}")
    return labels, owners


def _owner_name(trace: KernelTrace, order: int, by: str, storage: Storage) -> str:
    """``3``, or ``1:3`` for thread 3 of block 1 where several blocks may meet."""
    number = owner_of(trace, order, by)
    if by == "block" or trace.n_blocks == 1 or storage.space != GLOBAL:
        return str(number)
    return f"{int(trace.block_of[order])}:{number}"


def _values(trace: KernelTrace, storage: Storage, before: Ints, shown: Ints) -> dict[int, str]:
    """What the shown cells hold after the accesses ``before``."""
    found = {
        cell: "?" if storage.unwritten else short(storage.initial[cell])
        for cell in shown.reshape(-1).tolist()
        if cell >= 0
    }
    for order in before[trace.operation[before] != READ].tolist():
        found[int(trace.cell[order])] = short(trace.values[order])
    return found


def short(value: Any) -> str:
    """A number in few characters."""
    if isinstance(value, float | np.floating):
        return f"{float(value):.4g}"
    return str(int(value))


def _layout(storage: Storage, width: int) -> Ints:
    """Cell numbers as a picture's rows; -1 where a row has no cell."""
    n = storage.data.size
    if len(storage.shape) > 1:
        return np.arange(n, dtype=np.int64).reshape(-1, storage.shape[-1]) if n else np.zeros((0, 1), dtype=np.int64)
    numbers = np.full(-(-n // width) * width, -1, dtype=np.int64)
    numbers[:n] = np.arange(n)
    return numbers.reshape(-1, min(width, n) if n and n < width else width) if n >= width else numbers[:n].reshape(1, n)


def _notices(numbers: Ints, shown: Ints) -> tuple[str, ...]:
    total, part = int((numbers >= 0).sum()), int((shown >= 0).sum())
    return (f"{part} of {total} cells shown",) if part < total else ()


def _title(trace: KernelTrace, storage: Storage, step: int | None, epoch: int | None, block: int | None) -> str:
    text = storage.name if storage.space == GLOBAL else f"{storage.name} ({storage.space}"
    if storage.space == LOCAL:
        text += f", thread {storage.thread % trace.threads_per_block}"
    if storage.space != GLOBAL:
        text += f", block {storage.block})" if trace.n_blocks > 1 else ")"
    elif block is not None and trace.n_blocks > 1:
        text += f", block {block} only"
    if epoch is not None:
        text += f", after {epoch} barrier{'s' if epoch != 1 else ''}" if epoch else ", before any barrier"
    if step is not None:
        text += f", step {step} of {steps(trace).n - 1}"
    return text


def step_text(trace: KernelTrace, step: int) -> str:
    """What happens in a step: the warp, its lanes, the cells, the line of code."""
    members = steps(trace).members(step)
    one = int(members[0])
    storage, site = trace.storages[trace.storage[one]], trace.sites[trace.site[one]]
    verb = ("reads", "writes", "updates")[site.operation]
    first = storage.index(int(trace.cell[one]))
    cells = f"{storage.name}[{', '.join(map(str, first))}]"
    if len(members) > 1:
        last = trace.storages[trace.storage[members[-1]]].index(int(trace.cell[members[-1]]))
        cells += f" to {storage.name}[{', '.join(map(str, last))}]"
    lanes = trace.thread[members] % trace.threads_per_block
    who = f"thread {lanes[0]}" if len(lanes) == 1 else f"{len(lanes)} threads, {lanes[0]} to {lanes[-1]},"
    where = f"block {trace.block_of[one]}, warp {trace.warp[one]}" if trace.n_blocks > 1 else f"warp {trace.warp[one]}"
    atomic = " by an atomic" if site.operation == ATOMIC else ""
    plural = verb if len(lanes) == 1 else verb[:-1]
    return f"{where}: {who} {plural} {cells}{atomic}; line {site.line}: {site.source}"
