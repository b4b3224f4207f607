"""TwELL to dense: one block a row scatters its entries into a matrix of zeros.

Letters: M tokens, H hidden width, T tile width (256), N tiles of a row, S words of a tile, K spilled tiles.
"""

from __future__ import annotations

import torch
from torch import Tensor

from twell.cuda_target import BLOCK_THREADS, Array, check_device, cuda, kernel
from twell.formats import TILE_WIDTH, TwELL
from twell.simt.bits import narrow, word_column, word_value
from twell.simt.spill import tile_spills, tiles_of


@kernel()
def unpack_rows(words_MNS: Array, spill_start_M: Array, spill_values_KT: Array, h_MH: Array) -> None:
    """Unpack a row (``blockIdx.x``). ``h_MH`` starts as zeros."""
    row = cuda.blockIdx.x
    k = spill_start_M[row]
    for tile in range(words_MNS.shape[1]):
        if tile_spills(words_MNS, row, tile):
            for lane in range(cuda.threadIdx.x, TILE_WIDTH, cuda.blockDim.x):
                column = tile * TILE_WIDTH + lane
                if column < h_MH.shape[1]:
                    h_MH[row, column] = spill_values_KT[k, lane]
            k += 1
        else:
            for slot in range(1 + cuda.threadIdx.x, words_MNS[row, tile, 0] + 1, cuda.blockDim.x):
                word = words_MNS[row, tile, slot]
                h_MH[row, word_column(word)] = narrow(word_value(word, h_MH), h_MH)


def to_dense(packed: TwELL) -> Tensor:
    """The matrix [M, H] in the packed value dtype, zeros where a neuron is inactive.

    Raises
    ------
    DeviceError
    """
    check_device([packed.words], ["packed"])
    h_MH = torch.zeros(packed.shape, dtype=packed.value_dtype, device=packed.device)
    unpack_rows[packed.shape[0], min(64, BLOCK_THREADS)](
        tiles_of(packed), packed.spill_start, packed.spill_values, h_MH
    )
    return h_MH
