"""A row of a Hybrid as a list in shared memory: piece by piece, from its ELL row or from its dense backup row.

Letters: M rows, H columns, W ELL width, R dense backup rows.
"""

from __future__ import annotations

from typing import Any

from numpy import float32, int32

from twell.cuda_target import Array, cuda, device
from twell.simt.bits import widen
from twell.simt.entries import LIST
from twell.simt.scan import sum_before, sum_of_all

COLUMNS = 4
"""Neighbouring columns of a backup row that a thread looks at: at most 256 threads, so at most LIST entries a piece."""


@device
def row_pieces(counts_M: Array, backup_row_M: Array, backup_RH: Array, row: int) -> Any:
    """Pieces that a row is listed in."""
    if backup_row_M[row] < 0:
        return (counts_M[row] + LIST - 1) // LIST
    step = cuda.blockDim.x * COLUMNS
    return (backup_RH.shape[1] + step - 1) // step


@device
def list_row(
    piece: int,
    values_MW: Array,
    columns_MW: Array,
    counts_M: Array,
    backup_row_M: Array,
    backup_RH: Array,
    row: int,
    columns: Array,
    values: Array,
    counts: Array,
    sums: Array,
) -> Any:
    """Fill the list with one piece of the row; returns how many entries. All threads of the block must call it.

    In an ELL row, entry i of the list is slot ``piece * LIST + i``.
    """
    n_listed = 0
    if backup_row_M[row] < 0:
        first = piece * LIST
        n_listed = min(LIST, counts_M[row] - first)
        cuda.syncthreads()  # a slower thread may still be reading the last list
        for i in range(cuda.threadIdx.x, n_listed, cuda.blockDim.x):
            columns[i] = columns_MW[row, first + i]
            values[i] = widen(values_MW[row, first + i])
    else:
        first = (piece * cuda.blockDim.x + cuda.threadIdx.x) * COLUMNS
        last = min(first + COLUMNS, backup_RH.shape[1])
        found = int32(0)
        for column in range(first, last):
            if widen(backup_RH[backup_row_M[row], column]) != float32(0):
                found += 1
        place = sum_before(found, counts, sums)
        for column in range(first, last):
            value = widen(backup_RH[backup_row_M[row], column])
            if value != float32(0):
                columns[place] = column
                values[place] = value
                place += 1
        n_listed = sum_of_all(sums)
    cuda.syncthreads()
    return n_listed
