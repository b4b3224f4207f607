"""The views of a trace, each as numbers: what widget, page, figure and table are made from.

Letters: L layers, M tokens, H hidden width, B tokens of a block.
"""

# ruff: noqa: N802 - functions carry the shape of what they return as a suffix

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from twellviz.errors import TraceError
from twellviz.explorers.charts import Grid, Line, Lines
from twellviz.explorers.view import Neighbour, NeuronRow
from twellviz.traces.trace import Trace

MAX_TOKENS = 4096
"""Tokens of the heatmap: more are shown in windows of this size, with a notice."""
BLOCKS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MAX_LINES = 6


def window(trace: Trace, token: int) -> tuple[int, int]:
    """The tokens of the heatmap that holds ``token``: first and one past the last."""
    start = token // MAX_TOKENS * MAX_TOKENS
    return start, min(trace.n_tokens, start + MAX_TOKENS)


def heatmap(trace: Trace, token: int = 0) -> Grid:
    """Active neurons of each layer and token, in the window of ``token``."""
    start, stop = window(trace, token)
    begins = trace.sequence_start[1:-1]
    cut = stop - start < trace.n_tokens
    return Grid(
        title="Active neurons by layer and token",
        unit="active neurons",
        values_RC=trace.counts_LM[:, start:stop].astype(np.float32),
        rows=[str(layer) for layer in range(trace.n_layers)],
        cols=[trace.label(token) for token in range(start, stop)],
        first=start,
        breaks=tuple((begins[(begins > start) & (begins < stop)] - start).tolist()),
        notice=f"Tokens {start} to {stop - 1} of {trace.n_tokens}; the token slider goes on to the others."
        if cut
        else "",
    )


def layers(trace: Trace) -> Lines:
    """Mean, 99th percentile and maximum of the counts of each layer."""
    x = np.arange(trace.n_layers)
    return Lines(
        "Active neurons of a token, by layer",
        "layer",
        f"active neurons (of {trace.n_hidden})",
        (Line("mean", x, trace.mean_L), Line("p99", x, trace.p99_L), Line("max", x, trace.max_L)),
        log_y=True,
        chooses=True,
        notice="A click, or Enter on a point, chooses the layer.",
    )


def some_layers(trace: Trace, layer: int) -> list[int]:
    """Up to six layers, evenly spread, ``layer`` among them."""
    found = np.linspace(0, trace.n_layers - 1, min(trace.n_layers, MAX_LINES)).round().astype(int)
    if layer not in found:
        found[np.abs(found - layer).argmin()] = layer
    return [int(one) for one in found]


def positions(trace: Trace, layer: int) -> Lines:
    """Mean count by position in the sequence, on logarithmic axes, in bins that grow with the position."""
    shown = some_layers(trace, layer)
    bin_M, x = _bins(trace)
    size = np.bincount(bin_M)
    lines = tuple(Line(f"layer {one}", x, np.bincount(bin_M, trace.counts_LM[one]) / size) for one in shown)
    left_out = f"{len(shown)} of {trace.n_layers} layers." if len(shown) < trace.n_layers else ""
    return Lines(
        "Active neurons by position",
        "position in the sequence, from 1",
        f"mean active neurons (of {trace.n_hidden})",
        lines,
        log_x=True,
        log_y=True,
        whole_x=False,
        notice=left_out,
    )


def dead(trace: Trace) -> Lines:
    """Share of neurons that fire for no token, and for fewer than one in a hundred, in each layer."""
    x = np.arange(trace.n_layers)
    rare_L = (trace.activity_LH < 0.01 * trace.n_tokens).mean(1)
    return Lines(
        f"Neurons that never or hardly ever fire on these {trace.n_tokens} tokens",
        "layer",
        "% of the layer's neurons",
        (Line("for no token", x, 100 * trace.dead_share_L), Line("for under 1 % of tokens", x, 100 * rare_L)),
        chooses=True,
        notice="A click, or Enter on a point, chooses the layer.",
    )


def unions(trace: Trace, layer: int) -> Lines:
    """Different neurons that B consecutive tokens fire, and how many it would be if tokens were independent.

    Only whole blocks count.
    """
    unions_GB = trace.patterns[layer].packed()
    blocks = [block for block in BLOCKS if block <= trace.n_tokens]
    mean, largest = [], []
    for _ in blocks:
        sizes = np.bitwise_count(unions_GB).sum(1, dtype=np.int64)
        mean.append(float(sizes.mean()))
        largest.append(float(sizes.max()))
        # Two neighbours make one block of twice the size; a last block without a neighbour is left out.
        pairs = unions_GB.shape[0] // 2 * 2
        unions_GB = unions_GB[0:pairs:2] | unions_GB[1:pairs:2]
    share_H = trace.activity_LH[layer] / trace.n_tokens
    alone = [float((1 - (1 - share_H) ** block).sum()) for block in blocks]
    x = np.array(blocks)
    return Lines(
        f"Union of the neurons that B neighbours fire, layer {layer}",
        "B, consecutive tokens",
        f"different neurons (of {trace.n_hidden})",
        (
            Line("mean", x, np.array(mean)),
            Line("largest", x, np.array(largest)),
            Line("if independent", x, np.array(alone)),
        ),
        log_x=True,
        log_y=True,
    )


def nearest(trace: Trace, layer: int, neuron: int, k: int = 8) -> list[Neighbour]:
    """The ``k`` neurons of the layer that fire together with ``neuron`` most, by the Jaccard index; ties by number."""
    tokens, _ = trace.patterns[layer].tokens_of(neuron)
    if tokens.size == 0:
        return []
    both_H = _counts_H(trace, layer, tokens)
    either_H = trace.activity_LH[layer] + tokens.size - both_H
    overlap_H = both_H / np.maximum(either_H, 1)
    overlap_H[neuron] = -1
    order = np.argsort(-overlap_H, kind="stable")[:k]
    return [Neighbour(int(one), int(both_H[one]), float(overlap_H[one])) for one in order if overlap_H[one] > 0]


def top_contexts(trace: Trace, layer: int, neuron: int, k: int = 8) -> NeuronRow:
    """A neuron with the ``k`` tokens that excite it most, in context; its strength is that at the first."""
    tokens, strengths = trace.top_tokens(layer, neuron, k)
    share = float(trace.activity_LH[layer, neuron]) / trace.n_tokens
    strongest = float(strengths[0]) if strengths.size else 0.0
    return NeuronRow(neuron, strongest, share, [trace.context(int(token), 8) for token in tokens])


def neuron_positions(trace: Trace, layer: int, neuron: int) -> Lines:
    """Share of tokens that fire a neuron, by position in the sequence."""
    tokens, _ = trace.patterns[layer].tokens_of(_checked(trace, neuron))
    bin_M, x = _bins(trace)
    share = 100 * np.bincount(bin_M[tokens], minlength=x.size) / np.bincount(bin_M)
    return Lines(
        f"Where neuron {neuron} of layer {layer} fires, by position",
        "position in the sequence, from 1",
        "% of tokens",
        (Line(f"neuron {neuron}", x, share),),
        log_x=True,
        whole_x=False,
    )


def neuron_layers(trace: Trace, layer: int, neuron: int) -> Lines:
    """Mean counts of the tokens that fire a neuron, in each layer, beside those of all tokens."""
    tokens, _ = trace.patterns[layer].tokens_of(_checked(trace, neuron))
    x = np.arange(trace.n_layers)
    mine_L = trace.counts_LM[:, tokens].mean(1) if tokens.size else np.full(trace.n_layers, np.nan)
    return Lines(
        f"What else the tokens of neuron {neuron} fire, by layer",
        "layer",
        f"mean active neurons (of {trace.n_hidden})",
        (Line(f"tokens that fire neuron {neuron} of layer {layer}", x, mine_L), Line("all tokens", x, trace.mean_L)),
    )


def _checked(trace: Trace, neuron: int) -> int:
    if not 0 <= neuron < trace.n_hidden:
        raise TraceError(f"neuron={neuron!r}: this trace has neurons 0 to {trace.n_hidden - 1}")
    return neuron


def _counts_H(trace: Trace, layer: int, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """How many of ``tokens`` fire each neuron."""
    pattern = trace.patterns[layer]
    if pattern.bits_MB is not None:
        total_H = np.zeros(trace.n_hidden, np.int64)
        # 255 rows at a time, so that the sums fit into bytes.
        for first in range(0, tokens.size, 255):
            rows = np.unpackbits(pattern.bits_MB[tokens[first : first + 255]], axis=1, count=trace.n_hidden)
            total_H += rows.sum(0, dtype=np.uint8)
        return total_H
    assert pattern.ids_N is not None
    parts = [pattern.ids_N[pattern.start[token] : pattern.start[token + 1]] for token in tokens]
    return np.bincount(np.concatenate(parts), minlength=trace.n_hidden)


def _bins(trace: Trace) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """Bin of each token by its position, four for each doubling, and the mean position of each bin."""
    position_M = trace.position_M + 1
    bin_M = np.floor(np.log2(position_M) * 4 + 1e-9).astype(np.int64)
    _, bin_M = np.unique(bin_M, return_inverse=True)
    return bin_M, np.bincount(bin_M, position_M) / np.bincount(bin_M)
