"""Training step of a feed-forward block over its active neurons, forward and backward.

Forward keeps x, the pattern and two values for each active neuron. Backward works at the pattern alone: the gradient
of h there, the L1 gradient added to it in fp32, the gradient of x in one pass over the three weight rows of each
active neuron, and the weight gradients neuron by neuron over the transposed pattern, which is built once and shared
by all of them. No two threads add to the same number, so the bits repeat.

    z = x gate^T, g = relu(z), u = x up^T, h = g u, y = h down          (non-gated: u = 1, gate is the up matrix)
    dh = dy down^T + (dL1 / M) sign(h),  du = dh g,  dz = dh u          (at the pattern)
    dx = du up + dz gate,  dup = du^T x,  dgate = dz^T x,  ddown = h^T dy

Source: paper, section 3.3 and its appendix on the backward pass; here without a limit on a row's entries.

Letters: M tokens, D model width, H hidden width, N active entries (rows ascending, columns ascending in a row),
C runs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numba import prange
from torch import Tensor

from twell.cpu._launch import device, kernel, n_threads
from twell.cpu._storage import Array, as_matrix, row_of
from twell.cpu.pack import gate_pack
from twell.cpu.rows import to_rows
from twell.cpu.token import RUNS_PER_THREAD, add_scaled, dot, equal_runs


class Pattern(NamedTuple):
    """Which neurons each token fires, and with what: a compressed sparse row matrix.

    Attributes
    ----------
    row_start : Tensor, int64 [M + 1]
    column_N : Tensor, int32 [N]
    gate_N, up_N : Tensor, float32 [N]
        Gate value and up value of each entry; ``up_N`` is empty in a non-gated block.
    """

    row_start: Tensor
    column_N: Tensor
    gate_N: Tensor
    up_N: Tensor


def train_forward(
    x_MD: Tensor, gate_HD: Tensor, up_HD: Tensor | None, down_HD: Tensor
) -> tuple[Tensor, Tensor, Tensor, Pattern]:
    """Forward pass that keeps what the backward pass needs.

    Parameters
    ----------
    x_MD : Tensor, float32, bfloat16 or float16 [M, D]
    gate_HD : Tensor, dtype of ``x_MD`` [H, D]
        The matrix before ReLU; the up matrix of a non-gated block.
    up_HD : Tensor, dtype of ``x_MD`` [H, D], or None
        None for a non-gated block.
    down_HD : Tensor, dtype of ``x_MD`` [H, D]

    Returns
    -------
    y_MD : Tensor, dtype of ``x_MD`` [M, D]
    l1 : Tensor, float32 scalar
        Mean over tokens of the sum of ``|h|``.
    activity_H : Tensor, int64 [H]
        Tokens on which each neuron was active.
    pattern : Pattern
    """
    packed = gate_pack(x_MD, gate_HD)
    row_start, column_N, gate_N = to_rows(packed)
    gated = up_HD is not None
    up_N = torch.empty(column_N.numel() if gated else 0)
    y_MD = torch.empty(x_MD.shape, dtype=torch.float32)
    l1_M = torch.empty(x_MD.shape[0], dtype=torch.float64)
    _forward_rows(
        *as_matrix(x_MD)[:2],
        *as_matrix(gate_HD if up_HD is None else up_HD)[:2],
        *as_matrix(down_HD),
        row_start.numpy(),
        column_N.numpy(),
        gate_N.numpy(),
        gated,
        _runs(row_start),
        up_N.numpy(),
        l1_M.numpy(),
        y_MD.numpy(),
    )
    n_tokens = max(1, x_MD.shape[0])
    activity_H = torch.bincount(column_N, minlength=gate_HD.shape[0])
    l1 = (l1_M.sum() / n_tokens).float()
    return y_MD.to(x_MD.dtype), l1, activity_H, Pattern(row_start, column_N, gate_N, up_N)


def train_backward(
    dy_MD: Tensor,
    dl1: float,
    x_MD: Tensor,
    gate_HD: Tensor,
    up_HD: Tensor | None,
    down_HD: Tensor,
    pattern: Pattern,
    *,
    weights: bool = True,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of x and of the three weight matrices.

    Parameters
    ----------
    dy_MD : Tensor, dtype of ``x_MD`` [M, D]
    dl1 : float
        Gradient of the loss by L1.
    x_MD, gate_HD, up_HD, down_HD, pattern
        As in :func:`train_forward`.
    weights : bool
        Compute the weight gradients too.

    Returns
    -------
    dx_MD, dgate_HD, dup_HD, ddown_HD : Tensor or None
        In the dtypes of x and the weights, sums in float32. ``dup_HD`` is None in a non-gated block, all weight
        gradients are None without ``weights``.
    """
    gated = up_HD is not None
    n_hidden, dtype = gate_HD.shape[0], x_MD.dtype
    row_start, column_N, gate_N, up_N = (array.numpy() for array in pattern)
    dz_N = np.empty(column_N.shape, np.float32)
    du_N = np.empty(up_N.shape, np.float32)
    dx_MD = torch.empty(x_MD.shape, dtype=torch.float32)
    dy = as_matrix(dy_MD)
    _backward_rows(
        *dy[:2],
        *as_matrix(gate_HD)[:2],
        *as_matrix(gate_HD if up_HD is None else up_HD)[:2],
        *as_matrix(down_HD),
        row_start,
        column_N,
        gate_N,
        up_N,
        np.float32(dl1 / max(1, x_MD.shape[0])),
        gated,
        _runs(pattern.row_start),
        dz_N,
        du_N,
        dx_MD.numpy(),
    )
    if not weights:
        return dx_MD.to(dtype), None, None, None

    neuron_start, entry_N, token_N = transpose(row_start, column_N, n_hidden)
    runs = equal_runs(np.diff(neuron_start) + 1, RUNS_PER_THREAD * n_threads())
    # x and dy are read once for each of a token's neurons: widened once, not each time.
    x32_MD, dy32_MD = x_MD.detach().float().contiguous().numpy(), dy_MD.detach().float().contiguous().numpy()
    dgate_HD, ddown_HD = torch.empty(gate_HD.shape), torch.empty(gate_HD.shape)
    dup_HD = torch.empty(gate_HD.shape if gated else (0, gate_HD.shape[1]))
    _weight_rows(
        x32_MD,
        dy32_MD,
        neuron_start,
        entry_N,
        token_N,
        gate_N,
        up_N,
        dz_N,
        du_N,
        gated,
        runs,
        dgate_HD.numpy(),
        dup_HD.numpy(),
        ddown_HD.numpy(),
    )
    return dx_MD.to(dtype), dgate_HD.to(dtype), dup_HD.to(dtype) if gated else None, ddown_HD.to(dtype)


@kernel
def _forward_rows(
    x32_MD: Array,
    x16_MD: Array,
    up32_HD: Array,
    up16_HD: Array,
    down32_HD: Array,
    down16_HD: Array,
    kind: int,
    row_start: Array,
    column_N: Array,
    gate_N: Array,
    gated: bool,
    bounds_C: Array,
    up_N: Array,
    l1_M: Array,
    y_MD: Array,
) -> None:
    """``y[m] += h * down[n]`` with ``h = gate * (x[m] . up[n])``; keeps the up values and sums ``|h|``."""
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
            x_D = row_of(x32_MD, x16_MD, kind, m, x_scratch)
            l1 = 0.0
            for e in range(row_start[m], row_start[m + 1]):
                n = column_N[e]
                h = gate_N[e]
                if gated:
                    up_N[e] = dot(x_D, row_of(up32_HD, up16_HD, kind, n, up_scratch))
                    h *= up_N[e]
                l1 += np.float64(abs(h))
                add_scaled(h, row_of(down32_HD, down16_HD, kind, n, down_scratch), y_D)
            l1_M[m] = l1


@kernel
def _backward_rows(
    dy32_MD: Array,
    dy16_MD: Array,
    gate32_HD: Array,
    gate16_HD: Array,
    up32_HD: Array,
    up16_HD: Array,
    down32_HD: Array,
    down16_HD: Array,
    kind: int,
    row_start: Array,
    column_N: Array,
    gate_N: Array,
    up_N: Array,
    dl1: float,
    gated: bool,
    bounds_C: Array,
    dz_N: Array,
    du_N: Array,
    dx_MD: Array,
) -> None:
    """Gradients at the pattern, and ``dx[m] += dz * gate[n] + du * up[n]`` in the same pass."""
    for run in prange(bounds_C.shape[0] - 1):
        width = dx_MD.shape[1]
        dy_scratch, row_scratch = np.empty(width, np.float32), np.empty(width, np.float32)
        for m in range(bounds_C[run], bounds_C[run + 1]):
            dx_D = dx_MD[m]
            dx_D[:] = 0
            dy_D = row_of(dy32_MD, dy16_MD, kind, m, dy_scratch)
            for e in range(row_start[m], row_start[m + 1]):
                n = column_N[e]
                g = gate_N[e]
                u = up_N[e] if gated else np.float32(1.0)
                dh = dot(dy_D, row_of(down32_HD, down16_HD, kind, n, row_scratch))
                # sign(h) is 0 where up is exactly 0, as in torch's gradient of abs.
                dh += dl1 * np.sign(g * u)
                dz_N[e] = dh * u
                add_scaled(dz_N[e], row_of(gate32_HD, gate16_HD, kind, n, row_scratch), dx_D)
                if gated:
                    du_N[e] = dh * g
                    add_scaled(du_N[e], row_of(up32_HD, up16_HD, kind, n, row_scratch), dx_D)


@kernel
def _weight_rows(
    x_MD: Array,
    dy_MD: Array,
    neuron_start: Array,
    entry_N: Array,
    token_N: Array,
    gate_N: Array,
    up_N: Array,
    dz_N: Array,
    du_N: Array,
    gated: bool,
    bounds_C: Array,
    dgate_HD: Array,
    dup_HD: Array,
    ddown_HD: Array,
) -> None:
    """Each neuron's three gradient rows, over its tokens in ascending order."""
    for run in prange(bounds_C.shape[0] - 1):
        for n in range(bounds_C[run], bounds_C[run + 1]):
            dgate_HD[n, :] = 0
            ddown_HD[n, :] = 0
            if gated:
                dup_HD[n, :] = 0
            for place in range(neuron_start[n], neuron_start[n + 1]):
                e, m = entry_N[place], token_N[place]
                h = gate_N[e]
                add_scaled(dz_N[e], x_MD[m], dgate_HD[n])
                if gated:
                    h *= up_N[e]
                    add_scaled(du_N[e], x_MD[m], dup_HD[n])
                add_scaled(h, dy_MD[m], ddown_HD[n])


def transpose(row_start: Array, column_N: Array, n_columns: int) -> tuple[Array, Array, Array]:
    """The pattern by neurons: a counting sort, stable, so tokens ascend.

    Parameters
    ----------
    row_start : int64 [M + 1]
    column_N : int32 [N]
    n_columns : int

    Returns
    -------
    neuron_start : int64 [H + 1]
    entry_N : int64 [N]
        Place of each entry in the row order.
    token_N : int64 [N]
        Its token.
    """
    neuron_start = np.zeros(n_columns + 1, np.int64)
    np.cumsum(np.bincount(column_N, minlength=n_columns), out=neuron_start[1:])
    entry_N, token_N = np.empty(column_N.shape, np.int64), np.empty(column_N.shape, np.int64)
    _scatter(row_start, column_N, neuron_start[:-1].copy(), entry_N, token_N)
    return neuron_start, entry_N, token_N


@device
def _scatter(row_start: Array, column_N: Array, next_H: Array, entry_N: Array, token_N: Array) -> None:
    # One thread: an entry's place depends on all before it, and the pass is a small part of the backward.
    for m in range(row_start.shape[0] - 1):
        for e in range(row_start[m], row_start[m + 1]):
            place = next_H[column_N[e]]
            next_H[column_N[e]] = place + 1
            entry_N[place] = e
            token_N[place] = m


def _runs(row_start: Tensor) -> Array:
    return equal_runs(row_start.diff().numpy() + 1, RUNS_PER_THREAD * n_threads())
