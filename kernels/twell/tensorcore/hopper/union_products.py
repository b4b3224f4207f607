"""The two products of a union tile on tensor cores: up times the gate values, and down.

For B neighbouring tokens (the rows of a tile) the first product multiplies x by the up weights of the union's neurons,
256 at a time, and its epilogue multiplies by the gate values: ``h_ML``, zero where a token does not fire the neuron.
The second multiplies h by the down weights of the same neurons: for it the union is what is summed over, so their rows
lie in shared memory as they are (MN-major), and nothing is transposed.

Work per token grows with the union, not with H; each weight row is read once for B tokens.

Letters: M tokens, D model width, H hidden width, B tokens of a union, U unions, L columns of h.
"""

from __future__ import annotations

import functools
from typing import Any

from numpy import float32, int32, uint8, uint64

from twell.cuda_target import Array, Kernel, cuda, device, kernel, large_device
from twell.simt.bits import widen
from twell.simt.vector import pair
from twell.tensorcore.hopper.gather import FILLING, PIECES, fetch_left, gather_across, gather_along, rows_of
from twell.tensorcore.hopper.tiles import (
    BARRIERS,
    BK,
    BM,
    BN,
    THREADS,
    aligned,
    init_barriers,
    make_multiply,
    wait_for_space,
)
from twell.tensorcore.ptx import (
    give_some_registers,
    quotient,
    shared_address,
    store_pair,
    take_some_registers,
)
from twell.tensorcore.unroll import unroll, unrolled


@device
def union_of(tiles_U: Array, place: int) -> int:
    """The union to which a tile belongs: the last whose tiles begin at ``place`` or before, found by halves."""
    low = 0
    high = tiles_U.shape[0] - 1
    while high - low > 1:
        middle = (low + high) >> 1
        if tiles_U[middle] <= place:
            low = middle
        else:
            high = middle
    return low


@device
def steps_of(count: int) -> int:
    """Steps of 64 neurons; an empty union takes one, of zeros, so that its tokens' rows are written like any other."""
    return max((count + BK - 1) >> 6, 1)


@large_device
def store_gated_pair(h_ML: Array, row: int, column: int, left: Any, right: Any) -> None:
    """Two neighbouring gate values times up. An inactive neuron gives zero even where up is infinite."""
    low = widen(h_ML[row, column])
    high = widen(h_ML[row, column + 1])
    if low != float32(0):
        low *= left
    if high != float32(0):
        high *= right
    store_pair(h_ML, row * h_ML.shape[1] + column, pair(low, high, h_ML))


@large_device
def store_inside(y_MD: Array, row: int, column: int, left: Any, right: Any) -> None:
    """Two neighbouring results, if the columns are there."""
    if column < y_MD.shape[1]:
        store_pair(y_MD, row * y_MD.shape[1] + column, pair(left, right, y_MD))


def make_up_kernel(rows: int) -> Kernel:
    """``h = gates * (x up^T)`` over the unions of ``rows`` (128 or 64) tokens; ``h_ML`` holds the gates before."""
    columns = BN if rows == BM else BN // 2
    n_sums = columns // 2
    n_quads = columns // 8
    left_bytes = rows * BK * 2
    multiply = make_multiply(rows=rows, gathered=True)

    @large_device
    @unrolled
    def store_gated(sums: Array, h_ML: Array, row: int, column: int) -> None:
        """The thread's two rows, in pairs of columns."""
        for half in unroll(2):
            if row + 8 * half < h_ML.shape[0]:
                for j in unroll(n_quads):
                    store_gated_pair(
                        h_ML, row + 8 * half, column + 8 * j, sums[4 * j + 2 * half], sums[4 * j + 2 * half + 1]
                    )

    @kernel(launch_bounds=(THREADS, 1))
    def union_up(x_map: int, up_HD: Array, neurons_UH: Array, counts_U: Array, tiles_U: Array, h_ML: Array) -> None:
        barrier_words = cuda.shared.array(BARRIERS, uint64)
        memory = cuda.shared.array(0, uint8)
        stages = aligned(shared_address(memory))
        barriers = shared_address(barrier_words)
        thread = cuda.threadIdx.x
        n_steps = (up_HD.shape[1] + BK - 1) >> 6
        n_tiles = tiles_U[counts_U.shape[0]]
        place = cuda.blockIdx.x
        if thread == 0:
            init_barriers(barriers, FILLING, 2)
        cuda.syncthreads()
        step = 0
        if thread < 128:
            give_some_registers()
            wanted = cuda.local.array(PIECES, int32)
            while place < n_tiles:
                union = union_of(tiles_U, place)
                first = (place - tiles_U[union]) * BN
                rows_of(neurons_UH, union, first + (thread >> 3), counts_U[union], 16, wanted)
                for k in range(n_steps):
                    wait_for_space(barriers, step)
                    if thread == 0:
                        fetch_left(x_map, stages, barriers, step, k * BK, union * rows, left_bytes)
                    gather_along(up_HD, wanted, thread, stages, barriers, step, k)
                    step += 1
                place += cuda.gridDim.x
        else:
            take_some_registers()
            sums = cuda.local.array(n_sums, float32)
            mine = (thread >> 7) - 1
            lane = thread & 127
            while place < n_tiles:
                union = union_of(tiles_U, place)
                step = multiply(sums, stages, barriers, step, n_steps, mine, up_HD)
                row = union * rows + (lane >> 5) * 16 + ((lane & 31) >> 2)
                column = (place - tiles_U[union]) * BN + 2 * (lane & 3)
                if rows == BM:
                    row += mine * 64
                else:
                    column += mine * columns
                store_gated(sums, h_ML, row, column)
                place += cuda.gridDim.x

    return union_up


def make_down_kernel(rows: int) -> Kernel:
    """``y = h down`` over the unions of ``rows`` (128 or 64) tokens."""
    columns = BN if rows == BM else BN // 2
    n_sums = columns // 2
    n_quads = columns // 8
    left_bytes = rows * BK * 2
    multiply = make_multiply(rows=rows, across=True, gathered=True)

    @large_device
    @unrolled
    def store_rows(sums: Array, y_MD: Array, row: int, column: int) -> None:
        """The thread's two rows, in pairs of columns."""
        for half in unroll(2):
            if row + 8 * half < y_MD.shape[0]:
                for j in unroll(n_quads):
                    store_inside(
                        y_MD, row + 8 * half, column + 8 * j, sums[4 * j + 2 * half], sums[4 * j + 2 * half + 1]
                    )

    @kernel(launch_bounds=(THREADS, 1))
    def union_down(h_map: int, down_HD: Array, neurons_UH: Array, counts_U: Array, y_MD: Array) -> None:
        barrier_words = cuda.shared.array(BARRIERS, uint64)
        memory = cuda.shared.array(0, uint8)
        stages = aligned(shared_address(memory))
        barriers = shared_address(barrier_words)
        thread = cuda.threadIdx.x
        n_columns = (y_MD.shape[1] + BN - 1) >> 8
        n_tiles = counts_U.shape[0] * n_columns
        place = cuda.blockIdx.x
        if thread == 0:
            init_barriers(barriers, FILLING, 2)
        cuda.syncthreads()
        step = 0
        if thread < 128:
            give_some_registers()
            while place < n_tiles:
                union = quotient(place, n_columns)
                first_column = (place - union * n_columns) * BN
                count = counts_U[union]
                for k in range(steps_of(count)):
                    wait_for_space(barriers, step)
                    if thread == 0:
                        fetch_left(h_map, stages, barriers, step, k * BK, union * rows, left_bytes)
                    gather_across(
                        down_HD, neurons_UH, union, k * BK, count, thread, stages, barriers, step, first_column
                    )
                    step += 1
                place += cuda.gridDim.x
        else:
            take_some_registers()
            sums = cuda.local.array(n_sums, float32)
            mine = (thread >> 7) - 1
            lane = thread & 127
            while place < n_tiles:
                union = quotient(place, n_columns)
                step = multiply(sums, stages, barriers, step, steps_of(counts_U[union]), mine, down_HD)
                row = union * rows + (lane >> 5) * 16 + ((lane & 31) >> 2)
                column = (place - union * n_columns) * BN + 2 * (lane & 3)
                if rows == BM:
                    row += mine * 64
                else:
                    column += mine * columns
                store_rows(sums, y_MD, row, column)
                place += cuda.gridDim.x

    return union_down


up_kernel = functools.cache(make_up_kernel)
down_kernel = functools.cache(make_down_kernel)
