"""Checks of notebook 07: one union tile, and the weight rows that tiles read.

Letters: M tokens, H hidden width, B tokens of a union tile, U active neurons in it.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from twellviz.exercises.checking import Case, Exercise, Sheet


def _tile_cases() -> Iterator[Case]:
    gate_BH = torch.tensor([[0.0, 2.0, 0.0, 0.0, 3.0], [0.0, 0.0, 0.0, 0.0, 4.0], [1.5, 0.0, 0.0, -1.0, 0.0]])
    yield Case(
        "3 tokens, 5 neurons; a negative value is inactive and becomes 0",
        (gate_BH,),
        (torch.tensor([0, 1, 4]), torch.tensor([[0.0, 2.0, 3.0], [0.0, 0.0, 4.0], [1.5, 0.0, 0.0]])),
    )
    yield Case("no active neuron", (-torch.ones(2, 4),), (torch.zeros(0, dtype=torch.int64), torch.zeros(2, 0)))
    large_BH = (torch.arange(32 * 300).reshape(32, 300) * 7 % 1009).float() - 980
    expected_U = [n for n in range(300) if any(value > 0 for value in large_BH[:, n].tolist())]
    block_BU = torch.tensor([[max(row[n], 0.0) for n in expected_U] for row in large_BH.tolist()])
    yield Case("32 tokens, 300 neurons", (large_BH,), (torch.tensor(expected_U), block_BU))
    yield Case(
        "a NaN is active",
        (torch.tensor([[0.0, float("nan")], [-1.0, 2.0]]),),
        (torch.tensor([1]), torch.tensor([[float("nan")], [2.0]])),
    )


def _rows(active_MH: torch.Tensor, block: int) -> tuple[int, int]:
    rows = [{n for n, fires in enumerate(row) if fires} for row in active_MH.tolist()]
    unions = [set().union(*rows[i : i + block]) for i in range(0, len(rows), block)]
    return sum(map(len, rows)), sum(map(len, unions))


def _rows_cases() -> Iterator[Case]:
    same = torch.zeros(4, 6, dtype=torch.bool)
    same[:, [1, 4]] = True
    yield Case("4 tokens that fire the same 2 neurons, tiles of 2", (same, 2), (8, 4))
    yield Case("the same, tiles of 3: the last one holds one token", (same, 3), (8, 4))
    apart = torch.eye(5, dtype=torch.bool)
    yield Case("5 tokens that share no neuron, tiles of 2", (apart, 2), (5, 5))
    mixed = (torch.arange(70)[:, None] * 7 + torch.arange(300)[None] * 3) % 97 < 2
    yield Case("70 tokens, 300 neurons, tiles of 32", (mixed, 32), _rows(mixed, 32))


SHEET = Sheet(
    [
        Exercise(
            "7.1",
            "`(~(gate_BH <= 0))` says who is active; `.any(0).nonzero().squeeze(1)` lists the union in order. The "
            "block is gate_BH at those columns, with 0 where the token itself is inactive.",
            _tile_cases,
        ),
        Exercise(
            "7.2",
            "Per token every active entry reads one row: active_MH.sum(). Per tile every neuron of the union does, "
            "once: for each `active_MH[i:i + block]` count `.any(0)`.",
            _rows_cases,
        ),
    ]
)
check, hint = SHEET.check, SHEET.hint
