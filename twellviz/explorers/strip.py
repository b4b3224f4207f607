"""The text as a strip of shaded tokens, and the strongest neurons over it, as numbers.

Letters: L layers, T tokens of the strip.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from twellviz.explorers import markup
from twellviz.explorers.charts import Grid
from twellviz.explorers.view import View, shade_of
from twellviz.traces.labels import shorten
from twellviz.traces.trace import Trace

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_BARS = 40


@dataclass(frozen=True, eq=False)
class Strip:
    """Tokens in reading order, shaded by the counts of one layer.

    Attributes
    ----------
    counts_LT : int32 [L, T]
    labels : list of str
        Not escaped.
    breaks : list of int
        Tokens after which a line ends, from 0.
    first : int
        Number of the first token in the trace.
    layer, token : int
        What is chosen; the token is numbered as in the trace.
    largest_L : int32 [L]
        Count that is darkest in each layer.
    n_tokens, n_hidden : int
        Of the trace.
    numbers : bool
        The counts are written beside the tokens.
    notice : str
    """

    counts_LT: npt.NDArray[np.int32]
    labels: list[str]
    breaks: list[int]
    first: int
    layer: int
    token: int
    largest_L: npt.NDArray[np.int32]
    n_tokens: int
    n_hidden: int
    numbers: bool
    notice: str

    @property
    def title(self) -> str:
        """What it is."""
        return f"Text, shaded by the active neurons of layer {self.layer}"

    def spec(self) -> dict[str, Any]:
        """Everything but the counts, for the canvas module."""
        return {
            "kind": "strip",
            "title": self.title,
            "labels": self.labels,
            "breaks": self.breaks,
            "first": self.first,
            "n": self.n_tokens,
            "largest": self.largest_L.tolist(),
            "numbers": self.numbers,
            "row_name": "layer",
            "col_name": "token",
            "notice": self.notice,
        }

    def values(self) -> npt.NDArray[np.float32]:
        """The counts, layer by layer."""
        return self.counts_LT.astype(np.float32).ravel()

    def table(self) -> pd.DataFrame:
        """One row per token: its text and the count in each layer."""
        import pandas as pd

        columns: dict[str, Any] = {"token": self.labels}
        columns |= {f"l0_{layer}": counts_T for layer, counts_T in enumerate(self.counts_LT)}
        return pd.DataFrame(columns, index=pd.RangeIndex(self.first, self.first + len(self.labels), name="index"))

    def figure(self, ax: Axes | None = None, mark: tuple[int, int] | None = None) -> Axes:
        """Counts of up to 40 tokens around the chosen one, as bars; the chosen one is outlined."""
        from twellviz.plots.style import axes_or_new, drawable, literal

        del mark  # it is the chosen token
        ax = axes_or_new(ax, (9, 3.2))
        chosen = self.token - self.first
        start = max(0, min(chosen - _BARS // 2, len(self.labels) - _BARS))
        stop = min(len(self.labels), start + _BARS)
        counts = self.counts_LT[self.layer, start:stop]
        largest = int(self.largest_L[self.layer])
        places = range(self.first + start, self.first + stop)
        shades = [_hex(shade_of(int(count), largest)) for count in counts]
        bars = ax.bar(places, counts, color=shades, edgecolor="#444", linewidth=0.5)
        bars[chosen - start].set(edgecolor=markup.CHOSEN, linewidth=2.5)
        ax.set_xticks(places)
        texts = [shorten(drawable(shorten(label, 14)), 22) for label in self.labels[start:stop]]
        labels = ax.set_xticklabels(texts, rotation=90, fontsize=8, parse_math=False)
        literal(*labels)
        labels[chosen - start].set_fontweight("bold")
        ax.set_ylabel(f"active of {self.n_hidden}")
        ax.set_title(f"Layer {self.layer}: token {self.token} is outlined", fontsize=10)
        ax.margins(x=0.01)
        return ax

    def describe(self) -> str:
        """The picture in a sentence."""
        counts = self.counts_LT[self.layer]
        return (
            f"Tokens {self.first} to {self.first + len(self.labels) - 1}: from {counts.min()} to {counts.max()} active "
            f"neurons of {self.n_hidden} in layer {self.layer}; token {self.token} has "
            f"{counts[self.token - self.first]}"
        )


def strip_of(trace: Trace, view: View, *, numbers: bool = False) -> Strip:
    """The strip of a view."""
    first, stop = view.strip[0].index, view.strip[-1].index + 1
    return Strip(
        counts_LT=trace.counts_LM[:, first:stop],
        labels=[token.label for token in view.strip],
        breaks=[place for place, token in enumerate(view.strip) if token.breaks],
        first=first,
        layer=view.layer,
        token=view.token,
        largest_L=trace.max_L,
        n_tokens=trace.n_tokens,
        n_hidden=trace.n_hidden,
        numbers=numbers,
        notice=f"{view.notice}. Darker means more active neurons in layer {view.layer}; arrow keys move in the text.",
    )


def neurons_grid(trace: Trace, view: View) -> Grid:
    """Strength of the chosen token's strongest neurons for every token of the strip; 0 where they do not fire."""
    first, stop = view.strip[0].index, view.strip[-1].index + 1
    values_RC = np.zeros((len(view.neurons), stop - first), np.float32)
    for row, neuron in enumerate(view.neurons):
        tokens, strengths = trace.patterns[view.layer].tokens_of(neuron.neuron)
        begin, end = np.searchsorted(tokens, (first, stop))
        values_RC[row, tokens[begin:end] - first] = strengths[begin:end]
    return Grid(
        title=f"Strongest neurons of token {view.token} in layer {view.layer}, over the text",
        unit="|h|",
        values_RC=values_RC,
        rows=[str(neuron.neuron) for neuron in view.neurons],
        cols=[token.label for token in view.strip],
        row_name="neuron",
        first=first,
        scale="linear",
        notice="A click, or up and down, chooses the neuron of the panel “one neuron”.",
    )


def _hex(shade: float) -> str:
    from matplotlib.colors import to_hex

    red, green, blue = (int(part) / 255 for part in markup.colours(shade)[0][4:-1].split(","))
    return to_hex((red, green, blue))
