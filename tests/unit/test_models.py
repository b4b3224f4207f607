"""The language model: its shapes, its promises, its checkpoint file, its errors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from twellviz.errors import CheckpointError, ConfigError
from twellviz.models import (
    LM,
    PRESETS,
    LMConfig,
    load_checkpoint,
    read_checkpoint_info,
    save_checkpoint,
)

TINY = LMConfig(vocab_size=50, d_model=16, d_hidden=24, n_layers=2, n_heads=2, max_seq_len=12)
VARIANTS = {
    "gated": TINY,
    "plain": replace(TINY, gated=False),
    "silu": replace(TINY, activation="silu"),
    "untied": replace(TINY, tie_embeddings=False),
}


def tokens(n: int = 12, sequences: int = 3) -> torch.Tensor:
    return torch.randint(0, TINY.vocab_size, (sequences, n))


@pytest.mark.parametrize("cfg", VARIANTS.values(), ids=VARIANTS)
def test_shapes_loss_and_stats(cfg: LMConfig) -> None:
    model = LM(cfg)
    inputs, targets = tokens(), tokens()
    logits, loss, stats = model(inputs, targets, with_stats=True)
    assert logits.shape == (3, 12, 50)
    assert loss is not None
    torch.testing.assert_close(loss, F.cross_entropy(logits.flatten(0, 1), targets.flatten()))
    assert [s.activity.shape for s in stats] == [(24,)] * 2
    for s in stats:
        torch.testing.assert_close(s.l0, s.activity.sum() / 36)
    (loss + stats[0].l1).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    plain = model(inputs)
    assert plain.loss is None
    assert plain.stats == []
    torch.testing.assert_close(plain.logits_BNV, logits)
    with torch.no_grad():
        # Without gradients the sparse kernels run.
        torch.testing.assert_close(model(inputs).logits_BNV, logits)


def test_num_parameters_is_the_estimate() -> None:
    for cfg in (*VARIANTS.values(), PRESETS["nano"], PRESETS["mini"]):
        assert LM(cfg).num_parameters() == LM.estimate_parameters(cfg)
    billions = {"0.5b": 0.512, "1b": 1.026, "1.5b": 1.539, "2b": 2.053}
    for name, size in billions.items():
        assert LM.estimate_parameters(PRESETS[name]) / 1e9 == pytest.approx(size, abs=0.001)
    assert LM.estimate_parameters(PRESETS["mini"]) / 1e6 == pytest.approx(6, rel=0.1)
    assert LM.estimate_parameters(PRESETS["small"]) / 1e6 == pytest.approx(60, rel=0.1)


def test_a_token_sees_only_what_stands_before_it() -> None:
    model = LM(TINY).double()
    inputs = tokens()
    changed = inputs.clone()
    changed[:, 7] = (changed[:, 7] + 1) % TINY.vocab_size
    before, after = model(inputs).logits_BNV, model(changed).logits_BNV
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert (before[:, 7:] != after[:, 7:]).any(-1).all()


def test_attention_knows_distances_alone() -> None:
    # Rotary positions: the same tokens at other positions attend alike, so a repeated prefix gives equal weights.
    from twellviz.models.lm import rotate, rotation

    cos_NK, sin_NK = rotation(12, TINY, torch.device("cpu"))
    query, key = torch.randn(8, dtype=torch.float32), torch.randn(8)
    scores = rotate(query.expand(12, 8), cos_NK, sin_NK) @ rotate(key.expand(12, 8), cos_NK, sin_NK).T
    for distance in range(-5, 6):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-4, atol=1e-5)
    assert (scores.diagonal(1)[0] - scores.diagonal(3)[0]).abs() > 1e-3


def test_skip_ffn_leaves_the_blocks_out() -> None:
    model = LM(TINY)
    inputs = tokens()
    skipped = model(inputs, skip_ffn=True).logits_BNV
    assert not torch.allclose(skipped, model(inputs).logits_BNV)
    with torch.no_grad():
        for layer in model.layers:
            layer.ffn.down_weight.zero_()
    torch.testing.assert_close(model(inputs).logits_BNV, skipped)
    with pytest.raises(ConfigError, match="skip_ffn"):
        model(inputs, with_stats=True, skip_ffn=True)


def test_generate() -> None:
    model = LM(TINY)
    start = tokens(3, 2)
    greedy = model.generate(start, 15)
    assert greedy.shape == (2, 18)
    assert (greedy[:, :3] == start).all()
    assert (model.generate(start, 15) == greedy).all()
    # The last token is the likeliest one after the last max_seq_len tokens before it.
    assert (model(greedy[:, -13:-1]).logits_BNV[:, -1].argmax(-1) == greedy[:, -1]).all()
    draws = [model.generate(start, 9, temperature=2.0, generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2)]
    assert (draws[0] == draws[1]).all()
    assert (draws[0] != draws[2]).any()
    with pytest.raises(ConfigError, match="temperature=-1"):
        model.generate(start, 1, temperature=-1)
    with pytest.raises(ConfigError, match="n_new=-1"):
        model.generate(start, -1)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (torch.zeros(2, 13, dtype=torch.long), "13 positions: 1 to max_seq_len=12"),
        (torch.zeros(2, 0, dtype=torch.long), "0 positions"),
        (torch.zeros(5, dtype=torch.long), r"integers \[sequences, positions\]"),
        (torch.zeros(2, 5), "float32"),
        (torch.full((1, 3), 50), "ids from 50 to 50: 0 to 49 are known"),
        (torch.tensor([[0, -1]]), "ids from -1"),
    ],
)
def test_bad_tokens(bad: torch.Tensor, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LM(TINY)(bad)


def test_bad_targets_and_no_sequences() -> None:
    model = LM(TINY)
    with pytest.raises(ConfigError, match=r"targets_BN has shape \(3, 11\)"):
        model(tokens(), tokens(11))
    assert model(torch.zeros(0, 4, dtype=torch.long)).logits_BNV.shape == (0, 4, 50)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"d_model": 0}, "d_model=0"),
        ({"n_layers": 1.5}, "n_layers=1.5: a whole number"),
        ({"n_heads": True}, "n_heads=True"),
        ({"n_heads": 3}, "d_model=16 is not a multiple of n_heads=3"),
        ({"n_heads": 16}, "even head width"),
        ({"activation": "gelu"}, "choose one of relu, silu"),
        ({"rope_theta": 0.0}, "rope_theta"),
        ({"init_std": float("nan")}, "init_std=nan: a finite number"),
        ({"gated": 1}, "gated=1"),
    ],
)
def test_bad_config(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LMConfig(**{**TINY.to_dict(), **change})


# --- checkpoint


@pytest.mark.parametrize("cfg", VARIANTS.values(), ids=VARIANTS)
def test_checkpoint_roundtrip(cfg: LMConfig, tmp_path: Path) -> None:
    model = LM(cfg)
    path = save_checkpoint(model, tmp_path / "new" / "m.safetensors", metadata={"seed": 3, "note": "<b>"})
    loaded = load_checkpoint(path)
    assert read_checkpoint_info(path) == (cfg, {"seed": 3, "note": "<b>"})
    assert loaded.cfg == cfg
    assert not loaded.training
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)
    assert [file.name for file in path.parent.iterdir()] == ["m.safetensors"]


def test_half_precision_storage_loads_as_float32(tmp_path: Path) -> None:
    model = LM(TINY)
    path = save_checkpoint(model, tmp_path / "m.safetensors", dtype=torch.float16)
    assert {tensor.dtype for tensor in load_file(path).values()} == {torch.float16}
    loaded = load_checkpoint(path).state_dict()
    for name, tensor in model.state_dict().items():
        assert loaded[name].dtype == torch.float32
        assert torch.equal(loaded[name], tensor.half().float())
    assert next(load_checkpoint(path, dtype=torch.bfloat16).parameters()).dtype == torch.bfloat16
    with torch.no_grad():
        model.norm.weight[0] = 1e6
    with pytest.raises(CheckpointError, match=r"a weight of norm\.weight is too large"):
        save_checkpoint(model, tmp_path / "big.safetensors", dtype=torch.float16)
    assert not (tmp_path / "big.safetensors").exists()
    with pytest.raises(ConfigError, match="dtype"):
        save_checkpoint(model, path, dtype=torch.int8)
    with pytest.raises(ConfigError, match="metadata"):
        save_checkpoint(model, path, metadata={"x": object()})


def rewrite(path: Path, header: dict[str, str], drop: str = "", **tensors: torch.Tensor) -> None:
    """The file with another header, or other tensors."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        before = dict(file.metadata())
    kept = {name: tensor for name, tensor in load_file(path).items() if name != drop}
    save_file({**kept, **tensors}, path, metadata={**before, **header})


def test_foreign_checkpoints(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"

    def fresh() -> Path:
        return save_checkpoint(LM(TINY), path)

    def expect(message: str) -> None:
        with pytest.raises(CheckpointError, match=message):
            load_checkpoint(path)

    expect("no file at")
    whole = fresh().read_bytes()
    # A cut anywhere: inside the length, the header, the data, and one byte short.
    for length in (0, 4, 8, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        expect("truncated or no safetensors file")
    path.write_bytes(b"PK\x03\x04" + whole)
    expect("truncated or no safetensors file")
    path.unlink()
    path.mkdir()
    expect("no file at")
    path.rmdir()
    save_file({"a": torch.zeros(1)}, path)
    expect("has format None: 'twellviz.lm' is expected")
    rewrite(fresh(), {"format": "pt"})
    expect("has format 'pt'")
    rewrite(fresh(), {"version": "99"})
    expect("has version '99': this program reads twellviz.lm version '1'")
    for config, message in (
        ("not json", "its config is not JSON"),
        ("[1]", "its config is list"),
        (json.dumps({**TINY.to_dict(), "n_heads": 3}), "its config is not valid"),
        (json.dumps({"d_model": 3}), "incomplete"),
        (json.dumps({**TINY.to_dict(), "extra": 3}), "unknown model settings extra"),
        (json.dumps({**TINY.to_dict(), "n_layers": 10**9}), "n_layers=1000000000 in its config, but"),
        (json.dumps({**TINY.to_dict(), "d_hidden": 10**9}), r"has shape \(24, 16\), \(1000000000, 16\) is expected"),
        (json.dumps({**TINY.to_dict(), "n_layers": 1}), "which the model config does not have"),
        (json.dumps({**TINY.to_dict(), "tie_embeddings": False}), r"lacks head\.weight"),
    ):
        rewrite(fresh(), {"config": config})
        expect(message)
    rewrite(fresh(), {}, drop="norm.weight")
    expect(r"lacks norm\.weight")
    rewrite(fresh(), {}, **{"norm.weight": torch.ones(17)})
    expect(r"norm\.weight has shape \(17,\), \(16,\) is expected")
    load_checkpoint(fresh())
