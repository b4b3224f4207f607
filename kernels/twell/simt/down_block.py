"""Down projection of a non-gated block: one block a token, ``y = sum of h_n * down_n`` over its active neurons.

The block lists the token's active neurons in shared memory; every thread then walks through the list and adds each
``h_n * down_n`` to its own columns of y. Neighbouring threads read neighbouring weights.

Letters: M tokens, D model width, H hidden width, T tile width (256), N tiles of a row, S words of a tile,
K spilled tiles.
"""

from __future__ import annotations

import torch
from numpy import float32, int32, uint32
from torch import Tensor

from twell._inputs import check_packed, check_weight
from twell.cuda_target import BLOCK_THREADS, Array, check_device, cuda, device, kernel
from twell.formats import TwELL
from twell.simt.bits import narrow, widen
from twell.simt.entries import LIST, list_piece, pieces_of
from twell.simt.scan import MAX_GROUPS, MAX_THREADS, NOT_NEGATIVE
from twell.simt.spill import tiles_of

COLUMNS = 8
"""Columns of y in the registers of a thread."""

THREADS = BLOCK_THREADS
"""Threads of a block, the distance between a thread's columns. A constant, so that they need one address, not 8."""


@device
def add_listed(
    weight_HD: Array, first_column: int, n_listed: int, columns: Array, values: Array, sums_y: Array
) -> None:
    """Add value times weight row, for each listed entry, to this thread's columns of y."""
    for i in range(n_listed):
        for j in range(COLUMNS):
            column = first_column + j * THREADS + (cuda.threadIdx.x & NOT_NEGATIVE)
            if column < weight_HD.shape[1]:
                sums_y[j] += values[i] * widen(weight_HD[columns[i], column])


@device
def write_sums(y_MD: Array, row: int, first_column: int, sums_y: Array) -> None:
    """Round this thread's columns of y and store them."""
    for j in range(COLUMNS):
        column = first_column + j * THREADS + (cuda.threadIdx.x & NOT_NEGATIVE)
        if column < y_MD.shape[1]:
            y_MD[row, column] = narrow(sums_y[j], y_MD)


@kernel(launch_bounds=(MAX_THREADS, 4))
def down(
    x_MD: Array,
    words_MNS: Array,
    spill_start_M: Array,
    spill_values_KT: Array,
    up_HD: Array,
    down_HD: Array,
    y_MD: Array,
) -> None:
    """One token (``blockIdx.x``), 8 columns of y a thread; ``blockIdx.y`` counts such slices of a wider y.

    ``x_MD`` and ``up_HD``, of which the packed values are the product, are read where the backup is too short.
    """
    columns = cuda.shared.array(LIST, uint32)
    values = cuda.shared.array(LIST, float32)
    counts = cuda.shared.array(MAX_THREADS, int32)
    sums = cuda.shared.array(MAX_GROUPS, int32)
    sums_y = cuda.local.array(COLUMNS, float32)
    row = cuda.blockIdx.x & NOT_NEGATIVE
    first_column = (cuda.blockIdx.y & NOT_NEGATIVE) * COLUMNS * THREADS
    for j in range(COLUMNS):
        sums_y[j] = float32(0)

    n_spilled = spill_start_M[row + 1] - spill_start_M[row]
    for piece in range(pieces_of(words_MNS) + n_spilled):
        n_listed = list_piece(
            piece, words_MNS, spill_start_M, spill_values_KT, x_MD, up_HD, row, columns, values, counts, sums
        )
        add_listed(down_HD, first_column, n_listed, columns, values, sums_y)
    write_sums(y_MD, row, first_column, sums_y)


def token_down(packed: TwELL, down_HD: Tensor) -> Tensor:
    """Down projection of a non-gated block over the packed active neurons.

    Parameters
    ----------
    packed : TwELL
        ``relu(x up^T)``.
    down_HD : Tensor, value dtype of ``packed`` [H, D]
        On the GPU (on the CPU in the simulator); copied if not contiguous.

    Returns
    -------
    Tensor, dtype of ``down_HD`` [M, D]
        Sums in fp32.

    Raises
    ------
    ShapeError, DtypeError, DeviceError
    """
    check_weight(down_HD, "down_HD", n_hidden=packed.shape[1], like=down_HD)
    check_packed(packed, n_tokens=packed.shape[0], like=down_HD)
    check_device([down_HD], ["down_HD"])
    down_HD = down_HD.detach().contiguous()
    # The backup is complete, so neither x nor the up weights are looked at: any arrays stand in for them.
    return launch_down(down_HD, tiles_of(packed), packed.spill_start, packed.spill_values, down_HD, down_HD)


def launch_down(
    x_MD: Tensor,
    words_MNS: Tensor,
    spill_start_M: Tensor,
    spill_values_KT: Tensor,
    up_HD: Tensor,
    down_HD: Tensor,
) -> Tensor:
    """Start :func:`down`, with no synchronisation."""
    n_tokens, width = words_MNS.shape[0], down_HD.shape[1]
    y_MD = torch.empty(n_tokens, width, dtype=down_HD.dtype, device=down_HD.device)
    slices = -(-width // (COLUMNS * THREADS))
    down[(n_tokens, slices), THREADS](x_MD, words_MNS, spill_start_M, spill_values_KT, up_HD, down_HD, y_MD)
    return y_MD
