"""TEAL: small hidden activations are dropped, without any training.

Letters: M tokens, D model width, H hidden width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from twellviz.sparsifiers.base import Sparsifier
from twellviz.sparsifiers.block import SparseBlock, ThresholdBlock

if TYPE_CHECKING:
    from twellviz.models.config import LMConfig


@dataclass(frozen=True, kw_only=True)
class TEAL(Sparsifier):
    """``h`` where ``|h| > t``, else 0 (TEAL, arXiv 2408.14690: magnitude thresholds on what enters a linear layer).

    t is a layer's quantile of ``|h|`` on calibration text (:func:`twellviz.sparsifiers.calibrate`); until then it is
    0 and nothing is dropped. The trunk is a trained model, in the paper with SiLU.

    Our simplifications: the paper thresholds the input of *every* linear layer, those of attention, gate and up
    included, and searches for the sparsity of each; we threshold the input of the down projection alone, every layer
    to the same target.

    On the kernels: which entries stay is known after the up product, so only the down product is sparse. Values have
    both signs.
    """

    name = "teal"
    title = "thresholds on h (TEAL)"
    paper = "arXiv 2408.14690"
    calibrated = True

    def make_block(self, cfg: LMConfig) -> SparseBlock:
        return TEALBlock(cfg)


class TEALBlock(ThresholdBlock):
    """The block of :class:`TEAL`."""

    packs = "hidden"
    signed = True

    def compared(self, x_MD: Tensor) -> Tensor:
        gate_MH = self.activate(F.linear(x_MD, self.gate_weight))
        return (gate_MH * F.linear(x_MD, self.up_weight)).abs()

    def _hidden(self, x_MD: Tensor) -> tuple[Tensor, Tensor]:
        gate_MH = self.activate(F.linear(x_MD, self.gate_weight))
        h_MH = gate_MH * F.linear(x_MD, self.up_weight)
        drop_MH = h_MH.detach().abs() <= self.threshold
        return torch.where(drop_MH, 0, gate_MH), torch.where(drop_MH, 0, h_MH)
