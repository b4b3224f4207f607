"""Recorded benchmarks as a table: the shipped file, a missing one, and one that is something else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from twellviz.bench import recorded as module
from twellviz.bench.recorded import origin, recorded
from twellviz.data import data_path
from twellviz.errors import ConfigError


def test_shipped_figures() -> None:
    frame = recorded("ffn_cpu")
    assert frame is not None
    record = json.loads(data_path("benchmarks/ffn_cpu.json").read_text(encoding="utf-8"))
    assert len(frame) == sum(len(result["paths"]) for result in record["results"])
    first, path = frame.iloc[0], record["results"][0]["paths"][0]
    assert (first.path, first.step, first.median_ms) == (path["name"], path["step"], path["median_ms"])
    assert [first.low_ms, first.high_ms] == path["quartiles_ms"]
    assert first.active == record["results"][0]["activity"]["mean"]
    assert (first.tokens, first.width, first.hidden) == (512, 2048, 5632)
    assert frame.right.all()
    said = origin(frame)
    assert record["date"] in said
    assert record["device"] in said
    assert record["command"] in said
    assert f"torch {record['versions']['torch']}" in said


def test_a_file_that_does_not_ship_is_none() -> None:
    assert recorded("ffn_of_nothing") is None


@pytest.mark.parametrize("content", ["[]", "{}", '{"format": "twellviz.bench.ffn", "version": 99}'])
def test_another_file_is_refused(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    path.write_text(content, encoding="utf-8")
    monkeypatch.setattr(module, "data_path", lambda name: path)
    with pytest.raises(ConfigError, match=r"x\.json is .*version 1 is needed"):
        recorded("x")
