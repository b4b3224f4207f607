"""The checks of notebook 11 take right answers and name what is wrong with plausible wrong ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from twellviz.exercises import ExerciseError, nb11

Answer = Callable[..., Any]


def top_k(h: torch.Tensor, k: int, *, size: Answer = torch.abs) -> torch.Tensor:
    places = size(h).argsort(dim=1, descending=True, stable=True)[:, :k]
    mask = torch.zeros_like(h, dtype=torch.bool).scatter(1, places, True)
    return torch.where(mask, h, 0)


def threshold(size: torch.Tensor, sparsity: float) -> Any:
    return size.sort().values[max(1, math.ceil(sparsity * len(size) - 1e-9)) - 1]


def shares(expert: torch.Tensor, n_experts: int) -> torch.Tensor:
    return F.one_hot(expert, n_experts).float().mean(0)


def balance(probability: torch.Tensor, expert: torch.Tensor) -> Any:
    n_experts = probability.shape[1]
    return n_experts * (shares(expert, n_experts) * probability.mean(0)).sum()


RIGHT: list[tuple[str, Answer]] = [
    ("11.1", top_k),
    ("11.2", threshold),
    ("11.3", lambda before, peak, share: before + (peak - before) * (math.sin(math.pi * (share - 0.5)) + 1) / 2),
    ("11.4", balance),
]

WRONG: list[tuple[str, str, Answer, str]] = [
    ("11.1", "by value", lambda h, k: top_k(h, k, size=lambda x: x), "case 1 of 3"),
    (
        "11.1",
        "all that reach the k-th",
        lambda h, k: torch.where(h.abs() >= h.abs().topk(k).values[:, -1:], h, 0),
        r"case 2 of 3 \(equal magnitudes",
    ),
    ("11.1", "magnitudes", lambda h, k: top_k(h, k).abs(), "case 1 of 3"),
    ("11.1", "k of the whole", lambda h, k: top_k(h.flatten()[None], k).view(h.shape), "case 1 of 3"),
    ("11.1", "all but the smallest", lambda h, k: top_k(h, h.shape[1] - 1), "case 1 of 3"),
    ("11.2", "quantile", lambda size, sparsity: torch.quantile(size, sparsity), "case 1 of 3"),
    ("11.2", "floor", lambda size, sparsity: size.sort().values[int(sparsity * len(size)) - 1], "case 2 of 3"),
    ("11.2", "kept in place of dropped", lambda size, sparsity: threshold(size, 1 - sparsity), "case 1 of 3"),
    ("11.2", "one further", lambda size, sparsity: size.sort().values[math.ceil(sparsity * len(size))], "case 1 of 3"),
    ("11.3", "linear", lambda before, peak, share: before + (peak - before) * share, "case 3 of 4"),
    ("11.3", "not from before", lambda b, peak, share: peak * (1 - math.cos(math.pi * share)) / 2, "case 1 of 4"),
    ("11.3", "a whole wave", lambda b, p, s: b + (p - b) * (1 - math.cos(2 * math.pi * s)) / 2, "case 2 of 4"),
    ("11.4", "not times E", lambda p, e: balance(p, e) / p.shape[1], "case 1 of 3"),
    ("11.4", "probabilities alone", lambda p, e: p.shape[1] * p.mean(0).square().sum(), "case 1 of 3"),
    ("11.4", "counts alone", lambda p, e: p.shape[1] * shares(e, p.shape[1]).square().sum(), "case 1 of 3"),
]


def test_every_exercise_has_a_right_and_wrong_answers() -> None:
    assert [number for number, _ in RIGHT] == nb11.SHEET.numbers
    assert all(sum(number == n for n, *_ in WRONG) >= 3 for number in nb11.SHEET.numbers)


@pytest.mark.parametrize(("number", "answer"), RIGHT, ids=[number for number, _ in RIGHT])
def test_right_answers_pass(number: str, answer: Answer, capsys: pytest.CaptureFixture[str]) -> None:
    nb11.check(number, answer)
    assert "correct in all" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("number", "answer", "where"), [(n, a, w) for n, _, a, w in WRONG], ids=[f"{n} {name}" for n, name, *_ in WRONG]
)
def test_wrong_answers_are_refused(number: str, answer: Answer, where: str) -> None:
    with pytest.raises(ExerciseError, match=rf"^Exercise {number}, {where}"):
        nb11.check(number, answer)


@pytest.mark.parametrize("number", nb11.SHEET.numbers)
def test_hint_and_skeleton(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    def skeleton(*arguments: Any) -> Any:
        return ...

    nb11.check(number, skeleton)
    nb11.hint(number)
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"Exercise {number}: not attempted yet"
    assert len(second) > 60
