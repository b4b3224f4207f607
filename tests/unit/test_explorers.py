"""The explorer shows what the trace holds, follows its sliders, and lets no text out unescaped."""

from __future__ import annotations

import base64
import json
import re
import warnings
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
import torch

from tests.trace_samples import AFTER_HOSTILE, HOSTILE, hostile_trace
from twellviz.data import Tokenizer, data_path
from twellviz.errors import TraceError
from twellviz.explorers import explore, page
from twellviz.explorers.markup import colours
from twellviz.explorers.view import view_of, window_of
from twellviz.models import LM, LMConfig
from twellviz.traces import Trace, record

mpl.use("Agg")

NASTY = (
    "<script>alert(1)</script> & $x_$ \"quotes\" 'n' \u202eright\u202c \u4f60\u597d "
    "\U0001f468\u200d\U0001f469 \x00 </tr>\n--> end"
)
TAGS = {"div", "span", "p", "small", "b", "br", "sub", "table", "caption", "thead", "tbody", "tr", "th", "td"}


@pytest.fixture(scope="module")
def shipped() -> Trace:
    return Trace.load(data_path("nano/trace.safetensors"))


@pytest.fixture(scope="module")
def nasty() -> Trace:
    torch.manual_seed(0)
    tokenizer = Tokenizer.load()
    config = LMConfig(
        vocab_size=tokenizer.vocab_size, d_model=16, d_hidden=40, n_layers=2, n_heads=2, max_seq_len=128, init_std=0.3
    )
    return record(LM(config), tokenizer, [NASTY, "plain"], progress=False)


def test_sliders_change_text_counts_and_neurons(shipped: Trace) -> None:
    explorer = explore(shipped, layer=0, token=10)

    def drawn() -> tuple[bytes | str, ...]:
        parts = explorer._strip.spec, explorer._charts[0].values, explorer._counts.value, explorer._neurons.value
        return *parts, explorer._heatmap.row, explorer._heatmap.col

    before = drawn()
    explorer.token.value = 2000
    moved = drawn()
    explorer.layer.value = 3
    layered = drawn()
    for one, two in ((before, moved), (moved, layered)):
        assert all(a != b for a, b in zip(one[:4], two[:4], strict=True))
    assert (moved[4:], layered[4:]) == ((0, 2000), (3, 2000))
    assert f"<b>layer 3: {shipped.counts_LM[3, 2000]}</b>" in explorer.html
    assert 'aria-current="true"' in explorer.html


def test_what_is_shown_is_what_the_trace_holds(shipped: Trace) -> None:
    layer, token = 2, 1234
    view = view_of(shipped, layer, token)
    active, strengths = shipped.active(layer, token)
    strongest = active[np.argsort(-strengths, kind="stable")][: len(view.neurons)]
    assert [row.neuron for row in view.neurons] == strongest.tolist()
    assert view.n_active == len(active)
    row = view.neurons[0]
    assert row.share == pytest.approx(shipped.dense(layer)[:, row.neuron].mean())
    table = explore(shipped, layer=layer, token=token).table()
    assert table["neuron"].tolist() == strongest.tolist()
    assert [t.count for t in view.strip] == shipped.counts_LM[
        layer, view.strip[0].index : view.strip[-1].index + 1
    ].tolist()


def test_strip_is_a_window_of_the_tokens_sequence(shipped: Trace) -> None:
    for token in (0, 255, 256, 300, shipped.n_tokens - 1):
        start, stop = window_of(shipped, token)
        assert start <= token < stop
        assert stop - start == 160
        assert len(set(shipped.sequence_M[start:stop].tolist())) == 1
    assert "the rest is left out" in view_of(shipped, 0, 300).notice


def test_no_text_of_a_token_becomes_markup(nasty: Trace, tmp_path: Path) -> None:
    explorer = explore(nasty)
    for token in range(nasty.n_tokens):
        explorer.token.value = token
        tags = set(re.findall(r"</?([a-zA-Z][\w-]*)", explorer.html))
        assert tags <= {
            "div",
            "span",
            "p",
            "small",
            "b",
            "br",
            "sub",
            "table",
            "caption",
            "thead",
            "tbody",
            "tr",
            "th",
            "td",
        }
    text = explorer.save(tmp_path / "a b.html").read_text(encoding="utf-8")
    data = text.split('<script type="application/json" id="trace">')[1].split("</script>")[0]
    assert "<" not in data
    assert json.loads(data)["labels"] == [nasty.label(i) for i in range(nasty.n_tokens)]
    assert text.count("<script") == 2
    explorer.figure().figure.savefig(tmp_path / "f.png")


def test_page_holds_the_counts_and_stays_below_its_limit(
    shipped: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = explore(shipped, layer=1, token=7).save(tmp_path / "page.html")
    text = path.read_text(encoding="utf-8")
    assert path.stat().st_size < page.MAX_BYTES
    assert not re.search(r"https?://|import\(|@import|src=", text)
    data = json.loads(text.split('id="trace">')[1].split("</script>")[0])
    assert data["counts"] == shipped.counts_LM.tolist()
    assert (data["layer"], data["token"]) == (1, 7)
    assert [neuron for neuron, _ in data["top"][1][7]] == shipped.top_neurons(1, 7)[0].tolist()
    assert "the 8 strongest neurons of each token; weaker active neurons are left out" in data["left_out"]

    monkeypatch.setattr(page, "MAX_BYTES", 1_000_000)
    smaller = explore(shipped).save(tmp_path / "small.html").read_text(encoding="utf-8")
    assert len(smaller.encode()) <= 1_000_000
    assert re.search(r"the [1-7] strongest neurons", smaller)
    monkeypatch.setattr(page, "MAX_BYTES", 1000)
    with pytest.raises(TraceError, match=r"record fewer tokens"):
        explore(shipped).save(tmp_path / "none.html")
    assert not (tmp_path / "none.html").exists()


def test_find_goes_to_the_next_place_and_wraps(shipped: Trace) -> None:
    explorer = explore(shipped, token=100)
    seen = []
    for _ in range(3):
        explorer.find.value = "Country"
        seen.append(explorer.token.value)
        _, token, after = shipped.context(explorer.token.value)
        assert "country" in (token + after).casefold()
        explorer.find.value = ""
    assert len(set(seen)) == 3
    explorer.token.value = shipped.n_tokens - 1
    explorer.find.value = "country"
    assert explorer.token.value == min(seen) or explorer.token.value < 100
    explorer.find.value = "no such text anywhere"
    assert explorer.found.value == "not in these texts"


def test_counts_can_be_read_as_numbers(shipped: Trace) -> None:
    explorer = explore(shipped, token=5)
    assert "<sub>" not in explorer.html
    explorer.numbers.value = True
    assert f"<sub>{shipped.counts_LM[0, 5]}</sub>" in explorer.html


def test_every_shade_can_be_read() -> None:
    for shade in np.linspace(0, 1, 21):
        background, text = colours(float(shade))
        levels = [int(part) / 255 for part in background[4:-1].split(",")]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in levels]
        luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        ink = 0.0 if text == "#000" else 1.0
        contrast = (max(luminance, ink) + 0.05) / (min(luminance, ink) + 0.05)
        assert contrast >= 4.5, (shade, contrast)


def test_display_has_stable_text(shipped: Trace) -> None:
    explorer = explore(shipped, layer=1, token=2)
    bundle, metadata = explorer._repr_mimebundle_()
    assert bundle["text/plain"] == "Explorer of nano: 4 layers, 3840 tokens; layer 1, token 2"
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG"), "what is seen where no widget can run"
    assert "token 2 has" in metadata["image/png"]["alt"]
    assert "token 2 of 3840" in explorer.summary()


@pytest.mark.parametrize(("layer", "token"), [(-1, 0), (4, 0), (0, -1), (0, 3840)])
def test_bad_places_are_named(shipped: Trace, layer: int, token: int) -> None:
    with pytest.raises(TraceError, match="this trace has"):
        explore(shipped, layer=layer, token=token)


def test_other_endings_are_refused(shipped: Trace, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"ends in \.html, a picture in \.png or \.svg"):
        explore(shipped).save(tmp_path / "page.pdf")


def test_what_is_no_trace_is_named() -> None:
    with pytest.raises(TraceError, match=r"trace is dict: give a twellviz\.traces\.Trace"):
        explore({})  # type: ignore[arg-type]


def test_the_figure_draws_any_text(tmp_path: Path) -> None:
    explorer = explore(hostile_trace(), layer=1, token=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a character without a glyph warns
        ax = explorer.figure()
        ax.figure.savefig(tmp_path / "figure.png")
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert labels[2] == "$x_$"
    assert all(len(label) <= 22 for label in labels)


def test_page_text_neither_turns_round_nor_runs_out_of_the_page(tmp_path: Path) -> None:
    text = explore(hostile_trace()).save(tmp_path / "page.html").read_text(encoding="utf-8")
    data = json.loads(text.split('id="trace">')[1].split("</script>")[0])
    assert len(data["texts"]) == len(HOSTILE) + len(AFTER_HOSTILE)
    for shown in data["texts"]:
        assert not set(shown) & set("\u202e\u200d\x00"), "a character that is invisible or changes the direction"
        assert len(shown) <= 100
    assert data["texts"][13] == "line\nbreak"


def test_the_page_forbids_every_request(shipped: Trace, tmp_path: Path) -> None:
    text = explore(shipped).save(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in text.split("<script")[0]
