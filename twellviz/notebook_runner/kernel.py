"""Execute one notebook in a kernel of the interpreter that is running now.

An installed kernelspec called ``python3`` may start any other environment's Python; here the kernel's command
line is made from ``sys.executable``.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True)
class Failure:
    """The cell at which a notebook stopped, and why.

    Attributes
    ----------
    cell : int
        Place among all cells, from 0; -1 if no cell had started.
    cell_id : str
    source : str
        Source of the cell.
    error : str
        ``name: message``, or what happened to the kernel.
    traceback : str
        Plain text, empty if there is none.
    """

    cell: int
    cell_id: str
    source: str
    error: str
    traceback: str


@dataclass(frozen=True)
class Execution:
    """What running a notebook gave.

    Attributes
    ----------
    notebook : dict
        The notebook with its new outputs, up to the failing cell.
    seconds : float
        Wall clock, kernel start included.
    peak_bytes : int or None
        Largest resident size of the kernel process, None where the system does not tell.
    failure : Failure or None
    """

    notebook: dict[str, Any]
    seconds: float
    peak_bytes: int | None
    failure: Failure | None


def execute(path: Path, *, timeout: float, environment: dict[str, str]) -> Execution:
    """Run the notebook at ``path`` from its first cell, in its own kernel process.

    Parameters
    ----------
    path : Path
        Its folder becomes the kernel's working directory, as in Jupyter.
    timeout : float
        Seconds that one cell may take.
    environment : dict of str to str
        The kernel's whole environment.
    """
    nbclient, nbformat = import_module("nbclient"), import_module("nbformat")
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    progress = _Progress()
    client = nbclient.NotebookClient(
        notebook,
        kernel_manager_class=_manager_class(),
        timeout=timeout,
        startup_timeout=120,
        iopub_timeout=60,
        record_timing=False,
        coalesce_streams=True,
        store_widget_state=False,
        on_cell_execute=progress.starts,
        on_cell_executed=progress.ended,
    )
    progress.client = client
    began, failure = time.perf_counter(), None
    try:
        client.execute(cwd=str(path.parent), env=environment)
    except nbclient.exceptions.CellExecutionError as error:
        failure = progress.failure(notebook, f"{error.ename}: {error.evalue}")
    except nbclient.exceptions.CellTimeoutError:
        failure = progress.failure(notebook, f"the cell took longer than {timeout:g} s (--timeout)")
    except nbclient.exceptions.DeadKernelError:
        failure = progress.failure(notebook, "the kernel died, perhaps for want of memory")
    return Execution(notebook, time.perf_counter() - began, progress.peak_bytes, failure)


class _Progress:
    """Which cell is running, and how much memory the kernel has held."""

    def __init__(self) -> None:
        self.client: Any = None
        self.cell = -1
        self.peak_bytes: int | None = None

    def starts(self, cell: Any, cell_index: int) -> None:
        self.cell = cell_index

    def ended(self, cell: Any, cell_index: int, execute_reply: Any) -> None:
        self.peak_bytes = _peak_bytes(getattr(self.client.km.provisioner, "pid", None)) or self.peak_bytes

    def failure(self, notebook: Any, error: str) -> Failure:
        cell = notebook.cells[self.cell] if self.cell >= 0 else {}
        frames = [line for output in cell.get("outputs", []) for line in output.get("traceback", [])]
        return Failure(self.cell, cell.get("id", "?"), cell.get("source", ""), error, _ANSI.sub("", "\n".join(frames)))


def _manager_class() -> Any:
    """A kernel manager that knows one kernel: this interpreter."""
    from ipykernel.kernelspec import RESOURCES, get_kernel_dict
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager

    class CurrentInterpreter(AsyncKernelManager):
        @property
        def kernel_spec(self) -> Any:
            # Its log is for those who write kernels; what a cell prints to stderr is in the notebook.
            command = get_kernel_dict(extra_arguments=["--log-level=40"])
            return KernelSpec(resource_dir=str(RESOURCES), **command)

    return CurrentInterpreter


def _peak_bytes(pid: int | None) -> int | None:
    """Peak resident size by Linux's /proc; other systems have no cheap way for another process."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    match = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    return int(match.group(1)) * 1024 if match else None
