"""Train the ``mini`` that ships in ``data/mini``, check what is promised of it, and record its trace.

    python experiments/train_mini.py tokens CORPUS --out runs/pd
    python experiments/train_mini.py train --text runs/pd --out data/mini --steps 1400 --batch-size 128 --l1 4e-3

``tokens`` needs ``pyarrow`` and the corpus: ``train-*.parquet`` and ``validation.parquet`` with columns ``text`` and
``source``, and a README.md whose table of sources names their licences. It takes public-domain and CC0
sources alone, by the list below, and stops where the table marks one of them otherwise. ``train`` needs what it wrote
and no more; it uses a GPU where there is one. ``--init MODEL`` goes on from an earlier model, which makes a model
sparser in minutes on a CPU.

The tokenizer is the shipped one, trained on public-domain text alone.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import warnings
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

SOURCES = (
    *("books-markdown", "books-novels100", "books-eltec", "arxiv", "sotu", "factbook", "digitalgov", "18f"),
    *("plainlanguage", "sqlite-docs"),
)
FREE = ("public domain", "CC0")
LARGEST_BYTES, LARGEST_SHARE = 12_000_000, 0.02
TRACE_TOKENS_PER_SOURCE = 1000


def check_licences(readme: str) -> None:
    """Raise SystemExit unless the table of sources marks each of ``SOURCES`` as public domain or CC0."""
    rows = [line.split("|") for line in readme.splitlines() if line.startswith("| `")]
    licences = {cells[1].strip(" `"): cells[4].strip() for cells in rows if len(cells) >= 6}
    for name in SOURCES:
        found = licences.get(name, "not in the table")
        if not any(mark in found for mark in FREE):
            raise SystemExit(f"source {name}: {found!r} is neither public domain nor CC0; take it out of SOURCES")


def make_tokens(args: argparse.Namespace) -> int:
    from twellviz.data import Tokenizer, build_token_map
    from twellviz.data.documents import only_sources, read_files

    corpus, out = Path(args.corpus), Path(args.out)
    check_licences((corpus / "README.md").read_text(encoding="utf-8"))
    made = {"command": shlex.join(["python", *sys.argv]), "date": datetime.now(UTC).date().isoformat()}
    files = {"train": sorted(corpus.glob("train-*.parquet")), "validation": [corpus / "validation.parquet"]}
    for split, shards in files.items():
        pieces = only_sources(read_files(shards), SOURCES)
        token_map = build_token_map(pieces, Tokenizer.load(), out / f"{split}.tokens", made=made)
        print(f"{split}: {len(token_map):,} tokens, {len(token_map.document_starts):,} documents")
    return 0


def train_mini(args: argparse.Namespace) -> int:
    import torch

    from twellviz.data import Tokenizer, TokenMap
    from twellviz.models import PRESETS
    from twellviz.training import TrainConfig, export_model, train

    out, cuda = Path(args.out), torch.cuda.is_available()
    model = PRESETS["mini"]
    if args.smoke:
        model = replace(model, d_model=64, d_hidden=256, max_seq_len=64)
    config = TrainConfig(
        model=model,
        steps=args.steps,
        batch_size=args.batch_size,
        lr=args.lr,
        lr_warmup_steps=min(args.steps, args.lr_warmup),
        lr_final=0.1,
        l1_coefficient=args.l1,
        init=args.init,
        seed=args.seed,
        dtype="bfloat16" if cuda else "float32",
        compile=args.compile,
        out=str(out / "run"),
    )
    texts = {split: TokenMap.open(Path(args.text) / f"{split}.tokens") for split in ("train", "validation")}
    held_out = texts["validation"].tokens[: 2000 if args.smoke else None]
    tokenizer = Tokenizer.load()
    for text in texts.values():
        text.check_tokenizer(tokenizer)
    result = train(config, train_tokens=texts["train"], validation_tokens=held_out)
    if result.stopped:
        return 1
    record = export_model(
        result,
        out,
        tokenizer=tokenizer,
        validation_tokens=held_out,
        storage="bfloat16",
        command=shlex.join(["python", *sys.argv]),
    )
    (out / "run" / "log.csv").replace(out / "log.csv")
    record_trace(out, tokenizer, cuda)
    print(json.dumps(record["held_out"], indent=1))
    return 0 if args.smoke else check(out, record)


def record_trace(out: Path, tokenizer: object, cuda: bool) -> None:
    """Which neurons fire on the shipped held-out text, which is in the public domain."""
    from twellviz._record import limit_sources
    from twellviz.data import Tokenizer, data_path, read_jsonl
    from twellviz.models import load_checkpoint
    from twellviz.traces import record

    assert isinstance(tokenizer, Tokenizer)
    documents = limit_sources(read_jsonl(data_path("text/validation.jsonl")), tokenizer, TRACE_TOKENS_PER_SOURCE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that long texts are cut into windows
        trace = record(
            load_checkpoint(out / "model.safetensors"),
            tokenizer,
            documents,
            device="cuda" if cuda else None,
            progress=False,
            name="mini",
        )
    trace.save(out / "trace.safetensors")
    print(trace)


def check(out: Path, record: dict[str, object]) -> int:
    """What is promised of the shipped model; 1 where it does not hold."""
    held_out = record["held_out"]
    assert isinstance(held_out, dict)
    size, share = (out / "model.safetensors").stat().st_size, held_out["l0_share_of_hidden"]
    promises = {
        f"{size:,} bytes are at most {LARGEST_BYTES:,}": size <= LARGEST_BYTES,
        f"mean L0 {share:.2%} of H is under {LARGEST_SHARE:.0%}": share < LARGEST_SHARE,
        f"every layer fires: {held_out['l0_per_layer']}": min(held_out["l0_per_layer"]) > 0,
    }
    for text, holds in promises.items():
        print(f"{'yes' if holds else 'NO '}  {text}")
    return 0 if all(promises.values()) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    tokens = commands.add_parser("tokens", help="make train.tokens and validation.tokens")
    tokens.add_argument("corpus", metavar="CORPUS", help="folder of the corpus")
    tokens.add_argument("--out", required=True, metavar="FOLDER")
    tokens.set_defaults(run=make_tokens)
    training = commands.add_parser("train", help="train, export, check, record")
    training.add_argument("--text", required=True, metavar="FOLDER", help="with train.tokens and validation.tokens")
    training.add_argument("--out", required=True, metavar="FOLDER", help="of model, training.json, log.csv and trace")
    training.add_argument("--init", metavar="MODEL", help="model.safetensors to start from")
    training.add_argument("--steps", type=int, default=1400, metavar="N", help="(%(default)s)")
    training.add_argument("--batch-size", type=int, default=128, metavar="N", help="sequences of 512 (%(default)s)")
    training.add_argument("--lr", type=float, default=2e-3, metavar="X", help="(%(default)s)")
    training.add_argument("--lr-warmup", type=int, default=40, metavar="N", help="(%(default)s)")
    training.add_argument("--l1", type=float, default=4e-3, metavar="X", help="(%(default)s)")
    training.add_argument("--seed", type=int, default=0, metavar="N")
    training.add_argument("--compile", action="store_true", help="torch.compile the layers")
    training.add_argument("--smoke", action="store_true", help="a tiny model, to try the script; promises unchecked")
    training.set_defaults(run=train_mini)
    args = parser.parse_args()
    return int(args.run(args))


if __name__ == "__main__":
    sys.exit(main())
