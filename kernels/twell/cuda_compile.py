"""Kernels compiled and assembled with no GPU: PTX, registers, spills and shared memory of each.

Letters: none; a capability is a pair such as (9, 0).
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
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
    library = _front_end(function, signature, capabilities[0], lto=False)
    if library is None:  # another numba-cuda: its interface does the same, once for each capability
        bounds = function.options.get("launch_bounds")
        options: dict[str, Any] = {"launch_bounds": bounds, "device": False, "abi": "numba"}
        return {
            cc: str(cuda.compile_ptx(function.py_func, tuple(signature), cc=cc, **options)[0]) for cc in capabilities
        }
    return {cc: "\n".join(library.get_asm_strs(cc=_exact(cc))) for cc in capabilities}


def resources_for(
    function: Kernel, signature: Sequence[Any], *capabilities: tuple[int, int]
) -> dict[tuple[int, int], Resources]:
    """What a kernel needs on each compute capability, compiled as Numba compiles it there: with link-time optimisation.

    Without it the assembler must expect calls across modules, which costs registers, and for wgmma the speed.

    Parameters
    ----------
    function, signature, *capabilities
        See :func:`compile_for`.

    Raises
    ------
    DeviceError
        In the simulator, or where the assembler refuses the kernel.
    """
    if SIMULATED:
        raise DeviceError("resources_for: the simulator compiles nothing; unset NUMBA_ENABLE_CUDASIM and start again")
    library = _front_end(function, signature, capabilities[0], lto=True)
    if library is None or importlib.util.find_spec("cuda.bindings.nvjitlink") is None:
        return {cc: assemble(ptx, cc) for cc, ptx in compile_for(function, signature, *capabilities).items()}
    return {cc: _resources(_link_lto(library.get_ltoir(cc=_exact(cc)), cc), cc) for cc in capabilities}


def _front_end(function: Kernel, signature: Sequence[Any], capability: tuple[int, int], *, lto: bool) -> Any:
    """Python to LLVM, which takes most of the time; None where this numba-cuda keeps it elsewhere."""
    compiler = importlib.import_module("numba.cuda.compiler")
    front_end = getattr(compiler, "_compile_pyfunc_with_fixup", None)
    if front_end is None:
        return None
    unset = dict.fromkeys(("debug", "opt", "abi_info"))
    flags = dict.fromkeys(("lineinfo", "fastmath", "forceinline"), False)
    bounds = function.options.get("launch_bounds")
    with _device_of(capability):
        library, _ = front_end(
            function.py_func,
            tuple(signature),
            launch_bounds=bounds,
            cc=capability,
            device=False,
            abi="numba",
            lto=lto,
            **unset,
            **flags,
        )
    return library


def _exact(capability: tuple[int, int]) -> tuple[Any, ...]:
    # wgmma and setmaxnreg belong to 9.0a alone; Numba compiles for it on such a card, and so does this.
    return (*capability, "a") if capability == (9, 0) else capability


def _architecture(capability: tuple[int, int]) -> str:
    return "sm_" + "".join(map(str, _exact(capability)))


@contextmanager
def _device_of(capability: tuple[int, int]) -> Iterator[None]:
    """Numba asks the current device for its capability when it compiles a device function
    that is not inlined at once."""
    dispatcher: Any = importlib.import_module("numba.cuda.dispatcher")
    before = dispatcher.get_current_device
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=capability)
    try:
        yield
    finally:
        dispatcher.get_current_device = before


def assemble(ptx: str, capability: tuple[int, int]) -> Resources:
    """Machine code from PTX, by nvJitLink (installed by ``numba-cuda[cu13]``) or else the toolkit's ``ptxas``.

    Raises
    ------
    DeviceError
        Neither is installed, or the assembler refuses the text.
    """
    architecture = _architecture(capability)
    try:
        report = _link(ptx, architecture)
    except (ImportError, OSError, RuntimeError) as error:
        if "nvjitlink" in type(error).__name__.lower():
            raise DeviceError(f"assemble: {architecture}: {error}") from error
        report = _ptxas(ptx, architecture)
    # Counted in the text, since nvJitLink's report leaves it out.
    shared = sum(int(size) for size in re.findall(r"\.shared \.align \d+ \.b8 \w+\[(\d+)\]", ptx))
    return _resources(report, capability, shared)


def _resources(report: str, capability: tuple[int, int], shared: int | None = None) -> Resources:
    registers = re.search(r"Used (\d+) registers", report)
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", report)
    stack = re.search(r"(\d+) bytes stack frame", report)
    if registers is None or stack is None:
        raise DeviceError(f"{_architecture(capability)}: no resources in the assembler's report: {report!r}")
    if shared is None:
        found = re.search(r"(\d+) bytes smem", report)
        shared = int(found[1]) if found else 0
    return Resources(int(registers[1]), sum(map(int, spills)), int(stack[1]), shared)


def _link_lto(code: bytes, capability: tuple[int, int]) -> str:
    linker: Any = importlib.import_module("cuda.bindings.nvjitlink")
    architecture = _architecture(capability)
    handle = linker.create(3, [f"-arch={architecture}", "-lto", "-Xptxas=-v"])
    try:
        linker.add_data(handle, linker.InputType.LTOIR, code, len(code), "kernel")
        linker.complete(handle)
        report = bytearray(linker.get_info_log_size(handle))
        linker.get_info_log(handle, report)
    except linker.nvJitLinkError as error:
        raise DeviceError(f"resources_for: {architecture}: {error}") from error
    finally:
        linker.destroy(handle)
    return report.decode()


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
