"""The live explorer: two sliders of ipywidgets, and what they choose."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twellviz.errors import TraceError
from twellviz.explorers import markup
from twellviz.explorers.view import View, find_text, shade_of, summary_of, view_of, window_of
from twellviz.traces.labels import shorten
from twellviz.traces.trace import Trace

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_BARS = 40


class Explorer:
    """Which neurons fire for which token: choose a layer and a token.

    Displayed in Jupyter it is live; ``print(explorer.summary())``, :meth:`figure`, :meth:`table` and :meth:`save` show
    the same where no widget can run. All controls work from the keyboard.

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
        self._strip, self._counts, self._neurons = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self._box = widgets.VBox(
            [
                self.layer,
                self.token,
                widgets.HBox([self.find, self.numbers, self.found]),
                self._counts,
                self._strip,
                self._neurons,
            ]
        )
        self._draw(view)
        for control in (self.layer, self.token, self.numbers):
            control.observe(self._changed, names="value")
        self.find.observe(self._search, names="value")

    @property
    def view(self) -> View:
        """What is shown now, as data."""
        return view_of(self.trace, self.layer.value, self.token.value)

    @property
    def html(self) -> str:
        """What is shown now, as HTML."""
        return "".join(part.value for part in (self._counts, self._strip, self._neurons))

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

    def figure(self, *, ax: Axes | None = None) -> Axes:
        """Active neurons of the tokens around the chosen one, in the chosen layer, as bars.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            A new figure if not given.

        Returns
        -------
        Axes
        """
        from twellviz.plots.style import axes_or_new, drawable, literal

        ax = axes_or_new(ax, (9, 3.2))
        layer, token, trace = self.layer.value, self.token.value, self.trace
        start, stop = window_of(trace, token, _BARS)
        counts = trace.counts_LM[layer, start:stop]
        largest = int(trace.max_L[layer])
        bars = ax.bar(
            range(start, stop),
            counts,
            color=[_hex(shade_of(int(count), largest)) for count in counts],
            edgecolor="#444",
            linewidth=0.5,
        )
        bars[token - start].set(edgecolor=markup.CHOSEN, linewidth=2.5)
        ax.set_xticks(range(start, stop))
        texts = [shorten(drawable(shorten(trace.label(place), 14)), 22) for place in range(start, stop)]
        labels = ax.set_xticklabels(texts, rotation=90, fontsize=8, parse_math=False)
        literal(*labels)
        labels[token - start].set_fontweight("bold")
        ax.set_ylabel(f"active of {trace.n_hidden}")
        ax.set_title(f"Layer {layer}: token {token} is outlined", fontsize=10)
        ax.margins(x=0.01)
        return ax

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a page that works without Python and without a network.

        Parameters
        ----------
        path : path
            Ends in ``.html``; an existing file is replaced.

        Raises
        ------
        TraceError
            Another ending, or a trace too long for a page of 5 MB.
        """
        if Path(path).suffix.lower() not in (".html", ".htm"):
            raise TraceError(f"path={os.fspath(path)!r}: a page ends in .html; figures are saved by matplotlib")
        from twellviz.explorers.page import write_page

        return write_page(self.trace, path, layer=self.layer.value, token=self.token.value)

    def __repr__(self) -> str:
        # No address in it, so that stored outputs of notebooks compare.
        return (
            f"Explorer of {self.trace.model}: {self.trace.n_layers} layers, {self.trace.n_tokens} tokens; "
            f"layer {self.layer.value}, token {self.token.value}"
        )

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        bundle = dict(self._box._repr_mimebundle_())
        bundle["text/plain"] = repr(self)
        return bundle

    def _changed(self, _: Any) -> None:
        self._draw(self.view)

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
        self._strip.value = markup.strip_html(view, numbers=self.numbers.value)
        self._counts.value = markup.counts_html(view)
        self._neurons.value = markup.neurons_html(view)


def explore(trace: Trace, *, layer: int = 0, token: int = 0) -> Explorer:
    """Open a trace in an :class:`Explorer`.

    Parameters
    ----------
    trace : Trace
    layer, token : int
        What is shown first.

    Examples
    --------
    >>> from twellviz.data import data_path
    >>> from twellviz.traces import Trace
    >>> explore(Trace.load(data_path("nano/trace.safetensors")), layer=1, token=5)
    Explorer of nano: 4 layers, 3840 tokens; layer 1, token 5
    """
    return Explorer(trace, layer=layer, token=token)


def _hex(shade: float) -> str:
    from matplotlib.colors import to_hex

    red, green, blue = (int(part) / 255 for part in markup.colours(shade)[0][4:-1].split(","))
    return to_hex((red, green, blue))
