"""A trained model as it is handed on: ``model.safetensors`` and, beside it, how it came about and what it measures."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from twellviz._atomic import write_text_atomically
from twellviz._machine import processor, versions
from twellviz.data.tokenizer import Tokenizer
from twellviz.data.tokens import TokenArray
from twellviz.errors import ConfigError
from twellviz.models.checkpoint import load_checkpoint, save_checkpoint
from twellviz.training.config import DTYPES, OPERATIONAL, TrainConfig
from twellviz.training.loop import TrainResult
from twellviz.training.measure import Evaluation, evaluate

STORAGE = (*DTYPES, "float16")


def export_model(
    result: TrainResult,
    folder: str | os.PathLike[str],
    *,
    tokenizer: Tokenizer,
    validation_tokens: TokenArray,
    storage: str = "float32",
    command: str = "",
) -> dict[str, Any]:
    """Write ``model.safetensors`` and ``training.json`` of a finished run.

    Parameters
    ----------
    result : TrainResult
    folder : path
    tokenizer : Tokenizer
        Named in the files by its hash.
    validation_tokens : uint16 or uint32 [n_tokens]
        Held-out text, on which the written file is measured: after rounding to ``storage``.
    storage : {"float32", "bfloat16", "float16"}
    command : str
        The command line that trained it.

    Returns
    -------
    dict
        What ``training.json`` holds.

    Raises
    ------
    ConfigError
        The run was stopped before its end, or ``storage`` is another.
    CheckpointError
        A weight does not fit ``storage``.
    """
    if storage not in STORAGE:
        raise ConfigError(f"storage={storage!r}: choose one of {', '.join(STORAGE)}")
    if result.stopped is not None:
        raise ConfigError(f"the run was stopped by {result.stopped}: resume it to its end before exporting")
    folder, config = Path(folder), result.config
    seq_len = config.tokens_per_sequence
    dtype = getattr(torch, storage)
    path = save_checkpoint(
        result.model,
        folder / "model.safetensors",
        metadata={"command": command, "seed": config.seed, "tokenizer_sha256": tokenizer.sha256},
        dtype=dtype,
    )
    written = load_checkpoint(path, device=next(result.model.parameters()).device)
    record = {
        "command": command,
        "settings": {name: value for name, value in config.to_dict().items() if name not in OPERATIONAL},
        "parameters": result.model.num_parameters(),
        "tokens_seen": config.steps * config.tokens_per_step,
        "storage": storage,
        "tokenizer_sha256": tokenizer.sha256,
        "held_out": _figures(evaluate(written, validation_tokens, seq_len=seq_len), config),
        "loss_at_start": _loss_at_start(config, validation_tokens, next(written.parameters()).device),
        "machine": _machine(config, written),
        "training_seconds": round(result.seconds, 1),
        "tokens_per_second": round(config.steps * config.tokens_per_step / result.seconds),
        "mfu": None if result.mfu is None else round(result.mfu, 4),
        "date": datetime.now(UTC).date().isoformat(),
    }
    write_text_atomically(folder / "training.json", json.dumps(record, indent=1) + "\n")
    return record


def _figures(measured: Evaluation, config: TrainConfig) -> dict[str, Any]:
    assert measured.loss_without_ffn is not None
    return {
        "tokens": measured.n_tokens,
        "loss": round(measured.loss, 4),
        "loss_without_ffn": round(measured.loss_without_ffn, 4),
        "l0": round(measured.l0, 2),
        "l0_share_of_hidden": round(measured.l0 / config.lm.d_hidden, 4),
        "l0_per_layer": [round(l0, 2) for l0 in measured.l0_L],
        "dead_share_per_layer": [round(dead, 4) for dead in measured.dead_L],
    }


def _loss_at_start(config: TrainConfig, validation_tokens: TokenArray, device: torch.device) -> float:
    """Held-out loss of the untrained model of this seed."""
    from twellviz.models.lm import LM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        untrained = LM(config.lm).to(device)
    measured = evaluate(
        untrained, validation_tokens, seq_len=config.tokens_per_sequence, max_windows=64, without_ffn=False
    )
    return round(measured.loss, 4)


def _machine(config: TrainConfig, model: torch.nn.Module) -> dict[str, Any]:
    device = next(model.parameters()).device
    cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if cuda else f"CPU, {processor()}",
        "threads": config.threads or torch.get_num_threads(),
        "dtype": config.dtype,
        "versions": versions("twellviz", "torch", "numpy", "tokenizers", "safetensors"),
    }
