"""Dense times dense, at a pattern: ``out[m, n] = x[m] . weight[n]`` only where the pattern has an entry.

The up product of the training step (paper, section 3.3), and, in its backward, the gradient of h. One block a row;
32 threads share a dot product, as in :mod:`twell.simt.token_block`.

Letters: M rows, D model width, H columns, W ELL width, R dense backup rows.
"""

from __future__ import annotations

import torch
from numpy import float32, int32, uint32
from torch import Tensor

from twell._inputs import check_tokens, check_weight
from twell.cuda_target import BLOCK_THREADS, Array, check_device, cuda, kernel
from twell.errors import ShapeError
from twell.formats import Hybrid
from twell.simt.bits import narrow, widen
from twell.simt.entries import LIST
from twell.simt.hybrid_list import list_row, row_pieces
from twell.simt.scan import MAX_GROUPS, MAX_THREADS, NOT_NEGATIVE

ENTRIES = 32
"""Entries taken at a time."""


@kernel(launch_bounds=(MAX_THREADS, 3))
def multiply_at_pattern(
    x_MD: Array,
    weight_HD: Array,
    values_MW: Array,
    columns_MW: Array,
    counts_M: Array,
    backup_row_M: Array,
    backup_RH: Array,
    out_MW: Array,
    out_RH: Array,
) -> None:
    """One row (``blockIdx.x``). ``out_MW`` and ``out_RH`` start as zeros."""
    columns = cuda.shared.array(LIST, uint32)
    values = cuda.shared.array(LIST, float32)
    counts = cuda.shared.array(MAX_THREADS, int32)
    sums = cuda.shared.array(MAX_GROUPS, int32)
    parts = cuda.shared.array((ENTRIES, 33), float32)
    row = cuda.blockIdx.x & NOT_NEGATIVE
    thread = cuda.threadIdx.x & NOT_NEGATIVE
    lane = thread & 31
    warp = thread >> 5
    backup_row = backup_row_M[row]
    for piece in range(row_pieces(counts_M, backup_row_M, backup_RH, row)):
        n_listed = list_row(
            piece, values_MW, columns_MW, counts_M, backup_row_M, backup_RH, row, columns, values, counts, sums
        )
        for first in range(0, n_listed, ENTRIES):
            n = min(ENTRIES, n_listed - first)
            for i in range(warp, n, cuda.blockDim.x >> 5):
                column = columns[first + i]
                part = float32(0)
                for d in range(lane, x_MD.shape[1], 32):
                    part += widen(x_MD[row, d]) * widen(weight_HD[column, d])
                parts[i, lane] = part
            cuda.syncthreads()
            if thread < n:
                total = float32(0)
                for i in range(32):
                    total += parts[thread, i]
                if backup_row < 0:
                    out_MW[row, piece * LIST + first + thread] = narrow(total, out_MW)
                else:
                    out_RH[backup_row, columns[first + thread]] = narrow(total, out_RH)
            cuda.syncthreads()


def sampled_product(x_MD: Tensor, weight_HD: Tensor, pattern: Hybrid) -> Hybrid:
    """``x weight^T`` where ``pattern`` has an entry. No synchronisation.

    Parameters
    ----------
    x_MD : Tensor, float32, bfloat16 or float16 [M, D]
        On the GPU (on the CPU in the simulator); copied if not contiguous.
    weight_HD : Tensor, dtype of ``x_MD`` [H, D]
    pattern : Hybrid
        Shape [M, H]; its values are not used, except that a zero in a backup row is no entry.

    Returns
    -------
    Hybrid
        Rounded to the dtype of ``x_MD``; columns, counts and backup rows are those of ``pattern``.

    Raises
    ------
    ShapeError, DtypeError, DeviceError
    """
    check_tokens(x_MD)
    check_weight(weight_HD, "weight_HD", width=x_MD.shape[1], n_hidden=pattern.shape[1], like=x_MD)
    if pattern.shape[0] != x_MD.shape[0]:
        raise ShapeError(f"pattern has {pattern.shape[0]} rows, x_MD has {x_MD.shape[0]}: use that of the same tokens")
    check_device([x_MD, pattern.values], ["x_MD", "pattern"])
    x_MD, weight_HD = x_MD.detach().contiguous(), weight_HD.detach().contiguous()
    out_MW = torch.zeros(pattern.values.shape, dtype=x_MD.dtype, device=x_MD.device)
    out_RH = torch.zeros(pattern.backup.shape, dtype=x_MD.dtype, device=x_MD.device)
    multiply_at_pattern[x_MD.shape[0], BLOCK_THREADS](
        x_MD,
        weight_HD,
        pattern.values,
        pattern.columns,
        pattern.counts,
        pattern.backup_row,
        pattern.backup,
        out_MW,
        out_RH,
    )
    return Hybrid(out_MW, pattern.columns, pattern.counts, pattern.backup_row, out_RH, pattern.shape)
