"""The first cell of a notebook."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TypeVar

from twellviz.errors import ConfigError

SCALES = ("default", "full")
MIN_CAPABILITY = (7, 5)
"""Oldest GPU that current builds of torch run on; ``torch.cuda.is_available()`` is true on older ones too."""

T = TypeVar("T")


@dataclass(frozen=True)
class Session:
    """What a notebook runs on.

    Attributes
    ----------
    device : str
        ``"cpu"`` or ``"cuda"``, for torch.
    scale : {"default", "full"}
        From the environment variable ``TWELLVIZ_SCALE``.
    """

    device: str
    scale: str

    def pick(self, default: T, *, full: T) -> T:
        """The first value, or ``full`` under ``TWELLVIZ_SCALE=full``."""
        return full if self.scale == "full" else default


def start() -> Session:
    """Say what this notebook runs on, and set figures to sizes that fit a notebook.

    Prints versions, device, scale, and what falls back. Installs nothing.

    Returns
    -------
    Session

    Raises
    ------
    ConfigError
        ``TWELLVIZ_SCALE`` is set to something else than ``default`` or ``full``.
    """
    scale = os.environ.get("TWELLVIZ_SCALE", "default")
    if scale not in SCALES:
        raise ConfigError(f"TWELLVIZ_SCALE={scale!r}: set it to one of {', '.join(SCALES)}, or unset it")
    device, device_text, kernel_text = _device()
    packages = ", ".join(f"{name} {_version(name)}" for name in ("twellviz", "torch", "numba", "numpy"))
    more = "TWELLVIZ_SCALE=full trains and measures more" if scale == "default" else "this takes longer"
    print(f"versions  {packages}, Python {platform.python_version()}")
    print(f"device    {device_text}")
    print(f"kernels   {kernel_text}")
    print(f"scale     {scale} ({more})")
    _figure_defaults()
    return Session(device, scale)


def _device() -> tuple[str, str, str]:
    """Device for torch, and two sentences: what it is, and which kernels run."""
    import torch

    cpu = f"CPU, {torch.get_num_threads()} threads"
    cpu_kernels = "compiled for the CPU by Numba"
    if not torch.cuda.is_available():
        return "cpu", cpu, f"{cpu_kernels}; no CUDA GPU was found, so nothing runs on one"
    name, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
    number = ".".join(map(str, capability))
    if capability < MIN_CAPABILITY:
        return "cpu", cpu, f"{cpu_kernels}; {name} has compute capability {number}, 7.5 is needed"
    return "cuda", f"{name}, compute capability {number}", "plain torch on the GPU, Numba on the CPU"


def _figure_defaults() -> None:
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise ConfigError("matplotlib is not installed: pip install 'twellviz[viz]'") from error
    mpl.rcParams["figure.dpi"] = 80
    mpl.rcParams["figure.facecolor"] = "white"
    mpl.rcParams["figure.constrained_layout.use"] = True
    mpl.rcParams["axes.spines.top"] = mpl.rcParams["axes.spines.right"] = False


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
