"""Benchmarks: what is timed is checked first, and what is slower is said to be slower."""

from __future__ import annotations

from twellviz.bench.command import add_arguments, run_cli

__all__ = ["add_arguments", "run_cli"]
