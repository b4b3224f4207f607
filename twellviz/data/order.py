"""The order in which training reads the windows of a text: a function of seed and step, with no state.

Exact resume needs no more than the step number, because the batch of step s does not depend on how the
steps before it were run.

Letters: B sequences of a batch, N positions of a sequence.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from twellviz.data.tokens import TokenArray
from twellviz.errors import ConfigError


class WindowOrder:
    """Batches of windows of ``seq_len`` tokens, each window once an epoch, in an order of its own each epoch.

    Sequence k of the run (counted over all steps) is window ``permutation(seed, epoch)[k mod n_windows]`` with
    ``epoch = k // n_windows``. Step s reads sequences ``s * sequences`` onwards, so that 8 sequences in 4 parts
    and 32 in one part are the same 32.

    Parameters
    ----------
    tokens : uint16 or uint32 [n_tokens]
    seq_len : int
        N.
    sequences : int
        Sequences of one step: batch size times accumulation.
    seed : int

    Attributes
    ----------
    n_windows : int
        Windows of an epoch: ``(n_tokens - 1) // seq_len``, as each window needs one more token for its targets.

    Raises
    ------
    ConfigError
        The text is shorter than one window, or a number is out of range.
    """

    def __init__(self, tokens: TokenArray, *, seq_len: int, sequences: int, seed: int) -> None:
        for name, number, least in (("seq_len", seq_len, 1), ("sequences", sequences, 1), ("seed", seed, 0)):
            if number < least:
                raise ConfigError(f"{name}={number}: at least {least} is needed")
        self.n_windows = (len(tokens) - 1) // seq_len
        if self.n_windows < 1:
            raise ConfigError(
                f"seq_len={seq_len}: the text has {len(tokens)} tokens, one window needs {seq_len + 1}; "
                "give more text or a smaller seq_len"
            )
        self._tokens, self._seq_len, self._sequences, self._seed = tokens, seq_len, sequences, seed
        self._permutation = lru_cache(maxsize=2)(self._permute)

    def batch(self, step: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Inputs and targets of a step.

        Parameters
        ----------
        step : int
            From 0.

        Returns
        -------
        tokens_BN, targets_BN : int64
            ``targets`` is ``tokens`` one position later.
        """
        windows = self.windows(step)
        first = np.asarray(windows, dtype=np.int64)[:, None] * self._seq_len
        block = self._tokens[first + np.arange(self._seq_len + 1)].astype(np.int64)
        return block[:, :-1], block[:, 1:]

    def windows(self, step: int) -> list[int]:
        """Window numbers of a step, in order."""
        start = step * self._sequences
        numbers = []
        for k in range(start, start + self._sequences):
            epoch, place = divmod(k, self.n_windows)
            numbers.append(int(self._permutation(epoch)[place]))
        return numbers

    def _permute(self, epoch: int) -> npt.NDArray[np.int64]:
        return np.random.default_rng([self._seed, epoch]).permutation(self.n_windows)
