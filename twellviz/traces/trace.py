"""The trace of a text through a model: which neuron of which layer fired for which token.

Letters: L layers, M tokens, H hidden width, B tokens of a block.
"""

# ruff: noqa: N802 - properties carry the shape of their array as a suffix

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from twellviz.errors import TraceError
from twellviz.traces.labels import TokenText, token_texts
from twellviz.traces.pattern import LayerPattern

if TYPE_CHECKING:
    import pandas as pd


class Context(NamedTuple):
    """A token in its text: what the same sequence holds before it, itself, and after it."""

    before: str
    token: str
    after: str


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """What the neurons of a model did on a text. Make it with :func:`twellviz.traces.record` or :meth:`load`.

    A token's count in a layer is its L0: the number of neurons whose gate value is not ``<= 0``.

    Attributes
    ----------
    counts_LM : int32 [L, M]
        Active neurons of each token in each layer.
    activity_LH : int64 [L, H]
        Tokens for which each neuron fired.
    patterns : tuple of LayerPattern
        Which neurons fired, and how strongly, one per layer.
    tokens_M : int32 [M]
        Token ids.
    offsets_M2 : int32 [M, 2]
        First and one past the last character of each token in its text.
    sequence_start : int64 [n_sequences + 1]
        First token of each sequence, and M. The model saw each sequence alone.
    sequence_text : int32 [n_sequences]
        Which text a sequence is from.
    texts, sources : tuple of str
        The texts, and where each is from ("" if not known).
    model : str
        Name of the model.
    settings : dict
        The model's settings, as JSON holds them.
    special : dict of int to str
        Names of token ids that stand for no character.
    made : dict of str to str
        Date, versions, device, hash of the tokenizer.

    Raises
    ------
    TraceError
        Parts contradict each other, or there is no token or layer.
    """

    counts_LM: npt.NDArray[np.int32]
    activity_LH: npt.NDArray[np.int64]
    patterns: tuple[LayerPattern, ...]
    tokens_M: npt.NDArray[np.int32]
    offsets_M2: npt.NDArray[np.int32]
    sequence_start: npt.NDArray[np.int64]
    sequence_text: npt.NDArray[np.int32]
    texts: tuple[str, ...]
    sources: tuple[str, ...] = ()
    model: str = "model"
    settings: Mapping[str, Any] = field(default_factory=dict)
    special: Mapping[int, str] = field(default_factory=dict)
    made: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.sources:
            object.__setattr__(self, "sources", ("",) * len(self.texts))
        _check(self)

    @classmethod
    def from_patterns(cls, patterns: tuple[LayerPattern, ...], **parts: Any) -> Trace:
        """A trace of these patterns, with the counts and the activity taken from them."""
        if not patterns:
            raise TraceError("patterns=(): at least one layer is needed")
        return cls(
            counts_LM=np.stack([pattern.counts_M for pattern in patterns]),
            activity_LH=np.stack([pattern.activity_H() for pattern in patterns]),
            patterns=patterns,
            **parts,
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """Read a trace that :meth:`save` wrote.

        Raises
        ------
        TraceError
            The file is missing, truncated, foreign, of another version, or inconsistent.
        """
        from twellviz.traces.file import load

        return load(path)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one ``.safetensors`` file, whole or not at all."""
        from twellviz.traces.file import save

        return save(self, path)

    @property
    def n_layers(self) -> int:
        """L."""
        return int(self.counts_LM.shape[0])

    @property
    def n_tokens(self) -> int:
        """M."""
        return int(self.counts_LM.shape[1])

    @property
    def n_hidden(self) -> int:
        """H, neurons of a layer."""
        return int(self.activity_LH.shape[1])

    @property
    def n_sequences(self) -> int:
        """Sequences; the model saw each alone."""
        return self.sequence_text.size

    @property
    def sequence_lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of each sequence."""
        return np.diff(self.sequence_start)

    @property
    def mean_L(self) -> npt.NDArray[np.float64]:
        """Mean number of active neurons of a token in each layer."""
        return np.asarray(self.counts_LM.mean(1))

    @property
    def p99_L(self) -> npt.NDArray[np.float64]:
        """Number of active neurons that 99 % of the tokens stay at or below, in each layer."""
        return np.percentile(self.counts_LM, 99, axis=1, method="higher").astype(np.float64)

    @property
    def max_L(self) -> npt.NDArray[np.int32]:
        """Most active neurons of a token in each layer."""
        return np.asarray(self.counts_LM.max(1))

    @property
    def dead_LH(self) -> npt.NDArray[np.bool_]:
        """Neurons that fired for no token of this trace."""
        return np.equal(self.activity_LH, 0)

    @property
    def dead_share_L(self) -> npt.NDArray[np.float64]:
        """Share of such neurons in each layer, 0 to 1."""
        return np.asarray(self.dead_LH.mean(1))

    @cached_property
    def sequence_M(self) -> npt.NDArray[np.int64]:
        """Number of the sequence that each token is in."""
        return np.repeat(np.arange(self.n_sequences), self.sequence_lengths)

    @cached_property
    def position_M(self) -> npt.NDArray[np.int64]:
        """Position of each token in its sequence, from 0."""
        return np.arange(self.n_tokens) - self.sequence_start[:-1][self.sequence_M]

    @cached_property
    def token_texts(self) -> list[TokenText]:
        """How each token reads; see :class:`twellviz.traces.TokenText`."""
        text_M = self.sequence_text[self.sequence_M]
        return token_texts(self.tokens_M, self.offsets_M2, text_M, self.texts, self.special)

    def label(self, token: int) -> str:
        """Short visible form of a token. Not escaped for HTML."""
        return self.token_texts[self._token(token)].label

    def context(self, token: int, width: int = 5) -> Context:
        """Up to ``width`` tokens before and after a token, from the same sequence."""
        token = self._token(token)
        sequence = int(self.sequence_M[token])
        text = self.texts[int(self.sequence_text[sequence])]
        first = max(int(self.sequence_start[sequence]), token - width)
        last = min(int(self.sequence_start[sequence + 1]) - 1, token + width)
        start, stop = self.offsets_M2[token].tolist()
        shown = self.token_texts[token]
        if shown.special:
            start = stop = int(self.offsets_M2[first : token + 1, 1].max())
        before = text[int(self.offsets_M2[first, 0]) : start] if first < token else ""
        after = text[stop : max(stop, int(self.offsets_M2[last, 1]))] if last > token else ""
        return Context(before, shown.text, after)

    def active(self, layer: int, token: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Neurons that fired for a token in a layer.

        Returns
        -------
        ids : int64 [n]
            Ascending.
        strengths : float32 [n]
            ``|h|``, within 1/508 of the token's largest; NaN where it was not finite.
        """
        return self.patterns[self._layer(layer)].active(self._token(token))

    def top_neurons(self, layer: int, token: int, k: int = 8) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """The ``k`` strongest neurons of a token, strongest first; not-finite ones lead, ties by number."""
        ids, strengths = self.active(layer, token)
        order = np.argsort(-np.nan_to_num(strengths, nan=np.inf), kind="stable")[:k]
        return ids[order], strengths[order]

    def top_tokens(self, layer: int, neuron: int, k: int = 3) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """The ``k`` tokens for which a neuron was strongest, strongest first; ties in reading order."""
        tokens, strengths = self.patterns[self._layer(layer)].tokens_of(self._neuron(neuron))
        order = np.argsort(-np.nan_to_num(strengths, nan=np.inf), kind="stable")[:k]
        return tokens[order], strengths[order]

    def dense(self, layer: int) -> npt.NDArray[np.bool_]:
        """Which neuron fired for which token: bool [M, H]."""
        return self.patterns[self._layer(layer)].dense()

    def position_profile(self) -> npt.NDArray[np.float64]:
        """Mean number of active neurons at each position, over the sequences that reach it: [L, longest]."""
        longest = int(self.sequence_lengths.max())
        reached = np.bincount(self.position_M, minlength=longest)
        return np.stack([np.bincount(self.position_M, counts_M, longest) / reached for counts_M in self.counts_LM])

    def union_sizes(self, layer: int, block: int) -> npt.NDArray[np.int64]:
        """How many different neurons any of ``block`` consecutive tokens fires, for each block.

        Parameters
        ----------
        layer : int
        block : int
            B, at least 1. Blocks run over the sequences as a kernel's do; the last may be shorter.

        Returns
        -------
        int64 [ceil(M / B)]
        """
        if isinstance(block, bool) or not isinstance(block, int | np.integer) or block < 1:
            raise TraceError(f"block={block!r}: a whole number of tokens, at least 1, is needed")
        pattern = self.patterns[self._layer(layer)]
        starts = range(0, self.n_tokens, int(block))
        return np.array(
            [pattern.dense(first, min(first + int(block), self.n_tokens)).any(0).sum() for first in starts], np.int64
        )

    def table(self) -> pd.DataFrame:
        """One row per token: sequence, position, source, label, id, and the count in each layer."""
        import pandas as pd

        columns: dict[str, Any] = {
            "sequence": self.sequence_M,
            "position": self.position_M,
            "source": [self.sources[text] for text in self.sequence_text[self.sequence_M]],
            "token": [shown.label for shown in self.token_texts],
            "id": self.tokens_M,
        }
        columns |= {f"l0_{layer}": counts_M for layer, counts_M in enumerate(self.counts_LM)}
        return pd.DataFrame(columns).rename_axis("index")

    def layer_table(self) -> pd.DataFrame:
        """One row per layer: mean, p99 and max of the counts, share of dead neurons."""
        import pandas as pd

        columns = {"mean": self.mean_L, "p99": self.p99_L, "max": self.max_L, "dead": self.dead_share_L}
        return pd.DataFrame(columns).rename_axis("layer")

    @property
    def nbytes(self) -> int:
        """Bytes of the patterns, by far the largest part."""
        return sum(pattern.nbytes for pattern in self.patterns)

    def __repr__(self) -> str:
        sequences = "1 sequence" if self.n_sequences == 1 else f"{self.n_sequences} sequences"
        tokens = "1 token" if self.n_tokens == 1 else f"{self.n_tokens:,} tokens"
        lines = [
            f"Trace of {self.model}: {tokens} in {sequences}, {self.n_layers} layers of {self.n_hidden} neurons",
            "  active neurons a token (L0)          never fired   held as",
            "  layer     mean      p99      max",
        ]
        n = self.n_layers
        shown = range(n) if n <= 12 else [*range(8), -1, *range(n - 3, n)]
        mean_L, p99_L, max_L, dead_L = self.mean_L, self.p99_L, self.max_L, self.dead_share_L
        lines += [
            f"  {layer:5d} {mean_L[layer]:8.1f} {p99_L[layer]:8.0f} {max_L[layer]:8d} {100 * dead_L[layer]:14.0f} %"
            f"   {self.patterns[layer].form}"
            if layer >= 0
            else "    ..."
            for layer in shown
        ]
        return "\n".join(lines)

    def _layer(self, layer: int) -> int:
        return _index("layer", layer, self.n_layers)

    def _token(self, token: int) -> int:
        return _index("token", token, self.n_tokens)

    def _neuron(self, neuron: int) -> int:
        return _index("neuron", neuron, self.n_hidden)


def _index(name: str, value: int, size: int) -> int:
    # Negative numbers would count from the end without a word.
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < size:
        raise TraceError(f"{name}={value!r}: this trace has {name}s 0 to {size - 1}")
    return int(value)


def _check(trace: Trace) -> None:
    """Raise TraceError where the parts of a trace contradict each other."""
    counts_LM, activity_LH, start = trace.counts_LM, trace.activity_LH, trace.sequence_start

    def require(condition: bool, says: str) -> None:
        if not condition:
            raise TraceError(f"trace: {says}")

    require(counts_LM.ndim == 2 and counts_LM.size > 0, f"counts_LM has shape {counts_LM.shape}: [layers, tokens]")
    n_layers, n_tokens = counts_LM.shape
    require(
        activity_LH.ndim == 2 and activity_LH.shape[0] == n_layers and activity_LH.shape[1] > 0,
        f"activity_LH has shape {activity_LH.shape}: [{n_layers}, neurons] is expected",
    )
    require(len(trace.patterns) == n_layers, f"{len(trace.patterns)} patterns for {n_layers} layers")
    require(trace.tokens_M.shape == (n_tokens,), f"tokens_M has shape {trace.tokens_M.shape}, not ({n_tokens},)")
    require(
        trace.offsets_M2.shape == (n_tokens, 2), f"offsets_M2 has shape {trace.offsets_M2.shape}, not ({n_tokens}, 2)"
    )
    require(
        start.ndim == 1 and start.size >= 2 and int(start[0]) == 0 and int(start[-1]) == n_tokens,
        f"sequence_start must run from 0 to {n_tokens}",
    )
    require(bool((np.diff(start) > 0).all()), "sequence_start must ascend: a sequence has at least one token")
    require(
        trace.sequence_text.shape == (start.size - 1,),
        f"sequence_text has shape {trace.sequence_text.shape}, not ({start.size - 1},)",
    )
    n_texts = len(trace.texts)
    require(len(trace.sources) == n_texts, f"{len(trace.sources)} sources for {n_texts} texts")
    require(
        bool(((trace.sequence_text >= 0) & (trace.sequence_text < n_texts)).all()),
        f"sequence_text names a text outside 0 to {n_texts - 1}",
    )
    length_M = np.array([len(text) for text in trace.texts])[trace.sequence_text[trace.sequence_M]]
    first_M, last_M = trace.offsets_M2[:, 0], trace.offsets_M2[:, 1]
    require(
        bool(((first_M >= 0) & (first_M <= last_M) & (last_M <= length_M)).all()),
        "offsets_M2 names characters that the text does not have",
    )
    for layer, pattern in enumerate(trace.patterns):
        require(
            (pattern.n_tokens, pattern.n_hidden) == (n_tokens, activity_LH.shape[1]),
            f"the pattern of layer {layer} is {pattern.n_tokens} x {pattern.n_hidden}, not {n_tokens} x "
            f"{activity_LH.shape[1]}",
        )
        require(bool((pattern.counts_M == counts_LM[layer]).all()), f"counts and pattern of layer {layer} differ")
        require(
            bool((pattern.activity_H() == activity_LH[layer]).all()), f"activity and pattern of layer {layer} differ"
        )
