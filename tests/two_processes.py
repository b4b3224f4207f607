"""Runs of two processes on the CPU for the tests: what they compute comes back as JSON."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import torch

Work = Callable[[int, Path], Any]
"""What a process does: its rank and a folder in, something that JSON holds out."""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _process(work: Work, rank: int, world: int, folder: str, port: int) -> None:
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    place = Path(folder)
    with (place / f"out-{rank}.txt").open("w") as out, redirect_stdout(out):
        try:
            answer = {"value": work(rank, place)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
    (place / f"answer-{rank}.json").write_text(json.dumps(answer))
    sys.stdout.flush()
    # Without the interpreter's end, in which a broken connection may wait.
    os._exit(0)


def start(work: Work, folder: Path, *, world: int = 2) -> list[Any]:
    """The started processes."""
    # A fork server that has torch loaded: a new process takes milliseconds, and has run no threads before its fork.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytest", "torch._dynamo", "twellviz.training.loop"])
    port = free_port()
    started = [context.Process(target=_process, args=(work, r, world, str(folder), port)) for r in range(world)]
    for process in started:
        process.start()
    return started


def wait(started: list[Any], seconds: float = 100.0) -> float:
    """Wait for the processes; seconds that it took. Those that do not end are killed and an error is raised."""
    begin = time.monotonic()
    for process in started:
        process.join(max(0.1, begin + seconds - time.monotonic()))
    hanging = [process for process in started if process.is_alive()]
    for process in hanging:
        process.kill()
        process.join()
    assert not hanging, f"{len(hanging)} of {len(started)} processes hung for {seconds} s"
    return time.monotonic() - begin


def answers(folder: Path, world: int = 2) -> list[Any]:
    """What each process gave; None where it died."""
    paths = [folder / f"answer-{rank}.json" for rank in range(world)]
    return [json.loads(path.read_text()) if path.exists() else None for path in paths]


def run(work: Work, folder: Path, *, world: int = 2) -> list[Any]:
    """The values of all processes, none of which may fail."""
    wait(start(work, folder, world=world))
    given = answers(folder, world)
    assert all(answer and "value" in answer for answer in given), given
    return [answer["value"] for answer in given]


@contextmanager
def watched(*, at_step: int = -1, do: Callable[[], object] = lambda: None, passes: int = 1) -> Iterator[list[Any]]:
    """Token ids that models see in training, pass by pass; in the first pass of ``at_step`` something is done."""
    from twellviz.models import LM

    seen: list[Any] = []

    def note(module: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        if isinstance(module, LM) and module.training and torch.is_grad_enabled():
            if len(seen) == at_step * passes:
                do()
            seen.append([tensor.tolist() for tensor in inputs[:2]])

    handle = torch.nn.modules.module.register_module_forward_pre_hook(note)
    try:
        yield seen
    finally:
        handle.remove()


def terminate() -> None:
    """What a cluster does before it takes a machine away."""
    os.kill(os.getpid(), signal.SIGTERM)
