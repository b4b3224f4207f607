"""What every committed notebook keeps to: canonical bytes, its opening, takeaways, exercises, links, enough facts."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from twellviz.notebook_runner import check_canonical

ROOT = Path(__file__).resolve().parents[2]
LESSONS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SOLUTIONS = sorted((ROOT / "notebooks" / "solutions").glob("*.ipynb"))
MIN_FACTS = 5
NOT_UNDER_NBVAL = ("clear_output", "interact(", "widgets.Output", "from tqdm import", "update_display")


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    return [cell | {"source": "".join(cell["source"])} for cell in notebook["cells"] if cell["cell_type"] == kind]


def prose(path: Path) -> str:
    return "\n".join(cell["source"] for cell in cells(path, "markdown"))


def code(path: Path) -> str:
    return "\n".join(cell["source"] for cell in cells(path, "code"))


def printed(path: Path) -> list[str]:
    """Lines that nbval compares, without those that the sanitize file blanks."""
    lines = []
    for cell in cells(path, "code"):
        for output in cell["outputs"]:
            text = output.get("text") or output.get("data", {}).get("text/plain", [])
            lines += [line for line in "".join(text).splitlines() if line.strip()]
    return [line for line in lines if not re.match(r"(versions|device|kernels|scale)  ", line)]


def number(path: Path) -> str:
    return path.name[:2].lstrip("0")


def exercise_module(path: Path) -> str:
    return f"nb{path.name[:2]}"


def test_lessons_and_solutions_pair_up() -> None:
    assert LESSONS, "no notebooks found"
    assert [path.name for path in SOLUTIONS] == [f"{path.stem}_solutions.ipynb" for path in LESSONS]


@pytest.mark.parametrize("path", [*LESSONS, *SOLUTIONS], ids=lambda path: path.stem)
def test_canonical(path: Path) -> None:
    assert check_canonical(path) == []


@pytest.mark.parametrize("path", [*LESSONS, *SOLUTIONS], ids=lambda path: path.stem)
def test_cells_run_alike_in_jupyter_and_under_nbval(path: Path) -> None:
    source = code(path)
    assert [word for word in NOT_UNDER_NBVAL if word in source] == []
    assert "twellviz.start()" in cells(path, "code")[0]["source"]


@pytest.mark.parametrize("path", [*LESSONS, *SOLUTIONS], ids=lambda path: path.stem)
def test_links_resolve(path: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", prose(path)):
        if target.startswith(("https://", "#")):
            continue
        assert (path.parent / target.split("#")[0]).exists(), f"{path.name} links to {target}"


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_lesson_has_its_parts(path: Path) -> None:
    text = prose(path)
    assert re.match(rf"# {number(path)}\. .+\n", text), "the title is '# N. Name'"
    for part in ("You will see", "You need", "## Take away", "## Exercises", f"solutions/{path.stem}_solutions.ipynb"):
        assert part in text, f"{path.name} has no {part!r}"


@pytest.mark.parametrize("path", [*LESSONS, *SOLUTIONS], ids=lambda path: path.stem)
def test_every_exercise_is_checked(path: Path) -> None:
    module = __import__(f"twellviz.exercises.{exercise_module(path)}", fromlist=["SHEET"])
    numbers = module.SHEET.numbers
    assert len(numbers) >= 2
    for exercise in numbers:
        assert f"### Exercise {exercise}" in prose(path)
        assert f'.check("{exercise}", ' in code(path)
        said = [line for line in printed(path) if line.startswith(f"Exercise {exercise}:")]
        state = "correct in all" if path in SOLUTIONS else "not attempted yet"
        assert len(said) == 1, said
        assert state in said[0], said
        if path in LESSONS:
            assert f'.hint("{exercise}")' in code(path)


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_lesson_states_facts_that_nbval_compares(path: Path) -> None:
    facts = [line for line in printed(path) if re.search(r"\d|True", line) and not line.startswith("Exercise")]
    asserts = sum(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(code(path))))
    assert len(facts) + asserts >= MIN_FACTS


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_lesson_shows_a_picture(path: Path) -> None:
    outputs = [output for cell in cells(path, "code") for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs)
