"""Two processes against one: the same tokens, losses and files, and what happens when one of them is lost."""

from __future__ import annotations

import itertools
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests import two_processes as two
from twellviz.errors import ConfigError
from twellviz.models import LM, LMConfig, load_checkpoint, save_checkpoint
from twellviz.training import TrainConfig, read_log, train
from twellviz.training.distributed import ALONE, Ranks, device_of, ranks_of
from twellviz.training.estimate import kept_parameters
from twellviz.training.state import checkpoints

# Rows that two processes do not share evenly, and everything that has a state.
MODEL = LMConfig(vocab_size=41, d_model=16, d_hidden=33, n_layers=2, n_heads=2, max_seq_len=16)
CONFIG = TrainConfig(
    model=MODEL,
    steps=50,
    batch_size=4,
    accumulation=2,
    lr=3e-3,
    lr_warmup_steps=5,
    l1_coefficient=2e-2,
    l1_start_step=5,
    l1_full_step=15,
    dead_reinit=0.1,
    eval_interval=10,
    eval_windows=1,  # of two processes one has nothing to measure
    out="",
    device="cpu",
    threads=1,
)
RNG = np.random.default_rng(0)
TEXT = ((np.arange(4000) * 3 + (RNG.random(4000) < 0.1) * RNG.integers(0, 41, 4000)) % 41).astype(np.uint16)
STOP = 20
SAME = ("step", "tokens", "lr", "l1_coefficient")


def run(folder: Path, *, resume: bool = False, on_step: Any = None, **changes: Any) -> Any:
    init = folder.parent / "init.safetensors"
    config = replace(CONFIG, out=str(folder), init=str(init) if init.exists() else None, **changes)
    return train(
        config, train_tokens=TEXT, validation_tokens=TEXT[:216], resume=resume, progress=False, on_step=on_step
    )


def _summary(result: Any, ids: list[Any]) -> dict[str, Any]:
    return {
        "history": result.history,
        "ids": ids,
        "stopped": result.stopped,
        "evaluation": None if result.evaluation is None else [result.evaluation.loss, *result.evaluation.l0_L],
        "device": str(next(result.model.parameters()).device),
    }


def _unbroken(folder: Path, **changes: Any) -> dict[str, Any]:
    with two.watched() as ids:
        return _summary(run(folder, **changes), ids)


def _stopped(folder: Path, rank: int) -> dict[str, Any]:
    with two.watched(at_step=STOP if rank == 1 else -1, do=two.terminate, passes=2) as ids:
        return _summary(run(folder), ids)


def _refused(folder: Path, **changes: Any) -> str:
    with pytest.raises(Exception) as caught:
        run(folder, **changes)
    return f"{type(caught.value).__name__}: {caught.value}"


def _work(rank: int, folder: Path) -> dict[str, Any]:
    """All that the pair does: one start of two processes."""
    return {
        "unbroken": _unbroken(folder / "two"),
        "stopped": _stopped(folder / "two-stopped", rank),
        # Activation checkpointing does not decide the losses: it may begin here.
        "resumed": _unbroken(folder / "one-stopped", resume=True, checkpoint_activations=True),
        "uneven": _refused(folder / "uneven", batch_size=3),
        "taken": _refused(folder / "two"),
        "low": low_precision_losses(Ranks(rank, 2, rank)),
        "kept": _kept(Ranks(rank, 2, rank)),
    }


def low_precision_losses(ranks: Ranks) -> list[float]:
    """Losses under autocast, of a model cut as on GPUs."""
    import torch.distributed as dist

    from twellviz.training.distributed import processes
    from twellviz.training.measure import autocast
    from twellviz.training.shards import shard

    device, losses = torch.device("cpu"), []
    torch.manual_seed(0)
    tokens_BN = torch.randint(0, 41, (4, 16))
    with processes("cpu"):
        model = shard(LM(MODEL).train(), device, ranks, low_precision=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        own = tokens_BN[ranks.share(4)]
        for _ in range(10):
            with autocast(device, "bfloat16"):
                loss = model(own, own, with_stats=True, with_logits=False).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(ranks.mean_(loss.detach())))
        assert ranks.world == 1 or dist.is_initialized()
    return losses


def _kept(ranks: Ranks) -> int:
    """Weights of this process."""
    from twellviz.training.distributed import processes
    from twellviz.training.shards import local, shard

    with processes("cpu"):
        model = shard(LM(MODEL), torch.device("cpu"), ranks, low_precision=False)
        return sum(local(parameter).numel() for parameter in model.parameters())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    model = LM(MODEL)
    for layer in model.layers:
        # Neurons that no token fires, in the rows of both processes, until noise revives them.
        layer.get_parameter("ffn.gate_weight").data[[0, 5, 16, 17, 32]] = 0
    save_checkpoint(model, folder / "init.safetensors")
    return folder


@pytest.fixture(scope="module")
def one(place: Path) -> dict[str, Any]:
    """A run of one process; beside it one that is stopped halfway, for the pair to go on with."""
    with two.watched(at_step=STOP, do=two.terminate, passes=2):
        assert run(place / "one-stopped").stopped == "SIGTERM"
    return _unbroken(place / "one")


@pytest.fixture(scope="module")
def pair(one: dict[str, Any], place: Path) -> list[dict[str, Any]]:
    return two.run(_work, place)


def assert_same_losses(actual: list[dict[str, float]], expected: list[dict[str, float]]) -> None:
    assert len(actual) == len(expected)
    for mine, other in zip(actual, expected, strict=True):
        assert {name: mine[name] for name in SAME} == {name: other[name] for name in SAME}
        for name in set(mine) - set(SAME) - {"tokens_per_second"}:
            assert mine[name] == pytest.approx(other[name], rel=1e-5, abs=1e-12, nan_ok=True), (name, mine["step"])


def joined(pair: list[dict[str, Any]], name: str) -> list[Any]:
    """Inputs and targets of each pass, the rows of rank 0 first."""
    parts = zip(pair[0][name]["ids"], pair[1][name]["ids"], strict=True)
    return [[mine + other for mine, other in zip(first, second, strict=True)] for first, second in parts]


def test_two_processes_see_the_tokens_of_one_in_the_same_order(one: Any, pair: Any) -> None:
    assert len(one["ids"]) == 50 * 2
    assert len(pair[0]["unbroken"]["ids"][0][0]) == 2
    assert joined(pair, "unbroken") == one["ids"]
    assert len({str(part) for part in one["ids"]}) == 100


def test_losses_penalty_and_counts_are_those_of_one(one: Any, pair: Any) -> None:
    for rank in pair:
        assert_same_losses(rank["unbroken"]["history"], one["history"])
        assert rank["unbroken"]["evaluation"] == pytest.approx(one["evaluation"], rel=1e-5)
    first, last = one["history"][0], one["history"][-1]
    assert last["cross_entropy"] < first["cross_entropy"] - 0.2
    assert last["l1_coefficient"] * last["l1"] > 1e-3 * last["loss"], "the penalty does nothing here"


def test_dead_gates_move_alike(place: Path, one: Any, pair: Any) -> None:
    assert one["history"][0]["dead"] == 5 / 33
    assert one["history"][1]["dead"] < 1 / 33
    mine, other = (load_file(checkpoints(place / name)[0]) for name in ("two", "one"))
    assert mine.keys() == other.keys()
    for name, tensor in other.items():
        if name.startswith(("model.", "exp_avg")) and "plan_state" not in name:
            torch.testing.assert_close(
                mine[name], tensor, rtol=1e-3, atol=2e-6, msg=lambda text, n=name: f"{n}: {text}"
            )
    assert torch.equal(mine["rng.cpu"], other["rng.cpu"])


def test_a_signal_to_any_process_stops_and_saves_all(place: Path, pair: Any) -> None:
    for rank in pair:
        assert rank["stopped"]["stopped"] == "SIGTERM"
        assert len(rank["stopped"]["history"]) == STOP + 1
    assert [path.name for path in checkpoints(place / "two-stopped")][-1] == f"step-{STOP + 1:08d}.safetensors"


def test_two_then_one(place: Path, one: Any, pair: Any) -> None:
    with two.watched() as ids:
        result = run(place / "two-stopped", resume=True)
    assert joined(pair, "stopped") + ids == one["ids"]
    assert_same_losses(result.history, one["history"])
    assert_same_losses(read_log(place / "two-stopped" / "log.csv"), one["history"])


def test_one_then_two(place: Path, one: Any, pair: Any) -> None:
    assert joined(pair, "resumed") == one["ids"][2 * (STOP + 1) :]
    for rank in pair:
        assert_same_losses(rank["resumed"]["history"], one["history"])
    assert_same_losses(read_log(place / "one-stopped" / "log.csv"), one["history"])


def test_only_the_first_writes_and_has_the_weights(place: Path, pair: Any) -> None:
    assert [rank["unbroken"]["device"] for rank in pair] == ["cpu", "meta"]
    assert sorted(path.name for path in (place / "two").iterdir()) == ["checkpoints", "config.json", "log.csv"]
    assert len(read_log(place / "two" / "log.csv")) == 50


def test_what_is_refused_says_what_to_do(pair: Any) -> None:
    for rank in pair:
        assert rank["uneven"].startswith("ConfigError: batch_size=3 with 2 processes (world size): ")
        assert "take a multiple, as 2 or 4, or another number of processes" in rank["uneven"]
    taken = "ConfigError: out='.*two' already holds a run: resume it, or give another folder"
    assert [rank["taken"].split(":")[0] for rank in pair] == ["ConfigError", "ProcessError"]
    assert all("already holds a run" in rank["taken"] for rank in pair), taken


def test_matrices_gathered_in_bfloat16_are_those_of_autocast(pair: Any) -> None:
    alone = low_precision_losses(ALONE)
    assert alone[-1] < alone[0] - 0.1
    assert pair[0]["low"] == pair[1]["low"]
    assert pair[0]["low"] == pytest.approx(alone, rel=1e-3)


def test_each_keeps_its_rows_alone(pair: Any) -> None:
    assert pair[0]["kept"] == kept_parameters(MODEL, 2)
    assert pair[0]["kept"] + pair[1]["kept"] == LM(MODEL).num_parameters()


def _lose_one(rank: int, folder: Path) -> None:
    def vanish() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with two.watched(at_step=3 if rank else -1, do=vanish, passes=2):
        run(folder / "lost", process_timeout=60.0)


def _hang_one(rank: int, folder: Path) -> None:
    with two.watched(at_step=3 if rank else -1, do=lambda: time.sleep(600), passes=2):
        run(folder / "hung", process_timeout=2.0)


def test_the_loss_of_a_process_ends_the_other_at_once(tmp_path: Path) -> None:
    assert two.wait(two.start(_lose_one, tmp_path), 40) < 30
    first, second = two.answers(tmp_path)
    assert second is None
    assert "error" in first


def test_a_process_that_hangs_is_given_up(tmp_path: Path) -> None:
    waiting, hanging = two.start(_hang_one, tmp_path)
    try:
        two.wait([waiting], 40)
    finally:
        hanging.kill()
        hanging.join()
    assert "error" in two.answers(tmp_path)[0]


def _command(rank: int, folder: Path) -> int:
    from twellviz.cli import main

    options = ["--steps", "2", "--batch-size", "2", "--seq-len", "16", "--device", "cpu", "--threads", "1"]
    return main(["train", *options, "--validation", str(folder / "held_out.jsonl"), "--out", str(folder / "run")])


def test_the_command_exports_and_prints_once(tmp_path: Path) -> None:
    (tmp_path / "held_out.jsonl").write_text('{"text": "' + "It was the best of times. " * 20 + '"}\n')
    assert two.run(_command, tmp_path) == [0, 0]
    assert "held-out loss" in (tmp_path / "out-0.txt").read_text()
    assert (tmp_path / "out-1.txt").read_text() == ""
    assert load_checkpoint(tmp_path / "run" / "model.safetensors").cfg.d_model == 128


TORCHRUN = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}


def test_ranks_of_the_environment() -> None:
    assert ranks_of({}) is ALONE
    assert ranks_of({**TORCHRUN, "WORLD_SIZE": "1", "RANK": "0"}) is ALONE
    assert ranks_of(TORCHRUN) == Ranks(1, 2, 1)
    with pytest.raises(
        ConfigError, match=r"WORLD_SIZE=2 without RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT: .*torchrun"
    ):
        ranks_of({"WORLD_SIZE": "2"})
    for wrong, message in (({"RANK": "x"}, "whole numbers"), ({"RANK": "2"}, "RANK=2"), ({"LOCAL_RANK": "3"}, "=3")):
        with pytest.raises(ConfigError, match=message):
            ranks_of({**TORCHRUN, **wrong})


@pytest.mark.parametrize(("n", "world"), [(0, 3), (2, 3), (7, 3), (8, 4), (5, 1)])
def test_shares_are_all_rows_in_order(n: int, world: int) -> None:
    shares = [list(range(n))[Ranks(rank, world, rank).share(n)] for rank in range(world)]
    assert list(itertools.chain(*shares)) == list(range(n))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_batches_that_cannot_be_shared() -> None:
    Ranks(0, 4, 0).check_batch(8)
    with pytest.raises(ConfigError, match=r"batch_size=2 with 4 processes .*take a multiple, as 4, or another number"):
        Ranks(0, 4, 0).check_batch(2)
    with pytest.raises(ConfigError, match=r"batch_size=10 .*as 8 or 12"):
        Ranks(0, 4, 0).check_batch(10)


def test_devices_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device_of("auto") == torch.device("cuda")
    assert device_of("cuda", Ranks(3, 4, 1)) == torch.device("cuda:1")
    assert device_of("auto", Ranks(1, 2, 1)) == torch.device("cuda:1")
    assert device_of("cpu", Ranks(1, 2, 1)) == torch.device("cpu")
    with pytest.raises(ConfigError, match=r"device='cuda:0' with 2 processes: each takes the GPU of its own number"):
        device_of("cuda:0", Ranks(1, 2, 1))
    with pytest.raises(ConfigError, match=r"device='cuda:2 \(process 2 of 4\)': torch sees 2 .*fewer processes"):
        device_of("auto", Ranks(2, 4, 2))
