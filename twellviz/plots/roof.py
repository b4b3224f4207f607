"""The roofline of a machine, and where pieces of work stand under it. Letters: none."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from twellviz.bench.roofline import Machine, Work
from twellviz.errors import ConfigError
from twellviz.plots.style import MARKERS, PALETTE, axes_or_new, grid, legend, literal

MAX_WORKS = len(MARKERS)


def roofline_table(works: Sequence[Work], *, machine: Machine) -> pd.DataFrame:
    """Where each piece of work stands under the roof.

    Parameters
    ----------
    works : sequence of Work
    machine : Machine

    Returns
    -------
    DataFrame
        ``work, flop, bytes, intensity`` (operations a byte), ``limit`` (``memory`` or ``arithmetic``),
        ``attainable`` (operations a second), ``least_ms``, and ``reached`` (operations a second, NaN where nothing
        was measured).

    Raises
    ------
    ConfigError
        There is no work, or something else than Work.
    """
    checked = _checked(works, len(works))
    return pd.DataFrame(
        {
            "work": [work.name for work in checked],
            "flop": [work.flop for work in checked],
            "bytes": [work.n_bytes for work in checked],
            "intensity": [work.intensity for work in checked],
            "limit": ["memory" if work.intensity < machine.ridge else "arithmetic" for work in checked],
            "attainable": [machine.attainable(work.intensity) for work in checked],
            "least_ms": [1e3 * machine.seconds(work) for work in checked],
            "reached": [work.flop / work.seconds if work.seconds else float("nan") for work in checked],
        }
    )


def roofline(works: Sequence[Work], *, machine: Machine, ax: Axes | None = None) -> Axes:
    """Draw operations a second over operations a byte: the roof, and each piece of work on it, or below if measured.

    Parameters
    ----------
    works : sequence of Work
        At most six.
    machine : Machine
    ax : Axes, optional

    Returns
    -------
    Axes

    Raises
    ------
    ConfigError
        As :func:`roofline_table`, or too many to tell apart.
    """
    table = roofline_table(_checked(works, MAX_WORKS), machine=machine)
    ax = axes_or_new(ax, (8.5, 3.8))
    left = min(table["intensity"].min(), machine.ridge) / 4
    right = max(table["intensity"].max(), machine.ridge) * 4
    roof = [left, machine.ridge, right]
    ax.plot(roof, [machine.attainable(x) for x in roof], color=PALETTE["ink"], linewidth=1.8)
    ax.axvline(machine.ridge, color=PALETTE["faint"], linestyle=":", linewidth=1.2)
    for place, row in enumerate(table.to_dict("records")):
        color, measured = PALETTE["series"][place], row["reached"] == row["reached"]
        height = row["reached"] if measured else row["attainable"]
        ax.plot(
            row["intensity"],
            height,
            MARKERS[place],
            color=color,
            markersize=13 - 1.5 * place,  # two that stand in one place must both be seen
            markerfacecolor=color if measured else PALETTE["ground"],
            markeredgewidth=2,
            label=f"{row['work']} ({_few(row['intensity'])})",
        )
        if measured:
            ax.vlines(row["intensity"], height, row["attainable"], color=color, linewidth=1, linestyle="--")
    ax.set(xscale="log", yscale="log", xlim=(left, right))
    ax.set_ylim(0.3 * min(table["attainable"].min(), table["reached"].min()), 2.5 * machine.flops)
    ax.set(xlabel="operations a byte (in brackets)", ylabel="operations a second")
    literal(ax.set_title(f"{machine.name}: ridge at {_few(machine.ridge)} operations a byte", fontsize=11))
    middle = ax.get_ylim()[0] * 1.15
    literal(ax.text(machine.ridge / 1.15, middle, "memory is the limit", ha="right", color=PALETTE["muted"]))
    literal(ax.text(machine.ridge * 1.15, middle, "arithmetic is", ha="left", color=PALETTE["muted"]))
    grid(ax)
    legend(ax, loc="center left", bbox_to_anchor=(1.01, 0.5))
    shown = ax.get_legend()
    literal(*(shown.get_texts() if shown else ()))
    return ax


def describe_roofline(works: Sequence[Work], *, machine: Machine) -> str:
    """Alternative text of :func:`roofline`."""
    parts = [
        f"{row['work']} has {_few(row['intensity'])} operations a byte and is limited by {row['limit']}"
        + (f", it reached {row['reached'] / row['attainable']:.0%} of the roof" if row["reached"] > 0 else "")
        for row in roofline_table(works, machine=machine).to_dict("records")
    ]
    return f"Roofline of {machine.name}, ridge at {_few(machine.ridge)} operations a byte. {'; '.join(parts)}."


def _few(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.2g}"


def _checked(works: Sequence[Work], most: int) -> Sequence[Work]:
    if isinstance(works, Work) or not all(isinstance(work, Work) for work in works):
        raise ConfigError("works: give a sequence of twellviz.bench.Work")
    if not 1 <= len(works) <= most:
        raise ConfigError(f"works has {len(works)} pieces of work: 1 to {MAX_WORKS} can be told apart in one picture")
    return works
