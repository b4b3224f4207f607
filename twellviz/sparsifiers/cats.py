"""CATS: small gate values are dropped, without any training.

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
class CATS(Sparsifier):
    """``g * (x up^T)``, ``g = act(x gate^T)`` where ``|g| > t``, else 0 (CATS, arXiv 2404.08763).

    t is a layer's quantile of ``|g|`` on calibration text (:func:`twellviz.sparsifiers.calibrate`); until then it is
    0 and nothing is dropped. The paper also fine-tunes the thresholded model; nothing forbids that here, calibrated
    first.

    Our simplification: every layer has the same target.

    On the kernels: the gate product alone decides, so up and down are both computed at the pattern, as in the fused
    block. But values have both signs, and our pack in the epilogue tests for ReLU: the pack is a pass of its own.
    """

    name = "cats"
    title = "thresholds on the gate (CATS)"
    paper = "arXiv 2404.08763"
    calibrated = True

    def make_block(self, cfg: LMConfig) -> SparseBlock:
        return CATSBlock(cfg)


class CATSBlock(ThresholdBlock):
    """The block of :class:`CATS`."""

    packs = "gate"
    signed = True

    def compared(self, x_MD: Tensor) -> Tensor:
        return self.activate(F.linear(x_MD, self.gate_weight)).abs()

    def values(self, x_MD: Tensor) -> Tensor:
        gate_MH = self.activate(F.linear(x_MD, self.gate_weight))
        return torch.where(gate_MH.detach().abs() <= self.threshold, 0, gate_MH)

    def _hidden(self, x_MD: Tensor) -> tuple[Tensor, Tensor]:
        gate_MH = self.values(x_MD)
        return gate_MH, gate_MH * F.linear(x_MD, self.up_weight)
