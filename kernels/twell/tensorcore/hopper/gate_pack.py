"""Gate product with the pack in its epilogue, on Hopper: ``relu(x gate^T)`` becomes TwELL without leaving the chip.

A persistent kernel: each block (or each pair of blocks) takes tiles of 128 tokens by 256 neurons until none is left.
The copy engine brings 64 columns of x and of the gate weights at a time; two warpgroups multiply; then
:mod:`~twell.tensorcore.hopper.pack_rows` packs from registers while the next tile's bytes are already on their way.

In a cluster two blocks share the neurons of a tile and differ in tokens. Each fetches half of the weights and the copy
engine writes it to both: a third less traffic from the L2 cache, which is what bounds the plain version.

Letters: M tokens, D model width, H hidden width, N tiles of a row, S words of a tile, L = 256 N columns.
"""

from __future__ import annotations

import functools

from numpy import float32, uint8, uint64

from twell.cuda_target import Array, Kernel, cuda, device, kernel
from twell.tensorcore.hopper.pack_rows import TILE, keep_spilled_rows, pack_rows
from twell.tensorcore.hopper.tiles import (
    BARRIERS,
    BK,
    BM,
    BN,
    GROUP_ROWS,
    LEFT_BYTES,
    RIGHT_BYTES,
    STAGE_BYTES,
    SUMS,
    THREADS,
    aligned,
    column_tile,
    full_at,
    init_barriers,
    make_multiply,
    row_tile,
    stage_of,
    wait_for_space,
)
from twell.tensorcore.ptx import (
    barrier_expect,
    cluster_rank,
    cluster_sync,
    copy_box,
    copy_box_to_cluster,
    give_some_registers,
    quotient,
    shared_address,
    take_some_registers,
)

assert BN == TILE


def make_pack_kernel(cluster: int, spilled: bool) -> Kernel:
    """The kernel for clusters of 1 or 2 blocks; ``spilled``: the second pass, which looks only at tiles that spill."""
    both = (1 << cluster) - 1
    box_rows = BN // cluster
    group = GROUP_ROWS // cluster
    multiply = make_multiply(cluster=cluster)

    @device
    def fetch(x_map: int, gate_map: int, stages: int, barriers: int, step: int, k: int, row: int, column: int) -> None:
        """Start the copies of one stage: this block's tokens, and its share of the neurons."""
        wait_for_space(barriers, step)
        full = full_at(barriers, stage_of(step))
        stage = stages + (stage_of(step)) * STAGE_BYTES
        barrier_expect(full, STAGE_BYTES)
        copy_box(stage, x_map, k * BK, row * BM, full)
        if cluster == 1:
            copy_box(stage + LEFT_BYTES, gate_map, k * BK, column * BN, full)
        else:
            rank = cluster_rank()
            place = stage + LEFT_BYTES + rank * (RIGHT_BYTES // cluster)
            copy_box_to_cluster(place, gate_map, k * BK, column * BN + rank * box_rows, full, both)

    @device
    def wanted(spills: Array, row: int, column: int, n_columns: int) -> bool:
        """Whether the tile has to be computed: always, or if a row of it, or of its partner's, did not fit."""
        if not spilled:
            return True
        found = False
        for rank in range(cluster):
            if spills[1 + (row * cluster + rank) * n_columns + column] != 0:
                found = True
        return found

    @kernel(launch_bounds=(THREADS, 1), cluster=cluster)
    def gate_pack(
        x_map: int,
        gate_map: int,
        like: Array,
        words_MNS: Array,
        over_M: Array,
        spills: Array,
        spilled_ML: Array,
        n_hidden: int,
    ) -> None:
        barrier_words = cuda.shared.array(BARRIERS, uint64)
        memory = cuda.shared.array(0, uint8)
        stages = aligned(shared_address(memory))
        barriers = shared_address(barrier_words)
        thread = cuda.threadIdx.x
        n_steps = (like.shape[1] + BK - 1) >> 6
        n_columns = words_MNS.shape[1]
        n_rows = quotient(words_MNS.shape[0] + BM * cluster - 1, BM * cluster)
        n_clusters = quotient(cuda.gridDim.x, cluster)
        place = quotient(cuda.blockIdx.x, cluster)
        rank = 0
        if cluster > 1:
            rank = cluster_rank()
        if spilled and spills[0] == 0:
            return
        if thread == 0:
            init_barriers(barriers, 1, 2 * cluster)
        cuda.syncthreads()
        if cluster > 1:
            cluster_sync()
        step = 0
        if thread < 128:
            give_some_registers()
            if thread == 0:
                while place < n_rows * n_columns:
                    row = row_tile(place, n_rows, n_columns, group)
                    column = column_tile(place, n_rows, n_columns, group)
                    if wanted(spills, row, column, n_columns):
                        for k in range(n_steps):
                            fetch(x_map, gate_map, stages, barriers, step, k, row * cluster + rank, column)
                            step += 1
                    place += n_clusters
        else:
            take_some_registers()
            sums = cuda.local.array(SUMS, float32)
            mine = (thread >> 7) - 1
            while place < n_rows * n_columns:
                row = row_tile(place, n_rows, n_columns, group)
                column = column_tile(place, n_rows, n_columns, group)
                if wanted(spills, row, column, n_columns):
                    step = multiply(sums, stages, barriers, step, n_steps, mine, like)
                    first = (row * cluster + rank) * BM + mine * 64
                    if spilled:
                        keep_spilled_rows(sums, words_MNS, spilled_ML, like, first, column, n_hidden)
                    else:
                        pack_rows(sums, words_MNS, over_M, spills, like, first, column, n_hidden)
                place += n_clusters
        if cluster > 1:
            # A block must not leave while another may still write to its memory or its barriers.
            cluster_sync()

    return gate_pack


@functools.cache
def pack_kernel(cluster: int, spilled: bool = False) -> Kernel:
    """The kernel, made once."""
    return make_pack_kernel(cluster, spilled)
