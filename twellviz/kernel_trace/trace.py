"""What a kernel's threads did: every access of one launch, with the faults found in it.

Letters: none. E below is the number of accesses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from twellviz.errors import TraceError
from twellviz.kernel_trace.errors import Fault, KernelFault
from twellviz.kernel_trace.recording import ATOMIC, GLOBAL, LOCAL, OPERATIONS, READ, WRITE, Site, Storage
from twellviz.kernel_trace.standin import Dim3

if TYPE_CHECKING:
    import pandas as pd

WARP = 32


@dataclass(frozen=True, eq=False, repr=False)
class KernelTrace:
    """One recorded launch.

    Attributes
    ----------
    name : str
        The kernel's name.
    grid, block : Dim3
        Blocks, and threads of a block.
    storages : tuple of Storage
        Arguments first; then each block's shared and each thread's local arrays as they were met.
    sites : tuple of Site
        Places in the code that touch memory.
    storage, cell, site, thread, epoch : int64 [E]
        Of each access in the order in which they were recorded: which array, which cell of it (flat, C order), from
        where in the code, by which thread (linear over the launch), after how many barriers.
    values : list [E]
        What the cell held after the access.
    outputs : mapping of str to array
        Every array argument after the launch: NumPy for NumPy, torch for torch.
    faults : tuple of Fault
        Mistakes, in the order in which they showed.
    hints : tuple of Fault
        What is allowed and still odd: several threads that write the same value to one cell.
    """

    name: str
    grid: Dim3
    block: Dim3
    storages: tuple[Storage, ...]
    sites: tuple[Site, ...]
    storage: NDArray[np.int64]
    cell: NDArray[np.int64]
    site: NDArray[np.int64]
    thread: NDArray[np.int64]
    epoch: NDArray[np.int64]
    values: list[Any]
    outputs: Mapping[str, Any]
    faults: tuple[Fault, ...] = ()
    hints: tuple[Fault, ...] = ()

    @property
    def threads_per_block(self) -> int:
        """Threads of a block."""
        return self.block.x * self.block.y * self.block.z

    @property
    def n_blocks(self) -> int:
        """Blocks of the launch."""
        return self.grid.x * self.grid.y * self.grid.z

    @property
    def n_accesses(self) -> int:
        """Accesses of all threads together."""
        return len(self.cell)

    @cached_property
    def operation(self) -> NDArray[np.int64]:
        """READ, WRITE or ATOMIC of each access, [E]."""
        return self._of_site([site.operation for site in self.sites])

    @cached_property
    def block_of(self) -> NDArray[np.int64]:
        """Block of each access, linear, [E]."""
        return self.thread // self.threads_per_block

    @cached_property
    def warp(self) -> NDArray[np.int64]:
        """Warp in its block of each access, [E]."""
        return self.thread % self.threads_per_block // WARP

    @cached_property
    def lane(self) -> NDArray[np.int64]:
        """Place in its warp of each access, [E]."""
        return self.thread % self.threads_per_block % WARP

    @property
    def arrays(self) -> tuple[str, ...]:
        """Names of all arrays."""
        return tuple(dict.fromkeys(storage.name for storage in self.storages))

    def find(self, array: str, *, block: int = 0, thread: int = 0) -> Storage:
        """The memory of an array: a shared one of this block, a local one of this thread (its last).

        Raises
        ------
        TraceError
            There is none; the message lists those there are.
        """
        named = [storage for storage in self.storages if storage.name == array]
        if not named:
            raise TraceError(f"array={array!r}: {self.name} used {', '.join(self.arrays) or 'no arrays'}")
        if named[0].space == GLOBAL:
            return named[0]
        if named[0].space == LOCAL:
            owner = block * self.threads_per_block + thread
            found = [storage for storage in named if storage.thread == owner]
        else:
            found = [storage for storage in named if storage.block == block]
        if not found:
            raise TraceError(f"block={block}, thread={thread}: {array} is not made there")
        return found[-1]

    def of_array(self, array: str) -> NDArray[np.int64]:
        """Order numbers of the accesses to an array, in all blocks and threads."""
        self.find_any(array)
        ids = [storage.id for storage in self.storages if storage.name == array]
        return np.flatnonzero(np.isin(self.storage, ids))

    def find_any(self, array: str) -> Storage:
        """The first memory of this name; see :meth:`find`."""
        named = [storage for storage in self.storages if storage.name == array]
        return named[0] if named else self.find(array)

    def check(self) -> KernelTrace:
        """The trace itself if nothing is wrong with it.

        Raises
        ------
        KernelFault
            With the first fault.
        """
        if self.faults:
            raise KernelFault(self.faults[0])
        return self

    def only(self, *arrays: str) -> KernelTrace:
        """The same recording with the accesses to these arrays alone: a large one is measured and drawn sooner.

        Raises
        ------
        TraceError
            No such array.
        """
        keep = np.zeros(self.n_accesses, dtype=bool)
        for array in arrays:
            keep[self.of_array(array)] = True
        per_access = {name: getattr(self, name)[keep] for name in ("storage", "cell", "site", "thread", "epoch")}
        return replace(self, **per_access, values=[self.values[i] for i in np.flatnonzero(keep).tolist()])

    def unwritten(self, array: str) -> list[tuple[int, ...]]:
        """Cells of an array argument that no thread wrote."""
        storage = self.find(array)
        mine = (self.storage == storage.id) & (self.operation != READ)
        missing = np.setdiff1d(np.arange(storage.data.size), self.cell[mine])
        return [storage.index(cell) for cell in missing.tolist()]

    def last_write(self, array: str, index: tuple[int, ...]) -> int | None:
        """Order number of the last access that changed a cell of an array argument; None if none did."""
        storage = self.find(array)
        cell = int(np.ravel_multi_index(index, storage.shape))
        mine = (self.storage == storage.id) & (self.operation != READ) & (self.cell == cell)
        places = np.flatnonzero(mine)
        return int(places[-1]) if len(places) else None

    def thread_index(self, thread: int) -> tuple[int, ...]:
        """``threadIdx`` of a thread, as many numbers as the launch has dimensions."""
        return _unravel(thread % self.threads_per_block, self.block, self.n_dims)

    def block_index(self, block: int) -> tuple[int, ...]:
        """``blockIdx`` of a linear block number, as many numbers as the launch has dimensions."""
        return _unravel(block, self.grid, self.n_dims)

    @property
    def n_dims(self) -> int:
        """Dimensions of the launch: 1, 2 or 3."""
        return max(1, *(d + 1 for d in range(3) if self.grid[d] > 1 or self.block[d] > 1), 1)

    def accesses(self) -> pd.DataFrame:
        """All accesses, one a row, in the order in which they were recorded."""
        import pandas as pd

        return pd.DataFrame(
            {
                "array": [self.storages[i].name for i in self.storage],
                "space": [self.storages[i].space for i in self.storage],
                "operation": [OPERATIONS[i] for i in self.operation],
                "index": [self.storages[i].index(c) for i, c in zip(self.storage, self.cell, strict=True)],
                "cell": self.cell,
                # As objects: beside float32 values pandas would make floats of integers and round them.
                "value": pd.Series(self.values, dtype=object),
                "block": self.block_of,
                "warp": self.warp,
                "lane": self.lane,
                "thread": self.thread % self.threads_per_block,
                "epoch": self.epoch,
                "line": self._of_site([site.line for site in self.sites]),
            }
        )

    def table(self) -> pd.DataFrame:
        """One row for each array: accesses, bytes, how well they coalesce, bank conflicts."""
        from twellviz.kernel_trace.measures import array_table

        return array_table(self)

    def _of_site(self, values: list[int]) -> NDArray[np.int64]:
        return np.array(values, dtype=np.int64)[self.site] if values else np.zeros(0, dtype=np.int64)

    def __repr__(self) -> str:
        count = [int((self.operation == operation).sum()) for operation in (READ, WRITE, ATOMIC)]
        size = f"grid {_size(self.grid)} x block {_size(self.block)} = {self.n_blocks * self.threads_per_block} threads"
        lines = [
            f"KernelTrace of {self.name}: {size}",
            f"  {self.n_accesses} accesses: {count[0]} reads, {count[1]} writes, {count[2]} atomics "
            f"(each is one thread touching one cell)",
        ]
        for array in self.arrays:
            storage, places = self.find_any(array), self.of_array(array)
            reads = int((self.operation[places] == READ).sum())
            shape = " x ".join(map(str, storage.shape))
            lines.append(
                f"  {array}: {storage.space}, {shape} {storage.dtype}, {reads} read, {len(places) - reads} written"
            )
        found = [f"  {len(self.faults)} fault(s), the first: {self.faults[0]}"] if self.faults else ["  no faults"]
        return "\n".join(lines + found + [f"  hint: {hint}" for hint in self.hints])


def _unravel(number: int, size: Dim3, ndim: int) -> tuple[int, ...]:
    return (number % size.x, number // size.x % size.y, number // (size.x * size.y))[:ndim]


def _size(size: Dim3) -> str:
    numbers = [str(n) for n in size]
    while len(numbers) > 1 and numbers[-1] == "1":
        numbers.pop()
    return numbers[0] if len(numbers) == 1 else f"({', '.join(numbers)})"
