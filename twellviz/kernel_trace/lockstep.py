"""The order in which a GPU could have run a launch: warp by warp, all lanes of an instruction at once.

The recorder runs one thread to its barrier before the next, which is not what a reader should see. A step is one warp
access; the steps of a block and epoch are ordered so that no thread's own order changes and all warps advance
together. Letters: E accesses, G steps.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twellviz.errors import TraceError
from twellviz.kernel_trace.measures import warp_accesses
from twellviz.kernel_trace.trace import KernelTrace

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Steps:
    """A launch in steps.

    Attributes
    ----------
    step : int64 [E]
        The step that each access belongs to.
    first : int64 [G]
        Order number of one access of each step.
    """

    step: Ints
    first: Ints

    @property
    def n(self) -> int:
        """Number of steps."""
        return len(self.first)

    def members(self, step: int) -> Ints:
        """Order numbers of the accesses of a step, by lane.

        Raises
        ------
        TraceError
            There is no such step.
        """
        if not 0 <= step < self.n:
            raise TraceError(f"step={step}: the recording has steps 0 to {self.n - 1}")
        return np.flatnonzero(self.step == step)


def steps(trace: KernelTrace) -> Steps:
    """Order the warp accesses of a trace; computed once for each trace."""
    found = trace.__dict__.get("_steps")
    if found is None:
        found = trace.__dict__["_steps"] = _steps(trace)
    return found


def _steps(trace: KernelTrace) -> Steps:
    groups = warp_accesses(trace)
    group, n = groups.group, groups.n_groups
    if not n:
        return Steps(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    order = np.lexsort((np.arange(len(group)), trace.thread, trace.epoch))
    new = np.ones(len(order), dtype=bool)
    new[1:] = (trace.thread[order[1:]] != trace.thread[order[:-1]]) | (
        trace.epoch[order[1:]] != trace.epoch[order[:-1]]
    )
    starts = np.flatnonzero(new)
    position = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
    depth = np.zeros(n, dtype=np.int64)
    np.maximum.at(depth, group[order], position)
    follows = ~new[1:] & (group[order[1:]] != group[order[:-1]])
    edges = np.unique(np.stack([group[order[:-1]][follows], group[order[1:]][follows]], axis=1), axis=0)
    first = groups.first
    bucket = np.stack([trace.block_of[first], trace.epoch[first]], axis=1)
    _, bucket_of = np.unique(bucket, axis=0, return_inverse=True)
    keys = list(zip(bucket_of.reshape(-1).tolist(), depth.tolist(), trace.warp[first].tolist(), strict=True))
    places = [trace.sites[i].position for i in trace.site[first]]
    ranks = [(*key, place, number) for number, (key, place) in enumerate(zip(keys, places, strict=True))]
    placed = _topological(ranks, edges, n)
    step = np.empty(n, dtype=np.int64)
    step[placed] = np.arange(n)
    return Steps(step[group], first[placed])


def _topological(ranks: Sequence[tuple[Any, ...]], edges: Ints, n: int) -> list[int]:
    """Numbers 0 to n - 1 so that edges point forward, and otherwise by rank.

    Accesses of lanes that went separate ways may have been paired so that no order suits all; the lowest rank then
    goes first.
    """
    before = np.bincount(edges[:, 1], minlength=n).tolist()
    after: list[list[int]] = [[] for _ in range(n)]
    for one, other in edges.tolist():
        after[one].append(other)
    ready = [ranks[i] for i in range(n) if before[i] == 0]
    heapq.heapify(ready)
    by_rank = iter(sorted(ranks))
    placed: list[int] = []
    done = [False] * n
    while len(placed) < n:
        rank = heapq.heappop(ready) if ready else next(rank for rank in by_rank if not done[rank[-1]])
        number: int = rank[-1]
        if done[number]:
            continue
        done[number] = True
        placed.append(number)
        for other in after[number]:
            before[other] -= 1
            if before[other] == 0 and not done[other]:
                heapq.heappush(ready, ranks[other])
    return placed
