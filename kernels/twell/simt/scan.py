"""Ranks by prefix sum: where does my part of a list begin, if each thread of the block contributes some entries?

Every thread writes its count into shared memory; after a barrier a few threads add up groups of 32; after another
each thread adds the groups and the counts before its own. No atomics: the order is that of the threads, each time.

Letters: none; ``counts`` has one element a thread, ``sums`` one for every 32 threads.
"""

from __future__ import annotations

from typing import Any

from numpy import int32

from twell.cuda_target import Array, cuda, device

MAX_THREADS = 256
"""Threads of a block that ``counts`` has room for; a block has a multiple of 32."""

MAX_GROUPS = MAX_THREADS // 32

NOT_NEGATIVE = 0x7FFFFFFF
"""``cuda.blockIdx.x & NOT_NEGATIVE`` is ``cuda.blockIdx.x``, and the compiler then knows that it is not negative: it
leaves out the code for indices that count from the end of an array, and the registers that this code takes."""


@device
def sum_before(count: Any, counts: Array, sums: Array) -> Any:
    """Sum of ``count`` over the threads before this one. All threads of the block must call it."""
    thread = cuda.threadIdx.x
    cuda.syncthreads()  # a slower thread may still be reading the last call's sums
    counts[thread] = count
    cuda.syncthreads()
    if thread < (cuda.blockDim.x >> 5):
        group_sum = int32(0)
        for i in range(32):
            group_sum += counts[thread * 32 + i]
        sums[thread] = group_sum
    cuda.syncthreads()
    before = int32(0)
    for group in range(thread >> 5):
        before += sums[group]
    for i in range(thread & ~31, thread):
        before += counts[i]
    return before


@device
def sum_of_all(sums: Array) -> Any:
    """Sum over all threads, after :func:`sum_before`."""
    total = int32(0)
    for group in range(cuda.blockDim.x >> 5):
        total += sums[group]
    return total
