"""Checks of notebook 08: gradients at the pattern, and a weight gradient gathered from it.

Letters: M tokens, D model width, H hidden width, N active entries.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from twellviz.exercises.checking import Case, Exercise, Sheet


def _integers(*shape: int, step: int, modulus: int = 7) -> Tensor:
    size = 1
    for length in shape:
        size *= length
    return (torch.arange(size) * step % modulus - modulus // 2).float().reshape(shape)


def _dense_gradients(
    dy_MD: Tensor, down_HD: Tensor, gate_MH: Tensor, up_MH: Tensor, l1: float
) -> tuple[Tensor, Tensor]:
    """By the definition, entry by entry: loss = sum(y * dy) + l1 * sum |h|, with y = h down and h = gate * up."""
    dgate_MH, dup_MH = torch.zeros_like(gate_MH), torch.zeros_like(up_MH)
    for m, row in enumerate(gate_MH.tolist()):
        for n, gate in enumerate(row):
            if gate <= 0:
                continue
            up = float(up_MH[m, n])
            sign = (gate * up > 0) - (gate * up < 0)
            dh = float((dy_MD[m] * down_HD[n]).sum()) + l1 * sign
            dgate_MH[m, n], dup_MH[m, n] = dh * up, dh * gate
    return dgate_MH, dup_MH


def _gradient_cases() -> Iterator[Case]:
    for n_tokens, n_model, n_hidden, l1 in ((2, 3, 4, 0.0), (3, 2, 5, 0.5), (4, 3, 300, 0.25)):
        arguments = (
            _integers(n_tokens, n_model, step=3),
            _integers(n_hidden, n_model, step=5),
            _integers(n_tokens, n_hidden, step=2).clamp(min=0),
            _integers(n_tokens, n_hidden, step=4),
            l1,
        )
        says = f"M={n_tokens}, D={n_model}, H={n_hidden}, l1={l1}"
        yield Case(says, arguments, _dense_gradients(*arguments))


def _weight_cases() -> Iterator[Case]:
    for n_tokens, n_model, n_hidden in ((3, 2, 4), (5, 3, 300)):
        h_MH = _integers(n_tokens, n_hidden, step=11, modulus=13).clamp(min=0)
        h_MH[:, 1] = 0
        row_N, column_N = h_MH.nonzero(as_tuple=True)
        dy_MD = _integers(n_tokens, n_model, step=3)
        arguments = (row_N, column_N, h_MH[row_N, column_N], dy_MD, n_hidden)
        says = f"M={n_tokens}, D={n_model}, H={n_hidden}, {len(row_N)} entries, neuron 1 never active"
        yield Case(says, arguments, h_MH.T @ dy_MD)
    none = torch.zeros(0, dtype=torch.int64)
    yield Case("no entry at all", (none, none, torch.zeros(0), torch.ones(2, 3), 4), torch.zeros(4, 3))


SHEET = Sheet(
    [
        Exercise(
            "8.1",
            "dh = dy_MD @ down_HD.T + l1 * sign(gate * up). Then dgate = dh * up and dup = dh * gate, both only "
            "where gate_MH > 0 (torch.where).",
            _gradient_cases,
            tolerance=1e-5,
        ),
        Exercise(
            "8.2",
            "Start from zeros [H, D]. Each entry adds value_N times the token's row of dy_MD to the row of its "
            "neuron; `index_add_(0, column_N, ...)` adds rows that meet, where plain indexing would overwrite.",
            _weight_cases,
            tolerance=1e-5,
        ),
    ]
)
check, hint = SHEET.check, SHEET.hint
