"""The check of a learner's kernel takes the right ones and names what is wrong with each wrong one."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from numba import cuda, float32

from twellviz.errors import ConfigError
from twellviz.exercises import ExerciseError
from twellviz.kernel_trace import KernelExerciseError, KernelSheet, KernelSpec, check_kernel, empty

Kernel = Callable[..., None]
BLOCK = 8


def ceil(n: int, block: int = BLOCK) -> int:
    return -(-n // block)


def _make(n: int) -> dict[str, Any]:
    return {"out": empty(n, np.float32), "a": np.arange(1, n + 1, dtype=np.float32) ** 2}


MAP = KernelSpec(
    "4.1",
    make=_make,
    reference=lambda out, a: {"out": a + 10},
    launch=lambda n: (ceil(n), BLOCK),
    sizes=(8, 21),
    hint="Threads beyond the end have nothing to do.",
)
SUMS = KernelSpec(
    "4.2",
    make=lambda n: {"out": empty(ceil(n), np.float32), "a": np.arange(1, n + 1, dtype=np.float32)},
    reference=lambda out, a: {"out": np.add.reduceat(a, np.arange(0, len(a), BLOCK))},
    launch=lambda n: (ceil(n), BLOCK),
    sizes=(16, 21),
    tolerance=1e-6,
)


def map_right(out: Any, a: Any) -> None:
    i = cuda.grid(1)
    if i < a.size:
        out[i] = a[i] + 10


def map_other_names(y: Any, x: Any) -> None:
    i = cuda.grid(1)
    if i < y.size:
        y[i] = x[i] + 10


def map_unguarded(out: Any, a: Any) -> None:
    i = cuda.grid(1)
    out[i] = a[i] + 10


def map_off_by_one(out: Any, a: Any) -> None:
    i = cuda.grid(1)
    if i <= a.size:
        out[i] = a[i] + 10


def map_negative(out: Any, a: Any) -> None:
    i = cuda.grid(1)
    if i < a.size:
        out[i - 1] = a[i - 1] + 10


def map_reversed(out: Any, a: Any) -> None:
    i = cuda.grid(1)
    if i < a.size:
        out[a.size - 1 - i] = a[i] + 10


def map_wrong_value(out: Any, a: Any) -> None:
    i = cuda.grid(1)
    if i < a.size:
        out[i] = a[i] + cuda.threadIdx.x + 10


def map_forgets_one(out: Any, a: Any) -> None:
    i = cuda.grid(1)
    if i < a.size - 1:
        out[i] = a[i] + 10


def map_one_block_only(out: Any, a: Any) -> None:
    i = cuda.threadIdx.x
    if i < a.size:
        out[i] = a[i] + 10


def map_changes_input(out: Any, a: Any) -> None:
    i = cuda.grid(1)
    if i < a.size:
        a[i] += 10
        out[i] = a[i]


def map_raises(out: Any, a: Any) -> None:
    i = cuda.grid(1)
    if i < a.size:
        out[i] = a[i] + ten  # noqa: F821


def map_whole_array(out: Any, a: Any) -> None:
    out[:] = a + 10


def map_three_arguments(out: Any, a: Any, n: Any) -> None:
    i = cuda.grid(1)
    if i < n:
        out[i] = a[i] + 10


def map_endless(out: Any, a: Any) -> None:
    i = cuda.grid(1)
    while i < a.size:
        out[i] = a[i] + 10


def sum_right(out: Any, a: Any) -> None:
    tile = cuda.shared.array(BLOCK, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    tile[t] = a[i] if i < a.size else 0
    cuda.syncthreads()
    reach = BLOCK // 2
    while reach:
        if t < reach:
            tile[t] += tile[t + reach]
        cuda.syncthreads()
        reach //= 2
    if t == 0:
        out[cuda.blockIdx.x] = tile[0]


def sum_race(out: Any, a: Any) -> None:
    tile = cuda.shared.array(BLOCK, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    tile[t] = a[i] if i < a.size else 0
    cuda.syncthreads()
    reach = BLOCK // 2
    while reach:
        if t < reach:
            tile[t] += tile[t + reach]
        reach //= 2
    if t == 0:
        out[cuda.blockIdx.x] = tile[0]


def sum_unwritten(out: Any, a: Any) -> None:
    tile = cuda.shared.array(BLOCK, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if i < a.size:
        tile[t] = a[i]
    cuda.syncthreads()
    if t == 0:
        total = float32(0)
        for k in range(BLOCK):
            total += tile[k]
        out[cuda.blockIdx.x] = total


def sum_divergent(out: Any, a: Any) -> None:
    tile = cuda.shared.array(BLOCK, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    tile[t] = 0
    if i < a.size:
        tile[t] = a[i]
        cuda.syncthreads()
    if t == 0:
        total = float32(0)
        for k in range(BLOCK):
            total += tile[k]
        out[cuda.blockIdx.x] = total


def sum_of_wrong_block(out: Any, a: Any) -> None:
    t = cuda.threadIdx.x
    block = cuda.gridDim.x - 1 - cuda.blockIdx.x
    if t == 0:
        total = float32(0)
        for k in range(BLOCK):
            if block * BLOCK + k < a.size:
                total += a[block * BLOCK + k]
        out[cuda.blockIdx.x] = total


def sum_across_blocks(out: Any, a: Any) -> None:
    i = cuda.grid(1)
    if i < a.size:
        out[0] = a[i]


@pytest.mark.parametrize(
    ("spec", "kernel"), [(MAP, map_right), (MAP, map_other_names), (MAP, cuda.jit(map_right)), (SUMS, sum_right)]
)
def test_right_kernels_pass(spec: KernelSpec, kernel: Any, capsys: pytest.CaptureFixture[str]) -> None:
    trace = check_kernel(kernel, spec)
    assert trace is not None
    assert trace.faults == ()
    sizes = " and ".join(map(str, spec.sizes)).replace(" and ", ", ")
    assert capsys.readouterr().out.startswith(f"Exercise {spec.number}: correct in all 2 sizes: {sizes} (recorder")


@pytest.mark.parametrize(
    ("spec", "kernel", "size", "kind", "message"),
    [
        (MAP, map_unguarded, 21, "out of range", r"thread 5 of block 2 reads a\[21\].*`if i < 21`"),
        (MAP, map_off_by_one, 21, "out of range", r"reads a\[21\]"),
        (MAP, map_negative, 8, "negative index", r"thread 0 reads a\[-1\]"),
        (
            MAP,
            map_reversed,
            8,
            "wrong index",
            r"out\[0\]: expected 11.0, found 74.0; thread 7 wrote.*belongs at out\[7\]",
        ),
        (
            MAP,
            map_wrong_value,
            8,
            "wrong value",
            r"out\[1\]: expected 14.0, found 15.0; thread 1 wrote out\[1\] at line",
        ),
        (MAP, map_forgets_one, 8, "unwritten output", r"nothing wrote out\[7\] \(1 of 8 cells of out\)"),
        (MAP, map_one_block_only, 21, "unwritten output", r"nothing wrote out\[8\]"),
        (MAP, map_changes_input, 8, "changed input", r"a is an input, and thread 0 wrote a\[0\]"),
        (MAP, map_raises, 8, "exception", r"raised NameError: name 'ten' is not defined"),
        (MAP, map_whole_array, 8, "not recordable|exception", "line"),
        (MAP, map_three_arguments, 8, "wrong arguments", r"takes 3 \(out, a, n\), 2 are passed: out, a"),
        (MAP, map_endless, 8, "too many accesses", "never ends"),
        (SUMS, sum_race, 16, "race", r"tile\[\d\] .*cuda.syncthreads\(\) between"),
        (SUMS, sum_unwritten, 21, "unwritten read", r"tile\[5\]"),
        (SUMS, sum_divergent, 21, "divergent barrier", r"outside any `if`"),
        (SUMS, sum_of_wrong_block, 16, "wrong index", r"out\[0\]: expected 36.0, found 100.0.*belongs at out\[1\]"),
        (SUMS, sum_across_blocks, 16, "race", r"out\[0\]"),
    ],
)
def test_wrong_kernels_are_named(spec: KernelSpec, kernel: Kernel, size: int, kind: str, message: str) -> None:
    with pytest.raises(
        KernelExerciseError, match=rf"Exercise {spec.number}, size {size}: ({kind}): .*{message}"
    ) as caught:
        check_kernel(kernel, spec)
    assert isinstance(caught.value, ExerciseError)
    assert caught.value.kind in kind.split("|")


def test_the_first_difference_is_in_the_error() -> None:
    with pytest.raises(KernelExerciseError) as caught:
        check_kernel(map_wrong_value, MAP)
    assert (caught.value.index, caught.value.expected, caught.value.found) == ((1,), 14.0, 15.0)
    with pytest.raises(KernelExerciseError) as caught:
        check_kernel(map_unguarded, MAP)
    assert caught.value.fault is not None
    assert caught.value.fault.line == map_unguarded.__code__.co_firstlineno + 2


def test_equal_inputs_would_hide_a_wrong_index_and_distinct_ones_do_not() -> None:
    def equal(n: int) -> Mapping[str, Any]:
        return {"out": empty(n, np.float32), "a": np.ones(n, np.float32)}

    hidden = KernelSpec("x", make=equal, reference=MAP.reference, launch=MAP.launch, sizes=MAP.sizes)
    check_kernel(map_reversed, hidden)
    with pytest.raises(KernelExerciseError, match="wrong index"):
        check_kernel(map_reversed, MAP)


def skeleton_with_return(out: Any, a: Any) -> Any:
    i = cuda.grid(1)  # noqa: F841
    return ...


def skeleton_with_dots(out: Any, a: Any) -> None:
    i = cuda.grid(1)  # noqa: F841
    ...  # noqa: PIE790


@pytest.mark.parametrize("skeleton", [skeleton_with_return, skeleton_with_dots])
def test_a_skeleton_is_not_attempted(skeleton: Kernel, capsys: pytest.CaptureFixture[str]) -> None:
    sheet = KernelSheet([MAP, SUMS])
    assert sheet.check("4.1", skeleton) is None
    assert capsys.readouterr().out == "Exercise 4.1: not attempted yet\n"
    sheet.hint("4.1")
    assert capsys.readouterr().out == "Hint for 4.1: Threads beyond the end have nothing to do.\n"
    assert sheet.numbers == ["4.1", "4.2"]
    with pytest.raises(ConfigError, match=r"this notebook has 4\.1, 4\.2"):
        sheet.check("4.3", skeleton)


def test_a_kernel_that_does_nothing_is_wrong_and_not_a_skeleton() -> None:
    def nothing(out: Any, a: Any) -> None:
        pass

    with pytest.raises(KernelExerciseError, match="nothing wrote"):
        check_kernel(nothing, MAP)


def test_sizes_must_tell_kernels_apart() -> None:
    options: dict[str, Any] = {"make": _make, "reference": MAP.reference, "launch": MAP.launch}
    with pytest.raises(ConfigError, match="at least two sizes"):
        KernelSpec("x", sizes=(9, 9), **options)
    with pytest.raises(ConfigError, match="no multiple of its block"):
        KernelSpec("x", sizes=(8, 16), **options)


def test_tensors_as_arguments() -> None:
    def make(n: int) -> dict[str, Any]:
        return {"out": torch.zeros(n, dtype=torch.float32), "a": torch.arange(n, dtype=torch.float32) ** 2}

    spec = KernelSpec("x", make=make, reference=lambda out, a: {"out": a + 10}, launch=MAP.launch, sizes=(8, 9))
    check_kernel(map_right, spec)
    with pytest.raises(KernelExerciseError, match=r"out\[8\]: expected 74.0, found 0.0; no thread wrote"):
        check_kernel(map_one_block_only, spec)


@pytest.mark.parametrize("wrong", ["missing", "shape"])
def test_a_reference_that_does_not_fit_is_the_authors_mistake(wrong: str) -> None:
    answers = {"missing": lambda out, a: {"b": a}, "shape": lambda out, a: {"out": a[:3]}}
    spec = KernelSpec("x", make=_make, reference=answers[wrong], launch=MAP.launch, sizes=MAP.sizes)
    with pytest.raises(ConfigError, match="reference"):
        check_kernel(map_right, spec)


def test_the_simulator_runs_the_kernel_too_where_it_is_switched_on() -> None:
    program = """
        import numpy as np
        from numba import cuda
        from twellviz.kernel_trace import KernelExerciseError, KernelSpec, check_kernel, empty

        spec = KernelSpec(
            "5.1",
            make=lambda n: {"out": empty(n, np.float32), "a": np.arange(n, dtype=np.float32)},
            reference=lambda out, a: {"out": a + 10},
            launch=lambda n: (-(-n // 4), 4),
            sizes=(4, 7),
        )

        def right(out, a):
            i = cuda.grid(1)
            if i < a.size:
                out[i] = a[i] + 10

        def cheats(out, a):
            i = cuda.grid(1)
            if i < a.size:
                out[i] = a[i] + (10 if type(cuda).__name__ == "CudaStandIn" else 11)

        check_kernel(right, spec)
        try:
            check_kernel(cheats, spec)
        except KernelExerciseError as error:
            print(error.kind, error)
    """
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    first, second = ran.stdout.splitlines()
    assert first == "Exercise 5.1: correct in all 2 sizes: 4, 7 (recorder and Numba's simulator)"
    assert second.startswith("differs on the device Exercise 5.1, size 4, Numba's simulator: differs on the device: ")
    assert "expected 10.0, found 11.0" in second
