"""Dense to TwELL: 32 threads pack one tile of 256 columns, each of them 8 neighbouring columns.

A thread counts its active columns and leaves the count in shared memory. After the barrier it adds up the counts of
the threads to its left: that is the slot of its first entry, so the columns of a tile ascend whatever the order in
which threads run. No thread waits for another tile, which is the point of TwELL (paper, section 3.1).

Letters: M tokens, H hidden width, T tile width (256), N tiles of a row, S words of a tile, K spilled tiles.
"""

from __future__ import annotations

from typing import Any

from numpy import float32, int32
from torch import Tensor

from twell.cuda_target import BLOCK_THREADS, Array, check_device, cuda, device, kernel
from twell.formats import TILE_WIDTH, TwELL
from twell.formats._rules import check_compression, check_dense, check_overflow
from twell.simt.bits import active, make_word, narrow, widen
from twell.simt.scan import MAX_THREADS, NOT_NEGATIVE
from twell.simt.spill import empty_words, finish, tile_spills

COLUMNS = 8
"""Columns of a thread: 32 threads cover a tile."""


@kernel()
def pack_tiles(h_MH: Array, words_MNS: Array, over_M: Array) -> None:
    """Pack a row (``blockIdx.x``), ``blockDim.x / 32`` tiles at once. ``words_MNS`` and ``over_M`` start as zeros."""
    counts = cuda.shared.array(MAX_THREADS, int32)
    thread = cuda.threadIdx.x & NOT_NEGATIVE
    part = thread & 31
    row = cuda.blockIdx.x & NOT_NEGATIVE
    tile = (cuda.blockIdx.y & NOT_NEGATIVE) * (cuda.blockDim.x >> 5) + (thread >> 5)
    first = tile * TILE_WIDTH + part * COLUMNS

    found = int32(0)
    for j in range(COLUMNS):
        if first + j < h_MH.shape[1] and active(widen(h_MH[row, first + j])):
            found += 1
    counts[thread] = found
    cuda.syncthreads()

    # Most threads have found nothing, and only the last one of a tile wants its total.
    if (found > 0 or part == 31) and tile < words_MNS.shape[1]:
        slot = int32(1)
        for left in range(part):
            slot += counts[thread - part + left]
        for column in range(first, min(first + COLUMNS, h_MH.shape[1])):
            value = widen(h_MH[row, column])
            if active(value):
                if slot < words_MNS.shape[2]:
                    words_MNS[row, tile, slot] = make_word(column, value, words_MNS, h_MH)
                slot += 1
        if part == 31:
            words_MNS[row, tile, 0] = slot - 1
            if slot > words_MNS.shape[2]:
                cuda.atomic.add(over_M, row, 1)


@kernel()
def copy_spilled(
    h_MH: Array, words_MNS: Array, spill_start_M: Array, spill_tile_K: Array, spill_values_KT: Array
) -> None:
    """Copy the tiles of a row (``blockIdx.x``) that did not fit, in order, to their places in the backup."""
    row = cuda.blockIdx.x
    k = spill_start_M[row]
    if k == spill_start_M[row + 1]:
        return
    for tile in range(words_MNS.shape[1]):
        if tile_spills(words_MNS, row, tile):
            for lane in range(cuda.threadIdx.x, TILE_WIDTH, cuda.blockDim.x):
                spill_values_KT[k, lane] = active_or_zero(h_MH, row, tile * TILE_WIDTH + lane)
            if cuda.threadIdx.x == 0:
                spill_tile_K[k] = tile
            k += 1


@device
def active_or_zero(h_MH: Array, row: int, column: int) -> Any:
    """The stored element, or zero where it is inactive or past the last column."""
    value = narrow(float32(0), h_MH)
    if column < h_MH.shape[1] and active(widen(h_MH[row, column])):
        value = h_MH[row, column]
    return value


def pack(h_MH: Tensor, *, compression: int = 8, overflow: str = "spill") -> TwELL:
    """Pack gate values, before or after ReLU, to TwELL.

    The number of spilled tiles is read back once, to size their backup: that synchronises with the device.

    Parameters
    ----------
    h_MH : Tensor, float32, bfloat16 or float16 [M, H]
        On the GPU (on the CPU in the simulator); copied if not contiguous.
    compression, overflow
        See :meth:`twell.formats.TwELL.from_dense`.

    Raises
    ------
    ShapeError, DtypeError, DeviceError, OptionError, CapacityError
    """
    check_compression(compression)
    check_overflow(overflow)
    h_MH = check_dense(h_MH)
    check_device([h_MH], ["h_MH"])
    words_MNS, over_M = empty_words(h_MH, h_MH.shape[1], compression)
    launch_pack(h_MH, words_MNS, over_M)

    def fill(spill_start_M: Tensor, spill_tile_K: Tensor, spill_values_KT: Tensor) -> None:
        launch_copy_spilled(h_MH, words_MNS, spill_start_M, spill_tile_K, spill_values_KT)

    return finish(words_MNS, over_M, fill, n_hidden=h_MH.shape[1], value_dtype=h_MH.dtype, overflow=overflow)


def launch_pack(h_MH: Tensor, words_MNS: Tensor, over_M: Tensor) -> None:
    """Start :func:`pack_tiles`."""
    tiles_of_a_block = BLOCK_THREADS // 32
    blocks = (h_MH.shape[0], -(-words_MNS.shape[1] // tiles_of_a_block))
    pack_tiles[blocks, BLOCK_THREADS](h_MH, words_MNS, over_M)


def launch_copy_spilled(
    h_MH: Tensor, words_MNS: Tensor, spill_start_M: Tensor, spill_tile_K: Tensor, spill_values_KT: Tensor
) -> None:
    """Start :func:`copy_spilled`; the backup must have a place for every tile that spills."""
    copy_spilled[h_MH.shape[0], BLOCK_THREADS](h_MH, words_MNS, spill_start_M, spill_tile_K, spill_values_KT)
