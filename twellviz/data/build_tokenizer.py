"""``python -m twellviz.data.build_tokenizer``: train the tokenizer that ships in ``data/tokenizer``.

The same text and the same version of ``tokenizers`` give the same file.
"""

from __future__ import annotations

import argparse

from twellviz.data.paths import data_path
from twellviz.data.text import read_jsonl
from twellviz.data.tokenizer import train_tokenizer


def main() -> None:
    """Read JSON lines, train, write ``tokenizer.json``, print its size and hash."""
    parser = argparse.ArgumentParser(prog="python -m twellviz.data.build_tokenizer", description=__doc__)
    parser.add_argument("--text", metavar="JSONL", help="JSON lines to train on (default: data/text/train.jsonl)")
    parser.add_argument("--vocab-size", type=int, default=2048, metavar="N", help="entries (%(default)s)")
    parser.add_argument("--out", default="data/tokenizer/tokenizer.json", metavar="FILE", help="(%(default)s)")
    args = parser.parse_args()
    documents = read_jsonl(data_path("text/train.jsonl") if args.text is None else args.text)
    tokenizer = train_tokenizer((document.text for document in documents), args.vocab_size)
    print(f"{tokenizer.save(args.out)}: {tokenizer.vocab_size} entries, sha256 {tokenizer.sha256}")


if __name__ == "__main__":
    main()
