"""Cross-entropy of a large vocabulary, in float32, without the logits of all tokens at once.

Letters: M tokens, D model width, V vocabulary, C tokens of a chunk.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK_ELEMENTS = 1 << 26
"""Logits of a chunk, at most: 256 MiB in float32."""


def projected_cross_entropy(x_MD: Tensor, weight_VD: Tensor, targets_M: Tensor) -> Tensor:
    """Mean of ``cross_entropy(x weight^T, targets)``.

    The products run in the dtype of the autocast region, everything after them in float32, chunk by chunk; the
    gradients are made in the same pass, so neither logits nor their gradient outlive their chunk. One pass of
    products in training as with :func:`torch.nn.functional.cross_entropy`, with at most three float32 arrays [C, V].

    Parameters
    ----------
    x_MD : Tensor [M, D]
    weight_VD : Tensor [V, D]
    targets_M : Tensor, integer [M]

    Returns
    -------
    Tensor, float32 scalar
        In nats; nan for no tokens. It can be differentiated once.
    """
    device = x_MD.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x_MD.dtype
    apply: Any = _Projected.apply
    loss: Tensor = apply(x_MD, weight_VD, targets_M, dtype, torch.is_grad_enabled())
    return loss


class _Projected(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x_MD: Tensor, weight_VD: Tensor, targets_M: Tensor, dtype: torch.dtype, grad_enabled: bool
    ) -> Tensor:
        wants_x, wants_weight = (wanted and grad_enabled for wanted in ctx.needs_input_grad[:2])
        M, V = x_MD.shape[0], weight_VD.shape[0]
        chunk = max(1, CHUNK_ELEMENTS // V)
        low_VD = weight_VD.to(dtype)
        # float64 for float64 models: there the sums keep their precision.
        sums = torch.promote_types(dtype, torch.float32)
        total = torch.zeros((), dtype=sums, device=x_MD.device)
        dx_MD = torch.empty_like(x_MD) if wants_x else None
        dweight_VD = torch.zeros_like(weight_VD, dtype=sums) if wants_weight else None
        with torch.autocast(x_MD.device.type, enabled=False):
            for first in range(0, M, chunk):
                part = slice(first, first + chunk)
                x_CD, targets_C1 = x_MD[part].to(dtype), targets_M[part].long().unsqueeze(1)
                logits_CV = F.linear(x_CD, low_VD).to(sums)
                norm_C1 = logits_CV.logsumexp(1, keepdim=True)
                total += (norm_C1 - logits_CV.gather(1, targets_C1)).sum()
                if dx_MD is None and dweight_VD is None:
                    continue
                grad_CV = logits_CV.sub_(norm_C1).exp_()
                grad_CV.scatter_add_(1, targets_C1, torch.full_like(norm_C1, -1.0))
                grad_CV = grad_CV.div_(M).to(dtype)
                if dx_MD is not None:
                    dx_MD[part] = grad_CV @ low_VD
                if dweight_VD is not None:
                    dweight_VD += grad_CV.T @ x_CD
        ctx.save_for_backward(dx_MD, dweight_VD)
        ctx.weight_dtype = weight_VD.dtype
        return total / M

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
        dx_MD, dweight_VD = ctx.saved_tensors
        dx_MD = None if dx_MD is None else dx_MD * dloss.to(dx_MD.dtype)
        dweight_VD = None if dweight_VD is None else (dweight_VD * dloss).to(ctx.weight_dtype)
        return dx_MD, dweight_VD, None, None, None
