"""The scripts of experiments/: what they promise beside training."""

from __future__ import annotations

import json
import runpy
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from twellviz.data import Tokenizer, build_token_map, data_path, load_pattern
from twellviz.data.documents import read_files
from twellviz.training import read_log

FOLDER = Path(__file__).resolve().parents[2] / "experiments"


def script(name: str) -> dict[str, Any]:
    return runpy.run_path(str(FOLDER / name))


def test_only_free_sources_train_the_shipped_mini() -> None:
    mini = script("train_mini.py")
    rows = dict.fromkeys(mini["SOURCES"], "public domain") | {"arxiv": "CC0 1.0 (arXiv metadata)", "d2l": "CC BY-SA"}

    def table() -> str:
        return "\n".join(f"| `{name}` | what | from | {terms} | why | 1 |" for name, terms in rows.items())

    mini["check_licences"](table())
    rows["sotu"] = "CC BY 4.0"
    with pytest.raises(SystemExit, match=r"source sotu: 'CC BY 4.0' is neither"):
        mini["check_licences"](table())
    del rows["sotu"]
    with pytest.raises(SystemExit, match="not in the table"):
        mini["check_licences"](table())


@pytest.mark.slow
def test_the_large_run_writes_all_it_promises_when_its_time_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.numpy import load_file

    tokenizer = Tokenizer.load()
    for split in ("train", "validation"):
        pieces = read_files([data_path("text/validation.jsonl")])
        build_token_map(pieces, tokenizer, tmp_path / f"{split}.tokens", progress=False)
    out = tmp_path / "out"
    arguments = ["--text", str(tmp_path), "--out", str(out), "--smoke", "--steps", "100000", "--reserve", "0"]
    monkeypatch.setattr(sys, "argv", ["run_05b.py", *arguments, "--deadline-minutes", "0.05"])
    assert script("run_05b.py")["main"]() == 0
    run = json.loads((out / "run.json").read_text())
    assert run["stopped"] == "SIGTERM"
    # How many steps fit into the three seconds is the machine's affair; that it stopped long before the end is not.
    assert 1 <= run["steps_done"] == len(read_log(out / "log.csv")) < 10_000
    counts = load_file(out / "counts.safetensors")
    assert counts["counts_LM"].shape[0] == 2
    assert counts["counts_LM"].sum() == pytest.approx(counts["word_sum_LV"].sum(), rel=1e-6)
    assert counts["word_n_V"].sum() == counts["counts_LM"].shape[1]
    with tarfile.open(out / "patterns.tar") as archive:
        archive.extractall(tmp_path / "patterns", filter="data")
    for layer in range(2):
        pattern_MH = load_pattern(layer, tmp_path / "patterns")
        np.testing.assert_array_equal(pattern_MH.sum(1), counts["counts_LM"][layer, : len(pattern_MH)])
