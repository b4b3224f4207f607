"""Which neurons fire in each group of 32 tokens: one 32-bit mask per group and neuron, one bit a token.

Bits are set by atomic OR, whose result does not depend on the order, so whatever is read off the masks (the union of a
group's patterns, the rank of a token among those that fire a neuron) is the same each time. The masks take a
sixteenth of the memory of the dense bf16 matrix.

Letters: M tokens, H hidden width, G groups of 32 tokens, T tile width (256), N tiles of a row, S words of a tile,
K spilled tiles, W ELL width, R dense backup rows.
"""

from __future__ import annotations

import torch
from numpy import float32, uint32
from torch import Tensor

from twell.cuda_target import Array, cuda, device, kernel
from twell.formats import TILE_WIDTH, Hybrid, TwELL
from twell.simt.bits import active, widen, word_column
from twell.simt.spill import tile_spills, tiles_of

GROUP = 32
"""Tokens of a mask."""

THREADS = 32


@device
def mark(masks_GH: Array, row: int, column: int) -> None:
    """Set the bit of a token and a neuron."""
    cuda.atomic.or_(masks_GH, (row >> 5, column), uint32(1 << (row & 31)))


@kernel()
def mark_twell(words_MNS: Array, spill_start_M: Array, spill_values_KT: Array, masks_GH: Array) -> None:
    """Mark the entries of a row (``blockIdx.x``). ``masks_GH`` starts as zeros."""
    row = cuda.blockIdx.x
    k = spill_start_M[row]
    for tile in range(words_MNS.shape[1]):
        if tile_spills(words_MNS, row, tile):
            for lane in range(cuda.threadIdx.x, TILE_WIDTH, cuda.blockDim.x):
                if active(widen(spill_values_KT[k, lane])):
                    mark(masks_GH, row, tile * TILE_WIDTH + lane)
            k += 1
        else:
            for slot in range(1 + cuda.threadIdx.x, words_MNS[row, tile, 0] + 1, cuda.blockDim.x):
                mark(masks_GH, row, word_column(words_MNS[row, tile, slot]))


@kernel()
def mark_hybrid(columns_MW: Array, counts_M: Array, backup_row_M: Array, backup_RH: Array, masks_GH: Array) -> None:
    """Mark the entries of a row (``blockIdx.x``). ``masks_GH`` starts as zeros."""
    row = cuda.blockIdx.x
    backup_row = backup_row_M[row]
    if backup_row < 0:
        for slot in range(cuda.threadIdx.x, counts_M[row], cuda.blockDim.x):
            mark(masks_GH, row, columns_MW[row, slot])
    else:
        for column in range(cuda.threadIdx.x, backup_RH.shape[1], cuda.blockDim.x):
            if widen(backup_RH[backup_row, column]) != float32(0):
                mark(masks_GH, row, column)


def masks_of(packed: TwELL | Hybrid) -> Tensor:
    """The masks, uint32 [G, H]. No synchronisation."""
    n_tokens, n_hidden = packed.shape
    some = packed.words if isinstance(packed, TwELL) else packed.values
    masks_GH = torch.zeros(-(-n_tokens // GROUP), n_hidden, dtype=torch.int32, device=some.device).view(torch.uint32)
    if isinstance(packed, TwELL):
        mark_twell[n_tokens, THREADS](tiles_of(packed), packed.spill_start, packed.spill_values, masks_GH)
    else:
        mark_hybrid[n_tokens, THREADS](packed.columns, packed.counts, packed.backup_row, packed.backup, masks_GH)
    return masks_GH
