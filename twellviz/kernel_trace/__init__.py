"""See what a kernel's threads do: record a launch without a GPU, find its faults, draw who touches what.

``record_kernel`` gives a :class:`KernelTrace`; ``trace.faults``, ``trace.check()``, ``trace.table()``,
``trace.accesses()``, :func:`coalescing` and :func:`bank_conflicts` say what it found and what the launch costs;
:func:`draw`, :func:`draw_arrays`, :func:`draw_epochs`, :func:`draw_coalescing`, :func:`draw_banks` and :func:`play`
show it; :func:`describe` says it in words. :func:`run_kernel` runs the same function on a GPU or in Numba's simulator,
and :func:`check_kernel` checks a learner's kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twellviz._lazy import lazy
from twellviz.kernel_trace.errors import Fault, KernelFault, NotRecordableError, RecordingLimitError
from twellviz.kernel_trace.launch import empty
from twellviz.kernel_trace.recorder import record_kernel
from twellviz.kernel_trace.trace import KernelTrace

if TYPE_CHECKING:
    from twellviz.kernel_trace.exercise import KernelExerciseError, KernelSheet, KernelSpec, check_kernel
    from twellviz.kernel_trace.lockstep import steps
    from twellviz.kernel_trace.measures import bank_conflicts, coalescing
    from twellviz.kernel_trace.pictures import draw, draw_arrays, draw_epochs
    from twellviz.kernel_trace.player import Player, play
    from twellviz.kernel_trace.real import KernelRun, run_kernel
    from twellviz.kernel_trace.warps import describe_banks, describe_coalescing, draw_banks, draw_coalescing
    from twellviz.kernel_trace.words import describe

__all__ = [
    "Fault",
    "KernelExerciseError",
    "KernelFault",
    "KernelRun",
    "KernelSheet",
    "KernelSpec",
    "KernelTrace",
    "NotRecordableError",
    "Player",
    "RecordingLimitError",
    "bank_conflicts",
    "check_kernel",
    "coalescing",
    "describe",
    "describe_banks",
    "describe_coalescing",
    "draw",
    "draw_arrays",
    "draw_banks",
    "draw_coalescing",
    "draw_epochs",
    "empty",
    "play",
    "record_kernel",
    "run_kernel",
    "steps",
]

# Recording needs NumPy only; what draws or tabulates is imported when it is first used.
__getattr__ = lazy(
    __name__,
    {
        "KernelExerciseError": "exercise",
        "KernelRun": "real",
        "KernelSheet": "exercise",
        "KernelSpec": "exercise",
        "Player": "player",
        "bank_conflicts": "measures",
        "check_kernel": "exercise",
        "coalescing": "measures",
        "describe": "words",
        "describe_banks": "warps",
        "describe_coalescing": "warps",
        "draw": "pictures",
        "draw_arrays": "pictures",
        "draw_banks": "warps",
        "draw_coalescing": "warps",
        "draw_epochs": "pictures",
        "play": "player",
        "run_kernel": "real",
        "steps": "lockstep",
    },
)
