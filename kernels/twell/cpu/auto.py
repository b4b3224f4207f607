"""The block from the tokens, by the way that the plan picks once the active neurons are counted.

Counting costs nothing here: the CPU has packed the gate values before the rest begins. The choice depends on shapes and
counts alone, so the same input goes the same way.

Letters: M tokens, D model width, H hidden width, N active entries.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from twell.cpu._launch import n_threads
from twell.cpu.rows import to_rows
from twell.cpu.tile import tile_down, tile_ffn
from twell.cpu.token import token_down, token_ffn
from twell.cpu.union import to_union
from twell.formats import TwELL
from twell.plan import BlockShape, LayerPlan, plan_forward


def plan_for(packed: TwELL, d_model: int, *, gated: bool) -> LayerPlan:
    """The plan for these gate values.

    Parameters
    ----------
    packed : TwELL
    d_model : int
        D.
    gated : bool
    """
    n_tokens, n_hidden = packed.shape
    shape = BlockShape(tokens=n_tokens, d_model=d_model, d_hidden=n_hidden, gated=gated, threads=n_threads())
    return plan_forward(shape, int(packed.counts().sum()) / max(1, n_tokens))


def auto_ffn(x_MD: Tensor, packed: TwELL, up_HD: Tensor, down_HD: Tensor) -> Tensor:
    """What follows the gate product of a gated block, by the plan; see :func:`twell.reference.token_ffn`."""
    plan = plan_for(packed, x_MD.shape[1], gated=True)
    if plan.way == "tile":
        return tile_ffn(x_MD, to_union(packed, block=plan.block), up_HD, down_HD)
    if plan.way == "dense":
        gate_MH = to_dense(packed)
        y_MD = (gate_MH * F.linear(x_MD.detach(), up_HD.detach())) @ down_HD.detach()
        # A product with zero is not nothing where a weight is infinite: there the exact way follows.
        if bool(y_MD.isfinite().all()):
            return y_MD
    return token_ffn(x_MD, packed, up_HD, down_HD)


def auto_down(packed: TwELL, down_HD: Tensor) -> Tensor:
    """What follows the first product of a non-gated block, by the plan; see :func:`twell.reference.token_down`."""
    plan = plan_for(packed, down_HD.shape[1], gated=False)
    if plan.way == "tile":
        return tile_down(to_union(packed, block=plan.block), down_HD)
    if plan.way == "dense":
        y_MD = to_dense(packed) @ down_HD.detach()
        if bool(y_MD.isfinite().all()):
            return y_MD
    return token_down(packed, down_HD)


def to_dense(packed: TwELL) -> Tensor:
    """The gate values as a matrix [M, H] in their dtype, faster than :meth:`twell.formats.TwELL.to_dense`."""
    row_start, column_N, value_N = to_rows(packed)
    gate_MH = torch.zeros(packed.shape, dtype=packed.value_dtype)
    row_N = torch.arange(packed.shape[0]).repeat_interleave(row_start.diff())
    gate_MH[row_N, column_N.long()] = value_N.to(packed.value_dtype)
    return gate_MH
