"""The gradient of the L1 penalty: ``scale * sign(h)`` added to the gradient of h, where h has an entry.

The penalty is ``l1_coefficient * sum of |h|``, mean over tokens (paper, section 2.3), so its gradient at an entry is
the coefficient over the number of tokens, times the sign; where h is exactly zero there is none.

Letters: M rows, H columns, W ELL width, R dense backup rows, E elements of an array.
"""

from __future__ import annotations

import torch
from numpy import float32
from torch import Tensor

from twell.cuda_target import BLOCK_THREADS, Array, check_device, cuda, kernel
from twell.errors import ShapeError
from twell.formats import Hybrid
from twell.simt.bits import narrow, widen

MAX_BLOCKS = 1 << 16


@kernel()
def add_signs(h_E: Array, gradient_E: Array, scale_1: Array, out_E: Array) -> None:
    """``out = gradient + scale * sign(h)``, the sum in fp32; each thread strides through the array."""
    step = cuda.gridDim.x * cuda.blockDim.x
    for i in range(cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x, h_E.shape[0], step):
        h = widen(h_E[i])
        total = widen(gradient_E[i])
        if h > float32(0):
            total += scale_1[0]
        elif h < float32(0):
            total -= scale_1[0]
        out_E[i] = narrow(total, out_E)


def add_l1_gradient(h: Hybrid, gradient: Hybrid, scale: Tensor) -> Hybrid:
    """Gradient of h with that of the L1 penalty added. No synchronisation.

    Parameters
    ----------
    h, gradient : Hybrid
        Of one pattern and value dtype, shape [M, H].
    scale : Tensor, float32, one element
        Coefficient over the number of tokens, times the gradient of the loss; on the device, so that nothing waits.

    Raises
    ------
    ShapeError, DeviceError
    """
    if h.values.shape != gradient.values.shape or h.backup.shape != gradient.backup.shape:
        raise ShapeError(
            f"h is {h.shape} of width {h.width} with {h.n_backup} backup rows, gradient is {gradient.shape}, "
            f"{gradient.width}, {gradient.n_backup}: both must have one pattern"
        )
    check_device([h.values, scale], ["h", "scale"])
    scale_1 = scale.detach().float().reshape(1)
    out = []
    for old, new in ((h.values, gradient.values), (h.backup, gradient.backup)):
        sum_of_both = torch.empty_like(new)
        blocks = min(MAX_BLOCKS, -(-new.numel() // BLOCK_THREADS))
        add_signs[blocks, BLOCK_THREADS](old.view(-1), new.view(-1), scale_1, sum_of_both.view(-1))
        out.append(sum_of_both)
    return Hybrid(out[0], gradient.columns, gradient.counts, gradient.backup_row, out[1], gradient.shape)
