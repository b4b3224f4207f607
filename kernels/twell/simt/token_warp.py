"""Up and down projections, fused: one warp a token, with warp intrinsics (GPU only).

The same sums as :mod:`twell.simt.token_block`, but the 32 threads of a warp talk through registers: no shared memory,
no barriers. Each lane owns 8 neighbouring columns of every 256, read as one load of 16 bytes, and keeps x and y there.
For each active neuron: load its row of the up weights, multiply, add up over the lanes by a butterfly of five
exchanges, multiply by the gate value, add that times the neuron's row of the down weights.

:func:`twin` computes the same in NumPy, sums in the same order.

Letters: M tokens, D model width, H hidden width, T tile width (256), N tiles of a row, S words of a tile,
K spilled tiles.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy import float32, uint32
from torch import Tensor

from twell.cuda_target import SIMULATED, Array, Kernel, cuda, device, kernel
from twell.formats import TILE_WIDTH, TwELL
from twell.simt.bits import active, widen, word_column, word_value
from twell.simt.scan import NOT_NEGATIVE
from twell.simt.tiled_product import gate_value
from twell.simt.vector import high_half, kept, load_16_bytes, low_half, pair, store_16_bytes

CHUNK = 256
"""Columns of a warp's load: 32 lanes with 8 of 16 bits each."""

MAX_CHUNKS = 8
"""D up to 2,048: x and y of a lane then take 96 registers."""

ALL = 0xFFFFFFFF
"""All lanes take part."""


def make_kernel(chunks: int, whole: bool) -> Kernel:
    """The kernel for D up to ``256 * chunks``, ``whole`` if equal: registers have to be counted beforehand."""
    n_words, n_sums = chunks * 4, chunks * 8
    n_shared = chunks * 128

    @device
    def load_row(weight_HD: Array, neuron: int, lane: int, words: Array) -> None:
        """This lane's part of a row; all loads are under way before the first one is waited for."""
        first = neuron * weight_HD.shape[1] + lane * 8
        for chunk in range(chunks):
            if whole or chunk < chunks - 1 or chunk * CHUNK + lane * 8 < weight_HD.shape[1]:
                four = load_16_bytes(weight_HD, first + chunk * CHUNK)
                for i in range(4):
                    words[chunk * 4 + i] = four[i]
            else:
                for i in range(4):
                    words[chunk * 4 + i] = uint32(0)

    @device
    def add_neuron(
        x_bits: Array, up_HD: Array, down_HD: Array, neuron: int, gate: Any, lane: int, words: Array, sums_y: Array
    ) -> None:
        load_row(up_HD, neuron, lane, words)
        mine = kept(uint32(lane)) * 4
        part = float32(0)
        for chunk in range(chunks):
            for i in range(4):
                x_word = x_bits[mine + chunk * 128 + i]
                part += low_half(x_word, up_HD) * low_half(words[chunk * 4 + i], up_HD)
                part += high_half(x_word, up_HD) * high_half(words[chunk * 4 + i], up_HD)
        load_row(down_HD, neuron, lane, words)
        part += cuda.shfl_xor_sync(ALL, part, 16)
        part += cuda.shfl_xor_sync(ALL, part, 8)
        part += cuda.shfl_xor_sync(ALL, part, 4)
        part += cuda.shfl_xor_sync(ALL, part, 2)
        part += cuda.shfl_xor_sync(ALL, part, 1)
        h = gate * part
        for i in range(n_words):
            sums_y[2 * i] += h * low_half(words[i], down_HD)
            sums_y[2 * i + 1] += h * high_half(words[i], down_HD)

    @kernel(launch_bounds=(32, 16))
    def up_and_down_warp(
        x_MD: Array,
        words_MNS: Array,
        spill_start_M: Array,
        spill_values_KT: Array,
        gate_HD: Array,
        up_HD: Array,
        down_HD: Array,
        y_MD: Array,
    ) -> None:
        x_bits = cuda.shared.array(n_shared, uint32, alignment=16)
        words = cuda.local.array(n_words, uint32)
        sums_y = cuda.local.array(n_sums, float32)
        lane = cuda.threadIdx.x & 31
        row = cuda.blockIdx.x & NOT_NEGATIVE
        load_row(x_MD, row, lane, words)
        for chunk in range(chunks):
            for i in range(4):
                x_bits[lane * 4 + chunk * 128 + i] = words[chunk * 4 + i]  # no barrier: a lane reads its own alone
        for i in range(n_sums):
            sums_y[i] = float32(0)

        k = spill_start_M[row]
        for first in range(0, words_MNS.shape[1], 32):
            # A lane looks at one tile's count; the ballot then names the tiles that have something.
            count = 0
            if first + lane < words_MNS.shape[1]:
                count = words_MNS[row, first + lane, 0]
            filled = cuda.ballot_sync(ALL, count > 0) & ALL  # not negative: its sign is the 32nd tile's bit
            while filled != 0:
                tile = first + cuda.ffs(filled) - 1
                n = cuda.shfl_sync(ALL, count, tile - first)
                filled &= filled - 1
                spilled = n >= words_MNS.shape[2]
                if spilled:
                    n = TILE_WIDTH
                for i in range(n):
                    if spilled:
                        neuron = tile * TILE_WIDTH + i
                        gate = float32(0)
                        if k < spill_values_KT.shape[0]:
                            gate = widen(spill_values_KT[k, i])
                        elif neuron < gate_HD.shape[0]:
                            gate = gate_value(x_MD, gate_HD, row, neuron)
                    else:
                        word = words_MNS[row, tile, 1 + i]
                        neuron = word_column(word)
                        gate = word_value(word, spill_values_KT)
                    if active(gate):
                        add_neuron(x_bits, up_HD, down_HD, neuron, gate, lane, words, sums_y)
                if spilled:
                    k += 1

        first = row * y_MD.shape[1] + lane * 8
        for chunk in range(chunks):
            if whole or chunk < chunks - 1 or chunk * CHUNK + lane * 8 < y_MD.shape[1]:
                store_16_bytes(
                    y_MD,
                    first + chunk * CHUNK,
                    pair(sums_y[chunk * 8], sums_y[chunk * 8 + 1], y_MD),
                    pair(sums_y[chunk * 8 + 2], sums_y[chunk * 8 + 3], y_MD),
                    pair(sums_y[chunk * 8 + 4], sums_y[chunk * 8 + 5], y_MD),
                    pair(sums_y[chunk * 8 + 6], sums_y[chunk * 8 + 7], y_MD),
                )

    return up_and_down_warp


_kernels: dict[tuple[int, bool], Kernel] = {}


def kernel_for(width: int) -> Kernel:
    """The kernel for rows of ``width`` columns, made once."""
    key = (-(-width // CHUNK), width % CHUNK == 0)
    if key not in _kernels:
        _kernels[key] = make_kernel(*key)
    return _kernels[key]


def warp_fits(*arrays: Tensor) -> bool:
    """Whether the warp version runs on these [., D] arrays: a GPU, 16-bit values, D % 8 == 0 up to 2,048, aligned."""
    return not SIMULATED and all(
        array.dtype in (torch.bfloat16, torch.float16)
        and array.shape[1] % 8 == 0
        and 0 < array.shape[1] <= CHUNK * MAX_CHUNKS
        and array.data_ptr() % 16 == 0
        for array in arrays
    )


def launch_warp(
    x_MD: Tensor,
    words_MNS: Tensor,
    spill_start_M: Tensor,
    spill_values_KT: Tensor,
    gate_HD: Tensor,
    up_HD: Tensor,
    down_HD: Tensor,
    y_MD: Tensor,
) -> None:
    """Start the warp version: a block of one warp for each token, so that no token waits for a fuller one."""
    kernel_for(x_MD.shape[1])[x_MD.shape[0], 32](
        x_MD, words_MNS, spill_start_M, spill_values_KT, gate_HD, up_HD, down_HD, y_MD
    )


def twin(x_MD: Tensor, packed: TwELL, up_HD: Tensor, down_HD: Tensor) -> Tensor:
    """What the kernel computes, in NumPy: lane by lane, and over the lanes by the same butterfly.

    Parameters and result as :func:`twell.simt.token_ffn`. A GPU fuses multiply and add where NumPy rounds twice.
    """
    n_tokens, width = x_MD.shape
    chunks = -(-width // CHUNK)
    entries = packed.to_coo()

    def by_lane(weight: Tensor) -> Array:  # [., D] -> [., lanes, chunks * 8]
        padded = np.zeros((weight.shape[0], chunks * CHUNK), np.float32)
        padded[:, :width] = weight.detach().float().cpu().numpy()
        lanes: Array = padded.reshape(-1, chunks, 32, 8).swapaxes(1, 2).reshape(-1, 32, chunks * 8)
        return lanes

    x, up, down = by_lane(x_MD), by_lane(up_HD), by_lane(down_HD)
    y = np.zeros_like(x)
    lanes = np.arange(32)
    rows, columns = entries.row_N.tolist(), entries.column_N.tolist()
    for row, neuron, gate in zip(rows, columns, entries.value_N.float().cpu().numpy(), strict=True):
        part = np.zeros(32, np.float32)
        for i in range(chunks * 8):
            part += x[row, :, i] * up[neuron, :, i]
        for distance in (16, 8, 4, 2, 1):
            part = part + part[lanes ^ distance]
        y[row] += (gate * part)[:, None] * down[neuron]
    flat = y.reshape(n_tokens, 32, chunks, 8).swapaxes(1, 2).reshape(n_tokens, -1)[:, :width]
    return torch.from_numpy(flat.copy()).to(device=x_MD.device, dtype=x_MD.dtype)
