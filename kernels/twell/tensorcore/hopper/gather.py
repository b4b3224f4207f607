"""The copying side of the union products: rows of the weights that the union names, gathered into a swizzled stage.

128 threads each bring 16 pieces of 16 bytes a stage with cp.async, which takes no registers for the data. They arrive
at the stage's barrier when their pieces are there. A piece outside of the matrix or of the union becomes zero.

Letters: M tokens, D model width, H hidden width, U unions.
"""

from __future__ import annotations

from numpy import int64, uint32

from twell.cuda_target import Array, device
from twell.simt.vector import kept
from twell.tensorcore.hopper.tiles import BK, LEFT_BYTES, STAGE_BYTES, full_at, stage_of
from twell.tensorcore.ptx import barrier_expect, copies_arrive, copy_16_bytes, copy_box, global_address
from twell.tensorcore.unroll import unroll, unrolled

PIECES = 16
"""Pieces of a thread and stage: 256 rows of 128 bytes, or 64 rows of 512, over 128 threads."""

FILLING = 129
"""Arrivals at a stage's *full* barrier: the threads that gather, and the one that has the left factor's box copied."""


@device
def fetch_left(tensor_map: int, stages: int, barriers: int, step: int, column: int, row: int, n_bytes: int) -> None:
    """One thread: the left factor's box of this stage."""
    barrier_expect(full_at(barriers, stage_of(step)), n_bytes)
    copy_box(stages + stage_of(step) * STAGE_BYTES, tensor_map, column, row, full_at(barriers, stage_of(step)))


@device
@unrolled
def rows_of(neurons_UH: Array, union: int, first: int, count: int, apart: int, rows: Array) -> None:
    """Neurons of this thread's pieces, ``apart`` places from one another; -1 past the union."""
    for i in unroll(PIECES):
        place = first + i * apart
        rows[i] = -1
        if place < count:
            rows[i] = neurons_UH[union, place]


@device
@unrolled
def gather_along(weight_HD: Array, rows: Array, thread: int, stages: int, barriers: int, step: int, k: int) -> None:
    """Rows of 64 k each, K-major: thread t brings piece t % 8 of the rows t // 8 + 16 i."""
    piece = thread & 7
    row = thread >> 3
    place = stages + stage_of(step) * STAGE_BYTES + LEFT_BYTES + row * 128 + ((piece ^ (row & 7)) << 4)
    column = k * BK + piece * 8
    start = global_address(weight_HD) + column * 2
    pitch = weight_HD.shape[1] * 2
    for i in unroll(PIECES):
        n_bytes = 0
        neuron = int64(0)
        if column < weight_HD.shape[1] and rows[i] >= 0:
            n_bytes = 16
            neuron = int64(rows[i])
        copy_16_bytes(place + i * 2048, start + neuron * pitch, n_bytes)
    copies_arrive(full_at(barriers, stage_of(step)))


@device
@unrolled
def gather_across(
    weight_HD: Array,
    neurons_UH: Array,
    union: int,
    first: int,
    count: int,
    thread: int,
    stages: int,
    barriers: int,
    step: int,
    first_column: int,
) -> None:
    """64 rows of 256 columns, MN-major: thread t brings piece t % 32 of the rows t // 32 + 4 i."""
    mine = int64(kept(uint32(thread)))  # or 16 places would be computed once, and kept in registers that are not there
    piece = mine & 31
    row = mine >> 5
    column = first_column + piece * 8
    # Blocks of 64 columns stand behind one another; in a block a row has 128 bytes.
    place = stages + stage_of(step) * STAGE_BYTES + LEFT_BYTES + (piece >> 3) * 8192
    start = global_address(weight_HD) + column * 2
    pitch = weight_HD.shape[1] * 2
    for i in unroll(PIECES):
        n_bytes = 0
        neuron = int64(0)
        if column < weight_HD.shape[1] and first + row + 4 * i < count:
            n_bytes = 16
            neuron = int64(neurons_UH[union, first + row + 4 * i])
        k = row + 4 * i
        copy_16_bytes(place + k * 128 + (((piece & 7) ^ (k & 7)) << 4), start + neuron * pitch, n_bytes)
    copies_arrive(full_at(barriers, stage_of(step)))
