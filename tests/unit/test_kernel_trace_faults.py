"""Every kind of mistake is found and named with its line, threads, array and cell; what is right is left in peace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numba import cuda, float32, int32

from twellviz.kernel_trace import Fault, KernelFault, KernelTrace, empty, record_kernel

N = 32


def only(trace: KernelTrace) -> Fault:
    assert len(trace.faults) == 1, trace.faults
    return trace.faults[0]


def line(kernel: Callable[..., None], offset: int) -> int:
    return kernel.__code__.co_firstlineno + offset


def test_race_without_a_barrier() -> None:
    def reverse(out: Any, a: Any) -> None:
        tile = cuda.shared.array(N, float32)
        t = cuda.threadIdx.x
        tile[t] = a[t]
        out[t] = tile[N - 1 - t]

    trace = record_kernel(reverse, 1, N, empty(N, np.float32), np.arange(N, dtype=np.float32))
    fault = only(trace)
    assert (fault.kind, fault.array, fault.epoch, fault.count) == ("race", "tile", 0, N)
    assert {fault.line, fault.other_line} == {line(reverse, 3), line(reverse, 4)}
    assert fault.thread != fault.other_thread
    assert fault.index in ((fault.thread), (fault.other_thread))
    with pytest.raises(KernelFault, match=r"race: thread \d+ .* tile\[\d+\] .*cuda.syncthreads\(\) between") as caught:
        trace.check()
    assert caught.value.fault is fault


def test_race_of_the_second_round_of_a_loop() -> None:
    def sweep(out: Any, a: Any) -> None:
        tile = cuda.shared.array(4, float32)
        t = cuda.threadIdx.x
        total = float32(0)
        for first in range(0, 8, 4):
            tile[t] = a[first + t]
            cuda.syncthreads()
            for k in range(4):
                total += tile[k]
        out[t] = total

    fault = only(record_kernel(sweep, 1, 4, empty(4, np.float32), np.arange(8, dtype=np.float32)))
    assert (fault.kind, fault.array, fault.epoch) == ("race", "tile", 1)
    assert {fault.line, fault.other_line} == {line(sweep, 5), line(sweep, 8)}


@pytest.mark.parametrize("grid", [1, 2])
def test_race_of_a_sum_without_atomics(grid: int) -> None:
    def total(out: Any, a: Any) -> None:
        i = cuda.grid(1)
        out[0] += a[i]

    block = 8 // grid
    trace = record_kernel(total, grid, block, np.zeros(1), np.arange(8.0))
    kinds = {fault.kind for fault in trace.faults}
    assert kinds == ({"race"} if grid == 1 else {"race", "race between blocks"})
    assert all("cuda.atomic.add" in fault.message for fault in trace.faults)
    assert {(fault.array, fault.index, fault.line) for fault in trace.faults} == {("out", (0,), line(total, 2))}


def test_race_between_blocks() -> None:
    def neighbour(out: Any, a: Any) -> None:
        i = cuda.grid(1)
        out[i] = a[i]
        cuda.syncthreads()
        if i > 0:
            a[i] = out[i - 1]

    fault = only(record_kernel(neighbour, 2, 4, empty(8, np.int64), np.arange(8)))
    assert fault.kind == "race between blocks"
    assert (fault.array, fault.index) == ("out", (3,))
    assert {fault.block, fault.other_block} == {(0,), (1,)}
    assert "No barrier reaches across blocks" in fault.message


def test_race_of_a_read_beside_an_atomic() -> None:
    def count(out: Any, counter: Any) -> None:
        cuda.atomic.add(counter, 0, 1)
        out[cuda.threadIdx.x] = counter[0]

    fault = only(record_kernel(count, 1, 4, empty(4, np.int32), np.zeros(1, np.int32)))
    assert (fault.kind, fault.array, fault.index) == ("race", "counter", (0,))
    assert "atomically" in fault.message


def test_race_of_two_different_writes_to_one_cell() -> None:
    def last_wins(out: Any) -> None:
        out[cuda.threadIdx.x // 2] = cuda.threadIdx.x

    fault = only(record_kernel(last_wins, 1, 4, empty(2, np.int32)))
    assert (fault.kind, fault.index, fault.count) == ("race", (0,), 2)
    assert fault.other_thread == (0,)
    assert fault.thread == (1,)
    assert "give each thread a cell of its own" in fault.message


def test_the_same_value_from_many_threads_is_a_hint() -> None:
    def flag(out: Any) -> None:
        out[0] = 7

    trace = record_kernel(flag, 2, 4, empty(1, np.int32)).check()
    assert {hint.kind for hint in trace.hints} == {"same value written twice"}
    assert "hint: same value" in repr(trace)


def test_a_racy_kernel_gives_another_result_in_reverse_order() -> None:
    def shift(a: Any) -> None:
        t = cuda.threadIdx.x
        if t > 0:
            a[t] = a[t - 1]

    results = [record_kernel(shift, 1, 4, np.arange(4), order=order) for order in ("forward", "reverse")]
    assert [result.outputs["a"].tolist() for result in results] == [[0, 0, 0, 0], [0, 0, 1, 2]]
    assert {only(result).kind for result in results} == {"race"}


def test_missing_guard() -> None:
    def add(out: Any, a: Any) -> None:
        i = cuda.grid(1)
        out[i] = a[i] + 10

    trace = record_kernel(add, 3, 16, empty(33, np.float32), np.arange(33, dtype=np.float32))
    assert [(fault.kind, fault.array, fault.index, fault.count) for fault in trace.faults] == [
        ("out of range", "a", (33,), 15),
        ("out of range", "out", (33,), 15),
    ]
    fault = trace.faults[0]
    assert (fault.thread, fault.block, fault.line) == ((1,), (2,), line(add, 2))
    assert "48 threads for 33 cells" in fault.message
    assert "`if i < 33`" in fault.message
    # The threads that have work did it.
    assert trace.outputs["out"].tolist() == list(range(10, 43))


def test_off_by_one() -> None:
    def pairs(out: Any, a: Any) -> None:
        i = cuda.grid(1)
        if i <= a.size - 1:
            out[i] = a[i] + a[i + 1]

    fault = only(record_kernel(pairs, 1, 8, empty(5, np.int64), np.arange(5)))
    assert (fault.kind, fault.index, fault.thread) == ("out of range", (5,), (4,))
    assert "indices 0 to 4" in fault.message
    assert "one past the end" in fault.message


def test_out_of_range_along_one_axis_does_not_reach_into_the_next_row() -> None:
    def transpose(out: Any, a: Any) -> None:
        x, y = cuda.grid(2)
        out[x, y] = a[y, x]

    trace = record_kernel(transpose, 1, (3, 3), empty((3, 2), np.int64), np.arange(6).reshape(2, 3))
    assert {(fault.array, fault.index) for fault in trace.faults} == {("a", (2, 0)), ("out", (0, 2))}
    assert "indices 0 to 1 along axis 0" in trace.faults[0].message


@pytest.mark.parametrize("index", [5, -1, 2**40])
def test_out_of_range_in_a_view_and_by_an_atomic(index: int) -> None:
    def kernel(out: Any, a: Any, i: int) -> None:
        out[0] = a[1][i]
        cuda.atomic.add(out, i, 1)
        out[1] = a[i][0]

    trace = record_kernel(kernel, 1, 1, np.zeros(4, np.int64), np.ones((3, 4), np.int64), index)
    kind = "out of range" if index > 0 else "negative index"
    assert [(fault.kind, fault.array, fault.index) for fault in trace.faults] == [
        (kind, "a", (index,)),
        (kind, "out", (index,)),
        (kind, "a", (index, 0)),
    ]
    assert "view of a has indices 0 to 3" in trace.faults[0].message


def test_negative_index_is_not_the_last_cell() -> None:
    def difference(out: Any, a: Any) -> None:
        i = cuda.grid(1)
        if i < a.size:
            out[i] = a[i] - a[i - 1]

    trace = record_kernel(difference, 1, 8, empty(6, np.float32), np.arange(6, dtype=np.float32))
    fault = only(trace)
    assert (fault.kind, fault.array, fault.index, fault.thread) == ("negative index", "a", (-1,), (0,))
    assert "memory in front of the array" in fault.message
    assert np.isnan(trace.outputs["out"][0])


def test_unwritten_reads_of_all_three_kinds_of_memory() -> None:
    def kernel(out: Any) -> None:
        tile = cuda.shared.array(4, int32)
        mine = cuda.local.array(2, float32)
        t = cuda.threadIdx.x
        if t < 3:
            tile[t] = t
        cuda.syncthreads()
        out[t] = tile[t]
        out[t] += mine[1]
        out[t] += out[4]

    trace = record_kernel(kernel, 1, 4, empty(5, np.float32))
    found = [(fault.kind, fault.array, fault.index, fault.count) for fault in trace.faults]
    # In recorded order: thread 0 comes to its local array and to out[4] before thread 3 to its cell of the tile.
    assert found == [
        ("unwritten read", "mine", (1,), 4),
        ("unwritten read", "out", (4,), 4),
        ("unwritten read", "tile", (3,), 1),
    ]
    assert "starts with whatever was left there" in trace.faults[0].message
    assert trace.unwritten("out") == [(4,)]


def test_an_atomic_on_an_unwritten_cell_is_a_read_of_it() -> None:
    def kernel(out: Any) -> None:
        counts = cuda.shared.array(2, int32)
        cuda.atomic.add(counts, 0, 1)
        cuda.syncthreads()
        out[cuda.threadIdx.x] = counts[0]

    fault = only(record_kernel(kernel, 1, 2, empty(2, np.int32)))
    assert (fault.kind, fault.array, fault.index, fault.count) == ("unwritten read", "counts", (0,), 1)


def test_an_early_read_is_a_race_and_not_an_unwritten_read() -> None:
    def kernel(out: Any) -> None:
        tile = cuda.shared.array(4, int32)
        t = cuda.threadIdx.x
        tile[t] = t
        out[t] = tile[(t + 1) % 4]

    assert only(record_kernel(kernel, 1, 4, empty(4, np.int32))).kind == "race"


def test_divergent_barrier_inside_a_branch() -> None:
    def kernel(out: Any) -> None:
        t = cuda.threadIdx.x
        if t < 3:
            cuda.syncthreads()
        out[t] = t

    trace = record_kernel(kernel, 1, 4, empty(4, np.int32))
    fault = only(trace)
    assert (fault.kind, fault.line, fault.count) == ("divergent barrier", line(kernel, 3), 1)
    assert (fault.thread, fault.other_thread, fault.other_line) == ((0,), (3,), None)
    assert "has ended without reaching it" in fault.message


def test_divergent_barrier_after_an_early_return() -> None:
    def kernel(out: Any) -> None:
        tile = cuda.shared.array(4, int32)
        i = cuda.grid(1)
        if i >= out.size:
            return
        tile[cuda.threadIdx.x] = i
        cuda.syncthreads()
        out[i] = tile[cuda.threadIdx.x]

    fault = only(record_kernel(kernel, 2, 4, empty(6, np.int32)))
    assert (fault.kind, fault.block, fault.other_thread) == ("divergent barrier", (1,), (2,))
    record_kernel(kernel, 2, 4, empty(8, np.int32)).check()


def test_divergent_barrier_at_two_places() -> None:
    def kernel(out: Any) -> None:
        t = cuda.threadIdx.x
        if t < 2:
            cuda.syncthreads()
        else:
            cuda.syncthreads()
        out[t] = t

    fault = only(record_kernel(kernel, 1, 4, empty(4, np.int32)))
    assert (fault.kind, fault.line, fault.other_line) == ("divergent barrier", line(kernel, 3), line(kernel, 5))


def test_divergent_barrier_in_a_loop_of_uneven_length_comes_first() -> None:
    def kernel(out: Any, counts: Any) -> None:
        tile = cuda.shared.array(1, int32)
        t = cuda.threadIdx.x
        for i in range(counts[t]):
            tile[0] = i * (t + 1)
            cuda.syncthreads()
        out[t] = tile[0]

    trace = record_kernel(kernel, 1, 2, empty(2, np.int32), np.array([1, 3]))
    assert trace.faults[0].kind == "divergent barrier"
    assert trace.faults[0].count == 2
    assert "race" in {fault.kind for fault in trace.faults}


def test_two_dimensional_threads_are_named_so() -> None:
    def kernel(out: Any) -> None:
        x, y = cuda.grid(2)
        out[y, x] = 1

    fault = only(record_kernel(kernel, (2, 1), (2, 2), empty((1, 4), np.int32)))
    assert (fault.thread, fault.block) == ((0, 1), (0, 0))
    assert "thread (0, 1) of block (0, 0) writes out[1, 0]" in fault.message


def test_right_kernels_have_no_faults() -> None:
    def histogram(out: Any, a: Any) -> None:
        counts = cuda.shared.array(4, int32)
        t, i = cuda.threadIdx.x, cuda.grid(1)
        if t < 4:
            counts[t] = 0
        cuda.syncthreads()
        while i < a.size:
            cuda.atomic.add(counts, a[i], 1)
            i += cuda.gridsize(1)
        cuda.syncthreads()
        if t < 4:
            cuda.atomic.add(out, t, counts[t])

    a = np.arange(50) * 7 % 4
    for order in ("forward", "reverse"):
        trace = record_kernel(histogram, 3, 8, np.zeros(4, np.int32), a, order=order)
        assert trace.faults == trace.hints == ()
        assert trace.outputs["out"].tolist() == np.bincount(a).tolist()


def test_the_text_of_a_fault_has_no_addresses_and_is_the_same_each_time() -> None:
    def kernel(out: Any) -> None:
        out[cuda.grid(1)] = 1

    texts = {str(only(record_kernel(kernel, 2, 2, empty(3, np.int32)))) for _ in range(2)}
    assert len(texts) == 1
    assert "0x" not in texts.pop()
