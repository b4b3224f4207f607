"""Checks of notebook 11: top-k, a calibrated threshold, a stage of ProSparse, the load of experts.

Letters: M tokens, H hidden width, E experts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from twellviz.exercises.checking import Case, Exercise, Sheet


def _top_k(rows: list[list[float]], k: int) -> list[list[float]]:
    """By plain sorting, equal magnitudes from left to right."""
    kept = []
    for row in rows:
        order = sorted(range(len(row)), key=lambda i: (-abs(row[i]), i))[:k]
        kept.append([value if i in order else 0.0 for i, value in enumerate(row)])
    return kept


def _top_k_cases() -> Iterator[Case]:
    inputs = (
        ("magnitudes of both signs, k = 2", [[0.5, -3.0, 2.0, 1.0], [-1.0, 0.25, -4.0, 8.0]], 2),
        ("equal magnitudes: the leftmost stay", [[1.0, -1.0, 1.0, 1.0, -1.0], [2.0, 3.0, -3.0, 3.0, 0.5]], 3),
        ("fewer non-zero than k", [[0.0, 0.0, 7.0, 0.0, -2.0, 0.0, 0.0]], 4),
    )
    for says, rows, k in inputs:
        yield Case(says, (torch.tensor(rows), k), torch.tensor(_top_k(rows, k)))


def _threshold_cases() -> Iterator[Case]:
    inputs = (
        ("ten values, 70 %", [0.5, 2.0, 1.0, 0.25, 4.0, 3.0, 8.0, 16.0, 5.0, 7.0], 0.7),
        ("a share that falls between two values", [3.0, 1.0, 2.0, 6.0, 5.0, 4.0, 7.0], 0.5),
        ("many equal values", [0.0, 0.0, 0.0, 1.0, 9.0], 0.2),
    )
    for says, values, sparsity in inputs:
        found = next(v for v in sorted(values) if sum(w <= v for w in values) / len(values) >= sparsity - 1e-9)
        yield Case(says, (torch.tensor(values), sparsity), found)


def _stage_cases() -> Iterator[Case]:
    for says, before, peak, share in (
        ("where the stage starts", 0.1, 0.4, 0.0),
        ("halfway", 0.1, 0.4, 0.5),
        ("a quarter of the way", 0.0, 2.0, 0.25),
        ("where it ends", 0.5, 3.0, 1.0),
    ):
        # The half sine wave, written with a cosine.
        yield Case(says, (before, peak, share), before + (peak - before) * (1 - math.cos(math.pi * share)) / 2)


def _balance_cases() -> Iterator[Case]:
    inputs = (
        ("four tokens, two experts", [[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.7, 0.3]], [0, 0, 1, 0]),
        ("an expert that nobody chose", [[0.5, 0.3, 0.2], [0.6, 0.3, 0.1]], [0, 0]),
        ("even use of four", [[0.25] * 4] * 4, [3, 1, 0, 2]),
    )
    for says, rows, chosen in inputs:
        n, experts = len(rows), range(len(rows[0]))
        value = sum(chosen.count(e) / n * sum(row[e] for row in rows) / n for e in experts) * len(experts)
        yield Case(says, (torch.tensor(rows), torch.tensor(chosen)), value)


SHEET = Sheet(
    [
        Exercise(
            "11.1",
            "Sort each row by magnitude, downwards, with stable=True, so that equal ones stay in order. The first k "
            "places are the ones to keep: scatter them into a mask.",
            _top_k_cases,
        ),
        Exercise(
            "11.2",
            "Sort the n values upwards. Dropping all that are <= the i-th of them (from 1) drops i / n of them: the "
            "smallest i with i / n >= sparsity is ceil(sparsity * n). torch.quantile would mix two neighbours.",
            _threshold_cases,
            tolerance=1e-6,
        ),
        Exercise(
            "11.3",
            "sin goes from -1 to 1 while its angle goes from -pi / 2 to pi / 2. Add 1, halve: that is the share of the "
            "rise that is done.",
            _stage_cases,
            tolerance=1e-6,
        ),
        Exercise(
            "11.4",
            "Two averages over the tokens: how often each expert was chosen, and its mean probability. Multiply them "
            "expert by expert, add up, and multiply by the number of experts.",
            _balance_cases,
            tolerance=1e-6,
        ),
    ]
)
check, hint = SHEET.check, SHEET.hint
