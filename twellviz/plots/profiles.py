"""How many neurons fire: by layer, and by position in the sequence.

Letters: L layers, M tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from twellviz.errors import ConfigError
from twellviz.plots.style import DASHES, MARKERS, PALETTE, axes_or_new, chosen_layers, grid, legend, require_trace
from twellviz.traces.trace import Trace

_STATISTICS = ("mean", "p99", "max")


def layer_profile_table(trace: Trace) -> pd.DataFrame:
    """Mean, 99th percentile and maximum of the counts of each layer, in long form: layer, statistic, l0."""
    wide = require_trace(trace).layer_table().reset_index()
    return wide.melt(id_vars="layer", value_vars=list(_STATISTICS), var_name="statistic", value_name="l0")


def layer_profile(trace: Trace, *, ax: Axes | None = None) -> Axes:
    """Active neurons of a token in each layer: mean, 99th percentile and maximum.

    The scale is logarithmic; where a layer stays below 1, it goes down to 0, linear below 1.

    Parameters
    ----------
    trace : Trace
    ax : Axes, optional
        A new figure if not given.

    Returns
    -------
    Axes

    Raises
    ------
    TraceError
        ``trace`` is none.
    """
    table = layer_profile_table(trace)
    ax = axes_or_new(ax, (7, 3.2))
    _lines(ax, table, x="layer", series="statistic", order=list(_STATISTICS), marker_size=7)
    _log_counts(ax, table["l0"])
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.set(xlabel="layer", ylabel=f"active neurons (of {trace.n_hidden})", title="Active neurons of a token, by layer")
    legend(ax, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return ax


def position_profile_table(
    trace: Trace, *, layers: Sequence[int] | None = None, bins_per_doubling: int = 4
) -> pd.DataFrame:
    """Mean count by position in the sequence, in long form: layer, position (from 1), l0, tokens.

    Positions are averaged in bins that grow with the position, ``bins_per_doubling`` for each doubling; each
    token weighs the same.

    Raises
    ------
    ConfigError
        A layer that does not exist, or ``bins_per_doubling`` below 1.
    """
    require_trace(trace)
    if isinstance(bins_per_doubling, bool) or not isinstance(bins_per_doubling, int) or bins_per_doubling < 1:
        raise ConfigError(f"bins_per_doubling={bins_per_doubling!r}: a whole number of at least 1 is needed")
    position_M = trace.position_M + 1
    bin_M = np.floor(np.log2(position_M) * bins_per_doubling + 1e-9).astype(np.int64)
    rows = []
    for layer in chosen_layers(layers, trace.n_layers):
        grouped = pd.DataFrame({"bin": bin_M, "position": position_M, "l0": trace.counts_LM[layer]}).groupby("bin")
        means = grouped.agg(position=("position", "mean"), l0=("l0", "mean"), tokens=("l0", "size"))
        rows.append(means.assign(layer=layer).reset_index(drop=True))
    return pd.concat(rows, ignore_index=True)[["layer", "position", "l0", "tokens"]]


def position_profile(
    trace: Trace, *, ax: Axes | None = None, layers: Sequence[int] | None = None, bins_per_doubling: int = 4
) -> Axes:
    """Mean active neurons by position in the sequence, on logarithmic axes.

    Parameters
    ----------
    trace : Trace
    ax : Axes, optional
    layers : sequence of int, optional
        Up to six; evenly spread over the model if not given.
    bins_per_doubling : int

    Returns
    -------
    Axes
    """
    table = position_profile_table(trace, layers=layers, bins_per_doubling=bins_per_doubling)
    ax = axes_or_new(ax, (7, 3.4))
    shown = table["layer"].unique().tolist()
    table = table.assign(series=[f"layer {layer}" for layer in table["layer"]])
    _lines(ax, table, x="position", series="series", order=[f"layer {layer}" for layer in shown], marker_size=5)
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter(FuncFormatter(_plain))
    _log_counts(ax, table["l0"])
    notice = "" if len(shown) == trace.n_layers else f" ({len(shown)} of {trace.n_layers} layers)"
    ax.set(
        xlabel="position in the sequence, from 1",
        ylabel=f"mean active neurons (of {trace.n_hidden})",
        title=f"Active neurons by position{notice}",
    )
    legend(ax, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return ax


def describe_layer_profile(trace: Trace) -> str:
    """What :func:`layer_profile` shows, in a sentence."""
    trace = require_trace(trace)
    mean_L, max_L = trace.mean_L, trace.max_L
    most, least, peak = int(mean_L.argmax()), int(mean_L.argmin()), int(max_L.argmax())
    return (
        f"Lines over {trace.n_layers} layers: of {trace.n_hidden} neurons a token fires {mean_L[least]:.1f} on average "
        f"in layer {least}, the quietest, and {mean_L[most]:.1f} in layer {most}, the busiest; the fullest token "
        f"fires {max_L[peak]} in layer {peak}."
    )


def describe_position_profile(trace: Trace, *, layers: Sequence[int] | None = None, bins_per_doubling: int = 4) -> str:
    """What :func:`position_profile` shows, in a sentence."""
    table = position_profile_table(trace, layers=layers, bins_per_doubling=bins_per_doubling)
    parts = []
    for layer, rows in table.groupby("layer"):
        first, last = rows.iloc[0], rows.iloc[-1]
        parts.append(f"layer {layer} from {first['l0']:.0f} to {last['l0']:.0f}")
    reach = int(table["position"].max())
    return f"Mean active neurons from the first position to about the {reach}th: {'; '.join(parts)}."


def _lines(ax: Axes, table: pd.DataFrame, *, x: str, series: str, order: list[str], marker_size: float) -> None:
    sns.lineplot(
        data=table,
        x=x,
        y="l0",
        hue=series,
        style=series,
        hue_order=order,
        style_order=order,
        palette=list(PALETTE["series"][: len(order)]),
        markers=list(MARKERS[: len(order)]),
        dashes=list(DASHES[: len(order)]),
        errorbar=None,
        markersize=marker_size,
        linewidth=1.8,
        ax=ax,
    )


def _log_counts(ax: Axes, counts: pd.Series[float]) -> None:
    """Counts on a logarithmic scale that still shows 0 where there is one."""
    low, high = float(counts.min()), max(2.0, 1.4 * float(counts.max()))
    steps = [10.0**power * step for power in range(7) for step in (1, 2, 5)]
    if low >= 1:
        ax.set_yscale("log")
        ax.set_ylim(low / 1.4, high)
        ticks = [step for step in steps if low / 1.4 <= step <= high]
    else:
        ax.set_yscale("symlog", linthresh=1, linscale=0.4)
        ax.set_ylim(-0.1, high)
        ticks = [0.0, *(step for step in steps if step <= high)]
    # More than eight labels run into each other: then powers of ten are enough.
    ax.set_yticks(ticks if len(ticks) < 9 else [tick for tick in ticks if tick == 0 or f"{tick:.0e}".startswith("1")])
    ax.yaxis.set_major_formatter(FuncFormatter(_plain))
    ax.minorticks_off()
    grid(ax, "y")


def _plain(value: float, _: Any) -> str:
    return f"{value:,.0f}"
