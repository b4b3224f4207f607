"""Hybrid times dense: ``y[m] = sum over the entries (n, v) of row m of v * weight[n]``.

The down product of the training step, and its weight gradients once the pattern is transposed (paper, section 3.3).
One block a row; it lists the row's entries and every thread adds to its own columns of y.

Letters: M rows, D columns of the dense matrix, H columns of the Hybrid, W ELL width, R dense backup rows.
"""

from __future__ import annotations

import torch
from numpy import float32, int32, uint32
from torch import Tensor

from twell._inputs import check_weight
from twell.cuda_target import Array, check_device, cuda, kernel
from twell.formats import Hybrid
from twell.simt.down_block import COLUMNS, THREADS, add_listed, write_sums
from twell.simt.entries import LIST
from twell.simt.hybrid_list import list_row, row_pieces
from twell.simt.scan import MAX_GROUPS, MAX_THREADS, NOT_NEGATIVE


@kernel(launch_bounds=(MAX_THREADS, 4))
def multiply_hybrid(
    values_MW: Array,
    columns_MW: Array,
    counts_M: Array,
    backup_row_M: Array,
    backup_RH: Array,
    weight_HD: Array,
    y_MD: Array,
) -> None:
    """One row (``blockIdx.x``), 8 columns of y a thread; ``blockIdx.y`` counts such slices of a wider y."""
    columns = cuda.shared.array(LIST, uint32)
    values = cuda.shared.array(LIST, float32)
    counts = cuda.shared.array(MAX_THREADS, int32)
    sums = cuda.shared.array(MAX_GROUPS, int32)
    sums_y = cuda.local.array(COLUMNS, float32)
    row = cuda.blockIdx.x & NOT_NEGATIVE
    first_column = (cuda.blockIdx.y & NOT_NEGATIVE) * COLUMNS * THREADS
    for j in range(COLUMNS):
        sums_y[j] = float32(0)
    for piece in range(row_pieces(counts_M, backup_row_M, backup_RH, row)):
        n_listed = list_row(
            piece, values_MW, columns_MW, counts_M, backup_row_M, backup_RH, row, columns, values, counts, sums
        )
        add_listed(weight_HD, first_column, n_listed, columns, values, sums_y)
    write_sums(y_MD, row, first_column, sums_y)


def hybrid_product(h: Hybrid, weight_HD: Tensor) -> Tensor:
    """``h weight``, sums in fp32. No synchronisation.

    Parameters
    ----------
    h : Hybrid
        Shape [M, H], on the GPU (on the CPU in the simulator).
    weight_HD : Tensor, value dtype of ``h`` [H, D]
        Copied if not contiguous.

    Returns
    -------
    Tensor, value dtype of ``h`` [M, D]

    Raises
    ------
    ShapeError, DtypeError, DeviceError
    """
    check_weight(weight_HD, "weight_HD", n_hidden=h.shape[1], like=h.values)
    check_device([weight_HD], ["weight_HD"])
    weight_HD = weight_HD.detach().contiguous()
    width = weight_HD.shape[1]
    y_MD = torch.empty(h.shape[0], width, dtype=weight_HD.dtype, device=weight_HD.device)
    blocks = (h.shape[0], -(-width // (COLUMNS * THREADS)))
    multiply_hybrid[blocks, THREADS](h.values, h.columns, h.counts, h.backup_row, h.backup, weight_HD, y_MD)
    return y_MD
