"""Transpose of a Hybrid, tokens ascending in each neuron's row, the same bits each time.

The published kernels let every entry claim a slot by an atomic, so the order of a transposed row is that of arrival.
Here the place of an entry is computed: the masks (:mod:`twell.simt.masks`) say how many tokens of the earlier groups
fire the neuron, and how many of its own group before this one. The places depend on the pattern alone; they are
found once and serve every set of values on it: the three weight gradients share one :class:`Places`.

Letters: M tokens, H hidden width, G groups of 32 tokens, W ELL width, R dense backup rows; the transposed matrix has
H rows of V entries and Q dense backup rows of M columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from numpy import float32, uint32
from torch import Tensor

from twell.cuda_target import Array, check_device, cuda, device, kernel
from twell.errors import OptionError, ShapeError
from twell.formats import Hybrid
from twell.simt.bits import count_bits, widen
from twell.simt.masks import masks_of
from twell.simt.pack_hybrid import empty_hybrid, place_wide_rows

DEFAULT_WIDTH = 256
"""ELL width of transposed matrices in the paper's code."""

THREADS = 32


@kernel()
def sum_groups(masks_GH: Array, before_GH: Array, counts_H: Array) -> None:
    """For each neuron, one a thread: tokens of earlier groups that fire it, and of all."""
    neuron = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if neuron < masks_GH.shape[1]:
        running = 0
        for group in range(masks_GH.shape[0]):
            before_GH[group, neuron] = running
            running += count_bits(masks_GH[group, neuron])
        counts_H[neuron] = running


@device
def put_transposed(
    element: Any,
    row: int,
    neuron: int,
    masks_GH: Array,
    before_GH: Array,
    wide_row_H: Array,
    values_HV: Array,
    tokens_HV: Array,
    backup_QM: Array,
) -> None:
    """Store one entry at its place."""
    wide_row = wide_row_H[neuron]
    if wide_row < 0:
        group = row >> 5
        earlier = masks_GH[group, neuron] & uint32((1 << (row & 31)) - 1)
        place = before_GH[group, neuron] + count_bits(uint32(earlier))
        values_HV[neuron, place] = element
        tokens_HV[neuron, place] = row
    else:
        backup_QM[wide_row, row] = element


@kernel()
def move_entries(
    columns_MW: Array,
    counts_M: Array,
    backup_row_M: Array,
    backup_RH: Array,
    new_MW: Array,
    new_RH: Array,
    masks_GH: Array,
    before_GH: Array,
    wide_row_H: Array,
    values_HV: Array,
    tokens_HV: Array,
    backup_QM: Array,
) -> None:
    """Move the entries of a row (``blockIdx.x``): places from the pattern, values from ``new_MW`` and ``new_RH``."""
    row = cuda.blockIdx.x
    backup_row = backup_row_M[row]
    if backup_row < 0:
        for slot in range(cuda.threadIdx.x, counts_M[row], cuda.blockDim.x):
            neuron = columns_MW[row, slot]
            element = new_MW[row, slot]
            put_transposed(element, row, neuron, masks_GH, before_GH, wide_row_H, values_HV, tokens_HV, backup_QM)
    else:
        for neuron in range(cuda.threadIdx.x, backup_RH.shape[1], cuda.blockDim.x):
            if widen(backup_RH[backup_row, neuron]) != float32(0):
                element = new_RH[backup_row, neuron]
                put_transposed(element, row, neuron, masks_GH, before_GH, wide_row_H, values_HV, tokens_HV, backup_QM)


@dataclass(frozen=True)
class Places:
    """Where the entries of a pattern stand in its transpose.

    Attributes
    ----------
    pattern : Hybrid
        Shape [M, H].
    masks : Tensor, uint32 [G, H]
    before : Tensor, int32 [G, H]
        Tokens of earlier groups that fire the neuron.
    counts : Tensor, int32 [H]
        Tokens that fire each neuron.
    wide_row : Tensor, int32 [H]
        Dense backup row of a neuron that more than ``width`` tokens fire, else -1.
    n_backup : int
    width : int
    """

    pattern: Hybrid
    masks: Tensor
    before: Tensor
    counts: Tensor
    wide_row: Tensor
    n_backup: int
    width: int


def transposed_places(pattern: Hybrid, *, width: int = DEFAULT_WIDTH) -> Places:
    """Find the places of all entries. The number of busy neurons is read back once: that synchronises.

    Parameters
    ----------
    pattern : Hybrid
        Shape [M, H], on the GPU (on the CPU in the simulator). A zero in a backup row is no entry.
    width : int
        ELL width of the transpose; neurons that more tokens fire become dense rows.

    Raises
    ------
    OptionError, DeviceError
    """
    if isinstance(width, bool) or not isinstance(width, int) or width < 0:
        raise OptionError(f"width={width!r}: an integer of at least 0 is needed (default {DEFAULT_WIDTH})")
    check_device([pattern.values], ["pattern"])
    masks_GH = masks_of(pattern)
    n_hidden = pattern.shape[1]
    before_GH = torch.empty(masks_GH.shape, dtype=torch.int32, device=masks_GH.device)
    counts_H = torch.empty(n_hidden, dtype=torch.int32, device=masks_GH.device)
    sum_groups[-(-n_hidden // THREADS), THREADS](masks_GH, before_GH, counts_H)
    wide_row_H, n_backup = place_wide_rows(counts_H, width)
    return Places(pattern, masks_GH, before_GH, counts_H, wide_row_H, n_backup, width)


def transpose(h: Hybrid, places: Places | None = None, *, width: int = DEFAULT_WIDTH) -> Hybrid:
    """The transpose [H, M] of ``h``, as a Hybrid.

    Parameters
    ----------
    h : Hybrid
        Shape [M, H].
    places : Places, optional
        From the same pattern; then there is no synchronisation, and ``width`` is that of the places.
    width : int

    Raises
    ------
    ShapeError, OptionError, DeviceError
    """
    places = transposed_places(h, width=width) if places is None else places
    pattern = places.pattern
    if pattern.shape != h.shape or pattern.values.shape != h.values.shape or pattern.backup.shape != h.backup.shape:
        raise ShapeError(
            f"places are those of a {pattern.shape} Hybrid of width {pattern.width} with {pattern.n_backup} backup "
            f"rows, h is {h.shape}, {h.width}, {h.n_backup}: find the places from the pattern of h"
        )
    shape = (h.shape[1], h.shape[0])
    values_HV, tokens_HV, backup_QM = empty_hybrid(h.values, h.values.dtype, shape, places.width, places.n_backup)
    move_entries[h.shape[0], THREADS](
        pattern.columns,
        pattern.counts,
        pattern.backup_row,
        pattern.backup,
        h.values,
        h.backup,
        places.masks,
        places.before,
        places.wide_row,
        values_HV,
        tokens_HV,
        backup_QM,
    )
    return Hybrid(values_HV, tokens_HV, places.counts, places.wide_row, backup_QM, shape)
