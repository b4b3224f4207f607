"""Promises about the tree itself."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def tracked() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: the tracked files are not known")
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in names.split("\0") if name and (ROOT / name).is_file()]


def test_tracked_files_fit_in_28_megabytes() -> None:
    assert sum(path.stat().st_size for path in tracked()) < 28e6


def test_folders_that_are_not_packages() -> None:
    # A folder named kernels with an __init__.py would shadow a package that transformers looks for.
    for folder in ("kernels", "data", "tests", "notebooks"):
        assert not (ROOT / folder / "__init__.py").exists()


def test_modules_are_short() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for folder in ("kernels", "twellviz")
        for path in (ROOT / folder).rglob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 420
    }
    assert not long


def test_twell_does_not_import_twellviz() -> None:
    for path in (ROOT / "kernels").rglob("*.py"):
        assert "import twellviz" not in path.read_text(encoding="utf-8"), path
        assert "from twellviz" not in path.read_text(encoding="utf-8"), path
