"""Runs the threads of a launch one at a time, each to its next barrier, in the order of their numbers.

A plain Python function cannot be paused, so a thread that waits at a barrier keeps an operating system thread of its
own; a baton says which of them may run. Where no barrier is met a single one runs the whole launch. The order is
the same each time, so a recording repeats. Letters: none.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np

from twellviz.kernel_trace.errors import RecordingLimitError
from twellviz.kernel_trace.recording import BARRIER, Divergence, Recording
from twellviz.kernel_trace.standin import CudaStandIn, Dim3


class _Stop(BaseException):
    """Unwinds a waiting thread after another one failed. Not an Exception, so that no kernel catches it."""


class _Waiting:
    """A thread at a barrier."""

    def __init__(self, thread: int, site: int, predicate: Any) -> None:
        self.thread, self.site, self.predicate = thread, site, predicate
        self.go = threading.Lock()
        self.go.acquire()


class Scheduler:
    """One launch of a kernel.

    Attributes
    ----------
    failure : (BaseException, int) or None
        What a thread raised, and its number in the whole launch.
    """

    def __init__(self, recording: Recording, grid: Dim3, block: Dim3, *, reverse: bool = False) -> None:
        self.cuda = CudaStandIn(recording, grid, block, self._wait)
        self.failure: tuple[BaseException, int] | None = None
        self._recording = recording
        self._places = _places(block)
        self._blocks = iter(enumerate(_places(grid)))
        self._order = range(len(self._places))[:: -1 if reverse else 1]
        self._block = 0
        self._unstarted: deque[int] = deque()
        self._to_resume: deque[_Waiting] = deque()
        self._waiting: list[_Waiting] = []
        self._predicates: list[Any] = []
        self._current = self._epoch = 0
        self._stopped = False
        self._idle: list[threading.Lock] = []
        self._workers: list[threading.Thread] = []
        self._locks: list[threading.Lock] = []
        self._over = threading.Event()
        self._body: Callable[[], None] = lambda: None

    def run(self, body: Callable[[], None]) -> None:
        """Run ``body`` once for each thread of the launch, until one fails."""
        self._body = body
        try:
            if self._next_block():
                self._start_worker()
                self._over.wait()
        except BaseException:  # an interrupt from the keyboard, mostly
            self._interrupt()
            raise
        finally:
            self._stopped = True
            for lock in (*self._locks, *(one.go for one in (*self._waiting, *self._to_resume))):
                if lock.locked():
                    lock.release()
            for worker in self._workers:
                worker.join(timeout=5)

    def _next_block(self) -> bool:
        following = next(self._blocks, None)
        if following is None:
            return False
        self._block, self.cuda.blockIdx = following
        self._unstarted.extend(self._order)
        self._epoch = 0
        return True

    def _start_worker(self) -> None:
        go = threading.Lock()
        go.acquire()
        worker = threading.Thread(target=self._work, args=(go,), daemon=True, name="twellviz-recorder")
        self._workers.append(worker)
        self._locks.append(go)
        try:
            worker.start()
        except RuntimeError as error:
            self._workers.pop()
            raise RecordingLimitError(
                f"{len(self._workers)} threads of a block wait at a barrier and the system gives no more: {error}; "
                "take a smaller block"
            ) from error

    def _work(self, go: threading.Lock) -> None:
        """Hold the baton and use it; whatever is raised ends the launch."""
        try:
            with np.errstate(all="ignore"):
                self._hold(go)
        except _Stop:
            pass
        except BaseException as error:
            self._stopped = True
            self.failure = error, self._recording.thread
            self._over.set()

    def _hold(self, go: threading.Lock) -> None:
        """Start threads while there are any, else hand the baton on and wait to be given it again."""
        while not self._stopped:
            if self._unstarted:
                self._enter(self._unstarted.popleft())
                self._body()
                continue
            if not self._to_resume and self._waiting:
                self._open_barrier()
            if self._to_resume:
                self._idle.append(go)
                self._to_resume.popleft().go.release()
                go.acquire()
            elif not self._next_block():
                self._over.set()
                return

    def _enter(self, thread: int) -> None:
        self._current = thread
        self.cuda.threadIdx = self._places[thread]
        self._recording.resume(self._block * len(self._places) + thread, self._epoch)

    def _wait(self, predicate: Any, frame: FrameType) -> list[Any]:
        """What ``cuda.syncthreads`` does: let all others come here first."""
        me = _Waiting(self._current, self._recording.site(frame, BARRIER), predicate)
        self._waiting.append(me)
        if self._unstarted:
            if self._idle:
                self._idle.pop().release()
            else:
                self._start_worker()
        else:
            if not self._to_resume:
                self._open_barrier()
            self._to_resume.popleft().go.release()
        me.go.acquire()
        if self._stopped:
            raise _Stop
        self._enter(me.thread)
        return self._predicates

    def _open_barrier(self) -> None:
        """Every thread of the block is at a barrier or done: look whether they agree, and let them go on."""
        arrived = self._waiting
        first = arrived[0]
        elsewhere = next((one for one in arrived if one.site != first.site), None)
        present = {one.thread for one in arrived}
        missing = next((thread for thread in self._order if thread not in present), None)
        if missing is not None:
            self._diverged(first, missing, None)
        elif elsewhere is not None:
            self._diverged(first, elsewhere.thread, elsewhere.site)
        self._predicates = [one.predicate for one in arrived]
        self._waiting = []
        self._to_resume = deque(arrived)
        self._epoch += 1

    def _diverged(self, first: _Waiting, other: int, site: int | None) -> None:
        order = len(self._recording.values)
        found = Divergence(self._block, self._epoch, first.thread, first.site, other, site, order)
        self._recording.note_divergence(found)

    def _interrupt(self) -> None:
        """Make the running thread raise at its next instruction."""
        self._stopped = True
        for worker in self._workers:
            if worker.ident is not None and worker.is_alive():
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(worker.ident), ctypes.py_object(_Stop))


def _places(size: Dim3) -> list[Dim3]:
    """All indices below ``size``, x fastest."""
    return [Dim3(x, y, z) for z, y, x in itertools.product(range(size.z), range(size.y), range(size.x))]
