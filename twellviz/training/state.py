"""The checkpoint of a run: weights, optimiser, random state, step, history and settings in one safetensors file.

In the folder of a run lie ``config.json``, ``log.csv`` and ``checkpoints/step-NNNNNNNN.safetensors``, of which the
last two are kept. A file appears under its name only when it is whole. Several processes gather it, rank 0 writes it,
and each takes its rows of it when the run goes on, so that their number may change.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from twellviz._atomic import sweep, write_atomically, write_text_atomically
from twellviz.errors import CheckpointError, ConfigError
from twellviz.models.checkpoint import check_tensors, json_field, read_safetensors
from twellviz.models.lm import LM
from twellviz.training.config import TrainConfig
from twellviz.training.distributed import ALONE, Ranks
from twellviz.training.history import Row, to_row
from twellviz.training.shards import own_rows, whole

FORMAT = "twellviz.training"
VERSION = "1"
KEEP = 2
MOMENTS = ("exp_avg", "exp_avg_sq", "step")
"""What AdamW remembers of each parameter."""
_NAME = re.compile(r"step-(\d{8,})\.safetensors")


def write_config(folder: Path, config: TrainConfig) -> None:
    """Write ``config.json``, from which a run can be resumed before its first checkpoint."""
    text = json.dumps({"format": FORMAT, "version": VERSION, "config": config.to_dict()}, indent=1)
    write_text_atomically(folder / "config.json", text + "\n")


def stored_config(folder: str | os.PathLike[str]) -> TrainConfig:
    """Settings of the run in ``folder``, with ``out`` set to this folder.

    Raises
    ------
    CheckpointError
        The folder holds no run.
    """
    path = Path(folder) / "config.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{os.fspath(folder)} holds no training run: cannot read {path.name} ({error})"
        ) from error
    if not isinstance(record, dict) or (record.get("format"), record.get("version")) != (FORMAT, VERSION):
        raise CheckpointError(f"{path} is not the settings of a run: format {FORMAT}, version {VERSION} is expected")
    settings = json_field({"config": json.dumps(record.get("config"))}, "config", path)
    try:
        return TrainConfig.from_dict({**settings, "out": os.fspath(folder)})
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from error


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoints of a run, newest first."""
    found = {int(match[1]): path for path in folder.glob("checkpoints/*") if (match := _NAME.fullmatch(path.name))}
    return [found[step] for step in sorted(found, reverse=True)]


def move_aside(log: Path) -> Path | None:
    """Rename a log with rows in it to the first free ``log-N.csv``."""
    if not log.exists() or log.read_bytes().count(b"\n") < 2:
        return None
    aside = next(path for n in itertools.count(1) if not (path := log.with_name(f"log-{n}.csv")).exists())
    shutil.move(log, aside)
    return aside


def save_state(
    folder: Path,
    step: int,
    model: LM,
    optimizer: torch.optim.Optimizer,
    history: Sequence[Row],
    config: TrainConfig,
    text_sha256: str,
    *,
    ranks: Ranks = ALONE,
) -> Path:
    """Write the checkpoint after ``step`` steps and remove all but the last two.

    Of several processes all must call this; it ends when the file is written.

    Returns
    -------
    Path
    """
    names = list(history[0]) if history else []
    tensors = {f"model.{name}": tensor.detach() for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        tensors |= {f"{moment}.{name}": optimizer.state[parameter][moment] for moment in MOMENTS}
    tensors |= {f"rng.{name}": state for name, state in _random_state(model).items()}
    tensors["history"] = torch.tensor([[row[name] for name in names] for row in history], dtype=torch.float64)
    header = {
        "format": FORMAT,
        "version": VERSION,
        "step": str(step),
        "config": json.dumps(config.to_dict()),
        "columns": json.dumps({"names": names}),
        "text_sha256": text_sha256,
    }
    stored = {}
    for name, tensor in tensors.items():
        gathered = whole(tensor)
        if ranks.first:
            stored[name] = gathered.cpu().contiguous()
    path = folder / "checkpoints" / f"step-{step:08d}.safetensors"

    def write() -> None:
        sweep(path.parent)
        write_atomically(path, lambda temporary: save_file(stored, temporary, metadata=header))
        for old in checkpoints(folder)[KEEP:]:
            old.unlink()

    ranks.first_does(write)
    return path


def restore_newest(
    folder: Path, model: LM, optimizer: torch.optim.Optimizer, config: TrainConfig, text_sha256: str
) -> tuple[int, list[Row]]:
    """Bring model, optimiser and random state back to the newest checkpoint.

    A newest file that is damaged (which killing the program cannot do) is passed over with a warning.

    Returns
    -------
    step : int
        Steps done; 0 where there is no checkpoint yet.
    history : list of Row

    Raises
    ------
    CheckpointError
        All checkpoints are damaged, or the newest is of another text.
    ConfigError
        It is of other settings.
    """
    found = checkpoints(folder)
    for path in found:
        try:
            tensors, header = read_safetensors(path, FORMAT, VERSION)
            break
        except CheckpointError as error:
            if path == found[-1]:
                raise
            warnings.warn(f"passed over a damaged checkpoint: {error}", stacklevel=3)
    else:
        return 0, []
    stored = TrainConfig.from_dict(json_field(header, "config", path))
    if differences := stored.differences(config):
        raise ConfigError(
            f"{path.name} is of a run with other settings ({'; '.join(differences)}): resume with the same, or train "
            "into another folder"
        )
    if header.get("text_sha256") != text_sha256:
        raise CheckpointError(f"{path}: it was trained on another text or tokenizer; give the same, or another folder")
    return _restore(tensors, header, path, model, optimizer)


def _restore(
    tensors: dict[str, Tensor], header: dict[str, str], path: Path, model: LM, optimizer: torch.optim.Optimizer
) -> tuple[int, list[Row]]:
    names = json_field(header, "columns", path)["names"]
    step = int(header["step"])
    expected: dict[str, tuple[int, ...]] = {"history": (step, len(names))}
    expected |= {f"model.{name}": tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        expected |= {f"{m}.{name}": () if m == "step" else tuple(parameter.shape) for m in MOMENTS}
    random = {name.removeprefix("rng."): tensor for name, tensor in tensors.items() if name.startswith("rng.")}
    check_tensors({name: t for name, t in tensors.items() if not name.startswith("rng.")}, expected, path)

    model.load_state_dict({name: own_rows(tensors[f"model.{name}"], t) for name, t in model.state_dict().items()})
    for name, parameter in model.named_parameters():
        # "step" stands where the fused optimiser keeps it: beside the parameter.
        moments = {m: own_rows(tensors[f"{m}.{name}"], parameter) for m in MOMENTS if m != "step"}
        optimizer.state[parameter] = {**moments, "step": tensors[f"step.{name}"].to(parameter.device)}
    _set_random_state(model, random, path)
    rows = [to_row(names, values) for values in tensors["history"].tolist()]
    return step, rows


def _random_state(model: LM) -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    device = next(model.parameters()).device
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def _set_random_state(model: LM, states: dict[str, Tensor], path: Path) -> None:
    if "cpu" not in states:
        raise CheckpointError(f"{path} lacks rng.cpu: it is not a whole checkpoint of a run")
    torch.set_rng_state(states["cpu"])
    device = next(model.parameters()).device
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
