"""From a call to a recording: sizes of the launch, arguments as recorded arrays, outputs back in the caller's types.

Letters: none.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twellviz.errors import ConfigError
from twellviz.kernel_trace.arrays import RecordedArray
from twellviz.kernel_trace.errors import NotRecordableError
from twellviz.kernel_trace.recording import GLOBAL, WRITE, Recording, Storage, poison
from twellviz.kernel_trace.scalars import as_dtype, as_scalar
from twellviz.kernel_trace.standin import Dim3

MAX_BLOCK = 1024
"""Threads of a block on every NVIDIA GPU."""


class Uninitialised(np.ndarray):
    """An array whose cells count as unwritten until a kernel writes them; see :func:`empty`."""


def empty(shape: int | tuple[int, ...], dtype: Any) -> Uninitialised:
    """An output that holds nothing yet: reading a cell of it before one is written is a fault.

    Parameters
    ----------
    shape : int or tuple of int
    dtype : NumPy or Numba dtype

    Returns
    -------
    Uninitialised
        A NumPy array of NaN, or of a large integer (every byte 0x5a).
    """
    sizes = shape if isinstance(shape, tuple) else (shape,)
    return poison(sizes, as_dtype(dtype)).view(Uninitialised)


def dim3(name: str, size: Any) -> Dim3:
    """A launch size as three numbers.

    Raises
    ------
    ConfigError
        Not one to three whole numbers of at least 1.
    """
    try:
        sizes = [operator.index(n) for n in (size if isinstance(size, tuple | list) else (size,))]
    except TypeError:
        raise ConfigError(f"{name}={size!r}: one to three whole numbers are needed") from None
    if not 1 <= len(sizes) <= 3 or min(sizes) < 1:
        raise ConfigError(f"{name}={size!r}: one to three numbers of at least 1 are needed")
    return Dim3(*sizes, *[1] * (3 - len(sizes)))


def check_block(block: Dim3) -> None:
    """Raise ConfigError for a block that no GPU takes."""
    if block.x * block.y * block.z > MAX_BLOCK:
        raise ConfigError(
            f"block={tuple(block)} has {block.x * block.y * block.z} threads, a GPU takes {MAX_BLOCK}: use more blocks"
        )


@dataclass
class _Argument:
    """An array argument: the caller's object, its memory as NumPy sees it, and the storage that copies it."""

    given: Any
    memory: NDArray[Any]
    storage: Storage


class Arguments:
    """A kernel's arguments, converted.

    Attributes
    ----------
    values : tuple
        What the kernel is called with.
    """

    def __init__(
        self, recording: Recording, function: FunctionType, given: Sequence[Any], unwritten: Sequence[str]
    ) -> None:
        names = _names(function, given)
        unknown = sorted(set(unwritten) - set(names))
        if unknown:
            raise ConfigError(
                f"unwritten={list(unwritten)!r}: {function.__name__} has no {unknown[0]!r}, it has {names}"
            )
        self._recording = recording
        self._arrays: dict[str, _Argument] = {}
        self.values = tuple(
            self._convert(name, value, name in unwritten) for name, value in zip(names, given, strict=True)
        )

    def outputs(self) -> Mapping[str, Any]:
        """Every array argument after the launch, in the caller's type."""
        return {name: like_given(a.given, _shaped(a.storage)) for name, a in self._arrays.items()}

    def write_back(self, written: set[int]) -> None:
        """Put the new contents into the caller's arrays."""
        for argument in self._arrays.values():
            if argument.storage.id in written:
                _put(argument.given, _shaped(argument.storage))

    def check_overlap(self, written: set[int]) -> None:
        """Raise NotRecordableError if two arguments share memory and one of them was written.

        Each was recorded as an array of its own, so that the contents would be wrong.
        """
        arguments = list(self._arrays.items())
        for place, (name, one) in enumerate(arguments):
            for other_name, other in arguments[place + 1 :]:
                same = one.storage is other.storage
                if same or not {one.storage.id, other.storage.id} & written:
                    continue
                if _shares_memory(one.memory, other.memory):
                    raise NotRecordableError(
                        f"{name} and {other_name} overlap in memory and the kernel writes one of them: pass copies"
                    )

    def _convert(self, name: str, value: Any, unwritten: bool) -> Any:
        memory = as_memory(name, value)
        if memory is None:
            return as_scalar(value)
        if memory.ndim == 0:
            raise NotRecordableError(f"{name} is an array of no axes: pass a number, or an array of one cell")
        for other in self._arrays.values():
            if _same_memory(memory, other.memory):
                self._arrays[name] = _Argument(value, memory, other.storage)
                return RecordedArray.whole(self._recording, other.storage)
        try:
            as_dtype(memory.dtype)
        except TypeError as error:
            raise NotRecordableError(f"{name}: {error}") from None
        unwritten = unwritten or isinstance(value, Uninitialised)
        data = poison((memory.size,), memory.dtype) if unwritten else np.array(memory, order="C").reshape(-1)
        self._recording.unique_name(name, name, 0)
        storage = Storage(
            len(self._recording.storages),
            name,
            GLOBAL,
            np.asarray(data),
            data.copy(),
            memory.shape,
            memory.strides,
            unwritten,
        )
        self._recording.storages.append(storage)
        self._arrays[name] = _Argument(value, memory, storage)
        return RecordedArray.whole(self._recording, storage)


def written_storages(recording: Recording) -> set[int]:
    """Numbers of the storages that were written."""
    writing = np.array([site.operation >= WRITE for site in recording.sites], dtype=bool)
    events = np.frombuffer(recording.events, dtype=np.int64).reshape(-1, 3)
    return set(np.unique(events[writing[events[:, 2]], 0]).tolist()) if len(events) else set()


def _names(function: FunctionType, given: Sequence[Any]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind not in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters):
        raise NotRecordableError(
            f"{function.__name__} takes *args or keyword-only arguments, which a kernel cannot have"
        )
    names = [p.name for p in parameters]
    required = sum(p.default is p.empty for p in parameters)
    if not required <= len(given) <= len(names):
        raise ConfigError(f"{function.__name__} takes {len(names)} arguments ({', '.join(names)}), {len(given)} given")
    return names[: len(given)]


def _is_tensor(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "detach")


def as_memory(name: str, value: Any) -> NDArray[Any] | None:
    """The array's memory as NumPy sees it; None for a number."""
    if isinstance(value, np.ndarray):
        return value.view(np.ndarray)
    if _is_tensor(value):
        return _tensor_memory(value)
    numbers: Iterator[Any] = iter(value if isinstance(value, tuple) else (value,))
    if not all(number is None or isinstance(number, int | float | np.generic) for number in numbers):
        raise NotRecordableError(f"{name} is {type(value).__name__}: pass a NumPy array, a torch tensor or a number")
    return None


def _tensor_memory(tensor: Any) -> NDArray[Any]:
    """As the kernels of ``twell`` see tensors: bf16 as int16, fp16 as uint16, both the bits of the value."""
    import torch

    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy()  # type: ignore[no-any-return]
    if tensor.dtype == torch.float16:
        return tensor.view(torch.int16).numpy().view(np.uint16)  # type: ignore[no-any-return]
    return tensor.numpy()  # type: ignore[no-any-return]


def _shaped(storage: Storage) -> NDArray[Any]:
    return storage.data.reshape(storage.shape)


def like_given(given: Any, data: NDArray[Any]) -> Any:
    """A new array or tensor like ``given`` that holds ``data``."""
    if not _is_tensor(given):
        return data.copy()
    import torch

    bits = {2: np.int16, 4: np.int32, 8: np.int64, 1: np.int8}[data.dtype.itemsize]
    signed = torch.from_numpy(data.copy().view(bits))
    return signed.view(given.dtype).to(given.device)


def _put(given: Any, data: NDArray[Any]) -> None:
    if _is_tensor(given):
        given.detach().copy_(like_given(given, data))
    else:
        given[...] = data


def _same_memory(one: NDArray[Any], other: NDArray[Any]) -> bool:
    layout = [(a.__array_interface__["data"][0], a.shape, a.strides, a.dtype) for a in (one, other)]
    return layout[0] == layout[1] and one.size > 0


def _shares_memory(one: NDArray[Any], other: NDArray[Any]) -> bool:
    try:
        return bool(np.shares_memory(one, other, max_work=100_000))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True
