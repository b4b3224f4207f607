"""A trigram model, as the yardstick that a trained model has to beat on the same text.

Interpolated absolute discounting (Ney, Essen and Kneser, 1994): each count gives up a discount, and what a context has
given up is shared out by the next shorter context.

    p(w | u v) = max(c(u v w) - d, 0) / c(u v) + d n(u v) / c(u v) * p(w | v)

with n(u v) the number of different words seen after u v; the same for p(w | v), and p(w) with one added to each count.

Letters: n tokens, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twellviz.data.tokens import TokenArray
from twellviz.errors import ConfigError

Keys = NDArray[np.int64]


@dataclass(frozen=True)
class Counts:
    """How often each n-gram and each of their contexts occurred; keys are sorted."""

    gram: Keys
    count: Keys
    context: Keys
    total: Keys
    different: Keys

    @classmethod
    def of(cls, tokens: Keys, order: int, vocab_size: int) -> Counts:
        """Count the n-grams of ``order`` tokens."""
        gram, count = np.unique(_keys(tokens, order, vocab_size), return_counts=True)
        context, first = np.unique(gram // vocab_size, return_index=True)
        edges = np.append(first, len(gram))
        return cls(gram, count, context, np.add.reduceat(count, first), np.diff(edges))


class Trigram:
    """A trigram model fitted on a text.

    Parameters
    ----------
    tokens : uint16 or uint32 [n]
        At least 3.
    vocab_size : int
        V, up to 2 million, so that three ids fit into a 64-bit key.
    discount : float
        d, between 0 and 1.

    Raises
    ------
    ConfigError
    """

    def __init__(self, tokens: TokenArray, vocab_size: int, *, discount: float = 0.75) -> None:
        if not 0 < discount < 1:
            raise ConfigError(f"discount={discount}: a number between 0 and 1 is needed")
        if not 1 <= vocab_size <= 2_000_000:
            raise ConfigError(f"vocab_size={vocab_size}: 1 to 2,000,000 are possible")
        ids = _checked("tokens", tokens, vocab_size)
        self.vocab_size, self.discount = vocab_size, discount
        self._unigram = (np.bincount(ids, minlength=vocab_size) + 1.0) / (len(ids) + vocab_size)
        self._counts = {order: Counts.of(ids, order, vocab_size) for order in (2, 3)}

    def loss(self, tokens: TokenArray) -> float:
        """Mean cross-entropy in nats of each token given the two before it, from the third token on.

        Parameters
        ----------
        tokens : uint16 or uint32 [n]

        Raises
        ------
        ConfigError
            Fewer than 3 tokens, or an id outside of the vocabulary.
        """
        ids = _checked("tokens", tokens, self.vocab_size)
        return float(-np.log(self._probability(ids, 3)).mean())

    def _probability(self, ids: Keys, order: int) -> NDArray[np.float64]:
        """Probability of each token from number ``order`` on, given the ``order - 1`` before it."""
        if order == 1:
            unigram: NDArray[np.float64] = self._unigram[ids]
            return unigram
        shorter = self._probability(ids[1:], order - 1)
        counts = self._counts[order]
        grams = _keys(ids, order, self.vocab_size)
        count = _look_up(counts.gram, counts.count, grams)
        contexts = grams // self.vocab_size
        total = _look_up(counts.context, counts.total, contexts)
        different = _look_up(counts.context, counts.different, contexts)
        # A context that never occurred leaves all to the shorter one.
        seen = np.maximum(total, 1)
        kept = np.maximum(count - self.discount, 0) / seen
        given_up = np.where(total > 0, self.discount * different / seen, 1.0)
        probability: NDArray[np.float64] = kept + given_up * shorter
        return probability


def _checked(name: str, tokens: TokenArray, vocab_size: int) -> Keys:
    ids = np.asarray(tokens)
    if ids.ndim != 1 or len(ids) < 3 or not np.issubdtype(ids.dtype, np.integer):
        raise ConfigError(f"{name} is {ids.dtype} {ids.shape}: at least 3 integer ids in a row are needed")
    if int(ids.max()) >= vocab_size or int(ids.min()) < 0:
        raise ConfigError(f"{name} holds ids from {ids.min()} to {ids.max()}: 0 to {vocab_size - 1} are known")
    return ids.astype(np.int64)


def _keys(ids: Keys, order: int, vocab_size: int) -> Keys:
    """One number for each n-gram: its ids as digits."""
    keys = ids[: len(ids) - order + 1].copy()
    for place in range(1, order):
        keys = keys * vocab_size + ids[place : len(ids) - order + 1 + place]
    return keys


def _look_up(keys: Keys, values: Keys, wanted: Keys) -> Keys:
    """Values of the sorted ``keys``, 0 for what is not among them."""
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0)
