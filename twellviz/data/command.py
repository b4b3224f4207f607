"""``python -m twellviz tokenize``: its options, and what it does with them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from twellviz.errors import ConfigError

if TYPE_CHECKING:
    from twellviz.data.documents import Piece

DATASET_NAMES = ("fineweb-edu",)
_COMMAND_CHARACTERS = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to ``parser``."""
    parser.add_argument(
        "sources",
        nargs="*",
        metavar="SOURCE",
        help='.parquet (column "text"), .jsonl (one {"text": ...} a line), any other file as one plain UTF-8 document',
    )
    parser.add_argument(
        "--source-dataset",
        choices=DATASET_NAMES,
        help="read this dataset through the network at a pinned revision; with SOURCE, those downloaded shards of it",
    )
    parser.add_argument(
        "--tokenizer", metavar="PATH", help="tokenizer.json or the folder that holds it (default: the shipped one)"
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="the token map, as in train.tokens")
    parser.add_argument(
        "--source",
        action="append",
        default=[],
        metavar="NAME",
        help='take documents with this "source" alone; may be repeated',
    )
    parser.add_argument("--max-tokens", type=int, metavar="N", help="stop after N tokens")
    parser.add_argument("--no-progress", action="store_true", help="show no progress bar")


def run_cli(args: argparse.Namespace) -> int:
    """Tokenise, write, print a summary.

    Returns
    -------
    int
        0.
    """
    from twellviz.data.build_map import build_token_map
    from twellviz.data.documents import only_sources
    from twellviz.data.token_map import SUFFIX
    from twellviz.data.tokenizer import Tokenizer

    if not args.sources and args.source_dataset is None:
        raise ConfigError("no SOURCE: name .parquet, .jsonl or text files, or --source-dataset fineweb-edu")
    if not args.out.endswith(SUFFIX):
        raise ConfigError(f"--out {args.out!r}: a token map is known by its name, which ends in {SUFFIX}")
    tokenizer = Tokenizer.load(args.tokenizer)
    command: str = args.command_line
    if len(command) > _COMMAND_CHARACTERS:
        command = f"{command[:_COMMAND_CHARACTERS]} ..."
    token_map = build_token_map(
        only_sources(_pieces(args), args.source),
        tokenizer,
        args.out,
        max_tokens=args.max_tokens,
        made={"command": command, "date": datetime.now(UTC).date().isoformat()},
        progress=not args.no_progress,
    )
    print(f"tokens     {len(token_map):,} of {token_map.vocab_size:,} entries, {token_map.tokens.dtype}")
    print(f"documents  {len(token_map.document_starts):,}")
    print(f"tokenizer  sha256 {token_map.tokenizer_sha256}")
    print(f"written    {args.out} ({os.path.getsize(args.out):,} bytes)")
    return 0


def _pieces(args: argparse.Namespace) -> Iterator[Piece]:
    from twellviz.data.documents import DATASETS, read_dataset, read_files

    if args.source_dataset is None:
        return read_files(args.sources)
    return read_dataset(DATASETS[args.source_dataset], args.sources)
