"""The command line: ``python -m twellviz COMMAND`` or ``twellviz COMMAND``.

Each command lives in a module of its own with ``add_arguments(parser)`` and ``run_cli(args) -> int``, imported only
when that command is called: ``--help`` loads no torch.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

from twellviz import __version__
from twellviz.errors import TwellvizError

USAGE_ERROR = 2
INTERRUPTED = 130


class Command(NamedTuple):
    """A command: where it lives and what the help says of it."""

    module: str
    summary: str
    examples: tuple[str, ...]


COMMANDS = {
    "train": Command(
        "twellviz.training.command",
        "train a small sparse model on text",
        (
            "twellviz train --out runs/nano",
            "twellviz train --preset micro --steps 2000 --l1 5e-4 --checkpoint-interval 100 --out runs/micro",
            "twellviz train --resume runs/micro",
            "torchrun --standalone --nproc-per-node 2 -m twellviz train --preset 0.5b --dtype bfloat16 --out runs/0.5b",
        ),
    ),
    "estimate": Command(
        "twellviz.training.estimate_command",
        "say what memory and time a training step takes, before anything runs",
        (
            "twellviz estimate --preset 2b --gpu h100",
            "twellviz estimate --preset 2b --gpu h200 --gpus 2 --batch-size 16 --density 29 --checkpoint-activations",
        ),
    ),
    "tokenize": Command(
        "twellviz.data.command",
        "turn text into a token map to train on",
        (
            "twellviz tokenize book.txt --out book.tokens",
            "twellviz tokenize shards/*.parquet --tokenizer tokenizer-32k --source sotu --out train.tokens",
            "twellviz tokenize --source-dataset fineweb-edu --max-tokens 100000000 --out fineweb.tokens",
        ),
    ),
    "record": Command(
        "twellviz._record",
        "run a model over text and store what its neurons did (a trace)",
        (
            "twellviz record --out trace.safetensors",
            "twellviz record --string 'The king is dead' --string 'Long live the king' --out king.safetensors",
            "twellviz record --model runs/micro/model.safetensors --text book.txt --out book.safetensors",
        ),
    ),
    "bench": Command("twellviz.bench", "time sparse against dense and store the figures", ("twellviz bench --help",)),
    "doctor": Command(
        "twellviz._doctor",
        "say what this machine can run, what falls back, and what to do about it",
        ("twellviz doctor",),
    ),
    "notebooks": Command(
        "twellviz.notebook_runner",
        "run the notebooks top to bottom and write executed copies and HTML",
        ("twellviz notebooks", "twellviz notebooks notebooks/01_quickstart.ipynb --out build/one"),
    ),
}


def build_parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """The parser, with the options of the ``chosen`` command alone."""
    parser = argparse.ArgumentParser(
        prog="twellviz",
        description="See, train and exploit activation sparsity in the feed-forward layers of language models.",
        epilog="examples:\n" + "\n".join(f"  {command.examples[0]}" for command in COMMANDS.values()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"twellviz {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=command.summary,
            description=f"{command.summary[0].upper()}{command.summary[1:]}.",
            epilog="examples:\n" + "\n".join(f"  {example}" for example in command.examples),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name == chosen:
            import_module(command.module).add_arguments(sub)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Parameters
    ----------
    argv : sequence of str, optional
        Without the program's name; ``sys.argv`` if not given.

    Returns
    -------
    int
        Exit status: 0, or 2 for an error of the user's or of the data, in one line and without a traceback.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    chosen = arguments[0] if arguments and arguments[0] in COMMANDS else None
    try:
        args = build_parser(chosen).parse_args(arguments)
        args.command_line = shlex.join(["python", "-m", "twellviz", *arguments])
        status: int = import_module(COMMANDS[args.command].module).run_cli(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has gone: no more output, and no complaint when Python flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ModuleNotFoundError as error:
        # A missing module of our own is a fault of the program, not of the installation.
        if error.name is None or error.name.split(".")[0] in ("twellviz", "twell"):
            raise
        return _fail(f"Python package {error.name!r} is not installed: pip install 'twellviz[all]'")
    except (TwellvizError, OSError) as error:
        return _fail(str(error))
    except ValueError as error:
        from twell.errors import TwellError

        if not isinstance(error, TwellError):
            raise
        return _fail(str(error))
    return status


def _fail(message: str) -> int:
    print(f"twellviz: error: {' '.join(message.split())}", file=sys.stderr)
    return USAGE_ERROR
