"""What a measured figure is labelled with, processor and versions, and how many threads it runs on."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def processor() -> str:
    """Name of the processor; its architecture where the system does not tell."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def gpu() -> str:
    """Name of the GPU in use, and the CUDA version of torch."""
    import torch

    return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"


def versions(*packages: str) -> dict[str, str]:
    """Versions of Python and of installed distributions."""
    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


@contextmanager
def torch_threads(number: int | None) -> Iterator[None]:
    """This many CPU threads for torch within the context; its own choice for None."""
    import torch

    before = torch.get_num_threads()
    if number is not None:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
