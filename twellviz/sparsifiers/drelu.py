"""dReLU: ReLU on both halves of a gated block.

Letters: M tokens, D model width, H hidden width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from twellviz.sparsifiers.base import Sparsifier, require_relu
from twellviz.sparsifiers.block import SparseBlock

if TYPE_CHECKING:
    from twellviz.models.config import LMConfig


@dataclass(frozen=True, kw_only=True)
class DReLU(Sparsifier):
    """``h = relu(x gate^T) * relu(x up^T)`` (TurboSparse, arXiv 2406.05955, the definition of dReLU).

    A neuron is inactive where either product is not positive: about three quarters of them at random weights, where
    ReLU on the gate alone gives a half. h is never negative. The paper replaces the activation of pretrained models
    and goes on training, without a penalty; here the model is trained like those of the other methods, and
    ``l1_coefficient`` may be set (our addition; 0 is the paper's).

    On the kernels: the pattern of the gate contains that of h, but our fused kernels know no second ReLU. So h is
    packed after both products, and only the down product is sparse.
    """

    name = "drelu"
    title = "dReLU (TurboSparse)"
    paper = "arXiv 2406.05955"
    penalised = True

    def check_model(self, cfg: LMConfig) -> None:
        super().check_model(cfg)
        require_relu(self, cfg)

    def make_block(self, cfg: LMConfig) -> SparseBlock:
        return DReLUBlock(cfg)


class DReLUBlock(SparseBlock):
    """The block of :class:`DReLU`."""

    packs = "hidden"
    signed = False

    def is_active(self, gate_MH: Tensor) -> Tensor:
        return ~(gate_MH <= 0)

    def _hidden(self, x_MD: Tensor) -> tuple[Tensor, Tensor]:
        gate_MH = F.relu(F.linear(x_MD, self.gate_weight))
        up_MH = F.linear(x_MD, self.up_weight)
        return torch.where(up_MH <= 0, 0, gate_MH), gate_MH * F.relu(up_MH)
