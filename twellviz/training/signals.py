"""Ctrl-C and SIGTERM as a request to stop after the current step."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Within this context the first SIGINT or SIGTERM is noted in ``received``; a second one acts as usual.

    Outside the main thread, where Python allows no handlers, nothing is caught.

    Parameters
    ----------
    repeats : bool
        Note further ones as well: torchrun passes on to its processes what they may have received already, and kills
        those that do not end in time.
    """

    def __init__(self, *, repeats: bool = False) -> None:
        self._repeats = repeats
        self.received: str | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number).name
        if not self._repeats:
            self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            # None stands for a handler that Python did not set and cannot put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before = {}
