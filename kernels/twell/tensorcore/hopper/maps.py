"""Tensor maps: what the copy engine must know about a matrix, 128 bytes in global memory.

A map depends on address, shape and dtype alone, so it is kept for as long as it is used: which tensor lives at an
address does not matter. It is written by a kernel, in the order of the stream, so that no copy from the host has to be
waited for. In a CUDA graph that is being captured nothing is taken from or put among the kept ones: the graph writes
its own.

Letters: R rows, C columns.
"""

from __future__ import annotations

import ctypes
import importlib
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor

from twell.cuda_target import Array, cuda, kernel
from twell.errors import DeviceError, ShapeError

BOX_COLUMNS = 64
"""128 bytes, the width of the swizzle."""

MOST = 512
"""Maps that are kept, those used longest ago let go first."""

_kept: OrderedDict[tuple[Any, ...], Tensor] = OrderedDict()


@kernel()
def write_words(
    out: Array,
    a: int,
    b: int,
    c: int,
    d: int,
    e: int,
    f: int,
    g: int,
    h: int,
    i: int,
    j: int,
    k: int,
    l: int,  # noqa: E741 - the twelfth of sixteen words
    m: int,
    n: int,
    o: int,
    p: int,
) -> None:
    """Sixteen words, given by value, into global memory."""
    if cuda.threadIdx.x == 0:
        out[0], out[1], out[2], out[3] = a, b, c, d
        out[4], out[5], out[6], out[7] = e, f, g, h
        out[8], out[9], out[10], out[11] = i, j, k, l
        out[12], out[13], out[14], out[15] = m, n, o, p


def encode(matrix: Tensor, box_rows: int) -> list[int]:
    """The map of a matrix as sixteen signed 64-bit words.

    Parameters
    ----------
    matrix : Tensor, bfloat16 or float16 [R, C]
        Contiguous, C a multiple of 8.
    box_rows : int
        Rows of a copied box, at most 256; it has 64 columns.

    Raises
    ------
    ShapeError
        The copy engine cannot read it.
    DeviceError
        The driver refuses it.
    """
    if matrix.shape[1] % 8 or matrix.data_ptr() % 16 or not matrix.is_contiguous():
        raise ShapeError(
            f"a matrix of shape {tuple(matrix.shape)}, strides {matrix.stride()}, at {matrix.data_ptr():#x}: the copy "
            "engine needs rows that follow one another and begin at multiples of 16 bytes"
        )
    driver = importlib.import_module("cuda.bindings.driver")
    kinds = driver.CUtensorMapDataType
    kind = {
        torch.bfloat16: kinds.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        torch.float16: kinds.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    }[matrix.dtype]
    long, short = driver.cuuint64_t, driver.cuuint32_t
    status, encoded = driver.cuTensorMapEncodeTiled(
        kind,
        2,
        matrix.data_ptr(),
        [long(matrix.shape[1]), long(matrix.shape[0])],
        [long(matrix.shape[1] * 2)],
        [short(BOX_COLUMNS), short(box_rows)],
        [short(1), short(1)],
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if int(status) != 0:
        raise DeviceError(f"the CUDA driver refused a tensor map of {tuple(matrix.shape)}: {status!r}")
    return list((ctypes.c_int64 * 16).from_address(int(encoded.getPtr())))


def tensor_map(matrix: Tensor, box_rows: int) -> Tensor:
    """The map of a matrix in global memory, int64 [16]; see :func:`encode`. Kernels take its ``data_ptr()``.

    The tensor has to live until the kernel is started: memory is then reused in the order of the stream.
    """
    stream = torch.cuda.current_stream(matrix.device).cuda_stream
    key = matrix.device.index, stream, matrix.data_ptr(), *matrix.shape, matrix.dtype, box_rows
    capturing = torch.cuda.is_current_stream_capturing()
    if not capturing and key in _kept:
        _kept.move_to_end(key)
        return _kept[key]
    # 64-byte alignment is needed; torch's allocator gives 512.
    made = torch.empty(16, dtype=torch.int64, device=matrix.device)
    write_words[1, 32](made, *encode(matrix, box_rows))
    if not capturing:
        _kept[key] = made
        if len(_kept) > MOST:
            _kept.popitem(last=False)
    return made
