"""Top-k: the k largest hidden activations of each token, whatever they are.

Letters: M tokens, D model width, H hidden width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from twellviz.errors import ConfigError
from twellviz.sparsifiers.base import Sparsifier, require_share
from twellviz.sparsifiers.block import SparseBlock

if TYPE_CHECKING:
    from twellviz.models.config import LMConfig


@dataclass(frozen=True, kw_only=True)
class TopK(Sparsifier):
    """Keep the k largest ``|h|`` of each token (Q-Sparse, arXiv 2407.10969: top-k sparsification, straight-through).

    Forward ``h * mask`` with ``mask = TopK(|h|)``; backward as if nothing had been cut, so that a neuron that was not
    chosen still learns (the paper's straight-through estimator). Exactly k neurons of a token are active, fewer only
    where fewer are non-zero: ReLU may leave less than k, SiLU never does.

    Our simplifications: the paper cuts the *input of every linear layer*, attention included; we cut h, the input of
    the down projection, alone. Its combination with quantised weights is left out.

    On the kernels: which neurons are kept is known only after the up product, so only the down product is sparse. With
    ReLU the number of active neurons has no tail: the slots of a tile can be planned.

    Attributes
    ----------
    share : float
        k over H; k is rounded, at least 1.
    squared : bool
        Squared ReLU in the gate, ``relu(x gate^T)^2 * (x up^T)``, the paper's choice for the feed-forward block; needs
        ``activation="relu"``.
    """

    share: float = 0.05
    squared: bool = False

    name = "topk"
    title = "top-k (Q-Sparse)"
    paper = "arXiv 2407.10969"

    def __post_init__(self) -> None:
        require_share("share", self.share)
        if not isinstance(self.squared, bool):
            raise ConfigError(f"squared={self.squared!r}: True or False is needed")

    def check_model(self, cfg: LMConfig) -> None:
        super().check_model(cfg)
        if self.squared and cfg.activation != "relu":
            raise ConfigError(f'squared=True with activation={cfg.activation!r}: set activation="relu"')

    def make_block(self, cfg: LMConfig) -> SparseBlock:
        return TopKBlock(cfg, k=self.k_of(cfg.d_hidden), squared=self.squared)

    def k_of(self, n_hidden: int) -> int:
        """Neurons of a token that stay."""
        return max(1, round(self.share * n_hidden))


class TopKBlock(SparseBlock):
    """The block of :class:`TopK`.

    Attributes
    ----------
    k : int
    squared : bool
    """

    packs = "hidden"
    signed = True

    def __init__(self, cfg: LMConfig, *, k: int, squared: bool) -> None:
        super().__init__(cfg)
        self.k, self.squared = k, squared

    def activate(self, z_MH: Tensor) -> Tensor:
        return F.relu(z_MH).square() if self.squared else super().activate(z_MH)

    def _hidden(self, x_MD: Tensor) -> tuple[Tensor, Tensor]:
        gate_MH = self.activate(F.linear(x_MD, self.gate_weight))
        h_MH = gate_MH * F.linear(x_MD, self.up_weight)
        mask_MH = top_mask(h_MH.detach().abs(), self.k)
        # An up value of zero makes a kept neuron inactive: the gate says so too.
        active_MH = mask_MH & (h_MH.detach() != 0)
        return torch.where(active_MH, gate_MH, 0), keep(h_MH, mask_MH)


def top_mask(size_MH: Tensor, k: int) -> Tensor:
    """The k largest of each row: bool [M, H]. Exactly k, ties included."""
    places_MK = size_MH.topk(k, dim=-1, sorted=False).indices
    return torch.zeros_like(size_MH, dtype=torch.bool).scatter_(-1, places_MK, True)


def keep(h_MH: Tensor, mask_MH: Tensor) -> Tensor:
    """``h`` where the mask holds, else 0; the gradient passes straight through, everywhere."""
    kept: Any = _StraightThrough.apply
    found: Tensor = kept(h_MH, mask_MH)
    return found


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h_MH: Tensor, mask_MH: Tensor) -> Tensor:
        return torch.where(mask_MH, h_MH, 0)

    @staticmethod
    def backward(ctx: Any, dkept_MH: Tensor) -> tuple[Tensor, None]:
        return dkept_MH, None
