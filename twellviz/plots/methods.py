"""Pictures of a comparison of sparsifiers: what each costs in loss, what it leaves active, how fast its blocks are.

Letters: H hidden width.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullLocator

from twellviz.errors import ConfigError
from twellviz.plots.style import PALETTE, axes_or_new, grid, legend
from twellviz.plots.sweep import percent
from twellviz.sparsifiers.registry import METHODS
from twellviz.sparsifiers.table import by_setting, on_front

MARKERS = ("o", "^", "s", "D", "v", "P", "X", "*")
COLOURS = (*PALETTE["series"], PALETTE["ink"], PALETTE["muted"])
SPEED_NAMES = {"prefill_over_plain": "prefill", "decode_over_plain": "decode"}


def pareto(table: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Held-out loss against the share of active neurons, a point a setting; bars span the seeds.

    Settings that no other beats in both are ringed and joined: the Pareto front of the means.

    Parameters
    ----------
    table : DataFrame
        One row a setting and seed, as from :func:`twellviz.sparsifiers.table.load_comparison`.
    ax : Axes, optional

    Raises
    ------
    ConfigError
    """
    summary = by_setting(table)
    ax = axes_or_new(ax, (7.5, 4.4))
    for method, group in summary.groupby("method", sort=False):
        place = list(METHODS).index(str(method))
        ax.errorbar(
            group["l0_share"],
            group["loss"],
            xerr=_bars(group, "l0_share"),
            yerr=_bars(group, "loss"),
            linestyle="none",
            marker=MARKERS[place],
            color=COLOURS[place],
            label=str(method),
            capsize=3,
            markersize=7,
        )
    front = summary[on_front(summary)].sort_values("l0_share")
    ax.plot(front["l0_share"], front["loss"], color=PALETTE["faint"], linewidth=1, zorder=0)
    ax.scatter(front["l0_share"], front["loss"], s=170, facecolors="none", edgecolors=PALETTE["ink"], label="front")
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(percent)
    ax.set(xlabel="active neurons of a token, share of all", ylabel="held-out loss (nats)")
    grid(ax)
    legend(ax, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return ax


def speed_by_method(table: pd.DataFrame, *, kind: str = "prefill_over_plain", ax: Axes | None = None) -> Axes:
    """Time of the plain dense block over that of each setting's sparse way; bars span the seeds.

    Parameters
    ----------
    table : DataFrame
    kind : {"prefill_over_plain", "decode_over_plain"}
    ax : Axes, optional

    Raises
    ------
    ConfigError
    """
    summary = _with_speed(table, kind)
    ax = axes_or_new(ax, (7.5, 0.7 + 0.32 * len(summary)))
    places = np.arange(len(summary))[::-1]
    colours = [COLOURS[list(METHODS).index(method)] for method in summary["method"]]
    ax.barh(places, summary[kind], xerr=_bars(summary, kind), color=colours, capsize=3)
    ax.axvline(1, color=PALETTE["ink"], linestyle="--", linewidth=1)
    ax.set_yticks(places, summary["setting"])
    ax.set(xlabel=f"{SPEED_NAMES[kind]}: plain dense time over sparse time (right of the line: faster)")
    grid(ax, "x")
    return ax


def _with_speed(table: pd.DataFrame, kind: str) -> pd.DataFrame:
    if kind not in SPEED_NAMES:
        raise ConfigError(f"kind={kind!r}: choose one of {', '.join(SPEED_NAMES)}")
    summary = by_setting(table)
    if kind not in summary.columns:
        raise ConfigError(f"table has no columns of speed for kind={kind!r}: it was not measured")
    return summary


def _bars(group: pd.DataFrame, name: str) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    middle = group[name].to_numpy(float)
    low, high = group[f"{name}_low"].to_numpy(float), group[f"{name}_high"].to_numpy(float)
    # A mean of equal numbers may lie a rounding outside of them.
    return np.maximum([middle - low, high - middle], 0.0)


def describe_pareto(table: pd.DataFrame) -> str:
    """Alternative text."""
    summary = by_setting(table)
    ringed = on_front(summary)
    points = ", ".join(f"{row.setting}: {row.loss:.2f} at {row.l0_share:.1%}" for row in summary.itertuples())
    front = ", ".join(setting for setting, on in zip(summary["setting"], ringed, strict=True) if on)
    return f"Held-out loss in nats against the share of active neurons, by method. {points}. On the front: {front}."


def describe_speed_by_method(table: pd.DataFrame, *, kind: str = "prefill_over_plain") -> str:
    """Alternative text."""
    summary = _with_speed(table, kind)
    points = ", ".join(
        f"{setting} {ratio:.2f}" for setting, ratio in zip(summary["setting"], summary[kind], strict=True)
    )
    return f"{SPEED_NAMES[kind]}: plain dense time over sparse time, above 1 is faster. {points}."
