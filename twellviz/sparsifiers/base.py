"""What a method decides: its block, its penalty at each step, and what happens after a step.

Importing this loads no torch: :class:`twellviz.models.LMConfig` checks its fields with it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from twellviz.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor
    from twell.nn import FFN, FFNStats, GatedFFN

    from twellviz.models.config import LMConfig
    from twellviz.models.lm import LM
    from twellviz.sparsifiers.block import SparseBlock
    from twellviz.training.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class Sparsifier(ABC):
    """A road to sparsity; its fields are its options.

    Attributes
    ----------
    name, title, paper : str
        Name in the registry, name for people, and where it was published.
    penalised : bool
        Takes ``TrainConfig.l1_coefficient``; the others demand 0, so that a default penalty does not slip in.
    calibrated : bool
        Its threshold is set by :func:`twellviz.sparsifiers.calibrate`, on text, after training.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str]
    penalised: ClassVar[bool] = False
    calibrated: ClassVar[bool] = False

    def options(self) -> dict[str, Any]:
        """The options in plain values, as JSON and YAML hold them: lists for tuples."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    def check_model(self, cfg: LMConfig) -> None:
        """Raise ConfigError where the method cannot be had with these sizes and options."""
        if not cfg.gated:
            raise ConfigError(f"sparsifier={self.name!r} with gated=False: it is written for gated blocks; set True")

    def check_training(self, config: TrainConfig) -> None:
        """Raise ConfigError where the settings of a run contradict the method."""
        if config.l1_coefficient and not self.penalised:
            raise ConfigError(
                f"l1_coefficient={config.l1_coefficient} with sparsifier={self.name!r}, which has no penalty: set "
                'l1_coefficient=0, or choose sparsifier="l1"'
            )

    @abstractmethod
    def make_block(self, cfg: LMConfig) -> GatedFFN | FFN | SparseBlock:
        """A feed-forward block of a layer, with fresh weights."""

    def extra_parameters(self, cfg: LMConfig) -> int:
        """Weights of a layer beside those of the trunk: whole rows of D."""
        return 0

    def l1_at(self, config: TrainConfig, step: int) -> float:
        """L1 coefficient of a step (from 0): the trainer's warm-up."""
        return config.l1_warmup(step)

    def balance(self, stats: Sequence[FFNStats]) -> Tensor | None:
        """What is added to the loss beside the penalty, from the statistics of all layers; None for nothing."""
        return None

    def after_step(self, model: LM, config: TrainConfig, step: int) -> None:  # noqa: B027 - most do nothing
        """Called after the optimiser's step ``step`` (from 0)."""


def require_relu(method: Sparsifier, cfg: LMConfig) -> None:
    """Raise ConfigError unless the trunk's activation is ReLU."""
    if cfg.activation != "relu":
        raise ConfigError(f'sparsifier={method.name!r} with activation={cfg.activation!r}: set activation="relu"')


def require_share(name: str, value: object, *, zero: bool = False) -> None:
    """Raise ConfigError unless ``value`` is a number between 0 and 1; 1 never, 0 where ``zero`` is set."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value < 1 or not (zero or value):  # type: ignore[operator]
        raise ConfigError(f"{name}={value!r}: a number {'from' if zero else 'above'} 0 to below 1 is needed")
