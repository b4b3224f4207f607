"""Dead-gate re-initialisation (paper section on dead neurons, Table 5)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from twellviz.models.lm import LM
from twellviz.training.shards import local, own_rows


@torch.no_grad()
def reinitialise_dead_gates(model: LM, activity_LH: Sequence[Tensor], share: float) -> None:
    """Move the gate rows of silent neurons towards fresh noise, in place.

    ``row = (1 - share) row + share N(0, init_std^2)`` for neurons with no activity; the noise comes from the
    global random state of the weights' device, which checkpoints keep. In a block without a gate the up rows
    decide what fires, so they are moved. Processes that share the weights draw the same noise, and each takes its rows.

    Parameters
    ----------
    model : LM
    activity_LH : sequence of Tensor, int64 [H], one per layer
        Tokens of the step on which each neuron was active.
    share : float
        Paper: 0.1.
    """
    for layer, activity_H in zip(model.layers, activity_LH, strict=True):
        gate_HD = deciding_weight(layer)
        noise_HD = torch.randn(gate_HD.shape, device=gate_HD.device, dtype=gate_HD.dtype) * model.cfg.init_std
        dead_H1 = (activity_H == 0).unsqueeze(1)
        noise_HD, dead_H1 = (local(own_rows(whole, gate_HD)) for whole in (noise_HD, dead_H1))
        own_HD = local(gate_HD)
        # torch.where and not an index: no wait for the GPU to count the dead.
        own_HD.copy_(torch.where(dead_H1, (1 - share) * own_HD + share * noise_HD, own_HD))


def deciding_weight(layer: nn.Module) -> nn.Parameter:
    """The weight whose product with x decides whether a neuron fires: gate, or up where there is no gate."""
    names = dict(layer.named_parameters())
    return names.get("ffn.gate_weight", names["ffn.up_weight"])
