"""Up and down projections per token, over the packed active neurons: the second half of a sparse feed-forward.

For each token and each of its active neurons n: ``y += gate_n * (x . up_n) * down_n`` (paper, section 3.2). A token
reads two rows of weights for each active neuron and nothing else.

Letters: M tokens, D model width, H hidden width, T tile width (256), S words of a tile, K spilled tiles,
C runs of tokens.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import prange
from torch import Tensor

from twell._inputs import check_packed, check_tokens, check_weight
from twell.cpu._launch import device, kernel, n_threads
from twell.cpu._storage import BF16, FP32, Array, Scalar, as_matrix, fp16_to_fp32_bits, row_of
from twell.cpu.pack import check_cpu
from twell.formats import TwELL

RUNS_PER_THREAD = 8
"""Runs of tokens that a thread works through, so that threads end together although tokens differ."""


def token_ffn(x_MD: Tensor, packed: TwELL, up_HD: Tensor, down_HD: Tensor) -> Tensor:
    """Up and down projections of a gated block over the active neurons (paper, section 3.2).

    Parameters
    ----------
    x_MD : Tensor, float32, bfloat16 or float16 [M, D]
        On the CPU.
    packed : TwELL
        Gate values of the same tokens; spilled tiles are read from the backup.
    up_HD, down_HD : Tensor, dtype of ``x_MD`` [H, D]

    Returns
    -------
    Tensor, dtype of ``x_MD`` [M, D]
        Sums in float32; the same bits whatever the number of threads.

    Raises
    ------
    ShapeError, DtypeError, DeviceError
    """
    check_tokens(x_MD)
    check_cpu(x_MD, "x_MD")
    check_packed(packed, n_tokens=x_MD.shape[0], like=x_MD)
    for weight_HD, name in ((up_HD, "up_HD"), (down_HD, "down_HD")):
        check_weight(weight_HD, name, width=x_MD.shape[1], n_hidden=packed.shape[1], like=x_MD)
    return _run(x_MD, packed, up_HD, down_HD, gated=True)


def token_down(packed: TwELL, down_HD: Tensor) -> Tensor:
    """Down projection of a non-gated block over the active neurons.

    Parameters
    ----------
    packed : TwELL
        ``relu(x up^T)``.
    down_HD : Tensor, value dtype of ``packed`` [H, D]
        On the CPU.

    Returns
    -------
    Tensor, dtype of ``down_HD`` [M, D]

    Raises
    ------
    ShapeError, DtypeError, DeviceError
    """
    check_weight(down_HD, "down_HD", n_hidden=packed.shape[1], like=down_HD)
    check_cpu(down_HD, "down_HD")
    check_packed(packed, n_tokens=packed.shape[0], like=down_HD)
    return _run(down_HD[:0], packed, down_HD[:0], down_HD, gated=False)


def equal_runs(work_M: Array, n_runs: int) -> Array:
    """Cut tokens into runs of about equal work.

    Parameters
    ----------
    work_M : integer [M]
    n_runs : int

    Returns
    -------
    int64 [n_runs + 1]
        Run c holds tokens ``bounds[c]`` to ``bounds[c + 1] - 1``.
    """
    ends_M = np.cumsum(work_M, dtype=np.int64)
    total = int(ends_M[-1]) if ends_M.size else 0
    inner = np.searchsorted(ends_M, total * np.arange(1, n_runs) / n_runs, side="left")
    bounds = np.concatenate([[0], inner, [ends_M.size]]).astype(np.int64)
    return np.maximum.accumulate(bounds)


def _run(x_MD: Tensor, packed: TwELL, up_HD: Tensor, down_HD: Tensor, *, gated: bool) -> Tensor:
    y_MD = torch.empty(packed.shape[0], down_HD.shape[1], dtype=torch.float32)
    # A token costs its neurons, and a little even where it has none.
    work_M = packed.counts().numpy() + 1
    _token_rows(
        *as_matrix(x_MD)[:2],
        packed.words.numpy().reshape(packed.shape[0], packed.n_tiles, packed.slots),
        packed.spill_start.numpy(),
        *as_matrix(packed.spill_values)[:2],
        *as_matrix(up_HD)[:2],
        *as_matrix(down_HD),
        gated,
        equal_runs(work_M, RUNS_PER_THREAD * n_threads()),
        y_MD.numpy(),
    )
    return y_MD.to(down_HD.dtype)


@device
def bits_to_fp32(bits: Scalar, kind: int) -> Scalar:
    """The float32 with the value of these stored bits."""
    if kind == FP32:
        return np.uint32(bits).view(np.float32)
    if kind == BF16:
        return np.uint32(np.uint32(bits) << 16).view(np.float32)
    return np.uint32(fp16_to_fp32_bits(bits)).view(np.float32)


@device
def dot(a_D: Array, b_D: Array) -> Scalar:
    """Sum of products, in float32."""
    total = np.float32(0.0)
    for i in range(a_D.shape[0]):
        total += a_D[i] * b_D[i]
    return total


@device
def add_scaled(scale: Scalar, row_D: Array, y_D: Array) -> None:
    """``y += scale * row``."""
    for i in range(y_D.shape[0]):
        y_D[i] += scale * row_D[i]


@kernel
def _token_rows(
    x32_MD: Array,
    x16_MD: Array,
    words_MTS: Array,
    spill_start: Array,
    spill32_KT: Array,
    spill16_KT: Array,
    up32_HD: Array,
    up16_HD: Array,
    down32_HD: Array,
    down16_HD: Array,
    kind: int,
    gated: bool,
    bounds_C: Array,
    y_MD: Array,
) -> None:
    """``y[m] = sum over active n of value * (x[m] . up[n] if gated else 1) * down[n]``."""
    n_hidden = max(down32_HD.shape[0], down16_HD.shape[0])
    n_tiles, slots = words_MTS.shape[1], words_MTS.shape[2]
    narrow = words_MTS.itemsize == 4
    for run in prange(bounds_C.shape[0] - 1):
        width = y_MD.shape[1]
        x_scratch, up_scratch, down_scratch = (
            np.empty(width, np.float32),
            np.empty(width, np.float32),
            np.empty(width, np.float32),
        )
        for m in range(bounds_C[run], bounds_C[run + 1]):
            y_D = y_MD[m]
            y_D[:] = 0
            x_D = row_of(x32_MD, x16_MD, kind, m, x_scratch) if gated else x_scratch
            spill = spill_start[m]
            for tile in range(n_tiles):
                count = words_MTS[m, tile, 0]
                spilled = count >= slots
                entries = min(256, n_hidden - tile * 256) if spilled else count
                for i in range(entries):
                    if spilled:
                        n: Scalar = tile * 256 + i
                        value = spill32_KT[spill, i] if kind == FP32 else bits_to_fp32(spill16_KT[spill, i], kind)
                        if value == 0:
                            continue
                    else:
                        word: Scalar = np.int64(words_MTS[m, tile, 1 + i])
                        if narrow:
                            n = word & 0xFFFF
                            value = bits_to_fp32((word >> 16) & 0xFFFF, kind)
                        else:
                            n = word & 0xFFFFFFFF
                            value = bits_to_fp32((word >> 32) & 0xFFFFFFFF, FP32)
                    h = value
                    if gated:
                        h = value * dot(x_D, row_of(up32_HD, up16_HD, kind, n, up_scratch))
                    add_scaled(h, row_of(down32_HD, down16_HD, kind, n, down_scratch), y_D)
                if spilled:
                    spill += 1
