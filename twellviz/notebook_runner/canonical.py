"""The one form in which a notebook is committed, so that a diff shows what changed and nothing else.

Canonical: nbformat 4.5 with cell ids, one fixed kernelspec and language entry, sorted keys, no execution
times, no widget views or widget state, pictures as PNG only, no errors, under 1 MB, no path of somebody's
machine.
"""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from twellviz.errors import ConfigError

MAX_NOTEBOOK_BYTES = 1_000_000
MAX_OUTPUT_BYTES = 300_000

NOTEBOOK_METADATA: dict[str, Any] = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "nbconvert_exporter": "python",
        "pygments_lexer": "ipython3",
    },
}
"""What every notebook says about its kernel; no version, which would change with each machine."""

CELL_METADATA = ("tags",)
OUTPUT_METADATA = ("alt", "needs_background")

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
LIVE_ONLY = (WIDGET_VIEW, "application/javascript", "application/vnd.jupyter.widget-state+json")
"""Outputs that mean nothing without the kernel that made them."""

_MACHINE_PATH = re.compile(
    r"(?<![\w.:/~-])/(?:home|root|Users|tmp|var|mnt|opt|usr|work|content|private)/[\w.-]+|(?<![\w])[A-Za-z]:\\\\?[\w.-]+"
)


def canonicalise(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return a canonical copy of a notebook read as JSON (nbformat 4).

    Live-only outputs are taken out whole; sources, tags, texts and pictures stay as they are. Cells without
    an id get one made from their place, so that the same file gives the same ids.
    """
    result: dict[str, Any] = copy.deepcopy(notebook)
    result["nbformat"], result["nbformat_minor"] = 4, 5
    result["metadata"] = copy.deepcopy(NOTEBOOK_METADATA)
    taken = {cell["id"] for cell in result["cells"] if "id" in cell}
    execution_count = 0
    for place, cell in enumerate(result["cells"]):
        if "id" not in cell:
            cell["id"] = _free_id(place, taken)
        cell["metadata"] = _only(cell.get("metadata", {}), CELL_METADATA)
        if cell["cell_type"] != "code":
            continue
        outputs = [output for output in cell.get("outputs", []) if not is_live_only(output)]
        cell["outputs"] = [_clean_output(output) for output in outputs]
        if cell.get("execution_count") is not None:
            execution_count += 1
            cell["execution_count"] = execution_count
        for output in cell["outputs"]:
            if output["output_type"] == "execute_result":
                output["execution_count"] = cell["execution_count"]
    return result


def canonical_text(notebook: dict[str, Any]) -> str:
    """The bytes to commit, as text: canonical form, sorted keys, one space of indent, a final newline."""
    lines = _split_lines(canonicalise(notebook))
    return json.dumps(lines, ensure_ascii=False, indent=1, sort_keys=True, separators=(",", ": ")) + "\n"


def check_canonical(path: str | Path) -> list[str]:
    """List what keeps a committed notebook from being canonical.

    Parameters
    ----------
    path : str or Path
        A ``.ipynb`` file.

    Returns
    -------
    list of str
        One sentence for each violation, with the cell where it stands; empty if there is none.

    Raises
    ------
    ConfigError
        The file is not a notebook.
    """
    path = Path(path)
    raw = path.read_bytes()
    notebook = read_notebook(path)
    found = []
    if len(raw) > MAX_NOTEBOOK_BYTES:
        found.append(f"the file has {len(raw)} bytes, over {MAX_NOTEBOOK_BYTES}: draw smaller figures")
    ids = Counter(cell["id"] for cell in notebook["cells"] if "id" in cell)
    found += [f"cell id {name!r} is used {uses} times" for name, uses in sorted(ids.items()) if uses > 1]
    if "widgets" in notebook["metadata"]:
        found.append("metadata.widgets holds the state of live widgets, which GitHub refuses to show")
    for place, cell in enumerate(notebook["cells"]):
        where = f"cell {place} ({cell.get('id', 'no id')})"
        found += [f"{where}: {text}" for text in _cell_violations(cell)]
    if raw != canonical_text(notebook).encode():
        found.append("not in canonical form: run `python -m twellviz notebooks --update` on it")
    return found


def read_notebook(path: Path) -> dict[str, Any]:
    """Read a notebook's JSON with every multi-line field joined.

    Raises
    ------
    ConfigError
        Not UTF-8, not JSON, or not an nbformat 4 notebook.
    """
    try:
        notebook: dict[str, Any] = json.loads(path.read_bytes().decode("utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{path.name} is not a notebook ({error}): save it again from Jupyter") from error
    if not isinstance(notebook, dict) or notebook.get("nbformat") != 4 or "cells" not in notebook:
        raise ConfigError(f"{path.name} is not an nbformat 4 notebook: save it again from Jupyter")
    return _join_lines(notebook)


def is_live_only(output: dict[str, Any]) -> bool:
    """Whether an output is a widget, script or the like, which only a running kernel can show."""
    return any(mime in output.get("data", {}) for mime in LIVE_ONLY)


def _clean_output(output: dict[str, Any]) -> dict[str, Any]:
    if "metadata" in output:
        kept = _only(output["metadata"].get("image/png", {}), OUTPUT_METADATA)
        output["metadata"] = {"image/png": kept} if kept else {}
    return output


def _cell_violations(cell: dict[str, Any]) -> Iterator[str]:
    source = cell["source"]
    if match := _MACHINE_PATH.search(source):
        yield f"the source names a path of one machine, {match.group()!r}"
    if cell["cell_type"] != "code":
        return
    if source.strip() and cell.get("execution_count") is None:
        yield "was not run, so its outputs are missing"
    if source.rstrip().endswith(";"):
        yield "ends in a semicolon, which hides the output in Jupyter and not in the tests"
    for output in cell["outputs"]:
        yield from _output_violations(output)


def _output_violations(output: dict[str, Any]) -> Iterator[str]:
    size = len(json.dumps(output))
    if size > MAX_OUTPUT_BYTES:
        yield f"one output has {size} bytes, at most {MAX_OUTPUT_BYTES} are kept"
    if output["output_type"] == "error":
        yield f"stores an error, {output.get('ename')}: {output.get('evalue')}"
    if output.get("name") == "stderr":
        yield f"writes to stderr: {str(output.get('text', ''))[:80]!r}"
    if is_live_only(output):
        yield "stores a live widget or script, which nothing can show without its kernel"
    data = output.get("data", {})
    for mime in data:
        if mime.startswith("image/") and mime != "image/png":
            yield f"stores a picture as {mime}: PNG only"
    if "image/png" in data and not output.get("metadata", {}).get("image/png", {}).get("alt"):
        yield "stores a picture without alternative text: draw it with twellviz.show(figure, alt=...)"
    for text in (output.get("text", ""), *(text for mime, text in data.items() if mime.startswith("text/"))):
        if match := _MACHINE_PATH.search(text):
            yield f"prints a path of one machine, {match.group()!r}"


def _only(entries: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for key, value in entries.items() if key in keys}


def _free_id(place: int, taken: set[str]) -> str:
    name = f"cell-{place:02d}"
    while name in taken:
        name += "x"
    taken.add(name)
    return name


def _join_lines(notebook: dict[str, Any]) -> dict[str, Any]:
    for cell in notebook["cells"]:
        cell["source"] = _joined(cell["source"])
        for output in cell.get("outputs", []):
            if "text" in output:
                output["text"] = _joined(output["text"])
            for mime, value in output.get("data", {}).items():
                if not _is_json(mime):
                    output["data"][mime] = _joined(value)
    return notebook


def _split_lines(notebook: dict[str, Any]) -> dict[str, Any]:
    """Multi-line fields as lists of lines, as Jupyter itself writes them."""
    for cell in notebook["cells"]:
        cell["source"] = _joined(cell["source"]).splitlines(keepends=True)
        for output in cell.get("outputs", []):
            if "text" in output:
                output["text"] = _joined(output["text"]).splitlines(keepends=True)
            for mime, value in output.get("data", {}).items():
                if mime.startswith("text/") and isinstance(value, (str, list)):
                    output["data"][mime] = _joined(value).splitlines(keepends=True)
    return notebook


def _is_json(mime: str) -> bool:
    return mime == "application/json" or mime.endswith("+json")


def _joined(value: str | list[str]) -> str:
    return value if isinstance(value, str) else "".join(value)
