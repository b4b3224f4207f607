"""Loops written out before a kernel is compiled."""

from __future__ import annotations

import inspect

import pytest
from twell.errors import OptionError
from twell.tensorcore.unroll import unroll, unrolled

WIDTH = 3


def test_written_out_it_computes_the_same() -> None:
    def plain(values: list[int], start: int) -> list[int]:
        found = []
        for i in unroll(WIDTH):
            for j in unroll(i, 2 * WIDTH, 2):
                if values[i] > start:
                    found.append(values[i] * j)  # noqa: PERF401 - the loop is what is tested
        for k in range(2):
            found += [k + 1]
        return found

    written = unrolled(plain)
    assert written([5, 1, 7], 2) == plain([5, 1, 7], 2)
    assert written.__code__.co_code != plain.__code__.co_code
    names = set(written.__code__.co_varnames)
    assert "i" not in names
    assert "k" in names, "an ordinary loop stays one"


def test_bounds_may_come_from_around_the_function_and_lines_stay() -> None:
    n = 2

    def plain(sums: list[int]) -> int:
        total = 0
        for i in unroll(n):
            total += sums[i]
        assert total < 100, "too much"
        return total

    written = unrolled(plain)
    assert written([1, 2, 50]) == 3
    assert written.__doc__ == plain.__doc__
    lines, first = inspect.getsourcelines(plain)
    wanted = first + next(i for i, line in enumerate(lines) if "too much" in line)
    with pytest.raises(AssertionError) as caught:
        written([90, 90])
    assert caught.traceback[-1].lineno + 1 == wanted


def test_what_cannot_be_written_out_is_named() -> None:
    def run_time(n: int) -> None:
        for _i in unroll(n):
            pass

    def assigns() -> None:
        for i in unroll(3):
            i = 4  # noqa: F841

    def breaks() -> None:
        for _i in unroll(3):
            break

    def many() -> None:
        for _i in unroll(10_000):
            pass

    for function, message in (
        (run_time, "must be known before the kernel runs"),
        (assigns, "the body assigns i"),
        (breaks, "break, continue and else"),
        (many, "10000 copies"),
    ):
        with pytest.raises(OptionError, match=message):
            unrolled(function)
