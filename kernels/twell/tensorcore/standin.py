"""What ``cuda`` means in a kernel that a :class:`twell.tensorcore.machine.Machine` runs. Letters: none."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twell.tensorcore.machine import SHARED, Dim3, current


class CudaStandIn:
    """What ``cuda`` means in a kernel that a machine runs."""

    def __init__(self, blocks: int, threads: int) -> None:
        self.gridDim, self.blockDim = Dim3(blocks), Dim3(threads)
        self.shared, self.local, self.atomic = _Shared(), _LocalArrays(), _Atomic()

    @property
    def threadIdx(self) -> Dim3:  # noqa: N802 - CUDA's name
        """Number of the thread."""
        return Dim3(current().thread, 0, 0)

    @property
    def blockIdx(self) -> Dim3:  # noqa: N802
        """Number of the block."""
        return Dim3(current().block.index, 0, 0)

    def syncthreads(self) -> None:
        """Barrier of the block."""
        current().machine.meet("syncthreads", self.blockDim.x)

    def syncwarp(self, _mask: int = 0xFFFFFFFF) -> None:
        """Barrier of the warp."""
        current().machine.meet(("warp", current().thread // 32), 32)

    def shfl_xor_sync(self, _mask: int, value: Any, lane_mask: int) -> Any:
        """The value of another lane."""
        found = current().machine.meet(("warp", current().thread // 32), 32, value)
        return found[current().thread ^ lane_mask]

    def shfl_sync(self, _mask: int, value: Any, lane: int) -> Any:
        """The value of a lane."""
        found = current().machine.meet(("warp", current().thread // 32), 32, value)
        return found[current().thread // 32 * 32 + int(lane) % 32]

    def ballot_sync(self, _mask: int, predicate: Any) -> int:
        """A bit a lane."""
        found = current().machine.meet(("warp", current().thread // 32), 32, bool(predicate))
        return sum(1 << (thread % 32) for thread, holds in found.items() if holds)

    @staticmethod
    def threadfence() -> None:
        """Every thread sees each write at once."""

    @staticmethod
    def popc(value: Any) -> int:
        """Number of ones."""
        return (int(value) & 0xFFFFFFFF).bit_count()

    @staticmethod
    def ffs(value: Any) -> int:
        """Place of the lowest one, from 1; 0 without."""
        return (int(value) & -int(value)).bit_length()


class _Shared:
    @staticmethod
    def array(shape: Any, dtype: Any, alignment: int = 16) -> NDArray[Any]:
        """The block's array of this line; shape 0 is the dynamic memory."""
        block = current().block
        frame = sys._getframe(1)
        key = (frame.f_code, frame.f_lineno)
        with current().machine.lock:
            if key not in block.arrays:
                item = np.dtype(_numpy_dtype(dtype))
                sizes = shape if isinstance(shape, tuple) else (shape,)
                n_bytes = int(np.prod(sizes)) * item.itemsize
                block.used = -(-block.used // alignment) * alignment
                if shape == 0:
                    n_bytes = (SHARED - block.used) // item.itemsize * item.itemsize
                    sizes = (n_bytes // item.itemsize,)
                block.arrays[key] = block.memory[block.used : block.used + n_bytes].view(item).reshape(sizes)
                block.used += n_bytes
            return block.arrays[key]


class _LocalArrays:
    @staticmethod
    def array(shape: Any, dtype: Any) -> NDArray[Any]:
        """Registers, which begin as nonsense."""
        array = np.empty(shape, _numpy_dtype(dtype))
        array.view(np.uint8)[...] = 0xFF
        return array


class _Atomic:
    @staticmethod
    def add(array: NDArray[Any], index: Any, value: Any) -> Any:
        """Add; the value before."""
        with current().machine.lock:
            before = array[index]
            array[index] = before + value
            return before

    @staticmethod
    def or_(array: NDArray[Any], index: Any, value: Any) -> Any:
        """Or; the value before."""
        with current().machine.lock:
            before = array[index]
            array[index] = before | value
            return before


def _numpy_dtype(dtype: Any) -> Any:
    return getattr(np, str(dtype)) if not isinstance(dtype, type | np.dtype) else dtype
