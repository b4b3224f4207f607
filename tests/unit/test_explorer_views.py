"""The views of the explorers: their numbers, their four forms, and what is given back when they close."""

from __future__ import annotations

import base64
import gc
import json
import re
import tracemalloc
import weakref
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from tests.trace_samples import AFTER_HOSTILE, activations, big_trace, hostile_trace, sample_trace, trace_of
from twellviz.data import Tokenizer, data_path
from twellviz.errors import ConfigError, TextError, TraceError
from twellviz.explorers import compare, explore, explore_layouts, panels, play
from twellviz.explorers.canvas import CanvasView
from twellviz.models import load_checkpoint
from twellviz.traces import Trace
from twellviz.traces.strongest import neurons_of_every_token, tokens_of_every_neuron

mpl.use("Agg")

NAMES = ["strip", "heatmap", "neurons", "neuron", "companions", "layers", "positions", "dead", "unions"]


@pytest.fixture(params=["ids", "bits"])
def trace(request: pytest.FixtureRequest) -> Trace:
    """A trace in each stored form."""
    share = 0.004 if request.param == "ids" else 0.2
    made = trace_of(activations(2, 70, 300, share=share), sequence_lengths=[33, 37])
    assert made.patterns[1].form == request.param
    return made


def numbers_of(view: CanvasView) -> list[float]:
    return np.frombuffer(view.values, "<f4").tolist()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("hostile", [False, True])
def test_every_view_has_four_forms_of_the_same_numbers(name: str, hostile: bool, tmp_path: Path) -> None:
    explorer = explore(hostile_trace() if hostile else sample_trace(), layer=1, token=2)
    chart = explorer.views[name]
    widget = chart.widget()
    assert numbers_of(widget) == chart.data.values().tolist()
    assert json.loads(widget.spec)["title"]
    widget.close()
    table = chart.table()
    assert isinstance(table, pd.DataFrame)
    assert len(table)
    ax = chart.figure()
    assert isinstance(ax, Axes)
    plt.close(ax.figure)
    page = chart.save(tmp_path / "v.html").read_text(encoding="utf-8")
    assert not re.search(r"https?://|import\(|@import|src=", page)
    assert page.count("<script") == 2
    held = json.loads(page.split('id="data">')[1].split("</script>")[0])["charts"][0]
    assert np.array_equal(np.frombuffer(base64.b64decode(held["values"]), "<f4"), chart.data.values(), equal_nan=True)
    assert chart.save(tmp_path / "v.png").read_bytes().startswith(b"\x89PNG")
    ElementTree.parse(chart.save(tmp_path / "v.svg"))
    bundle, _ = chart._repr_mimebundle_()
    assert {"image/png", "text/plain", "application/vnd.jupyter.widget-view+json"} <= set(bundle)
    assert "0x" not in bundle["text/plain"]
    explorer.close()


def test_numbers_of_the_views_are_those_of_the_trace(trace: Trace) -> None:
    layer = 1
    dense_MH = trace.dense(layer)
    assert np.array_equal(panels.heatmap(trace).values_RC, trace.counts_LM)
    for block, mean, largest in zip(*(line.y for line in _with_x(panels.unions(trace, layer))), strict=True):
        whole = [dense_MH[i : i + int(block)].any(0).sum() for i in range(0, 70 - int(block) + 1, int(block))]
        assert mean == pytest.approx(np.mean(whole))
        assert largest == max(whole)
    neuron = int(trace.activity_LH[layer].argmax())
    both = (dense_MH & dense_MH[:, [neuron]]).sum(0)
    either = (dense_MH | dense_MH[:, [neuron]]).sum(0)
    overlap = np.where(either > 0, both / np.maximum(either, 1), 0)
    overlap[neuron] = -1
    found = panels.nearest(trace, layer, neuron)
    assert [one.overlap for one in found] == pytest.approx(sorted(overlap[overlap > 0], reverse=True)[:8])
    assert all(one.both == both[one.neuron] for one in found)
    mine = panels.neuron_layers(trace, layer, neuron).lines[0].y
    assert mine == pytest.approx(trace.counts_LM[:, dense_MH[:, neuron]].mean(1))


def _with_x(lines: panels.Lines) -> tuple[panels.Line, panels.Line, panels.Line]:
    mean, largest, _ = lines.lines
    return panels.Line("B", mean.x, mean.x), mean, largest


def test_tokens_of_a_neuron_and_the_strongest_of_all_agree(trace: Trace) -> None:
    for layer, pattern in enumerate(trace.patterns):
        dense_MH, neurons_N = pattern.dense(), pattern.neurons_N()
        assert np.array_equal(np.unpackbits(pattern.packed(), axis=1, count=300).astype(bool), dense_MH)
        start, neurons, strengths = neurons_of_every_token(pattern, 4, neurons_N)
        for token in range(trace.n_tokens):
            ids, values = trace.top_neurons(layer, token, 4)
            assert neurons[start[token] : start[token + 1]].tolist() == ids.tolist()
            assert strengths[start[token] : start[token + 1]].tolist() == values.tolist()
        start, tokens = tokens_of_every_neuron(pattern, 3, neurons_N)
        for neuron in range(trace.n_hidden):
            assert np.array_equal(pattern.tokens_of(neuron)[0], np.flatnonzero(dense_MH[:, neuron]))
            assert tokens[start[neuron] : start[neuron + 1]].tolist() == trace.top_tokens(layer, neuron, 3)[0].tolist()


def test_not_finite_strengths_lead() -> None:
    h_LMH = activations(1, 20, 64, share=0.3)
    h_LMH[0, 3, 5] = np.nan
    trace = trace_of(h_LMH)
    pattern = trace.patterns[0]
    start, neurons, _ = neurons_of_every_token(pattern, 2, pattern.neurons_N())
    assert neurons[start[3]] == 5
    start, tokens = tokens_of_every_neuron(pattern, 2, pattern.neurons_N())
    assert tokens[start[5]] == 3


def test_the_views_are_linked() -> None:
    trace = sample_trace()
    explorer = explore(trace)
    explorer._heatmap.set_state({"row": 2, "col": 31})
    assert (explorer.layer.value, explorer.token.value) == (2, 31)
    assert (explorer._strip.row, explorer._strip.col) == (2, 31)
    strongest = trace.top_neurons(2, 31)[0]
    assert explorer.neuron.value == strongest[0]
    explorer._charts[0].set_state({"row": 3})
    assert explorer.neuron.value == strongest[3]
    explorer.panel.value = "one neuron"
    assert str(strongest[3]) in explorer._neurons.value
    assert json.loads(explorer._charts[0].spec)["title"].startswith(f"Where neuron {strongest[3]} of layer 2")
    explorer.panel.value = "layers"
    explorer._charts[0].set_state({"row": 1})
    assert explorer.layer.value == 1
    explorer._strip.set_state({"col": 39})
    assert explorer.token.value == 39
    for row, col in ((0, 10_000), (-1, 3)):
        explorer._heatmap.set_state({"row": row, "col": col})
        assert explorer.token.value == 39
    explorer.close()


def test_a_longer_input_is_cut_with_a_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panels, "MAX_TOKENS", 16)
    explorer = explore(sample_trace(), token=20)
    spec = json.loads(explorer._heatmap.spec)
    assert (spec["first"], len(spec["cols"])) == (16, 16)
    assert "Tokens 16 to 31 of 40" in spec["notice"]
    explorer.token.value = 39
    assert json.loads(explorer._heatmap.spec)["first"] == 32
    explorer.close()


def test_a_click_in_a_large_trace_sends_little() -> None:
    explorer = explore(big_trace(6, 2048, 5632))
    sent = sum(len(view.spec) + len(view.values) for view in (explorer._heatmap, explorer._strip, *explorer._charts))
    assert sent < 3_000_000
    explorer.close()


def test_memory_is_given_back() -> None:
    trace = sample_trace(n_tokens=400)

    def once() -> weakref.ref[object]:
        explorer = explore(trace)
        for name in explorer.panel.options:
            explorer.panel.value = name
        explorer.close()
        return weakref.ref(explorer)

    # The first ones fill caches of names in traitlets and ipywidgets, which stay.
    for _ in range(8):
        once()
    tracemalloc.start()
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    gone = [once() for _ in range(5)]
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert all(ref() is None for ref in gone)
    assert after - before < 100_000, f"{after - before} bytes stay"


def test_a_model_is_recorded_on_the_spot() -> None:
    model, tokenizer = load_checkpoint(data_path("nano/model.safetensors")), Tokenizer.load()
    explorer = explore(model, tokenizer, "The king of <script>alert(1)</script> $x_$ 👩‍👧", layer=3)
    assert explorer.trace.n_layers == 4
    assert explorer.layer.value == 3
    with pytest.warns(UserWarning, match="max_tokens"):
        assert explore(model, tokenizer, "word " * 100, max_tokens=8).trace.n_tokens == 8
    with pytest.raises(TextError):
        explore(model, tokenizer, "")
    with pytest.raises(TraceError, match="a model, its tokenizer and a text"):
        explore(model)
    with pytest.raises(TraceError, match="alone, or a model"):
        explore(explorer.trace, tokenizer, "text")


def test_two_traces_compare(tmp_path: Path) -> None:
    a, b = sample_trace(), sample_trace(n_hidden=300)
    both = compare(a, b, names=("<a>", "$b$"))
    assert np.array_equal(both.table("difference"), b.counts_LM - a.counts_LM)
    assert list(both.views) == ["difference", "layers", "positions", "dead", "unions"]
    both.layer.value = 2
    assert "layer 2" in both.views["unions"].summary()
    for name in both.views:
        both.panel.value = name
        assert numbers_of(both._canvas) == both.views[name].data.values().tolist()
        both.save(tmp_path / f"{name}.svg")
    assert len(both.save(tmp_path / "c.html").read_bytes()) < 5_000_000
    assert "%" in both.summary()
    assert repr(both) == "Comparison of <a> and $b$: 3 layers"
    other = compare(a, sample_trace(n_tokens=30))
    assert "difference" not in other.views
    with pytest.raises(TraceError, match="a has 3 layers and b 2"):
        compare(a, hostile_trace())
    with pytest.raises(ConfigError, match="two different names"):
        compare(a, b, names=("x", "x"))
    with pytest.raises(ConfigError, match="choose one of difference"):
        both.figure("nothing")


def test_layouts_follow_the_matrix(tmp_path: Path) -> None:
    explorer = explore_layouts("0 1 0 2\n3 0 0 0\n1 2 3 4")
    table = explorer.table().set_index("format")
    assert list(table.index) == ["dense", "ELL", "Hybrid", "TwELL", "TileUnion"]
    for name, packed in explorer.packed.items():
        assert table.loc[name, "bytes"] == packed.byte_counts()["total"]
    assert table.loc["ELL", "padding"] == 12 - 7
    explorer.width.value = 2
    table = explorer.table().set_index("format")
    assert (table.loc["ELL", "overflow"], table.loc["ELL", "lost"], table.loc["Hybrid", "overflow"]) == (1, 2, 1)
    before = explorer._formats.value
    explorer._turned(None, {"type": "toggle", "row": 1, "col": 3}, [])
    assert explorer.h[1].tolist() == [3, 0, 0, 1]
    assert explorer.matrix.value.splitlines()[1] == "3 0 0 1"
    assert explorer._formats.value != before
    explorer._turned(None, {"row": 99, "col": "x"}, [])
    explorer.matrix.value = "1 2\n<b>"
    assert "&lt;b&gt;" in explorer.said.value or "numbers" in explorer.said.value
    assert explorer.h.shape == (3, 4), "the last good matrix stays"
    assert "script" not in explorer._formats.value
    for ending in ("html", "png", "svg"):
        assert explorer.save(tmp_path / f"l.{ending}").stat().st_size > 1000
    plt.close(explorer.layouts())
    for bad in ("", "1 2\n3", "1 x", "nan", [[1.0] * 513], [1.0]):
        with pytest.raises(ConfigError):
            explore_layouts(bad)


def test_hostile_texts_stand_in_every_table() -> None:
    explorer = explore(hostile_trace())
    labels = [explorer.trace.label(token) for token in range(explorer.trace.n_tokens)]
    assert tuple(labels[-len(AFTER_HOSTILE) :]) == AFTER_HOSTILE
    assert explorer.views["strip"].table()["token"].tolist() == labels
    assert json.loads(explorer._heatmap.spec)["cols"] == labels
    assert all(len(label) <= 60 for label in labels)


def test_play_is_here_too() -> None:
    from twellviz.kernel_trace.player import play as there

    assert play is there


def test_an_unknown_view_is_named() -> None:
    with pytest.raises(ConfigError, match="view='nothing': choose one of strip, heatmap"):
        explore(sample_trace()).figure("nothing")
