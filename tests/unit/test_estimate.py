"""The estimate of memory and time against real models: parameters to the byte, activations as autograd saves them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from twellviz.cli import main
from twellviz.errors import ConfigError
from twellviz.models import LM, PRESETS, LMConfig
from twellviz.training import estimate
from twellviz.training.estimate import Step, largest_batch, memory
from twellviz.training.estimate_time import (
    Seconds,
    attention_flops,
    exchange_bytes,
    gather_bytes,
    product_flops,
    seconds,
)
from twellviz.training.gpus import GPUS, find_gpu, same_gpu
from twellviz.training.measure import autocast
from twellviz.training.mfu import flops_per_token

PAPER = ("0.5b", "1b", "1.5b", "2b")
MODELS = [
    *(PRESETS[name] for name in ("nano", *PAPER)),
    replace(PRESETS["nano"], gated=False, tie_embeddings=False),
]
# The paper's width with few layers, so that a traced step takes a second.
WIDE = replace(PRESETS["2b"], n_layers=2)


def n_bytes(tensors: Any) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize("cfg", MODELS, ids=lambda cfg: f"{cfg.n_layers} layers of {cfg.d_model}")
def test_parameters_gradients_and_optimiser_to_the_byte(cfg: LMConfig) -> None:
    with torch.device("meta"):
        model = LM(cfg)
    for parameter in model.parameters():
        parameter.grad = torch.empty_like(parameter)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    optimizer.step()
    step = Step(model=cfg, batch_size=1)
    assert estimate.parameter_bytes(step) == n_bytes(model.parameters())
    assert estimate.gradient_bytes(step) == n_bytes(parameter.grad for parameter in model.parameters())
    state = [tensor for moments in optimizer.state.values() for tensor in moments.values()]
    assert estimate.optimiser_bytes(step) == n_bytes(state)
    assert [tuple(p.shape) for p in model.parameters()] != []
    assert sorted(estimate.parameter_shapes(cfg)) == sorted(tuple(p.shape) for p in model.parameters())


def test_sizes_are_the_papers() -> None:
    """Paper, Table 2: one width, 8 to 38 layers, named by their billions of parameters."""
    assert [PRESETS[name].n_layers for name in PAPER] == [8, 18, 28, 38]
    for name in PAPER:
        cfg = PRESETS[name]
        assert (cfg.d_model, cfg.d_hidden, cfg.n_heads, cfg.vocab_size) == (2048, 5632, 32, 49152)
        assert (cfg.max_seq_len, cfg.tie_embeddings, cfg.init_std, cfg.rope_theta) == (2048, True, 0.02, 10000.0)
        assert estimate.kept_parameters(cfg) / 1e9 == pytest.approx(float(name[:-1]), rel=0.06)


def saved_bytes(model: LM, batch: int, positions: int, dtype: str) -> tuple[int, float]:
    """Bytes of all that autograd keeps beside the weights, each memory once, and the mean active neurons."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    found: dict[int, int] = {}
    alive = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    tokens = torch.randint(0, model.cfg.vocab_size, (batch, positions))
    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t), autocast(torch.device("cpu"), dtype):
        output = model(tokens, tokens, with_stats=True, with_logits=False)
        _ = output.loss + torch.stack([stats.l1 for stats in output.stats]).mean()
    return sum(found.values()), float(torch.stack([stats.l0 for stats in output.stats]).mean())


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize(
    ("way", "change"),
    [
        ("dense", {}),
        ("dense", {"gated": False}),
        ("dense", {"activation": "silu"}),
        ("cpu", {}),
        ("cpu", {"gated": False}),
    ],
    ids=["dense gated", "dense plain", "dense SiLU", "sparse gated", "sparse plain"],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_activations_are_what_autograd_saves(way: str, dtype: str, change: dict[str, Any], checkpointed: bool) -> None:
    cfg = replace(PRESETS["nano"], n_layers=2, **change)
    model = LM(cfg).train()
    model.checkpoint_layers = checkpointed
    for layer in model.layers:
        layer.get_submodule("ffn").backend = way
    measured, active = saved_bytes(model, 2, 96, dtype)
    step = Step(
        model=cfg,
        batch_size=2,
        seq_len=96,
        dtype=dtype,
        checkpoint_activations=checkpointed,
        mean_active=active if way == "cpu" else None,
        fused_norm=False,
    )
    copies = 0 if checkpointed else estimate.copy_bytes(step, cfg.n_layers)
    assert estimate.activation_bytes(step) + copies + estimate.loss_bytes(step) == pytest.approx(measured, rel=0.02)


@pytest.mark.parametrize(
    ("batch", "dtype", "checkpointed"), [(4, "bfloat16", False), (16, "bfloat16", True), (2, "float32", False)]
)
def test_the_peak_is_that_of_a_traced_step(
    batch: int, dtype: str, checkpointed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch runs the step on tensors without values and adds up what lives: no memory is needed for that."""
    tracker = pytest.importorskip("torch.distributed._tools.mem_tracker")
    from torch._subclasses.fake_tensor import FakeTensorMode

    monkeypatch.setattr(LM, "_check", lambda self, tokens: None)  # reads the ids
    with FakeTensorMode():
        model = LM(WIDE).train()
        model.checkpoint_layers = checkpointed
        for layer in model.layers:
            layer.get_submodule("ffn").backend = "dense"
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        with tracker.MemTracker() as living:
            living.track_external(model, optimizer)
            # The optimiser's state is there from the second step on.
            for _ in range(2):
                tokens = torch.zeros(batch, 2048, dtype=torch.long)
                with autocast(torch.device("cpu"), dtype):
                    output = model(tokens, tokens, with_stats=True, with_logits=False)
                    loss = output.loss + torch.stack([stats.l1 for stats in output.stats]).mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                del output, loss
                living.reset_mod_stats()
    measured = sum(device["Total"] for device in living.get_tracker_snapshot("peak").values())
    step = Step(model=WIDE, batch_size=batch, dtype=dtype, checkpoint_activations=checkpointed, fused_norm=False)
    assert memory(step).peak == pytest.approx(measured, rel=0.06)


def test_several_gpus_share_by_rows() -> None:
    one, two, three = (Step(model=PRESETS["2b"], batch_size=6, gpus=gpus) for gpus in (1, 2, 3))
    assert 2 * estimate.parameter_bytes(two) == estimate.parameter_bytes(one)
    # Rows that do not share evenly: the first GPU has one more.
    assert (
        0 < 3 * estimate.parameter_bytes(three) - estimate.parameter_bytes(one) < 1e-3 * estimate.parameter_bytes(one)
    )
    assert memory(two).peak < 0.6 * memory(one).peak
    assert exchange_bytes(one) == 0
    assert exchange_bytes(three) == pytest.approx(4 / 3 * exchange_bytes(two))


def test_sparse_holds_less_and_accumulation_holds_gradients() -> None:
    dense = Step(model=PRESETS["2b"], batch_size=8)
    sparse = replace(dense, mean_active=29.0)
    assert memory(sparse).peak < 0.8 * memory(dense).peak
    # At H / 4 active neurons, 12 bytes each, the pattern is as large as what it stands for.
    assert memory(replace(dense, mean_active=5632.0)).peak > memory(dense).peak
    gradients = memory(replace(dense, accumulation=2)).peak - memory(dense).peak
    assert gradients == estimate.gradient_bytes(dense)


def test_largest_batch_is_the_last_that_fits() -> None:
    step = Step(model=PRESETS["2b"], batch_size=2, gpus=2)
    most = largest_batch(step, 60e9)
    assert most % 2 == 0
    assert memory(replace(step, batch_size=most)).peak <= 60e9 < memory(replace(step, batch_size=most + 2)).peak
    assert largest_batch(step, 1e9) == 0


def test_flops_are_those_of_the_mfu() -> None:
    step = Step(model=PRESETS["1b"], batch_size=4)
    # The MFU counts the backward of attention without the scores that are made anew: 6 N D, not 7.
    attention = attention_flops(step)
    assert product_flops(step) + attention * 6 / 7 == pytest.approx(step.tokens * flops_per_token(step.model, 2048))
    again = replace(step, checkpoint_activations=True)
    layers = product_flops(step) - 6 * step.tokens * 49152 * 2048
    assert product_flops(again) - product_flops(step) == pytest.approx(layers / 3)


def test_time_adds_up_and_scales() -> None:
    gpu = find_gpu("h100")
    dense = Step(model=PRESETS["2b"], batch_size=8)
    whole = seconds(dense, gpu)
    assert isinstance(whole, Seconds)
    assert whole.total == sum(whole.parts.values())
    assert whole.tokens_per_second == pytest.approx(8 * 2048 / whole.total)
    assert 0.2 < whole.mfu < 0.7
    assert seconds(dense, gpu, products=0.35).parts["products"] == pytest.approx(2 * whole.parts["products"])
    sparse = replace(dense, mean_active=29.0)
    assert seconds(sparse, gpu).total < whole.total
    assert gather_bytes(replace(dense, mean_active=58.0)) == 2 * gather_bytes(sparse)
    two = seconds(replace(dense, batch_size=16, gpus=2), gpu)
    assert 1.5 < two.tokens_per_second / whole.tokens_per_second <= 2.05
    slow = seconds(replace(dense, batch_size=2, gpus=2, seq_len=128), find_gpu("h100-pcie"))
    assert slow.parts["exchange"] > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"gpus": 3}, "batch_size=8 on 3 GPUs: a multiple"),
        ({"seq_len": 4096}, "seq_len=4096: the model takes at most max_seq_len=2048"),
        ({"dtype": "float16"}, "dtype='float16': choose one of"),
        ({"mean_active": 6000.0}, "mean_active=6000.0: the model has d_hidden=5632"),
        ({"mean_active": 5.0, "model": replace(PRESETS["2b"], activation="silu")}, "only ReLU gives exact zeros"),
    ],
)
def test_steps_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Step(**{"model": PRESETS["2b"], "batch_size": 8, **changes})


def test_the_command_prints_parts_that_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "--preset", "2b", "--gpu", "H200", "--batch-size", "4"]) == 0
    text = capsys.readouterr().out
    upper = text.split("time of a step")[0]
    rows = {line[:24].strip(): line[24:].split() for line in upper.splitlines() if line}
    for column in range(2):
        parts = sum(float(rows[part][column]) for part in estimate.PARTS)
        assert parts == pytest.approx(float(rows["sum at the fullest"][column]), abs=0.05)
    assert rows["parameters"] == ["8.21", "8.21"]
    assert rows["fits 141 GB"] == ["yes", "yes"]
    assert main(["estimate", "--gpu", "h100", "--gpus", "2", "--batch-size", "64"]) == 0
    assert "no" in capsys.readouterr().out


def test_the_command_says_what_is_possible(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "--gpu", "voodoo2"]) == 2
    assert "gpu='voodoo2' is not known: choose one of h200, h100, " in capsys.readouterr().err
    assert main(["estimate", "--products", "1.5"]) == 2
    assert "products=1.5" in capsys.readouterr().err
    assert all(same_gpu(gpu.name) == gpu and gpu.peak() > 1e13 for gpu in GPUS.values())
    assert same_gpu("Voodoo 2") is None
