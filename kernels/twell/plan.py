"""Which way a feed-forward block goes: chosen from shapes and measured densities, before anything runs.

Pure: no tensors, no device, nothing but numbers in and a plan out, so that a choice can be explained and repeated.

========  =============================================================================================
way       what it does after the gate product
========  =============================================================================================
dense     up and down as two dense products
token     each token's active neurons one by one (:mod:`twell.cpu.token`)
tile      the union of B neighbouring tokens (:mod:`twell.cpu.tile`)
sparse    in training: forward and backward over the active neurons (:mod:`twell.cpu.training`)
========  =============================================================================================

Letters: M tokens, D model width, H hidden width, B tokens of a block, U neurons of its union.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from twell.errors import OptionError

FORWARD_WAYS = ("dense", "token", "tile")
TRAINING_WAYS = ("dense", "sparse")
BLOCK = 128
"""B of the union tiles on a CPU: 32 to 256 measured alike, 512 worse (the block no longer fits the core's cache)."""

HYSTERESIS = 0.9
"""A new way must promise at most this share of the old one's cost, so that a layer does not flicker."""

# Nanoseconds for each unit named, on two threads of a Sapphire Rapids Xeon in fp32 (`bench ffn --train`, 512 tokens,
# D = 2048, H = 5632, densities 5 to 600, 2026-12-01). Only their ratios decide, and those of other CPUs are alike.
_DENSE = 0.0071  # an element of M x H x D, one product
_TOKEN = 0.062  # an element of a weight row, for each active neuron of each token
_TILE_ENTRY = 0.048  # the same where the row is already in cache
_TILE_ROW = 0.147  # an element of a weight row, once a block
_DENSE_TRAINING = 0.0084  # an element of M x H x D, one product, results and copies included
_SPARSE_TRAINING = 0.095  # an element of a row, for each active neuron, each of the 8 passes over it
_GRADIENT = 1.7  # an element of H x D, for each weight gradient that is filled
_CALL = 300_000.0  # starting the kernels of a sparse way


@dataclass(frozen=True, kw_only=True)
class BlockShape:
    """Sizes of a call.

    Attributes
    ----------
    tokens, d_model, d_hidden : int
        M, D, H.
    gated : bool
    threads : int
    """

    tokens: int
    d_model: int
    d_hidden: int
    gated: bool = True
    threads: int = 1

    def __post_init__(self) -> None:
        for name, least in (("tokens", 0), ("d_model", 1), ("d_hidden", 1), ("threads", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise OptionError(f"{name}={value!r}: an integer of at least {least} is needed")


@dataclass(frozen=True)
class Candidate:
    """A way that was considered.

    Attributes
    ----------
    way : str
    milliseconds : float
        Estimate of what follows the gate product, for comparison with the other candidates only.
    """

    way: str
    milliseconds: float


@dataclass(frozen=True)
class LayerPlan:
    """The way a block goes, and what it was chosen from.

    Attributes
    ----------
    way : str
    block : int
        B of the ``"tile"`` way.
    mean_active : float or None
        Active neurons of a token that it was chosen for; None where nothing was known.
    candidates : tuple of Candidate
    reason : str
    """

    way: str
    block: int = BLOCK
    mean_active: float | None = None
    candidates: tuple[Candidate, ...] = ()
    reason: str = ""

    def explain(self) -> str:
        """The candidates and their estimated costs as a table, with the reason for the choice."""
        known = "unknown" if self.mean_active is None else f"{self.mean_active:.1f}"
        lines = [f"active neurons a token: {known}", f"{'way':8s}{'estimate':>12s}"]
        for candidate in sorted(self.candidates, key=lambda candidate: candidate.milliseconds):
            name = f"{candidate.way} {self.block}" if candidate.way == "tile" else candidate.way
            mark = "  <- chosen" if candidate.way == self.way else ""
            lines.append(f"{name:8s}{candidate.milliseconds:9.2f} ms{mark}")
        return "\n".join([*lines, self.reason])

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON holds them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LayerPlan:
        """Inverse of :meth:`to_dict`.

        Raises
        ------
        OptionError
            A way is unknown or a field is missing.
        """
        try:
            candidates = tuple(Candidate(c["way"], float(c["milliseconds"])) for c in values["candidates"])
            mean = values["mean_active"]
            plan = cls(
                str(values["way"]),
                int(values["block"]),
                None if mean is None else float(mean),
                candidates,
                str(values["reason"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise OptionError(f"values is not a plan ({error!r}): give what to_dict returned") from error
        known = {*FORWARD_WAYS, *TRAINING_WAYS}
        if plan.way not in known or not {c.way for c in candidates} <= known or plan.block < 1:
            raise OptionError(f"values names a way or block that does not exist: ways are {', '.join(sorted(known))}")
        return plan


def plan_forward(shape: BlockShape, mean_active: float, *, union: float | None = None) -> LayerPlan:
    """Choose the way after the gate product in inference, on a CPU.

    Parameters
    ----------
    shape : BlockShape
    mean_active : float
        Active neurons of a token, mean, at least 0.
    union : float, optional
        Neurons that a block of B tokens fires, mean. If not given, what independent tokens would fire, which is more
        than tokens of a text do.

    Raises
    ------
    OptionError
    """
    _check_active(mean_active, shape)
    m, d, h = shape.tokens, shape.d_model, shape.d_hidden
    rows = 2 if shape.gated else 1
    n_blocks = -(-m // BLOCK)
    if union is None:
        union = h * (1 - (1 - mean_active / h) ** min(BLOCK, max(m, 1)))
    entries = m * mean_active
    # Blocks are shared out whole: with fewer blocks than threads, some threads have none.
    idle = shape.threads / min(shape.threads, max(1, n_blocks))
    costs = {
        "dense": _DENSE * rows * m * h * d,
        "token": _CALL + _TOKEN * rows * entries * d,
        "tile": _CALL + idle * rows * d * (_TILE_ENTRY * entries + _TILE_ROW * n_blocks * union),
    }
    return _choose(costs, mean_active, previous=None)


def plan_training(shape: BlockShape, mean_active: float | None, *, previous: str | None = None) -> LayerPlan:
    """Choose the way of a training step, on a CPU.

    Parameters
    ----------
    shape : BlockShape
    mean_active : float or None
        Active neurons of a token in an earlier step; None before the first, which then runs densely and counts.
    previous : {"dense", "sparse"}, optional
        The way of the earlier step, kept unless the other one is clearly faster.

    Raises
    ------
    OptionError
    """
    if previous is not None and previous not in TRAINING_WAYS:
        raise OptionError(f"previous={previous!r}: choose one of {', '.join(TRAINING_WAYS)}")
    if mean_active is None:
        return LayerPlan("dense", reason="nothing is known of this layer yet: it runs densely and counts")
    _check_active(mean_active, shape)
    m, d, h = shape.tokens, shape.d_model, shape.d_hidden
    entries = m * mean_active
    # After the gate product: products of forward, backward to x, and weight gradients.
    products, passes, gradients = (8, 8, 3) if shape.gated else (5, 5, 2)
    costs = {
        "dense": _DENSE_TRAINING * products * m * h * d,
        "sparse": 2 * _CALL + d * (_SPARSE_TRAINING * passes * entries + _GRADIENT * gradients * h),
    }
    return _choose(costs, mean_active, previous=previous)


def _check_active(mean_active: float, shape: BlockShape) -> None:
    if not 0 <= mean_active <= shape.d_hidden:
        raise OptionError(f"mean_active={mean_active!r}: between 0 and d_hidden={shape.d_hidden} is needed")


def _choose(costs: Mapping[str, float], mean_active: float, *, previous: str | None) -> LayerPlan:
    candidates = tuple(Candidate(way, nanoseconds * 1e-6) for way, nanoseconds in costs.items())
    # On equal cost the first stands, so an empty call goes densely.
    best = min(costs, key=lambda way: costs[way])
    reason = f"{best} has the lowest estimate"
    if previous is not None and best != previous and costs[best] > HYSTERESIS * costs[previous]:
        reason = f"{previous} is kept: {best} would save less than {1 - HYSTERESIS:.0%}"
        best = previous
    return LayerPlan(best, BLOCK, mean_active, candidates, reason)
