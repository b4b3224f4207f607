"""Draw or type a small matrix and see how each format lays it out.

Letters: M tokens, H hidden width.
"""

from __future__ import annotations

import os
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from twell.formats import ELL, Hybrid, TileUnion, TwELL

from twellviz.errors import ConfigError
from twellviz.explorers.canvas import CanvasView
from twellviz.explorers.chart import bundle_of
from twellviz.explorers.charts import Grid
from twellviz.explorers.export import PAGES, Shown, ending_of, write_charts, write_picture
from twellviz.explorers.markup import BORDER, FOREGROUND

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

MAX_ROWS, MAX_COLUMNS = 16, 512
EXAMPLE = "0 3 0 0 1 0 0 2\n0 0 0 0 0 0 0 5\n1 2 3 4 5 6 7 8\n0 0 0 0 0 0 0 0"
_LABEL = "text-align:left;padding-right:8px;font-weight:normal;white-space:nowrap"
COLUMNS = ["format", "bytes", "share of dense", "entries", "padding", "overflow", "lost", "how"]


class LayoutExplorer:
    """A small matrix and its formats; made by :func:`explore_layouts`.

    Attributes
    ----------
    matrix : ipywidgets.Textarea
        The numbers, a row a line.
    width, compression, block : ipywidgets widgets
        Slots of an ELL or Hybrid row; 8, 4 or 2 of TwELL; tokens of a TileUnion block.
    h : Tensor, float32 [M, H]
        The matrix that is shown.
    """

    def __init__(self, h_MH: Tensor) -> None:
        import ipywidgets as widgets

        self.h = h_MH
        fits = int((h_MH > 0).sum(1).max())
        self.width = widgets.BoundedIntText(max(1, fits), 1, MAX_COLUMNS, description="ELL width")
        self.compression = widgets.Dropdown(options=[8, 4, 2], description="TwELL C")
        self.block = widgets.Dropdown(options=[1, 2, 4, 8, 16], value=2, description="block B")
        self.matrix = widgets.Textarea(
            text_of(h_MH),
            rows=min(MAX_ROWS, len(h_MH) + 1),
            description="matrix",
            continuous_update=False,
            layout=widgets.Layout(width="min(100%, 44em)"),
        )
        self.said = widgets.HTML()
        self._canvas = CanvasView()
        self._formats = widgets.HTML(layout=widgets.Layout(width="100%", overflow="auto"))
        controls = widgets.HBox([self.width, self.compression, self.block], layout=widgets.Layout(flex_flow="row wrap"))
        self._box = widgets.VBox([controls, self._canvas, self.matrix, self.said, self._formats])
        self._canvas.show(self._grid(), 0, 0)
        self._draw()
        self.matrix.observe(self._typed, names="value")
        for control in (self.width, self.compression, self.block):
            control.observe(self._draw, names="value")
        self._canvas.on_msg(self._turned)

    @property
    def packed(self) -> dict[str, ELL | Hybrid | TwELL | TileUnion]:
        """The matrix in each format, with the settings of the controls."""
        width, block = int(self.width.value), int(self.block.value)
        return {
            "ELL": ELL.from_dense(self.h, width=width, overflow="clip"),
            "Hybrid": Hybrid.from_dense(self.h, width=width),
            "TwELL": TwELL.from_dense(self.h, compression=int(self.compression.value)),
            "TileUnion": TileUnion.from_dense(self.h, block=block),
        }

    def table(self) -> pd.DataFrame:
        """One row a format: bytes, share of dense, entries, padding slots, overflow, lost entries, how it is laid out.

        Overflow is what does not fit into the regular part: rows for ELL and Hybrid, tiles for TwELL. ELL alone loses
        the entries of it.
        """
        import pandas as pd

        return pd.DataFrame(self._rows(), columns=COLUMNS)

    def figure(self, *, ax: Axes | None = None) -> Axes:
        """Bytes of each format as bars, beside the dense matrix."""
        from twellviz.plots.style import PALETTE, axes_or_new, grid

        ax = axes_or_new(ax, (7.5, 2.8))
        rows = self._rows()
        bars = ax.barh([row[0] for row in rows], [row[1] for row in rows], color=PALETTE["series"][0])
        ax.bar_label(bars, [f" {row[1]} B" for row in rows])
        grid(ax, "x")
        ax.invert_yaxis()
        ax.margins(x=0.15)
        ax.set(xlabel="bytes", title=f"A matrix of {self.h.shape[0]} tokens by {self.h.shape[1]} neurons")
        return ax

    def layouts(self) -> Any:
        """All slots of every format as one figure, by :func:`twellviz.plots.compare_layouts`."""
        from twellviz.plots import compare_layouts

        return compare_layouts([self.h, *self.packed.values()], max_rows=MAX_ROWS)

    def summary(self) -> str:
        """The table as text."""
        return "\n".join(
            f"{name:9s} {size:6d} B, {share:.2f} of dense; {entries} entries, {padding} padding, {overflow} overflow, "
            f"{lost} lost; {how}"
            for name, size, share, entries, padding, overflow, lost, how in self._rows()
        )

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a page that works offline (``.html``), or the bars as a picture (``.png``, ``.svg``)."""
        if ending_of(path) not in PAGES:
            return write_picture(self.figure(), path)
        return write_charts(
            [Shown(self._grid(edit=False))],
            path,
            title="Layouts of a small matrix",
            about=f"{self.h.shape[0]} tokens by {self.h.shape[1]} neurons.",
            left_out="This page shows the matrix as it was; only a notebook packs another one.",
            markup=self._formats.value,
        )

    def close(self) -> None:
        """Take the view off the page and give its memory back."""
        for widget in (self.matrix, self.width, self.compression, self.block, self._canvas, self._formats, self._box):
            widget.unobserve_all()
            widget.close()
        self._canvas.spec = self._canvas.values = b""

    def __repr__(self) -> str:
        return (
            f"LayoutExplorer of {self.h.shape[0]} tokens by {self.h.shape[1]} neurons, {int((self.h > 0).sum())} active"
        )

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return bundle_of(self._box, self.figure(), repr(self), self.summary())

    def _rows(self) -> list[tuple[Any, ...]]:
        from twellviz.plots import slots

        M, H = self.h.shape
        dense = M * H * self.h.element_size()
        active = int((self.h > 0).sum())
        rows: list[tuple[Any, ...]] = [("dense", dense, 1.0, active, M * H - active, 0, 0, "every value is stored")]
        for name, packed in self.packed.items():
            size = packed.byte_counts()["total"]
            layout = slots.read(packed, max_rows=MAX_ROWS)
            kept, overflow, lost = layout.n_active, 0, 0
            if isinstance(packed, TwELL):
                overflow = packed.spill_tile.numel()
            elif isinstance(packed, Hybrid):
                overflow = packed.n_backup
            elif isinstance(packed, ELL):
                lost = packed.clipped.entries if packed.clipped else 0
                kept, overflow = active - lost, int(((self.h > 0).sum(1) > packed.width).sum())
            padding = layout.n_slots - layout.n_filled
            rows.append((name, size, size / dense, kept, padding, overflow, lost, layout.says))
        return rows

    def _grid(self, *, edit: bool = True) -> Grid:
        M, H = self.h.shape
        return Grid(
            title="The matrix" + (": click, or press Enter, to turn a cell over" if edit else ""),
            unit="value",
            values_RC=self.h.numpy(),
            rows=[str(row) for row in range(M)],
            cols=[""] * H,
            row_name="token",
            col_name="neuron",
            scale="linear",
            edit=edit,
        )

    def _typed(self, change: dict[str, Any]) -> None:
        try:
            self.h = parsed(change["new"])
        except ConfigError as error:
            self.said.value = f'<p role="alert" style="color:{FOREGROUND}">{escape(str(error))}</p>'
            return
        self.said.value = ""
        self._canvas.show(self._grid(), 0, 0)
        self._draw()

    def _turned(self, _: Any, message: Any, __: Any) -> None:
        row, column = (message.get(name) for name in ("row", "col"))
        M, H = self.h.shape
        if not (isinstance(row, int) and isinstance(column, int) and 0 <= row < M and 0 <= column < H):
            return
        turned = self.h.clone()
        turned[row, column] = 0.0 if turned[row, column] > 0 else 1.0
        self.h = turned
        self._canvas.show(self._grid(), row, column)
        self.matrix.unobserve(self._typed, names="value")
        self.matrix.value = text_of(turned)
        self.matrix.observe(self._typed, names="value")
        self._draw()

    def _draw(self, _: Any = None) -> None:
        cell = f'style="border-bottom:1px solid {BORDER};padding:2px 10px;text-align:left"'
        heads = "".join(f'<th scope="col" {cell}>{escape(head)}</th>' for head in COLUMNS)
        body = "".join(
            f'<tr><th scope="row" {cell}>{name}</th>'
            + "".join(f"<td {cell}>{value}</td>" for value in (size, f"{share:.2f}", *rest[:-1], escape(rest[-1])))
            + "</tr>"
            for name, size, share, *rest in self._rows()
        )
        self._formats.value = (
            f'<div style="overflow-x:auto;color:{FOREGROUND}"><table style="border-collapse:collapse"><caption '
            f'style="text-align:left">The same matrix in each format</caption><thead><tr>{heads}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
            + "".join(_slots_html(name, packed) for name, packed in self.packed.items())
        )


def explore_layouts(matrix: Any = EXAMPLE) -> LayoutExplorer:
    """Draw or type a small matrix and see ELL, Hybrid, TwELL and TileUnion change, with their bytes.

    Parameters
    ----------
    matrix : str, or float [M, H]
        Numbers, a row a line; or an array. At most 16 tokens of 512 neurons. A value ``<= 0`` is inactive.

    Raises
    ------
    ConfigError
        It is no matrix of finite numbers of that size.

    Examples
    --------
    >>> explorer = explore_layouts("0 1 0 2\\n3 0 0 0")
    >>> explorer
    LayoutExplorer of 2 tokens by 4 neurons, 3 active
    >>> explorer.table().set_index("format").loc["ELL", "padding"]
    np.int64(1)
    """
    return LayoutExplorer(parsed(matrix))


def parsed(matrix: Any) -> Tensor:
    """The matrix as a tensor, float32 [M, H]."""
    if isinstance(matrix, str):
        lines = [line.replace(",", " ").replace(";", " ").split() for line in matrix.splitlines() if line.strip()]
        widths = {len(line) for line in lines}
        if len(widths) != 1:
            raise ConfigError(f"the rows have {sorted(widths)} numbers: every row needs as many")
        try:
            matrix = np.array([[float(number) for number in line] for line in lines])
        except ValueError as error:
            raise ConfigError(f"{error}: write numbers, a row a line") from None
    h_MH = torch.as_tensor(matrix).detach().cpu().float()
    if h_MH.ndim != 2 or not 1 <= h_MH.shape[0] <= MAX_ROWS or not 1 <= h_MH.shape[1] <= MAX_COLUMNS:
        raise ConfigError(f"the matrix is {tuple(h_MH.shape)}: 1 to {MAX_ROWS} rows of 1 to {MAX_COLUMNS} numbers fit")
    if not torch.isfinite(h_MH).all():
        raise ConfigError("the matrix holds a value that is not finite")
    return h_MH.contiguous()


def text_of(h_MH: Tensor) -> str:
    """The matrix as it is typed."""
    return "\n".join(" ".join(f"{value:g}" for value in row) for row in h_MH.tolist())


def _slots_html(name: str, packed: Any) -> str:
    """The buffers of a format, slot by slot."""
    from twellviz.plots import slots

    cell = f"border:1px solid {BORDER};padding:1px 5px;min-width:1.6em;text-align:center"
    lines = [
        (line.label, [(_slot_text(slot), slot.kind) for slot in line.slots[: slots.MAX_SLOTS]])
        for line in slots.read(packed, max_rows=MAX_ROWS).lines
    ]
    faces = {
        "count": "#7d7c78",
        "neuron": "#7d7c78",
        "entry": "#0072b2",
        "superseded": "#a8558a",
        "not finite": "#d55e00",
    }
    body = "".join(
        f'<tr><th scope="row" style="{_LABEL}">{escape(label)}</th>'
        + "".join(
            f'<td title="{escape(kind)}" style="{cell}'
            + (f";background:{faces[kind]};color:#fff" if kind in faces else ";opacity:.6")
            + f'">{escape(text)}</td>'
            for text, kind in entries
        )
        + "</tr>"
        for label, entries in lines
    )
    heads = "neurons" if isinstance(packed, TileUnion) else "counts"
    return (
        f'<div style="overflow-x:auto;color:{FOREGROUND}"><table style="border-collapse:collapse;font:12px monospace;'
        f'margin-top:8px"><caption style="text-align:left;white-space:nowrap">'
        f"{name}: each slot in memory, column:value; grey {heads}, pale padding</caption>{body}</table></div>"
    )


def _slot_text(slot: Any) -> str:
    if slot.kind in ("count", "neuron"):
        return f"{slot.value:g}"
    if slot.kind == "padding":
        return "·"
    return f"{slot.column}:{slot.value:g}" if slot.kind in ("entry", "superseded") else f"{slot.value:g}"
