"""The numbers of one view, and the four forms made from them: for the canvas, a figure, a table, words.

Letters: R rows, C columns.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from twellviz.traces.labels import shorten

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_MAX_TICKS = 48


@dataclass(frozen=True, eq=False)
class Grid:
    """Cells in rows and columns, coloured by value.

    Attributes
    ----------
    title, unit : str
    values_RC : float32 [R, C]
        NaN is drawn grey.
    rows : list of str
        Labels of the rows.
    cols : list of str
        Labels of the columns, "" where a column has none; not escaped.
    row_name, col_name : str
        What a row and a column is.
    first : int
        Number of the first column.
    scale : {"log", "linear", "diverging"}
    breaks : list of int
        Columns that begin a sequence, from 0.
    notice : str
        What is left out.
    edit : bool
        A click turns a cell over.
    """

    title: str
    unit: str
    values_RC: npt.NDArray[np.float32]
    rows: list[str]
    cols: list[str]
    row_name: str = "layer"
    col_name: str = "token"
    first: int = 0
    scale: str = "log"
    breaks: tuple[int, ...] = ()
    notice: str = ""
    edit: bool = False

    @property
    def limits(self) -> tuple[float, float]:
        """Smallest and largest finite value; a scale of no extent is widened by 1."""
        known = self.values_RC[np.isfinite(self.values_RC)]
        low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
        return low, high if high > low else low + 1

    def spec(self) -> dict[str, Any]:
        """Everything but the values, for the canvas."""
        low, high = self.limits
        return {
            "kind": "grid",
            "title": self.title,
            "unit": self.unit,
            "rows": self.rows,
            "cols": self.cols,
            "row_name": self.row_name,
            "col_name": self.col_name,
            "first": self.first,
            "scale": self.scale,
            "low": low,
            "high": high,
            "breaks": list(self.breaks),
            "notice": self.notice,
            "edit": self.edit,
        }

    def values(self) -> npt.NDArray[np.float32]:
        """The values, row by row."""
        return np.ascontiguousarray(self.values_RC, np.float32).ravel()

    def table(self) -> pd.DataFrame:
        """One row a row, one column a column."""
        import pandas as pd

        columns = pd.RangeIndex(self.first, self.first + len(self.cols), name=self.col_name)
        return pd.DataFrame(self.values_RC, index=pd.Index(self.rows, name=self.row_name), columns=columns)

    def figure(self, ax: Axes | None = None, mark: tuple[int, int] | None = None) -> Axes:
        """Draw the cells; ``mark`` frames a (row, column), the column counted from ``first``."""
        from matplotlib import colors
        from matplotlib.patches import Rectangle

        from twellviz.plots.style import PALETTE, axes_or_new, drawable, literal, spread

        ax = axes_or_new(ax, (10, 1.8 + 0.16 * len(self.rows)))
        low, high = self.limits
        edge = max(abs(low), abs(high))
        norm: Any = {
            "log": colors.FuncNorm((np.log1p, np.expm1), vmin=low, vmax=high),
            "linear": colors.Normalize(low, high),
            "diverging": colors.Normalize(-edge, edge),
        }[self.scale]
        image = ax.imshow(
            self.values_RC,
            aspect="auto",
            interpolation="nearest",
            cmap="PuOr_r" if self.scale == "diverging" else "cividis",
            norm=norm,
            extent=(self.first - 0.5, self.first + len(self.cols) - 0.5, len(self.rows) - 0.5, -0.5),
        )
        figure = ax.get_figure(root=True)
        if figure is not None:
            figure.colorbar(image, ax=ax, label=self.unit, pad=0.02)
        for place in self.breaks:
            ax.axvline(self.first + place - 0.5, color=PALETTE["ground"], linewidth=1)
        if mark is not None:
            for color, width in ((PALETTE["ground"], 4.0), (PALETTE["accent"], 2.0)):
                corner = (mark[1] - 0.5, mark[0] - 0.5)
                ax.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=color, linewidth=width, zorder=5))
        shown = spread(len(self.rows), 14)
        labels = ax.set_yticks(shown, [shorten(self.rows[row], 14) for row in shown], parse_math=False)
        if any(self.cols) and len(self.cols) <= _MAX_TICKS:
            texts = [shorten(drawable(shorten(label, 14)), 22) for label in self.cols]
            places = range(self.first, self.first + len(texts))
            labels = ax.set_xticks(places, texts, rotation=90, fontsize=7, parse_math=False)
            literal(*ax.get_xticklabels())
        del labels
        ax.set(xlabel=self.col_name, ylabel=self.row_name)
        ax.set_title(self.title, fontsize=10, parse_math=False)
        return ax

    def describe(self) -> str:
        """The picture in a sentence."""
        low, high = self.limits
        return (
            f"{self.title}: {len(self.rows)} rows ({self.row_name}) by {len(self.cols)} columns ({self.col_name}), "
            f"from {low:.4g} to {high:.4g} {self.unit}"
        )


@dataclass(frozen=True, eq=False)
class Line:
    """One line: its name and its points."""

    name: str
    x: npt.NDArray[Any]
    y: npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Lines:
    """Lines on two axes.

    Attributes
    ----------
    title, x_name, y_name : str
    lines : tuple of Line
    log_x, log_y : bool
    whole_x : bool
        x counts something.
    chooses : bool
        A click on the picture chooses the layer ``x``.
    notice : str
    """

    title: str
    x_name: str
    y_name: str
    lines: tuple[Line, ...]
    log_x: bool = False
    log_y: bool = False
    whole_x: bool = True
    chooses: bool = False
    notice: str = ""

    def spec(self) -> dict[str, Any]:
        """Everything but the points, for the canvas."""
        return {
            "kind": "lines",
            "title": self.title,
            "x_name": self.x_name,
            "y_name": self.y_name,
            "lines": [{"name": line.name, "n": len(line.x)} for line in self.lines],
            "log_x": self.log_x,
            "log_y": self.log_y,
            "whole_x": self.whole_x,
            "chooses": self.chooses,
            "notice": self.notice,
        }

    def values(self) -> npt.NDArray[np.float32]:
        """x, then y, of each line."""
        parts = [np.asarray(part, np.float32) for line in self.lines for part in (line.x, line.y)]
        return np.concatenate(parts) if parts else np.empty(0, np.float32)

    def table(self) -> pd.DataFrame:
        """Long form: line, x, y."""
        import pandas as pd

        return pd.DataFrame(
            {
                "line": np.repeat([line.name for line in self.lines], [len(line.x) for line in self.lines]),
                self.x_name: np.concatenate([np.asarray(line.x) for line in self.lines]),
                self.y_name: np.concatenate([np.asarray(line.y) for line in self.lines]),
            }
        )

    def figure(self, ax: Axes | None = None, mark: tuple[int, int] | None = None) -> Axes:
        """Draw the lines; ``mark`` is not drawn."""
        from matplotlib.ticker import FuncFormatter

        from twellviz.plots.style import DASHES, MARKERS, PALETTE, axes_or_new, grid, legend

        ax = axes_or_new(ax, (7.5, 3.2))
        for place, line in enumerate(self.lines):
            dash = DASHES[place % len(DASHES)]
            ax.plot(
                line.x,
                line.y,
                label=line.name,
                color=PALETTE["series"][place % len(PALETTE["series"])],
                linestyle=(0, dash) if dash else "-",
                marker=MARKERS[place % len(MARKERS)] if len(line.x) <= 64 else None,
                markersize=5,
            )
        if self.log_x:
            ax.set_xscale("log", base=2)
            ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        known = np.concatenate([np.asarray(line.y, float) for line in self.lines]) if self.lines else np.empty(0)
        if self.log_y and (known > 0).any():
            ax.set_yscale("log")
        grid(ax)
        ax.set(xlabel=self.x_name, ylabel=self.y_name)
        ax.set_title(self.title, fontsize=10, parse_math=False)
        legend(ax, loc="center left", bbox_to_anchor=(1.01, 0.5))
        return ax

    def describe(self) -> str:
        """The picture in a sentence."""
        parts = [f"{line.name} from {line.y[0]:.4g} to {line.y[-1]:.4g}" for line in self.lines if len(line.y)]
        return f"{self.title}, by {self.x_name}: {'; '.join(parts)}"


class ChartData(Protocol):
    """What every view's numbers can become."""

    def spec(self) -> dict[str, Any]: ...
    def values(self) -> npt.NDArray[np.float32]: ...
    def table(self) -> pd.DataFrame: ...
    def figure(self, ax: Axes | None = None, mark: tuple[int, int] | None = None) -> Axes: ...
    def describe(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def notice(self) -> str: ...


def json_bytes(spec: dict[str, Any]) -> bytes:
    """A spec as the canvas reads it. Lone surrogates, which UTF-8 has no bytes for, become question marks."""
    return json.dumps(spec, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode("utf-8", "replace")
