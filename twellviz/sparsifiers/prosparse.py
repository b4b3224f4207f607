"""ProSparse: a penalty that rises in smooth stages, then a shifted threshold.

Letters: M tokens, D model width, H hidden width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from twellviz.errors import ConfigError
from twellviz.models.config import require_float
from twellviz.sparsifiers.base import Sparsifier, require_relu
from twellviz.sparsifiers.block import SparseBlock, ThresholdBlock

if TYPE_CHECKING:
    from twellviz.models.config import LMConfig
    from twellviz.models.lm import LM
    from twellviz.training.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class ProSparse(Sparsifier):
    """Progressive L1 and FATReLU (arXiv 2402.13516: substitution, progressive regularisation, threshold shifting).

    The coefficient is constant in the first stage and in each later one rises from the last stage's peak to its own
    along half a sine wave, ``p + (q - p) * (sin(pi * (share of the stage) - pi / 2) + 1) / 2``, flat at both ends.
    After the last stage ReLU becomes FATReLU, ``z where z > t, else 0``: small gate values go too. (The paper keeps z
    = t, we do not, so that t = 0 is ReLU itself.)

    Our simplifications: the model starts as ReLU, so nothing is substituted; peaks and ends are shares of
    ``TrainConfig.l1_coefficient`` and of the steps; the steps after the last stage go on with the shifted threshold.

    On the kernels: gate product, threshold, pack; up and down are sparse. The pack in the epilogue of our fused kernels
    tests for 0, not for t, so the pack is a pass of its own.

    Attributes
    ----------
    peaks : tuple of float
        Coefficient of the stages, as shares of ``l1_coefficient``, never falling.
    ends : tuple of float
        Where the stages end, as shares of the steps, rising.
    shift : float
        t; 0 leaves ReLU.
    """

    peaks: tuple[float, ...] = (0.1, 0.4, 1.0)
    ends: tuple[float, ...] = (0.15, 0.55, 0.9)
    shift: float = 0.01

    name = "prosparse"
    title = "progressive L1 (ProSparse)"
    paper = "arXiv 2402.13516"
    penalised = True

    def __post_init__(self) -> None:
        for name in ("peaks", "ends"):
            given = getattr(self, name)
            if not isinstance(given, list | tuple) or not given:
                raise ConfigError(f"{name}={given!r}: one number a stage is needed")
            for value in given:
                require_float(name, value, above=0.0)
            object.__setattr__(self, name, tuple(float(value) for value in given))
        if len(self.peaks) != len(self.ends):
            raise ConfigError(f"peaks={self.peaks} and ends={self.ends}: one of each for every stage is needed")
        if list(self.peaks) != sorted(self.peaks) or self.peaks[-1] > 1:
            raise ConfigError(f"peaks={self.peaks}: shares up to 1 that never fall are needed")
        if any(b <= a for a, b in zip(self.ends, self.ends[1:], strict=False)) or self.ends[-1] > 1:
            raise ConfigError(f"ends={self.ends}: rising shares up to 1 are needed")
        require_float("shift", self.shift, least=0.0)

    def check_model(self, cfg: LMConfig) -> None:
        super().check_model(cfg)
        require_relu(self, cfg)

    def check_training(self, config: TrainConfig) -> None:
        if config.l1_full_step:
            raise ConfigError(
                f"l1_full_step={config.l1_full_step} with sparsifier={self.name!r}, whose stages are the warm-up: set "
                "l1_start_step and l1_full_step to 0"
            )

    def make_block(self, cfg: LMConfig) -> SparseBlock:
        return FATReLUBlock(cfg)

    def share_at(self, place: float) -> float:
        """Share of the coefficient at a place of the run, 0 at its start and 1 at its end."""
        start = self.ends[0]
        for before, peak, end in zip(self.peaks, self.peaks[1:], self.ends[1:], strict=False):
            if start <= place < end:
                wave = math.sin(-math.pi / 2 + math.pi * (place - start) / (end - start))
                return before + (peak - before) * (wave + 1) / 2
            start = end
        return self.peaks[0] if place < self.ends[0] else self.peaks[-1]

    def l1_at(self, config: TrainConfig, step: int) -> float:
        return config.l1_coefficient * self.share_at(step / config.steps)

    def shift_step(self, steps: int) -> int:
        """The step (from 0) after which the threshold shifts."""
        return max(0, math.ceil(self.ends[-1] * steps) - 1)

    def after_step(self, model: LM, config: TrainConfig, step: int) -> None:
        if step == self.shift_step(config.steps):
            for module in model.modules():
                if isinstance(module, FATReLUBlock):
                    module.set_threshold(self.shift)


class FATReLUBlock(ThresholdBlock):
    """The block of :class:`ProSparse`: ``h = fatrelu(x gate^T) * (x up^T)``."""

    packs = "gate"
    signed = False

    def is_active(self, gate_MH: Tensor) -> Tensor:
        return ~(gate_MH <= 0)

    def values(self, x_MD: Tensor) -> Tensor:
        return self._gate(x_MD)

    def _gate(self, x_MD: Tensor) -> Tensor:
        z_MH = F.linear(x_MD, self.gate_weight)
        # Not "z > t": NaN must stay NaN.
        return torch.where(z_MH <= self.threshold, 0, z_MH)

    def _hidden(self, x_MD: Tensor) -> tuple[Tensor, Tensor]:
        gate_MH = self._gate(x_MD)
        return gate_MH, gate_MH * F.linear(x_MD, self.up_weight)
