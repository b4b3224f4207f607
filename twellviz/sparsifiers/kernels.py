"""Every method on the kernels of ``twell``: its pattern packed to TwELL, then the products over active neurons.

What each method can save (``packs`` of its block)::

    relu, l1            gate product packed, up and down sparse: the fused block
    prosparse, cats     gate product, threshold, pack; up and down sparse
    drelu, topk, teal   gate and up densely, h packed; only down sparse
    moe                 not packed: its pattern is made of whole experts, which dense products serve

Letters: M tokens, D model width, H hidden width.
"""

from __future__ import annotations

from importlib import import_module

import torch
from torch import Tensor
from twell import cpu, ops, reference
from twell.cpu.auto import auto_down, auto_ffn
from twell.formats import TwELL
from twell.nn import FFN, GatedFFN

from twellviz.errors import ConfigError
from twellviz.sparsifiers.block import SparseBlock

WAYS = ("auto", "token", "tile")
TILE_BLOCK = 128
"""Tokens of a union tile."""


@torch.no_grad()
def pack_pattern(block: GatedFFN | FFN | SparseBlock, x_MD: Tensor) -> TwELL:
    """What the kernels read: the gate values or the finished h of these tokens, at the method's pattern.

    Parameters
    ----------
    block : GatedFFN, FFN or SparseBlock
    x_MD : Tensor [M, D]

    Returns
    -------
    TwELL
        Exact; tiles with more entries than slots keep a dense backup.

    Raises
    ------
    ConfigError
        The block is a mixture of experts, or has SiLU and no method.
    """
    if isinstance(block, SparseBlock):
        if not block.packable:
            raise ConfigError(f"{type(block).__name__} is not packed: whole experts run densely; use forward_sparse")
        values_MH = block.values(x_MD)
        if block.signed:
            return TwELL.from_dense(values_MH, keep="nonzero")
        return _pack_positive(values_MH)
    require_relu_block(block)
    return ops.gate_pack(x_MD, deciding(block))


@torch.no_grad()
def forward_sparse(block: GatedFFN | FFN | SparseBlock, x_MD: Tensor, *, way: str = "auto") -> Tensor:
    """The block over its active neurons; equal to ``block(x_MD)`` up to rounding.

    Parameters
    ----------
    block : GatedFFN, FFN or SparseBlock
    x_MD : Tensor [M, D]
        On a CPU or an NVIDIA GPU (elsewhere the plain reference runs).
    way : {"auto", "token", "tile"}
        On a CPU: by the plan (which may go densely where that is faster), one token at a time, or by union tiles. On a
        GPU there is one way today, a token at a time.

    Returns
    -------
    Tensor [M, D]

    Raises
    ------
    ConfigError
    """
    if way not in WAYS:
        raise ConfigError(f"way={way!r}: choose one of {', '.join(WAYS)}")
    if isinstance(block, SparseBlock) and not block.packable:
        return block.forward_grouped(x_MD)
    gated = not isinstance(block, FFN) and (not isinstance(block, SparseBlock) or block.packs == "gate")
    up_HD = block.get_parameter("up_weight").detach() if gated else None
    down_HD = block.get_parameter("down_weight").detach()
    if x_MD.device.type == "cuda":
        forward_simt = import_module("twellviz.sparsifiers.gpu").forward_simt
        return forward_simt(block, x_MD, up_HD, down_HD)  # type: ignore[no-any-return]
    return _follow(x_MD, pack_pattern(block, x_MD), up_HD, down_HD, way)


def _follow(x_MD: Tensor, packed: TwELL, up_HD: Tensor | None, down_HD: Tensor, way: str) -> Tensor:
    """What comes after the pack, on a CPU or in plain torch."""
    if x_MD.device.type != "cpu":
        return (
            reference.token_down(packed, down_HD)
            if up_HD is None
            else reference.token_ffn(x_MD, packed, up_HD, down_HD)
        )
    if way == "tile":
        union = cpu.to_union(packed, block=TILE_BLOCK)
        return cpu.tile_down(union, down_HD) if up_HD is None else cpu.tile_ffn(x_MD, union, up_HD, down_HD)
    if up_HD is None:
        return auto_down(packed, down_HD) if way == "auto" else cpu.token_down(packed, down_HD)
    follow = auto_ffn if way == "auto" else cpu.token_ffn
    return follow(x_MD, packed, up_HD, down_HD)


def _pack_positive(values_MH: Tensor) -> TwELL:
    if values_MH.device.type == "cpu":
        return cpu.pack(values_MH)
    return TwELL.from_dense(values_MH)


def deciding(block: GatedFFN | FFN) -> Tensor:
    """The weight whose product decides which neurons fire."""
    return block.get_parameter("up_weight" if isinstance(block, FFN) else "gate_weight").detach()


def require_relu_block(block: GatedFFN | FFN) -> None:
    """Raise ConfigError where a plain block has no pattern."""
    if block.activation != "relu":
        raise ConfigError(
            f"activation={block.activation!r} has no exact zeros to skip: calibrate thresholds (teal or cats)"
        )
