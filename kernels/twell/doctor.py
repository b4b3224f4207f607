"""What this machine can run, what falls back, and what to do about it: ``python -m twell.doctor``."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

State = Literal["ok", "note", "problem"]

_MARKS = {"ok": "ok     ", "note": "note   ", "problem": "PROBLEM"}


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes
    ----------
    name : str
    state : {"ok", "note", "problem"}
        ``"note"`` is a fallback that works; ``"problem"`` gives exit status 1.
    detail : str
    remedy : str
        What to do, empty where nothing is needed.
    """

    name: str
    state: State
    detail: str
    remedy: str = ""

    def __str__(self) -> str:
        text = f"[{_MARKS[self.state]}] {self.name}: {self.detail}"
        return f"{text}\n          -> {self.remedy}" if self.remedy else text


def version_of(package: str) -> str | None:
    """Installed version of a distribution, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_versions() -> Finding:
    """Python and the packages that decide what runs."""
    names = ("torch", "numpy", "numba", "numba-cuda")
    versions = ", ".join(f"{name} {version_of(name) or 'missing'}" for name in names)
    detail = f"Python {platform.python_version()}, {versions}"
    missing = [name for name in names if version_of(name) is None]
    if missing:
        return Finding("versions", "problem", detail, f"pip install {' '.join(missing)}")
    return Finding("versions", "ok", detail)


def check_cpu() -> Finding:
    """The Numba CPU kernels, run once against the reference."""
    from twell import cpu, reference

    generator = torch.Generator().manual_seed(0)
    x_MD = torch.randn(5, 16, generator=generator)
    weight_HD = torch.randn(300, 16, generator=generator)
    packed = cpu.gate_pack(x_MD, weight_HD)
    ours = cpu.token_ffn(x_MD, packed, weight_HD, weight_HD)
    theirs = reference.token_ffn(x_MD, packed, weight_HD, weight_HD)
    error = float((ours - theirs).abs().max() / theirs.abs().max())
    detail = f"{torch.get_num_threads()} threads, kernels run, error against the reference {error:.1e}"
    if not error < 1e-5:
        return Finding(
            "CPU kernels", "problem", detail, 'use backend="reference" and report this with the versions above'
        )
    return Finding("CPU kernels", "ok", detail)


def check_gpu() -> Finding:
    """The GPU that torch sees, if any."""
    if not torch.cuda.is_available():
        built = "torch has no CUDA build" if torch.version.cuda is None else "torch finds no NVIDIA GPU"
        return Finding("GPU", "note", f"{built}: everything runs on the CPU")
    major, minor = torch.cuda.get_device_capability()
    detail = f"{torch.cuda.get_device_name()}, compute capability {major}.{minor}, torch for CUDA {torch.version.cuda}"
    if (major, minor) < (7, 5):
        return Finding("GPU", "note", detail, "below 7.5 none of our GPU kernels runs: GPU tensors take plain torch")
    return Finding("GPU", "ok", detail)


def check_compiler() -> Finding:
    """Numba's CUDA compiler: whether it is there, and whether the driver takes what it makes."""
    from twell import cuda_target

    if cuda_target.SIMULATED:
        return Finding("CUDA compiler", "note", "Numba's simulator runs the GPU kernels, on CPU tensors")
    missing = cuda_target.why_no_compiler()
    if missing:
        # Only a GPU needs it.
        state: State = "problem" if torch.cuda.is_available() else "note"
        detail, _, remedy = missing.partition(": ")
        return Finding("CUDA compiler", state, detail, remedy if state == "problem" else "")
    toolkit = importlib.import_module("numba.cuda.cudadrv.runtime").runtime.get_version()
    detail = f"libnvvm found, toolkit {_dotted(toolkit)}"
    if not torch.cuda.is_available():
        return Finding("CUDA compiler", "ok", f"{detail}; kernels can be compiled here, for GPUs elsewhere")
    newest = importlib.import_module("numba.cuda.cudadrv.driver").driver.get_version()
    return compare_driver(toolkit, newest, detail)


def compare_driver(toolkit: tuple[int, int], newest: tuple[int, int], detail: str) -> Finding:
    """Whether a driver that supports CUDA up to ``newest`` runs what ``toolkit`` compiles."""
    detail = f"{detail}, driver for CUDA up to {_dotted(newest)}"
    if toolkit[0] > newest[0]:
        remedy = f'update the NVIDIA driver, or pip install "numba-cuda[cu{newest[0]}]" in a fresh environment'
        return Finding("CUDA compiler", "problem", f"{detail}: the driver is older than the toolkit", remedy)
    return Finding("CUDA compiler", "ok", detail)


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def check_numpy() -> Finding:
    """numba-cuda up to 0.30 names a function that NumPy 2.5 took away; our one import of it deals with that."""
    cuda_version, numpy_version = version_of("numba-cuda"), version_of("numpy")
    detail = f"numba-cuda {cuda_version or 'missing'} with NumPy {numpy_version or 'missing'}"
    if cuda_version is None or numpy_version is None:
        return Finding("numba-cuda and NumPy", "problem", detail, "pip install numba-cuda numpy")
    import numpy as np

    if "row_stack" not in vars(np) and _numbers(cuda_version) < (0, 31):
        remedy = "import twell before any numba.cuda of your own, or pip install 'numpy<2.5'"
        return Finding("numba-cuda and NumPy", "note", f"{detail}: twell imports it all the same", remedy)
    return Finding("numba-cuda and NumPy", "ok", detail)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def check_gpu_kernels() -> Finding:
    """The Numba CUDA kernels, run once against the reference, in each dtype."""
    from twell import cuda_target, reference

    name = "GPU kernels"
    device = torch.device("cpu") if cuda_target.SIMULATED else torch.device("cuda")
    if not (cuda_target.SIMULATED or torch.cuda.is_available()):
        return Finding(name, "note", "no GPU to run them on; NUMBA_ENABLE_CUDASIM=1 runs them in Numba's simulator")
    why = cuda_target.why_not(device)
    if why:
        return Finding(name, "note", f"{why}; the plain torch reference takes their place")
    from twell import simt

    generator = torch.Generator().manual_seed(0)
    x_MD = torch.randint(-3, 4, (5, 16), generator=generator).to(device)
    weight_HD = torch.randint(-2, 3, (300, 16), generator=generator).to(device)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        x, weight = x_MD.to(dtype), weight_HD.to(dtype)
        ours = simt.gated_ffn(x, weight, weight, weight)
        theirs = reference.token_ffn(x, reference.gate_pack(x, weight), weight, weight)
        # Sums of small integers are exact: anything but equality is a fault.
        if not torch.equal(ours, theirs):
            detail = f"{str(dtype).removeprefix('torch.')}: {int((ours != theirs).sum())} of {ours.numel()} are wrong"
            return Finding(name, "problem", detail, 'use backend="reference" and report this with the versions above')
    return Finding(name, "ok", "run, and equal the reference bit for bit in bfloat16, float16 and float32")


def check_cuda_packages() -> Finding:
    """CUDA 12 and CUDA 13 packages side by side break Numba's compiler."""
    found: dict[str, list[str]] = {"12": [], "13": []}
    for dist in importlib.metadata.distributions():
        name = (dist.metadata["Name"] or "").lower()
        if (major := _cuda_major(name, dist)) in found:
            found[major].append(name)
    old, new = sorted(set(found["12"])), sorted(set(found["13"]))
    if old and new:
        return Finding(
            "CUDA packages",
            "problem",
            f"CUDA 12 ({', '.join(old)}) and CUDA 13 ({', '.join(new)}) are both installed",
            f"pip uninstall {' '.join(old)}",
        )
    return Finding("CUDA packages", "ok", "CUDA 12" if old else "CUDA 13" if new else "none installed")


def _cuda_major(name: str, dist: importlib.metadata.Distribution) -> str:
    """CUDA version that a distribution belongs to: by its name, or by its own version where the name says nothing."""
    for major in ("12", "13"):
        if name.endswith(f"-cu{major}"):
            return major
    if name in ("cuda-toolkit", "nvidia-nvvm", "nvidia-cuda-nvrtc", "nvidia-nvjitlink"):
        return dist.version.partition(".")[0]
    return ""


CHECKS: tuple[Callable[[], Finding], ...] = (
    check_versions,
    check_cpu,
    check_gpu,
    check_cuda_packages,
    check_numpy,
    check_compiler,
    check_gpu_kernels,
)


def diagnose() -> list[Finding]:
    """Run every check.

    Returns
    -------
    list of Finding
    """
    return [check() for check in CHECKS]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the report.

    Returns
    -------
    int
        1 if a check found a problem, else 0.
    """
    parser = argparse.ArgumentParser(prog="twell.doctor", description=__doc__)
    parser.parse_args(argv)
    findings = diagnose()
    for finding in findings:
        print(finding)
    return int(any(finding.state == "problem" for finding in findings))


if __name__ == "__main__":
    sys.exit(main())
