"""A small mixture of experts: the structured contrast, in which neurons are left out by whole groups.

Letters: M tokens, D model width, H hidden width, E experts, F neurons of an expert (H / E), K experts of a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from twell.nn import FFNStats

from twellviz.errors import ConfigError
from twellviz.models.config import require_float, require_int
from twellviz.sparsifiers.base import Sparsifier
from twellviz.sparsifiers.block import SparseBlock

if TYPE_CHECKING:
    from twellviz.models.config import LMConfig


@dataclass(frozen=True, kw_only=True)
class MixtureOfExperts(Sparsifier):
    """``y = sum over the chosen experts of weight_e * expert_e(x)`` (Shazeer et al., arXiv 1701.06538, equation 1).

    The H neurons are cut into E experts of H / E; a router picks k of them for each token, with weights from a
    softmax over the k chosen logits (as in Mixtral, arXiv 2401.04088). So that the router uses all of them, the loss
    gains ``balance * E * sum over e of f_e P_e`` (Switch Transformers, arXiv 2101.03961, equations 4 to 6), mean over
    layers: f_e is the share of assignments that expert e got, P_e its mean probability. Even use gives ``balance``.

    Our simplifications: as many weights as the dense block (and a router), where published models add experts; no limit
    on the tokens of an expert, no noise; f_e counts all k choices. The term is a product of means over the tokens
    of one forward pass, so another split of a step into passes or processes changes it a little. The trainer's logged
    ``loss`` leaves it out.

    With ReLU in the trunk a chosen expert's neurons may still be inactive, and L0 counts active neurons; computed are
    always k H / E. On the kernels: whole experts are dense products of contiguous rows, so there is nothing to pack.

    Attributes
    ----------
    experts, chosen : int
        E, which divides H, and k.
    balance_factor : float
        Factor of the load-balancing term (Switch: 0.01).
    """

    experts: int = 8
    chosen: int = 2
    balance_factor: float = 0.01

    name = "moe"
    title = "mixture of experts"
    paper = "arXiv 1701.06538, 2101.03961"

    def __post_init__(self) -> None:
        require_int("experts", self.experts, least=1)
        require_int("chosen", self.chosen, least=1)
        require_float("balance_factor", self.balance_factor, least=0.0)
        if self.chosen > self.experts:
            raise ConfigError(f"chosen={self.chosen}: at most experts={self.experts} can be chosen")

    def check_model(self, cfg: LMConfig) -> None:
        super().check_model(cfg)
        if cfg.d_hidden % self.experts:
            raise ConfigError(f"experts={self.experts}: a divisor of d_hidden={cfg.d_hidden} is needed")

    def make_block(self, cfg: LMConfig) -> SparseBlock:
        return ExpertsBlock(cfg, experts=self.experts, chosen=self.chosen)

    def extra_parameters(self, cfg: LMConfig) -> int:
        return self.experts * cfg.d_model

    def balance(self, stats: Sequence[FFNStats]) -> Tensor | None:
        terms = [layer.balance for layer in stats if layer.balance is not None]
        return self.balance_factor * torch.stack(terms).mean()


class ExpertsBlock(SparseBlock):
    """The block of :class:`MixtureOfExperts`; expert e owns neurons e F to (e + 1) F - 1.

    Attributes
    ----------
    router_weight : Parameter [E, D]
        Its first rows are the mean gate row of each expert, scaled to the same spread: no random number is drawn, so
        the trunk's weights are those of the other methods.
    """

    packable = False

    def __init__(self, cfg: LMConfig, *, experts: int, chosen: int) -> None:
        super().__init__(cfg)
        self.experts, self.chosen = experts, chosen
        self.width = cfg.d_hidden // experts
        self.router_weight = nn.Parameter(torch.empty(experts, cfg.d_model))
        self.prepare()

    @torch.no_grad()
    def prepare(self) -> None:
        self.router_weight.copy_(self.gate_weight.view(self.experts, self.width, -1).mean(1) * self.width**0.5)

    def route(self, x_MD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Probabilities, chosen experts and their weights.

        Returns
        -------
        probability_ME : Tensor, float32 [M, E]
        expert_MK : Tensor, int64 [M, K]
        weight_MK : Tensor, float32 [M, K]
            They add up to 1.
        """
        logits_ME = F.linear(x_MD, self.router_weight).float()
        top_MK, expert_MK = logits_ME.topk(self.chosen, dim=-1)
        return logits_ME.softmax(-1), expert_MK, top_MK.softmax(-1)

    def forward_with_stats(self, x: Tensor) -> tuple[Tensor, FFNStats]:
        y, stats = super().forward_with_stats(x)
        probability_ME, expert_MK, _ = self.route(self.flat(x))
        return y, stats._replace(balance=load_balance(probability_ME, expert_MK))

    def _hidden(self, x_MD: Tensor) -> tuple[Tensor, Tensor]:
        _, expert_MK, weight_MK = self.route(x_MD)
        weight_ME = torch.zeros(len(x_MD), self.experts, dtype=weight_MK.dtype, device=x_MD.device)
        weight_MH = weight_ME.scatter(1, expert_MK, weight_MK).repeat_interleave(self.width, dim=1)
        z_MH = F.linear(x_MD, self.gate_weight)
        # Densely, and experts that were not chosen multiplied away: simple, and no wait for a GPU to count tokens.
        gate_MH = torch.where(weight_MH == 0, 0, self.activate(z_MH) * weight_MH.to(z_MH.dtype))
        return gate_MH, gate_MH * F.linear(x_MD, self.up_weight)

    @torch.no_grad()
    def forward_grouped(self, x_MD: Tensor) -> Tensor:
        """The block expert by expert, each for the tokens that chose it: the host waits to learn how many they are."""
        _, expert_MK, weight_MK = self.route(x_MD)
        y_MD = torch.zeros(x_MD.shape, dtype=torch.float32, device=x_MD.device)
        count_E = torch.bincount(expert_MK.flatten(), minlength=self.experts).tolist()
        for expert in [expert for expert, count in enumerate(count_E) if count]:
            rows = slice(expert * self.width, (expert + 1) * self.width)
            token_P, place_P = (expert_MK == expert).nonzero(as_tuple=True)
            x_PD = x_MD[token_P]
            h_PF = self.activate(F.linear(x_PD, self.gate_weight[rows])) * F.linear(x_PD, self.up_weight[rows])
            y_PD = (h_PF @ self.down_weight[rows]).float() * weight_MK[token_P, place_P, None]
            y_MD.index_add_(0, token_P, y_PD)
        return y_MD.to(x_MD.dtype)


def load_balance(probability_ME: Tensor, expert_MK: Tensor) -> Tensor:
    """``E * sum over e of f_e P_e`` (arXiv 2101.03961, equation 4 without its factor): 1 where use is even, E at worst.

    Parameters
    ----------
    probability_ME : Tensor, float32 [M, E]
    expert_MK : Tensor, int64 [M, K]

    Returns
    -------
    Tensor, float32 scalar
        Differentiable in the probabilities; the shares f_e are counts.
    """
    n_experts = probability_ME.shape[1]
    share_E = F.one_hot(expert_MK.flatten(), n_experts).float().mean(0)
    return n_experts * (share_E * probability_ME.mean(0)).sum()
