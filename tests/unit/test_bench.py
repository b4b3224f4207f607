"""The benchmark measures what it says, finds wrong kernels, and writes what it found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from twell import cpu

from twellviz.bench import ffn, paths
from twellviz.bench.ffn import BenchConfig, BenchResult, PathResult, run_bench
from twellviz.bench.report import parse_densities, table
from twellviz.bench.synthetic import make_layer
from twellviz.cli import main
from twellviz.errors import ConfigError

TINY = ["bench", "ffn", "--tokens", "20", "--width", "24", "--hidden", "700", "--repeats", "2"]


def test_the_layer_is_as_active_as_asked_and_uneven() -> None:
    layer = make_layer(512, 64, 2048, 20, dtype=torch.float32, seed=0)
    active_MH = layer.x_MD @ layer.gate_HD.T > 0
    counts_M = active_MH.sum(1).float()
    assert float(counts_M.mean()) == pytest.approx(20, rel=0.02)
    # Independent neurons of one rate would spread by the square root of the mean, 4.5.
    assert float(counts_M.std()) > 8
    assert 0.25 < float((active_MH.sum(0) == 0).float().mean()) < 0.6


def test_end_to_end_with_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "bench.json"
    assert main([*TINY, "--density", "5,60", "--train", "--json", str(out)]) == 0
    text = capsys.readouterr().out
    assert "floor: the gate product alone takes" in text
    record = json.loads(out.read_text())
    assert {"format", "version", "device", "versions", "date", "command", "results"} <= set(record)
    assert [result["config"]["density"] for result in record["results"]] == [5.0, 60.0]
    for result in record["results"]:
        names = {(path["name"], path["step"]) for path in result["paths"]}
        assert {
            ("dense", "forward"),
            ("token", "forward"),
            ("tile", "forward"),
            ("auto", "forward"),
            ("dense", "training"),
            ("sparse", "training"),
        } <= names
        assert all(path["right"] and path["median_ms"] > 0 for path in result["paths"])
        held = {path["name"]: path["held_bytes"] for path in result["paths"] if path["step"] == "training"}
        assert held["sparse"] < held["dense"]


@pytest.mark.parametrize("options", [["--plain"], ["--dtype", "bfloat16"], ["--threads", "1"]])
def test_other_blocks(options: list[str]) -> None:
    threads = torch.get_num_threads()
    assert main([*TINY, "--density", "9", "--train", *options]) == 0
    assert torch.get_num_threads() == threads


def test_a_wrong_kernel_is_caught(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    right = cpu.token_ffn

    def wrong(*arrays: object) -> torch.Tensor:
        y_MD = right(*arrays)  # type: ignore[arg-type]
        y_MD[3, 5] += 0.01 * y_MD.abs().max()
        return y_MD

    monkeypatch.setattr(paths.cpu, "token_ffn", wrong)
    assert main([*TINY, "--density", "9"]) == 1
    assert "WRONG: token (forward)" in capsys.readouterr().out


def test_a_slow_path_is_called_slow() -> None:
    def path(name: str, ms: float) -> PathResult:
        return PathResult(name, "forward", 0.0, True, [ms, ms, ms])

    activity = {"mean": 9.0, "p99": 9.0, "max": 9.0, "fullest_tile": 1.0, "spilled_tiles": 0.0}
    result = BenchResult(BenchConfig(), 2, activity, [path("dense", 10.0), path("token", 20.0)], 5.0)
    text = table(result)
    assert "SLOWER than dense: token (forward), 0.50 x" in text
    assert "at most 2.00 x dense" in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--density", "400"], "density=400: above 0 and at most 245"),
        (["--density", "0"], "density=0"),
        (["--density", "few"], "density='few'"),
        (["--tokens", "0"], "tokens=0: at least 1"),
        (["--repeats", "0"], "repeats=0"),
        (["--threads", "0"], "threads=0"),
    ],
)
def test_bad_options_are_one_line(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, *options]) == 2
    err = capsys.readouterr().err.strip().splitlines()[-1]
    assert words in err


def test_densities_and_dtypes() -> None:
    assert parse_densities("5,29.5") == [5.0, 29.5]
    with pytest.raises(ConfigError, match="float64"):
        BenchConfig(dtype="float64")
    assert run_bench(BenchConfig(tokens=4, width=8, hidden=300, density=9, repeats=1)).of("token").right
    assert set(ffn.TOLERANCE) == {"float32", "bfloat16", "float16"}
