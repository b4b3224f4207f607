"""The trace file: what is written is read back, and what is broken is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from tests.trace_samples import activations, hostile_trace, sample_trace, trace_of
from twellviz.errors import TraceError
from twellviz.traces import Trace


def contents(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    with safe_open(path, framework="numpy") as file:
        return {key: file.get_tensor(key) for key in file.keys()}, dict(file.metadata())  # noqa: SIM118


@pytest.mark.parametrize(
    "trace",
    [
        sample_trace(),
        hostile_trace(),
        trace_of(np.zeros((1, 1, 1), np.float32)),
        trace_of(np.ones((2, 3, 9), np.float32)),
        trace_of(activations(2, 50, 5632, 0.003)),
    ],
    ids=["two forms", "hostile text", "nothing fires", "everything fires", "wide"],
)
def test_a_trace_is_read_back_whole(trace: Trace, tmp_path: Path) -> None:
    path = trace.save(tmp_path / "sub" / "trace.safetensors")
    again = Trace.load(path)
    for name in ("counts_LM", "activity_LH", "tokens_M", "offsets_M2", "sequence_start", "sequence_text"):
        before, after = getattr(trace, name), getattr(again, name)
        assert before.dtype == after.dtype
        assert (before == after).all()
    for name in ("texts", "sources", "model", "settings", "special", "made"):
        assert getattr(trace, name) == getattr(again, name)
    for before, after in zip(trace.patterns, again.patterns, strict=True):
        assert before.form == after.form
        assert (before.dense() == after.dense()).all()
        for token in range(trace.n_tokens):
            np.testing.assert_array_equal(before.active(token)[1], after.active(token)[1])
    assert [path.name for path in path.parent.iterdir()] == ["trace.safetensors"], "a temporary file was left"


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = sample_trace().save(tmp_path / "trace.safetensors")
    old = path.read_bytes()
    broken = sample_trace()
    object.__setattr__(broken, "settings", {"a": object()})
    with pytest.raises(TraceError, match="settings that JSON holds"):
        broken.save(path)
    assert path.read_bytes() == old


@pytest.mark.parametrize("kept", [0, 1, 7, 8, 100, 1000, -1])
def test_a_truncated_file_is_named(kept: int, tmp_path: Path) -> None:
    path = sample_trace().save(tmp_path / "trace.safetensors")
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(TraceError, match=r"trace\.safetensors is truncated or no safetensors"):
        Trace.load(path)


def test_missing_and_foreign_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"no file at .*nowhere.*twellviz record"):
        Trace.load(tmp_path / "nowhere.safetensors")
    with pytest.raises(TraceError, match="no file"):
        Trace.load(tmp_path)
    foreign = tmp_path / "foreign.safetensors"
    save_file({"x": np.zeros(3)}, foreign)
    with pytest.raises(TraceError, match=r"format None: 'twellviz\.trace' is expected"):
        Trace.load(foreign)
    save_file({"x": np.zeros(3)}, foreign, metadata={"format": "twellviz.lm", "version": "1"})
    with pytest.raises(TraceError, match=r"format 'twellviz\.lm'"):
        Trace.load(foreign)
    foreign.write_bytes(b"PK\x03\x04 this is a zip file, or so it says")
    with pytest.raises(TraceError, match="no safetensors file"):
        Trace.load(foreign)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"counts": None}, "lacks counts"),
        ({"layer1.codes": None}, r"lacks layer1\.codes"),
        ({"layer0.ids": None, "layer0.bits": None}, "either ids or bits"),
        ({"counts": np.zeros((3, 40), np.int64)}, "counts is int64: int32 is expected"),
        ({"counts": np.zeros(4, np.int32)}, r"counts \(4,\)"),
        ({"counts": np.full((3, 40), -1, np.int32)}, "negative"),
        ({"counts": np.zeros((3, 40), np.int32)}, "add up to 0"),
        ({"activity": np.zeros((2, 200), np.int64)}, "activity"),
        ({"activity": np.zeros((3, 200), np.int64)}, "activity and pattern of layer 0 differ"),
        ({"tokens": np.zeros(39, np.int32)}, "tokens_M"),
        ({"offsets": np.full((40, 2), 10_000, np.int32)}, "characters that the text does not have"),
        ({"layer0.scale": np.ones(39, np.float32)}, "start has shape"),
        ({"layer0.scale": np.ones((40, 1), np.float32)}, "one axis each"),
        ({"text_start": np.array([0, 10**9])}, "text_start"),
        ({"text_utf8": np.full(5, 255, np.uint8), "text_start": np.array([0, 5])}, "not UTF-8"),
        ({"layer9.ids": np.zeros(3, np.uint16)}, r"layer9\.ids is not a part"),
        ({"extra": np.zeros(3)}, "extra is F64"),
        ({"sequence_start": np.array([0, 41])}, "from 0 to 40"),
    ],
)
def test_inconsistent_arrays_are_named(arrays: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = sample_trace().save(tmp_path / "trace.safetensors")
    held, header = contents(path)
    held |= arrays
    save_file({key: array for key, array in held.items() if array is not None}, path, metadata=header)
    with pytest.raises(TraceError, match=words) as caught:
        Trace.load(path)
    assert "trace.safetensors" in str(caught.value)


INFO = {"model": "m", "settings": {}, "special": {}, "sources": [""], "made": {}}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": "2"}, "version '2': this program reads twellviz.trace version '1'"),
        ({"info": "{"}, "not JSON"),
        ({"info": "[" * 100_000}, "not JSON"),
        ({"info": "[]"}, "needs 'model'"),
        ({"info": json.dumps(INFO | {"settings": []})}, "needs 'settings' as a JSON dict"),
        ({"info": json.dumps(INFO | {"special": {"x": "y"}})}, "numbers"),
        ({"info": json.dumps(INFO | {"sources": [1]})}, "strings"),
    ],
)
def test_a_wrong_header_is_named(change: dict[str, str], words: str, tmp_path: Path) -> None:
    path = sample_trace().save(tmp_path / "trace.safetensors")
    arrays, header = contents(path)
    save_file(arrays, path, metadata=header | change)
    with pytest.raises(TraceError, match=words):
        Trace.load(path)
