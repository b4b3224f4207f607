"""Recording a real, small, untrained model.

Letters: L layers, M tokens, H hidden width.
"""

from __future__ import annotations

import gc
import warnings
from typing import Any

import numpy as np
import pytest
import torch

from twellviz.data import Document, Tokenizer
from twellviz.errors import ConfigError, TextError, TraceError
from twellviz.models import LM, LMConfig
from twellviz.traces import Trace, record

TEXT = "It is a truth universally acknowledged, that a single man in possession of a good fortune,\nmust be"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load()


def small_model(**options: Any) -> LM:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"d_model": 32, "d_hidden": 96, "n_layers": 3, "n_heads": 2, "max_seq_len": 64}
    return LM(LMConfig(vocab_size=2048, **sizes | {"init_std": 0.2} | options))


def hidden_of(model: LM, ids: np.ndarray[Any, Any]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Gate and hidden values of every layer, by running the layers by hand."""
    inputs: list[torch.Tensor] = []
    handles = [layer.ffn_norm.register_forward_hook(lambda m, i, out: inputs.append(out)) for layer in model.layers]
    with torch.inference_mode():
        model(torch.from_numpy(ids).long()[None])
        for handle in handles:
            handle.remove()
        return [layer.ffn.hidden(x) for layer, x in zip(model.layers, inputs, strict=True)]


@pytest.mark.parametrize("options", [{}, {"gated": False}, {"activation": "silu"}], ids=["gated", "plain", "silu"])
def test_a_recording_holds_what_the_layers_computed(options: dict[str, Any], tokenizer: Tokenizer) -> None:
    model = small_model(**options)
    trace = record(model, tokenizer, TEXT, progress=False)
    encoding = tokenizer.encode(TEXT)
    assert trace.tokens_M.tolist() == encoding.ids.tolist()
    assert "".join(shown.text for shown in trace.token_texts) == TEXT
    for layer, (gate_MH, h_MH) in enumerate(hidden_of(model, encoding.ids)):
        active_MH = (gate_MH != 0 if options.get("activation") == "silu" else ~(gate_MH <= 0)).numpy()
        assert active_MH.any()
        assert (trace.dense(layer) == active_MH).all()
        for token in (0, trace.n_tokens - 1):
            ids, strengths = trace.active(layer, token)
            exact = h_MH[token, ids].abs().numpy()
            assert np.abs(strengths - exact).max() <= exact.max() / 508 * 1.0001
    assert trace.settings == model.cfg.to_dict()
    assert trace.made["tokenizer_sha256"] == tokenizer.sha256
    if not options:
        with torch.inference_mode():
            stats = model(torch.from_numpy(encoding.ids).long()[None], with_stats=True).stats
        assert [float(layer.l0) for layer in stats] == pytest.approx(trace.mean_L.tolist())


def test_several_texts_and_windows(tokenizer: Tokenizer) -> None:
    model = small_model()
    texts = [TEXT, Document(TEXT * 4, "austen"), "short"]
    with pytest.warns(UserWarning, match="1 of 3 texts are longer than the model's max_seq_len=64"):
        trace = record(model, tokenizer, texts, progress=False)
    lengths = [tokenizer.encode(text).ids.size for text in (TEXT, TEXT * 4, "short")]
    assert trace.n_tokens == sum(lengths)
    n_windows = -(-lengths[1] // 64)
    assert trace.sequence_text.tolist() == [0, *[1] * n_windows, 2]
    assert trace.sequence_lengths.max() == 64
    assert trace.sources == ("", "austen", "")
    # A window is seen alone: the same tokens as a text of their own give the same counts.
    again = record(model, tokenizer, TEXT, progress=False)
    assert (trace.counts_LM[:, : again.n_tokens] == again.counts_LM).all()
    second = slice(int(trace.sequence_start[2]), int(trace.sequence_start[3]))
    for layer, (gate_MH, _) in enumerate(hidden_of(model, trace.tokens_M[second])):
        assert (trace.counts_LM[layer, second] == (gate_MH > 0).sum(1).numpy()).all()


def test_max_tokens_leaves_out_with_a_notice(tokenizer: Tokenizer) -> None:
    model = small_model()
    n_first = tokenizer.encode(TEXT).ids.size
    with pytest.warns(UserWarning, match=f"max_tokens=10: the last {2 * n_first - 10} tokens"):
        trace = record(model, tokenizer, [TEXT, TEXT], max_tokens=10, progress=False)
    assert trace.n_tokens == 10
    assert len(trace.texts) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert record(model, tokenizer, TEXT, max_tokens=n_first, progress=False).n_tokens == n_first


def test_byte_pieces_keep_their_character(tokenizer: Tokenizer) -> None:
    trace = record(small_model(), tokenizer, "a \U0001f642 中 end", progress=False)
    labels = [trace.label(token) for token in range(trace.n_tokens)]
    pieces = [label for label in labels if "\U0001f642" in label]
    assert len(pieces) > 1, "this tokenizer is expected to split an emoji"
    assert pieces[0].endswith(f"[1/{len(pieces)}]")
    assert not any("\ufffd" in label for label in labels)


@pytest.mark.parametrize(
    ("texts", "options", "error", "words"),
    [
        ("", {}, TextError, r"texts\[0\] is empty"),
        ([TEXT, ""], {}, TextError, r"texts\[1\] is empty"),
        ([], {}, TextError, "at least one text"),
        ([b"bytes"], {}, TextError, r"texts\[0\] is bytes"),
        (["\ud800"], {}, TextError, "surrogate"),
        (TEXT, {"max_tokens": 0}, ConfigError, "max_tokens=0"),
        (TEXT, {"max_tokens": True}, ConfigError, "max_tokens=True"),
        (TEXT, {"device": "foo"}, ConfigError, "device='foo': give cpu, cuda"),
        (TEXT, {"device": 1.5}, ConfigError, r"device=1\.5: give cpu, cuda"),
        (TEXT, {"device": "meta"}, ConfigError, "device='meta': cannot run here"),
        (TEXT, {"device": "cuda:99"}, ConfigError, "device='cuda:99': cannot run here.*use cpu"),
    ],
)
def test_bad_input_is_named(
    texts: Any, options: dict[str, Any], error: type[Exception], words: str, tokenizer: Tokenizer
) -> None:
    with pytest.raises(error, match=words):
        record(small_model(), tokenizer, texts, progress=False, **options)


def test_a_tokenizer_of_another_model_is_refused(tokenizer: Tokenizer) -> None:
    model = LM(LMConfig(vocab_size=300, d_model=8, d_hidden=16, n_layers=1, n_heads=1, max_seq_len=8))
    with pytest.raises(ConfigError, match="2048 entries, the model 300"):
        record(model, tokenizer, "a", progress=False)


def n_hooks(model: LM) -> int:
    return sum(len(module._forward_pre_hooks) + len(module._forward_hooks) for module in model.modules())


def test_the_model_is_left_as_it_was(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model().train()
    record(model, tokenizer, TEXT, progress=False)
    assert (n_hooks(model), model.training) == (0, True)
    record(model.eval(), tokenizer, TEXT, progress=False)
    assert not model.training

    def fail(x: torch.Tensor) -> None:
        assert n_hooks(model) == 3, "the hooks are not set while the model runs"
        raise RuntimeError("broken layer")

    monkeypatch.setattr(model.layers[1].ffn, "hidden", fail)
    with pytest.raises(RuntimeError, match="broken layer"):
        record(model.train(), tokenizer, TEXT, progress=False)
    assert (n_hooks(model), model.training) == (0, True)


def test_a_block_that_is_not_called_is_named(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model()
    # Some compilers and wrappers compute a block without calling the module.
    monkeypatch.setattr(model.layers[2], "forward", lambda x_BND, *rotation, **options: (x_BND, None))
    with pytest.raises(TraceError, match="layer 2: its feed-forward block was called 0 times in 1 windows"):
        record(model, tokenizer, TEXT, progress=False)
    assert n_hooks(model) == 0


def test_recordings_do_not_pile_up_in_memory(tokenizer: Tokenizer) -> None:
    model = small_model()

    def live_tensors() -> int:
        gc.collect()
        return sum(type(thing) is torch.Tensor for thing in gc.get_objects())

    record(model, tokenizer, TEXT, progress=False)
    before = live_tensors()
    traces: list[Trace] = [record(model, tokenizer, TEXT, progress=False) for _ in range(5)]
    assert live_tensors() == before, "a trace keeps tensors of the model's run"
    assert all((trace.counts_LM == traces[0].counts_LM).all() for trace in traces)


def test_a_half_precision_model(tokenizer: Tokenizer) -> None:
    model = small_model().to(torch.bfloat16)
    trace = record(model, tokenizer, TEXT, progress=False)
    assert 0 < trace.mean_L.min() < 96
