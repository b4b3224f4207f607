"""Curves of a training run: loss, active neurons, silent neurons.

Letters: L layers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from twellviz.errors import ConfigError
from twellviz.plots.style import (
    DASHES,
    MAX_SERIES,
    PALETTE,
    add_axes,
    axes_or_new,
    grid,
    legend,
    new_figure,
    spread,
)

History: TypeAlias = pd.DataFrame | Sequence[Mapping[str, float]]


def training_table(history: History, *needed: str) -> pd.DataFrame:
    """A run's history as a table, checked.

    Parameters
    ----------
    history : DataFrame, or sequence of mappings
        One row a step, with a column ``step``.
    *needed : str
        Further columns that must be there.

    Raises
    ------
    ConfigError
        It has no row, or lacks a column.
    """
    table = history if isinstance(history, pd.DataFrame) else pd.DataFrame(list(history))
    if table.empty:
        raise ConfigError("history has no rows: give the history of a run of at least one step")
    for name in ("step", *needed):
        if name not in table.columns:
            raise ConfigError(f"history has no column {name!r}: its columns are {', '.join(map(str, table.columns))}")
    return table


def loss_curve(history: History, *, ax: Axes | None = None) -> Axes:
    """Cross-entropy of each step, and the held-out loss where it was measured.

    Runs of 100 steps and more get a moving average over a fiftieth of the run on top.

    Parameters
    ----------
    history : DataFrame or sequence of mappings
        Columns ``step``, ``cross_entropy`` and, if there, ``validation_loss``.
    ax : Axes, optional

    Returns
    -------
    Axes
    """
    table = training_table(history, "cross_entropy")
    ax = axes_or_new(ax, (7, 2.8))
    step, loss = table["step"], table["cross_entropy"]
    blue, orange = PALETTE["series"][:2]
    if len(table) >= 100:
        ax.plot(step, loss, color=blue, linewidth=0.8, alpha=0.4)
        ax.plot(step, _smooth(loss), color=blue, linewidth=2, label="training,\nmoving average")
    else:
        ax.plot(step, loss, color=blue, linewidth=2, label="training")
    if "validation_loss" in table:
        measured = table[table["validation_loss"].notna()]
        if len(measured):
            ax.plot(measured["step"], measured["validation_loss"], "D--", color=orange, markersize=5, label="held out")
    ax.set(xlabel="step", ylabel="cross-entropy (nats)", title="Loss")
    grid(ax)
    legend(ax, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return ax


def l0_curve(history: History, *, ax: Axes | None = None) -> Axes:
    """Mean active neurons of a token, per layer and over all layers, on a logarithmic scale.

    Parameters
    ----------
    history : DataFrame or sequence of mappings
        Columns ``step``, ``l0`` and, if there, ``l0_0``, ``l0_1``, ...
    ax : Axes, optional

    Returns
    -------
    Axes
    """
    table = training_table(history, "l0")
    ax = axes_or_new(ax, (7, 2.8))
    _per_layer(ax, table, "l0")
    # A layer whose neurons all died must not vanish from the picture.
    ax.set_yscale("symlog", linthresh=1, linscale=0.4)
    ax.set_ylim(bottom=-0.1)
    ax.yaxis.set_major_formatter("{x:g}")
    ax.set(xlabel="step", ylabel="active neurons", title="Active neurons of a token (L0)")
    return ax


def dead_curve(history: History, *, ax: Axes | None = None) -> Axes:
    """Share of neurons that no token of the step fired, per layer and over all layers.

    Parameters
    ----------
    history : DataFrame or sequence of mappings
        Columns ``step``, ``dead`` and, if there, ``dead_0``, ``dead_1``, ...
    ax : Axes, optional

    Returns
    -------
    Axes
    """
    table = training_table(history, "dead")
    ax = axes_or_new(ax, (7, 2.8))
    _per_layer(ax, table, "dead")
    ax.set(xlabel="step", ylabel="silent neurons", title="Neurons that no token of the step fired", ylim=(-0.03, 1.03))
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    return ax


def training_curves(history: History, *, figsize: tuple[float, float] = (8, 7.5)) -> Figure:
    """Loss, active neurons and silent neurons below each other, over one axis of steps.

    Parameters
    ----------
    history : DataFrame or sequence of mappings
        ``TrainResult.history``, or the rows of a run's ``log.csv``.
    figsize : (float, float)
        Inches.

    Returns
    -------
    Figure
        With three Axes.
    """
    training_table(history, "cross_entropy", "l0", "dead")
    figure = new_figure(figsize)
    places = figure.add_gridspec(3, 1)
    drawn = [
        curve(history, ax=add_axes(figure, place))
        for curve, place in zip((loss_curve, l0_curve, dead_curve), (places[row, 0] for row in range(3)), strict=True)
    ]
    for ax in drawn[:2]:
        ax.sharex(drawn[2])
        ax.set_xlabel("")
        ax.tick_params(labelbottom=False)
    return figure


def describe_loss_curve(history: History) -> str:
    """What :func:`loss_curve` shows, in a sentence."""
    table = training_table(history, "cross_entropy")
    ends = _ends(table, "cross_entropy")
    text = f"Cross-entropy over {len(table)} steps: from {ends[0]:.2f} to {ends[1]:.2f} nats"
    if "validation_loss" not in table or table["validation_loss"].isna().all():
        return f"{text}."
    return f"{text}; held out {table['validation_loss'].dropna().iloc[-1]:.2f} at the last measurement."


def describe_l0_curve(history: History) -> str:
    """What :func:`l0_curve` shows, in a sentence."""
    table = training_table(history, "l0")
    first, last = _ends(table, "l0")
    layers = [f"layer {layer} {_ends(table, name)[1]:.1f}" for layer, name in _shown_layers(table, "l0")]
    at_end = f"; at the end {', '.join(layers)}" if layers else ""
    return f"Active neurons of a token over {len(table)} steps: from {first:.1f} to {last:.1f}{at_end}."


def describe_dead_curve(history: History) -> str:
    """What :func:`dead_curve` shows, in a sentence."""
    table = training_table(history, "dead")
    first, last = _ends(table, "dead")
    layers = [f"layer {layer} {100 * _ends(table, name)[1]:.0f} %" for layer, name in _shown_layers(table, "dead")]
    at_end = f"; at the end {', '.join(layers)}" if layers else ""
    return f"Share of neurons that no token fired: from {100 * first:.0f} % to {100 * last:.0f} %{at_end}."


def describe_training_curves(history: History, *, figsize: tuple[float, float] = (8, 7.5)) -> str:
    """What :func:`training_curves` shows, in three sentences."""
    return " ".join(part(history) for part in (describe_loss_curve, describe_l0_curve, describe_dead_curve))


def _per_layer(ax: Axes, table: pd.DataFrame, name: str) -> None:
    shown = _shown_layers(table, name)
    for place, (layer, column) in enumerate(shown):
        dash = DASHES[place]
        ax.plot(
            table["step"],
            _smooth(table[column]),
            color=PALETTE["series"][place],
            linestyle=(0, dash) if dash else "-",
            linewidth=1.6,
            label=f"layer {layer}",
        )
    ax.plot(table["step"], _smooth(table[name]), color=PALETTE["ink"], linewidth=2.6, alpha=0.8, label="mean")
    grid(ax)
    legend(ax, loc="center left", bbox_to_anchor=(1.01, 0.5))


def _shown_layers(table: pd.DataFrame, name: str) -> list[tuple[int, str]]:
    """Layers with a column of their own: all, or six evenly spread."""
    found = sorted(int(match[1]) for column in table if (match := re.fullmatch(rf"{name}_(\d+)", str(column))))
    return [(found[place], f"{name}_{found[place]}") for place in spread(len(found), MAX_SERIES)] if found else []


def _smooth(series: pd.Series[float]) -> pd.Series[float]:
    """A centred moving average over a fiftieth of the run; the values themselves below 100 steps."""
    if len(series) < 100:
        return series
    return series.rolling(max(1, len(series) // 50), center=True, min_periods=1).mean()


def _ends(table: pd.DataFrame, name: str) -> tuple[float, float]:
    """First and last value, each a mean over a fiftieth of the run."""
    values, n = table[name].to_numpy(np.float64), max(1, len(table) // 50)
    return float(values[:n].mean()), float(values[-n:].mean())
