"""Rooflines and the figures that stand under them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from matplotlib import pyplot as plt

from twellviz import bench, plots
from twellviz.bench import Machine, Work
from twellviz.errors import ConfigError

MACHINE = Machine("a machine", flops=1000.0, bandwidth=10.0, source="made up")
WORKS = [
    Work("long rows", flop=200.0, n_bytes=100.0),
    Work("big product", flop=5e5, n_bytes=1e3, seconds=1000.0),
]


def test_the_longer_of_two_times_is_the_limit() -> None:
    assert MACHINE.ridge == 100
    assert MACHINE.seconds(WORKS[0]) == 10.0  # 100 bytes at 10 a second; its arithmetic takes 0.2
    assert MACHINE.seconds(WORKS[1]) == 500.0  # arithmetic; its bytes take 100
    assert MACHINE.attainable(2.0) == 20.0
    assert MACHINE.attainable(500.0) == 1000.0
    assert MACHINE.attainable(MACHINE.ridge) == MACHINE.flops


@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan])
def test_peaks_and_work_must_be_above_zero(value: float) -> None:
    with pytest.raises(ConfigError, match="flops="):
        Machine("m", flops=value, bandwidth=1, source="")
    with pytest.raises(ConfigError, match="bandwidth="):
        Machine("m", flops=1, bandwidth=value, source="")
    with pytest.raises(ConfigError, match="w: n_bytes="):
        Work("w", flop=1, n_bytes=value)


def test_table_says_what_limits_each_work() -> None:
    table = plots.roofline_table(WORKS, machine=MACHINE).set_index("work")
    assert table["intensity"].tolist() == [2.0, 500.0]
    assert table["limit"].tolist() == ["memory", "arithmetic"]
    assert table["least_ms"].tolist() == [10e3, 500e3]
    assert table.loc["big product", "reached"] == 500.0
    assert math.isnan(table.loc["long rows", "reached"])


def test_picture_has_roof_and_points_where_the_numbers_are() -> None:
    ax = plots.roofline(WORKS, machine=MACHINE)
    roof, _, first, second = (line.get_xydata() for line in ax.lines)
    assert [100.0, 1000.0] in roof.tolist()
    assert first.tolist() == [[2.0, 20.0]]
    assert second.tolist() == [[500.0, 500.0]]  # measured: below the roof
    legend = ax.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["long rows (2)", "big product (500)"]
    (low, high), (left, right) = ax.get_ylim(), ax.get_xlim()
    assert low < 20 < 1000 < high
    assert left < 2 < 500 < right
    given = plt.figure().add_subplot()
    assert plots.roofline(WORKS, machine=MACHINE, ax=given) is given


def test_alternative_text_has_the_numbers() -> None:
    text = plots.describe(plots.roofline, WORKS, machine=MACHINE)
    assert "ridge at 100 operations a byte" in text
    assert "long rows has 2 operations a byte and is limited by memory" in text
    assert "limited by arithmetic, it reached 50% of the roof" in text


@pytest.mark.parametrize(("works", "says"), [([], "works has 0"), (WORKS * 4, "works has 8"), ([1], "sequence of")])
def test_wrong_works_are_named(works: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        plots.roofline(works, machine=MACHINE)
    with pytest.raises(ConfigError, match="sequence of"):
        plots.roofline(WORKS[0], machine=MACHINE)  # type: ignore[arg-type]


def test_names_are_shown_as_they_are() -> None:
    ax = plots.roofline([Work("$x_$ <b>", 1, 1)], machine=Machine("$\\frac$", 1, 1, ""))
    ax.figure.canvas.draw()
    assert "$\\frac$" in ax.get_title()


def test_this_cpu_is_measured() -> None:
    here = bench.measure_cpu(size=128, repeats=1)
    assert 1e7 < here.flops < 1e14
    assert 1e8 < here.bandwidth < 1e13
    assert "measured" in here.source
    with pytest.raises(ConfigError, match="repeats=0"):
        bench.measure_cpu(repeats=0)
