"""Run a learner's kernel where Numba can: on a GPU, or in its simulator if that is switched on. Letters: none."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from twellviz.kernel_trace.launch import as_memory


class DeviceRun(NamedTuple):
    """Where a kernel ran, and its array arguments afterwards by position."""

    name: str
    arrays: Mapping[int, NDArray[Any]]


def run_on_device(
    function: FunctionType, grid: int | tuple[int, ...], block: int | tuple[int, ...], arguments: Sequence[Any]
) -> DeviceRun | None:
    """Compile and run a kernel on copies of its arguments.

    Parameters
    ----------
    function : function
        Its global ``cuda`` must be numba's, as after ``from numba import cuda``.
    grid, block : int or tuple of int
    arguments : sequence
        NumPy arrays, CPU tensors and numbers.

    Returns
    -------
    DeviceRun or None
        None where there is neither a GPU nor the simulator.
    """
    name = _device_name()
    if name is None:
        return None
    from twell.cuda_target import cuda

    memories = [as_memory(f"argument {place}", value) for place, value in enumerate(arguments)]
    given: list[Any] = [
        value if memory is None else cuda.to_device(np.ascontiguousarray(memory))
        for memory, value in zip(memories, arguments, strict=True)
    ]
    with warnings.catch_warnings():
        # A lesson's launch is small: that it leaves most of the GPU idle is no news.
        warnings.filterwarnings("ignore", message="Grid size .* will likely result in GPU under-utilization")
        cuda.jit(function)[grid, block](*given)
    return DeviceRun(
        name, {place: given[place].copy_to_host() for place, memory in enumerate(memories) if memory is not None}
    )


def _device_name() -> str | None:
    if os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0"):
        return "Numba's simulator"
    import torch

    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (7, 5):
        return None
    return str(torch.cuda.get_device_name())
