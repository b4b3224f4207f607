"""Comparing the methods: block speed, the table of a comparison, its pictures, and the script that fills it."""

from __future__ import annotations

import csv
import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn import functional as F

from twellviz import plots
from twellviz.data.paths import DataNotFoundError
from twellviz.errors import ConfigError
from twellviz.models import LM, LMConfig
from twellviz.sparsifiers.calibration import block_inputs
from twellviz.sparsifiers.speed import Speed, blocks_of, decode_speed, dense_forward, plain_forward, prefill_speed
from twellviz.sparsifiers.table import by_setting, load_comparison, on_front

mpl.use("Agg")

SCRIPT = Path(__file__).resolve().parents[2] / "experiments" / "sparsifiers.py"
TINY = LMConfig(vocab_size=64, d_model=32, d_hidden=128, n_layers=2, n_heads=2, max_seq_len=32)


def comparison(*rows: tuple[str, str, int, float, float, float]) -> pd.DataFrame:
    """Setting, method, seed, loss, share, sparse time at a plain time of 2 ms (prefill) and 1 ms (decode)."""
    frame = pd.DataFrame(rows, columns=["setting", "method", "seed", "loss", "l0_share", "prefill_sparse_ms"])
    return frame.assign(prefill_plain_ms=2.0, decode_plain_ms=1.0, decode_sparse_ms=4.0)


EXAMPLE = comparison(
    ("topk-0.1", "topk", 0, 3.5, 0.1, 4.0),
    ("topk-0.1", "topk", 1, 3.7, 0.1, 4.0),
    ("relu", "relu", 0, 3.4, 0.25, 2.0),
    ("relu", "relu", 1, 3.4, 0.27, 1.0),
    ("l1-0.003", "l1", 0, 3.5, 0.02, 0.5),
    ("l1-0.001", "l1", 0, 3.3, 0.09, 1.0),
)


def test_seeds_are_pooled_in_the_order_of_the_methods() -> None:
    table = by_setting(EXAMPLE)
    assert table["setting"].tolist() == ["relu", "l1-0.001", "l1-0.003", "topk-0.1"]
    assert table["seeds"].tolist() == [2, 1, 1, 2]
    topk = table.iloc[3]
    assert (topk["loss"], topk["loss_low"], topk["loss_high"]) == (pytest.approx(3.6), 3.5, 3.7)
    relu = table.iloc[0]
    assert (relu["prefill_over_plain"], relu["prefill_over_plain_high"]) == (1.5, 2.0)
    assert relu["decode_over_plain"] == 0.25
    assert on_front(table) == [False, True, True, False]
    assert "prefill_over_plain" not in by_setting(EXAMPLE[["setting", "method", "seed", "loss", "l0_share"]])


def test_wrong_tables_are_named() -> None:
    with pytest.raises(ConfigError, match="no column l0_share"):
        by_setting(EXAMPLE.drop(columns="l0_share"))
    with pytest.raises(ConfigError, match="methods topp: known are relu"):
        by_setting(EXAMPLE.replace({"method": {"topk": "topp"}}))
    with pytest.raises(DataNotFoundError):
        load_comparison("nothing")


def test_the_pictures_show_the_table() -> None:
    ax = plots.pareto(EXAMPLE)
    drawn = [point for line in ax.lines for point in np.asarray(line.get_xydata()).tolist()]
    assert all([row.l0_share, row.loss] in drawn for row in by_setting(EXAMPLE).itertuples())
    assert ax.collections[-1].get_offsets().tolist() == [[0.02, 3.5], [0.09, 3.3]]  # the ringed front
    text = plots.describe(plots.pareto, EXAMPLE)
    assert "relu: 3.40 at 26.0%" in text
    assert text.endswith("On the front: l1-0.001, l1-0.003.")
    ax = plots.speed_by_method(EXAMPLE)
    assert [patch.get_width() for patch in ax.patches] == [1.5, 2.0, 4.0, 0.5]
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["relu", "l1-0.001", "l1-0.003", "topk-0.1"]
    decode = plots.describe(plots.speed_by_method, EXAMPLE, kind="decode_over_plain")
    assert decode.startswith("decode: plain dense time over sparse time")
    assert "topk-0.1 0.25" in decode
    with pytest.raises(ConfigError, match="kind='speed'"):
        plots.speed_by_method(EXAMPLE, kind="speed")
    with pytest.raises(ConfigError, match="not measured"):
        plots.speed_by_method(EXAMPLE[["setting", "method", "seed", "loss", "l0_share"]])


def test_the_map_of_an_activation() -> None:
    axis = np.linspace(-3, 3, 60)
    gate, up = np.meshgrid(axis, axis)
    h = np.maximum(gate, 0) * np.maximum(up, 0)
    ax = plots.activation_map(h, title="dReLU")
    np.testing.assert_array_equal(np.asarray(ax.images[0].get_array()), h)
    assert ax.get_title() == "dReLU"
    text = plots.describe(plots.activation_map, h, title="dReLU")
    assert text.startswith("dReLU: ")
    assert "exactly zero on 75% of the square, negative on 0%" in text


def test_speed_times_the_blocks_and_nothing_else() -> None:
    cfg = replace(TINY, sparsifier="topk", sparsifier_options={"share": 0.1})
    model = LM(cfg)
    inputs = block_inputs(model, torch.arange(64).view(2, 32))
    assert [tuple(x.shape) for x in inputs] == [(64, 32)] * 2
    for measure in (prefill_speed, decode_speed):
        speed = measure(model, inputs, repeats=2)
        assert min(speed.plain_ms, speed.dense_ms, speed.sparse_ms) > 0
        assert not speed.graphs
    assert Speed(2.0, 3.0, 4.0, False).over_plain == 0.5
    block, x = blocks_of(model)[0], inputs[0]
    torch.testing.assert_close(dense_forward(block, x), block(x))
    gate, up, down = (block.get_parameter(f"{name}_weight") for name in ("gate", "up", "down"))
    torch.testing.assert_close(plain_forward(block, x), (F.relu(x @ gate.T) * (x @ up.T)) @ down)
    plain = LM(replace(TINY, gated=False))
    torch.testing.assert_close(plain_forward(blocks_of(plain)[0], x), dense_forward(blocks_of(plain)[0], x))
    with pytest.raises(ConfigError, match="1 layers with tokens"):
        prefill_speed(model, inputs[:1])
    with pytest.raises(ConfigError, match="float16 on cpu, the weights"):
        prefill_speed(model, [x.half() for x in inputs])
    with pytest.raises(ConfigError, match="repeats=0"):
        prefill_speed(model, inputs, repeats=0)


def run_script(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["sparsifiers.py", *arguments])
    code: int = runpy.run_path(str(SCRIPT))["main"]()
    return code


def test_the_script_fills_the_table_and_keeps_what_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, table = tmp_path / "out", tmp_path / "table.csv"
    common = ("--smoke", "--out", str(out), "--table", str(table))
    assert run_script(monkeypatch, *common, "--methods", "relu,topk", "--seeds", "1") == 0
    first = (out / "topk-0.1-seed0.row.json").read_bytes()
    assert run_script(monkeypatch, *common, "--methods", "relu,topk,cats,moe", "--seeds", "1") == 0
    assert (out / "topk-0.1-seed0.row.json").read_bytes() == first
    assert "topk-0.1-seed0: measured" not in capsys.readouterr().out.split("rows in")[1]
    with table.open(encoding="utf-8") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    names = {row["setting"] for row in rows}
    assert names == {
        *("relu", "topk-0.02", "topk-0.1", "moe-1of8", "moe-2of8", "cats-0", "cats-0.5", "cats-0.8", "cats-0.95"),
        *("teal-0.5", "teal-0.8", "teal-0.95"),
    }
    share = {row["setting"]: float(row["l0_share"]) for row in rows}
    assert share["cats-0"] == pytest.approx(1, abs=1e-3)
    assert share["topk-0.1"] == pytest.approx(13 / 128, abs=1e-4)
    assert share["moe-2of8"] == pytest.approx(0.25, abs=1e-3)
    assert share["teal-0.8"] == pytest.approx(0.2, abs=0.03)
    assert all(float(row["decode_sparse_ms"]) > 0 and row["device"] and row["date"] and row["torch"] for row in rows)
    report = json.loads(table.with_suffix(".json").read_text())
    assert report["steps"] == 2
    assert len(report["rows"]) == len(rows)
    assert len(by_setting(pd.read_csv(table))) == len(rows)
    with pytest.raises(SystemExit, match="is of 2 steps, --steps is 3"):
        run_script(monkeypatch, *common, "--methods", "relu", "--seeds", "1", "--steps", "3")
    with pytest.raises(SystemExit, match="--methods topp: known are cats"):
        run_script(monkeypatch, *common, "--methods", "topp")


def test_the_script_gives_every_method_the_same_budget() -> None:
    script = runpy.run_path(str(SCRIPT))
    rows = [row for setting in script["trained"]() for row in script["measured"](setting)]
    assert {row.method for row in rows} == {"relu", "l1", "drelu", "prosparse", "topk", "teal", "cats", "moe"}
    assert len({row.name for row in rows}) == len(rows)
    # Neither steps nor batch nor rate can differ: a setting has none.
    assert set(rows[0].__dict__) == {"name", "method", "options", "l1", "activation", "sparsity"}
