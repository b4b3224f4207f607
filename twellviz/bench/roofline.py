"""The roofline: how fast a piece of work can run on a machine, by its arithmetic and by its bytes.

After S. Williams, A. Waterman and D. Patterson, "Roofline: an insightful visual performance model for multicore
architectures", Communications of the ACM 52(4), 2009. Letters: none.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from twellviz.errors import ConfigError


@dataclass(frozen=True)
class Machine:
    """Two peaks of a machine.

    Attributes
    ----------
    name : str
    flops : float
        Floating-point operations a second.
    bandwidth : float
        Bytes a second between memory and processor.
    source : str
        Where the two figures come from.
    """

    name: str
    flops: float
    bandwidth: float
    source: str

    def __post_init__(self) -> None:
        for field, value in (("flops", self.flops), ("bandwidth", self.bandwidth)):
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{field}={value}: give a number above 0, in units of one a second")

    @property
    def ridge(self) -> float:
        """Operations a byte from which on arithmetic, not memory, is the limit."""
        return self.flops / self.bandwidth

    def attainable(self, intensity: float) -> float:
        """Most operations a second at so many operations a byte."""
        return min(self.flops, self.bandwidth * intensity)

    def seconds(self, work: Work) -> float:
        """Least time for some work: that of its arithmetic or of its bytes, whichever is longer."""
        return max(work.flop / self.flops, work.n_bytes / self.bandwidth)


@dataclass(frozen=True)
class Work:
    """A piece of work.

    Attributes
    ----------
    name : str
    flop : float
        Floating-point operations; a multiplication with an addition counts two.
    n_bytes : float
        Bytes that memory must deliver or take.
    seconds : float or None
        What it took, if it was measured.
    """

    name: str
    flop: float
    n_bytes: float
    seconds: float | None = None

    def __post_init__(self) -> None:
        for field, value in (("flop", self.flop), ("n_bytes", self.n_bytes)):
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{self.name}: {field}={value}: give a number above 0")

    @property
    def intensity(self) -> float:
        """Operations a byte."""
        return self.flop / self.n_bytes


H200_BF16 = Machine(
    "NVIDIA H200, bf16",
    flops=989e12,
    bandwidth=4.8e12,
    source="NVIDIA's data sheet of the H200 SXM: tensor cores without structured sparsity, HBM3e",
)
"""Peaks that no program reaches: the card at hand ran a bf16 product at 790 TFLOP/s."""


def measure_cpu(*, size: int = 1536, repeats: int = 5) -> Machine:
    """What this CPU reaches in fp32: a product of two square matrices, and a sum over an array far beyond its caches.

    Parameters
    ----------
    size : int
        Side of the matrices.
    repeats : int
        The fastest round counts.

    Returns
    -------
    Machine
        Named after the processor; ``flops`` and ``bandwidth`` as reached with torch's threads.

    Raises
    ------
    ConfigError
        ``size`` or ``repeats`` is below 1.
    """
    import torch

    from twellviz._machine import processor

    if size < 1 or repeats < 1:
        raise ConfigError(f"size={size}, repeats={repeats}: both must be at least 1")
    square = torch.rand(size, size)
    long = torch.ones(64 * 2**20)  # 256 MiB
    product = _fastest(lambda: square @ square, repeats)
    read = _fastest(lambda: long.sum(), repeats)
    return Machine(
        f"{processor()}, {torch.get_num_threads()} threads, fp32",
        flops=2 * size**3 / product,
        bandwidth=long.nbytes / read,
        source="measured here with torch",
    )


def _fastest(run: Callable[[], object], repeats: int) -> float:
    """Seconds of the fastest of several runs, after one that is not counted."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)
