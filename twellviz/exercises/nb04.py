"""Checks of notebook 04: five kernels, recorded, compared, and run on the GPU where there is one.

Letters: M tokens, H hidden width, R rows, C columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from twellviz.kernel_trace import KernelSheet, KernelSpec, KernelTrace, bank_conflicts, coalescing, empty

SUM_BLOCKS, SUM_THREADS = 2, 32
TILE, TILE_ROWS = 32, 8
PREFIX_THREADS = 32
PACK_THREADS = 64


def _ceil(n: int, block: int) -> int:
    return -(-n // block)


def _signed(n: int) -> NDArray[np.float32]:
    """Different values of both signs, and a NaN where there is room."""
    a = (np.arange(n) * 7 % n).astype(np.float32) * np.where(np.arange(n) % 3, 1, -1) + 0.5
    if n > 16:
        a[17] = np.nan
    return a.astype(np.float32)


def _relu(out: Any, a: NDArray[np.float32]) -> dict[str, Any]:
    return {"out": np.where(a <= 0, 0, a)}


def _distinct(n: int) -> NDArray[np.int32]:
    return (np.arange(n) * 5 % n + np.arange(n) // 7 + 1).astype(np.int32)


def _prefix(before: Any, count: NDArray[np.int32]) -> dict[str, Any]:
    blocks = [count[i : i + PREFIX_THREADS] for i in range(0, len(count), PREFIX_THREADS)]
    return {"before": np.concatenate([block.cumsum() - block for block in blocks])}


def _gate(n: int) -> NDArray[np.float32]:
    """Three tokens: a few neurons fire, none, all but the last."""
    gate_MH = np.stack([_signed(n), -np.ones(n, np.float32), np.arange(n, 0, -1, dtype=np.float32) - 1])
    gate_MH[0] -= n // 2
    return gate_MH


def _packed(columns: NDArray[np.int32], count: Any, gate: NDArray[np.float32]) -> dict[str, Any]:
    columns, active_MH = columns.copy(), ~(gate <= 0)
    for token, row in enumerate(active_MH):
        columns[token, : row.sum()] = np.flatnonzero(row)
    return {"columns": columns, "count": active_MH.sum(1)}


def _relu_costs(trace: KernelTrace) -> str:
    """Each cell belongs to one thread."""
    written = trace.accesses().query("array == 'out' and operation == 'write'")
    twice = written.groupby("index").size()
    if (twice > 1).any():
        return (
            f"out[{_flat(twice.idxmax())}] is written {twice.max()} times, with the same number each time and most of "
            "the work in vain. Let thread cuda.grid(1) write its own cell alone"
        )
    return ""


def _sum_costs(trace: KernelTrace) -> str:
    """One atomic for each thread at most, and nothing else touches the total."""
    touched = trace.accesses().query("array == 'total'")
    if (touched["operation"] != "atomic").any():
        return "total is read or written without an atomic: let every thread add its own sum by cuda.atomic.add"
    threads = SUM_BLOCKS * SUM_THREADS
    if len(touched) > threads:
        return (
            f"{len(touched)} atomics by {threads} threads: they queue for one cell. Add up in a variable first, then "
            "one cuda.atomic.add a thread"
        )
    return ""


def _transpose_costs(trace: KernelTrace) -> str:
    """Both global arrays must be walked along their rows, and the banks of shared memory must not collide."""
    memory = coalescing(trace)
    if (memory["efficiency"] < 1).any():
        worst = _first(memory[memory["efficiency"] < 1])
        return (
            f"{worst['operation']} of {worst['array']} at line {worst['line']} (`{worst['source']}`) moves "
            f"{worst['sectors']} sectors of 32 bytes where {worst['ideal_sectors']} would do: let neighbouring lanes "
            "(threadIdx.x) touch neighbouring cells of a row, in a and in out; the exchange happens in shared memory"
        )
    banks = bank_conflicts(trace)
    if not len(banks):
        return "no shared memory is used"
    if (banks["passes"] > banks["ideal_passes"]).any():
        worst = _first(banks[banks["passes"] > banks["ideal_passes"]])
        return (
            f"{worst['operation']} of {worst['array']} at line {worst['line']} (`{worst['source']}`) needs "
            f"{worst['worst']} passes for one warp: its lanes want the same bank. Give the tile one column more"
        )
    return ""


def _flat(index: Any) -> str:
    """An index as it stands between brackets."""
    return ", ".join(map(str, index)) if isinstance(index, tuple) else str(index)


def _first(table: pd.DataFrame) -> dict[str, Any]:
    return {str(name): value for name, value in table.iloc[0].items()}


SHEET = KernelSheet(
    [
        KernelSpec(
            "4.1",
            make=lambda n: {"out": empty(n, np.float32), "a": _signed(n)},
            reference=_relu,
            launch=lambda n: (_ceil(n, 8), 8),
            sizes=(16, 21),
            costs=_relu_costs,
            hint="`i = cuda.grid(1)` is the thread's number in the whole launch. The launch may have more threads than "
            "cells: do nothing where i >= a.size. `a[i] <= 0` is False for NaN, which stays as it is.",
        ),
        KernelSpec(
            "4.2",
            make=lambda n: {"total": np.zeros(1, np.int32), "a": _distinct(n)},
            reference=lambda total, a: {"total": a.sum(keepdims=True)},
            launch=lambda n: (SUM_BLOCKS, SUM_THREADS),
            sizes=(128, 333),
            costs=_sum_costs,
            hint="Start at cuda.grid(1) and go on in steps of cuda.gridsize(1), the number of all threads, while the "
            "index is below a.size. Add up in a variable of your own first; then one cuda.atomic.add(total, 0, ...) a "
            "thread.",
        ),
        KernelSpec(
            "4.3",
            make=lambda n: {
                "out": empty((2 * n, n), np.float32),
                "a": np.arange(2 * n * n, dtype=np.float32).reshape(n, 2 * n),
            },
            reference=lambda out, a: {"out": a.T},
            launch=lambda n: ((_ceil(2 * n, TILE), _ceil(n, TILE)), (TILE, TILE_ROWS)),
            sizes=(32, 50),
            hint="Make the tile (TILE, TILE + 1): the extra column moves each row on by one bank. Each thread handles "
            "the four rows threadIdx.y, + 8, + 16, + 24 of the tile. Read a[blockIdx.y * TILE + r, blockIdx.x * TILE + "
            "threadIdx.x] into tile[r, threadIdx.x], meet at a barrier, and write out[blockIdx.x * TILE + r, "
            "blockIdx.y * TILE + threadIdx.x] from tile[threadIdx.x, r]. Guard both, and not the barrier.",
            costs=_transpose_costs,
        ),
        KernelSpec(
            "4.4",
            make=lambda n: {"before": empty(n, np.int32), "count": _distinct(n)},
            reference=_prefix,
            launch=lambda n: (_ceil(n, PREFIX_THREADS), PREFIX_THREADS),
            sizes=(64, 70),
            hint="Put the counts into shared memory, 0 for threads past the end. Then for reach = 1, 2, 4, ...: read "
            "the cell `reach` places before yours into a variable (0 if there is none), wait at a barrier, add it to "
            "your cell, wait again. In the end your cell holds the sum up to and including yours: take yours off.",
        ),
        KernelSpec(
            "4.5",
            make=lambda n: {
                "columns": np.full((3, n), -1, np.int32),
                "count": empty(3, np.int32),
                "gate": _gate(n),
            },
            reference=_packed,
            launch=lambda n: (3, PACK_THREADS),
            sizes=(64, 50),
            hint="A thread counts 1 if its neuron exists and is active, else 0. `scan.sum_before(mine, counts, sums)` "
            "gives the active neurons before it, and that is the place where its column goes; afterwards "
            "`scan.sum_of_all(sums)` is the count, which one thread writes. All threads must call both.",
        ),
    ]
)
check, hint, record = SHEET.check, SHEET.hint, SHEET.record
