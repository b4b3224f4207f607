"""The live explorer: the text, the heatmap and the panel below them, linked by the chosen layer, token and neuron."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twellviz.errors import ConfigError, TraceError
from twellviz.explorers import markup, panels
from twellviz.explorers.canvas import CanvasView
from twellviz.explorers.chart import Chart, bundle_of
from twellviz.explorers.charts import ChartData
from twellviz.explorers.export import PAGES, Shown, ending_of, write_picture
from twellviz.explorers.strip import neurons_grid, strip_of
from twellviz.explorers.view import View, find_text, summary_of, view_of
from twellviz.traces.trace import Trace

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

PANELS = {
    "strongest neurons": ("neurons",),
    "one neuron": ("neuron", "companions"),
    "layers": ("layers",),
    "positions": ("positions",),
    "dead neurons": ("dead",),
    "unions": ("unions",),
}
"""What can be shown below the text, and the views that it is made of."""


class Explorer:
    """Which neurons fire for which token: choose a layer, a token, a neuron.

    Displayed in Jupyter it is live; ``print(explorer.summary())``, :meth:`figure`, :meth:`table` and :meth:`save` show
    the same where no widget can run. All controls and all views work from the keyboard.

    Parameters
    ----------
    trace : Trace
    layer, token : int
        What is shown first.

    Attributes
    ----------
    layer, token : ipywidgets.IntSlider
        Set ``explorer.token.value = 7`` to move.
    find : ipywidgets.Text
        Type a piece of text and press Enter to go to the token where it begins next.
    numbers : ipywidgets.Checkbox
        Write the counts beside the tokens.
    panel : ipywidgets.ToggleButtons
        What is shown below the text: see ``explorer.panel.options``.
    neuron : ipywidgets.BoundedIntText
        The neuron of the panel ``"one neuron"``; it follows the strongest one of the token.
    views : mapping of str to Chart
        Each view by itself: ``strip``, ``heatmap``, ``layers``, ``positions``, ``neurons``, ``neuron``,
        ``companions``, ``dead``, ``unions``. They show what the explorer shows.

    Raises
    ------
    TraceError
        ``trace`` is none, or has no such layer or token.
    """

    def __init__(self, trace: Trace, *, layer: int = 0, token: int = 0) -> None:
        import ipywidgets as widgets

        if not isinstance(trace, Trace):
            raise TraceError(
                f"trace is {type(trace).__name__}: give a twellviz.traces.Trace, from record(...) or Trace.load(path)"
            )
        self.trace = trace
        view = view_of(trace, layer, token)
        wide = widgets.Layout(width="min(100%, 44em)")
        self.layer = widgets.IntSlider(layer, 0, trace.n_layers - 1, description="layer", layout=wide)
        self.token = widgets.IntSlider(token, 0, trace.n_tokens - 1, description="token", layout=wide)
        self.find = widgets.Text(description="find", placeholder="text, then Enter", continuous_update=False)
        self.numbers = widgets.Checkbox(description="show counts", indent=False)
        self.found = widgets.HTML()
        self.panel = widgets.ToggleButtons(options=list(PANELS), style={"button_width": "auto"})
        self.neuron = widgets.BoundedIntText(0, 0, trace.n_hidden - 1, description="neuron")
        self._counts, self._neurons = widgets.HTML(), widgets.HTML()
        self._heatmap, self._strip = CanvasView(), CanvasView()
        self._charts = (CanvasView(), CanvasView())
        self._box = widgets.VBox(
            [
                widgets.HBox([self.layer, self.token], layout=widgets.Layout(flex_flow="row wrap")),
                widgets.HBox([self.find, self.numbers, self.found], layout=widgets.Layout(flex_flow="row wrap")),
                self._heatmap,
                self._counts,
                self._strip,
                self.panel,
                self.neuron,
                *self._charts,
                self._neurons,
            ]
        )
        about = f"Model {trace.model}: {trace.n_layers} layers of {trace.n_hidden} neurons, {trace.n_tokens} tokens."
        names = ("strip", "heatmap", *(name for panel in PANELS.values() for name in panel))
        self.views: Mapping[str, Chart] = {name: Chart(name, self._maker(name), about) for name in names}
        self._held = False
        self._drawn: tuple[int, int] | None = None
        self._draw(view)
        for control in (self.layer, self.token, self.numbers, self.panel, self.neuron):
            control.observe(self._changed, names="value")
        self.find.observe(self._search, names="value")
        for canvas in (self._heatmap, self._strip):
            canvas.observe(self._chosen, names=["row", "col"])
        self._charts[0].observe(self._chosen_below, names="row")

    @property
    def view(self) -> View:
        """What is shown now, as data."""
        return view_of(self.trace, self.layer.value, self.token.value)

    @property
    def html(self) -> str:
        """The text and the strongest neurons as shown now, as HTML without a script."""
        view = self.view
        strip = markup.strip_html(view, numbers=self.numbers.value)
        return markup.counts_html(view) + strip + markup.neurons_html(view)

    def summary(self) -> str:
        """What is shown now, as plain text."""
        return summary_of(self.trace, self.view)

    def table(self) -> pd.DataFrame:
        """Strongest neurons of the chosen token: neuron, strength, share of tokens, and where each is strongest."""
        import pandas as pd

        rows = [
            {
                "neuron": row.neuron,
                "strength": row.strength,
                "share_of_tokens": row.share,
                "strongest_for": ", ".join(repr(context.token) for context in row.contexts),
            }
            for row in self.view.neurons
        ]
        return pd.DataFrame(rows, columns=["neuron", "strength", "share_of_tokens", "strongest_for"])

    def figure(self, view: str = "strip", *, ax: Axes | None = None) -> Axes:
        """A view as a picture: by default the counts of the tokens around the chosen one, as bars.

        Parameters
        ----------
        view : str
            A name of ``explorer.views``.
        ax : matplotlib Axes, optional
            A new figure if not given.

        Returns
        -------
        Axes
        """
        return self._view(view).figure(ax=ax)

    def save(self, path: str | os.PathLike[str], view: str = "strip") -> Path:
        """Write a page with all views that works without Python and without a network, or one view as a picture.

        Parameters
        ----------
        path : path
            Ends in ``.html``, ``.png`` or ``.svg``; an existing file is replaced.
        view : str
            Which view a picture shows. ``explorer.views[name].save(path)`` writes a page of one view.

        Raises
        ------
        TraceError
            Another ending, or a trace too long for a page of 5 MB.
        """
        if ending_of(path) not in PAGES:
            return write_picture(self.figure(view), path)
        from twellviz.explorers.page import write_page

        return write_page(self.trace, path, layer=self.layer.value, token=self.token.value)

    def close(self) -> None:
        """Take the views off the page and give their memory back; the explorer cannot be shown again."""
        for canvas in (self._heatmap, self._strip, *self._charts):
            canvas.unobserve_all()
        for control in (self.layer, self.token, self.numbers, self.panel, self.neuron, self.find):
            control.unobserve_all()
        stack = [self._box]
        while stack:
            widget = stack.pop()
            stack += getattr(widget, "children", ())
            for own in ("layout", "style"):
                if getattr(widget, own, None) is not None:
                    getattr(widget, own).close()
            widget.close()
        for canvas in (self._heatmap, self._strip, *self._charts):
            canvas.spec = canvas.values = b""

    def __repr__(self) -> str:
        # No address in it, so that stored outputs of notebooks compare.
        return (
            f"Explorer of {self.trace.model}: {self.trace.n_layers} layers, {self.trace.n_tokens} tokens; "
            f"layer {self.layer.value}, token {self.token.value}"
        )

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        return bundle_of(self._box, self.figure(), repr(self), self.views["strip"].summary())

    def _view(self, name: str) -> Chart:
        if name not in self.views:
            raise ConfigError(f"view={name!r}: choose one of {', '.join(self.views)}")
        return self.views[name]

    def _maker(self, name: str) -> Any:
        """A function that makes a view of what is chosen when it is called."""

        def make() -> Shown:
            layer, token, neuron = self.layer.value, self.token.value, self.neuron.value
            trace = self.trace
            chosen = {"strip": (layer, token), "heatmap": (layer, token), "neurons": (-1, token)}.get(name, (layer, 0))
            data: ChartData
            match name:
                case "strip":
                    data = strip_of(trace, self.view, numbers=self.numbers.value)
                case "heatmap":
                    data = panels.heatmap(trace, token)
                case "neurons":
                    data = neurons_grid(trace, self.view)
                case "neuron":
                    data = panels.neuron_positions(trace, layer, neuron)
                case "companions":
                    data = panels.neuron_layers(trace, layer, neuron)
                case "layers":
                    data = panels.layers(trace)
                case "positions":
                    data = panels.positions(trace, layer)
                case "dead":
                    data = panels.dead(trace)
                case _:
                    data = panels.unions(trace, layer)
            return Shown(data, *chosen)

        return make

    @contextmanager
    def _hold(self) -> Iterator[None]:
        """Let several controls change before anything is drawn."""
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def _changed(self, _: Any = None) -> None:
        if not self._held:
            self._draw(self.view)

    def _chosen(self, change: dict[str, Any]) -> None:
        """A canvas was clicked or moved in."""
        layer, token = change["owner"].row, change["owner"].col
        if self._held or (layer, token) == (self.layer.value, self.token.value):
            return
        if 0 <= layer < self.trace.n_layers and 0 <= token < self.trace.n_tokens:
            self._draw(view_of(self.trace, layer, token))

    def _chosen_below(self, change: dict[str, Any]) -> None:
        """The chart of the panel was clicked: a row of neurons, or a layer."""
        if self._held:
            return
        row, names = change["new"], PANELS[self.panel.value]
        if names == ("neurons",):
            strongest = self.view.neurons
            if 0 <= row < len(strongest):
                self.neuron.value = strongest[row].neuron
        elif names in (("layers",), ("dead",)) and 0 <= row < self.trace.n_layers:
            self.layer.value = row

    def _search(self, change: dict[str, Any]) -> None:
        wanted = change["new"]
        if not wanted:
            self.found.value = ""
            return
        where = find_text(self.trace, wanted, after=self.token.value)
        if where is None:
            self.found.value = "not in these texts"
            return
        self.found.value = f"token {where}"
        self.token.value = where

    def _draw(self, view: View) -> None:
        moved = self._drawn != (view.layer, view.token)
        # What is looked at is sent first; the controls, which a click in a view left behind, last.
        with self._hold():
            self._strip.show(strip_of(self.trace, view, numbers=self.numbers.value), view.layer, view.token)
            self._counts.value = markup.counts_html(view)
            window = panels.window(self.trace, view.token)
            if self._drawn is None or window != panels.window(self.trace, self._drawn[1]):
                self._heatmap.show(panels.heatmap(self.trace, view.token), view.layer, view.token)
            else:
                self._heatmap.move(view.layer, view.token)
            self._drawn = (view.layer, view.token)
            self.layer.value, self.token.value = view.layer, view.token
            if moved and view.neurons:
                self.neuron.value = view.neurons[0].neuron
            self._draw_panel(view)

    def _draw_panel(self, view: View) -> None:
        names = PANELS[self.panel.value]
        for place, canvas in enumerate(self._charts):
            if place < len(names):
                shown = (
                    Shown(neurons_grid(self.trace, view), self._row_of_neuron(view), view.token)
                    if names[place] == "neurons"
                    else self._maker(names[place])()
                )
                canvas.show(shown.data, shown.row, shown.col)
            _display(canvas, place < len(names))
        one, several = "neuron" in names, "neurons" in names
        _display(self.neuron, one)
        _display(self._neurons, one or several)
        if several:
            self._neurons.value = markup.neurons_html(view)
        elif one:
            neuron = self.neuron.value
            self._neurons.value = markup.neuron_html(
                panels.top_contexts(self.trace, view.layer, neuron), panels.nearest(self.trace, view.layer, neuron)
            )

    def _row_of_neuron(self, view: View) -> int:
        rows = [row.neuron for row in view.neurons]
        return rows.index(self.neuron.value) if self.neuron.value in rows else 0


def _display(widget: Any, shown: bool) -> None:
    widget.layout.display = None if shown else "none"
