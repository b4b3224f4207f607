"""The checks of notebook 13 take right answers and refuse plausible wrong ones, saying where they differ."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from twellviz.exercises import ExerciseError, nb13

Answer = Callable[..., Any]


def kept(shapes: Any, gpus: int, *, each: int = 16, share: Answer = lambda n, g: -(-n // g)) -> int:
    return each * sum(share(shape[0], gpus) * math.prod(shape[1:]) for shape in shapes)


def block(n: int, gpus: int, gpu: int) -> tuple[int, int]:
    each = -(-n // gpus)
    return min(n, each * gpu), min(n, each * (gpu + 1))


def evenly(n: int, gpus: int, gpu: int) -> tuple[int, int]:
    part = np.array_split(np.arange(n), gpus)[gpu]
    return int(part[0]), int(part[-1]) + 1


def mean(losses: Any, tokens: Any) -> float:
    return sum(a * b for a, b in zip(losses, tokens, strict=True)) / sum(tokens)


RIGHT: dict[str, Answer] = {"13.1": kept, "13.2": block, "13.3": mean}
WRONG: list[tuple[str, str, Answer]] = [
    ("13.1", "one moment alone", lambda shapes, gpus: kept(shapes, gpus, each=12)),
    ("13.1", "rows rounded down", lambda shapes, gpus: kept(shapes, gpus, share=lambda n, g: n // g)),
    ("13.1", "the total divided", lambda shapes, gpus: 16 * sum(map(math.prod, shapes)) // gpus),
    ("13.2", "as even as can be", evenly),
    ("13.2", "ends past the last row", lambda n, gpus, gpu: (-(-n // gpus) * gpu, -(-n // gpus) * (gpu + 1))),
    ("13.2", "rounded down", lambda n, gpus, gpu: (n // gpus * gpu, n // gpus * (gpu + 1))),
    ("13.3", "the mean of means", lambda losses, tokens: sum(losses) / len(losses)),
    ("13.3", "the sum", lambda losses, tokens: sum(a * b for a, b in zip(losses, tokens, strict=True))),
]


def test_every_exercise_has_both() -> None:
    assert list(RIGHT) == nb13.SHEET.numbers
    assert {number for number, _, _ in WRONG} == set(nb13.SHEET.numbers)


@pytest.mark.parametrize("number", RIGHT)
def test_right_answers_pass(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    nb13.check(number, RIGHT[number])
    nb13.check(number, lambda *arguments: ...)
    nb13.hint(number)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"Exercise {number}: correct in all ")
    assert said[1] == f"Exercise {number}: not attempted yet"
    assert said[2].startswith(f"Hint for {number}: ")


@pytest.mark.parametrize(("number", "mistake", "answer"), WRONG, ids=[f"{n} {m}" for n, m, _ in WRONG])
def test_wrong_answers_are_named(number: str, mistake: str, answer: Answer) -> None:
    with pytest.raises(ExerciseError, match=rf"^Exercise {number}, case \d+ of \d+ \(.+\).*: .*expected .+, found "):
        nb13.check(number, answer)
