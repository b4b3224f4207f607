"""Run a kernel for real: on a GPU, or else in Numba's simulator.

The simulator must be chosen before Numba is imported and shuts the real CUDA out of its process, so it runs in a child
process. That gets the kernel as a small program: its source, and what its globals refer to by name.

Letters: none.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twellviz.errors import ConfigError
from twellviz.kernel_trace.device import run_on_device
from twellviz.kernel_trace.errors import NotRecordableError
from twellviz.kernel_trace.launch import as_memory, like_given
from twellviz.kernel_trace.rebind import python_function

Size = int | tuple[int, ...]

TIMEOUT = 300
"""Seconds after which the simulator is taken to hang, as it does where some threads never reach a barrier."""

_MAIN = """
if __name__ == "__main__":
    import json
    import sys

    import numpy as np

    given = json.loads(sys.argv[3])
    with np.load(sys.argv[1], allow_pickle=False) as file:
        arrays = {name: file[name].copy() for name in file.files}
    arguments = [arrays.get(str(i), number) for i, number in enumerate(given["numbers"])]
    grid, block = (tuple(size) if isinstance(size, list) else size for size in (given["grid"], given["block"]))
    cuda.jit(%s)[grid, block](*arguments)
    np.savez(sys.argv[2], **arrays)
"""


@dataclass(frozen=True)
class KernelRun:
    """A launch that was run, not recorded.

    Attributes
    ----------
    where : str
        Name of the GPU, or ``Numba's simulator``.
    outputs : mapping of str to array
        Every array argument after the launch, by the kernel's parameter name: NumPy for NumPy, torch for torch.
    """

    where: str
    outputs: Mapping[str, Any]


def run_kernel(kernel: Any, grid: Size, block: Size, *arguments: Any) -> KernelRun:
    """Run a kernel on copies of its arguments, on a GPU if there is one, else in Numba's simulator.

    Parameters
    ----------
    kernel : function, or an object with ``py_func``
        As for :func:`twellviz.kernel_trace.record_kernel`. For the simulator its globals may be numbers, modules,
        dtypes, and functions of modules that can be imported.
    grid, block : int or tuple of up to three int
    *arguments
        NumPy arrays, CPU tensors and numbers.

    Returns
    -------
    KernelRun

    Raises
    ------
    NotRecordableError
        The kernel's source cannot be found, or it refers to something that cannot be handed on.
    ConfigError
        The kernel raised in the simulator, or did not end.
    """
    function = python_function(kernel)
    names = list(inspect.signature(function).parameters)[: len(arguments)]
    on_device = run_on_device(function, grid, block, arguments)
    if on_device is not None:
        where, arrays = on_device.name, dict(on_device.arrays)
    else:
        where, arrays = "Numba's simulator", _simulated(function, grid, block, arguments)
    outputs = {names[i]: like_given(arguments[i], array) for i, array in arrays.items()}
    return KernelRun(where, outputs)


def _simulated(function: FunctionType, grid: Size, block: Size, arguments: tuple[Any, ...]) -> dict[int, NDArray[Any]]:
    memories = {i: as_memory(f"argument {i}", value) for i, value in enumerate(arguments)}
    arrays = {i: np.ascontiguousarray(memory) for i, memory in memories.items() if memory is not None}
    numbers = [None if i in arrays else _plain(value) for i, value in enumerate(arguments)]
    with tempfile.TemporaryDirectory() as folder:
        program, before, after = (Path(folder, name) for name in ("program.py", "before.npz", "after.npz"))
        program.write_text(program_of(function), encoding="utf-8")
        named: dict[str, Any] = {str(i): array for i, array in arrays.items()}
        np.savez(before, **named)
        given = json.dumps({"grid": grid, "block": block, "numbers": numbers})
        environment = {
            **os.environ,
            "NUMBA_ENABLE_CUDASIM": "1",
            "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        }
        command = [sys.executable, str(program), str(before), str(after), given]
        try:
            ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        except subprocess.TimeoutExpired:
            raise ConfigError(
                f"{function.__name__} did not end within {TIMEOUT} s in Numba's simulator: take a smaller launch, and "
                "let every thread reach each barrier"
            ) from None
        if ran.returncode:
            last = (ran.stderr.strip().splitlines() or ["no message"])[-1]
            raise ConfigError(f"{function.__name__} failed in Numba's simulator: {last}")
        with np.load(after, allow_pickle=False) as file:
            return {int(name): file[name] for name in file.files}


def program_of(function: FunctionType) -> str:
    """The source of a program that runs a kernel; its last part reads the arguments.

    Raises
    ------
    NotRecordableError
        The source cannot be found, or a global cannot be handed on.
    """
    if function.__code__.co_freevars:
        raise NotRecordableError(
            f"{function.__name__} uses {', '.join(function.__code__.co_freevars)} of the function around it: define "
            "kernels and what they use at the top of a module or cell"
        )
    scope = function.__globals__
    names = [name for name in dict.fromkeys(function.__code__.co_names) if name != "cuda" and name in scope]
    definitions = "\n".join(_definition(function.__name__, name, scope[name]) for name in names)
    head = "from twell.cuda_target import cuda"
    return f"{head}\n\n{definitions}\n\n\n{_source(function)}\n\n{_MAIN % function.__name__}"


def _definition(kernel: str, name: str, value: Any) -> str:
    """A line that gives ``name`` its value."""
    if value is None or isinstance(value, bool | int | float | str):
        return f"{name} = {value!r}"
    if isinstance(value, ModuleType):
        return f"import {value.__name__} as {name}"
    if type(value).__module__.startswith("numba") and hasattr(value, "bitwidth"):
        return f"from numpy import {value.name} as {name}"  # a Numba dtype, which NumPy has by the same name
    home = getattr(value, "__module__", None) or getattr(getattr(value, "py_func", None), "__module__", None)
    found = getattr(value, "py_func", value)
    label = getattr(found, "__qualname__", "")
    if home and home != "__main__" and label.isidentifier():
        return f"from {home} import {label} as {name}"
    raise NotRecordableError(
        f"{kernel} uses the global {name}, a {type(value).__name__}: the simulator runs in another process and takes "
        "numbers, modules, dtypes and functions of modules that can be imported"
    )


def _source(function: FunctionType) -> str:
    """The function's source without its decorators and annotations, which may name what the program lacks."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError) as error:
        raise NotRecordableError(f"the source of {function.__name__} was not found: {error}") from error
    found = tree.body[0]
    if not isinstance(found, ast.FunctionDef):
        raise NotRecordableError(f"{function.__name__} is not defined by def: write it so")
    found.decorator_list, found.returns = [], None
    for argument in (*found.args.posonlyargs, *found.args.args):
        argument.annotation = None
    return ast.unparse(found)


def _plain(number: Any) -> Any:
    return number.item() if isinstance(number, np.generic) else number
