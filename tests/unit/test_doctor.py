"""The doctor tells a healthy machine from a sick one."""

from __future__ import annotations

import importlib.metadata

import pytest
from twell import cpu, doctor


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
        def __init__(self, name: str) -> None:
            self.metadata = {"Name": name}

    found = [Distribution("nvidia-nvvm-cu12"), Distribution("cuda-core-cu13")]
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: found)
    finding = doctor.check_cuda_packages()
    assert finding.state == "problem"
    assert finding.remedy == "pip uninstall nvidia-nvvm-cu12"
