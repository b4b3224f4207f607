"""Options of the trainer that must not change what is learnt, and what it shows while it runs."""

from __future__ import annotations

import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from twell.nn import GatedFFN

from twellviz.cli import main
from twellviz.data import Tokenizer, TokenMap, build_token_map, data_path, read_jsonl
from twellviz.data.documents import DATASETS, Piece, read_dataset, read_files
from twellviz.errors import ConfigError
from twellviz.models import LM, PRESETS, LMConfig
from twellviz.models import loss as loss_module
from twellviz.models.loss import projected_cross_entropy
from twellviz.training import TrainConfig, read_log, stored_config, train
from twellviz.training.mfu import flops_per_token, peak_tflops
from twellviz.training.settings_file import read_settings

MODEL = LMConfig(vocab_size=2048, d_model=32, d_hidden=64, n_layers=2, n_heads=2, max_seq_len=32)
CONFIG = TrainConfig(model=MODEL, steps=12, batch_size=2, accumulation=2, device="cpu", threads=1, dead_reinit=0.1)
TEXT = np.random.default_rng(0).integers(0, 2048, 2000).astype(np.uint16)


def run(text: Any = TEXT, held_out: Any = TEXT[:200], resume: bool = False, on_step: Any = None, **changes: Any) -> Any:
    config = replace(CONFIG, **changes)
    return train(config, train_tokens=text, validation_tokens=held_out, resume=resume, progress=False, on_step=on_step)


def losses(result: Any) -> list[str]:
    return [repr((row["loss"], row["grad_norm"], row["l0"], row["dead"])) for row in result.history]


@pytest.mark.parametrize("chunk_elements", [1, 7 * 50, 1 << 26])
def test_projected_loss_is_cross_entropy(chunk_elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_module, "CHUNK_ELEMENTS", chunk_elements)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(33, 16, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(50, 16, generator=generator, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 50, (33,), generator=generator)
    expected = F.cross_entropy(x @ weight.T, targets)
    actual = projected_cross_entropy(x, weight, targets)
    torch.testing.assert_close(actual, expected)
    for ours, theirs in zip(
        torch.autograd.grad(3 * actual, (x, weight)), torch.autograd.grad(3 * expected, (x, weight)), strict=True
    ):
        torch.testing.assert_close(ours, theirs)
    (only,) = torch.autograd.grad(projected_cross_entropy(x, weight.detach(), targets), x)
    assert only.shape == x.shape
    with torch.no_grad():
        torch.testing.assert_close(projected_cross_entropy(x, weight, targets), expected)
    assert math.isnan(projected_cross_entropy(x[:0], weight, targets[:0]).item())


def test_projected_loss_sums_in_float32_under_autocast() -> None:
    # All logits alike but one: bfloat16 sums would stop growing at 256.
    weight = torch.zeros(5000, 8)
    x = torch.ones(3, 8)
    with torch.autocast("cpu", torch.bfloat16):
        loss = projected_cross_entropy(x, weight, torch.zeros(3, dtype=torch.long))
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(math.log(5000), rel=1e-6)


def test_the_loss_alone_is_the_loss_beside_the_logits() -> None:
    model = LM(MODEL)
    tokens = torch.from_numpy(TEXT[:64].astype(np.int64)).view(2, 32)
    both, alone = model(tokens, tokens), model(tokens, tokens, with_logits=False)
    assert alone.logits_BNV is None
    torch.testing.assert_close(alone.loss, both.loss)
    for ours, theirs in zip(
        torch.autograd.grad(alone.loss, list(model.parameters())),
        torch.autograd.grad(both.loss, list(model.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    with pytest.raises(ConfigError, match="with_logits=False without targets_BN"):
        model(tokens, with_logits=False)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_checkpointed_layers_give_the_same_bits(dtype: str) -> None:
    assert losses(run(dtype=dtype, checkpoint_activations=True)) == losses(run(dtype=dtype))


def test_checkpointing_repeats_a_layer_the_way_it_went() -> None:
    """The first pass changes the plan; repeated in the backward it must go densely as before, and the next sparsely."""
    block = GatedFFN(256, 2048, init_std=0.05)
    with torch.no_grad():
        block.gate_weight[:, 0] = -20.0
    x = torch.randn(512, 256)
    x[:, 0] = 1.0  # almost nothing fires
    passes: list[str] = []
    sparse_step = block._sparse_step

    def spy(x_MD: torch.Tensor) -> Any:
        passes.append("sparse")
        return sparse_step(x_MD)

    block._sparse_step = spy  # type: ignore[method-assign]
    for step in range(3):
        block.zero_grad()
        # Two parts, both forward before either goes backward.
        parts = [checkpoint(block.forward_with_stats, x * (1 + part), use_reentrant=False) for part in range(2)]
        assert block.training_way == "sparse"
        sum(y.square().mean() + 0.1 * stats.l1 for y, stats in parts).backward()
        assert passes == ["sparse"] * 4 * step
        gradient = block.gate_weight.grad
        assert gradient is not None
        if step == 0:
            dense = gradient.clone()
    torch.testing.assert_close(gradient, dense, rtol=1e-3, atol=1e-5)


def test_checkpointing_keeps_less() -> None:
    kept = []
    for again in (False, True):
        model = LM(replace(MODEL, n_layers=6)).train()
        model.checkpoint_layers = again
        sizes: list[int] = []

        def pack(tensor: torch.Tensor, sizes: list[int] = sizes) -> torch.Tensor:
            sizes.append(tensor.numel())
            return tensor

        tokens = torch.zeros(2, 32, dtype=torch.long)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(tokens, tokens, with_stats=True, with_logits=False)
        kept.append(sum(sizes))
    assert kept[1] < 0.5 * kept[0]


def test_rows_do_not_depend_on_when_they_are_fetched(tmp_path: Path) -> None:
    each = run(eval_interval=5, log_interval=1)
    seen: list[int] = []
    later = run(eval_interval=5, log_interval=7, on_step=lambda row: seen.append(row["step"]), out=str(tmp_path))
    assert losses(later) == losses(each)
    assert seen == list(range(12))
    rows = read_log(tmp_path / "log.csv")
    assert [math.isnan(row["validation_loss"]) for row in rows] == [row["step"] % 5 != 0 for row in rows]
    assert list(rows[0]) == list(each.history[0])
    # Steps 5 and 6 were fetched together.
    assert rows[5]["tokens_per_second"] == rows[6]["tokens_per_second"] != rows[4]["tokens_per_second"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile on a CPU needs a C++ compiler")
def test_compiled_layers_learn_the_same(tmp_path: Path) -> None:
    plain = run(steps=4)
    compiled = run(steps=4, compile=True, checkpoint_activations=True, out=str(tmp_path), checkpoint_interval=2)
    for one, other in zip(plain.history, compiled.history, strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-4)
        assert other["l0"] == pytest.approx(one["l0"], rel=1e-3)
    assert compiled.evaluation.loss == pytest.approx(plain.evaluation.loss, rel=1e-4)
    assert [name for name, _ in compiled.model.named_parameters()] == [
        name for name, _ in plain.model.named_parameters()
    ]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    folder = tmp_path_factory.mktemp("shards")
    documents = read_jsonl(data_path("text/validation.jsonl"))
    for number in range(2):
        table = pyarrow.table({"text": [document.text for document in documents[number::2]]})
        parquet.write_table(table, folder / f"{number}.parquet")
    return sorted(folder.iterdir())


def test_datasets_streaming_gives_the_losses_of_the_memory_map_two_resumes_included(
    tmp_path: Path, shards: list[Path]
) -> None:
    """Issue 5: token for token, the run over streamed shards is that over the map of the same files."""
    tokenizer = Tokenizer.load()
    streamed = build_token_map(read_dataset(DATASETS["fineweb-edu"], shards), tokenizer, tmp_path / "a.tokens")
    mapped = build_token_map(read_files(shards), tokenizer, tmp_path / "b.tokens")
    np.testing.assert_array_equal(streamed.tokens, mapped.tokens)
    whole = run(mapped, mapped)
    assert losses(run(np.array(mapped.tokens), mapped)) == losses(whole)

    class BrokenError(RuntimeError):
        pass

    def stop_at(step: int) -> Any:
        def stop(row: dict[str, float]) -> None:
            if row["step"] == step:
                raise BrokenError

        return stop

    arguments: dict[str, Any] = {"out": str(tmp_path / "run"), "checkpoint_interval": 3}
    with pytest.raises(BrokenError):
        run(streamed, mapped, on_step=stop_at(4), **arguments)
    with pytest.raises(BrokenError):
        run(streamed, mapped, resume=True, on_step=stop_at(8), **arguments)
    resumed = run(mapped, mapped, resume=True, **arguments)
    assert losses(resumed) == losses(whole)


def test_token_maps_that_do_not_fit_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from twellviz.data import train_tokenizer

    texts = [document.text for document in read_jsonl(data_path("text/validation.jsonl"))]
    other = train_tokenizer(texts, 300)
    other.save(tmp_path / "other" / "tokenizer.json")
    pieces = [Piece(text, None) for text in texts[:3]]
    theirs = build_token_map(pieces, other, tmp_path / "theirs.tokens", progress=False)
    ours = build_token_map(pieces, Tokenizer.load(), tmp_path / "ours.tokens", progress=False)
    with pytest.raises(ConfigError, match="are of two tokenizers"):
        run(ours, theirs)
    with pytest.raises(ConfigError, match="are of two tokenizers"):
        train(CONFIG, train_tokens=theirs, progress=False)
    with pytest.raises(ConfigError, match=r"ours.tokens is of a tokenizer with 2048 entries, .* vocab_size=300"):
        run(ours, ours, model=replace(MODEL, vocab_size=300))
    small = ["--steps", "1", "--batch-size", "1", "--seq-len", "16", "--device", "cpu", "--no-progress"]
    text = ["--text", str(theirs.path), "--validation", str(theirs.path)]
    assert main(["train", *small, *text, "--out", str(tmp_path / "bad")]) == 2
    assert "theirs.tokens was made with the tokenizer" in capsys.readouterr().err
    own = ["--tokenizer", str(tmp_path / "other")]
    assert main(["train", *small, *text, *own, "--out", str(tmp_path / "run")]) == 0
    assert stored_config(tmp_path / "run").lm.vocab_size == 300
    assert "MFU           not available" in capsys.readouterr().out
    assert isinstance(TokenMap.open(theirs.path), TokenMap)


def test_mfu() -> None:
    cfg = PRESETS["0.5b"]
    weights = LM.estimate_parameters(cfg)
    norms = (2 * cfg.n_layers + 1) * cfg.d_model
    assert flops_per_token(cfg, 2048) == 6 * (weights - norms) + 6 * 8 * 2048 * 2048
    for name, peak in (
        ("NVIDIA H200", 989.4),
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756.0),
        ("NVIDIA A100-SXM4-80GB", 311.9),
        ("NVIDIA L4", 121.0),
        ("NVIDIA L40S", 362.0),
        ("NVIDIA L40", None),
        ("Quadro P400", None),
    ):
        assert peak_tflops(name, "bfloat16") == peak, name
    assert peak_tflops("NVIDIA H200", "float32") == 66.9
    assert run().mfu is None
    result = run(peak_tflops=1.0)
    work = 12 * CONFIG.tokens_per_step * flops_per_token(MODEL, 32)
    assert result.mfu == pytest.approx(work / result.seconds / 1e12)


def test_tensorboard_holds_the_history(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = run(out=str(tmp_path), tensorboard=True, eval_interval=6)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    found = [event.value for event in events.Scalars("train/loss")]
    assert found == pytest.approx([row["loss"] for row in result.history], rel=1e-6)
    assert [event.step for event in events.Scalars("train/validation_loss")] == [0, 6]
    assert len(events.Scalars("l0_by_layer/1")) == 12
    assert "train/l0" in events.Tags()["scalars"]


def test_tensorboard_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match=r"'tensorboard' is not installed; pip install 'twellviz\[train\]'"):
        run(out=str(tmp_path / "run"), tensorboard=True)
    with pytest.raises(ConfigError, match="tensorboard=True without out"):
        run(tensorboard=True)


def test_settings_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "model: {preset: micro, gated: false, d_hidden: 512}\nsteps: 3\nl1_coefficient: 1e-3\nbetas: [0.8, 95e-2]\n"
        "storage: bfloat16\nlog-interval: 2\n"
    )
    arguments = ["train", "--config", str(path), "--steps", "5", "--activation", "silu", "--print-config"]
    assert main(arguments) == 0
    printed = tmp_path / "printed.yaml"
    printed.write_text(capsys.readouterr().out)
    settings = read_settings(printed)
    assert settings["model"] == replace(PRESETS["micro"], gated=False, d_hidden=512, activation="silu")
    assert (settings["steps"], settings["l1_coefficient"], settings["betas"]) == (5, 1e-3, (0.8, 0.95))
    assert (settings["storage"], settings["out"]) == ("bfloat16", "runs/run")
    assert main(["train", "--config", str(printed), "--print-config"]) == 0
    assert capsys.readouterr().out == printed.read_text()
    # An option wins over the file, the other way too.
    assert main(["train", "--config", str(path), "--gated", "--print-config"]) == 0
    assert "gated: true" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("stepps: 3", "unknown setting 'stepps'; did you mean 'steps'?"),
        ("l1: 3", "unknown setting 'l1'; did you mean 'l1_coefficient'?"),
        ("zzz: 3", "unknown setting 'zzz'; known are model, steps"),
        ("model: {d_modell: 3}", "unknown setting 'd_modell'; did you mean 'd_model'?"),
        ("model: nanno", "choose one of nano, micro"),
        ("model: [1]", "the name of a preset or a mapping"),
        ("model: {d_model: 64}", "incomplete model settings"),
        ("steps: many", "steps='many'"),
        ("lr: fast", "lr='fast'"),
        ("compile: 3", "compile=3: True or False"),
        ("betas: 0.9", "betas=0.9: two numbers"),
        ("betas: [0.9, x]", "betas=(0.9, 'x'): two numbers"),
        ("out: [a]", "out=['a']: a path is needed"),
        ("batch-sice: 3", "did you mean 'batch_size'?"),
        ("- steps", "settings are a mapping"),
        ("steps: [", "cannot be read as YAML"),
        ("!!python/object/apply:os.system ['true']", "cannot be read as YAML"),
    ],
)
def test_bad_files(content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(content)
    assert main(["train", "--config", str(path), "--print-config"]) == 2
    assert message in capsys.readouterr().err


def test_a_damaged_token_map_is_not_trained_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from twellviz.data import Tokenizer, build_token_map
    from twellviz.data.documents import Piece

    path = tmp_path / "text.tokens"
    build_token_map([Piece("many words " * 600, None)], Tokenizer.load(), path, progress=False)
    whole = path.read_bytes()
    path.write_bytes(whole[:-400] + bytes(400))
    assert main(["train", "--text", str(path), "--out", str(tmp_path / "out"), "--steps", "1"]) == 2
    assert "is damaged: its ids have another SHA-256" in capsys.readouterr().err


def test_config_with_resume_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--config", "x.yaml", "--resume", str(tmp_path)]) == 2
    assert "--resume with --config" in capsys.readouterr().err
    assert main(["train", "--config", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml: cannot be read as YAML" in capsys.readouterr().err


def test_what_takes_long_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    train(replace(CONFIG, steps=1), train_tokens=TEXT, validation_tokens=TEXT[:200], progress=True)
    assert "measuring held-out loss ..." in capsys.readouterr().err


def test_a_run_can_start_from_a_model(tmp_path: Path) -> None:
    from twellviz.models import save_checkpoint

    first = run(steps=30, l1_coefficient=0.0)
    path = save_checkpoint(first.model, tmp_path / "model.safetensors")
    again = run(steps=2, init=path, l1_coefficient=0.0, dead_reinit=0.0, lr=1e-9, eval_interval=1, eval_windows=None)
    assert again.history[0]["validation_loss"] == pytest.approx(first.evaluation.loss, rel=1e-6)
    with pytest.raises(ConfigError, match="is a model of other sizes or options"):
        run(model=replace(MODEL, n_layers=1), init=path)
