"""What a recording finds wrong, and the errors that say so."""

from __future__ import annotations

from dataclasses import dataclass

from twellviz.errors import TwellvizError

RACE = "race"
BLOCK_RACE = "race between blocks"
SAME_VALUE = "same value written twice"
OUT_OF_RANGE = "out of range"
NEGATIVE_INDEX = "negative index"
UNWRITTEN_READ = "unwritten read"
DIVERGENT_BARRIER = "divergent barrier"
EXCEPTION = "exception"

KINDS = (RACE, BLOCK_RACE, OUT_OF_RANGE, NEGATIVE_INDEX, UNWRITTEN_READ, DIVERGENT_BARRIER, EXCEPTION)


@dataclass(frozen=True)
class Fault:
    """One mistake of a kernel, at the first place where it shows.

    Attributes
    ----------
    kind : str
        One of :data:`KINDS`, or ``SAME_VALUE`` among a trace's hints.
    message : str
        What is wrong, where, and the usual remedy, in plain words.
    line : int
        Line of the kernel's file or cell; 0 where no single line is at fault.
    source : str
        That line's text, if it can be read.
    function : str
        The function that the line is in.
    thread, block : tuple of int
        ``threadIdx`` and ``blockIdx``, as many numbers as the launch has dimensions.
    array : str or None
        Name of the array.
    index : tuple of int or None
        The cell.
    epoch : int
        Barriers that the thread had passed.
    other_thread, other_block : tuple of int or None
        The second thread, for races and divergent barriers.
    other_line : int or None
        Where that one was.
    count : int
        How often the same line met this fault with the same array.
    """

    kind: str
    message: str
    line: int
    source: str
    function: str
    thread: tuple[int, ...]
    block: tuple[int, ...]
    array: str | None = None
    index: tuple[int, ...] | None = None
    epoch: int = 0
    other_thread: tuple[int, ...] | None = None
    other_block: tuple[int, ...] | None = None
    other_line: int | None = None
    count: int = 1

    def __str__(self) -> str:
        more = f" ({self.count} times)" if self.count > 1 else ""
        return f"{self.kind}: {self.message}{more}"


class KernelFault(TwellvizError):  # noqa: N818 - what it is called in a lesson
    """A kernel did what no kernel may do.

    Attributes
    ----------
    fault : Fault
    """

    def __init__(self, fault: Fault) -> None:
        super().__init__(str(fault))
        self.fault = fault


class RecordingLimitError(TwellvizError):
    """A launch is larger than the recorder was told to take, or never ends."""


class NotRecordableError(TwellvizError):
    """A kernel or argument uses something that the recorder does not have; the message names what it has."""
