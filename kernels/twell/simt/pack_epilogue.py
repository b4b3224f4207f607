"""Gate product with the pack in its epilogue: the dense gate values never reach memory (paper, section 3.2).

A block computes 64 tokens by 256 neurons, which is just one tile of TwELL for each of its tokens. Its products are
still in registers, 8 neighbouring neurons of 8 tokens in each thread, when the packing begins:

1. each thread counts its active neurons, for each of its tokens, and leaves the counts in shared memory;
2. one thread a token turns the 32 counts of that token into running sums, and writes word 0;
3. each thread writes its entries from the slot on that its running sum names.

Two barriers, no atomics on slots, so columns ascend and the words are the same each time.

Letters: M tokens, D model width, H hidden width, T tile width (256), N tiles of a row, S words of a tile,
K spilled tiles.
"""

from __future__ import annotations

from numpy import float32, int32, int64
from torch import Tensor

from twell.cuda_target import Array, cuda, kernel
from twell.errors import ShapeError
from twell.formats import TwELL
from twell.formats._rules import check_compression, check_overflow
from twell.simt.bits import active, make_word, narrow, widen
from twell.simt.scan import NOT_NEGATIVE
from twell.simt.spill import empty_words, finish, spilled_before, tile_spills
from twell.simt.tiled_product import (
    COLUMN_PITCH,
    COLUMNS,
    DEPTH,
    ROW_PITCH,
    ROWS,
    THREADS,
    blocks_of,
    checked_product,
    multiply_tile,
    next_row,
    square_column,
    square_row,
)


@kernel(launch_bounds=(THREADS, 2))
def multiply_and_pack(x_MD: Array, gate_HD: Array, words_MNS: Array, over_M: Array) -> None:
    """One tile of 64 tokens. ``words_MNS`` and ``over_M`` start as zeros."""
    x_part = cuda.shared.array((DEPTH, ROW_PITCH), float32, alignment=16)
    gate_part = cuda.shared.array((DEPTH, COLUMN_PITCH), float32, alignment=16)
    counts = cuda.shared.array((ROWS, 33), int32)
    sums = cuda.local.array(64, float32)
    thread = cuda.threadIdx.x & NOT_NEGATIVE
    first_mine = square_row(thread) * 8
    part = square_column(thread)
    tile = (cuda.blockIdx.x & NOT_NEGATIVE) % words_MNS.shape[1]
    first_row = (cuda.blockIdx.x & NOT_NEGATIVE) // words_MNS.shape[1] * ROWS
    first_column = tile * COLUMNS
    multiply_tile(x_MD, gate_HD, first_row, first_column, x_part, gate_part, sums)

    n_mine = min(8, gate_HD.shape[0] - first_column - part * 8)
    for i in range(8):
        found = int32(0)
        for j in range(8):
            if j < n_mine and active(widen(narrow(sums[j], x_MD))):
                found += 1
        next_row(sums)
        counts[first_mine + i, part] = found
    cuda.syncthreads()

    if thread < ROWS:
        running = int32(0)
        for other in range(32):
            found = counts[thread, other]
            counts[thread, other] = running
            running += found
        row = first_row + thread
        if row < x_MD.shape[0]:
            words_MNS[row, tile, 0] = running
            if running >= words_MNS.shape[2]:
                cuda.atomic.add(over_M, row, 1)
    cuda.syncthreads()

    for i in range(8):
        row = first_row + first_mine + i
        slot = counts[first_mine + i, part] + 1
        for j in range(8):
            value = widen(narrow(sums[j], x_MD))
            if j < n_mine and row < x_MD.shape[0] and active(value):
                if slot < words_MNS.shape[2]:
                    words_MNS[row, tile, slot] = make_word(first_column + part * 8 + j, value, words_MNS, x_MD)
                slot += 1
        next_row(sums)


@kernel(launch_bounds=(THREADS, 2))
def multiply_spilled(
    x_MD: Array,
    gate_HD: Array,
    words_MNS: Array,
    spill_start_M: Array,
    spill_tile_K: Array,
    spill_values_KT: Array,
) -> None:
    """Second pass: the same products again, in the blocks where a tile did not fit; the others leave at once.

    A tile whose place lies past the end of the backup is left out; readers compute it themselves.
    """
    x_part = cuda.shared.array((DEPTH, ROW_PITCH), float32, alignment=16)
    gate_part = cuda.shared.array((DEPTH, COLUMN_PITCH), float32, alignment=16)
    places = cuda.shared.array(ROWS, int64)
    n_spilled = cuda.shared.array(1, int32)
    sums = cuda.local.array(64, float32)
    thread = cuda.threadIdx.x & NOT_NEGATIVE
    first_mine = square_row(thread) * 8
    part = square_column(thread)
    tile = (cuda.blockIdx.x & NOT_NEGATIVE) % words_MNS.shape[1]
    first_row = (cuda.blockIdx.x & NOT_NEGATIVE) // words_MNS.shape[1] * ROWS
    if thread == 0:
        n_spilled[0] = 0
    cuda.syncthreads()
    if thread < ROWS:
        row = first_row + thread
        place = -1
        if row < x_MD.shape[0] and tile_spills(words_MNS, row, tile):
            place = spill_start_M[row] + spilled_before(words_MNS, row, tile)
            if place < spill_values_KT.shape[0]:
                cuda.atomic.add(n_spilled, 0, 1)
            else:
                place = -1
        places[thread] = place
    cuda.syncthreads()
    if n_spilled[0] == 0:
        return

    multiply_tile(x_MD, gate_HD, first_row, tile * COLUMNS, x_part, gate_part, sums)
    n_mine = min(8, gate_HD.shape[0] - tile * COLUMNS - part * 8)
    for i in range(8):
        place = places[first_mine + i]
        if place >= 0:
            for j in range(8):
                value = sums[j]
                if j >= n_mine or not active(widen(narrow(value, x_MD))):
                    value = float32(0)
                spill_values_KT[place, part * 8 + j] = narrow(value, spill_values_KT)
            if part == 0:
                spill_tile_K[place] = tile
        next_row(sums)


def gate_pack(x_MD: Tensor, gate_HD: Tensor, *, compression: int = 8, overflow: str = "spill") -> TwELL:
    """``relu(x gate^T)``, rounded to the dtype of ``x``, as TwELL (paper, section 3.2).

    The number of spilled tiles is read back once, to size their backup: that synchronises with the device.
    :func:`twell.simt.gated_ffn` does without.

    Parameters
    ----------
    x_MD : Tensor, float32, bfloat16 or float16 [M, D]
        On the GPU (on the CPU in the simulator); copied if not contiguous.
    gate_HD : Tensor, dtype of ``x_MD`` [H, D]
    compression, overflow
        See :meth:`twell.formats.TwELL.from_dense`.

    Raises
    ------
    ShapeError, DtypeError, DeviceError, OptionError, CapacityError
    """
    check_compression(compression)
    check_overflow(overflow)
    x_MD, gate_HD = checked_product(x_MD, gate_HD)
    if gate_HD.shape[0] == 0:
        raise ShapeError(f"gate_HD has shape {tuple(gate_HD.shape)}: the hidden width must be at least 1")
    words_MNS, over_M = launch_gate_pack(x_MD, gate_HD, compression)

    def fill(spill_start_M: Tensor, spill_tile_K: Tensor, spill_values_KT: Tensor) -> None:
        launch_spilled(x_MD, gate_HD, words_MNS, spill_start_M, spill_tile_K, spill_values_KT)

    return finish(words_MNS, over_M, fill, n_hidden=gate_HD.shape[0], value_dtype=x_MD.dtype, overflow=overflow)


def launch_gate_pack(x_MD: Tensor, gate_HD: Tensor, compression: int) -> tuple[Tensor, Tensor]:
    """Words [M, N, S] and the number of spilled tiles of each row [M], with no synchronisation."""
    words_MNS, over_M = empty_words(x_MD, gate_HD.shape[0], compression)
    blocks = blocks_of(x_MD.shape[0], gate_HD.shape[0])
    multiply_and_pack[blocks, THREADS](x_MD, gate_HD, words_MNS, over_M)
    return words_MNS, over_M


def launch_spilled(
    x_MD: Tensor,
    gate_HD: Tensor,
    words_MNS: Tensor,
    spill_start_M: Tensor,
    spill_tile_K: Tensor,
    spill_values_KT: Tensor,
) -> None:
    """Start :func:`multiply_spilled`."""
    blocks = blocks_of(x_MD.shape[0], gate_HD.shape[0])
    multiply_spilled[blocks, THREADS](x_MD, gate_HD, words_MNS, spill_start_M, spill_tile_K, spill_values_KT)
