"""Training with an L1 penalty on the hidden activations, and measuring what it gave."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twellviz._lazy import lazy

if TYPE_CHECKING:
    from twellviz.training.config import TrainConfig
    from twellviz.training.export import export_model
    from twellviz.training.history import read_log
    from twellviz.training.loop import TrainResult, train
    from twellviz.training.measure import Evaluation, evaluate
    from twellviz.training.state import stored_config

__all__ = [
    "Evaluation",
    "TrainConfig",
    "TrainResult",
    "evaluate",
    "export_model",
    "read_log",
    "stored_config",
    "train",
]

__getattr__ = lazy(
    __name__,
    {
        "Evaluation": "measure",
        "evaluate": "measure",
        "TrainConfig": "config",
        "TrainResult": "loop",
        "export_model": "export",
        "read_log": "history",
        "stored_config": "state",
        "train": "loop",
    },
)
