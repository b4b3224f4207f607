"""Exercises in which the learner writes a kernel: run it in the recorder, name its fault, compare with a reference.

Letters: none.
"""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twellviz.errors import ConfigError
from twellviz.exercises.checking import ExerciseError
from twellviz.kernel_trace.device import run_on_device
from twellviz.kernel_trace.errors import Fault, KernelFault, NotRecordableError, RecordingLimitError
from twellviz.kernel_trace.faults import line_text, who
from twellviz.kernel_trace.launch import dim3, like_given
from twellviz.kernel_trace.rebind import python_function
from twellviz.kernel_trace.recorder import record_kernel
from twellviz.kernel_trace.trace import KernelTrace

WRONG_VALUE = "wrong value"
WRONG_INDEX = "wrong index"
UNWRITTEN_OUTPUT = "unwritten output"
CHANGED_INPUT = "changed input"
WRONG_ARGUMENTS = "wrong arguments"
NOT_RECORDABLE = "not recordable"
TOO_LARGE = "too many accesses"
DIFFERS_ON_DEVICE = "differs on the device"
DEPENDS_ON_ORDER = "depends on the order of threads"
TOO_COSTLY = "right and too costly"

Size = int | tuple[int, ...]


class KernelExerciseError(ExerciseError):
    """A learner's kernel is wrong.

    Attributes
    ----------
    kind : str
        What is wrong: one of the kinds of :mod:`twellviz.kernel_trace.errors`, or of this module.
    fault : Fault or None
        Where it shows, if the recorder found it.
    message : str
        What is wrong, without exercise and kind.
    """

    def __init__(
        self,
        where: str,
        kind: str,
        message: str,
        *,
        fault: Fault | None = None,
        index: tuple[int, ...] | None = None,
        expected: Any = None,
        found: Any = None,
    ) -> None:
        super().__init__(f"{where}: {kind}: {message}", index=index, expected=expected, found=found)
        self.kind, self.fault, self.message = kind, fault, message


@dataclass(frozen=True)
class KernelSpec:
    """A task for a kernel.

    Attributes
    ----------
    number : str
        As in the notebook, ``"4.1"``.
    make : callable
        Size to arguments, a mapping of the kernel's parameter names in their order to arrays and numbers. Give
        inputs distinct values, so that a wrong index shows; make outputs with :func:`twellviz.kernel_trace.empty`.
    reference : callable
        Takes the same arguments by keyword and returns a mapping of output names to what they must hold.
    launch : callable
        Size to (grid, block).
    sizes : tuple of int
        At least two, one of which is no multiple of the block's threads along some axis.
    tolerance : float
        Relative and absolute, for floating point; 0 demands equality.
    hint : str
    max_events : int
        Accesses after which a kernel is taken to run for ever.
    costs : callable or None
        Takes the recording at the first size and returns what the launch wastes, in words, or "" if it is cheap
        enough; for tasks that ask for more than the right numbers.

    Raises
    ------
    ConfigError
        The sizes would let a kernel pass that is right for one size only.
    """

    number: str
    make: Callable[[int], Mapping[str, Any]]
    reference: Callable[..., Mapping[str, Any]]
    launch: Callable[[int], tuple[Size, Size]]
    sizes: tuple[int, ...]
    tolerance: float = 0.0
    hint: str = ""
    max_events: int = 200_000
    costs: Callable[[KernelTrace], str] | None = None

    def __post_init__(self) -> None:
        if len(set(self.sizes)) < 2:
            raise ConfigError(f"sizes={self.sizes}: at least two sizes are needed")
        blocks = {size: dim3("block", self.launch(size)[1]) for size in self.sizes}
        if not any(size % n for size, block in blocks.items() for n in block if n > 1):
            raise ConfigError(
                f"sizes={self.sizes}: one must be no multiple of its block, {tuple(blocks[self.sizes[0]])}"
            )


def check_kernel(kernel: Any, spec: KernelSpec) -> KernelTrace | None:
    """Check a learner's kernel on every size of a task.

    It runs in the recorder, at the first size also with the last thread first; then on the GPU if there is one, or in
    Numba's simulator where that is switched on.

    Parameters
    ----------
    kernel : function, or an object with ``py_func``
    spec : KernelSpec

    Returns
    -------
    KernelTrace or None
        The recording at the first size, to draw; None if the kernel is the skeleton, with its ``...``.

    Raises
    ------
    KernelExerciseError
        With the fault's name, thread and line, or the first differing index, expected and found.
    """
    function = python_function(kernel)
    if _is_skeleton(function):
        print(f"Exercise {spec.number}: not attempted yet")
        return None
    traces = []
    ran_on = "recorder"
    for size in spec.sizes:
        where = f"Exercise {spec.number}, size {size}"
        arguments, (grid, block) = spec.make(size), spec.launch(size)
        _check_parameters(where, function, list(arguments))
        expected = spec.reference(**copy.deepcopy(dict(arguments)))
        trace = _record(where, function, grid, block, arguments, spec.max_events)
        _compare_all(where, trace, arguments, expected, spec.tolerance)
        traces.append(trace)
        if size == spec.sizes[0]:
            _check_reversed(where, function, spec, arguments, expected)
        if spec.costs is not None and size == spec.sizes[0] and (waste := spec.costs(trace)):
            raise KernelExerciseError(where, TOO_COSTLY, waste)
        on_device = run_on_device(function, grid, block, list(arguments.values()))
        if on_device is not None:
            ran_on = f"recorder and {on_device.name}"
            _compare_device(f"{where}, {on_device.name}", arguments, expected, on_device.arrays, spec.tolerance)
    sizes = ", ".join(map(str, spec.sizes))
    print(f"Exercise {spec.number}: correct in all {len(spec.sizes)} sizes: {sizes} ({ran_on})")
    return traces[0]


class KernelSheet:
    """The kernel exercises of one notebook, with the interface of :class:`twellviz.exercises.Sheet`."""

    def __init__(self, specs: Sequence[KernelSpec]) -> None:
        self._specs = {spec.number: spec for spec in specs}

    @property
    def numbers(self) -> list[str]:
        """Numbers of the exercises, in order."""
        return list(self._specs)

    def hint(self, number: str) -> None:
        """Print the hint of an exercise."""
        print(f"Hint for {number}: {self.spec(number).hint}")

    def check(self, number: str, kernel: Any) -> KernelTrace | None:
        """Check a kernel; see :func:`check_kernel`."""
        return check_kernel(kernel, self.spec(number))

    def record(self, number: str, kernel: Any, *, size: int | None = None) -> KernelTrace:
        """The recording of a kernel on a task's input, right or wrong: to draw it before it is checked.

        Parameters
        ----------
        number : str
        kernel : function, or an object with ``py_func``
        size : int, optional
            One of the task's sizes; the first if left out.

        Raises
        ------
        ConfigError
            No such exercise or size.
        """
        spec = self.spec(number)
        size = spec.sizes[0] if size is None else size
        if size not in spec.sizes:
            raise ConfigError(f"size={size}: exercise {number} has {', '.join(map(str, spec.sizes))}")
        grid, block = spec.launch(size)
        return record_kernel(kernel, grid, block, *spec.make(size).values(), max_events=spec.max_events)

    def spec(self, number: str) -> KernelSpec:
        """The task of an exercise.

        Raises
        ------
        ConfigError
            There is no such exercise.
        """
        if number not in self._specs:
            raise ConfigError(f"number={number!r}: this notebook has {', '.join(self._specs)}")
        return self._specs[number]


def _check_parameters(where: str, function: FunctionType, names: list[str]) -> None:
    taken = list(inspect.signature(function).parameters)
    if len(taken) != len(names):
        message = (
            f"{function.__name__} takes {len(taken)} ({', '.join(taken)}), {len(names)} are passed: {', '.join(names)}"
        )
        raise KernelExerciseError(where, WRONG_ARGUMENTS, message)


def _record(
    where: str, function: FunctionType, grid: Size, block: Size, arguments: Mapping[str, Any], max_events: int
) -> KernelTrace:
    try:
        trace = record_kernel(function, grid, block, *arguments.values(), max_events=max_events).check()
    except KernelFault as error:
        fault = error.fault
        raise KernelExerciseError(where, fault.kind, fault.message, fault=fault, index=fault.index) from error
    except NotRecordableError as error:
        raise KernelExerciseError(where, NOT_RECORDABLE, str(error)) from error
    except RecordingLimitError as error:
        raise KernelExerciseError(where, TOO_LARGE, str(error)) from error
    return trace


def _check_reversed(
    where: str, function: FunctionType, spec: KernelSpec, arguments: Mapping[str, Any], expected: Mapping[str, Any]
) -> None:
    """Let the last thread go first: a GPU promises no order, and a right kernel needs none."""
    grid, block = spec.launch(spec.sizes[0])
    trace = record_kernel(function, grid, block, *arguments.values(), max_events=spec.max_events, order="reverse")
    try:
        _compare_all(where, trace, arguments, expected, spec.tolerance)
    except KernelExerciseError as error:
        message = (
            f"right where thread 0 goes first, and where the last thread goes first: {error.kind}: {error.message}. "
            "A GPU promises no order between barriers, nor who gets to an atomic first"
        )
        raise KernelExerciseError(
            where, DEPENDS_ON_ORDER, message, index=error.index, expected=error.expected, found=error.found
        ) from error


def _compare_all(
    where: str, trace: KernelTrace, arguments: Mapping[str, Any], expected: Mapping[str, Any], tolerance: float
) -> None:
    # The learner may call the parameters otherwise: the place counts.
    by_position = dict(zip(_array_names(arguments), trace.outputs, strict=True))
    for name, right in expected.items():
        if name not in by_position:
            raise ConfigError(f"reference returned {name!r}: the arrays are {', '.join(by_position)}")
        _compare_output(where, trace, by_position[name], _numbers(right), tolerance)
    for name, parameter in by_position.items():
        if name not in expected and not _same(_numbers(arguments[name]), _numbers(trace.outputs[parameter]), 0.0).all():
            index = _first(~_same(_numbers(arguments[name]), _numbers(trace.outputs[parameter]), 0.0))
            message = f"{parameter} is an input, and {_writer(trace, parameter, index)}"
            raise KernelExerciseError(where, CHANGED_INPUT, message, index=index)


def _compare_output(where: str, trace: KernelTrace, name: str, right: NDArray[Any], tolerance: float) -> None:
    found = _numbers(trace.outputs[name])
    wrong = ~_same(right, found, tolerance)
    if not wrong.any():
        return
    storage = trace.find(name)
    missing = trace.unwritten(name) if storage.unwritten else []
    if missing:
        message = f"nothing wrote {_cell(name, missing[0])} ({len(missing)} of {found.size} cells of {name})"
        index = missing[0]
        raise KernelExerciseError(where, UNWRITTEN_OUTPUT, message, index=index, expected=right[index].item())
    index = _first(wrong)
    expected, got = right[index].item(), found[index].item()
    message = f"first difference at {_cell(name, index)}: expected {expected!r}, found {got!r}; "
    message += _writer(trace, name, index)
    kind = WRONG_VALUE
    if _permuted(right, found):
        kind = WRONG_INDEX
        home = _first(right == found[index])
        message += f". The values are right and their places are not: {got!r} belongs at {_cell(name, home)}"
    raise KernelExerciseError(where, kind, message, index=index, expected=expected, found=got)


def _compare_device(
    where: str,
    arguments: Mapping[str, Any],
    expected: Mapping[str, Any],
    arrays: Mapping[int, NDArray[Any]],
    tolerance: float,
) -> None:
    for place, name in enumerate(arguments):
        if name not in expected:
            continue
        right, found = _numbers(expected[name]), _numbers(like_given(arguments[name], arrays[place]))
        wrong = ~_same(right, found, tolerance)
        if wrong.any():
            index = _first(wrong)
            values = right[index].item(), found[index].item()
            message = (
                f"first difference at {_cell(name, index)}: expected {values[0]!r}, found {values[1]!r}, while the "
                "recorder found nothing wrong; look for types that overflow, or for order between threads"
            )
            raise KernelExerciseError(
                where, DIFFERS_ON_DEVICE, message, index=index, expected=values[0], found=values[1]
            )


def _writer(trace: KernelTrace, name: str, index: tuple[int, ...]) -> str:
    order = trace.last_write(name, index)
    if order is None:
        return f"no thread wrote {_cell(name, index)}"
    site = trace.sites[trace.site[order]]
    where = line_text(trace, site.line, site.source, site.function)
    return f"{who(trace, int(trace.thread[order]))} wrote {_cell(name, index)} at {where}"


def _array_names(arguments: Mapping[str, Any]) -> list[str]:
    return [name for name, value in arguments.items() if hasattr(value, "dtype") and np.ndim(value)]


def _numbers(value: Any) -> NDArray[Any]:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.double() if value.is_floating_point() else value
        return np.asarray(value.numpy())
    return np.asarray(value)


def _same(right: NDArray[Any], found: NDArray[Any], tolerance: float) -> NDArray[np.bool_]:
    if right.shape != found.shape:
        raise ConfigError(f"reference gave shape {right.shape} for an array of shape {found.shape}")
    if tolerance == 0 or found.dtype.kind in "biu":
        equal: NDArray[np.bool_] = (right == found) | ((right != right) & (found != found))
        return equal
    close: NDArray[np.bool_] = np.isclose(found, right, rtol=tolerance, atol=tolerance, equal_nan=True)
    return close


def _permuted(right: NDArray[Any], found: NDArray[Any]) -> bool:
    return bool(np.array_equal(np.sort(right, axis=None), np.sort(found, axis=None)))


def _first(where: NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.argwhere(where)[0])


def _cell(name: str, index: tuple[int, ...]) -> str:
    return f"{name}[{', '.join(map(str, index))}]"


def _is_skeleton(function: FunctionType) -> bool:
    """Whether the body still has the ``...``, or ``return ...``, that stands for the learner's code.

    A body that writes to a parameter is an answer: an ellipsis left behind it does nothing.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return ... in function.__code__.co_consts
    if any(_writes(node, set(inspect.signature(function).parameters)) for node in ast.walk(tree)):
        return False
    return any(isinstance(node, ast.Constant) and node.value is ... for node in ast.walk(tree))


def _writes(node: ast.AST, parameters: set[str]) -> bool:
    """Whether a statement assigns to a cell of a parameter, or passes one to an atomic."""
    if isinstance(node, ast.Assign | ast.AugAssign):
        if isinstance(node.value, ast.Constant) and node.value.value is ...:
            return False
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(
            isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name) and target.value.id in parameters
            for target in targets
        )
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Attribute)
        and node.func.value.attr == "atomic"
        and isinstance(node.args[0] if node.args else None, ast.Name)
    )
