"""The experiment that measures steps beside their estimate, tried at tiny scale."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "experiments" / "estimate_check.py"


def test_it_measures_beside_the_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = runpy.run_path(str(SCRIPT))
    out = tmp_path / "one.json"
    monkeypatch.setattr(sys, "argv", ["estimate_check.py", "--smoke", "--steps", "2", "--out", str(out)])
    assert script["main"]() == 0
    found = json.loads(out.read_text())
    assert [row["size"] for row in found["sizes"]] == ["0.5b", "1b", "1.5b", "2b"]
    for row in found["sizes"]:
        assert row["measured"]["seconds"] > 0
        assert row["measured"]["tokens_per_second"] * row["measured"]["seconds"] == pytest.approx(2 * 64)
        # Fresh weights: about half of the 88 neurons fire.
        assert 30 < row["measured"]["mean_active"] < 60
        assert sum(row["estimated"]["times"].values()) == pytest.approx(row["estimated"]["seconds"])
        assert row["estimated_sparse"]["peak_bytes"] < row["estimated"]["peak_bytes"]
        assert row["ratio"]["seconds"] == pytest.approx(row["estimated"]["seconds"] / row["measured"]["seconds"])
        assert row["share_of_ideal_scaling"] is None
    peaks = [row["estimated"]["peak_bytes"] for row in found["sizes"]]
    assert peaks == sorted(peaks)
    # Twice the tokens a second on two GPUs is all of it.
    row = found["sizes"][0]
    faster = {**row, "measured": {"tokens_per_second": 2 * row["measured"]["tokens_per_second"]}}
    assert script["ideal_share"](faster, found, 2) == pytest.approx(1.0)
    assert capsys.readouterr().out.count("estimated") == 8


def test_it_refuses_to_measure_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["estimate_check.py", "--out", str(tmp_path / "a.json")])
    with pytest.raises(SystemExit, match="no CUDA GPU was found: run this on one, or give --smoke"):
        runpy.run_path(str(SCRIPT))["main"]()
