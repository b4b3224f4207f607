"""What ``cuda`` is in a recorded kernel: the part of ``numba.cuda`` that teaching kernels use.

Thread and block indices, barriers, shared and local arrays, atomics, and a few bit functions. Warp primitives
(``shfl_sync``, ``ballot_sync``, ``syncwarp``) are refused by name. Letters: none.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from twellviz.kernel_trace.arrays import RecordedArray
from twellviz.kernel_trace.errors import NotRecordableError
from twellviz.kernel_trace.recording import LOCAL, SHARED, Recording, Storage, assigned_name, instruction, poison
from twellviz.kernel_trace.scalars import CASTS, I32, U32, as_dtype


class Dim3(NamedTuple):
    """Three sizes or indices, ``x`` fastest."""

    x: int
    y: int
    z: int


class CudaStandIn:
    """The object that a recorded kernel finds under the name ``cuda``.

    The scheduler sets ``threadIdx`` and ``blockIdx`` before it lets a thread run. Only one runs at a time.
    """

    warpsize = 32

    def __init__(self, recording: Recording, grid: Dim3, block: Dim3, wait: Callable[[Any, Any], list[Any]]) -> None:
        self.gridDim, self.blockDim = grid, block
        self.threadIdx = self.blockIdx = Dim3(0, 0, 0)
        self._wait = wait
        self.shared, self.local = _Arrays(recording, SHARED), _Arrays(recording, LOCAL)
        self.atomic = _Atomic()

    @property
    def laneid(self) -> int:
        """Place in the warp."""
        t, n = self.threadIdx, self.blockDim
        return (t.x + n.x * (t.y + n.y * t.z)) % self.warpsize

    def grid(self, ndim: int) -> Any:
        """Index of the thread in the whole grid."""
        return _dims(ndim, [b * n + t for b, n, t in zip(self.blockIdx, self.blockDim, self.threadIdx, strict=True)])

    def gridsize(self, ndim: int) -> Any:
        """Threads of the whole grid."""
        return _dims(ndim, [g * n for g, n in zip(self.gridDim, self.blockDim, strict=True)])

    def syncthreads(self) -> None:
        """Wait until all threads of the block are here."""
        self._wait(None, sys._getframe(1))

    def syncthreads_count(self, predicate: Any) -> int:
        """Wait, and tell every thread for how many the predicate holds."""
        return sum(map(bool, self._wait(predicate, sys._getframe(1))))

    def syncthreads_and(self, predicate: Any) -> int:
        """Wait, and tell every thread whether the predicate holds for all."""
        return int(all(self._wait(predicate, sys._getframe(1))))

    def syncthreads_or(self, predicate: Any) -> int:
        """Wait, and tell every thread whether the predicate holds for any."""
        return int(any(self._wait(predicate, sys._getframe(1))))

    def threadfence(self) -> None:
        """Nothing to do: every thread sees each write at once."""

    threadfence_block = threadfence_system = threadfence

    @staticmethod
    def popc(value: Any) -> int:
        """Number of ones."""
        return (int(value) & _mask(value)).bit_count()

    @staticmethod
    def clz(value: Any) -> int:
        """Leading zeros."""
        return _width(value) - (int(value) & _mask(value)).bit_length()

    @staticmethod
    def ffs(value: Any) -> int:
        """Place of the lowest one, counted from 1; 0 if there is none."""
        bits = int(value) & _mask(value)
        return (bits & -bits).bit_length()

    @staticmethod
    def brev(value: Any) -> Any:
        """The bits in reverse order."""
        bits = int(f"{int(value) & _mask(value):0{_width(value)}b}"[::-1], 2)
        return U32(bits) if _width(value) == 32 else bits

    @staticmethod
    def fma(a: Any, b: Any, c: Any) -> Any:
        """``a * b + c``, rounded once where a, b and c are float32."""
        if all(isinstance(value, np.float32) for value in (a, b, c)):
            return CASTS["float32"](float(a) * float(b) + float(c))
        return a * b + c

    @staticmethod
    def selp(condition: Any, a: Any, b: Any) -> Any:
        """``a`` if the condition holds, else ``b``."""
        return a if condition else b

    def __getattr__(self, name: str) -> Any:
        if name in CASTS:
            return CASTS[name]
        raise NotRecordableError(
            f"cuda.{name}: the recorder has indices, syncthreads, shared and local arrays and atomics, and no "
            "warp primitives; write the step with shared memory and cuda.syncthreads()"
        )


class _Arrays:
    """``cuda.shared`` or ``cuda.local``."""

    def __init__(self, recording: Recording, space: str) -> None:
        self._recording, self._space = recording, space
        self._blocks: dict[tuple[int, int, int], Storage] = {}
        self._names: dict[tuple[int, int], str] = {}

    def array(self, shape: Any, dtype: Any, alignment: int | None = None) -> RecordedArray:
        """The block's shared array of this line, or a new local array of this thread."""
        frame = sys._getframe(1)
        # One shared array for each place in the code, as a compiler lays them out, however often it is passed.
        place = (id(frame.f_code), instruction(frame))
        key = (self._recording.block, *place)
        if self._space == SHARED and key in self._blocks:
            return RecordedArray.whole(self._recording, self._blocks[key])
        if place not in self._names:
            name = assigned_name(frame) or f"{self._space} array"
            self._names[place] = self._recording.unique_name(name, place, frame.f_lineno)
        storage = self._blocks[key] = self._new(self._names[place], shape, dtype)
        if self._space == LOCAL:
            storage.thread = self._recording.thread
        return RecordedArray.whole(self._recording, storage)

    def _new(self, name: str, shape: Any, dtype: Any) -> Storage:
        try:
            sizes = tuple(operator.index(n) for n in (shape if isinstance(shape, tuple | list) else (shape,)))
        except TypeError:
            raise NotRecordableError(f"{name}: shape={shape!r}: whole numbers are needed") from None
        if not sizes or min(sizes) < 1:
            raise NotRecordableError(
                f"{name}: shape={shape!r}: every size must be at least 1; dynamic shared memory (shape 0) is not "
                "recorded, so give the size as a constant"
            )
        found = as_dtype(dtype)
        data = poison((int(np.prod(sizes)),), found)
        strides = tuple(int(s) for s in np.empty(sizes, np.dtype(found)).strides)
        recording = self._recording
        storage = Storage(
            len(recording.storages), name, self._space, data, data.copy(), sizes, strides, True, recording.block
        )
        recording.storages.append(storage)
        return storage


_WORDS = ("int32", "uint32", "int64", "uint64")
_NUMBERS = (*_WORDS, "float32", "float64")


class _Atomic:
    """``cuda.atomic``: each returns what the cell held before."""

    def add(self, array: Any, index: Any, value: Any) -> Any:
        return self._do("add", array, index, lambda old: old + value, _NUMBERS)

    def sub(self, array: Any, index: Any, value: Any) -> Any:
        return self._do("sub", array, index, lambda old: old - value, _NUMBERS)

    def max(self, array: Any, index: Any, value: Any) -> Any:
        return self._do("max", array, index, lambda old: value if value > old or old != old else old, _NUMBERS)

    def min(self, array: Any, index: Any, value: Any) -> Any:
        return self._do("min", array, index, lambda old: value if value < old or old != old else old, _NUMBERS)

    nanmax, nanmin = max, min

    def and_(self, array: Any, index: Any, value: Any) -> Any:
        return self._do("and_", array, index, lambda old: old & value, _WORDS)

    def or_(self, array: Any, index: Any, value: Any) -> Any:
        return self._do("or_", array, index, lambda old: old | value, _WORDS)

    def xor(self, array: Any, index: Any, value: Any) -> Any:
        return self._do("xor", array, index, lambda old: old ^ value, _WORDS)

    def inc(self, array: Any, index: Any, value: Any) -> Any:
        return self._do("inc", array, index, lambda old: 0 if old >= value else old + 1, ("uint32", "uint64"))

    def dec(self, array: Any, index: Any, value: Any) -> Any:
        return self._do(
            "dec", array, index, lambda old: value if old == 0 or old > value else old - 1, ("uint32", "uint64")
        )

    def exch(self, array: Any, index: Any, value: Any) -> Any:
        return self._do("exch", array, index, lambda old: value, _WORDS)

    def cas(self, array: Any, index: Any, old: Any, value: Any) -> Any:
        return self._do("cas", array, index, lambda found: value if found == old else found, _WORDS)

    def compare_and_swap(self, array: Any, old: Any, value: Any) -> Any:
        return self._do("compare_and_swap", array, 0, lambda found: value if found == old else found, _WORDS)

    @staticmethod
    def _do(name: str, array: Any, index: Any, change: Callable[[Any], Any], dtypes: tuple[str, ...]) -> Any:
        if not isinstance(array, RecordedArray):
            raise NotRecordableError(f"cuda.atomic.{name}: the first argument is an array, not {array!r}")
        if array.dtype.name not in dtypes:
            raise NotRecordableError(f"cuda.atomic.{name} on {array!r}: the device does it on {', '.join(dtypes)}")
        return array.atomic(index, change, sys._getframe(2))


def _dims(ndim: int, values: list[int]) -> Any:
    if ndim not in (1, 2, 3):
        raise NotRecordableError(f"a grid of {ndim} dimensions: 1, 2 or 3 are possible")
    return values[0] if ndim == 1 else tuple(values[:ndim])


def _width(value: Any) -> int:
    return 32 if isinstance(value, I32 | U32) else 64


def _mask(value: Any) -> int:
    return (1 << _width(value)) - 1
