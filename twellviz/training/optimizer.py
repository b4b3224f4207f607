"""The optimiser of a run."""

from __future__ import annotations

import torch

from twellviz.models.lm import LM
from twellviz.training.config import TrainConfig


def adamw(model: LM, config: TrainConfig) -> torch.optim.Optimizer:
    """AdamW with weight decay on matrices and none on norm gains (paper, Table 2)."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    gains = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": gains, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)
