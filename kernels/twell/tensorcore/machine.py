"""A Hopper multiprocessor in Python, to run the kernels of this package where there is none: threads, barriers, copies.

Each thread of a block is a Python thread that runs the kernel's ``py_func``; blocks of a cluster run at once, with
shared memories of their own. What the hardware does at its leisure is done here at the time that is worst for a kernel
that waits too little: copies into shared memory arrive at once or late, and a matrix product reads its operands when
it is issued or only when it is waited for, as the test chooses (:class:`Machine`). It checks what the hardware does
not: reads outside the arrays of the launch, and threads that wait for ever.

Slow (a tile of 128 x 256 by 128 takes a second), and exact in what is moved where; sums are float32 in another order
than the hardware's. Letters: none; ``blocks`` and ``threads`` are the sizes of a launch.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CellType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twell.cuda_target import NUMPY_TYPES
from twell.errors import DeviceError

Bytes = NDArray[np.uint8]

STATIC = 1024
"""Shared address of the first array: address 0 would hide a forgotten one."""

SHARED = 227 << 10
RANK = 24
"""Bits of an address inside one block; the rank of the block in its cluster stands above them."""

PATIENCE = 60.0
"""Seconds after which a wait counts as endless."""


class Dim3(NamedTuple):
    """Sizes or indices."""

    x: int
    y: int = 1
    z: int = 1


@dataclass
class Barrier:
    """An mbarrier: it turns over when all have arrived and all announced bytes have come."""

    count: int
    pending: int
    turned: threading.Condition
    bytes: int = 0
    phase: int = 0


@dataclass
class Map:
    """A tensor map: a matrix in global memory and the box that one copy moves."""

    matrix: NDArray[Any]
    rows: int
    columns: int


@dataclass
class Block:
    """What the threads of one block share."""

    index: int
    rank: int
    memory: Bytes
    arrays: dict[tuple[Any, int], NDArray[Any]] = field(default_factory=dict)
    used: int = STATIC
    barriers: dict[int, Barrier] = field(default_factory=dict)
    meetings: dict[Any, Meeting] = field(default_factory=dict)
    committed: dict[int, int] = field(default_factory=dict)
    groups: dict[tuple[int, int], Group] = field(default_factory=dict)


class Meeting:
    """All of ``n`` threads meet and see what each has brought."""

    def __init__(self, n: int, met: threading.Condition) -> None:
        self.n, self.round, self.met = n, 0, met
        self.brought: dict[int, Any] = {}
        self.result: dict[int, Any] = {}


@dataclass
class Group:
    """A group of products of a warpgroup: it runs when all four warps have issued theirs."""

    issued: threading.Condition
    threads: int = 0
    products: list[Callable[[], None]] = field(default_factory=list)


class _Local(threading.local):
    machine: Machine
    block: Block
    thread: int
    waited: int


_local = _Local()


def current() -> _Local:
    """The thread that is running: its machine, block and number.

    Raises
    ------
    DeviceError
        Outside of a :class:`Machine`.
    """
    if not hasattr(_local, "machine"):
        raise DeviceError(
            "an instruction of Hopper was called in Python: run the kernel on such a GPU, or in a "
            "twell.tensorcore.machine.Machine"
        )
    return _local


class Machine:
    """Runs a kernel.

    Parameters
    ----------
    late : bool
        Matrix products read their operands when they are waited for, not when they are issued.
    seed : int, optional
        Threads lose their turn at random places.
    """

    def __init__(self, *, late: bool = False, seed: int | None = None) -> None:
        self.late = late
        self.random = None if seed is None else random.Random(seed)
        self.lock = threading.RLock()
        self._conditions: list[threading.Condition] = []
        self.maps: list[Map] = []
        self.cluster: list[Block] = []
        self.global_arrays: list[NDArray[Any]] = []
        self.failure: BaseException | None = None
        self.threads = 0

    def map_of(self, matrix: Tensor, rows: int, columns: int) -> int:
        """A tensor map's address; boxes of ``rows`` x ``columns``, 128 bytes wide, are written swizzled."""
        if columns * matrix.element_size() != 128:
            raise DeviceError(f"columns={columns}: a box is 128 bytes wide")
        self.maps.append(Map(_numpy(matrix), rows, columns))
        return len(self.maps) - 1

    def run(self, kernel: Any, blocks: int, threads: int, *arguments: Any, shared: int = 0, cluster: int = 1) -> None:
        """Run all blocks, those of a cluster at once."""
        arrays = [_numpy(argument) if isinstance(argument, Tensor) else argument for argument in arguments]
        self.global_arrays = [array for array in arrays if isinstance(array, np.ndarray)]
        self.global_arrays += [m.matrix for m in self.maps]
        self.threads = threads
        from twell.tensorcore.standin import CudaStandIn  # which names this module

        function = _Rebinder(CudaStandIn(blocks, threads)).function(kernel.py_func)
        for first in range(0, blocks, cluster):
            self.cluster = [
                Block(first + rank, rank, np.full(SHARED, 0xFF, np.uint8))
                for rank in range(min(cluster, blocks - first))
            ]
            workers = [
                threading.Thread(target=self._thread, args=(block, thread, function, arrays, shared), daemon=True)
                for block in self.cluster
                for thread in range(threads)
            ]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            if self.failure is not None:
                raise self.failure

    def _thread(self, block: Block, thread: int, function: FunctionType, arrays: list[Any], shared: int) -> None:
        _local.machine, _local.block, _local.thread, _local.waited = self, block, thread, 0
        block.arrays.setdefault(("dynamic", 0), block.memory)
        try:
            with np.errstate(all="ignore"):
                function(*arrays)
            if _local.waited != block.committed.get(thread, 0):
                raise DeviceError(f"thread {thread} of block {block.index} ended with a product it never waited for")
        except BaseException as error:
            with self.lock:
                self.failure = self.failure or error
                for condition in self._conditions:
                    condition.notify_all()

    # What instructions do. Each takes the lock: one thread changes the state at a time.

    def condition(self) -> threading.Condition:
        """Something that threads can wait for, with the lock that all share."""
        made = threading.Condition(self.lock)
        self._conditions.append(made)
        return made

    def wait_until(self, ready: Callable[[], bool], condition: threading.Condition, what: str) -> None:
        """Block the thread; the lock is held."""
        if self.random is not None and self.random.random() < 0.2:
            condition.wait(0.0002)
        while not ready():
            if self.failure is not None:
                sys.exit()
            if not condition.wait(PATIENCE):
                raise DeviceError(f"thread {_local.thread} of block {_local.block.index} waits for ever: {what}")

    def block_at(self, address: int) -> tuple[Block, int]:
        """The block and the place in its memory that a shared address means, in the cluster."""
        rank, place = address >> RANK, address & ((1 << RANK) - 1)
        return (self.cluster[rank - 1] if rank else _local.block), place

    def barrier(self, address: int) -> Barrier:
        """The mbarrier at an address."""
        block, place = self.block_at(address)
        if place not in block.barriers:
            raise DeviceError(f"no mbarrier was initialised at shared address {place} of block {block.index}")
        return block.barriers[place]

    def arrive(self, address: int, n: int = 1) -> None:
        """``n`` threads arrive."""
        barrier = self.barrier(address)
        barrier.pending -= n
        if barrier.pending < 0:
            raise DeviceError(f"more threads arrive at the mbarrier at {address} than its {barrier.count}")
        self._turn(barrier)

    def announce(self, address: int, n_bytes: int) -> None:
        """Bytes are to come, or (negative) have come."""
        barrier = self.barrier(address)
        barrier.bytes += n_bytes
        self._turn(barrier)

    def _turn(self, barrier: Barrier) -> None:
        if barrier.pending == 0 and barrier.bytes == 0:
            barrier.phase ^= 1
            barrier.pending = barrier.count
            barrier.turned.notify_all()

    def meet(self, key: Any, n: int, brought: Any = None) -> dict[int, Any]:
        """Wait for ``n`` threads; what each brought, by thread."""
        with self.lock:
            meeting = self._meeting(_local.block, key, n)
            return self._meet(meeting, _local.thread, brought, f"{key}, where {n} threads meet")

    def meet_cluster(self) -> None:
        """Wait for every thread of the cluster."""
        with self.lock:
            meeting = self._meeting(self.cluster[0], "cluster", self.threads * len(self.cluster))
            self._meet(meeting, _local.block.rank << 16 | _local.thread, None, "the cluster's barrier")

    def _meeting(self, block: Block, key: Any, n: int) -> Meeting:
        if key not in block.meetings:
            block.meetings[key] = Meeting(n, self.condition())
        return block.meetings[key]

    def _meet(self, meeting: Meeting, who: int, brought: Any, what: str) -> dict[int, Any]:
        mine = meeting.round
        meeting.brought[who] = brought
        if len(meeting.brought) == meeting.n:
            meeting.result, meeting.brought = meeting.brought, {}
            meeting.round += 1
            meeting.met.notify_all()
        self.wait_until(lambda: meeting.round > mine, meeting.met, what)
        return meeting.result

    def issue(self, product: Callable[[], None]) -> None:
        """A thread's part of a product: done now, or when the first thread of the warpgroup waits for it."""
        if not self.late:
            product()
            return
        with self.lock:
            self._group(_local.block.committed.get(_local.thread, 0)).products.append(product)

    def commit(self) -> None:
        """This thread has issued a group of products."""
        with self.lock:
            n = _local.block.committed.get(_local.thread, 0)
            group = self._group(n)
            group.threads += 1
            _local.block.committed[_local.thread] = n + 1
            if group.threads == 128:
                group.issued.notify_all()

    def _group(self, n: int) -> Group:
        key = _local.thread // 128, n
        if key not in _local.block.groups:
            _local.block.groups[key] = Group(self.condition())
        return _local.block.groups[key]

    def wait_for_group(self, left: int) -> None:
        """Wait until all but the last ``left`` groups are done, which takes all threads of the warpgroup."""
        with self.lock:
            wanted = max(0, _local.block.committed.get(_local.thread, 0) - left)
            for n in range(_local.waited, wanted):
                self._wait_for(self._group(n))
            _local.waited = max(_local.waited, wanted)

    def _wait_for(self, group: Group) -> None:
        what = "a product that not all warps of the warpgroup issue"
        self.wait_until(lambda: group.threads == 128, group.issued, what)
        products, group.products = group.products, []
        for product in products:
            product()

    def global_bytes(self, address: int, n_bytes: int) -> Bytes:
        """Bytes of an array of the launch; an address outside of all is an error."""
        for array in self.global_arrays:
            first = array.ctypes.data
            if first <= address and address + n_bytes <= first + array.nbytes:
                flat: Bytes = array.reshape(-1).view(np.uint8)
                return flat[address - first : address - first + n_bytes]
        raise DeviceError(f"{n_bytes} bytes at {address:#x} lie in no array of the launch")


def _numpy(tensor: Tensor) -> NDArray[Any]:
    bits = {2: torch.uint16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.detach().view(bits).numpy().view(NUMPY_TYPES[tensor.dtype])


class _Module:
    """A module of ours that a kernel names: its functions as the machine runs them."""

    def __init__(self, module: ModuleType, rebinder: _Rebinder) -> None:
        self._module, self._rebinder = module, rebinder

    def __getattr__(self, name: str) -> Any:
        return self._rebinder._value(getattr(self._module, name))


class _Rebinder:
    """Copies of functions in which ``cuda`` is the stand-in and every compiled function its Python one."""

    def __init__(self, cuda: Any) -> None:
        self.cuda = cuda
        self._copies: dict[FunctionType, FunctionType] = {}

    def function(self, function: FunctionType) -> FunctionType:
        if function in self._copies:
            return self._copies[function]
        cells = tuple(CellType() for _ in function.__code__.co_freevars)
        scope = dict(function.__globals__)
        copy = FunctionType(function.__code__, scope, function.__name__, function.__defaults__, cells)
        self._copies[function] = copy
        for name in function.__code__.co_names:
            if name in scope:
                scope[name] = self._value(scope[name])
        scope["cuda"] = self.cuda
        for name, cell, original in zip(function.__code__.co_freevars, cells, function.__closure__ or (), strict=True):
            cell.cell_contents = self.cuda if name == "cuda" else self._value(original.cell_contents)
        return copy

    def _value(self, value: Any) -> Any:
        if isinstance(value, ModuleType) and value.__name__.startswith("twell."):
            return _Module(value, self)
        if isinstance(value, ModuleType | BuiltinFunctionType):
            return value
        function = value if isinstance(value, FunctionType) else getattr(value, "py_func", None)
        if not isinstance(function, FunctionType):
            return value
        # The Python forms of instructions are not parts of a kernel: they do what the hardware does.
        return function if getattr(function, "instruction", False) else self.function(function)
