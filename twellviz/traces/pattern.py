"""Which neurons of one layer fired for which tokens, and how strongly.

Held as neuron ids where few neurons fire, and as one bit a neuron where many do. The strength ``|h|`` of an
active neuron is a code of 8 bits and one scale a token: code 0 to 254 means ``code * scale`` with
``scale = (largest finite |h| of the token) / 254``, so a strength is off by at most half a scale, 1/508 of the
token's largest. Code 255 marks a value that is NaN or infinite; it reads back as NaN. Signs are not kept.

Letters: M tokens, H hidden width, N active (token, neuron) pairs.
"""

# ruff: noqa: N802 - methods carry the shape of their array as a suffix

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from twellviz.errors import TraceError

SPARSE_BELOW = 0.05
"""Share of active neurons from which bits are held instead of ids: 16 bits an id pay below 1/16."""
LARGEST_CODE = 254
NOT_FINITE = 255

Array: TypeAlias = npt.NDArray[Any]


def quantise(strengths_N: Array, counts_M: Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """Turn strengths into codes with one scale a token; see the module's text for the error.

    Parameters
    ----------
    strengths_N : float [N]
        ``|h|`` of the active neurons, token after token; NaN and infinity are allowed.
    counts_M : int [M]
        Active neurons of each token, N in sum.

    Returns
    -------
    codes_N : uint8 [N]
    scale_M : float32 [M]
        0 for a token without a finite strength above 0.
    """
    strengths_N = np.abs(strengths_N.astype(np.float32))
    finite_N = np.isfinite(strengths_N)
    known_N = np.where(finite_N, strengths_N, np.float32(0))
    largest_M = np.zeros(counts_M.size, np.float32)
    fires_M = counts_M > 0
    if fires_M.any():
        # reduceat reads an empty segment as one element, so only tokens that fire are reduced.
        largest_M[fires_M] = np.maximum.reduceat(known_N, (np.cumsum(counts_M) - counts_M)[fires_M])
    scale_M = largest_M / np.float32(LARGEST_CODE)
    scale_N = np.repeat(scale_M, counts_M)
    steps_N = np.divide(known_N, scale_N, out=np.zeros_like(known_N), where=scale_N > 0)
    codes_N = np.minimum(np.rint(steps_N), LARGEST_CODE).astype(np.uint8)
    codes_N[~finite_N] = NOT_FINITE
    return codes_N, scale_M


@dataclass(frozen=True, eq=False, repr=False)
class LayerPattern:
    """The activity of one layer; make it with :meth:`from_dense` or :meth:`from_ids`.

    Attributes
    ----------
    n_hidden : int
        H.
    start : int64 [M + 1]
        The entries of token m are ``start[m]`` to ``start[m + 1] - 1``, neurons ascending.
    codes_N : uint8 [N]
        Strength of each entry, 255 where it is not finite.
    scale_M : float32 [M]
        Strength of one step of the codes, in units of h.
    ids_N : uint16 (int32 where H > 65,536) [N], or None
        Neuron of each entry.
    bits_MB : uint8 [M, ceil(H / 8)], or None
        The same as bits, neuron 0 in the highest bit of byte 0; exactly one of the two is given.

    Raises
    ------
    TraceError
        Shapes, dtypes or contents contradict each other.
    """

    n_hidden: int
    start: npt.NDArray[np.int64]
    codes_N: npt.NDArray[np.uint8]
    scale_M: npt.NDArray[np.float32]
    ids_N: Array | None = None
    bits_MB: npt.NDArray[np.uint8] | None = None

    def __post_init__(self) -> None:
        n_tokens, n_entries = self.scale_M.size, self.codes_N.size
        _require(self.start.shape == (n_tokens + 1,), f"start has shape {self.start.shape}, not ({n_tokens + 1},)")
        _require(bool((np.diff(self.start) >= 0).all()), "counts are negative")
        _require(
            int(self.start[0]) == 0 and int(self.start[-1]) == n_entries,
            f"counts add up to {int(self.start[-1])}, but there are {n_entries} codes",
        )
        finite = np.isfinite(self.scale_M).all() and (self.scale_M >= 0).all()
        _require(bool(finite), "scales must be finite and not negative")
        _require((self.ids_N is None) != (self.bits_MB is None), "either ids or bits are needed, and not both")
        if self.ids_N is not None:
            self._check_ids(self.ids_N)
        if self.bits_MB is not None:
            self._check_bits(self.bits_MB)

    def _check_ids(self, ids_N: Array) -> None:
        _require(ids_N.shape == self.codes_N.shape, f"{ids_N.size} ids for {self.codes_N.size} codes")
        if ids_N.size == 0:
            return
        low, high = int(ids_N.min()), int(ids_N.max())
        _require(low >= 0 and high < self.n_hidden, f"ids {low} to {high} outside 0 to {self.n_hidden - 1}")
        rising_N = np.diff(ids_N.astype(np.int64)) > 0
        # From one token to the next the ids may fall.
        first_of_token = self.start[1:-1]
        inside = (first_of_token > 0) & (first_of_token < ids_N.size)
        rising_N[first_of_token[inside] - 1] = True
        _require(bool(rising_N.all()), "the ids of a token do not ascend")

    def _check_bits(self, bits_MB: npt.NDArray[np.uint8]) -> None:
        shape = (self.n_tokens, -(-self.n_hidden // 8))
        _require(bits_MB.shape == shape, f"bits have shape {bits_MB.shape}, not {shape}")
        counts_M = np.bitwise_count(bits_MB).sum(1, dtype=np.int64)
        _require(bool((counts_M == np.diff(self.start)).all()), "bits and counts differ")
        spare = 8 * shape[1] - self.n_hidden
        _require(not (bits_MB[:, -1] & ((1 << spare) - 1)).any(), f"bits past neuron {self.n_hidden - 1} are set")

    @classmethod
    def from_ids(
        cls,
        ids_N: Array,
        codes_N: npt.NDArray[np.uint8],
        scale_M: npt.NDArray[np.float32],
        counts_M: Array,
        n_hidden: int,
    ) -> LayerPattern:
        """Hold entries in the smaller of the two forms: ids below 5 % active, bits above."""
        start = start_of(counts_M)
        n_tokens = counts_M.size
        if ids_N.size < SPARSE_BELOW * n_tokens * n_hidden:
            return cls(n_hidden, start, codes_N, scale_M, ids_N=ids_N.astype(id_dtype(n_hidden)))
        bits_MB = np.empty((n_tokens, -(-n_hidden // 8)), np.uint8)
        # In blocks, so that the dense form of a long text never stands in memory.
        for first in range(0, n_tokens, _BLOCK):
            last = min(first + _BLOCK, n_tokens)
            bits_MB[first:last] = np.packbits(_dense(ids_N, start, first, last, n_hidden), axis=1)
        return cls(n_hidden, start, codes_N, scale_M, bits_MB=bits_MB)

    @classmethod
    def from_dense(cls, h_MH: Array, active_MH: Array | None = None) -> LayerPattern:
        """Pack dense activations.

        Parameters
        ----------
        h_MH : float [M, H]
        active_MH : bool [M, H], optional
            Which neurons fired; where ``h`` is not 0 (NaN counts) if not given.
        """
        active_MH = np.asarray(h_MH != 0 if active_MH is None else active_MH, bool)
        counts_M = active_MH.sum(1)
        codes_N, scale_M = quantise(h_MH[active_MH], counts_M)
        return cls.from_ids(active_MH.nonzero()[1], codes_N, scale_M, counts_M, h_MH.shape[1])

    @property
    def n_tokens(self) -> int:
        """M."""
        return self.scale_M.size

    @property
    def form(self) -> str:
        """``"ids"`` or ``"bits"``."""
        return "bits" if self.ids_N is None else "ids"

    @property
    def nbytes(self) -> int:
        """Bytes of the pattern as stored: ids or bits, codes, scales."""
        held = self.bits_MB if self.ids_N is None else self.ids_N
        assert held is not None  # __post_init__ made sure of one
        return held.nbytes + self.codes_N.nbytes + self.scale_M.nbytes

    @property
    def counts_M(self) -> npt.NDArray[np.int32]:
        """Active neurons of each token."""
        return np.diff(self.start).astype(np.int32)

    def active(self, token: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Neurons that fired for a token, ascending, and their strengths ``|h|``."""
        entries = slice(int(self.start[token]), int(self.start[token + 1]))
        if self.ids_N is not None:
            ids = self.ids_N[entries].astype(np.int64)
        else:
            assert self.bits_MB is not None
            ids = np.flatnonzero(np.unpackbits(self.bits_MB[token], count=self.n_hidden))
        return ids, decode(self.codes_N[entries], self.scale_M[token])

    def dense(self, first: int = 0, last: int | None = None) -> npt.NDArray[np.bool_]:
        """Which neuron fired for the tokens ``first`` to ``last - 1``: bool [last - first, H]."""
        last = self.n_tokens if last is None else last
        if self.bits_MB is not None:
            return np.unpackbits(self.bits_MB[first:last], axis=1, count=self.n_hidden).astype(bool)
        assert self.ids_N is not None
        return _dense(self.ids_N, self.start, first, last, self.n_hidden)

    def activity_H(self) -> npt.NDArray[np.int64]:
        """Tokens for which each neuron fired."""
        if self.ids_N is not None:
            return np.bincount(self.ids_N, minlength=self.n_hidden).astype(np.int64)
        blocks = range(0, self.n_tokens, _BLOCK)
        return sum(
            (self.dense(first, min(first + _BLOCK, self.n_tokens)).sum(0) for first in blocks),
            np.zeros(self.n_hidden, np.int64),
        )

    def tokens_of(self, neuron: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Tokens for which a neuron fired, ascending, and its strengths."""
        if self.ids_N is not None:
            entries_N = np.flatnonzero(self.ids_N == neuron)
            tokens = np.searchsorted(self.start, entries_N, side="right") - 1
        else:
            assert self.bits_MB is not None
            # One column of bits, then for each token that has it the number of bits before it: the place of its code.
            # Sorting all entries by neuron instead takes a hundred times as long and stays in memory.
            byte, bit = divmod(neuron, 8)
            tokens = np.flatnonzero(self.bits_MB[:, byte] & (0x80 >> bit))
            before = np.bitwise_count(self.bits_MB[tokens, :byte]).sum(1, dtype=np.int64)
            before += np.bitwise_count(self.bits_MB[tokens, byte] & (0xFF00 >> bit & 0xFF))
            entries_N = self.start[tokens] + before
        return tokens, decode(self.codes_N[entries_N], self.scale_M[tokens])

    def packed(self) -> npt.NDArray[np.uint8]:
        """Which neuron fired for which token: uint8 [M, ceil(H / 8)], neuron 0 in the highest bit of byte 0."""
        if self.bits_MB is not None:
            return self.bits_MB
        bits_MB = np.empty((self.n_tokens, -(-self.n_hidden // 8)), np.uint8)
        for first in range(0, self.n_tokens, _BLOCK):
            last = min(first + _BLOCK, self.n_tokens)
            bits_MB[first:last] = np.packbits(self.dense(first, last), axis=1)
        return bits_MB

    def neurons_N(self) -> Array:
        """Neuron of each entry, token after token."""
        if self.ids_N is not None:
            return self.ids_N
        blocks = range(0, self.n_tokens, _BLOCK)
        parts = [self.dense(first, min(first + _BLOCK, self.n_tokens)).nonzero()[1] for first in blocks]
        return np.concatenate([part.astype(id_dtype(self.n_hidden)) for part in parts])


_BLOCK = 1024


def start_of(counts: Array) -> npt.NDArray[np.int64]:
    """Running start of groups of these sizes, with the total at the end: int64 [n + 1]."""
    start = np.zeros(counts.size + 1, np.int64)
    np.cumsum(counts, out=start[1:])
    return start


def id_dtype(n_hidden: int) -> type[np.uint16] | type[np.int32]:
    """uint16 where it names every neuron, else int32."""
    return np.uint16 if n_hidden <= 1 << 16 else np.int32


def decode(codes: npt.NDArray[np.uint8], scale: Any) -> npt.NDArray[np.float32]:
    """Strengths of codes: float32, NaN for code 255."""
    strengths = codes.astype(np.float32) * scale
    return np.where(codes == NOT_FINITE, np.float32(np.nan), strengths).astype(np.float32)


def _dense(ids_N: Array, start: Array, first: int, last: int, n_hidden: int) -> npt.NDArray[np.bool_]:
    active_MH = np.zeros((last - first, n_hidden), bool)
    tokens_N = np.repeat(np.arange(last - first), np.diff(start[first : last + 1]))
    active_MH[tokens_N, ids_N[start[first] : start[last]]] = True
    return active_MH


def _require(condition: bool, says: str) -> None:
    if not condition:
        raise TraceError(f"pattern of a layer: {says}")
