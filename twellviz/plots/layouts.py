"""Pictures of a matrix in its layouts, drawn from the real buffers.

Each row of cells is a stretch of a buffer; a cell is one slot. Kinds of slots differ by hatching and label, not by
colour alone, and the column that a slot names is written into it where there is room.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib import colors
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from torch import Tensor
from twell.formats import ELL, Hybrid, TileUnion, TwELL

from twellviz.plots import slots
from twellviz.plots.slots import KINDS, MAX_ROWS, Layout, Line, Slot
from twellviz.plots.style import PALETTE, add_axes, axes_or_new, human_bytes, new_figure

_FORMATS = (ELL, TwELL, Hybrid, TileUnion)
_HATCH = {"padding": "////", "not finite": "...."}
_LINE_INCHES = 0.2
_SMALLEST = 5.0
"""Points below which digits cannot be read."""


def dense_layout(h_MH: Tensor, *, ax: Axes | None = None, max_rows: int = MAX_ROWS) -> Axes:
    """Draw a dense matrix: one cell a value, blank where the neuron is inactive.

    Parameters
    ----------
    h_MH : Tensor or array, floating point [M, H]
    ax : Axes, optional
    max_rows : int
        Tokens to draw, at most 32; the label below the picture says what is left out.

    Returns
    -------
    Axes
    """
    return _single(_read_as("dense", h_MH, max_rows), ax)


def ell_layout(packed: ELL | Tensor, *, ax: Axes | None = None, max_rows: int = MAX_ROWS) -> Axes:
    """Draw ELL: a count and one width of (column, value) slots for every token.

    Parameters
    ----------
    packed : ELL, or Tensor [M, H] to pack
    ax, max_rows
        As for :func:`dense_layout`.
    """
    return _single(_read_as("ELL", packed, max_rows), ax)


def twell_layout(packed: TwELL | Tensor, *, ax: Axes | None = None, max_rows: int = MAX_ROWS) -> Axes:
    """Draw TwELL: for each token and tile of 256 columns a count word and the slots after it, then the spill.

    The tiles of a token are drawn below each other; in memory they follow one another.

    Parameters
    ----------
    packed : TwELL, or Tensor [M, H] to pack
    ax, max_rows
        As for :func:`dense_layout`; at most 4 tiles of a token are drawn.
    """
    return _single(_read_as("TwELL", packed, max_rows), ax)


def hybrid_layout(packed: Hybrid | Tensor, *, ax: Axes | None = None, max_rows: int = MAX_ROWS) -> Axes:
    """Draw Hybrid: ELL rows, and dense backup rows for the tokens that did not fit.

    Parameters
    ----------
    packed : Hybrid, or Tensor [M, H] to pack
    ax, max_rows
        As for :func:`dense_layout`.
    """
    return _single(_read_as("Hybrid", packed, max_rows), ax)


def tile_union_layout(packed: TileUnion | Tensor, *, ax: Axes | None = None, max_rows: int = MAX_ROWS) -> Axes:
    """Draw TileUnion: for each block of tokens the neurons that any of them fires, and a row of values a token.

    Parameters
    ----------
    packed : TileUnion, or Tensor [M, H] to pack
    ax, max_rows
        As for :func:`dense_layout`; at most 64 neurons of a union are drawn.
    """
    return _single(_read_as("TileUnion", packed, max_rows), ax)


def compare_layouts(
    h_MH: Tensor | Sequence[slots.Packed], *, max_rows: int = MAX_ROWS, figsize: tuple[float, float] | None = None
) -> Figure:
    """Draw one matrix in all layouts beside each other, with a bar of the bytes of each.

    Parameters
    ----------
    h_MH : Tensor [M, H], or a sequence of packed forms of one matrix
        A matrix is packed with the default settings of each format.
    max_rows : int
        Tokens to draw, at most 32.
    figsize : (float, float), optional
        Inches; made to fit if not given.

    Returns
    -------
    Figure
    """
    layouts = _read_all(h_MH, max_rows)
    n_lines = [max(2, len(layout.lines)) for layout in layouts]
    # The tallest picture gets a column of its own; the others share the other one.
    tallest = max(range(len(layouts)), key=lambda place: (n_lines[place], place))
    others = [place for place in range(len(layouts)) if place != tallest]
    heights = [n_lines[place] + 5 for place in others]
    tall = max(sum(heights), n_lines[tallest] + 5)
    figure = new_figure(figsize or (14, 1.2 + 0.35 * len(layouts) + _LINE_INCHES * tall))
    outer = figure.add_gridspec(2, 1, height_ratios=[tall, 2 + 2 * len(layouts)])
    inner = outer[0].subgridspec(1, 2 if others else 1)
    places = {}
    if others:
        left = inner[0].subgridspec(len(others), 1, height_ratios=heights)
        places = {place: left[row, 0] for row, place in enumerate(others)}
    # An empty stretch below keeps the lines of a short column as high as the others.
    spare = tall - n_lines[tallest] - 5
    right = inner[-1].subgridspec(
        2 if spare else 1, 1, height_ratios=[n_lines[tallest] + 5, spare][: 2 if spare else 1]
    )
    places[tallest] = right[0, 0]
    norm = colors.Normalize(0, slots.largest_value(layouts))
    drawn = [(add_axes(figure, places[place]), layout) for place, layout in enumerate(layouts)]
    for ax, layout in drawn:
        _draw(ax, layout, norm)
    _draw_bytes(add_axes(figure, outer[1]), layouts)
    _explain(figure, layouts)
    for ax, layout in drawn:
        _write(ax, layout, norm)
    return figure


def describe_layout(name: str, data: Any, max_rows: int = MAX_ROWS) -> str:
    """What a layout's picture shows, in a sentence."""
    return _say(_read_as(name, data, max_rows))


def describe_compare_layouts(
    h_MH: Tensor | Sequence[slots.Packed], *, max_rows: int = MAX_ROWS, figsize: tuple[float, float] | None = None
) -> str:
    """What :func:`compare_layouts` shows, in a sentence for each layout."""
    return " ".join(_say(layout) for layout in _read_all(h_MH, max_rows))


def _say(layout: Layout) -> str:
    M, H = layout.shape
    filled = f", {layout.n_filled / layout.n_slots:.0%} of {layout.n_slots} slots filled" if layout.n_slots else ""
    cut = f" Drawn: {', '.join(layout.notices)}." if layout.notices else ""
    return (
        f"{layout.name} layout of {M} tokens by {H} neurons, {layout.n_active} active{filled}: {layout.says}; "
        f"{human_bytes(layout.sizes['total'])}, {slots.share_of_dense(layout):.2f} of dense.{cut}"
    )


def _read_as(name: str, data: Any, max_rows: int) -> Layout:
    """The layout of packed data, or of a matrix packed with the format's default settings."""
    max_rows = slots.check_rows(max_rows)
    kinds: dict[str, Any] = {kind.__name__: kind for kind in _FORMATS}
    if name == "dense":
        h_MH = data.to_dense() if isinstance(data, _FORMATS) else data
        return slots.read_dense(slots.dense_tensor(h_MH), max_rows=max_rows)
    if not isinstance(data, kinds[name]):
        h_MH = data.to_dense() if isinstance(data, _FORMATS) else slots.dense_tensor(data)
        data = kinds[name].from_dense(h_MH)
    return slots.read(data, max_rows=max_rows)


def _read_all(data: Any, max_rows: int) -> list[Layout]:
    max_rows = slots.check_rows(max_rows)
    if isinstance(data, list | tuple) and data and isinstance(data[0], (Tensor, *_FORMATS)):
        return [
            _read_as("dense", packed, max_rows) if isinstance(packed, Tensor) else slots.read(packed, max_rows=max_rows)
            for packed in data
        ]
    return [_read_as(name, data, max_rows) for name in ("dense", "ELL", "Hybrid", "TwELL")]


def _single(layout: Layout, ax: Axes | None) -> Axes:
    made = ax is None
    ax = axes_or_new(ax, (10, 1.6 + _LINE_INCHES * max(2, len(layout.lines))))
    norm = colors.Normalize(0, slots.largest_value([layout]))
    _draw(ax, layout, norm)
    figure = ax.get_figure(root=True)
    if made and figure is not None:
        _explain(figure, [layout])
    _write(ax, layout, norm)
    return ax


def _width(layout: Layout) -> int:
    """Slots across the picture: those of the packed lines; dense lines are squeezed to the same width."""
    packed = max((len(line.slots) for line in layout.lines if not line.dense), default=0)
    return packed or max((len(line.slots) for line in layout.lines if line.slots), default=1)


def _cell(layout: Layout, line: Line) -> float:
    return _width(layout) / len(line.slots) if line.dense else 1.0


def _draw(ax: Axes, layout: Layout, norm: colors.Normalize) -> None:
    """Draw all lines, without what is written into the slots."""
    lines, width = layout.lines, _width(layout)
    for row, line in enumerate(lines):
        _draw_line(ax, line, row, _cell(layout, line), norm)
        if line.note:
            ax.text(width * 1.008, row + 0.5, line.note, va="center", fontsize=7.5, color=PALETTE["ink"], clip_on=False)
    if not lines:
        ax.text(0.5, 0.5, "no tokens", ha="center", va="center", transform=ax.transAxes, color=PALETTE["ink"])
    ax.set_xlim(0, width)
    ax.set_ylim(max(1, len(lines)), 0)
    ax.set_yticks([row + 0.5 for row in range(len(lines))], [line.label for line in lines], fontsize=7.5)
    ax.set_xticks([])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    relative = "" if layout.name == "dense" else f", {slots.share_of_dense(layout):.2f} of dense"
    ax.set_title(f"{layout.name}: {human_bytes(layout.sizes['total'])}{relative}", loc="left", fontsize=11)
    if layout.notices:
        ax.set_xlabel("drawn: " + "; ".join(layout.notices), fontsize=8, loc="left")


def _draw_line(ax: Axes, line: Line, row: int, cell: float, norm: colors.Normalize) -> None:
    by_kind: dict[str, tuple[list[Rectangle], list[Any]]] = {}
    for place, slot in enumerate(line.slots):
        patches, faces = by_kind.setdefault(slot.kind, ([], []))
        patches.append(Rectangle((place * cell, row + 0.08), cell, 0.84))
        faces.append(_face(slot, norm))
    for kind, (patches, faces) in by_kind.items():
        edge = PALETTE["faint"] if kind in ("padding", "zero") else PALETTE["muted"]
        # Hundreds of narrow cells would be nothing but borders.
        border = 0.5 if len(line.slots) <= slots.MAX_SLOTS + 1 else 0.0
        hatch = _HATCH.get(kind)
        ax.add_collection(
            PatchCollection(
                patches, facecolors=faces, edgecolors=edge, linewidths=border, hatch=hatch, match_original=False
            )
        )
    spilled = any(slot.kind == "superseded" for slot in line.slots)
    if line.dense or spilled:
        style = {"edgecolor": PALETTE["accent" if spilled else "muted"], "linestyle": "--" if spilled else "-"}
        ax.add_patch(
            Rectangle(
                (0, row + 0.08), cell * len(line.slots), 0.84, fill=False, linewidth=1.4 if spilled else 0.7, **style
            )
        )


def _write(ax: Axes, layout: Layout, norm: colors.Normalize) -> None:
    """Write into the slots what they hold, where it is legible at the size that the figure came out at."""
    figure = ax.get_figure(root=True)
    if figure is None:
        return
    figure.draw_without_rendering()
    points = 72 * ax.get_window_extent().width / figure.dpi / _width(layout)
    for row, line in enumerate(layout.lines):
        cell = _cell(layout, line)
        labels = [_label(slot) for slot in line.slots]
        # One size for the line, so that either all its columns are written or none.
        longest = max((len(label) for label in labels), default=0)
        size = min(7.5, points * cell / (0.72 * max(1, longest)))
        for place, (slot, label) in enumerate(zip(line.slots, labels, strict=True)):
            if label and size >= _SMALLEST:
                dark = _luminance(_face(slot, norm)) < 0.4
                ax.text(
                    (place + 0.5) * cell,
                    row + 0.52,
                    label,
                    ha="center",
                    va="center",
                    fontsize=size,
                    color=PALETTE["ground"] if dark else PALETTE["ink"],
                    fontweight="bold" if slot.kind in ("count", "neuron") else "normal",
                )


def _face(slot: Slot, norm: colors.Normalize) -> Any:
    if slot.kind in ("count", "neuron"):
        return PALETTE["ink" if slot.kind == "count" else "muted"]
    if slot.kind == "padding":
        return "white"
    if slot.kind == "zero":
        return "#f4f4f4"
    if slot.kind == "not finite" or not math.isfinite(slot.value):
        return PALETTE["accent"]
    # The lightest part of the scale would look like an empty slot.
    color = mpl.colormaps[PALETTE["values"]](0.15 + 0.85 * float(norm(abs(slot.value))))
    return _pale(color) if slot.kind == "superseded" else color


def _label(slot: Slot) -> str:
    if slot.kind == "count":
        return f"{slot.value:.0f}"
    if slot.kind in ("padding", "zero"):
        return ""
    return f"{'-' if slot.value < 0 else ''}{slot.column}"


def _pale(color: Any) -> Any:
    """The colour mixed with three parts of white."""
    return tuple(0.25 * part + 0.75 for part in colors.to_rgb(color))


def _luminance(color: Any) -> float:
    red, green, blue = colors.to_rgb(color)
    return float(0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2)


def _explain(figure: Figure, layouts: list[Layout]) -> None:
    """A legend of the kinds of slots that were drawn."""
    found = {slot.kind for layout in layouts for line in layout.lines for slot in line.slots}
    faces = {
        "count": PALETTE["ink"],
        "neuron": PALETTE["muted"],
        "entry": mpl.colormaps[PALETTE["values"]](0.6),
        "not finite": PALETTE["accent"],
        "superseded": _pale(mpl.colormaps[PALETTE["values"]](0.6)),
        "padding": "white",
        "zero": "#f4f4f4",
    }
    handles = [
        Patch(
            facecolor=faces[kind],
            edgecolor=PALETTE["accent" if kind == "superseded" else "muted"],
            linestyle="--" if kind == "superseded" else "-",
            hatch=_HATCH.get(kind),
            label=says,
        )
        for kind, says in KINDS.items()
        if kind in found
    ]
    if handles:
        figure.legend(
            handles=handles, loc="outside lower left", ncols=3, fontsize=8, frameon=False, labelcolor=PALETTE["ink"]
        )


def _draw_bytes(ax: Axes, layouts: list[Layout]) -> None:
    """Bars of the bytes, on one scale."""
    table = pd.DataFrame(
        {"name": [layout.name for layout in layouts], "bytes": [layout.sizes["total"] for layout in layouts]}
    )
    ax.barh(table["name"], table["bytes"], color=PALETTE["series"][0], height=0.6)
    for place, layout in enumerate(layouts):
        text = f" {human_bytes(layout.sizes['total'])} ({slots.share_of_dense(layout):.2f} of dense)"
        ax.text(layout.sizes["total"], place, text, va="center", fontsize=8.5, color=PALETTE["ink"])
    ax.invert_yaxis()
    ax.set_xlim(0, 1.18 * max(1, table["bytes"].max()))
    ax.set_xticks([])
    ax.tick_params(length=0)
    ax.spines["bottom"].set_visible(False)
    ax.set_title("Bytes, to scale", loc="left", fontsize=11)
