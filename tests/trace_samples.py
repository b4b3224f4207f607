"""Traces made by hand for the tests of traces, plots and explorers.

Letters: L layers, M tokens, H hidden width.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from twellviz.traces import LayerPattern, Trace
from twellviz.traces.pattern import quantise

HOSTILE = (
    "<script>alert(1)</script>",
    "&amp; \"quoted\" 'text'",
    "$x_$",
    "| a | b |",
    "x" * 10_000,
    "שלום",
    "مرحبا",
    "中文字",
    "\U0001f469\u200d\U0001f467",
    "\x00",
    "\u202eabc",
    "</script><!--",
    "=1+1",
    "line\nbreak",
    "\\frac{1}{2}",
    "{braces} %s",
)

AFTER_HOSTILE = (*(f"\U0001f642[{piece}/4]" for piece in range(1, 5)), "<|im_start|>", f"<{len(HOSTILE) + 5}>")
"""Labels of the tokens that :func:`hostile_trace` adds."""


def activations(
    n_layers: int, n_tokens: int, n_hidden: int, share: float = 0.04, seed: int = 0
) -> npt.NDArray[np.float32]:
    """Random activations [L, M, H], mostly zero; later layers fire more, first tokens too."""
    rng = np.random.default_rng(seed)
    share_LM = share * (1 + np.arange(n_layers)[:, None]) * (1 + 5 / (1 + np.arange(n_tokens)))
    fires_LMH = rng.random((n_layers, n_tokens, n_hidden)) < share_LM[..., None]
    strength_LMH = rng.exponential(1.0, fires_LMH.shape).astype(np.float32) + 0.01
    return np.where(fires_LMH, strength_LMH * rng.choice([-1, 1], fires_LMH.shape), 0).astype(np.float32)


def trace_of(
    h_LMH: npt.NDArray[np.float32], words: list[str] | None = None, sequence_lengths: list[int] | None = None
) -> Trace:
    """A trace of these activations on a text of one token a word."""
    n_tokens = h_LMH.shape[1]
    words = [f" w{i}" for i in range(n_tokens)] if words is None else words
    assert len(words) == n_tokens
    stops = np.cumsum([len(word) for word in words])
    lengths = [n_tokens] if sequence_lengths is None else sequence_lengths
    return Trace.from_patterns(
        tuple(LayerPattern.from_dense(h_MH) for h_MH in h_LMH),
        tokens_M=np.arange(n_tokens, dtype=np.int32),
        offsets_M2=np.stack([stops - [len(word) for word in words], stops], axis=1).astype(np.int32),
        sequence_start=np.cumsum([0, *lengths], dtype=np.int64),
        sequence_text=np.zeros(len(lengths), np.int32),
        texts=("".join(words),),
        sources=("made",),
        model="sample",
        special={0: "<|endoftext|>"},
    )


def sample_trace(n_layers: int = 3, n_tokens: int = 40, n_hidden: int = 200) -> Trace:
    """A small trace of random activations in two sequences."""
    first = n_tokens // 2 + 3
    return trace_of(activations(n_layers, n_tokens, n_hidden), sequence_lengths=[first, n_tokens - first])


def hostile_trace() -> Trace:
    """A trace whose tokens are texts that break renderers; then :data:`AFTER_HOSTILE`.

    These are an emoji that four byte tokens share, a special token whose name is markup, and a token of no text.
    """
    n_words, n_tokens = len(HOSTILE), len(HOSTILE) + len(AFTER_HOSTILE)
    made = trace_of(activations(2, n_tokens, 64, share=0.2), words=[*HOSTILE, "\U0001f642", *[""] * 5])
    offsets_M2 = made.offsets_M2.copy()
    offsets_M2[n_words : n_words + 4] = offsets_M2[n_words]
    special = {n_tokens - 2: "<|im_start|>"}
    return replace(made, offsets_M2=offsets_M2, special=special)


def big_trace(n_layers: int, n_tokens: int, n_hidden: int) -> Trace:
    """A trace of random patterns, in both stored forms by turns, without its dense activations ever in memory."""
    rng = np.random.default_rng(0)
    patterns = []
    for layer in range(n_layers):
        active_MH = rng.random((n_tokens, n_hidden), dtype=np.float32) < (0.03 if layer % 2 else 0.1)
        counts_M = active_MH.sum(1)
        codes_N, scale_M = quantise(rng.random(int(counts_M.sum()), dtype=np.float32) + 0.01, counts_M)
        patterns.append(LayerPattern.from_ids(active_MH.nonzero()[1], codes_N, scale_M, counts_M, n_hidden))
    words = [f" w{i}" for i in range(n_tokens)]
    stops = np.cumsum([len(word) for word in words])
    return Trace.from_patterns(
        tuple(patterns),
        tokens_M=np.arange(n_tokens, dtype=np.int32),
        offsets_M2=np.stack([stops - [len(word) for word in words], stops], axis=1).astype(np.int32),
        sequence_start=np.array([0, n_tokens], np.int64),
        sequence_text=np.zeros(1, np.int32),
        texts=("".join(words),),
        model="big",
    )
