"""The feed-forward block in plain torch, on any device: what every backend must equal.

Letters: M tokens, D model width, H hidden width, N active entries, P entries handled at once.

The definition (paper, section 2.1), gated and not, with one row per neuron in every weight matrix::

    h = relu(x gate^T) * (x up^T)        y = h down
    h = relu(x up^T)                     y = h down

Only active neurons contribute: an inactive neuron gives nothing even where its up or down weights are infinite.
Sums are in fp32, whatever the storage dtype; the gate value alone is rounded to it before it is tested.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from twell._inputs import check_packed, check_tokens, check_weight
from twell.formats import TwELL
from twell.formats._coo import Coo
from twell.formats._rules import check_compression, check_overflow

__all__ = ["gate_pack", "pack", "token_down", "token_ffn"]

_GATHERED_ELEMENTS = 1 << 22
"""Weight elements gathered at once: bounds the memory of a call, not its result."""


def pack(h_MH: Tensor, *, compression: int = 8, overflow: str = "spill") -> TwELL:
    """Pack gate values, before or after ReLU, to TwELL.

    Parameters
    ----------
    h_MH : Tensor, float32, bfloat16 or float16 [M, H]
    compression, overflow
        See :meth:`twell.formats.TwELL.from_dense`.
    """
    return TwELL.from_dense(h_MH, compression=compression, overflow=overflow)


def gate_pack(x_MD: Tensor, gate_HD: Tensor, *, compression: int = 8, overflow: str = "spill") -> TwELL:
    """``relu(x gate^T)``, rounded to the dtype of ``x``, as TwELL (paper, section 3.2).

    Parameters
    ----------
    x_MD : Tensor, float32, bfloat16 or float16 [M, D]
    gate_HD : Tensor, dtype of ``x_MD`` [H, D]
    compression, overflow
        See :meth:`twell.formats.TwELL.from_dense`.

    Raises
    ------
    ShapeError, DtypeError, DeviceError, OptionError, CapacityError
    """
    check_compression(compression)
    check_overflow(overflow)
    check_tokens(x_MD)
    check_weight(gate_HD, "gate_HD", width=x_MD.shape[1], like=x_MD)
    return pack(F.linear(x_MD.detach(), gate_HD.detach()), compression=compression, overflow=overflow)


def token_ffn(x_MD: Tensor, packed: TwELL, up_HD: Tensor, down_HD: Tensor) -> Tensor:
    """Up and down projections of a gated block over the packed active neurons (paper, section 3.2).

    For each token and each of its active neurons n: ``y += gate_n * (x . up_n) * down_n``.

    Parameters
    ----------
    x_MD : Tensor, float32, bfloat16 or float16 [M, D]
    packed : TwELL
        Gate values of the same tokens.
    up_HD, down_HD : Tensor, dtype of ``x_MD`` [H, D]

    Returns
    -------
    Tensor, dtype of ``x_MD`` [M, D]

    Raises
    ------
    ShapeError, DtypeError, DeviceError
    """
    check_tokens(x_MD)
    check_packed(packed, n_tokens=x_MD.shape[0], like=x_MD)
    for weight_HD, name in ((up_HD, "up_HD"), (down_HD, "down_HD")):
        check_weight(weight_HD, name, width=x_MD.shape[1], n_hidden=packed.shape[1], like=x_MD)
    x_MD, up_HD, down_HD = x_MD.detach(), up_HD.detach(), down_HD.detach()
    y_MD = torch.zeros(x_MD.shape, dtype=torch.float32, device=x_MD.device)
    for part in _parts(packed.to_coo(), width=x_MD.shape[1]):
        up_P = (x_MD[part.row_N].float() * up_HD[part.column_N].float()).sum(1)
        h_P = part.value_N.float() * up_P
        y_MD.index_add_(0, part.row_N, h_P[:, None] * down_HD[part.column_N].float())
    return y_MD.to(x_MD.dtype)


def token_down(packed: TwELL, down_HD: Tensor) -> Tensor:
    """Down projection of a non-gated block over the packed active neurons.

    Parameters
    ----------
    packed : TwELL
        ``relu(x up^T)``.
    down_HD : Tensor, value dtype of ``packed`` [H, D]

    Returns
    -------
    Tensor, dtype of ``down_HD`` [M, D]

    Raises
    ------
    ShapeError, DtypeError, DeviceError
    """
    check_weight(down_HD, "down_HD", n_hidden=packed.shape[1], like=down_HD)
    check_packed(packed, n_tokens=packed.shape[0], like=down_HD)
    down_HD = down_HD.detach()
    shape = (packed.shape[0], down_HD.shape[1])
    y_MD = torch.zeros(shape, dtype=torch.float32, device=down_HD.device)
    for part in _parts(packed.to_coo(), width=down_HD.shape[1]):
        y_MD.index_add_(0, part.row_N, part.value_N.float()[:, None] * down_HD[part.column_N].float())
    return y_MD.to(down_HD.dtype)


def _parts(entries: Coo, *, width: int) -> Iterator[Coo]:
    step = max(1, _GATHERED_ELEMENTS // max(1, width))
    for start in range(0, entries.row_N.numel(), step):
        part = slice(start, start + step)
        yield Coo(entries.row_N[part], entries.column_N[part], entries.value_N[part], entries.shape)
