"""Checks of notebook 10: the position profile, and the neurons that neighbours share.

Letters: M tokens, H hidden width.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from twellviz.exercises.checking import Case, Exercise, Sheet


def _profile_cases() -> Iterator[Case]:
    yield Case("one sequence", (np.array([9, 4, 1]), [3]), [9.0, 4.0, 1.0])
    yield Case("two sequences of 3", (np.array([9, 4, 1, 7, 2, 5]), [3, 3]), [8.0, 3.0, 3.0])
    counts = np.array([10, 6, 20, 8, 3, 1, 60])
    yield Case("sequences of 2, 4 and 1 tokens", (counts, [2, 4, 1]), [30.0, 7.0, 3.0, 1.0])


def _union_cases() -> Iterator[Case]:
    small = np.array([[1, 0, 0, 1], [1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0]], dtype=bool)
    yield Case("4 tokens, blocks of 2", (small, 2), [3, 1])
    yield Case("4 tokens, blocks of 3: the last block is shorter", (small, 3), [3, 1])
    yield Case("one block that is larger than the text", (small, 64), [4])
    tokens, neurons = np.arange(70)[:, None], np.arange(300)[None, :]
    large = (tokens * 7 + neurons * 3) % 97 < 2
    expected = [len({n for row in large[i : i + 32] for n in np.flatnonzero(row)}) for i in range(0, 70, 32)]
    yield Case("70 tokens, 300 neurons, blocks of 32", (large, 32), expected)


SHEET = Sheet(
    [
        Exercise(
            "10.1",
            "Walk over the sequences with a running start; add counts[start:start+length] into a total of the "
            "longest length and count how many sequences reach each position.",
            _profile_cases,
            tolerance=1e-6,
        ),
        Exercise(
            "10.2",
            "For each block of rows `active[i:i + block]`: `.any(axis=0)` says which neurons any token fires.",
            _union_cases,
        ),
    ]
)
check, hint = SHEET.check, SHEET.hint
