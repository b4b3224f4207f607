"""The pictures show the numbers of the data: checked in the tables behind them and in what is drawn."""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Iterator

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib import pyplot as plt
from twell import ELL, Hybrid, TileUnion, TwELL

from twellviz import plots
from twellviz.data import Tokenizer, data_path
from twellviz.errors import ConfigError, TwellvizError
from twellviz.models import LM, LMConfig
from twellviz.traces import Trace, record

mpl.use("Agg")


@pytest.fixture(scope="module")
def trace() -> Trace:
    return Trace.load(data_path("nano/trace.safetensors"))


@pytest.fixture(scope="module")
def history() -> list[dict[str, float]]:
    with data_path("nano/log.csv").open(encoding="utf-8") as file:
        return [{name: float(value or "nan") for name, value in row.items()} for row in csv.DictReader(file)]


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    yield
    plt.close("all")


def small_matrix() -> torch.Tensor:
    h_MH = torch.zeros(3, 300, dtype=torch.bfloat16)
    h_MH[0, [3, 200, 270]] = torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16)
    h_MH[1, :40] = 1.0  # more than fit into a tile
    return h_MH


def test_layer_profile_shows_the_traces_numbers(trace: Trace) -> None:
    table = plots.layer_profile_table(trace).pivot(index="layer", columns="statistic", values="l0")
    np.testing.assert_allclose(table["mean"], trace.counts_LM.mean(1))
    np.testing.assert_array_equal(table["max"], trace.counts_LM.max(1))
    ax = plots.layer_profile(trace)
    drawn = [line.get_ydata() for line in ax.lines if len(line.get_ydata()) == trace.n_layers]
    assert any(np.allclose(y, trace.mean_L) for y in drawn)
    assert any(np.allclose(y, trace.max_L) for y in drawn)


def test_position_profile_weighs_each_token_once(trace: Trace) -> None:
    table = plots.position_profile_table(trace)
    for layer in range(trace.n_layers):
        rows = table[table["layer"] == layer]
        assert rows["tokens"].sum() == trace.n_tokens
        assert (rows["l0"] * rows["tokens"]).sum() == pytest.approx(trace.counts_LM[layer].sum())
        first = trace.counts_LM[layer, trace.position_M == 0].mean()
        assert rows["l0"].iloc[0] == pytest.approx(first)
    ax = plots.position_profile(trace, layers=[1])
    assert ax.get_xscale() == "log"
    with pytest.raises(ConfigError, match="bins_per_doubling=0"):
        plots.position_profile(trace, bins_per_doubling=0)


def test_heatmap_is_the_counts_and_bins_long_texts(trace: Trace) -> None:
    table = plots.heatmap_table(trace, start=100, length=50)
    np.testing.assert_array_equal(table.to_numpy(), trace.counts_LM[:, 100:150])
    binned = plots.heatmap_table(trace, length=None)
    assert binned.shape[1] <= 512
    size = -(-trace.n_tokens // 512)
    np.testing.assert_allclose(binned.iloc[:, 0], trace.counts_LM[:, :size].mean(1))
    assert plots.layer_token_heatmap(trace, start=100, length=50, mark=(1, 120)) is not None
    with pytest.raises(ConfigError):
        plots.layer_token_heatmap(trace, start=trace.n_tokens)


def test_training_curves_show_the_log(history: list[dict[str, float]]) -> None:
    figure = plots.training_curves(history)
    assert len(figure.axes) == 3
    ax = plots.l0_curve(history)
    # The sentence gives means over the last steps, since single steps are noisy.
    found = re.search(r"from [\d.]+ to ([\d.]+); at the end layer 0 ([\d.]+)", plots.describe(plots.l0_curve, history))
    assert found is not None
    for number, name in zip(found.groups(), ("l0", "l0_0"), strict=True):
        assert float(number) == pytest.approx(np.mean([row[name] for row in history[-20:]]), rel=0.1)
    assert ax.get_legend() is not None
    with pytest.raises(ConfigError, match="no rows"):
        plots.loss_curve([])
    with pytest.raises(ConfigError, match="no column 'cross_entropy'"):
        plots.loss_curve([{"step": 0.0}])


def test_twell_diagram_is_read_from_the_words() -> None:
    packed = TwELL.from_dense(small_matrix())
    table = plots.layout_table(packed)
    entries = table[table["kind"] == "entry"]
    first = entries[entries["line"].str.startswith("token 0")]
    assert first["column"].tolist() == [3, 200, 270]
    assert first["value"].tolist() == [1.0, 2.0, 3.0]
    counts = table[table["kind"] == "count"]["value"].tolist()
    assert counts[:4] == [2, 1, 40, 0]
    assert (table["kind"] == "superseded").sum() == 31
    # Another word in the buffer is another picture.
    packed.words[0, 1] = 9 | 0x4000 << 16
    changed = plots.layout_table(packed)
    assert changed[changed["kind"] == "entry"]["column"].tolist()[0] == 9


def test_ell_and_hybrid_diagrams_count_their_padding() -> None:
    h_MH = small_matrix()
    ell = plots.layout_table(ELL.from_dense(h_MH))
    assert (ell["kind"] == "padding").sum() == 3 * 40 - 43
    hybrid = plots.layout_table(Hybrid.from_dense(h_MH, width=3))
    assert (hybrid["kind"] == "entry").sum() == 3 + 40


def test_the_union_diagram_has_each_neuron_of_a_block_once() -> None:
    h_MH = small_matrix()
    table = plots.layout_table(TileUnion.from_dense(h_MH, block=2))
    for block, rows in (0, h_MH[:2]), (1, h_MH[2:]):
        neurons = table[(table["line"] == f"block {block}") & (table["kind"] == "neuron")]["column"].tolist()
        assert neurons == (rows > 0).any(0).nonzero().squeeze(1).tolist()[: len(neurons)]
        assert len(neurons) == int((rows > 0).any(0).sum())
    entries = table[table["kind"] == "entry"]
    assert entries["value"].sum() == float(h_MH.clamp(min=0).double().sum())
    assert len(plots.compare_layouts([h_MH, TileUnion.from_dense(h_MH, block=2)]).axes) == 3


def test_layouts_are_compared_by_their_real_bytes() -> None:
    h_MH = small_matrix()
    packings = [h_MH, ELL.from_dense(h_MH), TwELL.from_dense(h_MH), Hybrid.from_dense(h_MH)]
    table = plots.bytes_table(packings)
    assert table["bytes"].tolist() == [3 * 300 * 2, *(packed.nbytes for packed in packings[1:])]
    figure = plots.compare_layouts(h_MH)
    assert len(figure.axes) >= 4


def test_a_line_of_slots_has_all_its_columns_written_or_none() -> None:
    h_MH = torch.zeros(2, 600, dtype=torch.bfloat16)
    h_MH[0, [3, 25, 561]] = 1.0
    ell = plots.ell_layout(ELL.from_dense(h_MH))
    assert [text.get_text() for text in ell.texts] == ["3", "3", "25", "561", "0"]
    narrow = plots.hybrid_layout(h_MH, ax=plt.figure(figsize=(7, 2)).add_subplot())
    written = [text.get_text() for text in narrow.texts if "more" not in text.get_text()]
    assert written == ["0"], "a slot too narrow for 561 shows no 3 either; the empty token's count fits"


@pytest.mark.parametrize(
    "name", ["dense_layout", "ell_layout", "twell_layout", "hybrid_layout", "tile_union_layout", "compare_layouts"]
)
def test_every_layout_draws_odd_matrices_without_a_warning(name: str) -> None:
    odd = torch.zeros(12, 2000)
    odd[0, 0], odd[1, 1999], odd[2] = float("nan"), float("inf"), 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for h_MH in (odd, torch.zeros(1, 1), odd[:0]):
            getattr(plots, name)(h_MH)
            assert plots.describe(getattr(plots, name), h_MH)
    assert "8 of 12 tokens" in plots.describe(getattr(plots, name), odd).replace("first ", "")


def test_token_text_cannot_break_a_figure(tmp_path: object) -> None:
    torch.manual_seed(0)
    tokenizer = Tokenizer.load()
    config = LMConfig(
        vocab_size=tokenizer.vocab_size, d_model=16, d_hidden=40, n_layers=2, n_heads=2, max_seq_len=64, init_std=0.3
    )
    nasty = record(LM(config), tokenizer, "$x_$ $\\frac$ <b> \u4f60\u597d \U0001f600 \x00 \u202e", progress=False)
    ax = plots.layer_token_heatmap(nasty)
    ax.figure.savefig(f"{tmp_path}/f.png")


def test_alternative_text_has_the_numbers(trace: Trace) -> None:
    text = plots.describe(plots.layer_profile, trace)
    assert f"{trace.mean_L.max():.1f}" in text or str(round(float(trace.mean_L.max()))) in text
    with pytest.raises(ConfigError, match="choose one of"):
        plots.describe(print, trace)


def test_wrong_data_is_named() -> None:
    with pytest.raises(TwellvizError):
        plots.layer_profile([1, 2, 3])
    with pytest.raises(TwellvizError):
        plots.twell_layout(torch.zeros(3))
    with pytest.raises(TwellvizError):
        plots.dense_layout(torch.zeros(2, 2), max_rows=0)
