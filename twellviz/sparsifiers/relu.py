"""ReLU alone: sparsity that no one asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from twellviz.sparsifiers.base import Sparsifier, require_relu

if TYPE_CHECKING:
    from twell.nn import FFN, GatedFFN

    from twellviz.models.config import LMConfig


@dataclass(frozen=True, kw_only=True)
class ReLUAlone(Sparsifier):
    """``h = relu(x gate^T) * (x up^T)`` and no penalty (Nair and Hinton, ICML 2010, for the function).

    The block is :class:`twell.nn.GatedFFN`, or :class:`twell.nn.FFN` without a gate. How sparse it is, nobody chooses.
    It fits the fused kernels as it is.
    """

    name = "relu"
    title = "ReLU alone"
    paper = "Nair and Hinton, ICML 2010"

    def check_model(self, cfg: LMConfig) -> None:
        require_relu(self, cfg)

    def make_block(self, cfg: LMConfig) -> GatedFFN | FFN:
        return plain_block(cfg)


def plain_block(cfg: LMConfig) -> GatedFFN | FFN:
    """The block of :mod:`twell.nn` that the config describes."""
    from twell.nn import FFN, GatedFFN

    block = GatedFFN if cfg.gated else FFN
    return block(cfg.d_model, cfg.d_hidden, activation=cfg.activation, init_std=cfg.init_std)
