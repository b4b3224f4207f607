"""The strongest neurons of every token of a layer, and the strongest tokens of every neuron, in one pass over it.

One token or neuron at a time is :meth:`twellviz.traces.Trace.top_neurons` and ``top_tokens``; asking those for all of a
large trace takes a minute, this a few seconds.

Letters: M tokens, N active (token, neuron) pairs, k asked for.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from twellviz.traces.pattern import NOT_FINITE, LayerPattern, decode, start_of

Array = npt.NDArray[Any]


def neurons_of_every_token(
    pattern: LayerPattern, k: int, neurons_N: Array
) -> tuple[npt.NDArray[np.int64], Array, npt.NDArray[np.float32]]:
    """The ``k`` strongest neurons of each token, strongest first; not-finite ones lead, ties by number.

    Parameters
    ----------
    pattern : LayerPattern
    k : int
    neurons_N : int [N]
        ``pattern.neurons_N()``.

    Returns
    -------
    start : int64 [M + 1]
        Where each token's begin in the other two.
    neurons, strengths
    """
    counts_M = pattern.counts_M
    # One scale a token, so codes order as strengths do. Bytes and 16-bit tokens are sorted by radix, in linear time.
    by_code_N = np.argsort(np.uint8(NOT_FINITE) - pattern.codes_N, kind="stable")
    token_N = np.repeat(np.arange(pattern.n_tokens), counts_M)
    token_N = token_N.astype(np.uint16) if pattern.n_tokens <= 1 << 16 else token_N
    order_N = by_code_N[np.argsort(token_N[by_code_N], kind="stable")]
    rank_N = np.arange(order_N.size) - np.repeat(pattern.start[:-1], counts_M)
    kept = order_N[rank_N < k]
    return (
        start_of(np.minimum(counts_M, k)),
        neurons_N[kept],
        decode(pattern.codes_N[kept], pattern.scale_M[token_N[kept]]),
    )


def tokens_of_every_neuron(
    pattern: LayerPattern, k: int, neurons_N: Array
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The ``k`` tokens for which each neuron was strongest, strongest first; ties in reading order.

    Returns
    -------
    start : int64 [H + 1]
        Where each neuron's begin in ``tokens``.
    tokens : int64
    """
    token_N = np.repeat(np.arange(pattern.n_tokens), pattern.counts_M)
    strength_N = np.nan_to_num(decode(pattern.codes_N, pattern.scale_M[token_N]), nan=np.inf)
    order_N = np.argsort(neurons_N, kind="stable")
    strength_N, token_N = strength_N[order_N], token_N[order_N]
    fires_H = np.bincount(neurons_N, minlength=pattern.n_hidden)
    found_H = np.minimum(fires_H, k)
    start, begins = start_of(found_H), start_of(fires_H)
    tokens = np.empty(start[-1], np.int64)
    place_N = np.arange(order_N.size)
    # k times the largest that is left: cheaper than a sort for a small k.
    for turn in range(k):
        alive = np.flatnonzero(fires_H > turn)
        if alive.size == 0:
            break
        segments = begins[:-1][fires_H > 0]
        largest_N = np.repeat(np.maximum.reduceat(strength_N, segments), fires_H[fires_H > 0])
        first = np.minimum.reduceat(np.where(strength_N == largest_N, place_N, order_N.size), segments)
        first = first[(fires_H > turn)[fires_H > 0]]
        tokens[start[alive] + turn] = token_N[first]
        strength_N[first] = -1
    return start, tokens
