"""Each exercise's check takes the right answer, refuses plausible wrong ones, and says where they differ."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from twellviz.errors import ConfigError, TwellvizError
from twellviz.exercises import Case, Exercise, ExerciseError, Sheet, nb01, nb02, nb03, nb07, nb08, nb09, nb10
from twellviz.exercises.published import published_weights

Answer = Callable[..., Any]

MODULES: list[ModuleType] = [nb01, nb02, nb03, nb07, nb08, nb09, nb10]


def tile(values: list[float], first_column: int, slots: int, *, active: Answer, column: Answer, count: Answer) -> Any:
    entries = [column(first_column, i) | nb03.bf16_bits(v) << 16 for i, v in enumerate(values) if active(v)]
    stored = entries[: slots - 1]
    return [count(entries, slots), *stored, *[0] * (slots - 1 - len(stored))]


def tile_answer(**changes: Answer) -> Answer:
    rules: dict[str, Answer] = {
        "active": lambda v: not v <= 0,
        "column": lambda first, i: first + i,
        "count": lambda entries, slots: len(entries),
    }
    return lambda values, first_column, slots: tile(values, first_column, slots, **{**rules, **changes})


def fit(counts: torch.Tensor, places: dict[int, int]) -> int | None:
    return next((c for c, n in places.items() if int(counts.max()) <= n), None)


def token(x: Any, gate: Any, up: Any, down: Any, *, weight: Answer) -> Any:
    rows = (~(gate <= 0)).nonzero().squeeze(1)
    return weight(gate[rows], up[rows] @ x) @ down[rows]


def profile(counts: Any, lengths: list[int], *, divide_by_all: bool = False) -> list[float]:
    total, reach, start = np.zeros(max(lengths)), np.zeros(max(lengths)), 0
    for length in lengths:
        total[:length] += counts[start : start + length]
        reach[:length] += 1
        start += length
    return list(total / (len(lengths) if divide_by_all else reach))


def unions(active: Any, block: int) -> list[int]:
    return [int(active[i : i + block].any(axis=0).sum()) for i in range(0, len(active), block)]


def union_tile(gate: torch.Tensor, *, clear: bool = True, active: Answer = lambda g: ~(g <= 0)) -> Any:
    fires = active(gate)
    union = fires.any(0).nonzero().squeeze(1)
    block = torch.where(fires, gate, 0) if clear else gate
    return union, block[:, union]


def rows_read(active: torch.Tensor, block: int) -> tuple[int, int]:
    return int(active.sum()), sum(int(part.any(0).sum()) for part in active.split(block))


def gradients(dy: Any, down: Any, gate: Any, up: Any, l1: float, *, sign_of: Answer, mask: bool = True) -> Any:
    dh = dy @ down.T + l1 * sign_of(gate, up).sign()
    active = gate > 0 if mask else torch.ones_like(gate, dtype=torch.bool)
    return torch.where(active, dh * up, 0), torch.where(active, dh * gate, 0)


def weight(row: Any, column: Any, value: Any, dy: Any, n_hidden: int) -> torch.Tensor:
    return torch.zeros(n_hidden, dy.shape[1]).index_add_(0, column, value[:, None] * dy[row])


def overwritten(row: Any, column: Any, value: Any, dy: Any, n_hidden: int) -> torch.Tensor:
    result = torch.zeros(n_hidden, dy.shape[1])
    result[column] += value[:, None] * dy[row]
    return result


def format_bytes(
    counts: list[int],
    hidden: int,
    value: int,
    index: int,
    *,
    starts: int = 1,
    widest: Answer = max,
    ell_counts: bool = True,
    indices: bool = True,
) -> tuple[int, int, int]:
    entry = value + index if indices else value
    csr = sum(counts) * entry + (len(counts) + starts) * index
    ell = len(counts) * (widest(counts) * entry + index * ell_counts)
    return len(counts) * hidden * value, csr, ell


def intensity(
    tokens: int, width: int, hidden: int, itemsize: int, *, per_step: int = 2, result: bool = True, weights: bool = True
) -> float:
    moved = tokens * width + hidden * width * weights + tokens * hidden * result
    return per_step * tokens * width * hidden / (itemsize * moved)


RIGHT: dict[str, Answer] = {
    "1.1": lambda gate: (~(gate <= 0)).sum(1),
    "1.2": lambda x, gate, up, down: token(x, gate, up, down, weight=lambda g, u: g * u),
    "2.1": format_bytes,
    "2.2": intensity,
    "2.3": lambda hidden, itemsize, flops, bandwidth: min(hidden, hidden * 2 * bandwidth / (itemsize * flops)),
    "3.1": tile_answer(),
    "3.2": lambda counts: fit(counts, {8: 31, 4: 63, 2: 127}),
    "7.1": union_tile,
    "7.2": rows_read,
    "8.1": lambda *a: gradients(*a, sign_of=lambda g, u: g * u),
    "8.2": weight,
    "9.1": lambda h: h.abs().sum(-1).mean(),
    "9.2": lambda batches: (torch.stack(batches).sum(0) == 0).double().mean(),
    "10.1": profile,
    "10.2": unions,
}

WRONG: list[tuple[str, str, Answer]] = [
    ("1.1", "NaN is forgotten", lambda gate: (gate > 0).sum(1)),
    ("1.1", "negative values count", lambda gate: (gate != 0).sum(1)),
    ("1.1", "one number for all tokens", lambda gate: (~(gate <= 0)).sum()),
    ("1.1", "sum over tokens", lambda gate: (~(gate <= 0)).sum(0)),
    ("1.2", "dense", lambda x, gate, up, down: (gate.relu() * (up @ x)) @ down),
    ("1.2", "gate left out", lambda x, g, up, down: token(x, g, up, down, weight=lambda g, u: u)),
    ("1.2", "up left out", lambda x, g, up, down: token(x, g, up, down, weight=lambda g, u: g)),
    ("2.1", "no index for the end of the last row", lambda *a: format_bytes(*a, starts=0)),
    ("2.1", "ELL as wide as the mean", lambda *a: format_bytes(*a, widest=lambda c: sum(c) // len(c))),
    ("2.1", "ELL without its counts", lambda *a: format_bytes(*a, ell_counts=False)),
    ("2.1", "columns are free", lambda *a: format_bytes(*a, indices=False)),
    ("2.1", "one row for all", lambda c, h, v, i: format_bytes([sum(c)], h, v, i)),
    ("2.2", "a multiplication and an addition are one", lambda *a: intensity(*a, per_step=1)),
    ("2.2", "the result is never written", lambda *a: intensity(*a, result=False)),
    ("2.2", "the weights are in cache", lambda *a: intensity(*a, weights=False)),
    ("2.2", "every value has 2 bytes", lambda m, d, h, i: intensity(m, d, h, 2)),
    ("2.3", "H over the ridge in any dtype", lambda h, i, f, b: min(h, h * b / f)),
    ("2.3", "more than all neurons", lambda h, i, f, b: h * 2 * b / (i * f)),
    ("2.3", "one row a neuron", lambda h, i, f, b: min(h, h * 4 * b / (i * f))),
    ("2.3", "a share, not a count", lambda h, i, f, b: min(1, 2 * b / (i * f))),
    ("3.1", "NaN is dropped", tile_answer(active=lambda v: v > 0)),
    ("3.1", "negative values are stored", tile_answer(active=lambda v: v != 0)),
    ("3.1", "columns of the tile", tile_answer(column=lambda first, i: i)),
    ("3.1", "the count is cut to what fits", tile_answer(count=lambda e, s: min(len(e), s - 1))),
    ("3.1", "no padding", lambda v, f, s: [word for word in RIGHT["3.1"](v, f, s) if word]),
    ("3.2", "the count's own word is forgotten", lambda c: fit(c, {8: 32, 4: 64, 2: 128})),
    ("3.2", "always the paper's", lambda c: 8),
    ("3.2", "the mean decides", lambda c: fit(c.double().mean()[None], {8: 31, 4: 63, 2: 127})),
    ("3.2", "never gives up", lambda c: fit(c, {8: 31, 4: 63, 2: 256})),
    ("7.1", "negative values stay in the block", lambda g: union_tile(g, clear=False)),
    ("7.1", "NaN is dropped", lambda g: union_tile(g, active=lambda gate: gate > 0)),
    ("7.1", "what all tokens share", lambda g: ((g > 0).all(0).nonzero().squeeze(1), g[:, (g > 0).all(0)])),
    ("7.1", "only the list", lambda g: union_tile(g)[0]),
    ("7.2", "whole tiles only", lambda a, b: (int(a.sum()), rows_read(a[: len(a) // b * b], b)[1])),
    ("7.2", "one union for all", lambda a, b: (int(a.sum()), int(a.any(0).sum()))),
    ("7.2", "B rows for each neuron of a tile", lambda a, b: (int(a.sum()), b * rows_read(a, b)[1])),
    ("8.1", "the L1 term is left out", lambda *a: gradients(*a[:4], 0.0, sign_of=lambda g, u: u)),
    ("8.1", "the sign of the gate", lambda *a: gradients(*a, sign_of=lambda g, u: g)),
    ("8.1", "inactive neurons get a gradient", lambda *a: gradients(*a, sign_of=lambda g, u: g * u, mask=False)),
    ("8.1", "the two are swapped", lambda *a: gradients(*a, sign_of=lambda g, u: g * u)[::-1]),
    ("8.2", "entries of one neuron overwrite each other", overwritten),
    ("8.2", "the values are left out", lambda r, c, v, d, h: weight(r, c, torch.ones_like(v), d, h)),
    ("8.2", "rows and columns are swapped", lambda r, c, v, d, h: weight(c % len(d), r, v, d, h)),
    ("9.1", "mean over the hidden units too", lambda h: h.abs().mean()),
    ("9.1", "no absolute value", lambda h: h.sum(-1).mean()),
    ("9.1", "sum over the tokens", lambda h: h.abs().sum((1, 2)).mean()),
    ("9.1", "sum over the layers", lambda h: h.abs().sum(-1).mean(-1).sum()),
    ("9.2", "mean of the batches' shares", lambda b: torch.stack([(a == 0).double().mean() for a in b]).mean()),
    ("9.2", "the last batch decides", lambda b: (b[-1] == 0).double().mean()),
    ("9.2", "silent in some batch", lambda b: (torch.stack(b) == 0).any(0).double().mean()),
    ("9.2", "the share that lives", lambda b: (torch.stack(b).sum(0) > 0).double().mean()),
    ("10.1", "the first sequence only", lambda c, n: list(c[: n[0]])),
    ("10.1", "equal lengths taken for granted", lambda c, n: list(c[: len(n) * n[0]].reshape(len(n), n[0]).mean(0))),
    ("10.1", "divides by all sequences", lambda c, n: profile(c, n, divide_by_all=True)),
    ("10.2", "sum of the counts", lambda a, b: [int(a[i : i + b].sum()) for i in range(0, len(a), b)]),
    ("10.2", "the last block is left out", lambda a, b: unions(a[: len(a) // b * b], b)),
    ("10.2", "what all tokens share", lambda a, b: [int(a[i : i + b].all(0).sum()) for i in range(0, len(a), b)]),
]


def sheet_of(number: str) -> ModuleType:
    return next(module for module in MODULES if number in module.SHEET.numbers)


def all_numbers() -> list[str]:
    return [number for module in MODULES for number in module.SHEET.numbers]


def test_every_exercise_is_tried_here() -> None:
    assert sorted(RIGHT) == sorted(all_numbers())
    assert {number for number, _, _ in WRONG} == set(all_numbers())


@pytest.mark.parametrize("number", all_numbers())
def test_right_answer_passes(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    sheet_of(number).check(number, RIGHT[number])
    assert re.fullmatch(rf"Exercise {number}: correct in all \d+ cases\n", capsys.readouterr().out)


@pytest.mark.parametrize(("number", "why", "answer"), WRONG, ids=[f"{n} {why}" for n, why, _ in WRONG])
def test_wrong_answer_raises(number: str, why: str, answer: Answer) -> None:
    with pytest.raises(ExerciseError, match=rf"^Exercise {number}, case \d+ of \d+ \("):
        sheet_of(number).check(number, answer)


@pytest.mark.parametrize("number", all_numbers())
def test_skeleton_is_not_an_error(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    sheet_of(number).check(number, lambda *arguments: ...)
    assert capsys.readouterr().out == f"Exercise {number}: not attempted yet\n"


@pytest.mark.parametrize("number", all_numbers())
def test_every_check_has_several_cases_and_a_hint(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = sheet_of(number)
    module.hint(number)
    assert len(capsys.readouterr().out) > 40
    seen: list[Any] = []

    def spy(*arguments: Any) -> Any:
        seen.append(arguments)
        return RIGHT[number](*arguments)

    module.check(number, spy)
    assert len(seen) >= 3


def sheet(*cases: Case, tolerance: float = 0.0) -> Sheet:
    return Sheet([Exercise("0.1", "none", lambda: cases, tolerance)])


def test_error_names_the_first_difference() -> None:
    case = Case("a matrix", (), torch.tensor([[1, 2], [3, 4]]))
    with pytest.raises(ExerciseError, match=r"index \(1, 0\): expected 3, found 7") as caught:
        sheet(case).check("0.1", lambda: [[1, 2], [7, 8]])
    assert (caught.value.index, caught.value.expected, caught.value.found) == ((1, 0), 3, 7)
    assert isinstance(caught.value, TwellvizError)


@pytest.mark.parametrize(
    ("expected", "found", "says"),
    [
        ([1, 2], [1, 2, 3], r"expected shape \(2,\), found \(3,\)"),
        (1.0, "one", "found 'one'"),
        (None, 0, "expected None, found 0"),
        (4, None, "expected 4, found None"),
        ((1, 2), 1, "return 2 things as a tuple"),
        ((1, 2), (1, 3), "part 2 of the answer"),
        ([1, 2], [[1], [2, 3]], "found"),
        (0.5, 0.5 + 1e-3, "expected 0.5"),
        (float("nan"), 0.0, "expected nan"),
    ],
)
def test_what_is_wrong_is_said(expected: Any, found: Any, says: str) -> None:
    with pytest.raises(ExerciseError, match=says):
        sheet(Case("one", (), expected), tolerance=1e-6).check("0.1", lambda: found)


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        (torch.tensor([1.0, float("nan")], dtype=torch.bfloat16), np.array([1.0, float("nan")])),
        ([1, 2], (torch.tensor(1), torch.tensor(2))),
        (0.5, 0.5 + 1e-9),
        ((None, [1]), [None, np.array([1], dtype=np.uint16)]),
        (True, np.bool_(True)),
    ],
)
def test_equal_answers_of_other_types_pass(expected: Any, found: Any) -> None:
    sheet(Case("one", (), expected), tolerance=1e-6).check("0.1", lambda: found)


def test_giving_up_half_way_is_wrong() -> None:
    cases = Case("first", (1,), 1), Case("second", (2,), 2)
    with pytest.raises(ExerciseError, match=r"case 2 of 2 \(second\): expected 2, found \.\.\."):
        sheet(*cases).check("0.1", lambda n: 1 if n == 1 else ...)


def test_an_error_in_the_answer_keeps_its_cause() -> None:
    with pytest.raises(ExerciseError, match="raised ZeroDivisionError") as caught:
        sheet(Case("one", (0,), 1)).check("0.1", lambda n: 1 // n)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_answer_cannot_change_the_next_case() -> None:
    shared = torch.tensor([1.0, 2.0])
    cases = [Case(str(i), (shared,), 3.0) for i in range(2)]
    sheet(*cases).check("0.1", lambda x: float(x.cumsum_(0)[-1]))


def test_passing_a_result_or_an_unknown_number_is_refused() -> None:
    with pytest.raises(ExerciseError, match="pass the function itself"):
        nb03.check("3.1", [1, 2])
    with pytest.raises(ConfigError, match=r"3\.1, 3\.2"):
        nb03.check("3.9", len)


@pytest.mark.parametrize(("count", "added"), [(30, 30), (31, 31), (32, 31), (33, 32), (40, 39), (64, 62), (128, 124)])
def test_published_reader_by_its_rules(count: int, added: int) -> None:
    """Against the writer and reader played through slot by slot."""
    active = torch.zeros(2, 512, dtype=torch.bool)
    active[1, 256 : 256 + count] = True
    slots: dict[int, int] = {}
    for arrival in range(count):
        slots[arrival % 32 + 1] = arrival
    played = [0] * 256
    for i in range(1, count + 1):
        if i % 32:
            played[slots[i % 32]] += 1
    weight = published_weights(active)
    assert weight[1, 256:].tolist() == played
    assert sum(played) == added
    assert int(weight[0].sum()) == int(weight[1, :256].sum()) == 0
    with pytest.raises(ConfigError, match="boolean matrix"):
        published_weights(torch.ones(2, 3))
