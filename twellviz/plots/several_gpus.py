"""Pictures of training on several GPUs: who keeps which rows when, and what fills the memory.

Letters: L layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from twellviz.errors import ConfigError
from twellviz.plots.style import PALETTE, axes_or_new, grid, legend
from twellviz.training.estimate import PARTS, Step, memory
from twellviz.training.shards import rows

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c8c8c")
_HATCHES = ("", "//", "", "..", "", "\\\\", "")


def sharding_table(n_layers: int, gpus: int, *, n_rows: int = 12) -> pd.DataFrame:
    """Which rows of each layer's weights lie on which GPU, moment by moment of a step.

    Parameters
    ----------
    n_layers : int
        L.
    gpus : int
    n_rows : int
        Rows of a weight.

    Returns
    -------
    DataFrame
        ``moment`` (name), ``gpu``, ``layer``, ``first`` and ``last`` (rows kept always), ``gathered`` (whether the
        others' rows are there too).

    Raises
    ------
    ConfigError
        A number is below 1.
    """
    for name, number in (("n_layers", n_layers), ("gpus", gpus), ("n_rows", n_rows)):
        if number < 1:
            raise ConfigError(f"{name}={number}: at least 1 is needed")
    moments: list[tuple[str, int | None]] = [("at rest", None)]
    moments += [(f"forward {layer}", layer) for layer in range(n_layers)]
    moments += [(f"backward {layer}", layer) for layer in reversed(range(n_layers))]
    moments.append(("update", None))
    records = []
    for moment, running in moments:
        for gpu in range(gpus):
            own = rows(n_rows, gpus, gpu)
            records += [(moment, gpu, layer, own.start, own.stop, layer == running) for layer in range(n_layers)]
    return pd.DataFrame(records, columns=["moment", "gpu", "layer", "first", "last", "gathered"])


def sharding(n_layers: int, gpus: int, *, ax: Axes | None = None) -> Axes:
    """A step on several GPUs: a column for each moment, a strip for each GPU, a bar for each layer's weights.

    Filled is what a GPU keeps, hatched what it has gathered from the others while the layer runs, empty what it does
    not hold.

    Parameters
    ----------
    n_layers, gpus : int
        L and the number of GPUs.
    ax : Axes, optional

    Returns
    -------
    Axes

    Raises
    ------
    ConfigError
    """
    n_rows = 12
    table = sharding_table(n_layers, gpus, n_rows=n_rows)
    moments = list(dict.fromkeys(table["moment"]))
    ax = axes_or_new(ax, (1.15 * len(moments) + 1, 0.35 * n_layers * gpus + 1.2))
    height = n_layers + 1
    row: Any  # pandas' stubs know nothing of the columns
    for row in table.itertuples():
        x, y = moments.index(str(row.moment)), row.gpu * height + row.layer
        colour = PALETTE["series"][row.gpu % len(PALETTE["series"])]
        if row.gathered:
            ax.add_patch(Rectangle((x + 0.1, y), 0.8, 0.8, facecolor=PALETTE["faint"], hatch="///", linewidth=0))
        start, width = x + 0.1 + 0.8 * row.first / n_rows, 0.8 * (row.last - row.first) / n_rows
        ax.add_patch(Rectangle((start, y), width, 0.8, facecolor=colour, linewidth=0))
        ax.add_patch(Rectangle((x + 0.1, y), 0.8, 0.8, fill=False, edgecolor=PALETTE["muted"], linewidth=0.8))
    places = [
        (gpu * height + layer + 0.4, f"GPU {gpu}, layer {layer}") for gpu in range(gpus) for layer in range(n_layers)
    ]
    ax.set_yticks([place for place, _ in places], [text for _, text in places])
    ax.set_xticks([place + 0.5 for place in range(len(moments))], moments)
    ax.set(xlim=(0, len(moments)), ylim=(gpus * height - 1, -0.3), title="Rows of the weights on each GPU")
    for spine in ax.spines.values():
        spine.set_visible(False)
    ax.tick_params(length=0)
    return ax


def memory_table(steps: Mapping[str, Step]) -> pd.DataFrame:
    """Bytes of each part at the fullest moment, one row a step.

    Parameters
    ----------
    steps : mapping of name to Step

    Returns
    -------
    DataFrame
        Index: the names; columns: the parts, then ``sum`` and ``moment``.

    Raises
    ------
    ConfigError
        There is none.
    """
    if not steps:
        raise ConfigError("steps is empty: give at least one step to estimate")
    found = {name: memory(step) for name, step in steps.items()}
    return pd.DataFrame(
        [{**m.moments[m.fullest], "sum": m.peak, "moment": m.fullest} for m in found.values()], index=list(found)
    )


def memory_parts(steps: Mapping[str, Step], *, limit: float | None = None, ax: Axes | None = None) -> Axes:
    """What fills a GPU at the fullest moment of a step, part by part; a bar for each step.

    Parameters
    ----------
    steps : mapping of name to Step
    limit : float, optional
        Bytes of the GPU, as a line.
    ax : Axes, optional

    Returns
    -------
    Axes

    Raises
    ------
    ConfigError
    """
    table = memory_table(steps)
    ax = axes_or_new(ax, (8, 0.42 * len(table) + 1.6))
    left = pd.Series(0.0, index=table.index)
    for part, colour, hatch in zip(PARTS, _COLOURS, _HATCHES, strict=True):
        width = table[part] / 1e9
        if width.any():
            ax.barh(
                table.index, width, left=left, color=colour, hatch=hatch, edgecolor=PALETTE["ground"], label=part,
                linewidth=0.6,
            )  # fmt: skip
        left += width
    if limit is not None:
        ax.axvline(limit / 1e9, color=PALETTE["ink"], linestyle="--", label=f"{limit / 1e9:.0f} GB")
    ax.invert_yaxis()
    ax.set(xlabel="GB", title="Memory of a GPU at the fullest moment of a step")
    grid(ax, "x")
    legend(ax, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return ax


def describe_sharding(n_layers: int, *, gpus: int) -> str:
    """What :func:`sharding` shows, in a sentence."""
    return (
        f"{gpus} GPUs keep 1/{gpus} of the rows of each of {n_layers} layers at all times; while a layer runs, forward "
        "or backward, and only then, each holds all its rows."
    )


def describe_memory_parts(steps: Mapping[str, Step], *, limit: float | None = None) -> str:
    """What :func:`memory_parts` shows, in a sentence."""
    table = memory_table(steps)
    text = "; ".join(f"{name} {row['sum'] / 1e9:.0f} GB" for name, row in table.iterrows())
    return f"Memory at the fullest moment: {text}" + ("." if limit is None else f"; the GPU has {limit / 1e9:.0f} GB.")
