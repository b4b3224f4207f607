"""Charts as files: a page that needs no network, a PNG, an SVG."""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from twellviz._atomic import write_text_atomically
from twellviz.errors import TraceError
from twellviz.explorers.canvas import module_text, style_text
from twellviz.explorers.charts import ChartData

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_BYTES = 5_000_000
PAGES, PICTURES = (".html", ".htm"), (".png", ".svg")


class Shown(NamedTuple):
    """A chart and what is chosen in it."""

    data: ChartData
    row: int = 0
    col: int = 0


def ending_of(path: str | os.PathLike[str]) -> str:
    """The file's ending, in lower case.

    Raises
    ------
    TraceError
        No page and no picture ends so.
    """
    ending = Path(path).suffix.lower()
    if ending not in PAGES + PICTURES:
        raise TraceError(f"path={os.fspath(path)!r}: a page ends in .html, a picture in .png or .svg")
    return ending


def packed(shown: Shown) -> dict[str, Any]:
    """A chart as a page holds it."""
    values = base64.b64encode(shown.data.values().astype("<f4").tobytes()).decode()
    return {"spec": shown.data.spec(), "values": values, "row": shown.row, "col": shown.col}


def inline(data: Any) -> str:
    """JSON for a script element: "</" would end it and "<!--" open a comment in it. JSON has no NaN: null."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def fill(template: str, **parts: str) -> str:
    """A page's template with ``__NAME__`` replaced, each part once, whatever the other parts hold."""
    pieces = [files("twellviz.explorers").joinpath(template).read_text(encoding="utf-8")]
    for name, text in parts.items():
        mark = f"__{name}__"
        place = next(i for i, piece in enumerate(pieces) if i % 2 == 0 and mark in piece)
        before, after = pieces[place].split(mark)
        pieces[place : place + 1] = [before, text, after]
    return "".join(pieces)


def write_charts(
    charts: Sequence[Shown],
    path: str | os.PathLike[str],
    *,
    title: str,
    about: str = "",
    left_out: str = "",
    markup: str = "",
) -> Path:
    """Write charts as one page.

    Raises
    ------
    TraceError
        The page would pass 5 MB.
    """
    data = {"title": title, "about": about, "left_out": left_out, "charts": [packed(chart) for chart in charts]}
    text = fill(
        "charts.html",
        TITLE=escape(title),
        STYLE=style_text(),
        MARKUP=markup,
        DATA=inline(data),
        MODULE=module_text(),
    )
    size = len(text.encode("utf-8", "replace"))
    if size > MAX_BYTES:
        raise TraceError(f"the page would have {size / 1e6:.1f} MB, over {MAX_BYTES / 1e6:g}: record fewer tokens")
    return write_text_atomically(path, text)


def write_picture(axes: Axes, path: str | os.PathLike[str]) -> Path:
    """Write the figure of ``axes`` as PNG or SVG by the path's ending, and close it."""
    from matplotlib import pyplot as plt

    figure = axes.get_figure(root=True)
    assert figure is not None  # axes made by pyplot always belong to a figure
    path = Path(path)
    try:
        figure.savefig(path, dpi=120, facecolor="white", bbox_inches="tight")
    finally:
        plt.close(figure)
    return path


def png_text(axes: Axes) -> str:
    """The figure of ``axes`` as PNG in base64, for where no widget runs; closes it."""
    from matplotlib import pyplot as plt

    figure = axes.get_figure(root=True)
    assert figure is not None
    buffer = io.BytesIO()
    try:
        figure.savefig(
            buffer, format="png", dpi=70, facecolor="white", bbox_inches="tight", metadata={"Software": None}
        )
    finally:
        plt.close(figure)
    return base64.b64encode(buffer.getvalue()).decode()
