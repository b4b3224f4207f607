"""Coalescing, bank conflicts, bytes and atomics against counts done by hand; the order of steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numba import cuda, float32, float64, int32, uint16

from twellviz.errors import TraceError
from twellviz.kernel_trace import KernelTrace, bank_conflicts, coalescing, empty, record_kernel, steps


def copy(out: Any, a: Any, stride: int, start: int) -> None:
    i = cuda.grid(1)
    out[i] = a[i * stride + start]


def reads(trace: KernelTrace) -> Any:
    (row,) = coalescing(trace).query("operation == 'read'").to_dict("records")
    return row


@pytest.mark.parametrize(
    ("dtype", "stride", "start", "sectors", "ideal", "lines"),
    [
        (np.float32, 1, 0, 4, 4, 1),
        (np.float32, 1, 1, 5, 4, 2),
        (np.float32, 2, 0, 8, 4, 2),
        (np.float32, 32, 0, 32, 4, 32),
        (np.float32, 0, 5, 1, 1, 1),
        (np.float64, 1, 0, 8, 8, 2),
        (np.uint16, 1, 0, 2, 2, 1),
        (np.int8, 8, 0, 8, 1, 2),
    ],
)
def test_sectors_of_one_warp(dtype: type, stride: int, start: int, sectors: int, ideal: int, lines: int) -> None:
    trace = record_kernel(copy, 1, 32, empty(32, dtype), np.arange(1100).astype(dtype), stride, start).check()
    row = reads(trace)
    assert (row["warp_accesses"], row["accesses"]) == (1, 32)
    assert (row["sectors"], row["ideal_sectors"], row["lines"]) == (sectors, ideal, lines)
    assert row["efficiency"] == ideal / sectors
    table = trace.table().set_index("array")
    assert table.loc["a", "moved_bytes"] == 32 * sectors
    assert table.loc["a", "bytes"] == 32 * np.dtype(dtype).itemsize


def test_each_warp_and_each_instruction_counts_on_its_own() -> None:
    def add(out: Any, a: Any) -> None:
        i = cuda.grid(1)
        for k in range(3):
            out[i, k] = a[k, i] + a[k, 0]

    trace = record_kernel(add, 2, 64, empty((128, 3), np.float32), np.zeros((3, 128), np.float32)).check()
    rows = coalescing(trace).to_dict("records")
    assert [(row["array"], row["operation"], row["warp_accesses"], row["sectors"]) for row in rows] == [
        ("a", "read", 12, 48),
        ("a", "read", 12, 12),
        ("out", "write", 12, 144),
    ]
    assert {row["source"] for row in rows} == {"out[i, k] = a[k, i] + a[k, 0]"}


def test_strides_of_the_callers_memory_decide() -> None:
    def sum_rows(out: Any, a: Any) -> None:
        i = cuda.grid(1)
        out[i] = a[i, 0]

    square = np.arange(1024, dtype=np.float32).reshape(32, 32)
    for array, sectors in ((square, 32), (square.T, 4), (square.T[::-1, ::-1], 4), (torch.from_numpy(square).T, 4)):
        trace = record_kernel(sum_rows, 1, 32, empty(32, np.float32), array).check()
        assert reads(trace)["sectors"] == sectors
        assert trace.outputs["out"].tolist() == np.asarray(array)[:, 0].tolist()


@pytest.mark.parametrize(
    ("dtype", "stride", "passes", "ideal"),
    [
        (float32, 1, 1, 1),
        (float32, 2, 2, 1),
        (float32, 3, 1, 1),
        (float32, 8, 8, 1),
        (float32, 32, 32, 1),
        (float32, 33, 1, 1),
        (float32, 0, 1, 1),
        (uint16, 1, 1, 1),
        (uint16, 2, 1, 1),
        (float64, 1, 2, 2),
        (float64, 2, 4, 2),
        (float64, 0, 2, 2),
    ],
)
def test_bank_conflicts(dtype: Any, stride: int, passes: int, ideal: int) -> None:
    def kernel(out: Any) -> None:
        tile = cuda.shared.array(1100, dtype)
        t = cuda.threadIdx.x
        for first in range(0, 1100, 32):
            if first + t < 1100:
                tile[first + t] = t
        cuda.syncthreads()
        out[t] = tile[t * stride]

    trace = record_kernel(kernel, 1, 32, empty(32, np.float32)).check()
    (row,) = bank_conflicts(trace).query("operation == 'read'").to_dict("records")
    assert (row["passes"], row["ideal_passes"], row["worst"]) == (passes, ideal, passes)
    assert trace.table().set_index("array").loc["tile", "extra_passes"] == passes - ideal


def test_padding_a_tile_cures_its_transposition() -> None:
    def transpose(out: Any, a: Any, width: int) -> None:
        tile = cuda.shared.array((32, width), float32)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        for row in range(y, 32, 4):
            tile[row, x] = a[row, x]
        cuda.syncthreads()
        for row in range(y, 32, 4):
            out[row, x] = tile[x, row]

    a = np.arange(1024, dtype=np.float32).reshape(32, 32)
    extra = {}
    for width in (32, 33):
        trace = record_kernel(transpose, 1, (32, 4), empty((32, 32), np.float32), a, width).check()
        assert np.array_equal(trace.outputs["out"], a.T)
        table = trace.table().set_index("array")
        extra[width] = int(table.loc["tile", "extra_passes"])
        assert table.loc[["out", "a"], "efficiency"].tolist() == [1, 1]
    assert extra == {32: 32 * 31, 33: 0}


def test_table_of_a_histogram() -> None:
    def histogram(out: Any, a: Any) -> None:
        mine = cuda.local.array(1, int32)
        mine[0] = a[cuda.grid(1)]
        cuda.atomic.add(out, mine[0] % 4, 1)

    trace = record_kernel(histogram, 1, 64, np.zeros(4, np.int32), np.arange(64)).check()
    table = trace.table().set_index("array")
    assert table.loc["out", ["reads", "writes", "atomics", "cells", "atomic_queue"]].tolist() == [0, 0, 64, 4, 8]
    assert table.loc["a", ["reads", "cells", "bytes", "moved_bytes", "atomic_queue"]].tolist() == [64, 64, 512, 512, 0]
    assert table.loc["mine", ["space", "reads", "writes", "moved_bytes"]].tolist() == ["local", 64, 64, 0]
    assert np.isnan(table.loc["mine", "efficiency"])


def test_steps_keep_each_threads_order_and_advance_warps_together() -> None:
    def kernel(out: Any, a: Any) -> None:
        t = cuda.threadIdx.x
        total = float32(0)
        for k in range(1 + t % 3):
            total += a[k]
        cuda.syncthreads()
        if t % 2:
            out[t] = total
        else:
            out[t] = -total

    trace = record_kernel(kernel, 2, 64, empty(64, np.float32), np.arange(3, dtype=np.float32))
    order = steps(trace)
    assert order is steps(trace)
    assert sum(len(order.members(step)) for step in range(order.n)) == trace.n_accesses
    for thread in range(128):
        mine = order.step[trace.thread == thread]
        assert (np.diff(mine) > 0).all()
    for step in range(order.n):
        members = order.members(step)
        assert len(set(trace.thread[members] // 32)) == len(set(trace.site[members])) == 1
    first = [(int(trace.block_of[i]), int(trace.warp[i]), int(trace.cell[i])) for i in order.first[:6]]
    assert first == [(0, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1), (0, 0, 2), (0, 1, 2)]
    assert (np.diff(trace.block_of[order.first]) >= 0).all()
    with pytest.raises(TraceError, match=rf"step={order.n}: the recording has steps 0 to {order.n - 1}"):
        order.members(order.n)


def test_steps_of_lanes_that_went_separate_ways_still_hold_every_access() -> None:
    def kernel(a: Any) -> None:
        t = cuda.threadIdx.x
        for k in range(2):
            if (k + t) % 2:
                a[t] = a[t] + 1
            else:
                a[t] = a[t] * 2

    trace = record_kernel(kernel, 1, 4, np.arange(4)).check()
    order = steps(trace)
    assert sorted(np.concatenate([order.members(step) for step in range(order.n)]).tolist()) == list(range(16))


def test_a_launch_without_accesses() -> None:
    def nothing(a: Any) -> None:
        cuda.syncthreads()

    trace = record_kernel(nothing, 1, 2, np.zeros(2)).check()
    assert steps(trace).n == len(coalescing(trace)) == len(bank_conflicts(trace)) == 0
    assert trace.table()["bytes"].tolist() == [0]
