"""Starting a compiled kernel in microseconds.

Numba's own way to start a kernel looks at each argument anew and takes about 60 microseconds an array, longer than
many of our kernels run. So it is taken for the first launch of each combination of argument types, which compiles;
every later launch hands the driver the same compiled function, with the arguments laid out as Numba expects them.

Letters: none; ``blocks`` and ``threads`` are the sizes of a launch.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import struct
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from twell.errors import DeviceError


@functools.cache
def _driver() -> Any:
    return importlib.import_module("cuda.bindings.driver")


def kind_of(argument: Any) -> tuple[Any, int]:
    """What Numba compiles for: element type and axes of an array, or the type of a number."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.ndim
    return type(argument), -1


def words_of(argument: Any) -> list[int]:
    """An argument as 64-bit words, as Numba's kernels take it.

    An array is its owner and parent (none), size, bytes of an element, address, shape, strides in bytes.

    Raises
    ------
    DeviceError
        Numbers other than int, float and float32 are taken by none of our kernels.
    """
    if isinstance(argument, Tensor):
        size = argument.element_size()
        strides = [size] * argument.ndim
        for axis in range(argument.ndim - 1, 0, -1):
            strides[axis - 1] = strides[axis] * argument.shape[axis]
        return [0, 0, argument.numel(), size, argument.data_ptr(), *argument.shape, *strides]
    if isinstance(argument, int):
        return [argument]
    if isinstance(argument, np.float32):
        return [int(np.uint32(argument.view(np.uint32)))]
    if isinstance(argument, float):
        return [struct.unpack("<q", struct.pack("<d", argument))[0]]
    raise DeviceError(f"a kernel was given {argument!r}: a tensor, an int, a float or a numpy.float32 is needed")


class _Thread(threading.local):
    has_context = False


_thread = _Thread()


def _make_context_current(device: int) -> None:
    """Once in each thread: torch makes a device's context current only when it talks to the driver itself."""
    driver = _driver()
    _, context = driver.cuCtxGetCurrent()
    if not int(context):
        _check(*driver.cuCtxSetCurrent(_check(*driver.cuDevicePrimaryCtxRetain(device))))
    _thread.has_context = True


def _check(status: Any, value: Any = None) -> Any:
    if int(status) != 0:
        _, name = _driver().cuGetErrorName(status)
        raise DeviceError(f"the CUDA driver refused a kernel: {name.decode()}")
    return value


def _cluster_config(x: int, y: int, z: int, threads: int, shared: int, stream: int, cluster: int) -> Any:
    driver = _driver()
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    value = driver.CUlaunchAttributeValue()
    value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = cluster, 1, 1
    attribute.value = value
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = x, y, z
    config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
    config.sharedMemBytes, config.hStream = shared, driver.CUstream(stream)
    config.attrs, config.numAttrs = [attribute], 1
    return config


class Launcher:
    """One compiled kernel on one device.

    Parameters
    ----------
    handle : int
        The driver's handle of the compiled function.
    device : int
    """

    def __init__(self, handle: int, device: int) -> None:
        self._handle = handle
        self._device = device
        self._allowed = 48 << 10

    def __call__(
        self,
        blocks: int | tuple[int, ...],
        threads: int,
        arguments: Sequence[Any],
        shared: int = 0,
        cluster: int = 1,
    ) -> None:
        """Start the kernel on torch's current stream; the current device must be that of the launcher.

        ``shared``: bytes of dynamic shared memory of a block; ``cluster``: blocks of a cluster.
        """
        if shared > self._allowed:
            self._allow(shared)
        if not _thread.has_context:
            _make_context_current(self._device)
        words = [word for argument in arguments for word in words_of(argument)]
        n = len(words)
        values = (ctypes.c_int64 * n)(*words)
        first = ctypes.addressof(values)
        addresses = (ctypes.c_void_p * n)(*range(first, first + 8 * n, 8))
        x, y, z = (*(blocks if isinstance(blocks, tuple) else (blocks,)), 1, 1)[:3]
        stream = torch.cuda.current_stream(self._device).cuda_stream
        if cluster > 1:
            config = _cluster_config(x, y, z, threads, shared, stream, cluster)
            _check(*_driver().cuLaunchKernelEx(config, self._handle, ctypes.addressof(addresses), 0))
            return
        _check(
            *_driver().cuLaunchKernel(
                self._handle, x, y, z, threads, 1, 1, shared, stream, ctypes.addressof(addresses), 0
            )
        )

    def _allow(self, shared: int) -> None:
        """More than 48 KB of dynamic shared memory has to be asked for."""
        driver = _driver()
        most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _check(*driver.cuKernelSetAttribute(most, shared, driver.CUkernel(self._handle), driver.CUdevice(self._device)))
        self._allowed = shared


def launcher_of(dispatcher: Any, types: tuple[Any, ...], device: int) -> Launcher | None:
    """The launcher of what Numba has compiled for these argument types on the current device.

    None where another version of numba-cuda keeps it elsewhere: then Numba starts the kernels.
    """
    try:
        compiled = dispatcher.overloads[types]
        return Launcher(int(compiled._codelibrary.get_cufunc().handle), device)
    except (AttributeError, KeyError, TypeError):
        return None
