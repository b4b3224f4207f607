"""Time of a call in milliseconds, on the device that runs it."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from twellviz.errors import ConfigError

DEVICES = ("cpu", "cuda")


def check_device(device: str) -> None:
    """Raise ConfigError unless something can be timed on ``device``."""
    if device not in DEVICES:
        raise ConfigError(f"device={device!r}: choose one of {', '.join(DEVICES)}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError('device="cuda": torch finds no NVIDIA GPU here; `python -m twell.doctor` says why')


class Timer:
    """Times calls: by the clock on a CPU, by events on a GPU, where a call is repeated so that launches overlap."""

    CALLS = 5
    """Calls between two events."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._warm: set[int] = set()

    def milliseconds(self, run: Callable[[], object]) -> float:
        """Time of one call."""
        if self.device == "cpu":
            begin = time.perf_counter()
            run()
            return 1e3 * (time.perf_counter() - begin)
        if id(run) not in self._warm:
            self._warm.add(id(run))
            run()
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        start.record()
        for _ in range(self.CALLS):
            run()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) / self.CALLS
