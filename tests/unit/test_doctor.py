"""The doctor tells a healthy machine from a sick one."""

from __future__ import annotations

import importlib.metadata

import numpy as np
import pytest
import torch
from twell import cpu, cuda_target, doctor


def test_this_machine_is_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main([]) == 0
    out = capsys.readouterr().out
    assert f"torch {importlib.metadata.version('torch')}" in out
    assert "error against the reference" in out


def test_wrong_kernels_are_a_problem(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    right = cpu.token_ffn
    monkeypatch.setattr(cpu, "token_ffn", lambda *arrays: right(*arrays) * 1.01)
    assert doctor.main([]) == 1
    assert "PROBLEM] CPU kernels" in capsys.readouterr().out


def test_mixed_cuda_packages_are_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    class Distribution:
        def __init__(self, name: str, version: str = "1") -> None:
            self.metadata = {"Name": name}
            self.version = version

    found = [Distribution("nvidia-nvvm-cu12"), Distribution("nvidia-cuda-nvrtc", "13.5.37")]
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: found)
    finding = doctor.check_cuda_packages()
    assert finding.state == "problem"
    assert finding.remedy == "pip uninstall nvidia-nvvm-cu12"


def test_a_driver_older_than_the_toolkit_is_a_problem() -> None:
    finding = doctor.compare_driver((13, 5), (12, 8), "libnvvm found")
    assert finding.state == "problem"
    assert "numba-cuda[cu12]" in finding.remedy
    assert doctor.compare_driver((12, 9), (13, 0), "libnvvm found").state == "ok"


def test_no_compiler_is_a_problem_only_beside_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    # The real search for the library, in the state of a machine that has none.
    monkeypatch.setattr("numba.cuda.cudadrv.nvvm._nvvm", None)
    cuda_target.why_no_compiler.cache_clear()
    try:
        finding = doctor.check_compiler()
        assert finding.state == "note"
        assert "libnvvm was not found" in finding.detail
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        finding = doctor.check_compiler()
        assert finding.state == "problem"
        assert "CUDA_HOME" in finding.remedy
    finally:
        cuda_target.why_no_compiler.cache_clear()


def test_numpy_without_row_stack_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.check_numpy().state == "ok"
    monkeypatch.delattr(np, "row_stack", raising=False)
    versions = {"numba-cuda": "0.30.4", "numpy": "2.5.2"}
    monkeypatch.setattr(doctor, "version_of", versions.get)
    assert doctor.check_numpy().state == "note"
    versions["numba-cuda"] = "0.31.0"
    assert doctor.check_numpy().state == "ok"
