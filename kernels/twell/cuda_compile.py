"""Kernels compiled and assembled with no GPU: PTX, registers, spills and shared memory of each.

Letters: none; a capability is a pair such as (9, 0).
"""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twell.cuda_target import SIMULATED, Kernel, cuda
from twell.errors import DeviceError


@dataclass(frozen=True)
class Resources:
    """What the assembler says about a kernel.

    Attributes
    ----------
    registers : int
        32-bit registers of a thread.
    spills : int
        Bytes a thread moves to and from local memory because registers ran out.
    stack : int
        Bytes of local memory of a thread.
    shared : int
        Bytes of shared memory of a block.
    """

    registers: int
    spills: int
    stack: int
    shared: int


def compile_for(
    function: Kernel, signature: Sequence[Any], *capabilities: tuple[int, int]
) -> dict[tuple[int, int], str]:
    """PTX of a kernel for each compute capability, with no GPU needed.

    The front end (Python to LLVM), which takes four fifths of the time, runs once for all of them.

    Parameters
    ----------
    function : Kernel
    signature : sequence of Numba types
        One per parameter; see :func:`twell.cuda_target.numba_type`.
    *capabilities : (int, int)

    Raises
    ------
    DeviceError
        In the simulator, which compiles nothing.
    """
    if SIMULATED:
        raise DeviceError("compile_for: the simulator compiles nothing; unset NUMBA_ENABLE_CUDASIM and start again")
    bounds = function.options.get("launch_bounds")
    arguments: dict[str, Any] = {"launch_bounds": bounds, "cc": capabilities[0], "device": False, "abi": "numba"}
    front_end = getattr(importlib.import_module("numba.cuda.compiler"), "_compile_pyfunc_with_fixup", None)
    if front_end is None:  # not part of numba-cuda's interface: another version may lack it
        arguments.pop("cc")
        return {
            cc: str(cuda.compile_ptx(function.py_func, tuple(signature), cc=cc, **arguments)[0]) for cc in capabilities
        }
    unset = dict.fromkeys(("debug", "opt", "abi_info"))
    flags = dict.fromkeys(("lineinfo", "fastmath", "forceinline", "lto"), False)
    library, _ = front_end(function.py_func, tuple(signature), **arguments, **unset, **flags)
    return {cc: "\n".join(library.get_asm_strs(cc=cc)) for cc in capabilities}


def assemble(ptx: str, capability: tuple[int, int]) -> Resources:
    """Machine code from PTX, by nvJitLink (installed by ``numba-cuda[cu13]``) or else the toolkit's ``ptxas``.

    Raises
    ------
    DeviceError
        Neither is installed, or the assembler refuses the text.
    """
    architecture = f"sm_{capability[0]}{capability[1]}"
    try:
        report = _link(ptx, architecture)
    except (ImportError, OSError, RuntimeError) as error:
        if "nvjitlink" in type(error).__name__.lower():
            raise DeviceError(f"assemble: {architecture}: {error}") from error
        report = _ptxas(ptx, architecture)
    registers = re.search(r"Used (\d+) registers", report)
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", report)
    stack = re.search(r"(\d+) bytes stack frame", report)
    if registers is None or stack is None:
        raise DeviceError(f"assemble: {architecture}: no resources in the assembler's report: {report!r}")
    # Counted in the text, since nvJitLink's report leaves it out.
    shared = sum(int(size) for size in re.findall(r"\.shared \.align \d+ \.b8 \w+\[(\d+)\]", ptx))
    return Resources(int(registers[1]), sum(map(int, spills)), int(stack[1]), shared)


def _link(ptx: str, architecture: str) -> str:
    linker: Any = importlib.import_module("cuda.bindings.nvjitlink")
    text = ptx.encode()
    handle = linker.create(2, [f"-arch={architecture}", "-Xptxas=-v"])
    try:
        linker.add_data(handle, linker.InputType.PTX, text, len(text), "kernel")
        linker.complete(handle)
        report = bytearray(linker.get_info_log_size(handle))
        linker.get_info_log(handle, report)
    finally:
        linker.destroy(handle)
    return report.decode()


def _ptxas(ptx: str, architecture: str) -> str:
    program = shutil.which("ptxas")
    if program is None:
        raise DeviceError('assemble: neither nvJitLink nor ptxas was found: pip install "numba-cuda[cu13]"')
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.ptx")
        path.write_text(ptx, encoding="utf-8")
        command = [program, "-v", f"-arch={architecture}", "-o", str(Path(folder, "kernel.cubin")), str(path)]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise DeviceError(f"assemble: {architecture}: {ran.stderr.strip()}")
    return ran.stderr
