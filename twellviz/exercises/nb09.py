"""Checks of notebook 09: the L1 penalty, and dead neurons over several batches.

Letters: L layers, M tokens, H hidden width.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from twellviz.exercises.checking import Case, Exercise, Sheet


def _l1_cases() -> Iterator[Case]:
    for n_layers, n_tokens, n_hidden in ((1, 2, 3), (2, 3, 4), (4, 5, 7)):
        size = n_layers * n_tokens * n_hidden
        h_LMH = (torch.arange(size).reshape(n_layers, n_tokens, n_hidden) % 5 - 2).float() * 0.5
        total = sum(abs(value) for value in h_LMH.flatten().tolist())
        says = f"{n_layers} layers, {n_tokens} tokens, {n_hidden} neurons, values of both signs"
        yield Case(says, (h_LMH,), total / (n_layers * n_tokens))


def _dead_cases() -> Iterator[Case]:
    yield Case("one batch", ([torch.tensor([0, 3, 0, 1])],), 0.5)
    three = [torch.tensor([0, 3, 0, 0, 0]), torch.tensor([0, 0, 2, 0, 0]), torch.tensor([0, 9, 0, 7, 0])]
    yield Case("three batches, in which different neurons are silent", (three,), 0.4)
    busy = [torch.tensor([1, 0, 0]), torch.tensor([0, 1, 0]), torch.tensor([0, 0, 1])]
    yield Case("every neuron fires in some batch", (busy,), 0.0)


SHEET = Sheet(
    [
        Exercise(
            "9.1",
            "Sum |h| over the last axis only, then take the mean of what is left: over tokens and layers.",
            _l1_cases,
            tolerance=1e-6,
        ),
        Exercise(
            "9.2",
            "Add the counts of all batches first; a neuron is dead where the sum is still 0.",
            _dead_cases,
            tolerance=1e-6,
        ),
    ]
)
check, hint = SHEET.check, SHEET.hint
