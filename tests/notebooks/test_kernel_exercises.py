"""The kernels of notebook 04: right ones pass and compile, and each wrong one is named for what is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy import float32, int32
from twell.cuda_compile import compile_for
from twell.cuda_target import Kernel, cuda, why_no_compiler
from twell.simt import scan

from twellviz.errors import ConfigError
from twellviz.exercises import ExerciseError, nb04
from twellviz.kernel_trace import KernelExerciseError

TILE, PADDED, ROWS, THREADS = 32, 33, 8, 32


def relu(out: Any, a: Any) -> None:
    i = cuda.grid(1)
    if i < a.size:
        out[i] = float32(0) if a[i] <= 0 else a[i]


def relu_unguarded(out: Any, a: Any) -> None:
    i = cuda.grid(1)
    out[i] = float32(0) if a[i] <= 0 else a[i]


def relu_one_too_far(out: Any, a: Any) -> None:
    i = cuda.grid(1)
    if i <= a.size:
        out[i] = float32(0) if a[i] <= 0 else a[i]


def relu_one_too_few(out: Any, a: Any) -> None:
    i = cuda.grid(1)
    if i < a.size - 1:
        out[i] = float32(0) if a[i] <= 0 else a[i]


def relu_first_block_only(out: Any, a: Any) -> None:
    i = cuda.threadIdx.x
    if i < a.size:
        out[i] = float32(0) if a[i] <= 0 else a[i]


def relu_reversed(out: Any, a: Any) -> None:
    i = cuda.grid(1)
    if i < a.size:
        j = a.size - 1 - i
        out[i] = float32(0) if a[j] <= 0 else a[j]


def relu_drops_nan(out: Any, a: Any) -> None:
    i = cuda.grid(1)
    if i < a.size:
        out[i] = a[i] if a[i] > 0 else float32(0)


def relu_by_max(out: Any, a: Any) -> None:
    """In Python NaN stays; on a GPU the larger of NaN and 0 is 0."""
    i = cuda.grid(1)
    if i < a.size:
        out[i] = max(a[i], float32(0))


def relu_leaves_zeros_out(out: Any, a: Any) -> None:
    i = cuda.grid(1)
    if i < a.size and not a[i] <= 0:
        out[i] = a[i]


def grid_sum(total: Any, a: Any) -> None:
    mine = int32(0)
    for i in range(cuda.grid(1), a.size, cuda.gridsize(1)):
        mine += a[i]
    cuda.atomic.add(total, 0, mine)


def grid_sum_race(total: Any, a: Any) -> None:
    mine = int32(0)
    for i in range(cuda.grid(1), a.size, cuda.gridsize(1)):
        mine += a[i]
    total[0] += mine


def grid_sum_one_round(total: Any, a: Any) -> None:
    i = cuda.grid(1)
    if i < a.size:
        cuda.atomic.add(total, 0, a[i])


def grid_sum_one_too_far(total: Any, a: Any) -> None:
    mine = int32(0)
    for i in range(cuda.grid(1), a.size + 1, cuda.gridsize(1)):
        mine += a[i]
    cuda.atomic.add(total, 0, mine)


def relu_each_for_all(out: Any, a: Any) -> None:
    for i in range(a.size):
        value = a[i]
        if value <= 0:
            value = float32(0)
        out[i] = value


def grid_sum_atomic_a_cell(total: Any, a: Any) -> None:
    for i in range(cuda.grid(1), a.size, cuda.gridsize(1)):
        cuda.atomic.add(total, 0, a[i])


def grid_sum_by_one(total: Any, a: Any) -> None:
    if cuda.grid(1) == 0:
        mine = int32(0)
        for i in range(a.size):
            mine += a[i]
        total[0] = mine


def grid_sum_three_strides(total: Any, a: Any) -> None:
    mine = int32(0)
    for k in range(3):
        i = cuda.grid(1) + k * cuda.gridsize(1)
        if i < a.size:
            mine += a[i]
    cuda.atomic.add(total, 0, mine)


def grid_sum_stride_of_a_block(total: Any, a: Any) -> None:
    mine = int32(0)
    for i in range(cuda.grid(1), a.size, cuda.blockDim.x):
        mine += a[i]
    cuda.atomic.add(total, 0, mine)


def grid_sum_whole_strides_only(total: Any, a: Any) -> None:
    mine = int32(0)
    for k in range(a.size // cuda.gridsize(1)):
        mine += a[k * cuda.gridsize(1) + cuda.grid(1)]
    cuda.atomic.add(total, 0, mine)


def grid_sum_overwrites(total: Any, a: Any) -> None:
    if cuda.grid(1) == 0:
        mine = int32(0)
        for i in range(a.size):
            mine += a[i]
        total[0] = mine
        a[0] = 0


def transpose(out: Any, a: Any) -> None:
    tile = cuda.shared.array((TILE, PADDED), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    for r in range(y, TILE, ROWS):
        if row + r < a.shape[0] and column + x < a.shape[1]:
            tile[r, x] = a[row + r, column + x]
    cuda.syncthreads()
    for r in range(y, TILE, ROWS):
        if column + r < out.shape[0] and row + x < out.shape[1]:
            out[column + r, row + x] = tile[x, r]


def transpose_conflicts(out: Any, a: Any) -> None:
    tile = cuda.shared.array((TILE, TILE), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    for r in range(y, TILE, ROWS):
        if row + r < a.shape[0] and column + x < a.shape[1]:
            tile[r, x] = a[row + r, column + x]
    cuda.syncthreads()
    for r in range(y, TILE, ROWS):
        if column + r < out.shape[0] and row + x < out.shape[1]:
            out[column + r, row + x] = tile[x, r]


def transpose_directly(out: Any, a: Any) -> None:
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    for r in range(y, TILE, ROWS):
        if row + r < a.shape[0] and column + x < a.shape[1]:
            out[column + x, row + r] = a[row + r, column + x]


def transpose_race(out: Any, a: Any) -> None:
    tile = cuda.shared.array((TILE, PADDED), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    for r in range(y, TILE, ROWS):
        if row + r < a.shape[0] and column + x < a.shape[1]:
            tile[r, x] = a[row + r, column + x]
    for r in range(y, TILE, ROWS):
        if column + r < out.shape[0] and row + x < out.shape[1]:
            out[column + r, row + x] = tile[x, r]


def transpose_unguarded(out: Any, a: Any) -> None:
    tile = cuda.shared.array((TILE, PADDED), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    for r in range(y, TILE, ROWS):
        tile[r, x] = a[row + r, column + x]
    cuda.syncthreads()
    for r in range(y, TILE, ROWS):
        out[column + r, row + x] = tile[x, r]


def transpose_guard_of_the_other_matrix(out: Any, a: Any) -> None:
    tile = cuda.shared.array((TILE, PADDED), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    for r in range(y, TILE, ROWS):
        if row + r < a.shape[0] and column + x < a.shape[1]:
            tile[r, x] = a[row + r, column + x]
    cuda.syncthreads()
    for r in range(y, TILE, ROWS):
        if row + r < a.shape[0] and column + x < a.shape[1]:
            out[column + r, row + x] = tile[x, r]


def transpose_tiles_not_turned(out: Any, a: Any) -> None:
    tile = cuda.shared.array((TILE, PADDED), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    for r in range(y, TILE, ROWS):
        if row + r < a.shape[0] and column + x < a.shape[1]:
            tile[r, x] = a[row + r, column + x]
    cuda.syncthreads()
    for r in range(y, TILE, ROWS):
        if column + r < out.shape[0] and row + x < out.shape[1]:
            out[column + r, row + x] = tile[r, x]


def prefix(before: Any, count: Any) -> None:
    sums = cuda.shared.array(THREADS, int32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    mine = int32(0)
    if i < count.size:
        mine = count[i]
    sums[t] = mine
    cuda.syncthreads()
    reach = 1
    while reach < THREADS:
        left = int32(0)
        if t >= reach:
            left = sums[t - reach]
        cuda.syncthreads()
        sums[t] += left
        cuda.syncthreads()
        reach *= 2
    if i < count.size:
        before[i] = sums[t] - mine


def prefix_inclusive(before: Any, count: Any) -> None:
    i, first = cuda.grid(1), cuda.blockIdx.x * THREADS
    if i < count.size:
        total = int32(0)
        for k in range(first, i + 1):
            total += count[k]
        before[i] = total


def prefix_across_blocks(before: Any, count: Any) -> None:
    i = cuda.grid(1)
    if i < count.size:
        total = int32(0)
        for k in range(i):
            total += count[k]
        before[i] = total


def prefix_one_barrier_missing(before: Any, count: Any) -> None:
    sums = cuda.shared.array(THREADS, int32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    mine = int32(0)
    if i < count.size:
        mine = count[i]
    sums[t] = mine
    cuda.syncthreads()
    reach = 1
    while reach < THREADS:
        if t >= reach:
            sums[t] += sums[t - reach]
        cuda.syncthreads()
        reach *= 2
    if i < count.size:
        before[i] = sums[t] - mine


def prefix_early_return(before: Any, count: Any) -> None:
    sums = cuda.shared.array(THREADS, int32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    if i >= count.size:
        return
    sums[t] = count[i]
    cuda.syncthreads()
    total = int32(0)
    for k in range(t):
        total += sums[k]
    before[i] = total


def prefix_tail_unwritten(before: Any, count: Any) -> None:
    sums = cuda.shared.array(THREADS, int32)
    i, t = cuda.grid(1), cuda.threadIdx.x
    if i < count.size:
        sums[t] = count[i]
    cuda.syncthreads()
    total = int32(0)
    for k in range(THREADS):
        if k < t:
            total += sums[k]
    if i < count.size:
        before[i] = total


def pack(columns: Any, count: Any, gate: Any) -> None:
    counts = cuda.shared.array(64, int32)
    sums = cuda.shared.array(8, int32)
    token, i = cuda.blockIdx.x, cuda.threadIdx.x
    mine = int32(0)
    if i < gate.shape[1] and not gate[token, i] <= 0:
        mine = int32(1)
    place = scan.sum_before(mine, counts, sums)
    if mine == 1:
        columns[token, place] = i
    if i == 0:
        count[token] = scan.sum_of_all(sums)


def pack_by_atomics(columns: Any, count: Any, gate: Any) -> None:
    place = cuda.shared.array(1, int32)
    token, i = cuda.blockIdx.x, cuda.threadIdx.x
    if i == 0:
        place[0] = 0
    cuda.syncthreads()
    if i < gate.shape[1] and not gate[token, i] <= 0:
        columns[token, cuda.atomic.add(place, 0, 1)] = i
    cuda.syncthreads()
    if i == 0:
        count[token] = place[0]


def pack_with_gaps(columns: Any, count: Any, gate: Any) -> None:
    counts = cuda.shared.array(64, int32)
    sums = cuda.shared.array(8, int32)
    token, i = cuda.blockIdx.x, cuda.threadIdx.x
    mine = int32(0)
    if i < gate.shape[1] and not gate[token, i] <= 0:
        mine = int32(1)
        columns[token, i] = i
    scan.sum_before(mine, counts, sums)
    if i == 0:
        count[token] = scan.sum_of_all(sums)


def pack_unguarded(columns: Any, count: Any, gate: Any) -> None:
    counts = cuda.shared.array(64, int32)
    sums = cuda.shared.array(8, int32)
    token, i = cuda.blockIdx.x, cuda.threadIdx.x
    mine = int32(0)
    if not gate[token, i] <= 0:
        mine = int32(1)
    place = scan.sum_before(mine, counts, sums)
    if mine == 1:
        columns[token, place] = i
    if i == 0:
        count[token] = scan.sum_of_all(sums)


def pack_ranks_only_the_active(columns: Any, count: Any, gate: Any) -> None:
    counts = cuda.shared.array(64, int32)
    sums = cuda.shared.array(8, int32)
    token, i = cuda.blockIdx.x, cuda.threadIdx.x
    if i < gate.shape[1] and not gate[token, i] <= 0:
        columns[token, scan.sum_before(1, counts, sums)] = i
    if i == 0:
        count[token] = scan.sum_of_all(sums)


def pack_drops_nan(columns: Any, count: Any, gate: Any) -> None:
    counts = cuda.shared.array(64, int32)
    sums = cuda.shared.array(8, int32)
    token, i = cuda.blockIdx.x, cuda.threadIdx.x
    mine = int32(0)
    if i < gate.shape[1] and gate[token, i] > 0:
        mine = int32(1)
    place = scan.sum_before(mine, counts, sums)
    if mine == 1:
        columns[token, place] = i
    if i == 0:
        count[token] = scan.sum_of_all(sums)


Answer = Callable[..., None]
RIGHT: dict[str, Answer] = {"4.1": relu, "4.2": grid_sum, "4.3": transpose, "4.4": prefix, "4.5": pack}

WRONG: list[tuple[str, Answer, str, str]] = [
    ("4.1", relu_unguarded, "out of range", r"thread 5 of block 2 reads a\[21\].*`if i < 21`"),
    ("4.1", relu_one_too_far, "out of range", r"reads a\[21\]"),
    ("4.1", relu_one_too_few, "unwritten output", r"nothing wrote out\[15\]"),
    ("4.1", relu_first_block_only, "unwritten output", r"nothing wrote out\[8\]"),
    ("4.1", relu_reversed, "wrong index", r"belongs at out\["),
    ("4.1", relu_drops_nan, "wrong value", r"out\[17\]: expected nan, found 0"),
    ("4.1", relu_by_max, "wrong value", r"out\[17\]: expected nan, found 0"),
    ("4.1", relu_leaves_zeros_out, "unwritten output", "nothing wrote"),
    ("4.1", relu_each_for_all, "right and too costly", r"out\[0\] is written 16 times"),
    ("4.2", grid_sum_race, "race", r"total\[0\].*cuda.atomic.add"),
    ("4.2", grid_sum_one_round, "wrong value", r"total\[0\]"),
    ("4.2", grid_sum_one_too_far, "out of range", r"reads a\[128\]"),
    ("4.2", grid_sum_stride_of_a_block, "wrong value", r"total\[0\]"),
    ("4.2", grid_sum_whole_strides_only, "wrong value", "size 333"),
    ("4.2", grid_sum_three_strides, "wrong value", "size 333"),
    ("4.2", grid_sum_atomic_a_cell, "right and too costly", "128 atomics by 64 threads"),
    ("4.2", grid_sum_by_one, "right and too costly", "without an atomic"),
    ("4.2", grid_sum_overwrites, "changed input", r"a is an input"),
    ("4.3", transpose_conflicts, "right and too costly", "32 passes for one warp.*one column more"),
    ("4.3", transpose_directly, "right and too costly", "write of out.*32 bytes"),
    ("4.3", transpose_race, "race", r"cuda.syncthreads\(\) between"),
    ("4.3", transpose_unguarded, "out of range", "size 50"),
    ("4.3", transpose_guard_of_the_other_matrix, "out of range|unwritten output|unwritten read", "size 50"),
    ("4.3", transpose_tiles_not_turned, "wrong index", r"belongs at out\["),
    ("4.4", prefix_inclusive, "wrong value", r"before\[0\]: expected 0"),
    ("4.4", prefix_across_blocks, "wrong value", r"before\[32\]: expected 0"),
    ("4.4", prefix_one_barrier_missing, "race", r"sums\[\d+\]"),
    ("4.4", prefix_early_return, "divergent barrier", "size 70"),
    ("4.4", prefix_tail_unwritten, "unwritten read", "size 70"),
    ("4.5", pack_by_atomics, "depends on the order of threads", "the last thread goes first.*columns"),
    ("4.5", pack_with_gaps, "wrong index", r"no thread wrote columns\[0, 0\]"),
    ("4.5", pack_unguarded, "out of range", "size 50"),
    ("4.5", pack_ranks_only_the_active, "divergent barrier", "outside any `if`"),
    ("4.5", pack_drops_nan, "wrong value", r"columns\[0, \d+\]"),
]


@pytest.mark.parametrize("number", nb04.SHEET.numbers)
def test_right_kernels_pass(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    trace = nb04.check(number, RIGHT[number])
    assert trace is not None
    assert trace.faults == ()
    assert re.fullmatch(
        rf"Exercise {number}: correct in all 2 sizes: \d+, \d+ \(recorder.*\)\n", capsys.readouterr().out
    )


@pytest.mark.parametrize(("number", "kernel", "kind", "says"), WRONG, ids=[kernel.__name__ for _, kernel, *_ in WRONG])
def test_wrong_kernels_are_named(number: str, kernel: Answer, kind: str, says: str) -> None:
    with pytest.raises(KernelExerciseError, match=rf"^Exercise {number}, size \d+: ") as caught:
        nb04.check(number, kernel)
    assert caught.value.kind in kind.split("|"), str(caught.value)
    assert re.search(says, str(caught.value)), str(caught.value)
    assert isinstance(caught.value, ExerciseError)


def test_every_exercise_is_tried_here() -> None:
    assert sorted(RIGHT) == nb04.SHEET.numbers
    assert {number for number, *_ in WRONG} == set(RIGHT)


@pytest.mark.parametrize("number", nb04.SHEET.numbers)
def test_skeletons_and_hints(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    def skeleton(out: Any, a: Any) -> Any:
        return ...

    assert nb04.check(number, skeleton) is None
    assert capsys.readouterr().out == f"Exercise {number}: not attempted yet\n"
    nb04.hint(number)
    assert len(capsys.readouterr().out) > 40


def test_a_wrong_kernel_can_be_looked_at() -> None:
    trace = nb04.record("4.1", relu_unguarded, size=21)
    assert {fault.kind for fault in trace.faults} == {"out of range"}
    assert nb04.record("4.1", relu_unguarded).faults == ()  # 16 cells for 16 threads
    with pytest.raises(ConfigError, match=r"size=17: exercise 4\.1 has 16, 21"):
        nb04.record("4.1", relu, size=17)


def test_the_prefix_sum_of_the_check_is_numpys() -> None:
    spec = nb04.SHEET.spec("4.4")
    arguments = spec.make(70)
    right = spec.reference(**arguments)["before"]
    for first in range(0, 70, 32):
        block = arguments["count"][first : first + 32]
        assert np.array_equal(right[first : first + 32], np.concatenate([[0], block.cumsum()[:-1]]))


@pytest.mark.skipif(bool(why_no_compiler()), reason="the compiler library libnvvm is not installed")
@pytest.mark.parametrize("number", nb04.SHEET.numbers)
def test_right_kernels_compile_for_a_gpu(number: str) -> None:
    types = pytest.importorskip("numba.cuda.types")
    spec = nb04.SHEET.spec(number)
    kinds = {"float32": types.float32, "int32": types.int32}
    signature = [types.Array(kinds[str(a.dtype)], a.ndim, "C") for a in spec.make(spec.sizes[0]).values()]
    assert ".entry" in compile_for(Kernel(RIGHT[number], {}), signature, (9, 0))[9, 0]


def test_an_answer_with_the_ellipsis_left_behind_is_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    def left_behind(out: Any, a: Any) -> None:
        i = cuda.grid(1)
        if i < a.size:
            out[i] = float32(0) if a[i] <= 0 else a[i]
        ...  # noqa: PIE790 - the skeleton's

    assert nb04.check("4.1", left_behind) is not None
    assert "correct in all" in capsys.readouterr().out
