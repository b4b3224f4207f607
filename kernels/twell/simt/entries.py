"""A token's active neurons as a list in shared memory, which all threads of its block then work through.

The list is filled in pieces that fit: some tiles at a time from the words, one tile at a time from the backup of
spilled tiles. Its order, tile by tile with columns ascending, is the same each time.

Letters: M tokens, D model width, H hidden width, T tile width (256), N tiles of a row, S words of a tile,
K spilled tiles.
"""

from __future__ import annotations

from typing import Any

from numpy import float32, int32

from twell.cuda_target import Array, cuda, device
from twell.formats import TILE_WIDTH
from twell.simt.bits import active, widen, word_column, word_value
from twell.simt.scan import sum_before, sum_of_all
from twell.simt.spill import tile_spills
from twell.simt.tiled_product import gate_value

LIST = 1024
"""Entries that the list holds."""

SCRATCH = LIST - TILE_WIDTH
"""From here on the list's end holds the values of a spilled tile while they are being sorted out."""


@device
def tiles_at_once(words_MNS: Array) -> Any:
    """Tiles whose entries surely fit into the list, one for each thread at most."""
    return min(cuda.blockDim.x, LIST // (words_MNS.shape[2] - 1))


@device
def pieces_of(words_MNS: Array) -> Any:
    """Pieces of a token's list that come from the words; each spilled tile is one more."""
    step = tiles_at_once(words_MNS)
    return (words_MNS.shape[1] + step - 1) // step


@device
def list_tiles(
    words_MNS: Array, like: Array, row: int, first_tile: int, columns: Array, values: Array, counts: Array, sums: Array
) -> None:
    """List the entries of the next :func:`tiles_at_once` tiles, without the spilled ones.

    A thread takes one tile. ``like`` tells bf16 from fp16.
    """
    tile = first_tile + cuda.threadIdx.x
    count = int32(0)
    mine = cuda.threadIdx.x < tiles_at_once(words_MNS) and tile < words_MNS.shape[1]
    if mine and not tile_spills(words_MNS, row, tile):
        count = int32(words_MNS[row, tile, 0])
    start = sum_before(count, counts, sums)
    for i in range(count):
        word = words_MNS[row, tile, 1 + i]
        columns[start + i] = word_column(word)
        values[start + i] = word_value(word, like)


@device
def list_spilled(
    spill_values_KT: Array,
    k: int,
    x_MD: Array,
    gate_HD: Array,
    row: int,
    tile: int,
    columns: Array,
    values: Array,
    counts: Array,
    sums: Array,
) -> None:
    """List the active neurons of a spilled tile, the ``k``-th of all.

    Its values come from the backup, or, past the backup's end, from the gate product itself.
    """
    each = TILE_WIDTH // cuda.blockDim.x
    first = cuda.threadIdx.x * each
    count = int32(0)
    cuda.syncthreads()  # a slower thread may still be reading the end of the last list
    for lane in range(first, first + each):
        column = tile * TILE_WIDTH + lane
        value = float32(0)
        if k < spill_values_KT.shape[0]:
            value = widen(spill_values_KT[k, lane])
        elif column < gate_HD.shape[0]:
            value = gate_value(x_MD, gate_HD, row, column)
        values[SCRATCH + lane] = value
        if active(value):
            count += 1
    place = sum_before(count, counts, sums)
    for lane in range(first, first + each):
        value = values[SCRATCH + lane]
        if active(value):
            columns[place] = tile * TILE_WIDTH + lane
            values[place] = value
            place += 1


@device
def list_piece(
    piece: int,
    words_MNS: Array,
    spill_start_M: Array,
    spill_values_KT: Array,
    x_MD: Array,
    gate_HD: Array,
    row: int,
    columns: Array,
    values: Array,
    counts: Array,
    sums: Array,
) -> Any:
    """Fill the list with one piece of the token's active neurons; returns how many. All threads must call it."""
    spilled = piece - pieces_of(words_MNS)
    if spilled < 0:
        first_tile = piece * tiles_at_once(words_MNS)
        list_tiles(words_MNS, spill_values_KT, row, first_tile, columns, values, counts, sums)
    else:
        tile = -1
        for _ in range(spilled + 1):
            tile += 1
            while not tile_spills(words_MNS, row, tile):
                tile += 1
        k = spill_start_M[row] + spilled
        list_spilled(spill_values_KT, k, x_MD, gate_HD, row, tile, columns, values, counts, sums)
    cuda.syncthreads()
    return sum_of_all(sums)
