"""Checks of notebook 03: the words of one tile, and the compression that fits.

Letters: M tokens, T columns of a tile, S words of a tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from twellviz.exercises.checking import Case, Exercise, Sheet

_COMPRESSIONS = (8, 4, 2)
_TILE_WIDTH = 256


def bf16_bits(value: float) -> int:
    """The 16 bits of ``value`` rounded to bfloat16, as an integer from 0 to 65,535."""
    return int(torch.tensor(value, dtype=torch.bfloat16).view(torch.int16)) & 0xFFFF


def _words(values: Sequence[float], first_column: int, slots: int) -> list[int]:
    entries = [(first_column + i) | bf16_bits(v) << 16 for i, v in enumerate(values) if not v <= 0]
    stored = entries[: slots - 1]
    return [len(entries), *stored, *[0] * (slots - 1 - len(stored))]


def _tile_cases() -> Iterator[Case]:
    def case(says: str, values: list[float], first_column: int, slots: int) -> Case:
        return Case(says, (values, first_column, slots), _words(values, first_column, slots))

    few = [0.0] * 256
    few[3], few[200], few[255] = 1.5, 2.0, 0.25
    yield case("3 active neurons in the first tile", few, 0, 32)
    yield case("the same values in tile 21: columns are those of the whole row", few, 21 * 256, 32)
    yield case("a last tile of 44 columns, some of them negative", [float(i % 7 - 3) for i in range(44)], 256, 32)
    yield case("32 active neurons for 31 places", [1.0 + i / 4 if i % 8 == 5 else 0.0 for i in range(256)], 0, 32)
    yield case("every neuron active, 128 words", [1.0 + i for i in range(256)], 512, 128)
    yield case("a NaN", [-1.0, float("nan"), 0.0, 3.0], 0, 32)


def _fitting(tile_counts: Sequence[Sequence[int]]) -> int | None:
    fullest = max((count for row in tile_counts for count in row), default=0)
    return next((c for c in _COMPRESSIONS if fullest <= _TILE_WIDTH // c - 1), None)


def _fit_cases() -> Iterator[Case]:
    for fullest in (0, 31, 32, 63, 64, 127, 128, 256):
        counts = torch.tensor([[min(fullest, 5), 0, min(fullest, 30)], [1 if fullest else 0, fullest, 0]])
        yield Case(f"2 tokens, 3 tiles, fullest tile {fullest}", (counts,), _fitting(counts.tolist()))
    yield Case("one token, one tile", (torch.tensor([[40]]),), 4)


SHEET = Sheet(
    [
        Exercise(
            "3.1",
            "Make the list of all active entries first: `(first_column + i) | bf16_bits(v) << 16` where "
            "`not v <= 0`. Word 0 is the length of that list, even if it is longer than the tile; then come its "
            "first slots - 1 entries, then zeros.",
            _tile_cases,
        ),
        Exercise(
            "3.2",
            "At compression C a tile has 256 // C words and one of them is the count. Try 8, then 4, then 2, "
            "against the largest count of all.",
            _fit_cases,
        ),
    ]
)
check, hint = SHEET.check, SHEET.hint
