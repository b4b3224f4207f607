"""A recording in words: alternative text for its pictures, and a summary to read. Letters: none."""

from __future__ import annotations

from typing import Any

import numpy as np

from twellviz.kernel_trace.cells import cell_grid, step_text
from twellviz.kernel_trace.measures import array_table
from twellviz.kernel_trace.recording import ATOMIC, READ, WRITE
from twellviz.kernel_trace.trace import KernelTrace


def describe(trace: KernelTrace, array: str | None = None, **options: Any) -> str:
    """What a recording, or a picture of one of its arrays, shows.

    Parameters
    ----------
    trace : KernelTrace
    array : str, optional
        Describe ``draw(trace, array, **options)``. If left out, the whole launch is described.
    **options
        As for :func:`twellviz.kernel_trace.draw`.

    Returns
    -------
    str
        The same text each time, fit for ``twellviz.show(ax, alt=...)``.
    """
    return _launch(trace) if array is None else _picture(trace, array, options)


def _launch(trace: KernelTrace) -> str:
    parts = [
        f"{trace.name}: {_count(trace.n_blocks, 'block')} of {_count(trace.threads_per_block, 'thread')}, "
        f"{_count(trace.n_accesses, 'access', 'accesses')}."
    ]
    for row in array_table(trace).to_dict("records"):
        places = trace.of_array(row["array"])
        text = f"{row['array']} ({row['space']}, {' x '.join(map(str, row['shape']))} {row['dtype']})"
        for kind, noun in ((READ, "read"), (WRITE, "written"), (ATOMIC, "changed by atomics")):
            mine = places[trace.operation[places] == kind]
            if len(mine):
                text += f", {_times(trace, mine, noun)}"
        if row["moved_bytes"]:
            text += f"; warps move {row['moved_bytes']} bytes, {row['efficiency']:.0%} of them needed"
        if row["extra_passes"]:
            text += f"; bank conflicts cost {_count(row['extra_passes'], 'extra pass', 'extra passes')}"
        parts.append(text + ".")
    parts.append(f"{len(trace.faults)} faults, the first: {trace.faults[0]}." if trace.faults else "No faults.")
    return " ".join(parts)


def _times(trace: KernelTrace, places: Any, noun: str) -> str:
    keys = np.stack([trace.storage[places], trace.cell[places]], axis=1)
    _, times = np.unique(keys, axis=0, return_counts=True)
    cells = _count(len(times), "cell")
    low, high = int(times.min()), int(times.max())
    often = "once" if high == 1 else f"{low} times" if low == high else f"{low} to {high} times"
    return f"{cells} {noun} {often}"


def _picture(trace: KernelTrace, array: str, options: dict[str, Any]) -> str:
    grid = cell_grid(trace, array, **options)
    cells = [cell for row in grid.rows for cell in row]
    touched = [cell for cell in cells if cell.label]
    parts = [f"{grid.title}: {len(touched)} of {_count(len(cells), 'shown cell')} touched."]
    if options.get("step") is not None:
        parts.append(step_text(trace, options["step"]) + ".")
    if touched:
        ends = touched if len(touched) <= 3 else [touched[0], touched[1], touched[-1]]
        names = [f"{array}[{', '.join(map(str, cell.index))}] {cell.label}" for cell in ends]
        if len(touched) > 3:
            names.insert(2, "...")
        parts.append(f"Labels (R read, W written, A atomic): {', '.join(names)}.")
    parts += [notice + "." for notice in grid.notices]
    return " ".join(parts)


def _count(n: int, noun: str, plural: str = "") -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {plural or noun + 's'}"
