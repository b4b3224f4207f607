"""Checks of notebook 02: the bytes of a format, operations a byte, and the density at which gathering pays.

Letters: M tokens, D model width, H hidden width, W ELL width, N active entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from twellviz.exercises.checking import Case, Exercise, Sheet


def _bytes(counts: Sequence[int], hidden: int, value_bytes: int, index_bytes: int) -> tuple[int, int, int]:
    entry = value_bytes + index_bytes
    dense = len(counts) * hidden * value_bytes
    csr = sum(counts) * entry + (len(counts) + 1) * index_bytes
    ell = len(counts) * (max(counts) * entry + index_bytes)
    return dense, csr, ell


def _bytes_cases() -> Iterator[Case]:
    for says, counts, hidden, value, index in (
        ("3 even tokens of 8 neurons, fp32, 4-byte columns", [2, 2, 2], 8, 4, 4),
        ("one full token among 4, bf16, 4-byte columns", [1, 10, 0, 3], 10, 2, 4),
        ("bf16 with 2-byte columns, 512 tokens", [i * 37 % 301 for i in range(512)], 5632, 2, 2),
        ("fp32 with the 8-byte columns of torch, one token", [29], 5632, 4, 8),
        ("nobody fires", [0, 0], 16, 4, 4),
    ):
        yield Case(says, (counts, hidden, value, index), _bytes(counts, hidden, value, index))


def _intensity(tokens: int, width: int, hidden: int, itemsize: int) -> float:
    moved = itemsize * (tokens * width + hidden * width + tokens * hidden)
    return 2 * tokens * width * hidden / moved


def _intensity_cases() -> Iterator[Case]:
    for says, sizes in (
        ("one token, bf16", (1, 2048, 5632, 2)),
        ("512 tokens, fp32", (512, 2048, 5632, 4)),
        ("16384 tokens, bf16", (16384, 2048, 5632, 2)),
        ("3 tokens, 5 wide, 7 neurons, fp32", (3, 5, 7, 4)),
    ):
        yield Case(says, sizes, _intensity(*sizes))


def _break_even(hidden: int, itemsize: int, flops: float, bandwidth: float) -> float:
    return min(float(hidden), hidden * (2 / itemsize) * bandwidth / flops)


def _break_even_cases() -> Iterator[Case]:
    for says, given in (
        ("bf16 at 989 TFLOP/s and 4.8 TB/s", (5632, 2, 989e12, 4.8e12)),
        ("fp32 at 150 GFLOP/s and 15 GB/s", (5632, 4, 150e9, 15e9)),
        ("bf16, 100 neurons, 50 operations a byte", (100, 2, 5e12, 1e11)),
        ("memory so fast that gathering never loses", (64, 4, 1e9, 1e12)),
    ):
        yield Case(says, given, _break_even(*given))


SHEET = Sheet(
    [
        Exercise(
            "2.1",
            "Dense stores every value. CSR stores a value and a column for each active entry, and one index for the "
            "start of each row and one more for the end of the last. ELL stores max(counts) values and columns for "
            "every token, whatever it fires, and one index for its count.",
            _bytes_cases,
        ),
        Exercise(
            "2.2",
            "The product takes 2 * tokens * width * hidden operations. Three matrices move: the tokens, the weights "
            "and the result; each element of each has itemsize bytes.",
            _intensity_cases,
            tolerance=1e-9,
        ),
        Exercise(
            "2.3",
            "Per token, dense up and down take 4 * width * hidden operations, at `flops` a second. Gathering one "
            "neuron reads two rows, 2 * width * itemsize bytes, at `bandwidth` a second. Set the two times equal: "
            "the width drops out. More than `hidden` neurons cannot fire.",
            _break_even_cases,
            tolerance=1e-9,
        ),
    ]
)
check, hint = SHEET.check, SHEET.hint
