"""How a Numba function is compiled and started on the CPU: flags, threads, fork.

Numba's thread pool is not torch's. Three rules keep the two from hurting each other:

- a kernel uses as many threads as torch does (``torch.set_num_threads``), or fewer where Numba's own mask
  (``numba.set_num_threads``, ``NUMBA_NUM_THREADS``) says so; the mask is put back after the call;
- a process that was forked after the pool had started cannot use it (GNU OpenMP ends the process), so there the
  serial build of the same function runs, and torch, whose pool would wait for ever there, is told to use one thread;
- the "workqueue" pool, which Numba takes where it finds neither TBB nor OpenMP, ends the process when two Python
  threads enter it at once, so there a lock stands before it.

Letters: none of the shape letters; ``args`` are NumPy arrays and scalars.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numba
import torch

F = TypeVar("F", bound=Callable[..., Any])

_FASTMATH = {"reassoc", "contract", "nsz", "arcp"}
"""Sums may be reordered and fused, which vectorises a dot product. ``nnan`` and ``ninf`` are left out: with
them the compiler may drop NaN and infinities, which must come through."""

_lock = threading.RLock()
_forked = False
_pool_started = False
_pool_needs_lock = True


def _after_fork_in_child() -> None:
    global _forked, _lock
    _lock = threading.RLock()  # the parent may have held it
    _forked = _forked or _pool_started
    if _forked:
        torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _compile(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """``njit`` with a cache on disk where a folder for it can be written, without one elsewhere."""
    try:
        compiled = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # "cannot cache function": read-only installation and no home directory
        compiled = numba.njit(**options)(function)
    return compiled  # type: ignore[no-any-return]


def device(function: F) -> F:
    """Compile a helper that kernels call; the compiler inlines it.

    Numba's cache looks at the file of the kernel alone: after editing a helper in another file, delete
    ``__pycache__/*.nbi`` beside its callers.
    """
    return _compile(function, nogil=True, fastmath=_FASTMATH, error_model="numpy")  # type: ignore[return-value]


class Kernel:
    """A Numba function with ``prange`` loops, compiled at its first call, once for several threads and, in a
    forked process only, once for one."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.__doc__ = function.__doc__
        self._function = function
        self._parallel = _compile(function, parallel=True, nogil=True, fastmath=_FASTMATH, error_model="numpy")
        self._serial: Callable[..., Any] | None = None

    def __call__(self, *args: Any) -> Any:
        if _forked:
            return self._call_serial(*args)
        if _pool_needs_lock:
            with _lock:
                return self._call_parallel(*args)
        return self._call_parallel(*args)

    def _call_parallel(self, *args: Any) -> Any:
        global _pool_started, _pool_needs_lock
        mask = numba.get_num_threads()
        _pool_started = True
        threads = min(mask, torch.get_num_threads())
        try:
            numba.set_num_threads(threads)
            return self._parallel(*args)
        finally:
            numba.set_num_threads(mask)
            if _pool_needs_lock:
                _pool_needs_lock = numba.threading_layer() == "workqueue"  # type: ignore[attr-defined]

    def _call_serial(self, *args: Any) -> Any:
        # Not cached on disk: Numba's index does not tell a serial build from a parallel one.
        if self._serial is None:
            self._serial = numba.njit(nogil=True, fastmath=_FASTMATH, error_model="numpy")(self._function)
        return self._serial(*args)


def kernel(function: Callable[..., Any]) -> Kernel:
    """Decorator that makes a :class:`Kernel`."""
    return Kernel(function)


def n_threads() -> int:
    """Threads that the next kernel will use."""
    if _forked:
        return 1
    return int(min(numba.get_num_threads(), torch.get_num_threads()))


def in_forked_child() -> bool:
    """Whether this process was forked after a kernel had run, so that thread pools are unusable."""
    return _forked
