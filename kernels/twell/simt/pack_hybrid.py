"""TwELL to Hybrid: rows closed up, with the place of each tile from a prefix sum of the tile counts.

One block a row. A thread takes a tile: its count is word 0, so the row's layout is known without looking at a single
entry (paper, section 3.3). Rows with more than W entries become dense backup rows.

Letters: M tokens, H hidden width, T tile width (256), N tiles of a row, S words of a tile, K spilled tiles,
W ELL width, R dense backup rows.
"""

from __future__ import annotations

from typing import Any

import torch
from numpy import int32
from torch import Tensor

from twell.cuda_target import Array, check_device, cuda, device, kernel
from twell.errors import CapacityError, OptionError
from twell.formats import TILE_WIDTH, Hybrid, TwELL
from twell.formats._rules import check_overflow, column_dtype
from twell.formats.hybrid import DEFAULT_WIDTH
from twell.simt.bits import active, narrow, widen, word_column, word_value
from twell.simt.scan import MAX_GROUPS, MAX_THREADS, sum_before, sum_of_all
from twell.simt.spill import spilled_before, tile_spills, tiles_of

THREADS = 32
"""Threads of a block: a row has a few dozen tiles."""


@kernel()
def count_entries(words_MNS: Array, counts_M: Array) -> None:
    """Active neurons of a row, one row a thread."""
    row = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if row < words_MNS.shape[0]:
        total = int32(0)
        for tile in range(words_MNS.shape[1]):
            total += int32(words_MNS[row, tile, 0])
        counts_M[row] = total


@device
def put(
    place: int,
    column: int,
    element: Any,
    row: int,
    backup_row: int,
    values_MW: Array,
    columns_MW: Array,
    backup_RH: Array,
) -> None:
    """Store an entry: at its place in the ELL row, or at its column in the backup row."""
    if backup_row < 0:
        values_MW[row, place] = element
        columns_MW[row, place] = column
    else:
        backup_RH[backup_row, column] = element


@kernel()
def close_up(
    words_MNS: Array,
    spill_start_M: Array,
    spill_values_KT: Array,
    backup_row_M: Array,
    values_MW: Array,
    columns_MW: Array,
    backup_RH: Array,
) -> None:
    """Copy the entries of a row (``blockIdx.x``). The three arrays written to start as zeros."""
    counts = cuda.shared.array(MAX_THREADS, int32)
    sums = cuda.shared.array(MAX_GROUPS, int32)
    row = cuda.blockIdx.x
    backup_row = backup_row_M[row]
    done = 0
    for first in range(0, words_MNS.shape[1], cuda.blockDim.x):
        tile = first + cuda.threadIdx.x
        count = int32(0)
        if tile < words_MNS.shape[1]:
            count = int32(words_MNS[row, tile, 0])
        place = done + sum_before(count, counts, sums)
        if count > 0:
            if tile_spills(words_MNS, row, tile):
                k = spill_start_M[row] + spilled_before(words_MNS, row, tile)
                for lane in range(TILE_WIDTH):
                    if active(widen(spill_values_KT[k, lane])):
                        column = tile * TILE_WIDTH + lane
                        element = spill_values_KT[k, lane]
                        put(place, column, element, row, backup_row, values_MW, columns_MW, backup_RH)
                        place += 1
            else:
                for slot in range(1, count + 1):
                    word = words_MNS[row, tile, slot]
                    element = narrow(word_value(word, values_MW), values_MW)
                    put(place, word_column(word), element, row, backup_row, values_MW, columns_MW, backup_RH)
                    place += 1
        done += sum_of_all(sums)


def to_hybrid(packed: TwELL, *, width: int = DEFAULT_WIDTH, overflow: str = "spill") -> Hybrid:
    """Convert TwELL to Hybrid.

    The number of wide rows is read back once, to size the backup: that synchronises with the device.

    Parameters
    ----------
    packed : TwELL
        On the GPU (on the CPU in the simulator).
    width : int
        Entries of an ELL row.
    overflow : {"spill", "raise", "clip"}
        ``"clip"``, which has to list what it drops, goes through :meth:`twell.formats.Hybrid.from_twell`.

    Raises
    ------
    DeviceError, OptionError, CapacityError
    """
    check_overflow(overflow)
    if isinstance(width, bool) or not isinstance(width, int) or width < 0:
        raise OptionError(f"width={width!r}: an integer of at least 0 is needed (the paper uses {DEFAULT_WIDTH})")
    check_device([packed.words], ["packed"])
    if overflow == "clip":
        return Hybrid.from_twell(packed, width=width, overflow=overflow)
    n_tokens, n_hidden = packed.shape
    words_MNS = tiles_of(packed)
    counts_M = torch.empty(n_tokens, dtype=torch.int32, device=packed.device)
    count_entries[-(-n_tokens // THREADS), THREADS](words_MNS, counts_M)
    backup_row_M, n_backup = place_wide_rows(counts_M, width)
    if n_backup and overflow == "raise":
        row = int((backup_row_M >= 0).nonzero()[0])
        raise CapacityError(
            row=row,
            tile=None,
            count=int(counts_M[row]),
            limit=width,
            remedy='raise the width, use overflow="spill" (exact), or overflow="clip" to drop them',
        )
    values_MW, columns_MW, backup_RH = empty_hybrid(packed.words, packed.value_dtype, packed.shape, width, n_backup)
    close_up[n_tokens, THREADS](
        words_MNS, packed.spill_start, packed.spill_values, backup_row_M, values_MW, columns_MW, backup_RH
    )
    return Hybrid(values_MW, columns_MW, counts_M, backup_row_M, backup_RH, (n_tokens, n_hidden))


def place_wide_rows(counts_M: Tensor, width: int) -> tuple[Tensor, int]:
    """Backup row of each row with more than ``width`` entries, else -1, int32; and how many there are (read back)."""
    wide_M = counts_M > width
    number_M = wide_M.cumsum(0)
    backup_row_M = torch.where(wide_M, number_M - 1, -1).to(torch.int32)
    return backup_row_M, int(number_M[-1]) if counts_M.numel() else 0


def empty_hybrid(
    like: Tensor, value_dtype: torch.dtype, shape: tuple[int, int], width: int, n_backup: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Values, columns and backup of a Hybrid, all zero."""
    device = like.device
    return (
        torch.zeros(shape[0], width, dtype=value_dtype, device=device),
        torch.zeros(shape[0], width, dtype=column_dtype(shape[1]), device=device),
        torch.zeros(n_backup, shape[1], dtype=value_dtype, device=device),
    )
