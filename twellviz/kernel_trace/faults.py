"""Finds what is wrong in a recording: races, reads of what nothing wrote, indices outside, barriers not reached by all.

Two accesses race if different threads make them to one cell, at least one is a plain write (or one is atomic and the
other a read), and no barrier lies between: threads of one block in the same epoch, or threads of different blocks at
any time. Blocks that hand data on through an atomic flag and ``threadfence`` are therefore called a race although a
GPU can run them. Letters: none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from twellviz.kernel_trace import errors
from twellviz.kernel_trace.errors import Fault
from twellviz.kernel_trace.recording import ATOMIC, LOCAL, READ, WRITE, Divergence, Outside, Recording, Storage

if TYPE_CHECKING:
    from twellviz.kernel_trace.trace import KernelTrace

Found = tuple[int, Fault]
"""A fault, and the number of accesses before it showed."""


def find_faults(trace: KernelTrace, recording: Recording) -> tuple[tuple[Fault, ...], tuple[Fault, ...]]:
    """Faults in the order in which they showed, one for each place and array; and hints."""
    races = list(_races(trace))
    found = [
        *(_outside(trace, *outside) for outside in recording.outside.values()),
        *(_divergence(trace, *divergence) for divergence in recording.divergences.values()),
        *(race for race in races if race[1].kind != errors.SAME_VALUE),
        *_unwritten_reads(trace),
    ]
    # A divergent barrier first: where one is, epochs no longer mean much, and the rest may follow from it.
    found.sort(key=lambda pair: (pair[1].kind != errors.DIVERGENT_BARRIER, pair[0]))
    return tuple(fault for _, fault in found), tuple(fault for _, fault in races if fault.kind == errors.SAME_VALUE)


def who(trace: KernelTrace, thread: int) -> str:
    """``thread 3 of block 0``; without the block if there is one only."""
    index, block = trace.thread_index(thread), trace.block_index(thread // trace.threads_per_block)
    text = f"thread {_tuple(index)}"
    return f"{text} of block {_tuple(block)}" if trace.n_blocks > 1 else text


def line_text(trace: KernelTrace, line: int, source: str, function: str) -> str:
    """``line 5 (`out[i] = a[i]`)``."""
    text = f"line {line}" if function == trace.name else f"line {line} of {function}"
    return f"{text} (`{source}`)" if source else text


def place(trace: KernelTrace, line: int, source: str, function: str, thread: int) -> str:
    """Line and thread."""
    return f"{line_text(trace, line, source, function)}, {who(trace, thread)}"


def _at(trace: KernelTrace, site: int) -> str:
    return line_text(trace, trace.sites[site].line, trace.sites[site].source, trace.sites[site].function)


def _cell(storage: Storage, index: tuple[int, ...]) -> str:
    return f"{storage.name}[{', '.join(map(str, index))}]"


def _tuple(numbers: tuple[int, ...]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else str(numbers)


def _fault(trace: KernelTrace, kind: str, message: str, site: int, thread: int, **more: Any) -> Fault:
    where = trace.sites[site]
    return Fault(
        kind=kind,
        message=message,
        line=where.line,
        source=where.source,
        function=where.function,
        thread=trace.thread_index(thread),
        block=trace.block_index(thread // trace.threads_per_block),
        **more,
    )


def _outside(trace: KernelTrace, found: Outside, count: int) -> Found:
    i, n = found.places[found.axis], found.shape[found.axis]
    verb = ("reads", "writes", "updates")[trace.sites[found.site].operation]
    cell = _cell(found.storage, found.places)
    axis = f" along axis {found.axis}" if len(found.shape) > 1 else ""
    name = found.storage.name if found.shape == found.storage.shape else f"this view of {found.storage.name}"
    range_ = f"indices 0 to {n - 1}{axis}" if n else f"no cells{axis}"
    message = f"{who(trace, found.thread)} {verb} {cell} at {_at(trace, found.site)}; {name} has {range_}. "
    if i < 0:
        kind = errors.NEGATIVE_INDEX
        message += (
            "A negative index means the cells at the end to NumPy and Numba, memory in front of the array to CUDA C: "
            "guard the access so that the index is at least 0"
        )
    else:
        kind = errors.OUT_OF_RANGE
        message += _guard(trace, found, i, n)
    fault = _fault(
        trace,
        kind,
        message,
        found.site,
        found.thread,
        array=found.storage.name,
        index=found.places,
        epoch=found.epoch,
        count=count,
    )
    return found.order, fault


def _guard(trace: KernelTrace, found: Outside, i: int, n: int) -> str:
    """What usually leads to an index that is too large."""
    thread = trace.thread_index(found.thread)
    block = trace.block_index(found.thread // trace.threads_per_block)
    for axis, (t, b) in enumerate(zip(thread, block, strict=True)):
        threads = trace.grid[axis] * trace.block[axis]
        if i == b * trace.block[axis] + t and threads > n:
            return (
                f"The launch has {threads} threads for {n} cells, so some have nothing to do: guard the access, "
                f"`if i < {n}`"
            )
    if i == n:
        return "It is one past the end: a loop or comparison goes one too far (`<` instead of `<=`, n - 1 instead of n)"
    return "Check how the index is computed from the thread and block indices"


def _divergence(trace: KernelTrace, found: Divergence, count: int) -> Found:
    first = found.block * trace.threads_per_block
    message = f"{who(trace, first + found.waiting)} waits at the barrier of {_at(trace, found.site)}, but "
    if found.other_site is None:
        message += f"thread {_tuple(trace.thread_index(found.other))} of its block has ended without reaching it. "
    else:
        other = trace.thread_index(found.other)
        message += f"thread {_tuple(other)} of its block waits at another one, {_at(trace, found.other_site)}. "
    message += (
        "On a GPU the block hangs or goes on with half-written data: put cuda.syncthreads() where every thread passes, "
        "outside any `if` on the thread's index and not after an early return"
    )
    fault = _fault(
        trace,
        errors.DIVERGENT_BARRIER,
        message,
        found.site,
        first + found.waiting,
        epoch=found.epoch,
        other_thread=trace.thread_index(found.other),
        other_block=trace.block_index(found.block),
        other_line=None if found.other_site is None else trace.sites[found.other_site].line,
        count=count,
    )
    return found.order, fault


def _unwritten_reads(trace: KernelTrace) -> Iterator[Found]:
    unwritten = np.array([storage.unwritten for storage in trace.storages], dtype=bool)
    if not unwritten.any() or not trace.n_accesses:
        return
    places = np.flatnonzero(unwritten[trace.storage])
    keys = np.stack([trace.storage[places], trace.cell[places]], axis=1)
    _, group = np.unique(keys, axis=0, return_inverse=True)
    group = group.reshape(-1)
    operation = trace.operation[places]
    # Order number of each cell's first write; past the end for a cell that has none.
    first = np.full(int(group.max(initial=-1)) + 1, trace.n_accesses, dtype=np.int64)
    np.minimum.at(first, group[operation != READ], places[operation != READ])
    write = first[group]
    bad = np.where(operation == READ, places < write, (operation == ATOMIC) & (places == write))
    seen: dict[tuple[int, str], tuple[int, int]] = {}
    for order, by in zip(places[bad].tolist(), write[bad].tolist(), strict=True):
        if by < trace.n_accesses and by != order and _unordered(trace, order, by):
            continue  # the write comes in the same epoch from another thread: that is a race, and named as one
        key = (int(trace.site[order]), trace.storages[trace.storage[order]].name)
        seen[key] = (seen.get(key, (order, 0))[0], seen.get(key, (order, 0))[1] + 1)
    for (site, _), (order, count) in seen.items():
        storage = trace.storages[trace.storage[order]]
        index, thread = storage.index(int(trace.cell[order])), int(trace.thread[order])
        message = (
            f"{who(trace, thread)} reads {_cell(storage, index)} at {_at(trace, site)} before anything wrote it: "
            f"{storage.space} memory starts with whatever was left there. Write every cell first, zeros included"
        )
        yield (
            order,
            _fault(
                trace,
                errors.UNWRITTEN_READ,
                message,
                site,
                thread,
                array=storage.name,
                index=index,
                epoch=int(trace.epoch[order]),
                count=count,
            ),
        )


def _unordered(trace: KernelTrace, one: int, other: int) -> bool:
    """Whether two accesses come from different threads with no barrier between."""
    if trace.thread[one] == trace.thread[other]:
        return False
    return bool(trace.block_of[one] != trace.block_of[other] or trace.epoch[one] == trace.epoch[other])


def _races(trace: KernelTrace) -> Iterator[Found]:
    local = np.array([storage.space == LOCAL for storage in trace.storages], dtype=bool)
    if not trace.n_accesses:
        return
    places = np.flatnonzero(~local[trace.storage])
    columns = [trace.epoch, trace.block_of, trace.cell, trace.storage]
    places = places[np.lexsort([column[places] for column in columns])]  # stable: recorded order within a group
    seen: dict[tuple[Any, ...], tuple[int, int, int, str]] = {}
    by_epoch = _groups(places, columns)
    by_cell = _groups(places, columns[2:])
    within = [(errors.RACE, members) for members in _conflicts(trace, places, by_epoch, trace.thread)]
    across = [(errors.BLOCK_RACE, members) for members in _conflicts(trace, places, by_cell, trace.block_of)]
    for kind, members in (*within, *across):
        owner = trace.thread if kind == errors.RACE else trace.block_of
        one, other = _pair(trace, members, owner)
        if _same_value(trace, members):
            kind = errors.SAME_VALUE
        name = trace.storages[trace.storage[one]].name
        key = (kind, name, *sorted((int(trace.site[one]), int(trace.site[other]))))
        before = seen.get(key)
        if before is None or other < before[1]:
            seen[key] = one, other, before[2] + 1 if before else 1, kind
        else:
            seen[key] = *before[:2], before[2] + 1, kind
    for one, other, count, kind in seen.values():
        yield other, _race(trace, one, other, count, kind)


def _groups(places: NDArray[np.int64], columns: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Where each group of equal columns starts in the sorted ``places``."""
    if not len(places):
        return np.zeros(0, dtype=np.int64)
    new = np.ones(len(places), dtype=bool)
    new[1:] = np.any([column[places[1:]] != column[places[:-1]] for column in columns], axis=0)
    return np.flatnonzero(new)


def _conflicts(
    trace: KernelTrace, places: NDArray[np.int64], starts: NDArray[np.int64], owner: NDArray[np.int64]
) -> list[NDArray[np.int64]]:
    """The groups in which different owners (threads or blocks) touch a cell in ways that may not be unordered."""
    if not len(starts):
        return []
    operation, owners = trace.operation[places], owner[places]
    several = np.minimum.reduceat(owners, starts) != np.maximum.reduceat(owners, starts)
    has = [np.logical_or.reduceat(operation == kind, starts) for kind in (READ, WRITE, ATOMIC)]
    conflict = np.flatnonzero(several & (has[WRITE] | (has[ATOMIC] & has[READ])))
    ends = np.append(starts[1:], len(places))
    return [np.sort(places[starts[group] : ends[group]]) for group in conflict]


def _pair(trace: KernelTrace, members: NDArray[np.int64], owner: NDArray[np.int64]) -> tuple[int, int]:
    """The first two accesses of a group that conflict, in recorded order."""
    operation = trace.operation[members]
    writes = members[operation == WRITE]
    if len(writes):
        one = int(writes[0])
        other = int(members[owner[members] != owner[one]][0])
    else:
        reads, atomics = members[operation == READ], members[operation == ATOMIC]
        one = int(atomics[0])
        others = reads[owner[reads] != owner[one]]
        if not len(others):
            one = int(reads[0])
            others = atomics[owner[atomics] != owner[one]]
        other = int(others[0])
    return min(one, other), max(one, other)


def _same_value(trace: KernelTrace, members: NDArray[np.int64]) -> bool:
    if (trace.operation[members] != WRITE).any():
        return False
    values = [trace.values[i] for i in members]
    return all(value == values[0] or (value != value and values[0] != values[0]) for value in values)


def _race(trace: KernelTrace, one: int, other: int, count: int, kind: str) -> Fault:
    storage = trace.storages[trace.storage[one]]
    index = storage.index(int(trace.cell[one]))
    cell = _cell(storage, index)
    threads, sites = [int(trace.thread[i]) for i in (one, other)], [int(trace.site[i]) for i in (one, other)]
    verbs = [("reads", "writes", "updates atomically")[trace.operation[i]] for i in (one, other)]
    if kind == errors.SAME_VALUE:
        message = (
            f"{who(trace, threads[0])} and {who(trace, threads[1])} both write {cell} at {_at(trace, sites[0])}, the "
            "same value each time: harmless, and one thread would do"
        )
    else:
        message = (
            f"{who(trace, threads[0])} {verbs[0]} {cell} at {_at(trace, sites[0])}, {who(trace, threads[1])} "
            f"{verbs[1]} it at {_at(trace, sites[1])}, and nothing says which comes first. "
        )
        message += _remedy(trace, one, other, kind)
    return _fault(
        trace,
        kind,
        message,
        sites[1],
        threads[1],
        array=storage.name,
        index=index,
        epoch=int(trace.epoch[other]),
        other_thread=trace.thread_index(threads[0]),
        other_block=trace.block_index(threads[0] // trace.threads_per_block),
        other_line=trace.sites[sites[0]].line,
        count=count,
    )


def _remedy(trace: KernelTrace, one: int, other: int, kind: str) -> str:
    if _changes(trace, one) and _changes(trace, other):
        return "Threads that change one cell need cuda.atomic.add, or a cell each and a sum at the end"
    if kind == errors.BLOCK_RACE:
        return (
            "No barrier reaches across blocks: give each block its own cells, use cuda.atomic, or start another kernel"
        )
    if trace.operation[one] == trace.operation[other] == WRITE:
        return "Let one thread write it, give each thread a cell of its own, or use cuda.atomic"
    return "Put cuda.syncthreads() between the two"


def _changes(trace: KernelTrace, order: int) -> bool:
    """Whether a thread reads and writes the cell of this access on one line, as ``+=`` does."""
    line = trace.sites[trace.site[order]].line
    mine = (trace.thread == trace.thread[order]) & (trace.storage == trace.storage[order])
    mine &= trace.cell == trace.cell[order]
    done = {int(trace.operation[i]) for i in np.flatnonzero(mine) if trace.sites[trace.site[i]].line == line}
    return {READ, WRITE} <= done
