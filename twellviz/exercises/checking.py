"""How an exercise is checked: run the answer on several inputs and name the first difference.

A check feeds distinct values and at least two sizes, one of which no tile divides, so that an answer which is
right by luck on one input is wrong on another.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from twellviz.errors import ConfigError, TwellvizError


class ExerciseError(TwellvizError):
    """An answer is wrong.

    Attributes
    ----------
    index : tuple of int or None
        First place where the answer differs; None where it is a single value, has another shape, or raised.
    expected, found : object
        What stands there and what should.
    """

    def __init__(
        self, message: str, *, index: tuple[int, ...] | None = None, expected: Any = None, found: Any = None
    ) -> None:
        super().__init__(message)
        self.index, self.expected, self.found = index, expected, found


@dataclass(frozen=True)
class Case:
    """One input of an exercise.

    Attributes
    ----------
    says : str
        What is special about it, for the message.
    arguments : tuple
        Passed to the learner's function by position, as copies.
    expected : object
        A number, bool or None, an array or tensor, or a sequence of those.
    """

    says: str
    arguments: tuple[Any, ...]
    expected: Any


@dataclass(frozen=True)
class Exercise:
    """A task with its hint and the inputs that its check uses.

    Attributes
    ----------
    number : str
        As in the notebook, ``"3.1"``.
    hint : str
    cases : callable
        Returns the cases; called anew for each check.
    tolerance : float
        Relative and absolute, for floating point; 0 demands equality.
    """

    number: str
    hint: str
    cases: Callable[[], Iterable[Case]]
    tolerance: float = 0.0


class Sheet:
    """The exercises of one notebook."""

    def __init__(self, exercises: Sequence[Exercise]) -> None:
        self._exercises = {exercise.number: exercise for exercise in exercises}

    @property
    def numbers(self) -> list[str]:
        """Numbers of the exercises, in order."""
        return list(self._exercises)

    def hint(self, number: str) -> None:
        """Print the hint of an exercise."""
        print(f"Hint for {number}: {self._exercise(number).hint}")

    def check(self, number: str, answer: Callable[..., Any]) -> None:
        """Check a function that solves the exercise.

        Prints that it is right, or that it was not attempted if it returns ``...`` as the skeleton does.

        Raises
        ------
        ExerciseError
            With the input, the first differing index, what was expected and what was found.
        """
        exercise = self._exercise(number)
        if not callable(answer):
            raise ExerciseError(f"Exercise {number}: pass the function itself, not {answer!r}", found=answer)
        cases = list(exercise.cases())
        for place, case in enumerate(cases, start=1):
            where = f"Exercise {number}, case {place} of {len(cases)} ({case.says})"
            try:
                found = answer(*copy.deepcopy(case.arguments))
            except Exception as error:
                raise ExerciseError(f"{where}: the function raised {type(error).__name__}: {error}") from error
            if found is ... and place == 1:
                print(f"Exercise {number}: not attempted yet")
                return
            _compare(where, case.expected, found, exercise.tolerance)
        print(f"Exercise {number}: correct in all {len(cases)} cases")

    def _exercise(self, number: str) -> Exercise:
        if number not in self._exercises:
            raise ConfigError(f"number={number!r}: this notebook has {', '.join(self._exercises)}")
        return self._exercises[number]


def _compare(where: str, expected: Any, found: Any, tolerance: float) -> None:
    """Raise ExerciseError at the first difference."""
    if expected is None or found is None or found is ...:
        if found is not expected:
            raise _difference(where, None, expected, found)
        return
    if isinstance(expected, tuple):
        if not isinstance(found, (tuple, list)) or len(found) != len(expected):
            raise ExerciseError(
                f"{where}: return {len(expected)} things as a tuple; found {_short(found)}",
                expected=expected,
                found=found,
            )
        for place, (one, other) in enumerate(zip(expected, found, strict=True), start=1):
            _compare(f"{where}, part {place} of the answer", one, other, tolerance)
        return
    right, left = _array(expected), _array(found)
    if left is None or right is None:
        raise _difference(where, None, expected, found)
    if left.shape != right.shape:
        raise ExerciseError(
            f"{where}: expected shape {right.shape}, found {left.shape}", expected=right.shape, found=left.shape
        )
    wrong = ~_equal(right, left, tolerance)
    if wrong.any():
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise _difference(where, index, right[index].item(), left[index].item())


def _equal(right: Any, left: Any, tolerance: float) -> Any:
    if tolerance == 0 or (right.dtype.kind in "biu" and left.dtype.kind in "biu"):
        return (right == left) | ((right != right) & (left != left))
    return np.isclose(left, right, rtol=tolerance, atol=tolerance, equal_nan=True)


def _array(value: Any) -> Any:
    """A numeric numpy array of a number, sequence, array or tensor; None for anything else."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.double().numpy() if value.is_floating_point() else value.numpy()
    elif isinstance(value, (list, tuple)) and any(hasattr(item, "detach") for item in value):
        value = [_array(item) for item in value]
    try:
        array = np.asarray(value)
    except ValueError:  # rows of unequal length
        return None
    return array if array.dtype.kind in "biuf" else None


def _difference(where: str, index: tuple[int, ...] | None, expected: Any, found: Any) -> ExerciseError:
    place = f"first difference at index {index}: " if index else ""
    return ExerciseError(
        f"{where}: {place}expected {_short(expected)}, found {_short(found)}",
        index=index or None,
        expected=expected,
        found=found,
    )


def _short(value: Any) -> str:
    text = "..." if value is ... else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
