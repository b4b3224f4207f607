"""Text, tokenizer, token maps, the order in which training reads tokens, and recorded activity patterns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twellviz._lazy import lazy

if TYPE_CHECKING:
    from twellviz.data.build_map import build_token_map
    from twellviz.data.order import WindowOrder
    from twellviz.data.paths import DataNotFoundError, data_path
    from twellviz.data.patterns import load_pattern, save_pattern
    from twellviz.data.text import Document, read_jsonl, read_text
    from twellviz.data.token_map import TokenMap
    from twellviz.data.tokenizer import Encoding, Tokenizer, train_tokenizer
    from twellviz.data.tokens import load_tokens

__all__ = [
    "DataNotFoundError",
    "Document",
    "Encoding",
    "TokenMap",
    "Tokenizer",
    "WindowOrder",
    "build_token_map",
    "data_path",
    "load_pattern",
    "load_tokens",
    "read_jsonl",
    "read_text",
    "save_pattern",
    "train_tokenizer",
]

__getattr__ = lazy(
    __name__,
    {
        "DataNotFoundError": "paths",
        "Document": "text",
        "Encoding": "tokenizer",
        "TokenMap": "token_map",
        "Tokenizer": "tokenizer",
        "WindowOrder": "order",
        "build_token_map": "build_map",
        "data_path": "paths",
        "load_pattern": "patterns",
        "load_tokens": "tokens",
        "read_jsonl": "text",
        "read_text": "text",
        "save_pattern": "patterns",
        "train_tokenizer": "tokenizer",
    },
)
