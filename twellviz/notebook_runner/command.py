"""``python -m twellviz notebooks``: its options, and what it does with them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from twellviz.errors import ConfigError
from twellviz.notebook_runner.canonical import check_canonical
from twellviz.notebook_runner.run import SCALES, find_notebooks, run_notebooks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to ``parser``."""
    parser.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="notebooks or folders (default: all lessons, then all solutions)",
    )
    parser.add_argument(
        "--out",
        default="build/notebooks",
        metavar="FOLDER",
        help="where executed copies and HTML pages go (%(default)s)",
    )
    parser.add_argument(
        "--update", action="store_true", help="write the outputs back into the notebooks, in canonical form"
    )
    parser.add_argument(
        "--check", action="store_true", help="run nothing: say which notebooks are not in canonical form"
    )
    parser.add_argument(
        "--scale", choices=SCALES, help="full trains and measures more (default: $TWELLVIZ_SCALE, or default)"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=900.0,
        metavar="SECONDS",
        help="longest time for one cell (%(default)g)",
    )


def run_cli(args: argparse.Namespace) -> int:
    """Run the command; the exit status is 0, 1 if a notebook failed, 2 if an option is wrong."""
    try:
        if args.check:
            return _check(args.paths)
        results = run_notebooks(args.paths, out=args.out, update=args.update, scale=args.scale, timeout=args.timeout)
    except ConfigError as error:
        print(f"notebooks: {error}", file=sys.stderr)
        return 2
    return int(any(result.failure is not None for result in results))


def _check(paths: Sequence[str]) -> int:
    found = {path: check_canonical(path) for path in find_notebooks(paths)}
    for path, violations in found.items():
        for violation in violations:
            print(f"{path}: {violation}")
    wrong = sum(map(bool, found.values()))
    print(f"{len(found)} notebooks checked, {wrong} not canonical")
    return int(wrong > 0)
