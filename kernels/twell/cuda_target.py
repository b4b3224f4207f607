"""What ``cuda`` means: the one module of ours that imports ``numba.cuda``.

``from twell.cuda_target import cuda, device, kernel`` gives numba-cuda on a machine with an NVIDIA GPU, and Numba's
simulator where ``NUMBA_ENABLE_CUDASIM=1`` stood in the environment before Numba was imported. Importing it creates no
CUDA context, compiles nothing, and works on a machine with neither a GPU nor a CUDA toolkit: a kernel is compiled
when it is first launched. Every kernel keeps its plain Python function in ``py_func``, so that it can be read, run
in the simulator, recorded thread by thread, or compiled for a GPU that is not there (:mod:`twell.cuda_compile`).

Letters: none; ``blocks`` and ``threads`` are the sizes of a launch.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import shutil
import sys
import threading
import types as _types
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from twell.cuda_launch import Launcher, kind_of, launcher_of
from twell.errors import DeviceError, DtypeError, ShapeError

F = TypeVar("F", bound=Callable[..., Any])

Array: TypeAlias = NDArray[Any]
"""Annotation of what kernels take; Numba ignores it."""

CAPABILITIES = ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0))
"""Compute capabilities that kernels are compiled for in the tests; the first is the oldest that runs them."""


def _has_nvvm(folder: Path) -> bool:
    return (folder / "nvvm" / "lib64" / "libnvvm.so").exists()


def _pip_nvvm() -> bool:
    """Whether pip installed the compiler library (``numba-cuda[cu13]`` brings it), which numba-cuda finds by itself."""
    try:
        spec = importlib.util.find_spec("nvidia.cu13")
    except ImportError:
        return False
    return spec is not None and any(
        any(Path(folder, "lib").glob("libnvvm.so*")) for folder in spec.submodule_search_locations or ()
    )


def _set_cuda_home() -> None:
    """Name a toolkit for numba-cuda, where the user has not and one with the compiler library can be found."""
    if os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or _pip_nvvm():
        return
    nvcc = shutil.which("nvcc")
    found = [Path(nvcc).resolve().parent.parent] if nvcc else []
    root = Path("/usr/local")
    found += [root / "cuda", *sorted(root.glob("cuda-*"), reverse=True)]
    for folder in found:
        if _has_nvvm(folder):
            os.environ["CUDA_HOME"] = str(folder)
            return


def _import_numba_cuda() -> _types.ModuleType:
    wanted = os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")
    _set_cuda_home()
    # numba-cuda 0.30 names numpy.row_stack, which NumPy 2.5 removed, while it is imported and nowhere else.
    lacks_row_stack = "row_stack" not in vars(np)
    if lacks_row_stack:
        setattr(np, "row_stack", np.vstack)  # noqa: B010 - named as text, or the linter renames it
    try:
        module = importlib.import_module("numba.cuda")
        simulated = bool(_numba_config().ENABLE_CUDASIM)
        if not simulated:
            importlib.import_module("numba.cuda.extending")
            importlib.import_module("numba.cuda.np.arrayobj")
    finally:
        if lacks_row_stack:
            delattr(np, "row_stack")
    if wanted != simulated:
        state = "set" if wanted else "taken away"
        raise DeviceError(
            f"NUMBA_ENABLE_CUDASIM was {state} after Numba had been imported, which has no effect: set it in the "
            "environment before Python starts, or at the very top of the program"
        )
    return module


def _numba_config() -> Any:
    return importlib.import_module("numba.cuda.core.config")


cuda: Any = _import_numba_cuda()

SIMULATED: bool = bool(_numba_config().ENABLE_CUDASIM)
"""Whether kernels run in Numba's simulator, on CPU tensors."""


def _simulated_shared_array(self: Any, shape: Any, dtype: Any, alignment: int | None = None) -> Array:
    """``cuda.shared.array`` of the simulator, taking an alignment (which NumPy memory has no use for).

    As in the simulator's own, the line of the call names the array, so that all threads of a block get the same one.
    """
    frame = sys._getframe(1)
    line = (frame.f_code.co_filename, frame.f_lineno)
    array: Array | None = self._allocations.get(line)
    if array is None:
        if not isinstance(dtype, type | np.dtype | str):  # one of Numba's own types
            dtype = importlib.import_module("numba.cuda.np.numpy_support").as_dtype(dtype)
        array = self._allocations.setdefault(line, np.empty(shape, dtype))
    return array


if SIMULATED:
    importlib.import_module("numba.cuda.simulator.kernelapi").FakeCUDAShared.array = _simulated_shared_array


def device(function: F) -> F:
    """A function that kernels call. It is compiled into each of them; ``py_func`` is the function itself."""
    if not SIMULATED:
        return cuda.jit(function, device=True, inline="always")  # type: ignore[no-any-return]
    # The simulator's wrapper makes the name `cuda` work; a function that does without is faster unwrapped.
    if "cuda" in function.__code__.co_names:
        return cuda.jit(function, device=True)  # type: ignore[no-any-return]
    function.py_func = function  # type: ignore[attr-defined]
    return function


def large_device(function: F) -> F:
    """As :func:`device`, for long functions: inlined late, in machine-near form, which compiles many times faster."""
    if SIMULATED:
        return device(function)
    return cuda.jit(function, device=True, forceinline=True)  # type: ignore[no-any-return]


def two_forms(host: F, gpu: Callable[..., Any]) -> F:
    """A device function that cannot be written once: ``host`` in Python and NumPy, ``gpu`` as a Numba intrinsic.

    Parameters
    ----------
    host : callable
        What the simulator and recorders run; reachable as ``py_func``.
    gpu : callable
        Body of ``numba.cuda.extending.intrinsic``: takes the typing context and argument types, returns a signature
        and a code generator.
    """
    if SIMULATED:
        host.py_func = host  # type: ignore[attr-defined]
        return host
    gpu.__doc__ = host.__doc__
    intrinsic = importlib.import_module("numba.cuda.extending").intrinsic(gpu)
    intrinsic.py_func = host
    return intrinsic  # type: ignore[no-any-return]


class Kernel:
    """A GPU function. ``kernel[blocks, threads](*arguments)`` starts it on torch's current stream; a third number is
    the bytes of dynamic shared memory of a block.

    Arguments are contiguous torch tensors, handed over without a copy (bf16 as int16, fp16 as uint16: Numba's view
    of their bits), and Python or NumPy numbers.

    Attributes
    ----------
    py_func : callable
        The plain Python function.
    options : dict
        ``launch_bounds`` and other options of ``cuda.jit``, which the simulator does without.
    cluster : int
        Blocks of a cluster, 1 or 2.
    """

    def __init__(self, py_func: Callable[..., Any], options: dict[str, Any], cluster: int = 1) -> None:
        self.cluster = cluster
        self.__doc__ = py_func.__doc__
        self.py_func = py_func
        self.options = options
        self._compiled: Any = None
        self._launchers: dict[tuple[Any, ...], Launcher] = {}

    def __getitem__(
        self, size: tuple[int | tuple[int, ...], int] | tuple[int | tuple[int, ...], int, int]
    ) -> Callable[..., None]:
        return functools.partial(self._launch, size[0], size[1], size[2] if len(size) == 3 else 0)

    def _launch(self, blocks: int | tuple[int, ...], threads: int, shared: int, *arguments: Any) -> None:
        if 0 in (blocks if isinstance(blocks, tuple) else (blocks,)):
            return  # no tokens, nothing to do; the driver would refuse an empty grid
        if SIMULATED:
            with _simulator:
                self._jit()[blocks, threads](*(_numpy(argument) for argument in arguments))
            return
        for argument in arguments:
            if isinstance(argument, Tensor):
                _check_argument(argument)
        home = next(argument.device for argument in arguments if isinstance(argument, Tensor))
        if torch.cuda.current_device() == home.index:
            self._launch_here(home, blocks, threads, shared, arguments)
        else:
            with torch.cuda.device(home):
                self._launch_here(home, blocks, threads, shared, arguments)

    def _launch_here(
        self, home: torch.device, blocks: int | tuple[int, ...], threads: int, shared: int, arguments: tuple[Any, ...]
    ) -> None:
        key = (home.index, *(kind_of(argument) for argument in arguments))
        launcher = self._launchers.get(key)
        if launcher is not None:
            launcher(blocks, threads, arguments, shared, self.cluster)
            return
        types = tuple(numba_type(argument) for argument in arguments)
        with _numba_device(home):
            if shared or self.cluster > 1:  # Numba's own launch allows 48 KB, and no clusters
                self._jit().compile(types)
            else:
                stream = cuda.external_stream(torch.cuda.current_stream(home).cuda_stream)
                with _no_occupancy_warning():
                    started = self._jit()[blocks, threads, stream]
                started(*(_device_array(argument) for argument in arguments))
            launcher = launcher_of(self._jit(), types, home.index)
        if launcher is not None:
            self._launchers[key] = launcher
        if shared or self.cluster > 1:
            if launcher is None:
                raise DeviceError(
                    f"{self!r} needs {shared} bytes of shared memory and clusters of {self.cluster} blocks: this "
                    "numba-cuda cannot grant them"
                )
            launcher(blocks, threads, arguments, shared, self.cluster)

    def _jit(self) -> Any:
        if self._compiled is None:
            self._compiled = cuda.jit(self.py_func, **({} if SIMULATED else self.options))
        return self._compiled

    def __repr__(self) -> str:
        return f"<kernel {self.py_func.__module__}.{self.py_func.__name__}>"


BLOCK_THREADS = 32 if SIMULATED else 256
"""Threads of a block for kernels that take any multiple of 32: few in the simulator, where each is a real one."""


def kernel(*, cluster: int = 1, **options: Any) -> Callable[[Callable[..., Any]], Kernel]:
    """Decorator that makes a :class:`Kernel`; ``options`` go to ``cuda.jit`` on a GPU.

    ``launch_bounds=(threads, blocks)``: the most threads of a block, and the blocks that shall fit on a
    multiprocessor at once, which bounds the registers a thread may use. ``cluster``: blocks that run together and
    reach each other's shared memory (compute capability 9.0).
    """
    return lambda function: Kernel(function, options, cluster)


_simulator = threading.Lock()
"""The simulator runs one kernel at a time."""

NUMPY_TYPES = {
    torch.float32: "<f4",
    torch.bfloat16: "<i2",
    torch.float16: "<u2",
    torch.uint16: "<u2",
    torch.uint32: "<u4",
    torch.int32: "<i4",
    torch.int64: "<i8",
}
"""NumPy type under which a kernel sees a tensor."""


def numba_type(argument: Any) -> Any:
    """Numba's type of a kernel argument: a tensor, or a number."""
    types = importlib.import_module("numba.cuda.types")
    if isinstance(argument, Tensor):
        element = importlib.import_module("numba.cuda.np.numpy_support").from_dtype(
            np.dtype(NUMPY_TYPES[argument.dtype])
        )
        return types.Array(element, argument.ndim, "C")
    return {int: types.int64, float: types.float64, np.float32: types.float32}[type(argument)]


def _check_argument(tensor: Tensor) -> str:
    if tensor.dtype not in NUMPY_TYPES:
        raise DtypeError(f"a kernel was given {tensor.dtype}: one of {', '.join(map(str, NUMPY_TYPES))} is needed")
    if not tensor.is_contiguous():
        raise ShapeError(
            f"a kernel was given strides {tensor.stride()} for shape {tuple(tensor.shape)}: pass .contiguous()"
        )
    return NUMPY_TYPES[tensor.dtype]


def _numpy(argument: Any) -> Any:
    if not isinstance(argument, Tensor):
        return argument
    numpy_type = _check_argument(argument)
    bits = {2: torch.uint16, 4: torch.int32, 8: torch.int64}[argument.element_size()]
    return argument.detach().view(bits).numpy().view(numpy_type)


class _Pointer:
    """A tensor's memory under another element type (``__cuda_array_interface__``, version 2: no stream to wait for)."""

    def __init__(self, tensor: Tensor, numpy_type: str) -> None:
        self.tensor = tensor  # kept alive
        self.__cuda_array_interface__ = {
            "shape": tuple(tensor.shape),
            "typestr": numpy_type,
            "data": (tensor.data_ptr(), False),
            "strides": None,
            "version": 2,
        }


def _device_array(argument: Any) -> Any:
    if not isinstance(argument, Tensor):
        return argument
    tensor = argument.detach()
    return cuda.as_cuda_array(_Pointer(tensor, _check_argument(tensor)), sync=False)


def _numba_device(home: torch.device) -> AbstractContextManager[Any]:
    # Numba stays with the first device that a thread used: where there are several, the right one is named.
    if torch.cuda.device_count() < 2:
        return nullcontext()
    return cuda.gpus[home.index]  # type: ignore[no-any-return]


class _no_occupancy_warning:  # noqa: N801 - a context manager, named like a function
    """No word from Numba about grids of fewer than 128 blocks: one token is one block."""

    def __enter__(self) -> None:
        self._before = _numba_config().CUDA_LOW_OCCUPANCY_WARNINGS
        _numba_config().CUDA_LOW_OCCUPANCY_WARNINGS = 0

    def __exit__(self, *_: object) -> None:
        _numba_config().CUDA_LOW_OCCUPANCY_WARNINGS = self._before


@functools.cache
def why_no_compiler() -> str:
    """Why kernels cannot be compiled on this machine; empty where they can."""
    if SIMULATED:
        return ""
    nvvm = importlib.import_module("numba.cuda.cudadrv.nvvm")
    try:
        nvvm.NVVM()
    except nvvm.NvvmSupportError:
        return 'the compiler library libnvvm was not found: pip install "twellviz[cu13]", or set CUDA_HOME to a toolkit'
    return ""


@functools.cache
def _why_not(index: int) -> str:
    if missing := why_no_compiler():
        return missing
    major, minor = torch.cuda.get_device_capability(index)
    oldest = CAPABILITIES[0]
    if (major, minor) < oldest:
        name = torch.cuda.get_device_name(index)
        return f"{name} has compute capability {major}.{minor}, the kernels need {oldest[0]}.{oldest[1]} or more"
    return ""


def why_not(home: torch.device) -> str:
    """Why kernels cannot run on tensors of this device; empty where they can."""
    if SIMULATED:
        return "" if home.type == "cpu" else f"the simulator runs on CPU tensors, not on {home}"
    if home.type != "cuda":
        return f"the kernels run on an NVIDIA GPU, not on {home}"
    return _why_not(torch.cuda.current_device() if home.index is None else home.index)


def check_device(arrays: Sequence[Tensor], names: Sequence[str]) -> None:
    """Raise DeviceError unless kernels can run on every one of ``arrays``."""
    for array, name in zip(arrays, names, strict=True):
        reason = why_not(array.device)
        if reason:
            raise DeviceError(
                f'{name}: {reason}; use backend="cpu" or "reference", or set NUMBA_ENABLE_CUDASIM=1 before Python '
                "starts to run the kernels in the simulator"
            )
