"""Several processes of one run: who is who, what they tell each other, and what happens when one is lost.

``torchrun --standalone --nproc-per-node 2 -m twellviz train ...`` starts the processes and tells each its number in
environment variables. The process group is made and unmade here alone. Without those variables, or with one process,
:data:`ALONE` stands for the run and nothing here does anything.

On GPUs tensors go through NCCL, and the few words between processes (a signal came, a file could not be written)
through gloo on the CPU, so that no step waits for a GPU because of them. All waiting ends: a process that dies breaks
its connections, one that hangs is given up after ``timeout`` seconds, and torchrun then ends the others.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from twellviz.errors import ConfigError, ProcessError

TIMEOUT = 600.0
"""Seconds that processes wait for each other: more than the writing of the largest checkpoint (25 GB) takes."""

_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Ranks:
    """Which process of a run this is.

    Attributes
    ----------
    rank, world : int
        Number of this process, from 0, and how many there are.
    local_rank : int
        Its number on its machine, which is the number of its GPU.
    """

    rank: int = 0
    world: int = 1
    local_rank: int = 0

    @property
    def first(self) -> bool:
        """Whether this process prints, logs and writes."""
        return self.rank == 0

    def share(self, n: int) -> slice:
        """Rows of this process out of ``n``, as even as can be; in the order of the ranks they are all rows."""
        return slice(n * self.rank // self.world, n * (self.rank + 1) // self.world)

    def check_batch(self, batch_size: int) -> None:
        """Raise ConfigError unless each process gets equally many sequences of a pass.

        Means of equal parts average to the mean over all tokens; those of unequal parts would not. A last, smaller
        batch does not exist: the order of the windows goes on into the next epoch.
        """
        if batch_size % self.world:
            fitting = f"{batch_size + self.world - batch_size % self.world}"
            if batch_size > self.world:
                fitting = f"{batch_size - batch_size % self.world} or {fitting}"
            raise ConfigError(
                f"batch_size={batch_size} with {self.world} processes (world size): each takes an equal share of a "
                f"pass; take a multiple, as {fitting}, or another number of processes (torchrun --nproc-per-node)"
            )

    def sum_(self, tensor: Tensor) -> Tensor:
        """Sum over all processes, in place."""
        if self.world > 1:
            dist.all_reduce(tensor)
        return tensor

    def mean_(self, tensor: Tensor) -> Tensor:
        """Mean over all processes, in place."""
        return tensor if self.world == 1 else self.sum_(tensor).div_(self.world)

    def agreed_signal(self, received: str | None) -> str | None:
        """The signal that any process received, on all of them; the highest number of several."""
        if self.world == 1:
            return received
        number = torch.tensor(0 if received is None else int(signal.Signals[received]))
        dist.all_reduce(number, dist.ReduceOp.MAX)
        return signal.Signals(int(number)).name if number else None

    def check_same(self, name: str, value: int, remedy: str) -> None:
        """Raise ProcessError unless all processes hold the same number."""
        if self.world == 1:
            return
        low_high = torch.tensor([-value, value])
        dist.all_reduce(low_high, dist.ReduceOp.MAX)
        low, high = -int(low_high[0]), int(low_high[1])
        if low != high:
            raise ProcessError(f"{name} is {low} on one process and {high} on another: {remedy}")

    def first_does(self, work: Callable[[], object]) -> None:
        """Let rank 0 do ``work`` while the others wait; where it fails, all fail.

        Raises
        ------
        ProcessError
            On the other ranks, with the message of the first.
        """
        if self.world == 1:
            work()
            return
        failure = None
        if self.first:
            try:
                work()
            except Exception as error:
                failure = error
        # Plain bytes: torch's broadcast of objects would unpickle them.
        text = b"" if failure is None else f"{type(failure).__name__}: {failure}".encode()
        size = torch.tensor(len(text))
        dist.broadcast(size, 0)
        if not size:
            return
        data = torch.tensor(list(text), dtype=torch.uint8) if self.first else torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(data, 0)
        if failure is not None:
            raise failure
        raise ProcessError(f"process 0 failed: {bytes(data.tolist()).decode()}")


ALONE = Ranks()
"""A run of one process."""


def ranks_of(environment: Mapping[str, str]) -> Ranks:
    """What torchrun's variables say.

    Raises
    ------
    ConfigError
        There are several processes, but a variable is missing or no number.
    """
    if environment.get("WORLD_SIZE", "1") == "1":
        return ALONE
    if missing := [name for name in _NAMES if name not in environment]:
        raise ConfigError(
            f"WORLD_SIZE={environment['WORLD_SIZE']} without {', '.join(missing)}: start several processes with "
            "torchrun --standalone --nproc-per-node N -m twellviz train ..., or unset WORLD_SIZE"
        )
    try:
        rank, world, local_rank = (int(environment[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    except ValueError as error:
        raise ConfigError(f"RANK, WORLD_SIZE and LOCAL_RANK are whole numbers; torchrun sets them ({error})") from error
    if not 0 <= local_rank <= rank < world:
        raise ConfigError(
            f"RANK={rank}, WORLD_SIZE={world}, LOCAL_RANK={local_rank}: 0 <= LOCAL_RANK <= RANK < WORLD_SIZE is needed"
        )
    return Ranks(rank, world, local_rank)


def device_of(name: str, ranks: Ranks = ALONE) -> torch.device:
    """The device of this process.

    Parameters
    ----------
    name : str
        ``"auto"``, ``"cpu"``, ``"cuda"``, or ``"cuda:N"`` for one process. Of several each takes the GPU of its
        ``local_rank``.

    Raises
    ------
    ConfigError
        No such device, or one that all processes would share.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device={name!r}: give auto, cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device={name!r}: give auto, cpu, cuda or cuda:N")
    if device.type == "cpu":
        return device
    if ranks.world > 1:
        if ":" in name:
            raise ConfigError(
                f"device={name!r} with {ranks.world} processes: each takes the GPU of its own number; use auto or cuda"
            )
        device = torch.device("cuda", ranks.local_rank)
    if (device.index or 0) >= torch.cuda.device_count():
        shown = name if ranks.world == 1 else f"{device} (process {ranks.rank} of {ranks.world})"
        raise ConfigError(
            f"device={shown!r}: torch sees {torch.cuda.device_count()} CUDA devices; use auto or cpu"
            + (", or fewer processes (torchrun --nproc-per-node)" if ranks.world > 1 else "")
        )
    return device


_groups = itertools.count()
"""Each group finds its members under a name of its own: those of the one before would be taken for them."""


@lru_cache(maxsize=1)
def _store() -> Store:
    """Where the processes find each other: torchrun's, or one that rank 0 opens, for as long as the process lives."""
    meeting: tuple[Store, int, int] = next(rendezvous("env://", timeout=timedelta(seconds=TIMEOUT)))
    return meeting[0]


@contextmanager
def processes(device_name: str, *, timeout: float = TIMEOUT) -> Iterator[tuple[Ranks, torch.device]]:
    """The processes of a run and this one's device, joined in a group within the context.

    A group that the caller has made is used and left as it is.

    Parameters
    ----------
    device_name : str
        See :func:`device_of`.
    timeout : float
        Seconds after which a process gives up waiting for another.

    Raises
    ------
    ConfigError
    """
    ranks = ranks_of(os.environ)
    device = device_of(device_name, ranks)
    if ranks.world == 1 or dist.is_initialized():
        yield ranks, device
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        store=PrefixStore(f"twellviz-{next(_groups)}", _store()),
        rank=ranks.rank,
        world_size=ranks.world,
        timeout=timedelta(seconds=timeout),
    )
    try:
        yield ranks, device
    finally:
        dist.destroy_process_group()
