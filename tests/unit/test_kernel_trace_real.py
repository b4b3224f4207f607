"""A kernel runs outside the recorder too: in Numba's simulator, in a process of its own, or on the GPU."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy import int32
from twell.cuda_target import cuda
from twell.simt import scan

from twellviz.errors import ConfigError
from twellviz.kernel_trace import NotRecordableError, empty, record_kernel, run_kernel
from twellviz.kernel_trace.real import program_of

SCALE = 3
TABLE = [1, 2]


def scaled(out: Any, a: Any, plus: Any) -> None:
    i = cuda.grid(1)
    if i < a.size:
        out[i] = a[i] * SCALE + math.floor(plus)


def ranks(before: Any, count: Any) -> None:
    counts = cuda.shared.array(32, int32)
    sums = cuda.shared.array(8, int32)
    i = cuda.threadIdx.x
    before[i] = scan.sum_before(count[i], counts, sums)


def raises(out: Any) -> None:
    out[0] = no_such_thing  # noqa: F821


def uses_a_list(out: Any) -> None:
    out[0] = TABLE[0]


def two_axes(out: Any) -> None:
    x, y = cuda.grid(2)
    if x < out.shape[1] and y < out.shape[0]:
        out[y, x] = 10 * y + x


def test_run_equals_recording_and_leaves_the_arguments_alone() -> None:
    a = np.arange(11, dtype=np.float32)
    out = empty(11, np.float32)
    before = out.copy()
    run = run_kernel(scaled, 2, 8, out, a, 2.75)
    trace = record_kernel(scaled, 2, 8, out, a, 2.75)
    assert np.array_equal(run.outputs["out"], 3 * a + 2)
    assert np.array_equal(run.outputs["out"], trace.outputs["out"])
    assert out.tobytes() == before.tobytes()
    assert list(run.outputs) == ["out", "a"]
    assert run.where


def test_barriers_and_device_functions_of_twell() -> None:
    count = np.arange(32, dtype=np.int32) % 5
    run = run_kernel(ranks, 1, 32, empty(32, np.int32), count)
    assert run.outputs["before"].tolist() == (count.cumsum() - count).tolist()


def test_tensors_two_axes_and_jitted_kernels() -> None:
    run = run_kernel(cuda.jit(two_axes), (2, 1), (4, 4), torch.zeros(3, 5, dtype=torch.int32))
    assert torch.equal(run.outputs["out"], torch.tensor([[10 * y + x for x in range(5)] for y in range(3)]))
    assert run.outputs["out"].dtype == torch.int32


@pytest.mark.skipif(torch.cuda.is_available(), reason="what the simulator says; a GPU says it otherwise")
def test_failures_in_the_simulator_are_told() -> None:
    with pytest.raises(ConfigError, match=r"raises failed in Numba's simulator: .*no_such_thing"):
        run_kernel(raises, 1, 1, np.zeros(1))
    with pytest.raises(NotRecordableError, match="uses the global TABLE, a list"):
        run_kernel(uses_a_list, 1, 1, np.zeros(1))


def test_a_kernel_inside_a_function_cannot_be_handed_on() -> None:
    inner = 3

    def kernel(out: Any) -> None:
        out[0] = inner

    with pytest.raises(NotRecordableError, match="kernel uses inner of the function around it"):
        program_of(kernel)


def test_the_program_is_the_source_and_what_it_names() -> None:
    program = program_of(scaled)
    assert "SCALE = 3\n" in program
    assert "import math as math\n" in program
    assert "def scaled(out, a, plus):" in program
    assert "import twell.simt.scan as scan" in program_of(ranks)
    compile(program, "program.py", "exec")
