"""Up and down projections per union tile: each weight row is read once for B neighbouring tokens.

The tokens of a block and their outputs stay in the core's own cache, while the two rows of each neuron of the union
pass by once and are used for the tokens that fire it. On a GPU the block would be two dense products on tensor cores; a
CPU gains more from skipping the zeros inside the block as well: gathering the rows for two dense products took
3 to 5 times as long (two Sapphire Rapids cores, fp32, 512 tokens, D=2048, H=5632, 29 active, 2026-12-01).

Letters: M tokens, D model width, H hidden width, B tokens of a block, U neurons of its union.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import prange
from torch import Tensor

from twell._inputs import check_tokens, check_weight
from twell.cpu._launch import kernel
from twell.cpu._storage import FP32, Array, as_matrix, row_of
from twell.cpu.pack import check_cpu
from twell.cpu.token import add_scaled, bits_to_fp32, dot
from twell.errors import DeviceError, DtypeError, ShapeError
from twell.formats import TileUnion


def tile_ffn(x_MD: Tensor, union: TileUnion, up_HD: Tensor, down_HD: Tensor) -> Tensor:
    """Up and down projections of a gated block over union tiles.

    Parameters
    ----------
    x_MD : Tensor, float32, bfloat16 or float16 [M, D]
        On the CPU.
    union : TileUnion
        Gate values of the same tokens.
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
    _check_union(union, n_tokens=x_MD.shape[0], like=x_MD)
    for weight_HD, name in ((up_HD, "up_HD"), (down_HD, "down_HD")):
        check_weight(weight_HD, name, width=x_MD.shape[1], n_hidden=union.shape[1], like=x_MD)
    return _run(x_MD, union, up_HD, down_HD, gated=True)


def tile_down(union: TileUnion, down_HD: Tensor) -> Tensor:
    """Down projection of a non-gated block over union tiles; see :func:`tile_ffn`.

    Parameters
    ----------
    union : TileUnion
        ``relu(x up^T)``.
    down_HD : Tensor, value dtype of ``union`` [H, D]
    """
    check_weight(down_HD, "down_HD", n_hidden=union.shape[1], like=down_HD)
    check_cpu(down_HD, "down_HD")
    _check_union(union, n_tokens=union.shape[0], like=down_HD)
    return _run(down_HD[:0], union, down_HD[:0], down_HD, gated=False)


def _check_union(union: TileUnion, *, n_tokens: int, like: Tensor) -> None:
    if not isinstance(union, TileUnion):
        raise DtypeError(f"union is a {type(union).__name__}: pass a TileUnion (TileUnion.from_twell makes one)")
    if union.shape[0] != n_tokens:
        raise ShapeError(
            f"union has {union.shape[0]} rows, x_MD has {n_tokens}: pack the gate values of the same tokens"
        )
    if union.values.dtype != like.dtype:
        raise DtypeError(f"union has value dtype {union.values.dtype}, the weights {like.dtype}: use one dtype")
    if union.device != like.device:
        raise DeviceError(f"union is on {union.device}, the weights on {like.device}: use one device")


def _run(x_MD: Tensor, union: TileUnion, up_HD: Tensor, down_HD: Tensor, *, gated: bool) -> Tensor:
    y_MD = torch.empty(union.shape[0], down_HD.shape[1], dtype=torch.float32)
    values = as_matrix(union.values[None])
    _tile_blocks(
        *as_matrix(x_MD)[:2],
        union.neurons.numpy(),
        union.neuron_start.numpy(),
        values.w32_HD.reshape(-1),
        values.w16_HD.reshape(-1),
        union.value_start.numpy(),
        union.block,
        *as_matrix(up_HD)[:2],
        *as_matrix(down_HD),
        gated,
        y_MD.numpy(),
    )
    return y_MD.to(down_HD.dtype)


@kernel
def _tile_blocks(
    x32_MD: Array,
    x16_MD: Array,
    neurons: Array,
    neuron_start: Array,
    values32: Array,
    values16: Array,
    value_start: Array,
    block: int,
    up32_HD: Array,
    up16_HD: Array,
    down32_HD: Array,
    down16_HD: Array,
    kind: int,
    gated: bool,
    y_MD: Array,
) -> None:
    """Neuron by neuron within a block: its two weight rows are read once, for all tokens that fire it."""
    width = y_MD.shape[1]
    for g in prange(neuron_start.shape[0] - 1):
        first = g * block
        rows = min(block, y_MD.shape[0] - first)
        size = neuron_start[g + 1] - neuron_start[g]
        x_BD = np.empty((rows, width), np.float32)
        up_scratch, down_scratch = np.empty(width, np.float32), np.empty(width, np.float32)
        for r in range(rows):
            y_MD[first + r, :] = 0
            if gated:
                x_BD[r, :] = row_of(x32_MD, x16_MD, kind, first + r, down_scratch)
        for i in range(size):
            n = neurons[neuron_start[g] + i]
            up_D = row_of(up32_HD, up16_HD, kind, n, up_scratch) if gated else up_scratch
            down_D = row_of(down32_HD, down16_HD, kind, n, down_scratch)
            for r in range(rows):
                place = value_start[g] + r * size + i
                value = values32[place] if kind == FP32 else bits_to_fp32(values16[place], kind)
                if value == 0:
                    continue
                h = value
                if gated:
                    h = value * dot(x_BD[r], up_D)
                add_scaled(h, down_D, y_MD[first + r])
