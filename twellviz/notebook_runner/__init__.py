"""Run notebooks top to bottom, each in a kernel of this interpreter; keep the committed ones canonical."""

from __future__ import annotations

from twellviz.notebook_runner.canonical import canonical_text, canonicalise, check_canonical
from twellviz.notebook_runner.command import add_arguments, run_cli
from twellviz.notebook_runner.run import NotebookResult, find_notebooks, run_notebooks

__all__ = [
    "NotebookResult",
    "add_arguments",
    "canonical_text",
    "canonicalise",
    "check_canonical",
    "find_notebooks",
    "run_cli",
    "run_notebooks",
]
