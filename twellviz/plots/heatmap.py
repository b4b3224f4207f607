"""Active neurons of every token in every layer, as a picture.

Letters: L layers, M tokens, C drawn columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import colors
from matplotlib.axes import Axes

from twellviz.errors import ConfigError
from twellviz.plots.style import PALETTE, axes_or_new, drawable, literal, require_trace
from twellviz.traces.labels import shorten
from twellviz.traces.trace import Trace

MAX_COLUMNS = 512
"""Columns that a screen can still show apart; more tokens are averaged in bins."""
_MAX_LABELS = 96


def heatmap_table(trace: Trace, *, start: int = 0, length: int | None = 64) -> pd.DataFrame:
    """Counts of the tokens ``start`` to ``start + length - 1``: one row a layer, one column a token or bin.

    Columns are named by their first token. More than 512 tokens are averaged in bins of equal size.

    Raises
    ------
    ConfigError
        ``start`` or ``length`` is out of range.
    """
    require_trace(trace)
    first, last = _range(trace, start, length)
    size = -(-(last - first) // MAX_COLUMNS)
    edges = np.arange(first, last, size)
    sums_LC = np.add.reduceat(trace.counts_LM[:, :last], edges, axis=1, dtype=np.float64)
    widths_C = np.diff([*edges.tolist(), last])
    return pd.DataFrame(
        sums_LC / widths_C, index=pd.RangeIndex(trace.n_layers, name="layer"), columns=pd.Index(edges, name="token")
    )


def layer_token_heatmap(
    trace: Trace,
    *,
    ax: Axes | None = None,
    start: int = 0,
    length: int | None = 64,
    mark: tuple[int, int] | None = None,
    colorbar: bool = True,
) -> Axes:
    """Colour each layer and token by the number of active neurons, on a logarithmic scale.

    Parameters
    ----------
    trace : Trace
    ax : Axes, optional
    start : int
        First token.
    length : int, optional
        Tokens to show; None for all up to the end. Up to 96 are labelled with their text; more than 512 are averaged
        in bins, whose size the label of the axis gives.
    mark : (layer, token), optional
        Draw a frame around one cell.
    colorbar : bool

    Returns
    -------
    Axes
    """
    table = heatmap_table(trace, start=start, length=length)
    edges = table.columns.to_numpy()
    n_columns, last = edges.size, _range(trace, start, length)[1]
    size = int(edges[1] - edges[0]) if n_columns > 1 else last - int(edges[0])
    ax = axes_or_new(ax, (min(11.0, 4 + 0.11 * n_columns), 2.6 + min(4.0, 0.26 * trace.n_layers)))
    low, top = float(table.to_numpy().min()), float(table.to_numpy().max())
    top = max(top, low + 1)
    sns.heatmap(
        table,
        ax=ax,
        cmap=PALETTE["counts"],
        norm=colors.FuncNorm((np.log1p, np.expm1), vmin=low, vmax=top),
        cbar=colorbar,
        cbar_kws={"label": "active neurons", "ticks": _ticks(low, top), "format": "%.3g", "pad": 0.02},
        xticklabels=False,
        yticklabels=False,
        rasterized=True,
    )
    labels = _label_tokens(ax, trace, edges, size)
    shown_layers = range(0, trace.n_layers, max(1, trace.n_layers // 12))
    ax.set_yticks([layer + 0.5 for layer in shown_layers], [str(layer) for layer in shown_layers], rotation=0)
    for sequence_start in trace.sequence_start[1:-1]:
        if edges[0] < sequence_start < last:
            ax.axvline((sequence_start - edges[0]) / size, color=PALETTE["ground"], linewidth=1.5)
    if mark is not None:
        _frame(ax, trace, mark, edges, size)
    binned = f", mean of {size} tokens a column" if size > 1 else ""
    whole = f"tokens {edges[0]} to {last - 1} of {trace.n_tokens}{binned}"
    ax.set(xlabel=whole if labels else f"token ({whole})", ylabel="layer", title="Active neurons by layer and token")
    return ax


def describe_layer_token_heatmap(
    trace: Trace,
    *,
    start: int = 0,
    length: int | None = 64,
    mark: tuple[int, int] | None = None,
    colorbar: bool = True,
) -> str:
    """What :func:`layer_token_heatmap` shows, in a sentence."""
    table = heatmap_table(trace, start=start, length=length)
    cells = table.to_numpy()
    layer, column = np.unravel_index(int(cells.argmax()), cells.shape)
    token = int(table.columns.to_numpy()[column])
    marked = f" A frame marks layer {mark[0]}, token {mark[1]}." if mark is not None else ""
    return (
        f"Heatmap of {table.shape[0]} layers by {table.shape[1]} columns from token {table.columns[0]} on: from "
        f"{cells.min():.0f} to {cells.max():.0f} active neurons, most in layer {layer} at token {token} "
        f"({trace.label(token)}); the mean is {cells.mean():.1f}.{marked}"
    )


def _range(trace: Trace, start: int, length: int | None) -> tuple[int, int]:
    if isinstance(start, bool) or not isinstance(start, int | np.integer) or not 0 <= start < trace.n_tokens:
        raise ConfigError(f"start={start!r}: this trace has tokens 0 to {trace.n_tokens - 1}")
    if length is None:
        return int(start), trace.n_tokens
    if isinstance(length, bool) or not isinstance(length, int | np.integer) or length < 1:
        raise ConfigError(f"length={length!r}: a whole number of tokens, at least 1, is needed, or None for all")
    return int(start), int(min(start + length, trace.n_tokens))


def _label_tokens(ax: Axes, trace: Trace, edges: Any, size: int) -> bool:
    """Write the tokens' texts below the columns where there is room; whether it did."""
    if size > 1 or edges.size > _MAX_LABELS:
        places = range(0, edges.size, max(1, edges.size // 8))
        ax.set_xticks([place + 0.5 for place in places], [str(edges[place]) for place in places], rotation=0)
        return False
    texts = [shorten(drawable(shorten(trace.label(int(token)), 14)), 22) for token in edges]
    # parse_math before the text is laid out: a lone $ would be read as an unfinished formula.
    ax.set_xticks(np.arange(edges.size) + 0.5, texts, rotation=90, fontsize=7, parse_math=False)
    literal(*ax.get_xticklabels())
    return True


def _frame(ax: Axes, trace: Trace, mark: tuple[int, int], edges: Any, size: int) -> None:
    layer, token = mark
    if not 0 <= layer < trace.n_layers or not 0 <= token < trace.n_tokens:
        raise ConfigError(
            f"mark={mark!r}: layers 0 to {trace.n_layers - 1} and tokens 0 to {trace.n_tokens - 1} can be marked"
        )
    left = (token - int(edges[0])) // size
    if 0 <= left < edges.size:
        for color, width in ((PALETTE["ground"], 3.5), (PALETTE["accent"], 1.8)):
            ax.add_patch(_rectangle(left, layer, color, width))


def _rectangle(left: int, bottom: int, color: str, width: float) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((left, bottom), 1, 1, fill=False, edgecolor=color, linewidth=width, clip_on=False, zorder=5)


def _ticks(low: float, top: float) -> list[float]:
    """Both ends and the round counts between that are clear of them."""
    steps = [float(step * 10**power) for power in range(6) for step in (1, 2, 5)]
    between = [step for step in steps if 1.25 * low + 0.25 < step < 0.85 * top]
    if len(between) > 6:
        between = [step for step in between if f"{step:.0e}".startswith("1")]
    return [low, *between, top]
