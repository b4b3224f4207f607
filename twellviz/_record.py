"""``python -m twellviz record``: its options, and what it does with them."""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from twellviz.errors import ConfigError

if TYPE_CHECKING:
    from twellviz.data.text import Document
    from twellviz.data.tokenizer import Tokenizer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to ``parser``."""
    parser.add_argument("--model", metavar="FILE", help="model.safetensors (default: the shipped nano)")
    parser.add_argument("--tokenizer", metavar="JSON", help="its tokenizer.json (default: the shipped one)")
    parser.add_argument(
        "--text",
        metavar="FILE",
        action="append",
        default=[],
        help="text to read, may be repeated: .jsonl is JSON lines, any other file plain UTF-8 "
        "(default: the shipped held-out text)",
    )
    parser.add_argument("--string", metavar="TEXT", action="append", default=[], help="a text itself, may be repeated")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="stop after N tokens in all")
    parser.add_argument(
        "--tokens-per-source", type=int, metavar="N", help="take at most N tokens of each source, to show all of them"
    )
    parser.add_argument("--device", metavar="NAME", help="where to run (default: cpu)")
    parser.add_argument("--out", default="trace.safetensors", metavar="FILE", help="the trace (%(default)s)")
    parser.add_argument("--no-progress", action="store_true", help="show no progress bar")


def run_cli(args: argparse.Namespace) -> int:
    """Record, save, print a summary.

    Returns
    -------
    int
        0.
    """
    from twellviz._atomic import check_file_name
    from twellviz.data.paths import data_path
    from twellviz.data.tokenizer import Tokenizer
    from twellviz.models.checkpoint import load_checkpoint
    from twellviz.traces import record

    check_file_name(args.out)
    documents = _documents(args.text, args.string)
    model = load_checkpoint(data_path("nano/model.safetensors") if args.model is None else args.model)
    tokenizer = Tokenizer.load(args.tokenizer)
    if args.tokens_per_source is not None:
        documents = limit_sources(documents, tokenizer, args.tokens_per_source)
    trace = record(
        model,
        tokenizer,
        documents,
        max_tokens=args.max_tokens,
        device=args.device,
        progress=not args.no_progress,
        name="nano" if args.model is None else Path(args.model).name,
    )
    trace.save(args.out)
    print(trace)
    print(f"written to {args.out} ({os.path.getsize(args.out):,} bytes)")
    return 0


def limit_sources(documents: Sequence[Document], tokenizer: Tokenizer, limit: int) -> list[Document]:
    """The first ``limit`` tokens of each source; a text that goes beyond is cut at a token.

    Raises
    ------
    ConfigError
        ``limit`` is below 1.
    TextError
        A text is empty.
    """
    if limit < 1:
        raise ConfigError(f"tokens_per_source={limit}: at least 1 is needed")
    room: defaultdict[str | None, int] = defaultdict(lambda: limit)
    kept = []
    for document in documents:
        left = room[document.source]
        if left == 0:
            continue
        _, offsets = tokenizer.encode(document.text)
        n_tokens = min(left, len(offsets))
        room[document.source] -= n_tokens
        # Tokens of one character share its end: cutting the text there can only add the rest of that character.
        kept.append(document._replace(text=document.text[: offsets[n_tokens - 1, 1]]))
    return kept


def _documents(paths: Sequence[str], strings: Sequence[str]) -> list[Document]:
    from twellviz.data.paths import data_path
    from twellviz.data.text import Document, read_jsonl, read_text

    documents = [Document(text) for text in strings]
    for path in paths:
        documents += read_jsonl(path) if path.endswith(".jsonl") else [Document(read_text(path), Path(path).name)]
    if not documents:
        documents = read_jsonl(data_path("text/validation.jsonl"))
    return documents
