"""The training step as a torch operator: forward with statistics, backward at the pattern.

``torch.ops.twell.train_forward`` and ``train_backward`` are tied together for autograd, so that a block is one
node of the graph, which saves x and the pattern instead of three dense matrices.

Letters: M tokens, D model width, H hidden width, N active entries.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from twell._inputs import check_tokens, check_weight
from twell.cpu.pack import check_cpu
from twell.cpu.training import Pattern
from twell.cpu.training import train_backward as cpu_backward
from twell.cpu.training import train_forward as cpu_forward
from twell.errors import TwellError
from twell.ops import autocast_arrays


class SecondDerivativeError(TwellError):
    """The sparse training step was differentiated twice."""


def gated_ffn_train(x_MD: Tensor, gate_HD: Tensor, up_HD: Tensor, down_HD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gated block for training, on the CPU: ``(relu(x gate^T) * (x up^T)) down`` and its statistics.

    Parameters
    ----------
    x_MD : Tensor, float32, bfloat16 or float16 [M, D]
    gate_HD, up_HD, down_HD : Tensor, dtype of ``x_MD`` [H, D]

    Returns
    -------
    y_MD : Tensor, dtype of ``x_MD`` [M, D]
    l1 : Tensor, float32 scalar
        Mean over tokens of the sum of ``|h|``; differentiable.
    activity_H : Tensor, int64 [H]
        Tokens on which each neuron was active; their sum over M is L0.

    Raises
    ------
    ShapeError, DtypeError, DeviceError
    SecondDerivativeError
        When a gradient of the gradient is asked for; the dense block gives it.
    """
    return _train(x_MD, gate_HD, up_HD, down_HD)


def ffn_train(x_MD: Tensor, up_HD: Tensor, down_HD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Non-gated block for training: ``relu(x up^T) down`` and its statistics; see :func:`gated_ffn_train`."""
    return _train(x_MD, up_HD, None, down_HD)


def _train(x_MD: Tensor, gate_HD: Tensor, up_HD: Tensor | None, down_HD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if up_HD is None:
        x_MD, gate_HD, down_HD = autocast_arrays(x_MD, gate_HD, down_HD)
    else:
        x_MD, gate_HD, up_HD, down_HD = autocast_arrays(x_MD, gate_HD, up_HD, down_HD)
    check_tokens(x_MD)
    check_cpu(x_MD, "x_MD")
    check_weight(gate_HD, "up_HD" if up_HD is None else "gate_HD", width=x_MD.shape[1], like=x_MD)
    for weight_HD, name in ((up_HD, "up_HD"), (down_HD, "down_HD")):
        if weight_HD is not None:
            check_weight(weight_HD, name, width=x_MD.shape[1], n_hidden=gate_HD.shape[0], like=x_MD)
    y_MD, l1, activity_H, *_ = torch.ops.twell.train_forward(x_MD, gate_HD, up_HD, down_HD)
    return y_MD, l1, activity_H


@torch.library.custom_op("twell::train_forward", mutates_args=())
def _forward(
    x_MD: Tensor, gate_HD: Tensor, up_HD: Tensor | None, down_HD: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    y_MD, l1, activity_H, pattern = cpu_forward(x_MD, gate_HD, up_HD, down_HD)
    return y_MD, l1, activity_H, *pattern


@_forward.register_fake
def _(
    x_MD: Tensor, gate_HD: Tensor, up_HD: Tensor | None, down_HD: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    # How many neurons fire is known only once the values are.
    n_entries = torch.library.get_ctx().new_dynamic_size()
    return (
        torch.empty_like(x_MD, memory_format=torch.contiguous_format),
        x_MD.new_empty((), dtype=torch.float32),
        x_MD.new_empty(gate_HD.shape[0], dtype=torch.int64),
        x_MD.new_empty(x_MD.shape[0] + 1, dtype=torch.int64),
        x_MD.new_empty(n_entries, dtype=torch.int32),
        x_MD.new_empty(n_entries, dtype=torch.float32),
        x_MD.new_empty(n_entries if up_HD is not None else 0, dtype=torch.float32),
    )


@torch.library.custom_op("twell::train_backward", mutates_args=())
def _backward(
    dy_MD: Tensor,
    dl1: Tensor,
    x_MD: Tensor,
    gate_HD: Tensor,
    up_HD: Tensor | None,
    down_HD: Tensor,
    row_start: Tensor,
    column_N: Tensor,
    gate_N: Tensor,
    up_N: Tensor,
    weights: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    pattern = Pattern(row_start, column_N, gate_N, up_N)
    gradients = cpu_backward(dy_MD, float(dl1), x_MD, gate_HD, up_HD, down_HD, pattern, weights=weights)
    # An operator returns tensors: an empty one stands for a gradient that was not wanted.
    dx_MD, dgate_HD, dup_HD, ddown_HD = (x_MD.new_empty(0) if grad is None else grad for grad in gradients)
    return dx_MD, dgate_HD, dup_HD, ddown_HD


@_backward.register_fake
def _(
    dy_MD: Tensor,
    dl1: Tensor,
    x_MD: Tensor,
    gate_HD: Tensor,
    up_HD: Tensor | None,
    down_HD: Tensor,
    row_start: Tensor,
    column_N: Tensor,
    gate_N: Tensor,
    up_N: Tensor,
    weights: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    def gradient(weight_HD: Tensor | None) -> Tensor:
        return x_MD.new_empty(0 if weight_HD is None or not weights else weight_HD.shape)

    dx_MD = torch.empty_like(x_MD, memory_format=torch.contiguous_format)
    return dx_MD, gradient(gate_HD), gradient(up_HD), gradient(down_HD)


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs, *output[3:])
    ctx.mark_non_differentiable(*output[2:])


def _differentiate(ctx: Any, dy_MD: Tensor, dl1: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    weights = any(ctx.needs_input_grad[1:])
    arrays = ctx.saved_tensors
    gradients = torch.ops.twell.train_backward(dy_MD.contiguous(), dl1, *arrays, weights)
    wanted = (True, weights, weights and arrays[2] is not None, weights)
    return tuple(grad if keep else None for grad, keep in zip(gradients, wanted, strict=True))


_forward.register_autograd(_differentiate, setup_context=_save)


def _refuse(ctx: Any, *_: Any) -> None:
    raise SecondDerivativeError(
        'the sparse training step has no second derivative: use GatedFFN(..., backend="dense") or FFN(..., '
        'backend="dense") where one is needed'
    )


_backward.register_autograd(_refuse)
