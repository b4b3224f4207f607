"""A copy of a kernel's Python function in which ``cuda`` is the recorder's stand-in.

The function itself is left alone: the copy shares its code and has other globals and closure cells. What the code
refers to by name is replaced where it must be: ``cuda``, dtypes used as casts, and functions that it calls, which
are copied in the same way. Letters: none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from twellviz.kernel_trace.errors import NotRecordableError
from twellviz.kernel_trace.scalars import CASTS, F32, as_dtype


def python_function(kernel: Any) -> FunctionType:
    """The plain function of a kernel: itself, or what a decorator keeps in ``py_func``.

    Raises
    ------
    NotRecordableError
        There is none.
    """
    function = getattr(kernel, "py_func", kernel)
    if not isinstance(function, FunctionType):
        raise NotRecordableError(
            f"kernel is {type(kernel).__name__}: give a Python function, or a kernel whose decorator keeps its "
            "function in py_func, as numba.cuda.jit does"
        )
    return function


def rebound(function: FunctionType, cuda: Any) -> FunctionType:
    """A copy of ``function`` that finds ``cuda`` where its code says ``cuda``."""
    return _Rebinder(cuda).function(function)


class _Rebinder:
    def __init__(self, cuda: Any) -> None:
        self.cuda = cuda
        self._copies: dict[int, FunctionType] = {}

    def function(self, function: FunctionType) -> FunctionType:
        if id(function) in self._copies:
            return self._copies[id(function)]
        code = function.__code__
        scope = dict(function.__globals__)
        cells = tuple(CellType() for _ in code.co_freevars)
        copy = FunctionType(code, scope, function.__name__, function.__defaults__, cells)
        copy.__kwdefaults__ = function.__kwdefaults__
        # Known before its names are looked at: a function may call itself.
        self._copies[id(function)] = copy
        for name in _names(code):
            if name in scope:
                scope[name] = self.value(scope[name])
        scope["cuda"] = self.cuda
        for name in ("max", "min"):
            if name not in scope:
                scope[name] = _PICKS[name]
        for name, cell, original in zip(code.co_freevars, cells, function.__closure__ or (), strict=True):
            if name == "cuda":
                cell.cell_contents = self.cuda
            elif _full(original):
                cell.cell_contents = self.value(original.cell_contents)
        return copy

    def value(self, value: Any) -> Any:
        """What stands for a global: most things are themselves."""
        if isinstance(value, ModuleType):
            return self.cuda if value.__name__.endswith((".cuda", ".cuda.simulator")) else _Module(value, self)
        if isinstance(value, FunctionType):
            return self.function(value)
        function = getattr(value, "py_func", None)
        if isinstance(function, FunctionType):
            return self.function(function)
        return _cast(value)


class _Module:
    """A module in a kernel, whose functions and dtypes are replaced as the kernel's own globals are."""

    def __init__(self, module: ModuleType, rebinder: _Rebinder) -> None:
        self._module, self._rebinder = module, rebinder

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        if self._module is math and isinstance(found, BuiltinFunctionType):
            replaced: Any = _single_precision(found)
        elif self._module.__name__.partition(".")[0] == "numpy":
            replaced = _cast(found)
        else:
            replaced = self._rebinder.value(found)
        setattr(self, name, replaced)  # looked up once
        return replaced


def _pick(builtin: Callable[..., Any]) -> Callable[..., Any]:
    """``max`` or ``min`` as Numba compiles them for a GPU: of two floats the number, where the other is NaN."""

    def call(*arguments: Any) -> Any:
        numbers = [value for value in arguments if not (isinstance(value, float | np.floating) and value != value)]
        floats = len(arguments) == 2 and all(isinstance(value, float | np.floating) for value in arguments)
        return builtin(*(numbers * 2)) if floats and len(numbers) == 1 else builtin(*arguments)

    return call


_PICKS = {"max": _pick(max), "min": _pick(min)}


def _single_precision(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of ``math`` that gives float32 for float32, as Numba's do."""

    def call(*arguments: Any) -> Any:
        result = function(*arguments)
        single = isinstance(result, float) and all(isinstance(value, np.float32) for value in arguments)
        return F32(result) if single else result

    return call


def _cast(value: Any) -> Any:
    """The cast that a NumPy or Numba dtype stands for; anything else as it is."""
    is_numpy = isinstance(value, type) and issubclass(value, np.generic)
    is_numba = type(value).__module__.startswith(("numba.", "numba_cuda.")) and hasattr(value, "bitwidth")
    if not is_numpy and not is_numba:
        return value
    try:
        return CASTS[as_dtype(value).name]
    except (TypeError, KeyError):
        return value


def _names(code: CodeType) -> Iterator[str]:
    """Names that the code, or a function inside it, may look up among its globals."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _full(cell: CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True
