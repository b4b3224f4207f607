"""The gate product ``relu(x gate^T)``, tiled through shared memory: 64 tokens by 256 neurons a block.

Each block walks along D in steps of 16: its 256 threads copy a slice of x and one of the gate weights into shared
memory as float32, then each thread adds to its own 8 x 8 products, which stay in registers. A value read from shared
memory is used 8 times, one read from global memory 64 or 256 times; without that the product would wait for memory.

The 32 threads of a warp own 4 x 8 such squares, 32 tokens by 64 neurons. At each step they want 32 values of x and 64
of the gate weights, many of them the same ones, which one read hands to all. A warp that owned 8 tokens by 256 neurons
would want 8 and 256: shared memory, not arithmetic, would then set the pace.

Sums run along D in order, one fused multiply-add at a time, so that whoever computes the same product again, for a
tile that did not fit, gets the same bits.

Letters: M tokens, D model width, H hidden width.
"""

from __future__ import annotations

from typing import Any

import torch
from numpy import float32
from torch import Tensor

from twell._inputs import check_tokens, check_weight
from twell.cuda_target import Array, check_device, cuda, device, kernel
from twell.simt.bits import active, narrow, widen
from twell.simt.scan import NOT_NEGATIVE

ROWS, COLUMNS, DEPTH = 64, 256, 16
"""Tokens and neurons of a block, and columns of x that it takes at once."""

THREADS = 256

ROW_PITCH, COLUMN_PITCH = ROWS + 4, COLUMNS + 4
"""Elements from one row in shared memory to the next: 4 more than it holds, so that the threads that copy write to
different banks."""


@device
def place_of(neuron: int) -> int:
    """Where a neuron of the block stands in shared memory: the first 4 of every 8 to the left, the rest to the right.

    A thread owns 8 neighbouring neurons and reads them 4 at a time. Thus 8 threads read 128 bytes without a gap, where
    neighbours 8 apart would meet in the same banks.
    """
    return ((neuron & 4) << 5) + ((neuron >> 3) << 2) + (neuron & 3)


@device
def square_row(thread: int) -> int:
    """Which 8 of the 64 tokens a thread owns: 4 warps share 32 tokens, and 8 threads of a warp share 8."""
    return ((thread >> 7) << 2) + ((thread & 31) >> 3)


@device
def square_column(thread: int) -> int:
    """Which 8 of the 256 neurons a thread owns."""
    return (((thread >> 5) & 3) << 3) + (thread & 7)


@device
def multiply_tile(
    x_MD: Array, gate_HD: Array, first_row: int, first_column: int, x_part: Array, gate_part: Array, sums: Array
) -> None:
    """Products of 64 tokens with 256 neurons; a thread's ``sums[8 * i + j]`` is its token i, neuron j.

    Thread t owns tokens ``first_row + 8 * square_row(t) + i`` and neurons ``first_column + 8 * square_column(t) + j``.
    Past the last row or neuron both factors are zero.
    """
    thread = cuda.threadIdx.x & NOT_NEGATIVE
    first_x = square_row(thread) * 8
    first_gate = square_column(thread) * 4
    depth = thread & 15
    for i in range(64):
        sums[i] = float32(0)
    for first in range(0, x_MD.shape[1], DEPTH):
        d = first + depth
        for i in range(thread >> 4, ROWS, 16):
            row = first_row + i
            value = float32(0)
            if row < x_MD.shape[0] and d < x_MD.shape[1]:
                value = widen(x_MD[row, d])
            x_part[depth, i] = value
        for i in range(thread >> 4, COLUMNS, 16):
            column = first_column + i
            value = float32(0)
            if column < gate_HD.shape[0] and d < x_MD.shape[1]:
                value = widen(gate_HD[column, d])
            gate_part[depth, place_of(i)] = value
        cuda.syncthreads()
        for k in range(DEPTH):
            for i in range(8):
                x_value = x_part[k, first_x + i]
                for j in range(4):
                    sums[i * 8 + j] += x_value * gate_part[k, first_gate + j]
                    sums[i * 8 + j + 4] += x_value * gate_part[k, 128 + first_gate + j]
        cuda.syncthreads()


@device
def next_row(sums: Array) -> None:
    """Move a thread's rows up by one, the first to the end, so that ``sums[0]`` to ``sums[7]`` are the next token's.

    Registers have no addresses: an array stays in them as long as each index is known when the kernel is compiled.
    """
    for j in range(8):
        head = sums[j]
        for i in range(0, 56, 8):
            sums[i + j] = sums[i + j + 8]
        sums[56 + j] = head


@device
def gate_value(x_MD: Array, gate_HD: Array, row: int, column: int) -> Any:
    """One gate value, before ReLU, rounded as it is stored: the same bits as :func:`multiply_tile` gives."""
    total = float32(0)
    for d in range(x_MD.shape[1]):
        total += widen(x_MD[row, d]) * widen(gate_HD[column, d])
    return widen(narrow(total, x_MD))


@kernel(launch_bounds=(THREADS, 2))
def multiply(x_MD: Array, gate_HD: Array, h_MH: Array) -> None:
    """Write the product densely, zero where a neuron is inactive."""
    x_part = cuda.shared.array((DEPTH, ROW_PITCH), float32, alignment=16)
    gate_part = cuda.shared.array((DEPTH, COLUMN_PITCH), float32, alignment=16)
    sums = cuda.local.array(64, float32)
    n_tiles = (h_MH.shape[1] + COLUMNS - 1) // COLUMNS
    first_row = (cuda.blockIdx.x & NOT_NEGATIVE) // n_tiles * ROWS
    first_column = (cuda.blockIdx.x & NOT_NEGATIVE) % n_tiles * COLUMNS
    multiply_tile(x_MD, gate_HD, first_row, first_column, x_part, gate_part, sums)
    thread = cuda.threadIdx.x & NOT_NEGATIVE
    lane = thread & 31
    warp = thread >> 5
    for i in range(8):
        # A thread's neurons are neighbours; passing 8 rows through shared memory lets neighbouring threads write them.
        for j in range(8):
            gate_part[square_row(thread), square_column(thread) * 8 + j] = sums[j]
        next_row(sums)
        cuda.syncthreads()
        row = first_row + warp * 8 + i
        for j in range(8):
            column = first_column + j * 32 + lane
            if row < h_MH.shape[0] and column < h_MH.shape[1]:
                value = gate_part[warp, j * 32 + lane]
                if not active(value):
                    value = float32(0)
                h_MH[row, column] = narrow(value, h_MH)
        cuda.syncthreads()


def blocks_of(n_tokens: int, n_hidden: int) -> int:
    """Blocks that cover the product; neighbouring blocks share their tokens."""
    return -(-n_tokens // ROWS) * -(-n_hidden // COLUMNS)


def gate_product(x_MD: Tensor, gate_HD: Tensor) -> Tensor:
    """``relu(x gate^T)``, dense, rounded to the dtype of ``x``.

    Parameters
    ----------
    x_MD : Tensor, float32, bfloat16 or float16 [M, D]
    gate_HD : Tensor, dtype of ``x_MD`` [H, D]

    Returns
    -------
    Tensor, dtype of ``x_MD`` [M, H]

    Raises
    ------
    ShapeError, DtypeError, DeviceError
    """
    x_MD, gate_HD = checked_product(x_MD, gate_HD)
    h_MH = torch.empty(x_MD.shape[0], gate_HD.shape[0], dtype=x_MD.dtype, device=x_MD.device)
    multiply[blocks_of(*h_MH.shape), THREADS](x_MD, gate_HD, h_MH)
    return h_MH


def checked_product(x_MD: Tensor, gate_HD: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens and weights as the kernels take them, or an error."""
    check_tokens(x_MD)
    check_weight(gate_HD, "gate_HD", width=x_MD.shape[1], like=x_MD)
    check_device([x_MD], ["x_MD"])
    return x_MD.detach().contiguous(), gate_HD.detach().contiguous()
