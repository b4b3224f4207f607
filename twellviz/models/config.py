"""Sizes and options of a model, and the presets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from twellviz.errors import ConfigError
from twellviz.sparsifiers.base import Sparsifier
from twellviz.sparsifiers.registry import sparsifier

ACTIVATIONS = ("relu", "silu")


@dataclass(frozen=True, kw_only=True)
class LMConfig:
    """Sizes and options of :class:`twellviz.models.LM`.

    Attributes
    ----------
    vocab_size, d_model, d_hidden, n_layers, n_heads : int
        V, D, H, L and the number of attention heads; D is a multiple of ``n_heads``, D / ``n_heads`` is even.
    max_seq_len : int
        Longest sequence the model is meant for; longer input is an error.
    gated : bool
        ``act(x gate^T) * (x up^T)`` or ``act(x up^T)``.
    activation : {"relu", "silu"}
        Only ReLU gives exact zeros.
    rope_theta : float
        Base of the rotary frequencies (paper: 10,000).
    norm_eps : float
    init_std : float
        Standard deviation of all weight matrices at the start (paper Table 2: 0.02).
    tie_embeddings : bool
        The output projection is the embedding.
    sparsifier : str
        What makes neurons inactive: a name of :data:`twellviz.sparsifiers.METHODS`. ``"l1"`` is the plain block,
        which the trainer's penalty makes sparse.
    sparsifier_options : mapping
        The method's options; it is kept with all of them, in plain values.

    Raises
    ------
    ConfigError
        A value is out of range or contradicts another.
    """

    vocab_size: int
    d_model: int
    d_hidden: int
    n_layers: int
    n_heads: int
    max_seq_len: int
    gated: bool = True
    activation: str = "relu"
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    init_std: float = 0.02
    tie_embeddings: bool = True
    sparsifier: str = "l1"
    sparsifier_options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name in ("vocab_size", "d_model", "d_hidden", "n_layers", "n_heads", "max_seq_len"):
            require_int(name, getattr(self, name), least=1)
        for name in ("rope_theta", "norm_eps", "init_std"):
            require_float(name, getattr(self, name), above=0.0)
        for name in ("gated", "tie_embeddings"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name}={getattr(self, name)!r}: True or False is needed")
        if self.activation not in ACTIVATIONS:
            raise ConfigError(f"activation={self.activation!r}: choose one of {', '.join(ACTIVATIONS)}")
        if self.d_model % self.n_heads:
            raise ConfigError(f"d_model={self.d_model} is not a multiple of n_heads={self.n_heads}: change one of them")
        if self.head_width % 2:
            raise ConfigError(
                f"d_model={self.d_model} / n_heads={self.n_heads} is {self.head_width}: rotary positions turn pairs, "
                "so an even head width is needed"
            )
        method = self.method
        method.check_model(self)
        object.__setattr__(self, "sparsifier_options", method.options())

    @property
    def method(self) -> Sparsifier:
        """The sparsifier with its options."""
        return sparsifier(self.sparsifier, self.sparsifier_options)

    @property
    def head_width(self) -> int:
        """Columns of one attention head: D / ``n_heads``."""
        return self.d_model // self.n_heads

    def to_dict(self) -> dict[str, Any]:
        """All fields, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LMConfig:
        """The config that :meth:`to_dict` wrote.

        Raises
        ------
        ConfigError
            A field is missing, unknown, or out of range.
        """
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise ConfigError(f"unknown model settings {', '.join(unknown)}: known are {', '.join(sorted(known))}")
        try:
            return cls(**values)
        except TypeError as error:
            raise ConfigError(f"incomplete model settings: {error}") from error


def require_int(name: str, value: object, *, least: int) -> None:
    """Raise ConfigError unless ``value`` is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name}={value!r}: a whole number of at least {least} is needed")


def require_float(name: str, value: object, *, above: float | None = None, least: float | None = None) -> None:
    """Raise ConfigError unless ``value`` is a finite number in range."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{name}={value!r}: a finite number is needed")
    if above is not None and value <= above:
        raise ConfigError(f"{name}={value!r}: a number above {above:g} is needed")
    if least is not None and value < least:
        raise ConfigError(f"{name}={value!r}: a number of at least {least:g} is needed")


def _paper(n_layers: int) -> LMConfig:
    """Paper Table 2: one width for all sizes, which differ in depth alone."""
    return LMConfig(vocab_size=49152, d_model=2048, d_hidden=5632, n_layers=n_layers, n_heads=32, max_seq_len=2048)


PRESETS: dict[str, LMConfig] = {
    "nano": LMConfig(vocab_size=2048, d_model=128, d_hidden=512, n_layers=4, n_heads=4, max_seq_len=256),
    "micro": LMConfig(vocab_size=2048, d_model=192, d_hidden=768, n_layers=4, n_heads=4, max_seq_len=256),
    "mini": LMConfig(vocab_size=2048, d_model=256, d_hidden=1024, n_layers=5, n_heads=4, max_seq_len=512),
    "small": LMConfig(vocab_size=8192, d_model=512, d_hidden=2048, n_layers=13, n_heads=8, max_seq_len=1024),
    "0.5b": _paper(8),
    "1b": _paper(18),
    "1.5b": _paper(28),
    "2b": _paper(38),
}
"""``nano`` trains in a minute or two on a CPU; ``0.5b`` to ``2b`` are the paper's."""
