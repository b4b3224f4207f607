"""The ways through a feed-forward block that the benchmark compares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from twell import cpu, ops
from twell.cpu.auto import plan_for
from twell.train_ops import ffn_train, gated_ffn_train

from twellviz.bench.synthetic import Layer

TILE_BLOCK = 128
"""Tokens of a union tile in the ``tile`` path."""


@dataclass(frozen=True)
class Path:
    """One way through the block.

    Attributes
    ----------
    name : str
    run : callable
        Does the whole step and returns what is checked: the output, or output, L1 and gradients.
    held : callable or None
        In training: bytes that autograd keeps after forward.
    note : str
    dense_of : callable or None
        Turns what ``run`` returned into what is checked, where that costs time that is no part of the step.
    """

    name: str
    run: Callable[[], Any]
    held: Callable[[], int] | None = None
    note: str = ""
    dense_of: Callable[[Any], Sequence[Tensor]] | None = None

    def result(self) -> Sequence[Tensor]:
        """Run once and return what is checked."""
        found = self.run()
        checked: Sequence[Tensor] = found if self.dense_of is None else self.dense_of(found)
        return checked


def forward_paths(layer: Layer, *, gated: bool) -> list[Path]:
    """Inference from the tokens to the output, dense first."""
    x_MD, gate_HD, up_HD, down_HD = layer

    def dense() -> Sequence[Tensor]:
        gate_MH = F.relu(F.linear(x_MD, gate_HD))
        return [(gate_MH * F.linear(x_MD, up_HD) if gated else gate_MH) @ down_HD]

    def token() -> Sequence[Tensor]:
        fresh = cpu.gate_pack(x_MD, gate_HD)
        return [cpu.token_ffn(x_MD, fresh, up_HD, down_HD) if gated else cpu.token_down(fresh, down_HD)]

    def tile() -> Sequence[Tensor]:
        union = cpu.to_union(cpu.gate_pack(x_MD, gate_HD), block=TILE_BLOCK)
        return [cpu.tile_ffn(x_MD, union, up_HD, down_HD) if gated else cpu.tile_down(union, down_HD)]

    def auto() -> Sequence[Tensor]:
        with torch.no_grad():
            if gated:
                return [ops.gated_ffn(x_MD, gate_HD, up_HD, down_HD)[0]]
            return [ops.ffn(x_MD, gate_HD, down_HD)[0]]

    plan = plan_for(cpu.gate_pack(x_MD, gate_HD), x_MD.shape[1], gated=gated)
    return [
        Path("dense", dense),
        Path("token", token),
        Path("tile", tile, note=f"B = {TILE_BLOCK}"),
        Path("auto", auto, note=f"goes {plan.way}"),
    ]


def training_paths(layer: Layer, *, gated: bool) -> list[Path]:
    """Forward with L1 and backward to x and all weights, dense first."""
    arrays = [array.clone().requires_grad_() for array in layer]
    x_MD, gate_HD, up_HD, down_HD = arrays
    leaves = arrays if gated else [x_MD, gate_HD, down_HD]

    def dense() -> tuple[Tensor, Tensor]:
        gate_MH = F.relu(F.linear(x_MD, gate_HD))
        h_MH = gate_MH * F.linear(x_MD, up_HD) if gated else gate_MH
        return h_MH @ down_HD, h_MH.abs().sum(dtype=torch.float32) / x_MD.shape[0]

    def sparse() -> tuple[Tensor, Tensor]:
        return (gated_ffn_train(x_MD, gate_HD, up_HD, down_HD) if gated else ffn_train(x_MD, gate_HD, down_HD))[:2]

    def path(name: str, forward: Callable[[], tuple[Tensor, Tensor]]) -> Path:
        def step() -> Sequence[Tensor]:
            y_MD, l1 = forward()
            ones = (torch.ones_like(y_MD), torch.ones_like(l1))
            return [y_MD, l1, *torch.autograd.grad([y_MD, l1], leaves, ones)]

        return Path(name, step, lambda: held_bytes(forward, leaves[1:]))

    return [path("dense", dense), path("sparse", sparse)]


def held_bytes(forward: Callable[[], tuple[Tensor, Tensor]], weights: Sequence[Tensor]) -> int:
    """Bytes of what autograd keeps after ``forward``, the weights left out, each storage once."""
    known = {weight.untyped_storage().data_ptr() for weight in weights}
    storages: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        graph = forward()
    assert graph[0].requires_grad  # the graph must live until the storages are counted
    return sum(storages.values())
