"""fp32, bf16 and fp16 rows as Numba sees them.

Numba's CPU target has neither bf16 nor fp16, so those arrays are handed over as their bits (uint16) and converted
here. A matrix travels as ``(w32_HD, w16_HD, kind)``, of which the array that ``kind`` does not use is empty: thus one
build of a kernel serves all three dtypes.

Letters: H rows, D columns.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twell.cpu._launch import device

Array: TypeAlias = NDArray[Any]
"""Annotation of what kernels take; Numba ignores it."""

Scalar: TypeAlias = Any
"""Annotation of a number inside a kernel, a Python number or a NumPy scalar; Numba ignores it."""

FP32, BF16, FP16 = 0, 1, 2
_KINDS = {torch.float32: FP32, torch.bfloat16: BF16, torch.float16: FP16}
_NO_32 = np.empty((0, 0), np.float32)
_NO_16 = np.empty((0, 0), np.uint16)


class Matrix(NamedTuple):
    """A matrix as kernels take it; ``kind`` says which of the two arrays holds it."""

    w32_HD: Array
    w16_HD: Array
    kind: int


def as_matrix(weight_HD: Tensor) -> Matrix:
    """View a tensor [H, D] (copied only when its strides are not those of a C array)."""
    weight_HD = weight_HD.detach().contiguous()
    kind = _KINDS[weight_HD.dtype]
    if kind == FP32:
        return Matrix(weight_HD.numpy(), _NO_16, kind)
    return Matrix(_NO_32, weight_HD.view(torch.uint16).numpy(), kind)


def as_bits(array: Tensor) -> Array:
    """View a contiguous tensor as int32 (fp32) or int16 (bf16, fp16) bits."""
    bits = array.detach().view(torch.int32 if array.dtype == torch.float32 else torch.int16)
    return bits.numpy()


def negative_infinity_bits(dtype: torch.dtype) -> np.signedinteger[Any]:
    """Bits of -inf as a signed integer of the dtype's width.

    A value v is active, not (v <= 0), exactly when its bits b, read as a signed integer, satisfy
    ``b > bits(-inf) and b != 0``: positive numbers and NaN without sign are positive integers, -0.0 and negative
    numbers are at or below ``bits(-inf)``, and NaN with a sign lies between the two.
    """
    if dtype == torch.float32:
        return np.int32(-(1 << 23))
    return np.int16(-(1 << (7 if dtype == torch.bfloat16 else 10)))


@device
def fp16_to_fp32_bits(bits: Scalar) -> Scalar:
    """Bits of the float32 with the value of these fp16 bits."""
    # Numba widens integer arithmetic to 64 bits, so the result is cut back before its bits are reread as a float.
    half = np.uint32(bits & 0xFFFF)
    moved = np.uint32((half & 0x7FFF) << 13).view(np.float32) * np.float32(2.0**112)
    top = 0x7F800000 if (half & 0x7C00) == 0x7C00 else 0
    return np.float32(moved).view(np.uint32) | top | ((half & 0x8000) << 16)


@device
def widen_row(bits_D: Array, kind: int, out_D: Array) -> None:
    """bf16 or fp16 bits to float32, exactly (subnormals, infinities and NaN included)."""
    out_bits_D = out_D.view(np.uint32)
    if kind == BF16:
        for i in range(bits_D.shape[0]):
            out_bits_D[i] = np.uint32(bits_D[i]) << 16
    else:
        for i in range(bits_D.shape[0]):
            out_bits_D[i] = fp16_to_fp32_bits(bits_D[i])


@device
def row_of(w32_HD: Array, w16_HD: Array, kind: int, n: int, scratch_D: Array) -> Array:
    """Row ``n`` in float32: the stored one for fp32, ``scratch_D`` filled for the others."""
    if kind == FP32:
        return w32_HD[n]  # type: ignore[no-any-return]
    widen_row(w16_HD[n], kind, scratch_D)
    return scratch_D


@device
def strip_of(w32_HD: Array, w16_HD: Array, kind: int, n: int, left: int, right: int, scratch: Array) -> Array:
    """Columns ``left`` to ``right - 1`` of row ``n`` in float32; see :func:`row_of`."""
    if kind == FP32:
        return w32_HD[n, left:right]
    widen_row(w16_HD[n, left:right], kind, scratch[: right - left])
    return scratch[: right - left]
