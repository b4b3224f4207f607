"""The arrays that a recorded kernel sees: each index is checked, each access written down.

Letters: none.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from twellviz.kernel_trace.errors import NotRecordableError
from twellviz.kernel_trace.recording import ATOMIC, READ, WRITE, Recording, Storage
from twellviz.kernel_trace.scalars import reader, writer

Strides = tuple[int, ...]


class RecordedArray:
    """An array, or a view of one, in a kernel.

    It has what Numba has for arrays in kernels: one cell at a time by ``a[i]`` or ``a[i, j]``, views by ``a[i]`` and
    slices, ``shape``, ``size``, ``ndim``, ``dtype``, ``strides``, ``T``, ``len`` and iteration over one axis.
    Arithmetic on whole arrays, and writing to slices, are refused: a kernel's thread handles single cells.
    """

    __slots__ = ("_offset", "_read", "_recording", "_steps", "_storage", "_write", "dtype", "ndim", "shape", "size")

    def __init__(
        self, recording: Recording, storage: Storage, shape: tuple[int, ...], steps: Strides, offset: int = 0
    ) -> None:
        self._recording, self._storage = recording, storage
        self._steps, self._offset = steps, offset
        self.shape, self.ndim, self.dtype = shape, len(shape), storage.dtype
        self.size = int(np.prod(shape))
        self._read, self._write = reader(self.dtype), writer(self.dtype)

    @classmethod
    def whole(cls, recording: Recording, storage: Storage) -> RecordedArray:
        """The array that covers all of a storage."""
        return cls(recording, storage, storage.shape, _c_steps(storage.shape))

    def __getitem__(self, index: Any) -> Any:
        if index.__class__ is not tuple:
            index = (index,)
        if len(index) != self.ndim:
            return self._view(index)
        cell = self._offset
        for i, n, step in zip(index, self.shape, self._steps, strict=True):
            if i.__class__ is not int:
                if i.__class__ is slice:
                    return self._view(index)
                i = _whole(i, self._storage.name)
            if not 0 <= i < n:
                return self._outside(index, READ, sys._getframe(1))
            cell += i * step
        value = self._read(self._storage.data[cell])
        self._recording.note(self._storage.id, cell, READ, value, sys._getframe(1))
        return value

    def __setitem__(self, index: Any, value: Any) -> None:
        if index.__class__ is not tuple:
            index = (index,)
        cell = self._cell(index, WRITE, sys._getframe(1))
        if cell is None:
            return
        data = self._storage.data
        data[cell] = self._stored(value)
        self._recording.note(self._storage.id, cell, WRITE, self._read(data[cell]), sys._getframe(1))

    def atomic(self, index: Any, change: Callable[[Any], Any], frame: Any) -> Any:
        """Replace a cell by ``change(cell)`` in one indivisible step; returns what it held."""
        if index.__class__ is not tuple:
            index = (index,)
        cell = self._cell(index, ATOMIC, frame)
        if cell is None:
            return self._nothing()
        data = self._storage.data
        old = self._read(data[cell])
        data[cell] = self._stored(change(old))
        self._recording.note(self._storage.id, cell, ATOMIC, self._read(data[cell]), frame)
        return old

    def _cell(self, index: tuple[Any, ...], operation: int, frame: Any) -> int | None:
        """Flat cell number; None, written down as a fault, for one outside the array."""
        if len(index) != self.ndim or any(isinstance(i, slice) for i in index):
            raise NotRecordableError(
                f"{self._storage.name}[{', '.join(map(str, index))}] names more than one cell of an array with "
                f"{self.ndim} axes: a thread writes one cell at a time"
            )
        cell = self._offset
        for i, n, step in zip(index, self.shape, self._steps, strict=True):
            if i.__class__ is not int:
                i = _whole(i, self._storage.name)
            if not 0 <= i < n:
                self._outside(index, operation, frame)
                return None
            cell += i * step
        return cell

    def _stored(self, value: Any) -> Any:
        try:
            return self._write(value)
        except TypeError:
            raise NotRecordableError(f"{self._storage.name}: a cell takes one number, not {value!r}") from None

    def _outside(self, index: tuple[Any, ...], operation: int, frame: Any) -> Any:
        places = tuple(_whole(i, self._storage.name) for i in index)
        axis = next(a for a, (i, n) in enumerate(zip(places, self.shape, strict=True)) if not 0 <= i < n)
        self._recording.note_outside(self._storage, self.shape, places, axis, self._recording.site(frame, operation))
        return self._nothing()

    def _nothing(self) -> Any:
        """What a read outside the array gives: something that is none of its values."""
        return self._read(np.array(np.nan if self.dtype.kind == "f" else 0).astype(self.dtype)[()])

    def _view(self, index: tuple[Any, ...]) -> Any:
        if len(index) > self.ndim:
            raise NotRecordableError(f"{self._storage.name} has {self.ndim} axes and was given {len(index)} indices")
        shape: list[int] = []
        steps: list[int] = []
        offset = self._offset
        for axis, (i, n, step) in enumerate(zip(index, self.shape, self._steps, strict=False)):
            if isinstance(i, slice):
                places = range(n)[i]
                offset += places.start * step if len(places) else 0
                shape.append(len(places))
                steps.append(places.step * step)
                continue
            i = _whole(i, self._storage.name)
            if not 0 <= i < n:
                # Of a row outside the array no cell can be named yet, so the first of it stands for all.
                rest = (0,) * (self.ndim - axis - 1)
                self._outside((*(0,) * axis, i, *rest), READ, sys._getframe(2))
                i = 0 if n else i
            offset += i * step
        rest_shape, rest_steps = self.shape[len(index) :], self._steps[len(index) :]
        return RecordedArray(self._recording, self._storage, (*shape, *rest_shape), (*steps, *rest_steps), offset)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        for i in range(self.shape[0]):
            if self.ndim > 1:
                yield self._view((i,))
                continue
            cell = self._offset + i * self._steps[0]
            value = self._read(self._storage.data[cell])
            self._recording.note(self._storage.id, cell, READ, value, sys._getframe(1))
            yield value

    @property
    def T(self) -> RecordedArray:  # noqa: N802 - NumPy's name
        """The array with its axes in reverse order."""
        return RecordedArray(self._recording, self._storage, self.shape[::-1], self._steps[::-1], self._offset)

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes between neighbours along each axis, of an array in C order."""
        return tuple(step * self.dtype.itemsize for step in self._steps)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotRecordableError(
            f"{self._storage.name}.{name}: arrays in a recorded kernel have shape, size, ndim, dtype, strides, T, "
            "len(), and single cells"
        )

    def __repr__(self) -> str:
        return f"<{self._storage.space} array {self._storage.name}, shape {self.shape}, {self.dtype}>"


def _c_steps(shape: tuple[int, ...]) -> tuple[int, ...]:
    steps, step = [], 1
    for n in reversed(shape):
        steps.append(step)
        step *= n
    return tuple(reversed(steps))


def _whole(i: Any, name: str) -> int:
    try:
        return operator.index(i)
    except TypeError:
        raise NotRecordableError(
            f"{name} was indexed with {i!r} of type {type(i).__name__}: an index is an integer; use // for whole "
            "division, or int(...)"
        ) from None
