"""Up and down projections per token, over the packed active neurons: the second half of a sparse feed-forward.

For each token and each of its active neurons n: ``y += gate_n * (x . up_n) * down_n`` (paper, section 3.2). A token
reads two rows of weights for each active neuron and nothing else.

Letters: M tokens, D model width, H hidden width, B tokens of a run, S columns of a strip, E entries of a run,
N active entries, C runs of tokens.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import prange
from torch import Tensor

from twell._inputs import check_packed, check_tokens, check_weight
from twell.cpu._launch import device, kernel, n_threads
from twell.cpu._storage import BF16, FP32, Array, Scalar, as_matrix, fp16_to_fp32_bits, strip_of
from twell.cpu.pack import check_cpu
from twell.formats import TwELL

STRIP = 1024
"""Columns of a strip. With runs of 256 tokens, strips of 512 to 2048 columns measured alike and shorter ones or runs
worse (two Sapphire Rapids cores with 2 MiB of L2 each, fp32, 512 tokens, D=2048, H=5632, 29 active, 2026-12-01)."""

TOKENS_PER_RUN = 256

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
    from twell.cpu.rows import to_rows  # rows.py reads words with the helpers below

    y_MD = torch.empty(packed.shape[0], down_HD.shape[1], dtype=torch.float32)
    row_start, column_N, value_N = (array.numpy() for array in to_rows(packed))
    # A token costs its neurons, and a little even where it has none.
    bounds = equal_runs(np.diff(row_start) + 1, max(n_threads(), -(-packed.shape[0] // TOKENS_PER_RUN)))
    _token_runs(
        *as_matrix(x_MD)[:2],
        *as_matrix(up_HD)[:2],
        *as_matrix(down_HD),
        row_start,
        column_N,
        value_N,
        gated,
        bounds,
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
def _token_runs(
    x32_MD: Array,
    x16_MD: Array,
    up32_HD: Array,
    up16_HD: Array,
    down32_HD: Array,
    down16_HD: Array,
    kind: int,
    row_start: Array,
    column_N: Array,
    value_N: Array,
    gated: bool,
    bounds_C: Array,
    y_MD: Array,
) -> None:
    """``y[m] = sum over active n of value * (x[m] . up[n] if gated else 1) * down[n]``.

    A run's entries are sorted by neuron, so that a weight row that several of its tokens need is fetched once, and
    its columns are taken in strips, so that the strips of all its tokens stay in the core's own cache. Neither changes
    the order in which a token's terms are added: the bits do not depend on the runs.
    """
    n_hidden, width = max(down32_HD.shape[0], down16_HD.shape[0]), y_MD.shape[1]
    for run in prange(bounds_C.shape[0] - 1):
        first, stop = bounds_C[run], bounds_C[run + 1]
        begin, n_entries = row_start[first], row_start[stop] - row_start[first]
        neuron_H = np.zeros(n_hidden + 1, np.int64)
        for e in range(n_entries):
            neuron_H[column_N[begin + e] + 1] += 1
        for n in range(n_hidden):
            neuron_H[n + 1] += neuron_H[n]
        token_E, entry_E, h_E = (
            np.empty(n_entries, np.int64),
            np.empty(n_entries, np.int64),
            np.empty(n_entries, np.float32),
        )
        next_H = neuron_H.copy()
        for m in range(first, stop):
            y_MD[m, :] = 0
            for e in range(row_start[m], row_start[m + 1]):
                place = next_H[column_N[e]]
                next_H[column_N[e]] = place + 1
                token_E[place] = m
                entry_E[place] = e
                h_E[place] = 0 if gated else value_N[e]
        scratch = np.empty(STRIP, np.float32)
        if gated:
            x_BS = np.empty((stop - first, min(STRIP, width)), np.float32)
            for left in range(0, width, STRIP):
                right = min(width, left + STRIP)
                for m in range(first, stop):
                    x_BS[m - first, : right - left] = strip_of(x32_MD, x16_MD, kind, m, left, right, scratch)
                for n in range(n_hidden):
                    if neuron_H[n] < neuron_H[n + 1]:
                        up_S = strip_of(up32_HD, up16_HD, kind, n, left, right, scratch)
                        for place in range(neuron_H[n], neuron_H[n + 1]):
                            h_E[place] += dot(x_BS[token_E[place] - first, : right - left], up_S)
            for place in range(n_entries):
                h_E[place] *= value_N[entry_E[place]]
        for left in range(0, width, STRIP):
            right = min(width, left + STRIP)
            for n in range(n_hidden):
                if neuron_H[n] < neuron_H[n + 1]:
                    down_S = strip_of(down32_HD, down16_HD, kind, n, left, right, scratch)
                    for place in range(neuron_H[n], neuron_H[n + 1]):
                        add_scaled(h_E[place], down_S, y_MD[token_E[place], left:right])
