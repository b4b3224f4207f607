"""One view by itself, in its four forms: live, as a figure, as a file, as a table."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twellviz.explorers.canvas import CanvasView
from twellviz.explorers.charts import ChartData
from twellviz.explorers.export import PAGES, Shown, ending_of, png_text, write_charts, write_picture

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


class Chart:
    """A view of an explorer; from ``explorer.views[name]``.

    Displayed in Jupyter it is live; where no widget can run, a picture.

    Parameters
    ----------
    name : str
    make : callable
        Returns what is shown now: it follows the explorer's controls.
    about : str
        Where the numbers are from.
    """

    def __init__(self, name: str, make: Callable[[], Shown], about: str = "") -> None:
        self.name, self._make, self._about = name, make, about

    @property
    def data(self) -> ChartData:
        """The numbers that all forms are made from."""
        return self._make().data

    def figure(self, *, ax: Axes | None = None) -> Axes:
        """The view as a matplotlib picture; a new figure if ``ax`` is not given."""
        shown = self._make()
        return shown.data.figure(ax, mark=(shown.row, shown.col))

    def table(self) -> pd.DataFrame:
        """Its numbers."""
        return self.data.table()

    def widget(self) -> CanvasView:
        """A new live view of what is shown now; ``close()`` it to give its memory back."""
        shown = self._make()
        view = CanvasView()
        view.show(shown.data, shown.row, shown.col)
        return view

    def summary(self) -> str:
        """What it shows, in a sentence; the alternative text of its figure."""
        return self.data.describe()

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a page that works offline (``.html``), or a picture (``.png``, ``.svg``).

        Raises
        ------
        TraceError
            Another ending, or a page of over 5 MB.
        """
        if ending_of(path) in PAGES:
            shown = self._make()
            left_out = f"This page holds this view alone. {shown.data.notice}".strip()
            return write_charts([shown], path, title=shown.data.title, about=self._about, left_out=left_out)
        return write_picture(self.figure(), path)

    def __repr__(self) -> str:
        return f"Chart {self.name}: {self.summary()}"

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return bundle_of(self.widget(), self.figure(), repr(self), self.summary())


def bundle_of(widget: Any, axes: Axes, text: str, alt: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What Jupyter is given to show: the widget, and a picture for where none can run."""
    found = widget._repr_mimebundle_()
    bundle = dict(found[0] if isinstance(found, tuple) else found)
    bundle["text/plain"] = text
    bundle["image/png"] = png_text(axes)
    return bundle, {"image/png": {"alt": alt, "needs_background": "light"}}
