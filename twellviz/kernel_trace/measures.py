"""What a launch costs: memory lines that warps touch, shared-memory bank conflicts, bytes, atomics.

A GPU runs 32 threads of a block together, a warp, and serves one instruction of a warp at a time. The recorder runs
threads one by one, so warp accesses are put together afterwards: the n-th time that each lane runs a given
instruction between two barriers counts as one access of the warp. Where lanes go through an inner loop a different
number of times, later rounds of it may be paired differently than on a GPU.

* Global memory moves in sectors of 32 bytes, four to a line of 128. The ideal is as few sectors as the distinct
  bytes fill. An argument is taken to begin on a line.
* Shared memory has 32 banks of 4 bytes. In one pass each bank serves one 4-byte word, to any number of lanes.
  Elements of 8 bytes are served half a warp at a time. Each array is taken to begin at bank 0.
* Atomics of one warp on one cell are done one after another.

Letters: E accesses, G warp accesses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from twellviz.kernel_trace.recording import ATOMIC, GLOBAL, LOCAL, OPERATIONS, READ, SHARED, WRITE, Storage
from twellviz.kernel_trace.trace import KernelTrace

SECTOR, LINE = 32, 128
BANKS, BANK_BYTES = 32, 4

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class WarpAccesses:
    """Accesses put together by warp.

    Attributes
    ----------
    group : int64 [E]
        The warp access that each access belongs to.
    first : int64 [G]
        Order number of the earliest access in each.
    """

    group: Ints
    first: Ints

    @property
    def n_groups(self) -> int:
        """Warp accesses."""
        return len(self.first)


def warp_accesses(trace: KernelTrace) -> WarpAccesses:
    """Put the accesses of a trace together by warp; see the top of this module. Computed once for each trace."""
    found: WarpAccesses | None = trace.__dict__.get("_warp_accesses")
    if found is None:
        found = trace.__dict__["_warp_accesses"] = _warp_accesses(trace)
    return found


def _warp_accesses(trace: KernelTrace) -> WarpAccesses:
    # How often the thread ran this instruction before, in this epoch.
    occurrence = _occurrence(trace.thread, trace.epoch, trace.site)
    # Local arrays are one for each thread, and one instruction for the warp.
    local = np.array([storage.space == LOCAL for storage in trace.storages], dtype=bool)
    array = np.where(local[trace.storage], -1, trace.storage) if len(local) else trace.storage
    keys = [array, occurrence, trace.site, trace.epoch, trace.warp, trace.block_of]
    order = np.lexsort(keys)
    new = np.ones(len(order), dtype=bool)
    new[1:] = np.any([key[order[1:]] != key[order[:-1]] for key in keys], axis=0)
    group = np.empty(len(order), dtype=np.int64)
    group[order] = np.cumsum(new) - 1
    first = np.full(int(new.sum()), len(order), dtype=np.int64)
    np.minimum.at(first, group, np.arange(len(order)))
    return WarpAccesses(group, first)


def addresses(trace: KernelTrace) -> Ints:
    """Byte address of each access within its array, [E], by the strides of the caller's memory."""
    found = np.zeros(trace.n_accesses, dtype=np.int64)
    itemsize = np.array([storage.dtype.itemsize for storage in trace.storages], dtype=np.int64)
    if len(found):
        found = trace.cell * itemsize[trace.storage]
    for storage in trace.storages:
        if storage.space != GLOBAL or _in_c_order(storage):
            continue
        mine = trace.storage == storage.id
        places = np.unravel_index(trace.cell[mine], storage.shape)
        found[mine] = sum(i * stride for i, stride in zip(places, storage.strides, strict=True))
        # Memory in reverse order begins at its last cell.
        found[mine] -= sum(min(0, (n - 1) * stride) for n, stride in zip(storage.shape, storage.strides, strict=True))
    return found


def coalescing(trace: KernelTrace) -> pd.DataFrame:
    """How well the warps' accesses to global memory fit its sectors, one row for each instruction.

    Returns
    -------
    DataFrame
        ``array, line, source, operation, warp_accesses, accesses, sectors, ideal_sectors, lines, efficiency``;
        efficiency is ideal over touched sectors, 1 where nothing is moved in vain.
    """
    groups = warp_accesses(trace)
    address = addresses(trace)
    frame = _by_group(trace, groups, GLOBAL)
    frame["sectors"] = _distinct(groups, address // SECTOR)[frame.index]
    frame["lines"] = _distinct(groups, address // LINE)[frame.index]
    itemsize = np.array([trace.storages[i].dtype.itemsize for i in trace.storage[groups.first]], dtype=np.int64)
    frame["ideal_sectors"] = -(-_distinct(groups, address)[frame.index] * itemsize[frame.index] // SECTOR)
    found = _by_instruction(frame, ["sectors", "ideal_sectors", "lines"])
    found["efficiency"] = found["ideal_sectors"] / found["sectors"]
    return found


def bank_conflicts(trace: KernelTrace) -> pd.DataFrame:
    """How often shared memory must be passed for the warps' accesses, one row for each instruction.

    Returns
    -------
    DataFrame
        ``array, line, source, operation, warp_accesses, accesses, passes, ideal_passes, worst``; worst is the
        largest number of passes of one warp access, 1 (2 for 8-byte elements) where nothing conflicts.
    """
    groups = warp_accesses(trace)
    passes, ideal = bank_passes(trace, groups)
    frame = _by_group(trace, groups, SHARED)
    frame["passes"], frame["ideal_passes"] = passes[frame.index], ideal[frame.index]
    frame["worst"] = frame["passes"]
    return _by_instruction(frame, ["passes", "ideal_passes"], ["worst"])


def bank_passes(trace: KernelTrace, groups: WarpAccesses) -> tuple[Ints, Ints]:
    """Passes of each warp access, and how many there would be without conflicts, [G] each; 0 if not shared memory."""
    shared = np.array([storage.space == SHARED for storage in trace.storages], dtype=bool)
    passes = np.zeros(groups.n_groups, dtype=np.int64)
    ideal = passes.copy()
    if not trace.n_accesses:
        return passes, ideal
    places = np.flatnonzero(shared[trace.storage])
    itemsize = np.array([storage.dtype.itemsize for storage in trace.storages], dtype=np.int64)[trace.storage[places]]
    half = np.where(itemsize == 8, trace.lane[places] // 16, 0)
    word = trace.cell[places] * itemsize // BANK_BYTES
    # Two words of 4 bytes for elements of 8: the second lies in the next bank and conflicts as the first does.
    keys = np.unique(np.stack([groups.group[places], half, word % BANKS, word], axis=1), axis=0)
    if not len(keys):
        return passes, ideal
    banks, words = np.unique(keys[:, :3], axis=0, return_counts=True)
    halves, start = np.unique(banks[:, :2], axis=0, return_index=True)
    np.add.at(passes, halves[:, 0], np.maximum.reduceat(words, start))
    np.add.at(ideal, halves[:, 0], 1)
    return passes, ideal


def array_table(trace: KernelTrace) -> pd.DataFrame:
    """One row for each array of a trace.

    Returns
    -------
    DataFrame
        ``array, space, dtype, shape, reads, writes, atomics, cells`` (distinct cells touched), ``bytes`` (asked for
        by all threads), ``moved_bytes`` (32 for each sector that a warp access touches; global memory only),
        ``efficiency`` (least possible over moved; NaN where nothing moves), ``extra_passes`` (passes lost to bank
        conflicts), ``atomic_queue`` (longest queue of one warp at one cell).
    """
    groups = warp_accesses(trace)
    address = addresses(trace)
    sectors = _distinct(groups, address // SECTOR)
    cells = _distinct(groups, address)
    passes, ideal = bank_passes(trace, groups)
    queue = _queues(trace, groups)
    rows = []
    for name in trace.arrays:
        storage, places = trace.find_any(name), trace.of_array(name)
        mine = np.unique(groups.group[places])
        size = storage.dtype.itemsize
        is_global = storage.space == GLOBAL
        moved = int(sectors[mine].sum()) * SECTOR if is_global else 0
        least = int((-(-cells[mine] * size // SECTOR)).sum()) * SECTOR
        count = [int((trace.operation[places] == kind).sum()) for kind in (READ, WRITE, ATOMIC)]
        touched = np.stack([trace.storage[places], trace.cell[places]], axis=1)
        rows.append(
            {
                "array": name,
                "space": storage.space,
                "dtype": str(storage.dtype),
                "shape": storage.shape,
                "reads": count[0],
                "writes": count[1],
                "atomics": count[2],
                "cells": len(np.unique(touched, axis=0)),
                "bytes": len(places) * size,
                "moved_bytes": moved,
                "efficiency": least / moved if moved else float("nan"),
                "extra_passes": int((passes[mine] - ideal[mine]).sum()),
                "atomic_queue": int(queue[mine].max(initial=0)),
            }
        )
    return pd.DataFrame(rows)


def _occurrence(*keys: Ints) -> Ints:
    """For each position, how many earlier positions have the same keys."""
    order = np.lexsort(keys)
    new = np.ones(len(order), dtype=bool)
    new[1:] = np.any([key[order[1:]] != key[order[:-1]] for key in keys], axis=0)
    starts = np.flatnonzero(new)
    rank = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
    found = np.empty(len(order), dtype=np.int64)
    found[order] = rank
    return found


def _distinct(groups: WarpAccesses, value: Ints) -> Ints:
    """Number of different values in each group."""
    pairs = np.unique(np.stack([groups.group, value], axis=1), axis=0)
    return np.bincount(pairs[:, 0], minlength=groups.n_groups)


def _queues(trace: KernelTrace, groups: WarpAccesses) -> Ints:
    """For each warp access, how many lanes do an atomic on its most wanted cell; 0 if it is no atomic."""
    found = np.zeros(groups.n_groups, dtype=np.int64)
    atomic = np.flatnonzero(trace.operation == ATOMIC)
    keys = np.stack([groups.group[atomic], trace.storage[atomic], trace.cell[atomic]], axis=1)
    cells, lanes = np.unique(keys, axis=0, return_counts=True)
    np.maximum.at(found, cells[:, 0], lanes)
    return found


def _by_group(trace: KernelTrace, groups: WarpAccesses, space: str) -> pd.DataFrame:
    """One row for each warp access to this kind of memory, indexed by its number."""
    first = groups.first
    storages = [trace.storages[i] for i in trace.storage[first]]
    frame = pd.DataFrame(
        {
            "array": [storage.name for storage in storages],
            "line": [trace.sites[i].line for i in trace.site[first]],
            "source": [trace.sites[i].source for i in trace.site[first]],
            "operation": [OPERATIONS[i] for i in trace.operation[first]],
            "position": [trace.sites[i].position for i in trace.site[first]],
            "accesses": np.bincount(groups.group, minlength=groups.n_groups),
        }
    )
    return frame[np.array([storage.space == space for storage in storages], dtype=bool)].copy()


def _by_instruction(frame: pd.DataFrame, summed: list[str], worst: list[str] | None = None) -> pd.DataFrame:
    """Warp accesses of one instruction together, in program order."""
    keys = ["position", "array", "line", "source", "operation"]
    grouped: Any = frame.groupby(keys, sort=True)
    found = grouped.size().rename("warp_accesses").to_frame()
    found["accesses"] = grouped["accesses"].sum()
    for name in summed:
        found[name] = grouped[name].sum()
    for name in worst or []:
        found[name] = grouped[name].max()
    result: pd.DataFrame = found.reset_index().drop(columns="position")
    return result


def _in_c_order(storage: Storage) -> bool:
    step = storage.dtype.itemsize
    for n, stride in zip(reversed(storage.shape), reversed(storage.strides), strict=True):
        if n > 1 and stride != step:
            return False
        step *= n
    return True
