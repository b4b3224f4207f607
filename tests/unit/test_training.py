"""The training loop: its loss, schedules, history, measurements, and the settings that it refuses."""

from __future__ import annotations

import itertools
import math
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from twellviz.data import load_tokens
from twellviz.data.tokenizer import Tokenizer
from twellviz.errors import CheckpointError, ConfigError
from twellviz.models import LM, LMConfig, load_checkpoint
from twellviz.training import TrainConfig, evaluate, export_model, read_log, train
from twellviz.training.history import columns
from twellviz.training.reinit import reinitialise_dead_gates

MODEL = LMConfig(vocab_size=40, d_model=16, d_hidden=32, n_layers=2, n_heads=2, max_seq_len=16)
CONFIG = TrainConfig(
    model=MODEL, steps=6, batch_size=4, lr=1e-2, lr_warmup_steps=2, l1_coefficient=1e-2, device="cpu", threads=1
)
# A text with a rule to learn: the next token is three on, with noise now and then.
RNG = np.random.default_rng(0)
TEXT = ((np.arange(4000) * 3 + (RNG.random(4000) < 0.1) * RNG.integers(0, 40, 4000)) % 40).astype(np.uint16)
HELD_OUT = TEXT[3500:]


def run(**changes: Any) -> Any:
    kwargs = {name: changes.pop(name) for name in ("resume", "on_step") if name in changes}
    return train(
        replace(CONFIG, **changes), train_tokens=TEXT[:3500], validation_tokens=HELD_OUT, progress=False, **kwargs
    )


def test_it_learns_and_says_so() -> None:
    seen: list[dict[str, float]] = []
    result = run(steps=40, eval_interval=10, on_step=seen.append)
    assert seen == result.history
    assert [row["step"] for row in seen] == list(range(40))
    assert list(seen[0]) == list(dict.fromkeys(seen[0])) and set(seen[0]) == set(columns(2))  # noqa: PT018
    assert seen[0]["cross_entropy"] == pytest.approx(math.log(40), abs=0.1)
    assert seen[-1]["cross_entropy"] < seen[0]["cross_entropy"] - 0.5
    measured = [row["validation_loss"] for row in seen]
    assert [i for i, loss in enumerate(measured) if not math.isnan(loss)] == [0, 10, 20, 30]
    assert measured[30] < measured[0] - 0.5
    assert result.evaluation.loss < measured[0] - 0.5
    for row in seen:
        assert row["loss"] == pytest.approx(row["cross_entropy"] + row["l1_coefficient"] * row["l1"])
        assert row["l0"] == pytest.approx((row["l0_0"] + row["l0_1"]) / 2)
        assert 0 <= row["dead"] < 1
    assert len(result.frame()) == 40
    assert result.stopped is None


def test_the_penalty_is_the_same_for_any_split_of_a_step() -> None:
    whole, parts = run(batch_size=32), run(batch_size=8, accumulation=4)
    for one, other in zip(whole.history, parts.history, strict=True):
        for name in ("l1", "cross_entropy", "loss", "l0", "dead", "grad_norm"):
            assert other[name] == pytest.approx(one[name], rel=1e-5), name
    assert whole.history[0]["l1"] == pytest.approx(parts.history[0]["l1"], rel=1e-6)


def test_l1_is_the_sum_over_units_mean_over_tokens_and_layers() -> None:
    result = run(steps=1)
    torch.manual_seed(0)
    model = LM(MODEL)
    from twellviz.data import WindowOrder

    inputs, targets = WindowOrder(TEXT[:3500], seq_len=16, sequences=4, seed=0).batch(0)
    x_BND = model.embedding(torch.from_numpy(inputs))
    from twellviz.models.lm import rotation

    angles, sums = rotation(16, MODEL, torch.device("cpu")), []
    for layer in model.layers:
        normed = layer.ffn_norm(x_BND + layer.attention(layer.attention_norm(x_BND), *angles))
        gate, up = (normed @ layer.ffn.get_parameter(f"{name}_weight").T for name in ("gate", "up"))
        sums.append((gate.relu() * up).detach().abs().sum(-1).mean())
        x_BND, _ = layer(x_BND, *angles)
    assert result.history[0]["l1"] == pytest.approx(float(sum(sums)) / 2, rel=1e-5)
    loss = model(torch.from_numpy(inputs), torch.from_numpy(targets)).loss
    assert result.history[0]["cross_entropy"] == pytest.approx(loss.item(), rel=1e-6)


def test_a_larger_penalty_leaves_fewer_neurons() -> None:
    none, some = (run(steps=80, l1_coefficient=c).evaluation for c in (0.0, 1.0))
    assert 0 < some.l0 < 0.7 * none.l0


def test_same_seed_same_bits_other_seed_other_losses() -> None:
    losses = [[row["loss"] for row in run(seed=seed).history] for seed in (0, 0, 1)]
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]


@pytest.mark.parametrize("change", [{"gated": False}, {"activation": "silu"}, {"tie_embeddings": False}])
def test_other_models_train(change: dict[str, Any]) -> None:
    history = run(model=replace(MODEL, **change), steps=20).history
    assert history[-1]["cross_entropy"] < history[0]["cross_entropy"]


def test_bfloat16_computes_in_bfloat16_and_keeps_float32_weights() -> None:
    result, full = run(dtype="bfloat16", steps=20), run(steps=20)
    assert {parameter.dtype for parameter in result.model.parameters()} == {torch.float32}
    assert result.history[-1]["cross_entropy"] == pytest.approx(full.history[-1]["cross_entropy"], rel=0.1)
    assert result.history[0]["cross_entropy"] != full.history[0]["cross_entropy"]


def test_schedules() -> None:
    config = replace(CONFIG, steps=100, lr=1.0, lr_warmup_steps=10, lr_final=0.1)
    rates = [config.learning_rate(step) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * i for i in range(1, 11)])
    assert rates[10] == 1.0
    assert rates[99] == pytest.approx(0.1)
    assert all(a >= b for a, b in itertools.pairwise(rates[10:]))
    # The middle of the cosine.
    assert (rates[54] + rates[55]) / 2 == pytest.approx(0.55, abs=1e-3)
    config = replace(config, l1_coefficient=8.0, l1_start_step=20, l1_full_step=40)
    assert [config.l1_at(step) for step in (0, 19, 20, 25, 30, 40, 99)] == [0, 0, 0, 2, 4, 8, 8]
    assert replace(CONFIG, l1_coefficient=8.0).l1_at(0) == 8.0


def test_dead_gates_are_moved_by_the_papers_formula() -> None:
    for gated in (True, False):
        model = LM(replace(MODEL, gated=gated))
        name = "gate_weight" if gated else "up_weight"
        before = [layer.ffn.get_parameter(name).detach().clone() for layer in model.layers]
        activity = [torch.ones(32, dtype=torch.long) for _ in range(2)]
        activity[0][[3, 7]] = 0
        torch.manual_seed(5)
        reinitialise_dead_gates(model, activity, 0.1)
        torch.manual_seed(5)
        noise = torch.randn(32, 16) * 0.02
        after = model.layers[0].ffn.get_parameter(name)
        expected = before[0].clone()
        expected[[3, 7]] = 0.9 * before[0][[3, 7]] + 0.1 * noise[[3, 7]]
        torch.testing.assert_close(after, expected)
        assert torch.equal(model.layers[1].ffn.get_parameter(name), before[1])


def test_dead_gate_reinitialisation_revives() -> None:
    killing = {"steps": 80, "l1_coefficient": 1.0, "lr": 0.03}
    plain, revived = run(**killing), run(**killing, dead_reinit=0.1)
    assert plain.history[-1]["dead"] > 0.6
    assert revived.history[-1]["dead"] < plain.history[-1]["dead"] - 0.2


def test_evaluate() -> None:
    model = LM(MODEL)
    whole = evaluate(model, HELD_OUT)
    assert whole.n_tokens == (len(HELD_OUT) - 1) // 16 * 16
    in_parts = evaluate(model, HELD_OUT, batch_size=3)
    assert in_parts.loss == pytest.approx(whole.loss, rel=1e-6)
    assert in_parts.loss_without_ffn == pytest.approx(whole.loss_without_ffn, rel=1e-6)
    assert in_parts.l0_L == pytest.approx(whole.l0_L)
    inputs = torch.from_numpy(HELD_OUT[: whole.n_tokens].astype(np.int64)).view(-1, 16)
    targets = torch.from_numpy(HELD_OUT[1 : whole.n_tokens + 1].astype(np.int64)).view(-1, 16)
    assert whole.loss == pytest.approx(model(inputs, targets).loss.item(), rel=1e-6)
    assert whole.loss_without_ffn == pytest.approx(model(inputs, targets, skip_ffn=True).loss.item(), rel=1e-6)
    assert whole.ffn_worth == whole.loss_without_ffn - whole.loss
    with torch.no_grad():
        model.layers[1].ffn.gate_weight.zero_()
    killed = evaluate(model, HELD_OUT, without_ffn=False)
    assert killed.dead_L == (0.0, 1.0)
    assert killed.l0_L[1] == 0.0
    assert killed.ffn_worth is None
    assert evaluate(model, HELD_OUT, max_windows=3).n_tokens == 48
    assert evaluate(model, HELD_OUT[:6]).n_tokens == 5
    for kwargs, message in (({"seq_len": 600}, "seq_len=600"), ({"batch_size": 0}, "batch_size=0")):
        with pytest.raises(ConfigError, match=message):
            evaluate(model, HELD_OUT, **kwargs)
    with pytest.raises(ConfigError, match="the text has 1 tokens"):
        evaluate(model, HELD_OUT[:1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "nanno"}, "model='nanno': choose one of nano, micro"),
        ({"model": 3}, "the name of a preset or an LMConfig"),
        ({"steps": 0}, "steps=0"),
        ({"accumulation": 2.0}, "accumulation=2.0: a whole number"),
        ({"lr": 0.0}, "lr=0.0"),
        ({"lr": float("inf")}, "lr=inf: a finite number"),
        ({"lr_final": 2.0}, "lr_final=2.0: a share from 0 to 1"),
        ({"l1_coefficient": -1.0}, r"l1_coefficient=-1\.0"),
        ({"l1_start_step": 5, "l1_full_step": 4}, "l1_full_step=4 lies before l1_start_step=5"),
        ({"dead_reinit": 1.5}, "dead_reinit=1.5"),
        ({"model": replace(MODEL, activation="silu"), "dead_reinit": 0.1}, "only ReLU neurons die"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"seq_len": 17}, "seq_len=17: the model takes at most max_seq_len=16"),
        ({"dtype": "float16"}, "choose one of float32, bfloat16"),
        ({"seed": -1}, "seed=-1"),
        ({"threads": 0}, "threads=0"),
        ({"checkpoint_interval": 5}, "checkpoint_interval=5 without out"),
    ],
)
def test_bad_settings(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(CONFIG, **change)


def test_settings_that_contradict_text_or_machine(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="train_tokens holds id 39: the model knows 0 to 38"):
        run(model=replace(MODEL, vocab_size=39))
    with pytest.raises(ConfigError, match="validation_tokens is int64"):
        train(CONFIG, train_tokens=TEXT, validation_tokens=HELD_OUT.astype(np.int64), progress=False)
    with pytest.raises(ConfigError, match="vocab_size=40: the shipped tokenizer has 2048 entries"):
        train(CONFIG, progress=False)
    for device in ("tpu", "cuda:99", "mps"):
        with pytest.raises(ConfigError, match="device="):
            run(device=device)
    with pytest.raises(ConfigError, match="resume=True without out"):
        run(resume=True)
    run(out=str(tmp_path), steps=1)
    with pytest.raises(ConfigError, match="already holds a run"):
        run(out=str(tmp_path), steps=1)


def test_log_reads_back_to_the_bit(tmp_path: Path) -> None:
    result = run(out=str(tmp_path), eval_interval=4)
    path = tmp_path / "log.csv"
    np.testing.assert_equal(read_log(path), result.history)
    with path.open("a") as file:
        file.write("6,384,0.0")
    assert len(read_log(path)) == 6
    for content in (b"", b"a,b\n1,2\n", b"step,tokens,lr\n1,2\n", b"step,tokens\n1,x\n", b"\xff"):
        path.write_bytes(content)
        with pytest.raises(CheckpointError):
            read_log(path)


def test_first_signal_stops_after_the_step_and_saves(tmp_path: Path) -> None:
    def stop(row: dict[str, float]) -> None:
        if row["step"] == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    result = run(out=str(tmp_path), steps=8, on_step=stop)
    assert signal.getsignal(signal.SIGTERM) is before
    assert (result.stopped, len(result.history), result.evaluation) == ("SIGTERM", 4, None)
    with pytest.raises(ConfigError, match="stopped by SIGTERM"):
        export_model(result, tmp_path, tokenizer=Tokenizer.load(), validation_tokens=HELD_OUT)
    resumed = run(out=str(tmp_path), steps=8, resume=True)
    assert [row["loss"] for row in resumed.history] == [row["loss"] for row in run(steps=8).history]


def test_second_interrupt_acts_at_once(tmp_path: Path) -> None:
    def stop(row: dict[str, float]) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    def stop_twice(row: dict[str, float]) -> None:
        stop(row)
        stop(row)

    assert run(on_step=stop).stopped == "SIGINT"
    with pytest.raises(KeyboardInterrupt):
        run(on_step=stop_twice)


def test_training_outside_the_main_thread() -> None:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(run()))
    thread.start()
    thread.join()
    assert len(results[0].history) == 6


def test_export_measures_the_written_file(tmp_path: Path) -> None:
    result = run(steps=20)
    record = export_model(
        result,
        tmp_path,
        tokenizer=Tokenizer.load(),
        validation_tokens=HELD_OUT,
        storage="float16",
        command="made by hand",
    )
    written = evaluate(load_checkpoint(tmp_path / "model.safetensors"), HELD_OUT)
    assert record["held_out"]["loss"] == round(written.loss, 4)
    assert record["held_out"]["l0_per_layer"] == [round(l0, 2) for l0 in written.l0_L]
    assert record["loss_at_start"] == pytest.approx(math.log(40), abs=0.1)
    assert record["command"] == "made by hand"
    assert record["tokens_per_second"] == pytest.approx(20 * 64 / result.seconds, abs=1)
    assert record["mfu"] is None
    with pytest.raises(ConfigError, match="storage='int8'"):
        export_model(result, tmp_path, tokenizer=Tokenizer.load(), validation_tokens=HELD_OUT, storage="int8")


@pytest.mark.slow
def test_nano_becomes_sparse_and_its_blocks_matter() -> None:
    """A quarter of the default steps: sparse, alive in every layer, and worth having.

    The penalty needs time to act: at the default of 3e-3 so few steps leave more than 5 % active.
    """
    config = TrainConfig(model="nano", steps=200, l1_coefficient=4e-3, eval_interval=200)
    result = train(config, progress=False)
    measured = result.evaluation
    assert measured is not None
    assert 4 <= measured.l0 <= 0.05 * 512
    assert all(l0 > 0 for l0 in measured.l0_L)
    assert measured.loss < result.history[0]["validation_loss"] - 1
    assert measured.loss_without_ffn is not None
    assert measured.loss_without_ffn - measured.loss >= 0.2


@pytest.mark.parametrize("seq_len", [256, 100])
def test_shipped_nano_is_what_training_json_says(seq_len: int) -> None:
    import json

    from twellviz.data import data_path
    from twellviz.models import PRESETS, read_checkpoint_info

    record = json.loads(data_path("nano/training.json").read_text())
    path = data_path("nano/model.safetensors")
    tokenizer = Tokenizer.load()
    info = read_checkpoint_info(path)
    assert info.config == PRESETS["nano"]
    assert info.metadata["tokenizer_sha256"] == record["tokenizer_sha256"] == tokenizer.sha256
    measured = evaluate(load_checkpoint(path), load_tokens("validation", tokenizer), seq_len=seq_len)
    held_out = record["held_out"]
    if seq_len == 256:
        assert measured.loss == pytest.approx(held_out["loss"], abs=1e-3)
        assert measured.loss_without_ffn == pytest.approx(held_out["loss_without_ffn"], abs=1e-3)
        assert measured.l0_L == pytest.approx(held_out["l0_per_layer"], rel=0.01)
    assert 4 <= measured.l0 <= 0.05 * 512
    assert all(l0 > 0 for l0 in measured.l0_L)
    assert measured.loss < record["loss_at_start"] - 2
    assert measured.ffn_worth is not None
    assert measured.ffn_worth >= 0.2
