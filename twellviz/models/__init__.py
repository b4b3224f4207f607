"""One readable Llama-style language model, its presets, and its checkpoint file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twellviz._lazy import lazy

if TYPE_CHECKING:
    from twellviz.models.checkpoint import CheckpointInfo, load_checkpoint, read_checkpoint_info, save_checkpoint
    from twellviz.models.config import PRESETS, LMConfig
    from twellviz.models.lm import LM, LMOutput

__all__ = [
    "LM",
    "PRESETS",
    "CheckpointInfo",
    "LMConfig",
    "LMOutput",
    "load_checkpoint",
    "read_checkpoint_info",
    "save_checkpoint",
]

__getattr__ = lazy(
    __name__,
    {
        "CheckpointInfo": "checkpoint",
        "LM": "lm",
        "LMConfig": "config",
        "LMOutput": "lm",
        "PRESETS": "config",
        "load_checkpoint": "checkpoint",
        "read_checkpoint_info": "checkpoint",
        "save_checkpoint": "checkpoint",
    },
)
