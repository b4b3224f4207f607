"""The notebook runner: status, the failing cell, paths with spaces, canonical updates, pages without a network."""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from twellviz.errors import ConfigError
from twellviz.notebook_runner import (
    add_arguments,
    canonical_text,
    check_canonical,
    find_notebooks,
    run_cli,
    run_notebooks,
)

SHOW = "import base64\nfrom IPython.display import SVG, HTML, display\n"


def write(path: Path, *sources: str, **changes: Any) -> Path:
    cells = [
        {
            "cell_type": "code",
            "id": f"c{i}",
            "metadata": {},
            "outputs": [],
            "execution_count": None,
            "source": source,
        }
        for i, source in enumerate(sources)
    ]
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5, **changes}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(notebook), encoding="utf-8")
    return path


def run_command(*words: str) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run_cli(parser.parse_args(words))


def test_one_failure_names_the_cell_and_the_rest_still_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "meine nötebooks"
    bad = write(folder / "1 bad.ipynb", "value = 3", "value / 0", "print('unreached')")
    good = write(folder / "2 gööd.ipynb", "import os, sys", "print(sys.executable, os.environ['TWELLVIZ_SCALE'])")
    before = bad.read_bytes(), good.read_bytes()

    status = run_command(str(folder), "--out", str(tmp_path / "out put"), "--scale", "full")

    text = capsys.readouterr().out
    assert status == 1
    assert re.search(r"^\[1/2\] 1 bad\.ipynb \.\.\. \d+\.\d s, .*, FAILED in cell 1$", text, re.MULTILINE)
    assert re.search(r"^\[2/2\] 2 gööd\.ipynb \.\.\. \d+\.\d s, .*, ok$", text, re.MULTILINE)
    assert "cell 1 (c1):" in text
    assert "value / 0" in text
    assert "ZeroDivisionError: division by zero" in text
    assert "1 FAILED" in text
    assert (bad.read_bytes(), good.read_bytes()) == before, "without --update the notebooks stay as they are"
    copy = json.loads((tmp_path / "out put" / "2 gööd.ipynb").read_text(encoding="utf-8"))
    printed = "".join(copy["cells"][1]["outputs"][0]["text"])
    assert printed == f"{sys.executable} full\n", "the kernel is not this interpreter"
    index = (tmp_path / "out put" / "index.html").read_text(encoding="utf-8")
    assert "2 gööd.html" in index
    assert "failed" in index


def test_update_writes_canonical_notebooks_without_widgets(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.ipynb",
        "import ipywidgets\nipywidgets.IntSlider()",
        "from tqdm.auto import tqdm\nprint(sum(tqdm(range(3))))",
        "import matplotlib.pyplot as plt, twellviz\nfigure, ax = plt.subplots()\nax.plot([1, 2])\n"
        "twellviz.show(ax, alt='a line <&>')",
        metadata={"widgets": {"x": 1}, "kernelspec": {"name": "elsewhere", "display_name": "Elsewhere"}},
    )
    stream = io.StringIO()
    (result,) = run_notebooks([path], out=tmp_path / "out", update=True, stream=stream)
    assert result.failure is None, stream.getvalue()
    assert check_canonical(path) == []
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert [cell["id"] for cell in notebook["cells"]] == ["c0", "c1", "c2"]
    assert notebook["cells"][0]["outputs"] == []
    assert notebook["cells"][1]["outputs"][0]["text"] == ["3\n"]
    picture = notebook["cells"][2]["outputs"][0]
    assert picture["metadata"]["image/png"]["alt"] == "a line <&>"
    first = path.read_bytes()
    run_notebooks([path], out=tmp_path / "out", update=True, stream=stream)
    assert path.read_bytes() == first, "the same notebook gives the same bytes"

    page = result.page.read_text(encoding="utf-8")
    assert 'alt="a line &lt;&amp;&gt;"' in page
    assert not re.search(r"""<(?:script|link|img)[^>]*(?:src|href)=["']?(?!data:)[a-z]*:?//""", page)
    assert "require.min.js" not in page
    assert "mathjax" not in page.lower()


def test_a_slow_cell_is_stopped_and_a_dead_kernel_reported(tmp_path: Path) -> None:
    slow = write(tmp_path / "slow.ipynb", "import time\ntime.sleep(60)")
    dead = write(tmp_path / "dead.ipynb", "import os\nos._exit(3)")
    stream = io.StringIO()
    results = run_notebooks([slow, dead], out=tmp_path / "out", timeout=1.0, update=True, stream=stream)
    errors = [result.failure.error for result in results if result.failure]
    assert "longer than 1 s" in errors[0]
    assert "kernel died" in errors[1]
    assert json.loads(slow.read_text())["metadata"] == {}, "a failed notebook is not updated"


def test_solutions_come_after_lessons_and_equal_names_keep_apart(tmp_path: Path) -> None:
    for name in ("b.ipynb", "a.ipynb", "solutions/a.ipynb"):
        write(tmp_path / name, "1 + 1")
    found = find_notebooks([tmp_path, tmp_path / "a.ipynb"])
    assert [path.relative_to(tmp_path).as_posix() for path in found] == ["a.ipynb", "b.ipynb", "solutions/a.ipynb"]
    twin = write(tmp_path / "other" / "a.ipynb", "2 + 2")
    results = run_notebooks([*found, twin], out=tmp_path / "out", stream=io.StringIO())
    assert len({result.executed for result in results}) == 4


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["missing.ipynb"], "missing.ipynb is not an existing"),
        (["."], "holds no notebook"),
        ([str(Path(__file__)), "--timeout", "5"], "not an existing .ipynb"),
        (["--timeout", "0"], "timeout=0.0"),
    ],
)
def test_wrong_options_give_status_2(
    words: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_command(*words) == 2
    assert says in capsys.readouterr().err


def test_check_runs_nothing_and_names_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "x.ipynb", "raise SystemExit")
    before = path.read_bytes()
    assert run_command(str(tmp_path), "--check") == 1
    said = capsys.readouterr().out
    assert f"{path}: cell 0 (c0): was not run" in said
    assert "1 notebooks checked, 1 not canonical" in said
    assert path.read_bytes() == before
    notebook = json.loads(path.read_text())
    notebook["cells"] = []
    path.write_text(canonical_text(notebook))
    assert run_command(str(path), "--check") == 0


def test_a_file_that_is_no_notebook_is_named(tmp_path: Path) -> None:
    for content in (b"{", b"[]", b'{"nbformat": 3}', b"\xff\xfe"):
        (tmp_path / "x.ipynb").write_bytes(content)
        with pytest.raises(ConfigError, match=r"x\.ipynb is not an? "):
            check_canonical(tmp_path / "x.ipynb")


OUTPUT = {"output_type": "stream", "name": "stdout", "text": "ok\n"}
DISPLAY = {"output_type": "display_data", "metadata": {}}
VIOLATIONS: list[tuple[str, dict[str, Any]]] = [
    ("was not run", {"execution_count": None}),
    ("semicolon", {"source": "1 + 1;"}),
    ("stores an error", {"outputs": [{"output_type": "error", "ename": "E", "evalue": "v", "traceback": []}]}),
    ("stderr", {"outputs": [{**OUTPUT, "name": "stderr"}]}),
    ("live widget", {"outputs": [{**DISPLAY, "data": {"application/vnd.jupyter.widget-view+json": {}}}]}),
    ("PNG only", {"outputs": [{**DISPLAY, "data": {"image/svg+xml": "<svg/>"}}]}),
    ("alternative text", {"outputs": [{**DISPLAY, "data": {"image/png": "AAAA"}}]}),
    ("path of one machine", {"outputs": [{**OUTPUT, "text": "read /home/me/data.txt\n"}]}),
    ("path of one machine", {"source": "open('/tmp/x.txt')"}),
    ("path of one machine", {"source": r"open('C:\Users\me')"}),
    ("one output has", {"outputs": [{**OUTPUT, "text": "x" * 400_000}]}),
    ("canonical form", {"metadata": {"execution": {"iopub.execute_input": "2026-01-01"}}}),
]


@pytest.mark.parametrize(("says", "changes"), VIOLATIONS, ids=[says for says, _ in VIOLATIONS])
def test_each_violation_is_found(says: str, changes: dict[str, Any], tmp_path: Path) -> None:
    path = write(tmp_path / "x.ipynb", "print('ok')")
    notebook = json.loads(path.read_text())
    notebook["cells"][0].update(execution_count=1, outputs=[OUTPUT])
    path.write_text(canonical_text(notebook))
    assert check_canonical(path) == []
    cell = notebook["cells"][0]
    cell.update(changes)
    # Everything but the change is canonical, so that no other violation stands in for it.
    path.write_text(json.dumps(notebook, indent=1, sort_keys=True) + "\n")
    assert any(says in violation for violation in check_canonical(path)), check_canonical(path)


def test_double_ids_size_and_widget_state_are_found(tmp_path: Path) -> None:
    path = write(tmp_path / "x.ipynb", "1", "2", metadata={"widgets": {}})
    notebook = json.loads(path.read_text())
    notebook["cells"][1]["id"] = "c0"
    notebook["cells"][1]["source"] = "#" * 1_100_000
    path.write_text(json.dumps(notebook))
    text = "\n".join(check_canonical(path))
    assert "'c0' is used 2 times" in text
    assert "draw smaller figures" in text
    assert "metadata.widgets" in text


def test_scale_of_the_environment_is_kept_unless_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "x.ipynb", "import os\nprint(os.environ['TWELLVIZ_SCALE'])")
    monkeypatch.setenv("TWELLVIZ_SCALE", "full")
    for scale, printed in ((None, "full\n"), ("default", "default\n")):
        (result,) = run_notebooks([path], out=tmp_path / "out", scale=scale, stream=io.StringIO())
        assert json.loads(result.executed.read_text())["cells"][0]["outputs"][0]["text"] == [printed]
    with pytest.raises(ConfigError, match="scale='huge'"):
        run_notebooks([path], out=tmp_path / "out", scale="huge")


def test_a_notebook_edited_while_it_ran_keeps_the_edit(tmp_path: Path) -> None:
    edit = "from pathlib import Path\np = Path('x.ipynb')\np.write_text(p.read_text().replace('first', 'second'))"
    path = write(tmp_path / "x.ipynb", edit, "print('first')")
    stream = io.StringIO()
    (result,) = run_notebooks([path], out=tmp_path / "out", update=True, stream=stream)
    assert result.failure is None
    assert "x.ipynb was edited while it ran" in stream.getvalue()
    notebook = json.loads(path.read_text())
    assert notebook["cells"][1]["source"] == "print('second')"
    assert notebook["cells"][1]["outputs"] == []
