"""``python -m twellviz doctor``: the report of :mod:`twell.doctor`."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """There are no options."""


def run_cli(args: argparse.Namespace) -> int:
    """Print the report; the exit status is 1 if a check found a problem."""
    from twell import doctor

    return doctor.main([])
