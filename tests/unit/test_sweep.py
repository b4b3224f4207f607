"""The recorded sweep: its table, the rule of the recommended coefficient, and the pictures of it."""

from __future__ import annotations

import matplotlib as mpl
import pandas as pd
import pytest

from twellviz import plots
from twellviz.errors import ConfigError
from twellviz.training.sweep import by_coefficient, load_sweep, recommended_coefficient

mpl.use("Agg")


def sweep(*rows: tuple[float, int, float, float]) -> pd.DataFrame:
    """Runs of the coefficient group: coefficient, seed, loss, share."""
    frame = pd.DataFrame(rows, columns=["l1", "seed", "loss", "l0_share"])
    return frame.assign(group="coefficient", dead_share=0.1, name=[f"run{i}" for i in range(len(frame))])


def test_the_shipped_sweep_is_complete() -> None:
    table = by_coefficient(load_sweep())
    assert table["l1"].iloc[0] == 0
    assert len(table) >= 6
    assert (table["seeds"] == 3).sum() >= 2
    assert table["l0_share"].is_monotonic_decreasing
    names = set(load_sweep()["name"])
    assert {"warmup", "reinit", "silu", "plain-l1_0"} <= names
    l0 = load_sweep().filter(regex=r"^l0_\d").to_numpy()
    assert (l0 > 0).all()


def test_seeds_are_pooled_and_the_loss_is_measured_against_coefficient_0() -> None:
    table = by_coefficient(sweep((0.0, 0, 2.0, 0.5), (0.1, 0, 2.1, 0.02), (0.1, 1, 2.3, 0.04), (1.0, 0, 3.0, 0.001)))
    row = table[table["l1"] == 0.1].iloc[0]
    assert (row["seeds"], row["loss"], row["loss_low"], row["loss_high"]) == (2, pytest.approx(2.2), 2.1, 2.3)
    assert row["l0_share"] == pytest.approx(0.03)
    assert row["loss_rise"] == pytest.approx(0.1)


def test_the_rule() -> None:
    runs = [(0.0, 0, 2.0, 0.5), (0.1, 0, 9.9, 0.005), (1.0, 0, 2.0, 0.0049)]
    assert recommended_coefficient(sweep(*runs)) == 0.1  # whatever the loss
    assert recommended_coefficient(sweep(runs[0], runs[2])) is None


def test_wrong_tables_are_named() -> None:
    with pytest.raises(ConfigError, match="l0_share"):
        by_coefficient(sweep((0.0, 0, 2.0, 0.5)).drop(columns="l0_share"))
    with pytest.raises(ConfigError, match="coefficient 0"):
        by_coefficient(sweep((0.1, 0, 2.0, 0.5)))


def test_the_pictures_show_the_table() -> None:
    shipped = load_sweep()
    table = by_coefficient(shipped)
    ax = plots.sparsity_by_coefficient(shipped)
    assert [tick.get_text() for tick in ax.get_xticklabels()] == [f"{l1:g}" for l1 in table["l1"]]
    assert ax.lines[0].get_ydata().tolist() == table["l0_share"].tolist()
    ax = plots.loss_by_sparsity(shipped)
    assert ax.lines[0].get_ydata().tolist() == table["loss"].tolist()
    assert len(ax.texts) == len(table)
    for plot in (plots.sparsity_by_coefficient, plots.loss_by_sparsity):
        text = plots.describe(plot, shipped)
        assert all(f"{l1:g}:" in text for l1 in table["l1"])
