"""Settings of a run in a YAML file, under the names of :class:`twellviz.training.TrainConfig`.

Beside those: ``model`` is the name of a preset, or a mapping of :class:`twellviz.models.LMConfig`'s fields, where
``preset`` names the one that it changes; ``text``, ``validation``, ``tokenizer`` and ``storage`` are the options.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from twellviz.errors import ConfigError
from twellviz.models.config import PRESETS, LMConfig
from twellviz.training.config import TrainConfig

COMMAND_KEYS = ("text", "validation", "tokenizer", "storage")
_FLOATS = {field.name for field in fields(TrainConfig) if "float" in str(field.type)}
_MODEL_FLOATS = {field.name for field in fields(LMConfig) if "float" in str(field.type)}


def read_settings(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The settings in a file; ``model`` as an LMConfig.

    Raises
    ------
    ConfigError
        The file is missing or not YAML, or holds a key that is none of ours; the nearest right one is named.
    """
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"--config {os.fspath(path)}: cannot be read as YAML ({error})") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"--config {os.fspath(path)}: settings are a mapping, 'steps: 800' on a line")
    # Options have dashes, and who copies one from the command line may leave them.
    content = {key.replace("-", "_") if isinstance(key, str) else key: value for key, value in content.items()}
    known = [field.name for field in fields(TrainConfig)]
    _check_keys(content, (*known, *COMMAND_KEYS), os.fspath(path))
    settings: dict[str, Any] = {name: _number(value) if name in _FLOATS else value for name, value in content.items()}
    if isinstance(settings.get("betas"), list):
        settings["betas"] = tuple(_number(beta) for beta in settings["betas"])
    if "model" in settings:
        settings["model"] = _model(settings["model"], os.fspath(path))
    return settings


def write_settings(config: TrainConfig, command: Mapping[str, Any]) -> str:
    """YAML that :func:`read_settings` reads back to the same settings."""
    import yaml

    settings = config.to_dict()
    settings["betas"] = list(config.betas)
    extra = {name: command[name] for name in COMMAND_KEYS if name in command}
    text: str = yaml.safe_dump({**settings, **extra}, sort_keys=False)
    return text


def _model(given: object, path: str) -> LMConfig:
    if isinstance(given, str | float | int):
        given = {"preset": str(given)}
    if not isinstance(given, dict):
        raise ConfigError(f"model: {given!r} in {path}: the name of a preset or a mapping of sizes is needed")
    _check_keys(given, ("preset", *(field.name for field in fields(LMConfig))), f"{path}, model")
    sizes: dict[str, Any] = {name: _number(value) if name in _MODEL_FLOATS else value for name, value in given.items()}
    options = sizes.get("sparsifier_options")
    if isinstance(options, dict):
        sizes["sparsifier_options"] = {name: _numbers(value) for name, value in options.items()}
    preset = sizes.pop("preset", None)
    if preset is None:
        return LMConfig.from_dict(sizes)
    if preset not in PRESETS:
        raise ConfigError(f"model: preset {preset!r} in {path}: choose one of {', '.join(PRESETS)}")
    return replace(PRESETS[preset], **sizes)


def _check_keys(given: Iterable[object], known: Iterable[str], where: str) -> None:
    names = list(known)
    for key in given:
        if key not in names:
            longer = [name for name in names if name.startswith(f"{key}_")]
            near = longer or get_close_matches(str(key), names, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}"
            raise ConfigError(f"{where}: unknown setting {key!r}; {hint}")


def _numbers(value: object) -> object:
    return [_number(item) for item in value] if isinstance(value, list) else _number(value)


def _number(value: object) -> object:
    """YAML 1.1 takes 1e-3 for a text, as its floats need a point."""
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        return value
