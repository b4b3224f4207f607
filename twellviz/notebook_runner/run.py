"""Run many notebooks one after the other, with a progress line for each and a table at the end."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from twellviz._atomic import write_text_atomically
from twellviz.errors import ConfigError
from twellviz.notebook_runner.canonical import canonical_text, read_notebook
from twellviz.notebook_runner.kernel import Execution, Failure, execute
from twellviz.notebook_runner.pages import write_index, write_page

SCALES = ("default", "full")


@dataclass(frozen=True)
class NotebookResult:
    """How one notebook went.

    Attributes
    ----------
    path : Path
        The notebook that was run.
    seconds : float
    peak_bytes : int or None
    failure : Failure or None
        None if every cell ran.
    executed, page : Path
        Where the executed copy and its HTML page were written.
    """

    path: Path
    seconds: float
    peak_bytes: int | None
    failure: Failure | None
    executed: Path
    page: Path


def find_notebooks(paths: Sequence[str | Path] = ()) -> list[Path]:
    """List notebooks: those named, those in named folders, or all lessons and then all solutions.

    Raises
    ------
    ConfigError
        A path does not exist, is not a notebook, or there is none.
    """
    if not paths:
        folder = _notebook_folder()
        return [*_in_folder(folder), *_in_folder(folder / "solutions")]
    found: list[Path] = []
    for given in map(Path, paths):
        if given.is_dir():
            inside = [*_in_folder(given), *_in_folder(given / "solutions")]
            if not inside:
                raise ConfigError(f"paths: {given} holds no notebook; name a .ipynb file or another folder")
            found += inside
        elif given.suffix == ".ipynb" and given.is_file():
            found.append(given)
        else:
            raise ConfigError(f"paths: {given} is not an existing .ipynb file or folder; check the spelling")
    return list(dict.fromkeys(found))


def run_notebooks(
    paths: Sequence[str | Path] = (),
    *,
    out: str | Path = "build/notebooks",
    update: bool = False,
    scale: str | None = None,
    timeout: float = 900.0,
    stream: TextIO | None = None,
) -> list[NotebookResult]:
    """Run notebooks top to bottom, each in its own kernel process, one at a time.

    Parameters
    ----------
    paths : sequence of str or Path
        Notebooks or folders; by default all of the repository.
    out : str or Path
        Folder for the executed copies, their HTML pages and ``index.html``.
    update : bool
        Write the new outputs back into each notebook that ran without error, in canonical form.
    scale : {"default", "full"}, optional
        Passed on as ``TWELLVIZ_SCALE``; what the environment says if not given.
    timeout : float
        Seconds that one cell may take.
    stream : text stream, optional
        Where progress goes, ``sys.stdout`` by default.

    Returns
    -------
    list of NotebookResult
        One for each notebook, failed ones included.

    Raises
    ------
    ConfigError
        A path, the scale or the time-out is out of range, or Jupyter's libraries are missing.
    """
    if scale is not None and scale not in SCALES:
        raise ConfigError(f"scale={scale!r}: choose one of {', '.join(SCALES)}")
    if not timeout > 0:
        raise ConfigError(f"timeout={timeout!r}: a number of seconds above 0 is needed")
    notebooks = find_notebooks(paths)
    for path in notebooks:
        read_notebook(path)  # what is no notebook is named before anything runs
    _require_jupyter()
    out, stream = Path(out), stream or sys.stdout
    environment = {**os.environ, **({} if scale is None else {"TWELLVIZ_SCALE": scale})}
    results: list[NotebookResult] = []
    for path, relative in zip(notebooks, _relative_names(notebooks), strict=True):
        stream.write(f"[{len(results) + 1}/{len(notebooks)}] {relative} ... ")
        stream.flush()
        execution = execute(path, timeout=timeout, environment=environment)
        result = _keep(path, relative, execution, out)
        stream.write(f"{result.seconds:.1f} s, {_memory(result.peak_bytes)}, {_state(result)}\n")
        if result.failure is not None:
            stream.write(_explain(result.failure))
        elif update:
            stream.write(_update(path, execution.notebook))
        stream.flush()
        results.append(result)
    index = write_index(out, [(r.path.stem, r.page, r.seconds, r.failure is None) for r in results])
    stream.write(_table(results, index))
    stream.flush()
    return results


def _keep(path: Path, relative: Path, execution: Execution, out: Path) -> NotebookResult:
    executed = out / relative
    executed.parent.mkdir(parents=True, exist_ok=True)
    text = canonical_text(execution.notebook)
    executed.write_text(text, encoding="utf-8", newline="\n")
    page = write_page(text, executed.with_suffix(".html"), title=path.stem)
    return NotebookResult(path, execution.seconds, execution.peak_bytes, execution.failure, executed, page)


def _update(path: Path, notebook: dict[str, Any]) -> str:
    """Write the outputs back, unless somebody edited the notebook meanwhile; returns a notice if so."""
    now = [cell["source"] for cell in read_notebook(path)["cells"]]
    if now != [cell["source"] for cell in notebook["cells"]]:
        return f"    {path.name} was edited while it ran: its outputs were not written back, run it again\n"
    write_text_atomically(path, canonical_text(notebook))
    return ""


def _state(result: NotebookResult) -> str:
    return "ok" if result.failure is None else f"FAILED in cell {result.failure.cell}"


def _explain(failure: Failure) -> str:
    """The failing cell and its error, indented under the progress line."""
    lines = [f"cell {failure.cell} ({failure.cell_id}):"]
    lines += [f"  {line}" for line in failure.source.splitlines()]
    lines.append(failure.error)
    # The last frames are the ones to look at.
    lines += [f"  {line}" for line in failure.traceback.splitlines()[-25:]]
    return "".join(f"    {line}\n" for line in lines)


def _table(results: Iterable[NotebookResult], index: Path) -> str:
    results = list(results)
    width = max(len(result.path.name) for result in results)
    lines = ["", f"{'notebook':<{width}}  seconds  peak memory  result"]
    lines += [f"{r.path.name:<{width}}  {r.seconds:7.1f}  {_memory(r.peak_bytes):>11}  {_state(r)}" for r in results]
    peaks = [r.peak_bytes for r in results if r.peak_bytes is not None]
    failed = sum(r.failure is not None for r in results)
    lines.append(
        f"{f'all {len(results)}':<{width}}  {sum(r.seconds for r in results):7.1f}  "
        f"{_memory(max(peaks, default=None)):>11}  {f'{failed} FAILED' if failed else 'ok'}"
    )
    lines += ["", f"Open {index} in a browser: every notebook as it ran. `make lab` opens them live.", ""]
    return "\n".join(lines)


def _memory(n_bytes: int | None) -> str:
    return "-" if n_bytes is None else f"{n_bytes / 2**20:.0f} MiB"


def _in_folder(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.ipynb"))


def _notebook_folder() -> Path:
    """The repository's folder, seen from the package or from where the command is run."""
    for root in (Path(__file__).resolve().parents[2], Path.cwd()):
        if _in_folder(root / "notebooks"):
            return root / "notebooks"
    raise ConfigError("paths: no notebooks/ folder beside the package or here; name the notebooks to run")


def _relative_names(notebooks: Sequence[Path]) -> list[Path]:
    """Names under ``out``: solutions keep their folder, and equal names do not overwrite each other."""
    names: list[Path] = []
    for path in notebooks:
        name = Path("solutions", path.name) if path.resolve().parent.name == "solutions" else Path(path.name)
        twin = 1
        while name in names:
            twin += 1
            stem = re.sub(r"-\d+$", "", name.stem) if twin > 2 else name.stem
            name = name.with_name(f"{stem}-{twin}.ipynb")
        names.append(name)
    return names


def _require_jupyter() -> None:
    try:
        import ipykernel
        import nbclient
        import nbconvert  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"{error.name} is not installed: pip install 'twellviz[viz]'") from error
    del ipykernel, nbclient
