"""A model in one safetensors file, with its config inside: nothing is unpickled."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from twellviz._atomic import write_atomically
from twellviz.errors import CheckpointError, ConfigError
from twellviz.models.config import LMConfig
from twellviz.models.lm import LM

FORMAT = "twellviz.lm"
VERSION = "1"
STORED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class CheckpointInfo(NamedTuple):
    """What a checkpoint says about itself.

    Attributes
    ----------
    config : LMConfig
    metadata : dict
        What :func:`save_checkpoint` was given.
    """

    config: LMConfig
    metadata: dict[str, Any]


def save_checkpoint(
    model: LM,
    path: str | os.PathLike[str],
    *,
    metadata: Mapping[str, Any] | None = None,
    dtype: torch.dtype | None = None,
) -> Path:
    """Write a model to one ``.safetensors`` file, whole or not at all.

    Parameters
    ----------
    model : LM
    path : path
        An existing file is replaced; its folder is created.
    metadata : mapping, optional
        Anything that JSON holds: command, seed, losses.
    dtype : {float32, bfloat16, float16}, optional
        Round the weights to it; as they are if not given.

    Returns
    -------
    Path

    Raises
    ------
    CheckpointError
        A weight does not fit ``dtype`` (it would become infinite).
    ConfigError
        Another ``dtype``, or metadata that JSON cannot hold.
    """
    if dtype is not None and dtype not in STORED_DTYPES:
        raise ConfigError(f"dtype={dtype}: choose one of {', '.join(map(str, STORED_DTYPES))}")
    tensors = {}
    for name, tensor in _weights(model).items():
        stored = tensor.detach().to("cpu", dtype).contiguous()
        if bool((stored.isinf() & ~tensor.detach().cpu().isinf()).any()):
            raise CheckpointError(f"dtype={dtype}: a weight of {name} is too large for it; store float32 or bfloat16")
        tensors[name] = stored
    try:
        header = {
            "format": FORMAT,
            "version": VERSION,
            "config": json.dumps(model.cfg.to_dict()),
            "metadata": json.dumps(dict(metadata or {})),
        }
    except (TypeError, ValueError) as error:
        raise ConfigError(f"metadata: JSON cannot hold it ({error}); give numbers, strings, lists, dicts") from error
    return write_atomically(path, lambda temporary: save_file(tensors, temporary, metadata=header))


def load_checkpoint(
    path: str | os.PathLike[str],
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> LM:
    """Read a model that :func:`save_checkpoint` wrote.

    Parameters
    ----------
    path : path
    device : torch device
    dtype : torch dtype
        Of the loaded weights, whatever the stored one.

    Returns
    -------
    LM
        In evaluation mode.

    Raises
    ------
    CheckpointError
        The file is missing, truncated, no safetensors, not a model of this program, of another version, or its
        tensors do not match its config.
    """
    tensors, header = read_safetensors(path, FORMAT, VERSION)
    cfg = _config(header, path)
    # Before the config's sizes are believed: more layers than tensors cannot be right.
    if cfg.n_layers > len(tensors):
        raise CheckpointError(f"{os.fspath(path)}: n_layers={cfg.n_layers} in its config, but {len(tensors)} tensors")
    with torch.device("meta"):
        model = LM(cfg)
    check_tensors(tensors, {name: tuple(t.shape) for name, t in _weights(model).items()}, path)
    weights = {name: tensor.to(device, dtype) for name, tensor in tensors.items()}
    model.load_state_dict(weights, assign=True)
    model.requires_grad_(True)
    return model.eval()


def _weights(model: LM) -> dict[str, Tensor]:
    """The state of a model without the plans of its training steps, which belong to a run."""
    return {name: tensor for name, tensor in model.state_dict().items() if not name.endswith(".plan_state")}


def read_checkpoint_info(path: str | os.PathLike[str]) -> CheckpointInfo:
    """Config and metadata of a checkpoint, without its weights.

    Raises
    ------
    CheckpointError
    """
    header = _read_header(path, FORMAT, VERSION)
    return CheckpointInfo(_config(header, path), json_field(header, "metadata", path))


def read_safetensors(path: str | os.PathLike[str], kind: str, version: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors and the metadata of a file of ours; CheckpointError for any other."""
    header = _read_header(path, kind, version)
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, header  # noqa: SIM118 - not a mapping


def check_tensors(tensors: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]], path: object) -> None:
    """Raise CheckpointError unless names and shapes are the expected ones."""
    if missing := sorted(set(expected) - set(tensors)):
        raise CheckpointError(f"{path} lacks {_some(missing)}: it does not match the model config")
    if unexpected := sorted(set(tensors) - set(expected)):
        raise CheckpointError(f"{path} holds {_some(unexpected)}, which the model config does not have")
    for name, shape in expected.items():
        if tuple(tensors[name].shape) != shape:
            raise CheckpointError(f"{path}: {name} has shape {tuple(tensors[name].shape)}, {shape} is expected")


def json_field(header: Mapping[str, str], key: str, path: object) -> dict[str, Any]:
    """A JSON object of the header; CheckpointError if it is none."""
    try:
        value = json.loads(header.get(key, ""))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: its {key} is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: its {key} is {type(value).__name__}, a JSON object is expected")
    return value


def _config(header: Mapping[str, str], path: object) -> LMConfig:
    try:
        return LMConfig.from_dict(json_field(header, "config", path))
    except ConfigError as error:
        raise CheckpointError(f"{path}: its config is not valid: {error}") from error


def _read_header(path: str | os.PathLike[str], kind: str, version: str) -> dict[str, str]:
    name = os.fspath(path)
    if not Path(path).is_file():
        raise CheckpointError(f"no file at {name}: a safetensors file of format {kind} is expected")
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{name} is truncated or no safetensors file ({error}): copy or train it again"
        ) from error
    if header.get("format") != kind:
        raise CheckpointError(f"{name} has format {header.get('format')!r}: {kind!r} is expected")
    if header.get("version") != version:
        raise CheckpointError(
            f"{name} has version {header.get('version')!r}: this program reads {kind} version {version!r}"
        )
    return dict(header)


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"
