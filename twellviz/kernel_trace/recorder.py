"""Record a kernel: run its Python function thread by thread and write down what each thread touches.

Letters: none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

import numpy as np

from twellviz.errors import ConfigError
from twellviz.kernel_trace.errors import EXCEPTION, Fault, KernelFault, NotRecordableError, RecordingLimitError
from twellviz.kernel_trace.faults import find_faults, place
from twellviz.kernel_trace.launch import Arguments, check_block, dim3, written_storages
from twellviz.kernel_trace.rebind import python_function, rebound
from twellviz.kernel_trace.recording import Recording
from twellviz.kernel_trace.scheduler import Scheduler
from twellviz.kernel_trace.standin import Dim3
from twellviz.kernel_trace.trace import KernelTrace

MAX_THREADS = 65_536
MAX_EVENTS = 1_000_000
ORDERS = ("forward", "reverse")


def record_kernel(
    kernel: Any,
    grid: int | tuple[int, ...],
    block: int | tuple[int, ...],
    *arguments: Any,
    inplace: bool = False,
    unwritten: Sequence[str] = (),
    order: str = "forward",
    max_threads: int = MAX_THREADS,
    max_events: int = MAX_EVENTS,
) -> KernelTrace:
    """Run a kernel on the CPU, one thread at a time, and record every access to every array.

    No GPU, no compiler and no Numba are needed: the kernel's plain function is run with a stand-in for ``cuda``.
    Each thread runs to its next barrier, in the order of thread numbers, blocks one after another, so that a
    recording repeats exactly. Arithmetic follows Numba's types. Faults do not stop the run: a read outside an array
    gives NaN or 0, a write there is dropped.

    Parameters
    ----------
    kernel : function, or an object with ``py_func``
        Its arrays are the arguments; it may call device functions, ``cuda.shared.array``, ``cuda.local.array``,
        ``cuda.syncthreads`` and its relatives, and ``cuda.atomic``. Warp primitives, dynamic shared memory,
        arithmetic on whole arrays and writes to slices are refused.
    grid, block : int or tuple of up to three int
        Blocks, and threads of a block, as in ``kernel[grid, block](...)``.
    *arguments
        NumPy arrays and torch tensors of one axis or more, and numbers. Tensors in bf16 appear as int16 and in fp16
        as uint16, the bits of the values, as in ``twell``'s kernels.
    inplace : bool
        Write results into the arrays that were passed. Else they stay as they are; results are in
        ``trace.outputs``.
    unwritten : sequence of str
        Names of array arguments that hold nothing yet. An array from :func:`empty` need not be named.
    order : {"forward", "reverse"}
        Of the threads between two barriers. A kernel without a race gives the same result in both.
    max_threads, max_events : int
        Limits of the threads of the launch and of the accesses.

    Returns
    -------
    KernelTrace

    Raises
    ------
    KernelFault
        The kernel's code raised an exception; thread, block and line are in ``error.fault``. Other faults are
        collected: see ``trace.faults`` and ``trace.check()``.
    RecordingLimitError
        A limit was passed.
    NotRecordableError
        The kernel or an argument uses something that the recorder does not have.
    ConfigError
        Sizes or arguments that no GPU would take.

    Examples
    --------
    >>> import numpy as np
    >>> from twellviz.kernel_trace import empty, record_kernel
    >>> def add_ten(out, a):
    ...     i = cuda.grid(1)
    ...     if i < a.size:
    ...         out[i] = a[i] + 10
    >>> trace = record_kernel(add_ten, 2, 4, empty(5, np.int32), np.arange(5, dtype=np.int32))
    >>> trace.outputs["out"].tolist(), trace.n_accesses, trace.faults
    ([10, 11, 12, 13, 14], 10, ())
    """
    function = python_function(kernel)
    grid3, block3 = dim3("grid", grid), dim3("block", block)
    check_block(block3)
    n_threads = int(np.prod(grid3)) * int(np.prod(block3))
    if n_threads > max_threads:
        raise RecordingLimitError(
            f"grid={grid!r}, block={block!r}: {n_threads} threads, max_threads={max_threads}: take smaller arrays and "
            "a smaller grid, or raise max_threads"
        )
    if order not in ORDERS:
        raise ConfigError(f"order={order!r}: choose one of {', '.join(ORDERS)}")
    recording = Recording(function.__code__, int(np.prod(block3)), max_events)
    converted = Arguments(recording, function, arguments, unwritten)
    scheduler = Scheduler(recording, grid3, block3, reverse=order == "reverse")
    copy = rebound(function, scheduler.cuda)
    scheduler.run(lambda: copy(*converted.values))
    trace = _trace(function, grid3, block3, recording, converted)
    if scheduler.failure is not None:
        _explain(trace, function, *scheduler.failure)
    written = written_storages(recording)
    converted.check_overlap(written)
    if inplace:
        converted.write_back(written)
    faults, hints = find_faults(trace, recording)
    return replace(trace, faults=faults, hints=hints)


def _trace(function: FunctionType, grid: Dim3, block: Dim3, recording: Recording, arguments: Arguments) -> KernelTrace:
    events = np.frombuffer(recording.events, dtype=np.int64).reshape(-1, 3)
    starts, threads, epochs = np.array([*recording.stretches, (len(events), 0, 0)], dtype=np.int64).T
    lengths = np.diff(starts)
    return KernelTrace(
        name=function.__name__,
        grid=grid,
        block=block,
        storages=tuple(recording.storages),
        sites=tuple(recording.sites),
        storage=events[:, 0].copy(),
        cell=events[:, 1].copy(),
        site=events[:, 2].copy(),
        thread=np.repeat(threads[:-1], lengths),
        epoch=np.repeat(epochs[:-1], lengths),
        values=recording.values,
        outputs=arguments.outputs(),
    )


def _explain(trace: KernelTrace, function: FunctionType, error: BaseException, thread: int) -> None:
    """Raise what a thread raised, with the thread and the line."""
    line, source, name = _line(function, error)
    where = place(trace, line, source, name, thread)
    if isinstance(error, RecordingLimitError):
        raise error
    if isinstance(error, NotRecordableError):
        raise NotRecordableError(f"{where}: {error}") from error
    if not isinstance(error, Exception):  # KeyboardInterrupt or SystemExit from inside the kernel
        raise error
    fault = Fault(
        kind=EXCEPTION,
        message=f"{where} raised {type(error).__name__}: {error}",
        line=line,
        source=source,
        function=name,
        thread=trace.thread_index(thread),
        block=trace.block_index(thread // trace.threads_per_block),
    )
    raise KernelFault(fault) from error


def _line(function: FunctionType, error: BaseException) -> tuple[int, str, str]:
    """The innermost line of the kernel, or of a function in its file, that the error passed through."""
    import linecache

    found = function.__code__.co_firstlineno, function.__code__
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_filename == function.__code__.co_filename:
            found = traceback.tb_lineno, code
        traceback = traceback.tb_next
    line, code = found
    return line, linecache.getline(code.co_filename, line).strip(), code.co_name
