"""What an explorer shows for one layer and one token, as data: the widget, the page and the table all read this.

Letters: L layers, M tokens.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from twellviz.traces.trace import Context, Trace

WINDOW = 160
"""Tokens of the strip: more would hide the chosen one."""
TOP_NEURONS = 8
TOP_TOKENS = 3


@dataclass(frozen=True)
class StripToken:
    """One token of the strip.

    Attributes
    ----------
    index : int
        In the trace.
    label : str
        Visible form; not escaped.
    breaks : bool
        A line ends after it.
    count : int
        Active neurons in the chosen layer.
    shade : float
        0 to 1, logarithmic in the count, 1 at the layer's largest.
    counts_L : list of int
        Active neurons in every layer.
    """

    index: int
    label: str
    breaks: bool
    count: int
    shade: float
    counts_L: list[int]

    @property
    def title(self) -> str:
        """Count in every layer, in words."""
        counts = ", ".join(f"layer {layer}: {count}" for layer, count in enumerate(self.counts_L))
        return f"token {self.index}, active neurons: {counts}"


@dataclass(frozen=True)
class NeuronRow:
    """One of the strongest neurons of the chosen token.

    Attributes
    ----------
    neuron : int
    strength : float
        ``|h|``.
    share : float
        Share of all tokens of the trace for which it fires, 0 to 1.
    contexts : list of Context
        The tokens for which it is strongest.
    """

    neuron: int
    strength: float
    share: float
    contexts: list[Context]


class Neighbour(NamedTuple):
    """A neuron that fires together with another.

    Attributes
    ----------
    neuron : int
    both : int
        Tokens for which both fire.
    overlap : float
        Those as a share of the tokens for which either fires (Jaccard index), 0 to 1.
    """

    neuron: int
    both: int
    overlap: float


@dataclass(frozen=True)
class View:
    """Everything shown for one layer and token."""

    trace: Trace
    layer: int
    token: int
    strip: list[StripToken]
    notice: str
    counts_L: list[int]
    n_active: int
    n_hidden: int

    @cached_property
    def neurons(self) -> list[NeuronRow]:
        """The strongest neurons, strongest first; found when they are first asked for."""
        trace, layer = self.trace, self.layer
        ids, strengths = trace.top_neurons(layer, self.token, TOP_NEURONS)
        return [
            NeuronRow(
                int(neuron),
                float(strength),
                float(trace.activity_LH[layer, neuron]) / trace.n_tokens,
                [trace.context(int(where)) for where in trace.top_tokens(layer, int(neuron), TOP_TOKENS)[0]],
            )
            for neuron, strength in zip(ids, strengths, strict=True)
        ]


def view_of(trace: Trace, layer: int, token: int) -> View:
    """Collect the view.

    Parameters
    ----------
    trace : Trace
    layer, token : int

    Raises
    ------
    TraceError
        The trace has no such layer or token.
    """
    trace.active(layer, token)  # raises where there is no such place
    strip, notice = _strip(trace, layer, token)
    return View(
        trace=trace,
        layer=layer,
        token=token,
        strip=strip,
        notice=notice,
        counts_L=[int(count) for count in trace.counts_LM[:, token]],
        n_active=int(trace.counts_LM[layer, token]),
        n_hidden=trace.n_hidden,
    )


def window_of(trace: Trace, token: int, width: int = WINDOW) -> tuple[int, int]:
    """First and one past the last token of the strip: ``width`` tokens of the token's sequence, around it."""
    sequence = int(trace.sequence_M[token])
    first, stop = int(trace.sequence_start[sequence]), int(trace.sequence_start[sequence + 1])
    start = max(first, min(token - width // 2, stop - width))
    return start, min(stop, start + width)


def summary_of(trace: Trace, view: View) -> str:
    """The view as plain text."""
    before, chosen, after = trace.context(view.token)
    lines = [
        f"token {view.token} of {trace.n_tokens}: {before!r} [{chosen!r}] {after!r}",
        "active neurons: " + ", ".join(f"layer {layer}: {count}" for layer, count in enumerate(view.counts_L)),
        f"strongest neurons of layer {view.layer}:",
    ]
    lines += [
        f"  {row.neuron:5d}  |h| {row.strength:8.3f}  fires for {row.share:6.2%} of tokens, most at "
        + ", ".join(repr(context.token) for context in row.contexts)
        for row in view.neurons
    ]
    return "\n".join(lines)


def find_text(trace: Trace, wanted: str, *, after: int) -> int | None:
    """The token in which ``wanted`` begins next, letter case ignored, from the start again after the end.

    Parameters
    ----------
    trace : Trace
    wanted : str
        May run over several tokens.
    after : int
        Token to start behind.
    """
    pattern = re.compile(re.escape(wanted), re.IGNORECASE)
    text_M = trace.sequence_text[trace.sequence_M]
    found = []
    for number, text in enumerate(trace.texts):
        tokens = (text_M == number).nonzero()[0]
        begins = [match.start() for match in pattern.finditer(text)]
        # Tokens of a text ascend, so the first that ends behind the place is the one that holds it.
        places = trace.offsets_M2[tokens, 1].searchsorted(begins, side="right")
        found += [int(tokens[place]) for place in places if place < len(tokens)]
    later = [token for token in found if token > after]
    return min(later or found, default=None)


def shade_of(count: int, largest: int) -> float:
    """0 for no active neuron, 1 for the most of the layer, logarithmic between: counts span decades."""
    return math.log1p(count) / math.log1p(largest) if largest > 0 else 0.0


def _strip(trace: Trace, layer: int, token: int) -> tuple[list[StripToken], str]:
    start, stop = window_of(trace, token)
    largest = int(trace.max_L[layer])
    strip = []
    for index, counts_L in zip(range(start, stop), trace.counts_LM[:, start:stop].T.tolist(), strict=True):
        shown = trace.token_texts[index]
        count = counts_L[layer]
        strip.append(
            StripToken(
                index=index,
                label=shown.label,
                breaks=not shown.special and "\n" in shown.text and shown.piece == shown.pieces,
                count=count,
                shade=shade_of(count, largest),
                counts_L=counts_L,
            )
        )
    sequence = int(trace.sequence_M[token])
    length = int(trace.sequence_lengths[sequence])
    where = f"sequence {sequence + 1} of {trace.n_sequences}"
    if stop - start == length:
        return strip, f"{where}, all its {length} tokens"
    first = start - int(trace.sequence_start[sequence])
    return strip, f"{where}, its tokens {first} to {first + stop - start - 1} of {length}; the rest is left out here"
