"""Pictures of a sweep over L1 coefficients: how sparse the model becomes, and what that costs.

Letters: H hidden width.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from twellviz.plots.style import PALETTE, axes_or_new, grid, legend
from twellviz.training.sweep import LEAST_SHARE, by_coefficient

COLOURS = PALETTE["series"]


def percent(share: float, _: object = None) -> str:
    """0.005 -> ``0.5 %``."""
    return f"{100 * share:g} %"


def sparsity_by_coefficient(sweep: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Active and dead neurons, as shares of H, against the coefficient; bars span the seeds.

    Parameters
    ----------
    sweep : DataFrame
        One row a run, as from :func:`twellviz.training.sweep.load_sweep`.
    ax : Axes, optional

    Raises
    ------
    ConfigError
    """
    table = by_coefficient(sweep)
    ax = axes_or_new(ax, (7.0, 3.8))
    places = np.arange(len(table))
    for name, label, marker, color in (
        ("l0_share", "active for a token, mean", "o", COLOURS[0]),
        ("dead_share", "dead: silent on all held-out text", "s", COLOURS[1]),
    ):
        shares = table[name].to_numpy()
        low, high = table[f"{name}_low"].to_numpy(), table[f"{name}_high"].to_numpy()
        ax.errorbar(places, shares, [shares - low, high - shares], marker=marker, color=color, label=label, capsize=4)
    ax.axhline(LEAST_SHARE, color="grey", linestyle="--", linewidth=1, label=f"{LEAST_SHARE:.1%} of the neurons")
    # A logarithmic scale that still shows zero dead neurons.
    ax.set_yscale("symlog", linthresh=1e-3)
    ax.set_ylim(0, 1)
    ax.yaxis.set_major_formatter(percent)
    ax.set_xticks(places, [f"{l1:g}" for l1 in table["l1"]])
    ax.set(xlabel="L1 coefficient", ylabel="share of the neurons")
    grid(ax)
    legend(ax, loc="center left")
    return ax


def loss_by_sparsity(sweep: pd.DataFrame, *, ax: Axes | None = None) -> Axes:
    """Held-out loss of every run against its share of active neurons; the coefficients are written beside.

    Parameters
    ----------
    sweep : DataFrame
    ax : Axes, optional

    Raises
    ------
    ConfigError
    """
    table = by_coefficient(sweep)
    ax = axes_or_new(ax, (7.0, 3.8))
    runs = sweep[sweep["group"] == "coefficient"]
    ax.plot(table["l0_share"], table["loss"], color=COLOURS[0], linewidth=1)
    ax.scatter(runs["l0_share"], runs["loss"], color=COLOURS[0], marker="o", label="coefficient alone")
    marks = {"warmup": "^", "reinit": "v", "warmup-reinit": "D"}
    for place, (name, marker) in enumerate(marks.items()):
        run = sweep[sweep["name"] == name] if "name" in sweep.columns else sweep.iloc[:0]
        if not run.empty:
            label = f"{float(run['l1'].iloc[0]):g} with {name.replace('-', ' and ')}"
            ax.scatter(run["l0_share"], run["loss"], marker=marker, s=60, color=COLOURS[place + 1], label=label)
    for place, row in enumerate(table.itertuples()):
        # Below and above in turn: the small coefficients lie close together.
        offset = (8, 8) if place % 2 else (-4, -16)
        ax.annotate(f"{row.l1:g}", (row.l0_share, row.loss), textcoords="offset points", xytext=offset, fontsize=9)
    ax.margins(y=0.12)
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(percent)
    ax.set(xlabel="active neurons of a token, share of all", ylabel="held-out loss (nats)")
    grid(ax)
    legend(ax)
    return ax


def describe_sparsity_by_coefficient(sweep: pd.DataFrame) -> str:
    """Alternative text."""
    table = by_coefficient(sweep)
    points = ", ".join(
        f"{row.l1:g}: {row.l0_share:.2%} active, {row.dead_share:.0%} dead" for row in table.itertuples()
    )
    return f"Active and dead neurons by L1 coefficient, means over seeds. {points}."


def describe_loss_by_sparsity(sweep: pd.DataFrame) -> str:
    """Alternative text."""
    table = by_coefficient(sweep)
    points = ", ".join(f"{row.l1:g}: {row.loss:.2f} at {row.l0_share:.2%}" for row in table.itertuples())
    return f"Held-out loss in nats against the share of active neurons, by L1 coefficient. {points}."
