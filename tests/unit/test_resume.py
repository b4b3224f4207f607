"""Exact resume: kills at any moment, damaged and foreign checkpoints, and what a resumed run may change."""

from __future__ import annotations

import json
import multiprocessing
import random
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from twellviz._atomic import TEMPORARY_PREFIX, write_atomically
from twellviz.errors import CheckpointError, ConfigError
from twellviz.models import LMConfig
from twellviz.training import TrainConfig, read_log, stored_config, train
from twellviz.training.history import CsvLog, columns
from twellviz.training.state import checkpoints

MODEL = LMConfig(vocab_size=64, d_model=64, d_hidden=256, n_layers=2, n_heads=2, max_seq_len=32)
# Everything that has a state: accumulation, both warm-ups, noise for dead gates, measurements in between.
CONFIG = TrainConfig(
    model=MODEL,
    steps=160,
    batch_size=4,
    accumulation=2,
    lr=1e-2,
    lr_warmup_steps=10,
    l1_coefficient=0.3,
    l1_start_step=5,
    l1_full_step=25,
    dead_reinit=0.1,
    eval_interval=20,
    eval_windows=2,
    checkpoint_interval=3,
    out="",
    device="cpu",
    threads=1,
)
TEXT = np.random.default_rng(1).integers(0, 64, 3000).astype(np.uint16)
TIMING = "tokens_per_second"


def run(folder: Path, *, resume: bool = False, text: Any = TEXT, **changes: Any) -> Any:
    config = replace(CONFIG, out=str(folder), **changes)
    return train(config, train_tokens=text, validation_tokens=TEXT[:200], resume=resume, progress=False)


def numbers(rows: list[dict[str, float]]) -> list[list[str]]:
    """All columns but the time, as text: equal means equal to the last bit, nan included."""
    return [[repr(value) for name, value in row.items() if name != TIMING] for row in rows]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    tensors = load_file(checkpoints(folder)[0])
    return {name: tensor for name, tensor in tensors.items() if name != "history"}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unbroken")
    run(folder)
    return folder


def assert_same_run(folder: Path, unbroken: Path) -> None:
    assert numbers(read_log(folder / "log.csv")) == numbers(read_log(unbroken / "log.csv"))
    expected, actual = weights(unbroken), weights(folder)
    assert expected.keys() == actual.keys()
    assert [name for name in expected if not torch.equal(expected[name], actual[name])] == []


def _child(folder: str) -> None:
    run(Path(folder), resume=(Path(folder) / "config.json").exists())


def _rows(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _writing(folder: Path) -> list[Path]:
    return list(folder.glob(f"checkpoints/{TEMPORARY_PREFIX}*"))


@pytest.mark.slow
def test_twenty_kills_leave_the_losses_of_an_unbroken_run(tmp_path: Path, unbroken: Path) -> None:
    # A fork server that has torch loaded: a new process takes milliseconds, and has run no threads before its fork.
    context = multiprocessing.get_context("forkserver")
    # torch imports _dynamo when the first optimiser is made.
    context.set_forkserver_preload(["pytest", "torch._dynamo", "twellviz.training.loop"])
    folder, log = tmp_path / "run", tmp_path / "run" / "log.csv"
    moments = random.Random(7)
    in_a_write = 0
    for kill in range(20):
        process = context.Process(target=_child, args=(str(folder),))
        process.start()
        deadline = time.monotonic() + 60
        if kill % 2:
            # Inside a checkpoint: as soon as its temporary file is seen.
            while not _writing(folder) and process.is_alive() and time.monotonic() < deadline:
                time.sleep(0.0002)
        else:
            start, wanted = _rows(log), moments.randint(1, 7)
            while _rows(log) < start + wanted and process.is_alive() and time.monotonic() < deadline:
                time.sleep(0.001)
            time.sleep(moments.uniform(0, 0.03))
        assert process.is_alive(), "the run ended before its kill: it needs more steps"
        process.kill()
        process.join()
        assert process.exitcode == -9
        in_a_write += bool(_writing(folder))
    assert in_a_write >= 1
    done = checkpoints(folder)[0].stem
    assert 0 < int(done.removeprefix("step-")) < CONFIG.steps
    resumed = run(folder, resume=True)
    assert numbers(resumed.history) == numbers(read_log(log))
    assert_same_run(folder, unbroken)
    # Nothing that a killed writer left stays.
    assert sorted(folder.glob("checkpoints/*")) == sorted(checkpoints(folder))


def test_resume_after_each_kind_of_stop(tmp_path: Path, unbroken: Path) -> None:
    # Before the first checkpoint, after one, and when there is nothing left to do.
    for name, steps in (("none", 0), ("some", 1), ("all", 2)):
        folder = tmp_path / name
        shutil.copytree(unbroken, folder)
        found = checkpoints(folder)
        for path in found[: 2 - steps]:
            path.unlink()
        if steps:
            run(folder, resume=True)
        else:
            before = (folder / "log.csv").read_bytes()
            with pytest.warns(UserWarning, match=r"no finished checkpoint: .* its log so far is now log-1\.csv"):
                run(folder, resume=True)
            assert (folder / "log-1.csv").read_bytes() == before
        assert_same_run(folder, unbroken)
    (tmp_path / "log" / "log.csv").mkdir(parents=True)
    with pytest.raises(ConfigError, match="already holds a run"):
        run(tmp_path / "log")


def test_last_two_checkpoints_are_kept(unbroken: Path) -> None:
    assert [path.name for path in checkpoints(unbroken)] == [
        "step-00000160.safetensors",
        "step-00000159.safetensors",
    ]
    assert sorted(path.name for path in unbroken.iterdir()) == ["checkpoints", "config.json", "log.csv"]
    assert stored_config(unbroken) == replace(CONFIG, out=str(unbroken))


def test_damaged_newest_is_passed_over_aloud(tmp_path: Path, unbroken: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(unbroken, folder)
    newest, older = checkpoints(folder)
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="passed over a damaged checkpoint: .*step-00000160"):
        run(folder, resume=True)
    assert_same_run(folder, unbroken)
    for path in checkpoints(folder):
        path.write_bytes(b"not a checkpoint")
    with (
        pytest.warns(UserWarning, match="step-00000160"),
        pytest.raises(CheckpointError, match=r"step-00000159.* is truncated or no safetensors"),
    ):
        run(folder, resume=True)
    assert older.exists()


def test_other_settings_or_text_are_refused(tmp_path: Path, unbroken: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(unbroken, folder)
    with pytest.raises(ConfigError, match=r"other settings \(lr: 0\.01 and 0\.02; seed: 0 and 1\)"):
        run(folder, resume=True, lr=0.02, seed=1)
    with pytest.raises(ConfigError, match="model: "):
        run(folder, resume=True, model=replace(MODEL, n_layers=1))
    with pytest.raises(CheckpointError, match="trained on another text"):
        run(folder, resume=True, text=TEXT[::-1])
    # What does not decide the losses may change.
    run(folder, resume=True, checkpoint_interval=50)


def test_a_checkpoint_that_does_not_fit_is_named(tmp_path: Path, unbroken: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import load_file

    folder = tmp_path / "run"
    shutil.copytree(unbroken, folder)
    newest = checkpoints(folder)[0]
    with safe_open(newest, framework="pt") as file:
        header = file.metadata()
    tensors = load_file(newest)
    for name, message in (
        ("exp_avg.norm.weight", r"lacks exp_avg\.norm\.weight"),
        ("rng.cpu", r"lacks rng\.cpu"),
    ):
        save_file({key: tensor for key, tensor in tensors.items() if key != name}, newest, metadata=header)
        with pytest.raises(CheckpointError, match=message):
            run(folder, resume=True)
    save_file({**tensors, "history": tensors["history"][:-1]}, newest, metadata=header)
    with pytest.raises(CheckpointError, match=r"history has shape \(159, \d+\), \(160, \d+\) is expected"):
        run(folder, resume=True)


def test_stored_config_errors(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no training run"):
        stored_config(tmp_path)
    path = tmp_path / "config.json"
    for content, message in (
        ('{"a": ', "holds no training run"),
        ("[]", "is not the settings of a run"),
        ('{"format": "twellviz.training", "version": "1"}', "its config is NoneType"),
        ('{"format": "twellviz.training", "version": "1", "config": {"steps": 0}}', "steps=0"),
        ('{"format": "twellviz.training", "version": "1", "config": {"stepz": 0}}', "stepz"),
    ):
        path.write_text(content)
        with pytest.raises(CheckpointError, match=message):
            stored_config(tmp_path)


def test_log_after_resume_holds_what_the_checkpoint_knows(tmp_path: Path) -> None:
    row = dict.fromkeys(columns(1), 1.0)
    log = CsvLog(tmp_path / "log.csv", columns(1), [{**row, "step": 0.0}])
    log.write({**row, "step": 1.0, "loss": float("nan")})
    log.close()
    text = (tmp_path / "log.csv").read_text()
    assert [line.split(",")[0] for line in text.splitlines()] == ["step", "0", "1"]
    assert text.endswith("\n")


def test_write_atomically_leaves_the_old_file_when_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")

    def fail(temporary: Path) -> None:
        temporary.write_text("half")
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        write_atomically(path, fail)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]
    write_atomically(path, lambda temporary: temporary.write_text(json.dumps({"new": 1})))
    assert json.loads(path.read_text()) == {"new": 1}
    # What is written is as readable as any file, though safetensors would keep it to its owner.
    plain = tmp_path / "plain"
    plain.touch()
    write_atomically(path, lambda temporary: save_file({"a": torch.zeros(1)}, temporary))
    assert path.stat().st_mode == plain.stat().st_mode


class _BrokenError(RuntimeError):
    """Ends a run where no signal handler sees it."""


def test_a_layers_way_is_resumed_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without the cost of starting kernels even layers this small go sparsely once they have thinned out.
    monkeypatch.setattr("twell.plan._CALL", 0.0)
    whole = run(tmp_path / "whole", steps=40)
    ways = [layer.ffn.training_way for layer in whole.model.layers]
    assert "sparse" in ways

    def stop(row: dict[str, float]) -> None:
        if row["step"] == 31:
            raise _BrokenError

    broken = replace(CONFIG, out=str(tmp_path / "broken"), steps=40)
    arguments: dict[str, Any] = {"train_tokens": TEXT, "validation_tokens": TEXT[:200], "progress": False}
    with pytest.raises(_BrokenError):
        train(broken, on_step=stop, **arguments)
    resumed = train(broken, resume=True, **arguments)
    assert numbers(resumed.history) == numbers(whole.history)
    for layer, other in zip(whole.model.layers, resumed.model.layers, strict=True):
        assert torch.equal(layer.ffn.plan_state, other.ffn.plan_state)
