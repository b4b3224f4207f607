"""The recorder's memory while a kernel runs: who is running, what was touched, which places in the code did it.

An access is kept as three integers (storage, cell, site) and its value; the thread and its epoch (barriers passed)
are kept once for each stretch that one thread runs without a pause. Letters: none.
"""

from __future__ import annotations

import dis
import linecache
from array import array
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from twellviz.kernel_trace.errors import RecordingLimitError

READ, WRITE, ATOMIC, BARRIER = 0, 1, 2, 3
OPERATIONS = ("read", "write", "atomic", "barrier")

GLOBAL, SHARED, LOCAL = "global", "shared", "local"


class Site(NamedTuple):
    """A place in the code that touches memory: one instruction, reached by one chain of calls.

    Attributes
    ----------
    line : int
        Line in the file or cell.
    function : str
    source : str
        The line's text, stripped; empty where it cannot be read.
    operation : int
        READ, WRITE, ATOMIC or BARRIER.
    position : tuple of int
        Offsets of the instructions, kernel first: sorts sites in program order.
    """

    line: int
    function: str
    source: str
    operation: int
    position: tuple[int, ...]


@dataclass
class Storage:
    """The memory of one array: a kernel argument, a block's shared array, or a thread's local one.

    Attributes
    ----------
    id : int
        Its number in the trace.
    name : str
    space : {"global", "shared", "local"}
    data : array, [size]
        Contents, flat, in C order of ``shape``.
    initial : array, [size]
        Contents at the start.
    shape : tuple of int
    strides : tuple of int
        Bytes between neighbours along each axis, as in the caller's memory.
    unwritten : bool
        Whether cells hold nothing until a kernel writes them.
    block, thread : int
        Owner, linear over the launch; -1 for global arrays, and for the thread of shared ones.
    """

    id: int
    name: str
    space: str
    data: NDArray[Any]
    initial: NDArray[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    unwritten: bool
    block: int = -1
    thread: int = -1

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""
        return self.data.dtype

    def index(self, cell: int) -> tuple[int, ...]:
        """Index tuple of a flat cell number."""
        return tuple(int(i) for i in np.unravel_index(cell, self.shape))


class Outside(NamedTuple):
    """An access beyond the ends of an array, or of a view of one; ``shape`` is the view's."""

    storage: Storage
    shape: tuple[int, ...]
    places: tuple[int, ...]
    axis: int
    site: int
    thread: int
    epoch: int
    order: int


class Divergence(NamedTuple):
    """A barrier that some threads of a block did not reach, or reached at another place."""

    block: int
    epoch: int
    waiting: int
    site: int
    other: int
    other_site: int | None
    order: int


@dataclass
class Recording:
    """What is written down while a kernel runs."""

    kernel_code: CodeType
    threads_per_block: int
    max_events: int
    storages: list[Storage] = field(default_factory=list)
    sites: list[Site] = field(default_factory=list)
    events: array[int] = field(default_factory=lambda: array("q"))
    values: list[Any] = field(default_factory=list)
    stretches: list[tuple[int, int, int]] = field(default_factory=list)
    outside: dict[tuple[int, str, bool], tuple[Outside, int]] = field(default_factory=dict)
    divergences: dict[tuple[int, int | None], tuple[Divergence, int]] = field(default_factory=dict)
    thread: int = 0
    epoch: int = 0
    _site_ids: dict[tuple[Any, ...], int] = field(default_factory=dict)
    _names: dict[str, object] = field(default_factory=dict)

    @property
    def block(self) -> int:
        """The running thread's block, linear."""
        return self.thread // self.threads_per_block

    def unique_name(self, name: str, owner: object, line: int) -> str:
        """``name``, with its line where another array already has it; the same for the same owner."""
        if self._names.setdefault(name, owner) == owner:
            return name
        return self.unique_name(f"{name} (line {line})", owner, line)

    def resume(self, thread: int, epoch: int) -> None:
        """From here on this thread runs."""
        self.thread, self.epoch = thread, epoch
        self.stretches.append((len(self.values), thread, epoch))

    def note(self, storage: int, cell: int, operation: int, value: Any, frame: FrameType) -> None:
        """Write down one access."""
        values = self.values
        if len(values) >= self.max_events:
            raise RecordingLimitError(self._too_many(frame))
        self.events.extend((storage, cell, self.site(frame, operation)))
        values.append(value)

    def note_outside(
        self, storage: Storage, shape: tuple[int, ...], index: tuple[int, ...], axis: int, site: int
    ) -> None:
        """Write down an access beyond an array's ends; repeats at one place are counted."""
        key = (site, storage.name, index[axis] < 0)
        found = Outside(storage, shape, index, axis, site, self.thread, self.epoch, len(self.values))
        first, count = self.outside.get(key, (found, 0))
        if count >= self.max_events:
            raise RecordingLimitError(
                f"more than max_events={self.max_events} accesses outside {storage.name} at line "
                f"{self.sites[site].line}: a loop probably never ends"
            )
        self.outside[key] = (first, count + 1)

    def note_divergence(self, found: Divergence) -> None:
        """Write down a barrier that not all threads reached; repeats at one place are counted."""
        first, count = self.divergences.get((found.site, found.other_site), (found, 0))
        self.divergences[found.site, found.other_site] = first, count + 1

    def site(self, frame: FrameType, operation: int) -> int:
        """Number of the place in the code where ``frame`` stands."""
        code = frame.f_code
        key: tuple[Any, ...] = (operation, id(code), frame.f_lasti)
        if code is not self.kernel_code:
            key += tuple(offset for caller in self._callers(frame) for offset in (id(caller.f_code), caller.f_lasti))
        found = self._site_ids.get(key)
        if found is None:
            found = self._site_ids[key] = self._new_site(frame, operation)
        return found

    def _new_site(self, frame: FrameType, operation: int) -> int:
        """The number of a place that is met for the first time at this exact offset."""
        chain = [frame, *self._callers(frame)]
        position = tuple(instruction(one) for one in reversed(chain))
        place = (operation, *(id(one.f_code) for one in chain), position)
        found = self._site_ids.get(place)
        if found is None:
            found = self._site_ids[place] = len(self.sites)
            text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
            self.sites.append(Site(frame.f_lineno, frame.f_code.co_name, text, operation, position))
        return found

    def _callers(self, frame: FrameType) -> list[FrameType]:
        """The functions that called this one, up to the kernel."""
        found = []
        while frame.f_code is not self.kernel_code and frame.f_back is not None:
            frame = frame.f_back
            found.append(frame)
        return found

    def _too_many(self, frame: FrameType) -> str:
        return (
            f"more than max_events={self.max_events} accesses, the last at line {frame.f_lineno} of "
            f"{frame.f_code.co_name}: take a smaller grid or smaller arrays, or raise max_events. A loop that waits "
            "for another thread never ends here, since each thread runs on until it reaches a barrier"
        )


def instruction(frame: FrameType) -> int:
    """Offset of the instruction that ``frame`` runs.

    ``f_lasti`` alone will not do: once the interpreter has specialised an instruction it may point into the
    instruction's inline cache, so that one place would look like two.
    """
    offsets = _offsets(frame.f_code)
    return offsets[bisect_right(offsets, frame.f_lasti) - 1]


@lru_cache(maxsize=256)
def _offsets(code: CodeType) -> list[int]:
    return [one.offset for one in dis.get_instructions(code)]


def assigned_name(frame: FrameType) -> str | None:
    """The variable that the running call's result goes to, ``tile`` in ``tile = cuda.shared.array(...)``."""
    following = next((one for one in dis.get_instructions(frame.f_code) if one.offset > frame.f_lasti), None)
    if following is None or not following.opname.startswith("STORE"):
        return None
    # Python 3.13 joins a store with the load or store after it, and names both variables.
    return str(following.argval[0] if isinstance(following.argval, tuple) else following.argval)


def poison(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """What memory holds that nothing wrote: NaN, or for integers a large number that stands out."""
    if dtype.kind == "f":
        return np.full(shape, np.nan, dtype)
    if dtype.kind == "b":
        return np.ones(shape, dtype)
    return np.frombuffer(b"\x5a" * (int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape).copy()
