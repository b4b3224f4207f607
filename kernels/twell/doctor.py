"""What this machine can run, what falls back, and what to do about it: ``python -m twell.doctor``."""

from __future__ import annotations

import argparse
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
    index = torch.cuda.current_device()
    major, minor = torch.cuda.get_device_capability(index)
    detail = f"{torch.cuda.get_device_name(index)}, compute capability {major}.{minor}, CUDA {torch.version.cuda}"
    if (major, minor) < (7, 5):
        return Finding("GPU", "note", detail, "below 7.5 nothing of ours runs: use the CPU")
    return Finding("GPU", "note", f"{detail}; GPU tensors run densely in torch, or with the plain torch reference")


def check_cuda_packages() -> Finding:
    """CUDA 12 and CUDA 13 packages side by side break Numba's compiler."""
    names = sorted({(dist.metadata["Name"] or "").lower() for dist in importlib.metadata.distributions()})
    old, new = ([name for name in names if name.endswith(suffix)] for suffix in ("-cu12", "-cu13"))
    if old and new:
        return Finding(
            "CUDA packages",
            "problem",
            f"CUDA 12 ({', '.join(old)}) and CUDA 13 ({', '.join(new)}) are both installed",
            f"pip uninstall {' '.join(old)}",
        )
    return Finding("CUDA packages", "ok", "CUDA 12" if old else "CUDA 13" if new else "none installed")


CHECKS: tuple[Callable[[], Finding], ...] = (check_versions, check_cpu, check_gpu, check_cuda_packages)


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
