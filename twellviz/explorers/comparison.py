"""Two traces side by side: two checkpoints on one text, or two texts.

Letters: L layers, M tokens.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twellviz.errors import ConfigError, TraceError
from twellviz.explorers import panels
from twellviz.explorers.canvas import CanvasView
from twellviz.explorers.chart import Chart, bundle_of
from twellviz.explorers.charts import Grid, Line, Lines
from twellviz.explorers.export import PAGES, Shown, ending_of, write_charts, write_picture
from twellviz.traces.trace import Trace

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


class Comparison:
    """Two traces with the same number of layers, in the same views; made by :func:`compare`.

    Attributes
    ----------
    a, b : Trace
    names : (str, str)
    layer : ipywidgets.IntSlider
        Which layer the views of one layer show.
    panel : ipywidgets.ToggleButtons
        Which view is shown.
    views : mapping of str to Chart
        ``layers``, ``positions``, ``dead``, ``unions``; ``difference`` too, where both traces hold the same tokens.
    """

    def __init__(self, a: Trace, b: Trace, names: tuple[str, str]) -> None:
        import ipywidgets as widgets

        for name, trace in (("a", a), ("b", b)):
            if not isinstance(trace, Trace):
                raise TraceError(f"{name} is {type(trace).__name__}: give a twellviz.traces.Trace")
        if a.n_layers != b.n_layers:
            raise TraceError(f"a has {a.n_layers} layers and b {b.n_layers}: only models of one depth compare")
        self.a, self.b, self.names = a, b, names
        self.same_text = np.array_equal(a.tokens_M, b.tokens_M) and np.array_equal(a.sequence_start, b.sequence_start)
        makers: dict[str, Any] = {
            "layers": lambda: self._lines(panels.layers(self.a), panels.layers(self.b), ("mean", "p99")),
            "positions": lambda: self._lines(self._position(self.a), self._position(self.b)),
            "dead": lambda: self._lines(panels.dead(self.a), panels.dead(self.b), ("for no token",)),
            "unions": lambda: self._lines(self._union(self.a), self._union(self.b), ("mean",)),
        }
        if self.same_text:
            makers = {"difference": self._difference} | makers
        self.layer = widgets.IntSlider(0, 0, a.n_layers - 1, description="layer")
        self.token = widgets.BoundedIntText(0, 0, a.n_tokens - 1, description="token")
        self.panel = widgets.ToggleButtons(options=list(makers), style={"button_width": "auto"})
        self.views: Mapping[str, Chart] = {
            name: Chart(name, self._maker(make), self._about()) for name, make in makers.items()
        }
        self._canvas = CanvasView()
        self._box = widgets.VBox([self.layer, self.panel, self._canvas])
        self._draw()
        for control in (self.layer, self.panel):
            control.observe(self._draw, names="value")
        self._canvas.observe(self._chosen, names=["row", "col"])

    def figure(self, view: str | None = None, *, ax: Axes | None = None) -> Axes:
        """A view as a picture; the one that is shown if not given."""
        return self._view(view).figure(ax=ax)

    def table(self, view: str | None = None) -> pd.DataFrame:
        """The numbers of a view; of the one that is shown if not given."""
        return self._view(view).table()

    def summary(self) -> str:
        """Both traces in a line for each layer: mean counts, and the change from a to b."""
        first, second = self.names
        lines = [f"{'layer':>5s}  {first[:24]:>24s}  {second[:24]:>24s}   change"]
        for layer, (one, two) in enumerate(zip(self.a.mean_L, self.b.mean_L, strict=True)):
            change = f"{two / one - 1:+8.0%}" if one > 0 else "        "
            lines.append(f"{layer:5d}  {one:24.1f}  {two:24.1f} {change}")
        return "\n".join(lines)

    def save(self, path: str | os.PathLike[str], view: str | None = None) -> Path:
        """Write all views as a page that works offline (``.html``), or one as a picture (``.png``, ``.svg``).

        Raises
        ------
        TraceError
            Another ending, or a page of over 5 MB.
        """
        if ending_of(path) not in PAGES:
            return write_picture(self.figure(view), path)
        shown = [Shown(chart.data, self.layer.value) for chart in self.views.values()]
        left_out = f"Of the views of one layer this page holds layer {self.layer.value}; no neurons are in it."
        return write_charts(shown, path, title="Two traces compared", about=self._about(), left_out=left_out)

    def close(self) -> None:
        """Take the view off the page and give its memory back."""
        for widget in (self.layer, self.panel, self.token, self._canvas, self._box):
            widget.unobserve_all()
            widget.close()
        self._canvas.spec = self._canvas.values = b""

    def __repr__(self) -> str:
        return f"Comparison of {self.names[0]} and {self.names[1]}: {self.a.n_layers} layers"

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return bundle_of(self._box, self.figure(), repr(self), self._view(None).summary())

    def _about(self) -> str:
        parts = [
            f"{name}: {trace.model}, {trace.n_tokens} tokens, {trace.n_hidden} neurons a layer"
            for name, trace in zip(self.names, (self.a, self.b), strict=True)
        ]
        return "; ".join(parts) + "."

    def _view(self, name: str | None) -> Chart:
        name = self.panel.value if name is None else name
        if name not in self.views:
            raise ConfigError(f"view={name!r}: choose one of {', '.join(self.views)}")
        return self.views[name]

    def _maker(self, make: Any) -> Any:
        return lambda: Shown(make(), self.layer.value, self.token.value)

    def _position(self, trace: Trace) -> Lines:
        profile = panels.positions(trace, self.layer.value)
        name = f"layer {self.layer.value}"
        return replace(profile, lines=tuple(line for line in profile.lines if line.name == name), notice="")

    def _union(self, trace: Trace) -> Lines:
        return panels.unions(trace, self.layer.value)

    def _lines(self, first: Lines, second: Lines, kept: tuple[str, ...] | None = None) -> Lines:
        """The lines of two charts in one, each named after its trace."""
        lines = tuple(
            Line(f"{name}: {line.name}", line.x, line.y)
            for name, chart in zip(self.names, (first, second), strict=True)
            for line in chart.lines
            if kept is None or line.name in kept
        )
        # "(of 512)" is said of both only where it holds for both.
        y_name = first.y_name if first.y_name == second.y_name else first.y_name.split(" (of")[0]
        title = first.title if first.title == second.title else first.title.split(" on these")[0]
        return replace(first, title=title, y_name=y_name, lines=lines, notice="", chooses=False)

    def _difference(self) -> Grid:
        start, stop = panels.window(self.a, self.token.value)
        base = panels.heatmap(self.a, self.token.value)
        change_LM = self.b.counts_LM[:, start:stop].astype(np.float32) - self.a.counts_LM[:, start:stop]
        return replace(
            base,
            title=f"Active neurons: {self.names[1]} minus {self.names[0]}",
            unit="more active neurons",
            values_RC=change_LM,
            scale="diverging",
            notice=base.notice and f"Tokens {start} to {stop - 1} of {self.a.n_tokens}; the rest is left out here.",
        )

    def _chosen(self, change: dict[str, Any]) -> None:
        if self.panel.value == "difference" and 0 <= change["owner"].row < self.a.n_layers:
            self.token.value = change["owner"].col
            self.layer.value = change["owner"].row

    def _draw(self, _: Any = None) -> None:
        shown = self._view(None)._make()
        self._canvas.show(shown.data, shown.row, shown.col)


def compare(a: Trace, b: Trace, *, names: tuple[str, str] | None = None) -> Comparison:
    """Show two traces in the same views: two checkpoints on one text, or one model on two texts.

    Parameters
    ----------
    a, b : Trace
        With the same number of layers.
    names : (str, str), optional
        What to call them; the models' names, or "a" and "b" where those are equal.

    Raises
    ------
    TraceError
        One is no trace, or the depths differ.

    Examples
    --------
    >>> from twellviz.data import data_path
    >>> from twellviz.traces import Trace
    >>> trace = Trace.load(data_path("nano/trace.safetensors"))
    >>> compare(trace, trace, names=("before", "after"))
    Comparison of before and after: 4 layers
    """
    if names is None:
        models = (getattr(a, "model", "a"), getattr(b, "model", "b"))
        names = models if models[0] != models[1] else ("a", "b")
    if len(names) != 2 or names[0] == names[1]:
        raise ConfigError(f"names={names!r}: two different names are needed")
    return Comparison(a, b, (str(names[0]), str(names[1])))
