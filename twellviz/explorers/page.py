"""The explorer as one HTML file: data, styles and script inside, no network.

The page holds the counts of every token in every layer, each token's strongest neurons, and the profiles of the trace.
What it leaves out, it says.

Letters: M tokens, H hidden width.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from twellviz._atomic import write_text_atomically
from twellviz.errors import TraceError
from twellviz.explorers import panels
from twellviz.explorers.canvas import module_text, style_text
from twellviz.explorers.export import MAX_BYTES, Shown, fill, inline, packed
from twellviz.explorers.view import TOP_NEURONS, TOP_TOKENS
from twellviz.traces.labels import shorten, visible
from twellviz.traces.strongest import neurons_of_every_token, tokens_of_every_neuron
from twellviz.traces.trace import Trace

_ROW_BYTES = 16
"""What a neuron of a token takes at least, with its separators; it spares tries that cannot fit."""


class _Layer(NamedTuple):
    """The strongest of one layer, in lists."""

    top: list[list[list[Any]]]
    tokens: list[list[int]]
    fires: list[int]


def write_page(trace: Trace, path: str | os.PathLike[str], *, layer: int, token: int) -> Path:
    """Write the page, with as many neurons a token as fit into 5 MB.

    Raises
    ------
    TraceError
        Not even one neuron a token fits.
    """
    template = fill("page.html", STYLE=style_text(), MODULE=module_text())
    before, after = template.split("__TRACE__")
    room = MAX_BYTES - len(template.encode())
    most = int(np.minimum(trace.counts_LM, TOP_NEURONS).sum())
    strongest: list[_Layer] = []
    k = TOP_NEURONS
    while k > 0:
        # A first guess from the sizes alone; each real try takes seconds on a large trace.
        if most * k / TOP_NEURONS * _ROW_BYTES / 2 > room and k > 1:
            k -= 1
            continue
        strongest = strongest or [_strongest(trace, one, k) for one in range(trace.n_layers)]
        text = inline(_data(trace, strongest, k, layer, token))
        size = len(text.encode("utf-8", "replace"))
        if size <= room:
            return write_text_atomically(path, before + text + after)
        k = min(k - 1, max(1, int(k * room / size))) if k > 1 else 0
    raise TraceError(
        f"the trace has {trace.n_tokens} tokens in {trace.n_layers} layers: its page would pass "
        f"{MAX_BYTES / 1e6:g} MB; record fewer tokens (max_tokens=)"
    )


def _strongest(trace: Trace, layer: int, k: int) -> _Layer:
    pattern = trace.patterns[layer]
    neurons_N = pattern.neurons_N()
    start, ids, strengths = neurons_of_every_token(pattern, k, neurons_N)
    pairs = [[neuron, _short(strength)] for neuron, strength in zip(ids.tolist(), strengths.tolist(), strict=True)]
    begins = start.tolist()
    token_start, tokens = tokens_of_every_neuron(pattern, TOP_TOKENS, neurons_N)
    places, found = token_start.tolist(), tokens.tolist()
    return _Layer(
        [pairs[first:last] for first, last in itertools.pairwise(begins)],
        [found[first:last] for first, last in itertools.pairwise(places)],
        trace.activity_LH[layer].tolist(),
    )


def _data(trace: Trace, strongest: list[_Layer], k: int, layer: int, token: int) -> dict[str, Any]:
    top = [[rows[:k] for rows in one.top] for one in strongest]
    used = [sorted({neuron for rows in layer_top for neuron, _ in rows}) for layer_top in top]
    return {
        "model": trace.model,
        "hidden": trace.n_hidden,
        "labels": [shown.label for shown in trace.token_texts],
        # Pieces of one character share its text: it is given once.
        "texts": ["" if shown.piece > 1 else _running(shown.text) for shown in trace.token_texts],
        "starts": trace.sequence_start.tolist(),
        "counts": trace.counts_LM.tolist(),
        "max": trace.max_L.tolist(),
        "top": top,
        "neurons": [
            {str(neuron): [one.fires[neuron], one.tokens[neuron]] for neuron in neurons}
            for one, neurons in zip(strongest, used, strict=True)
        ],
        "charts": {
            "layers": packed(Shown(panels.layers(trace))),
            "positions": packed(Shown(panels.positions(trace, layer))),
            "dead neurons": packed(Shown(panels.dead(trace))),
        },
        "unions": [packed(Shown(panels.unions(trace, one))) for one in range(trace.n_layers)],
        "layer": layer,
        "token": token,
        "left_out": (
            f"This page holds the counts of all {trace.n_tokens} tokens in all {trace.n_layers} layers and the {k} "
            "strongest neurons of each token; weaker active neurons are left out, and so are the views of one neuron."
        ),
    }


def _running(text: str) -> str:
    """Text that stands in a sentence: blanks as they are, but nothing that turns the direction of what follows."""
    return "".join(part if part in " \n\t" else visible(part) for part in shorten(text))


def _short(strength: float) -> float | None:
    """Three significant digits; None (null) for what JSON has no number for."""
    return float(f"{strength:.3g}") if strength - strength == 0 else None
