"""nbval compares what the notebooks print: an untouched copy passes, one changed digit fails."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "notebooks"
NOTEBOOK = NOTEBOOKS / "solutions" / "03_ell_against_twell_solutions.ipynb"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The quickest notebook, beside the settings that the real ones run under."""
    shutil.copy(NOTEBOOKS / "conftest.py", tmp_path)
    shutil.copy(NOTEBOOKS / "sanitize.cfg", tmp_path)
    return Path(shutil.copy(NOTEBOOK, tmp_path))


def run_nbval(notebook: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", "--nbval-sanitize-with"]
    command += ["sanitize.cfg", "-p", "no:cacheprovider", "-q", "--color=no", notebook.name]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "COV"))}
    return subprocess.run(
        command, cwd=notebook.parent, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def change_one_output(notebook: Path, pattern: str) -> None:
    """Change the first digit in the first printed line that matches ``pattern``."""
    content = json.loads(notebook.read_text(encoding="utf-8"))
    for cell in content["cells"]:
        for output in cell.get("outputs", []):
            lines = output.get("text", [])
            for place, line in enumerate(lines):
                if re.match(pattern, line):
                    lines[place] = re.sub(r"\d", lambda digit: str((int(digit.group()) + 1) % 10), line, count=1)
                    notebook.write_text(json.dumps(content), encoding="utf-8")
                    return
    raise AssertionError(f"no output matches {pattern}")


def test_an_untouched_notebook_passes(copy: Path) -> None:
    result = run_nbval(copy)
    assert result.returncode == 0, result.stdout + result.stderr


def test_one_changed_digit_fails(copy: Path) -> None:
    change_one_output(copy, r"(?!versions|device|kernels|scale).*\d")
    result = run_nbval(copy)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "Cell outputs differ" in result.stdout
    assert re.search(r"\b1 failed", result.stdout), "the other cells still pass"


def test_another_machine_passes(copy: Path) -> None:
    """Versions and device are shown and not compared."""
    change_one_output(copy, "versions  ")
    change_one_output(copy, "device    ")
    result = run_nbval(copy)
    assert result.returncode == 0, result.stdout + result.stderr
