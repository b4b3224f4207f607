"""A gated feed-forward block whose pattern is the method's own: what :class:`twell.nn.GatedFFN` is for ReLU.

It has the weights of that block under the same names and draws them in the same order, so that all methods start from
one trunk. It runs densely; :func:`twellviz.sparsifiers.forward_sparse` takes it through the kernels.

Letters: M tokens, D model width, H hidden width.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from twell.errors import ShapeError
from twell.nn import FFNStats

if TYPE_CHECKING:
    from twellviz.models.config import LMConfig

FUNCTIONS = {"relu": F.relu, "silu": F.silu}


class SparseBlock(nn.Module, ABC):
    """``y = h down`` where a method decides which entries of h are zero.

    Attributes
    ----------
    gate_weight, up_weight, down_weight : Parameter [H, D]
        One row per neuron.
    packs : {"gate", "hidden"}
        What :func:`twellviz.sparsifiers.pack_pattern` packs. ``"gate"``: the gate values, so that the kernels compute
        up at the pattern alone. ``"hidden"``: the finished h, where the pattern is known only after the up product, and
        only the down product is left to save.
    signed : bool
        Packed values may be negative.
    packable : bool
        False for a block with :meth:`forward_grouped` in place of a pattern to pack.
    """

    packs: ClassVar[str]
    signed: ClassVar[bool]
    packable: ClassVar[bool] = True

    def __init__(self, cfg: LMConfig) -> None:
        super().__init__()
        self.d_model, self.d_hidden, self.activation = cfg.d_model, cfg.d_hidden, cfg.activation
        for name in ("gate_weight", "up_weight", "down_weight"):
            weight_HD = torch.empty(cfg.d_hidden, cfg.d_model)
            nn.init.normal_(weight_HD, std=cfg.init_std)
            self.register_parameter(name, nn.Parameter(weight_HD))

    gate_weight: nn.Parameter
    up_weight: nn.Parameter
    down_weight: nn.Parameter

    def extra_repr(self) -> str:
        return f"{self.d_model}, {self.d_hidden}, activation={self.activation!r}"

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block: [..., D] to [..., D].

        Raises
        ------
        ShapeError
        """
        return (self._hidden(self.flat(x))[1] @ self.down_weight).view(x.shape)

    def forward_with_stats(self, x: Tensor) -> tuple[Tensor, FFNStats]:
        """Apply the block and count; see :meth:`twell.nn.GatedFFN.forward_with_stats`."""
        x_MD = self.flat(x)
        gate_MH, h_MH = self._hidden(x_MD)
        n_tokens = max(1, x_MD.shape[0])
        activity_H = self.is_active(gate_MH.detach()).sum(0)
        l1 = h_MH.abs().sum(dtype=torch.float32) / n_tokens
        stats = FFNStats(l0=activity_H.sum().float() / n_tokens, l1=l1, activity=activity_H)
        return (h_MH @ self.down_weight).view(x.shape), stats

    def hidden(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Gate values and hidden activations [M, H], both zero where the method makes a neuron inactive."""
        return self._hidden(self.flat(x))

    def values(self, x_MD: Tensor) -> Tensor:
        """What is packed [M, H]: gate values or h, by ``packs``."""
        return self._hidden(x_MD)[1]

    def forward_grouped(self, x_MD: Tensor) -> Tensor:
        """The block [M, D] without what its method leaves out, where that is not a pattern to pack."""
        raise NotImplementedError(f"{type(self).__name__} goes through pack_pattern")

    def is_active(self, gate_MH: Tensor) -> Tensor:
        """Which neurons count as active, from the gate values of :meth:`hidden`: bool [M, H]."""
        return gate_MH != 0

    def prepare(self) -> None:
        """Give what the block holds beside the trunk's weights its first values, from those weights."""

    def flat(self, x: Tensor) -> Tensor:
        """The tokens as [M, D]."""
        if x.ndim < 1 or x.shape[-1] != self.d_model:
            raise ShapeError(f"x has shape {tuple(x.shape)}: the last axis must be d_model = {self.d_model}")
        return x.reshape(-1, self.d_model)

    def activate(self, z_MH: Tensor) -> Tensor:
        """The trunk's activation function."""
        return FUNCTIONS[self.activation](z_MH)

    @abstractmethod
    def _hidden(self, x_MD: Tensor) -> tuple[Tensor, Tensor]:
        """Gate values and hidden activations [M, H]."""


class ThresholdBlock(SparseBlock):
    """A block with one threshold, a buffer that checkpoints keep. 0 at first.

    Attributes
    ----------
    threshold : Tensor, float32 scalar
    """

    threshold: Tensor

    def __init__(self, cfg: LMConfig) -> None:
        super().__init__(cfg)
        self.register_buffer("threshold", torch.zeros(()))

    def set_threshold(self, value: float) -> None:
        """Set the threshold, at least 0."""
        self.threshold.fill_(value)

    def compared(self, x_MD: Tensor) -> Tensor:
        """What is held against the threshold, magnitudes [M, H]."""
        raise NotImplementedError(f"{type(self).__name__} is not calibrated")
