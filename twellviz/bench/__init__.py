"""Benchmarks: what is timed is checked first, and what is slower is said to be slower."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twellviz._lazy import lazy
from twellviz.bench.command import add_arguments, run_cli

if TYPE_CHECKING:
    from twellviz.bench.roofline import H200_BF16, Machine, Work, measure_cpu
    from twellviz.bench.timer import Timer

__all__ = [
    "H200_BF16",
    "Machine",
    "Timer",
    "Work",
    "add_arguments",
    "measure_cpu",
    "run_cli",
]

__getattr__ = lazy(
    __name__,
    {
        "H200_BF16": "roofline",
        "Machine": "roofline",
        "Timer": "timer",
        "Work": "roofline",
        "measure_cpu": "roofline",
    },
)
