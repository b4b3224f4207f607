"""The paper's road, and the default: ReLU with an L1 penalty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from twellviz.sparsifiers.base import Sparsifier
from twellviz.sparsifiers.relu import plain_block

if TYPE_CHECKING:
    from twell.nn import FFN, GatedFFN

    from twellviz.models.config import LMConfig


@dataclass(frozen=True, kw_only=True)
class L1Penalty(Sparsifier):
    """``h = relu(x gate^T) * (x up^T)``, loss ``cross-entropy + l1_coefficient * L1`` (arXiv 2603.23198, equation 2).

    L1 is the sum of ``|h|`` over the hidden units, mean over tokens, mean over layers: that of the paper's code, H
    times its equation 2. Coefficient and warm-up are those of :class:`twellviz.training.TrainConfig`. With
    ``activation="silu"`` the same block has no exact zeros: the dense comparison. It fits the fused kernels.
    """

    name = "l1"
    title = "L1 + ReLU"
    paper = "arXiv 2603.23198"
    penalised = True

    def check_model(self, cfg: LMConfig) -> None:
        pass

    def make_block(self, cfg: LMConfig) -> GatedFFN | FFN:
        return plain_block(cfg)
