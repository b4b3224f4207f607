"""What the Hopper kernels have in common: tiles, their order, the stages of shared memory, and the two roles.

A block has three warpgroups. The first starts copies into a ring of stages; the other two multiply what has come, 64
rows each. Two barriers a stage keep them apart: *full* turns over when a stage's bytes are there, *empty* when both
multiplying groups are done with it::

    copies      wait(empty) -> expect, copy ------------------> wait(empty of the next stage) ...
    products                      wait(full) -> multiply -> arrive(empty of the stage before) ...

Letters: M tokens, D model width, H hidden width; BM x BN x BK is the tile.
"""

from __future__ import annotations

from typing import Any

from twell.cuda_target import Array, cuda, device
from twell.tensorcore.ptx import (
    address_in,
    barrier_arrive,
    barrier_arrive_in,
    barrier_init,
    barrier_wait,
    fence_async,
    fence_barriers,
    product_commit,
    product_fence,
    product_wait,
    product_wait_but_last,
    quotient,
)
from twell.tensorcore.wgmma import across_columns, k_major, make_product

BM, BN, BK = 128, 256, 64
STAGE_BITS = 2
STAGES = 1 << STAGE_BITS
BARRIERS = 2 * STAGES
SUMS = BN // 2
"""Registers of a thread that hold its part of the product."""
THREADS = 384
LEFT_BYTES, RIGHT_BYTES = BM * BK * 2, BN * BK * 2
STAGE_BYTES = LEFT_BYTES + RIGHT_BYTES
SHARED_BYTES = 1024 + STAGES * STAGE_BYTES
GROUP_ROWS = 16
"""Rows of tiles that are walked together, so that their factors stay in the L2 cache."""


@device
def aligned(address: int) -> int:
    """The next multiple of 1,024 bytes, where a swizzled box may begin."""
    return (address + 1023) & -1024


@device
def full_at(barriers: int, stage: int) -> int:
    """Address of the barrier that says: the stage's bytes are there."""
    return barriers + 8 * stage


@device
def empty_at(barriers: int, stage: int) -> int:
    """Address of the barrier that says: the stage may be overwritten."""
    return barriers + 8 * (STAGES + stage)


@device
def stage_of(step: int) -> int:
    """Place in the ring of a step, counted over all tiles of the block."""
    return step & (STAGES - 1)


@device
def init_barriers(barriers: int, n_filling: int, n_emptying: int) -> None:
    """One thread prepares all; the block (or cluster) has to meet afterwards."""
    for stage in range(STAGES):
        barrier_init(full_at(barriers, stage), n_filling)
        barrier_init(empty_at(barriers, stage), n_emptying)
    fence_barriers()


@device
def wait_for_space(barriers: int, step: int) -> None:
    """The copying side: the stage of this step is free. The first time round it is, without anyone's arrival."""
    barrier_wait(empty_at(barriers, stage_of(step)), ((step >> STAGE_BITS) & 1) ^ 1)


@device
def wait_for_bytes(barriers: int, step: int) -> None:
    """The multiplying side: the stage of this step is there."""
    barrier_wait(full_at(barriers, stage_of(step)), (step >> STAGE_BITS) & 1)


@device
def release(barriers: int, step: int, cluster: int) -> None:
    """One thread of a multiplying group says to every block that fills this stage that it is done with it."""
    if cluster == 1:
        barrier_arrive(empty_at(barriers, stage_of(step)))
    else:
        for rank in range(cluster):
            barrier_arrive_in(address_in(empty_at(barriers, stage_of(step)), rank))


@device
def row_tile(place: int, n_rows: int, n_columns: int, group: int) -> int:
    """Row of tiles at a place in the order: down ``group`` rows, then the next column."""
    strip = quotient(place, group * n_columns)
    rows = min(n_rows - strip * group, group)
    inside = place - strip * group * n_columns
    return strip * group + inside - quotient(inside, rows) * rows


@device
def column_tile(place: int, n_rows: int, n_columns: int, group: int) -> int:
    """Column of tiles at a place in the order."""
    strip = quotient(place, group * n_columns)
    return quotient(place - strip * group * n_columns, min(n_rows - strip * group, group))


def make_multiply(*, rows: int = BM, across: bool = False, gathered: bool = False, cluster: int = 1) -> Any:
    """The loop over the stages of one tile, for a multiplying group; see :func:`multiply` in it.

    Parameters
    ----------
    rows : {128, 64}
        Rows of the left factor. With 128 each group multiplies 64 of them by all 256 columns, with 64 both multiply the
        same rows, by 128 columns each.
    across : bool
        The right factor lies in shared memory as rows of columns, one for each k.
    gathered : bool
        The right factor came with cp.async, which the tensor cores see only after a fence.
    cluster : {1, 2}
        Blocks that fill this block's stages, and hear when they are free.
    """
    product = make_product(BN if rows == BM else BN // 2, across=across)
    right_of = across_columns if across else k_major
    left_part = LEFT_BYTES // 2 if rows == BM else 0
    right_part = 0 if rows == BM else RIGHT_BYTES // 2
    # The next 16 k: 32 bytes along each row, or 16 rows further in the block of 64 columns.
    next_k = 16 * 128 if across else 32

    @device
    def multiply(sums: Array, stages: int, barriers: int, step: int, n_steps: int, group: int, like: Array) -> int:
        """Multiply ``n_steps`` stages (at least 1) from ``step`` on. Returns the step after them."""
        for k in range(n_steps):
            wait_for_bytes(barriers, step)
            left = stages + stage_of(step) * STAGE_BYTES + group * left_part
            right = stages + stage_of(step) * STAGE_BYTES + LEFT_BYTES + group * right_part
            if gathered:
                fence_async()
            product_fence()
            product(sums, k_major(left), right_of(right), k, like)
            product(sums, k_major(left + 32), right_of(right + next_k), 1, like)
            product(sums, k_major(left + 64), right_of(right + 2 * next_k), 1, like)
            product(sums, k_major(left + 96), right_of(right + 3 * next_k), 1, like)
            product_commit()
            if k > 0:
                product_wait_but_last()
                if cuda.threadIdx.x & 127 == 0:
                    release(barriers, step - 1, cluster)
            step += 1
        product_wait()
        if cuda.threadIdx.x & 127 == 0:
            release(barriers, step - 1, cluster)
        return step

    return multiply
