"""Checks of notebook 13: what a GPU keeps, which rows are its own, and the loss of several processes.

Letters: n rows of a weight.
"""

from __future__ import annotations

from collections.abc import Iterator

from twellviz.exercises.checking import Case, Exercise, Sheet


def _bytes_cases() -> Iterator[Case]:
    yield Case("one GPU, a matrix and a gain", ([(6, 4), (4,)], 1), 16 * 28)
    yield Case("two GPUs, rows that share evenly", ([(6, 4), (4,)], 2), 16 * 14)
    yield Case("three GPUs, 7 and 4 rows: the fullest keeps 3 and 2", ([(7, 5), (4,)], 3), 16 * 17)
    yield Case("four GPUs, fewer rows than GPUs", ([(3, 8), (8, 2)], 4), 16 * 12)


def _row_cases() -> Iterator[Case]:
    for n, gpus, blocks in (
        (8, 2, [(0, 4), (4, 8)]),
        (7, 3, [(0, 3), (3, 6), (6, 7)]),
        (5, 4, [(0, 2), (2, 4), (4, 5), (5, 5)]),
    ):
        for gpu, block in enumerate(blocks):
            yield Case(f"{n} rows on {gpus} GPUs, GPU {gpu}", (n, gpus, gpu), block)


def _loss_cases() -> Iterator[Case]:
    yield Case("two processes, equally many tokens", ([2.0, 3.0], [64, 64]), 2.5)
    yield Case("two processes, one with three times the tokens", ([2.0, 4.0], [96, 32]), 2.5)
    yield Case("three processes, one without tokens", ([1.0, 5.0, 9.0], [30, 10, 0]), 2.0)


SHEET = Sheet(
    [
        Exercise(
            "13.1",
            "Each weight is cut by rows, rounded up: ceil(rows / gpus) of them, times the rest of its shape. A number "
            "takes 4 bytes as a weight, 4 as a gradient, and 4 for each of AdamW's two moments.",
            _bytes_cases,
        ),
        Exercise(
            "13.2",
            "All GPUs but the last ones keep ceil(n / gpus) rows. Neither end may pass n.",
            _row_cases,
        ),
        Exercise(
            "13.3",
            "Undo each mean first: loss times tokens is a sum. Add the sums, then divide by all tokens.",
            _loss_cases,
            tolerance=1e-9,
        ),
    ]
)
check, hint = SHEET.check, SHEET.hint
