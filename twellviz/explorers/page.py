"""The explorer as one HTML file: data, styles and script inside, no network.

The page holds the counts of every token in every layer and each token's strongest neurons. What it leaves out, it
says.
"""

from __future__ import annotations

import json
import os
from importlib.resources import files
from pathlib import Path
from typing import Any

from twellviz._atomic import write_text_atomically
from twellviz.errors import TraceError
from twellviz.explorers.view import TOP_NEURONS, TOP_TOKENS
from twellviz.traces.labels import shorten, visible
from twellviz.traces.trace import Trace

MAX_BYTES = 5_000_000


def write_page(trace: Trace, path: str | os.PathLike[str], *, layer: int, token: int) -> Path:
    """Write the page, with as many neurons a token as fit into 5 MB.

    Raises
    ------
    TraceError
        Not even one neuron a token fits.
    """
    template = files("twellviz.explorers").joinpath("page.html").read_text(encoding="utf-8")
    for k in range(TOP_NEURONS, 0, -1):
        text = template.replace("__TRACE__", _inline(_data(trace, k, layer, token)))
        if len(text.encode()) <= MAX_BYTES:
            return write_text_atomically(path, text)
    raise TraceError(
        f"the trace has {trace.n_tokens} tokens in {trace.n_layers} layers: its page would pass "
        f"{MAX_BYTES / 1e6:g} MB; record fewer tokens (max_tokens=)"
    )


def _inline(data: dict[str, Any]) -> str:
    # "</" would end the script element, "<!--" would open a comment in it.
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _data(trace: Trace, k: int, layer: int, token: int) -> dict[str, Any]:
    top = []
    used: list[set[int]] = []
    for one in range(trace.n_layers):
        rows = []
        seen: set[int] = set()
        for index in range(trace.n_tokens):
            ids, strengths = trace.top_neurons(one, index, k)
            seen.update(ids.tolist())
            rows.append([[int(i), _short(float(s))] for i, s in zip(ids, strengths, strict=True)])
        top.append(rows)
        used.append(seen)
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
            {
                str(neuron): [
                    int(trace.activity_LH[one, neuron]),
                    trace.top_tokens(one, neuron, TOP_TOKENS)[0].tolist(),
                ]
                for neuron in sorted(used[one])
            }
            for one in range(trace.n_layers)
        ],
        "layer": layer,
        "token": token,
        "left_out": (
            f"This page holds the counts of all {trace.n_tokens} tokens in all {trace.n_layers} layers and the {k} "
            "strongest neurons of each token; weaker active neurons are left out."
        ),
    }


def _running(text: str) -> str:
    """Text that stands in a sentence: blanks as they are, but nothing that turns the direction of what follows."""
    return "".join(part if part in " \n\t" else visible(part) for part in shorten(text))


def _short(strength: float) -> float | None:
    """Three significant digits; None (null) for what JSON has no number for."""
    return float(f"{strength:.3g}") if strength - strength == 0 else None
