"""Checks of notebook 01: counting active neurons, and one token's block by hand.

Letters: M tokens, D model width, H hidden width.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from twellviz.exercises.checking import Case, Exercise, Sheet


def _l0_cases() -> Iterator[Case]:
    signed = torch.tensor([[0.5, -1.0, 0.0, 2.0, -0.0], [0.0, 0.0, 0.0, 0.0, 0.0], [3.0, 1.0, 4.0, 1.5, 9.0]])
    yield Case("3 tokens, 5 neurons, zeros and negative values", (signed,), [2, 0, 5])
    broken = torch.tensor([[float("nan"), 1.0, -2.0, float("inf")], [-1.0, float("-inf"), float("nan"), 0.0]])
    yield Case("NaN must not be lost", (broken,), [3, 1])
    wide = torch.arange(7 * 300).reshape(7, 300).remainder(11) - torch.arange(4, 11)[:, None]
    expected = [sum(1 for value in row if value > 0) for row in wide.tolist()]
    yield Case("7 tokens, 300 neurons", (wide.float(),), expected)


def _token_cases() -> Iterator[Case]:
    for d_model, d_hidden, active in ((4, 7, (0, 3, 6)), (5, 300, (1, 255, 256, 299)), (3, 6, ())):
        x_D = torch.arange(1, d_model + 1).float()
        gate_H = -torch.ones(d_hidden)
        up_HD, down_HD = (torch.full((d_hidden, d_model), float("nan")) for _ in range(2))
        expected = torch.zeros(d_model)
        for place, neuron in enumerate(active, start=1):
            gate_H[neuron] = place + 0.5
            up_HD[neuron] = torch.arange(d_model).float() - place
            down_HD[neuron] = torch.arange(d_model).float() * place + 1
            expected += gate_H[neuron] * (x_D @ up_HD[neuron]) * down_HD[neuron]
        says = f"D={d_model}, H={d_hidden}, {len(active)} active; rows of inactive neurons hold NaN"
        yield Case(says, (x_D, gate_H, up_HD, down_HD), expected)


SHEET = Sheet(
    [
        Exercise(
            "1.1",
            "A comparison with NaN is False, so `gate > 0` forgets NaN and `~(gate <= 0)` keeps it. "
            "Then sum over the neurons, the last axis.",
            _l0_cases,
        ),
        Exercise(
            "1.2",
            "Find the active neurons with `(~(gate_H <= 0)).nonzero()`, take only those rows of up_HD and "
            "down_HD, and weight each down row by gate times (x . up).",
            _token_cases,
            tolerance=1e-5,
        ),
    ]
)
check, hint = SHEET.check, SHEET.hint
