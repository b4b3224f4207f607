"""Up and down projections of a gated block, fused: one block a token (paper, section 3.2).

For each active neuron n of a token: ``y += gate_n * (x . up_n) * down_n``. Only the rows ``up_n`` and ``down_n`` of
active neurons are read. The block lists the token's active neurons, then takes 32 of them at a time:

1. 32 threads share a dot product ``x . up_n``: each adds up every 32nd column;
2. one thread a neuron adds those 32 parts, and multiplies by the gate value;
3. every thread adds ``h_n * down_n`` to its own columns of y, which stay in its registers.

No atomics and a fixed order of sums: the same bits each time. h never leaves the block.

Letters: M tokens, D model width, H hidden width, T tile width (256), N tiles of a row, S words of a tile,
K spilled tiles.
"""

from __future__ import annotations

import torch
from numpy import float32, int32, uint32
from torch import Tensor

from twell._inputs import check_packed, check_tokens, check_weight
from twell.cuda_target import BLOCK_THREADS, Array, check_device, cuda, device, kernel
from twell.formats import TwELL
from twell.simt.bits import narrow, widen
from twell.simt.entries import LIST, list_piece, pieces_of
from twell.simt.scan import MAX_GROUPS, MAX_THREADS, NOT_NEGATIVE
from twell.simt.spill import tiles_of
from twell.simt.token_warp import launch_warp, warp_fits

COLUMNS = 8
"""Columns of y in the registers of a thread."""

THREADS = BLOCK_THREADS
"""Threads of a block, the distance between a thread's columns. A constant, so that they need one address, not 8."""

NEURONS = 32
"""Neurons taken at a time."""


@device
def add_up_to_down(
    x_MD: Array,
    up_HD: Array,
    down_HD: Array,
    row: int,
    first_column: int,
    n_listed: int,
    columns: Array,
    values: Array,
    parts: Array,
    h: Array,
    sums_y: Array,
) -> None:
    """Add the listed neurons' share to this thread's columns of y."""
    thread = cuda.threadIdx.x & NOT_NEGATIVE
    lane = thread & 31
    warp = thread >> 5
    for first in range(0, n_listed, NEURONS):
        n = min(NEURONS, n_listed - first)
        for i in range(warp, n, cuda.blockDim.x >> 5):
            neuron = columns[first + i]
            part = float32(0)
            for d in range(lane, x_MD.shape[1], 32):
                part += widen(x_MD[row, d]) * widen(up_HD[neuron, d])
            parts[i, lane] = part
        cuda.syncthreads()
        if thread < n:
            total = float32(0)
            for i in range(32):
                total += parts[thread, i]
            h[thread] = values[first + thread] * total
        cuda.syncthreads()
        for i in range(n):
            neuron = columns[first + i]
            for j in range(COLUMNS):
                column = first_column + j * THREADS + thread
                if column < down_HD.shape[1]:
                    sums_y[j] += h[i] * widen(down_HD[neuron, column])


@kernel(launch_bounds=(MAX_THREADS, 3))
def up_and_down(
    x_MD: Array,
    words_MNS: Array,
    spill_start_M: Array,
    spill_values_KT: Array,
    gate_HD: Array,
    up_HD: Array,
    down_HD: Array,
    y_MD: Array,
) -> None:
    """One token (``blockIdx.x``), 8 columns of y a thread; ``blockIdx.y`` counts such slices of a wider y."""
    columns = cuda.shared.array(LIST, uint32)
    values = cuda.shared.array(LIST, float32)
    counts = cuda.shared.array(MAX_THREADS, int32)
    sums = cuda.shared.array(MAX_GROUPS, int32)
    parts = cuda.shared.array((NEURONS, 33), float32)
    h = cuda.shared.array(NEURONS, float32)
    sums_y = cuda.local.array(COLUMNS, float32)
    row = cuda.blockIdx.x & NOT_NEGATIVE
    first_column = (cuda.blockIdx.y & NOT_NEGATIVE) * COLUMNS * THREADS
    for j in range(COLUMNS):
        sums_y[j] = float32(0)

    n_spilled = spill_start_M[row + 1] - spill_start_M[row]
    for piece in range(pieces_of(words_MNS) + n_spilled):
        n_listed = list_piece(
            piece, words_MNS, spill_start_M, spill_values_KT, x_MD, gate_HD, row, columns, values, counts, sums
        )
        add_up_to_down(x_MD, up_HD, down_HD, row, first_column, n_listed, columns, values, parts, h, sums_y)

    for j in range(COLUMNS):
        column = first_column + j * THREADS + (cuda.threadIdx.x & NOT_NEGATIVE)
        if column < y_MD.shape[1]:
            y_MD[row, column] = narrow(sums_y[j], y_MD)


def token_ffn(x_MD: Tensor, packed: TwELL, up_HD: Tensor, down_HD: Tensor) -> Tensor:
    """Up and down projections of a gated block over the packed active neurons (paper, section 3.2).

    Parameters
    ----------
    x_MD : Tensor, float32, bfloat16 or float16 [M, D]
        On the GPU (on the CPU in the simulator); copied if not contiguous.
    packed : TwELL
        Gate values of the same tokens.
    up_HD, down_HD : Tensor, dtype of ``x_MD`` [H, D]

    Returns
    -------
    Tensor, dtype of ``x_MD`` [M, D]
        Sums in fp32.

    Raises
    ------
    ShapeError, DtypeError, DeviceError
    """
    check_tokens(x_MD)
    check_packed(packed, n_tokens=x_MD.shape[0], like=x_MD)
    for weight_HD, name in ((up_HD, "up_HD"), (down_HD, "down_HD")):
        check_weight(weight_HD, name, width=x_MD.shape[1], n_hidden=packed.shape[1], like=x_MD)
    check_device([x_MD], ["x_MD"])
    x_MD, up_HD, down_HD = (array.detach().contiguous() for array in (x_MD, up_HD, down_HD))
    # The backup is complete, so the gate weights are never looked at: any [H, D] array stands in for them.
    return launch_token_ffn(x_MD, tiles_of(packed), packed.spill_start, packed.spill_values, up_HD, up_HD, down_HD)


def launch_token_ffn(
    x_MD: Tensor,
    words_MNS: Tensor,
    spill_start_M: Tensor,
    spill_values_KT: Tensor,
    gate_HD: Tensor,
    up_HD: Tensor,
    down_HD: Tensor,
    *,
    warp: bool | None = None,
) -> Tensor:
    """Start the warp version where it runs, else the block version; ``warp`` asks for one of them."""
    y_MD = torch.empty_like(x_MD)
    arguments = (x_MD, words_MNS, spill_start_M, spill_values_KT, gate_HD, up_HD, down_HD, y_MD)
    if warp_fits(x_MD, up_HD, down_HD) if warp is None else warp:
        launch_warp(*arguments)
    else:
        slices = -(-x_MD.shape[1] // (COLUMNS * THREADS))
        up_and_down[(x_MD.shape[0], slices), THREADS](*arguments)
    return y_MD
