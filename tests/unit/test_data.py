"""Text, tokenizer, token order, patterns: what is read, and the errors for what cannot be."""

from __future__ import annotations

import json
import lzma
import os
from pathlib import Path

import numpy as np
import pytest

from twellviz.data import (
    DataNotFoundError,
    Tokenizer,
    WindowOrder,
    data_path,
    load_pattern,
    load_tokens,
    paths,
    read_jsonl,
    read_text,
    save_pattern,
    train_tokenizer,
)
from twellviz.errors import ConfigError, TextError, TraceError


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load()


# --- paths


def test_data_path_prefers_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository, packaged = tmp_path / "repository", tmp_path / "packaged"
    for folder in (repository / "data", packaged):
        folder.mkdir(parents=True)
        (folder / "x.txt").write_text("x")
    (packaged / "only.txt").write_text("x")
    monkeypatch.setattr(paths, "REPOSITORY", repository)
    monkeypatch.setattr(paths, "PACKAGED", packaged)
    # Without pyproject.toml this is no checkout, and data/ may be anybody's.
    assert data_path("x.txt") == packaged / "x.txt"
    (repository / "pyproject.toml").touch()
    assert data_path("x.txt") == repository / "data" / "x.txt"
    assert data_path("only.txt") == packaged / "only.txt"
    with pytest.raises(DataNotFoundError) as error:
        data_path("nano/none.bin")
    assert str(repository / "data" / "nano" / "none.bin") in str(error.value)
    assert str(packaged / "nano" / "none.bin") in str(error.value)
    assert isinstance(error.value, FileNotFoundError)


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../secret", "nano/../../secret"])
def test_data_path_stays_inside(name: str) -> None:
    with pytest.raises(ConfigError, match="inside data/"):
        data_path(name)


# --- text


def test_read_jsonl(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"text": "Ein Café\n", "source": "x", "more": 1}, ensure_ascii=False), "", '{"text": "b"}']
    path.write_text("\r\n".join(lines), encoding="utf-8")
    assert read_jsonl(path) == [("Ein Café\n", "x"), ("b", None)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no documents"),
        (b"\n \n", "holds no documents"),
        (b'{"text": "a"}\n{"text": "\xff"}', r"line 2: byte 10 \(0xff\) is not UTF-8"),
        (b'{"text": "a"}\n{"text": ', "line 2, column 10: not JSON"),
        (b'["a"]', "line 1: a JSON object .* found list"),
        (b'{"txt": "a"}', "line 1: needs a string \"text\"; its keys: 'txt'"),
        (b'{"text": 3}', 'needs a string "text"'),
        (b'{"text": " "}', '"text" is empty'),
        (b'{"text": "a\\ud800"}', "character 1 is half a surrogate pair"),
        (b"[" * 100_000, "nested too deeply|not JSON"),
        ("text".encode("utf-16"), "not UTF-8"),
    ],
)
def test_read_jsonl_names_what_is_wrong(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(TextError, match=message):
        read_jsonl(path)


def test_missing_files_are_text_errors(tmp_path: Path) -> None:
    with pytest.raises(TextError, match="No such file"):
        read_jsonl(tmp_path / "none")
    with pytest.raises(TextError, match="cannot read"):
        read_text(tmp_path)


def test_read_text(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfabc\n")
    assert read_text(path) == "abc\n"
    for content, message in ((b"", "empty"), (b" \n", "empty"), (b"ab\xe9", r"byte 2 \(0xe9\)")):
        path.write_bytes(content)
        with pytest.raises(TextError, match=message):
            read_text(path)


# --- tokenizer


def test_offsets_cover_the_text_and_give_whole_characters(tokenizer: Tokenizer) -> None:
    text = "The king's café \n\n costs 5 € $x$ <b> 日本🙂 the"
    ids, offsets = tokenizer.encode(text)
    assert ids.shape == (len(offsets),)
    # Pieces follow one another; pieces of one character share its offsets; nothing is left out.
    covered = [False] * len(text)
    for first, last in offsets:
        assert 0 <= first < last <= len(text)
        covered[first:last] = [True] * (last - first)
    assert all(covered)
    assert (np.diff(offsets[:, 0]) >= 0).all()
    assert " the" in [text[first:last] for first, last in offsets]
    assert tokenizer.decode(ids) == text


def test_text_cannot_fake_the_end_of_a_document(tokenizer: Tokenizer) -> None:
    ids, _ = tokenizer.encode("a<|endoftext|>b")
    assert tokenizer.end_of_text == 0
    assert 0 not in ids
    assert tokenizer.decode(ids) == "a<|endoftext|>b"
    assert list(tokenizer.encode_documents(["a<|endoftext|>b", "c"])).count(0) == 2


def test_tokenizer_errors(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with pytest.raises(TextError, match="empty"):
        tokenizer.encode("")
    with pytest.raises(TextError, match="surrogate"):
        tokenizer.encode("a\ud800")
    for i in (-1, 2048):
        with pytest.raises(TextError, match=f"token id {i}: ids run from 0 to 2047"):
            tokenizer.decode([5, i])
    with pytest.raises(TextError, match="no tokenizer at"):
        Tokenizer.load(tmp_path / "none.json")
    whole = data_path("tokenizer/tokenizer.json").read_bytes()
    for name, content in (("truncated", whole[: len(whole) // 2]), ("foreign", b'{"a": 1}'), ("binary", b"\xff\x00")):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(TextError, match=r"not a tokenizer\.json"):
            Tokenizer.load(path)
    path.write_bytes(whole.replace(b"<|endoftext|>", b"<|otherthing|>"))
    with pytest.raises(TextError, match=r"has no <\|endoftext\|>"):
        Tokenizer.load(path)


def test_training_a_tokenizer_is_deterministic(tmp_path: Path) -> None:
    texts = [document.text for document in read_jsonl(data_path("text/validation.jsonl"))]
    first, second = train_tokenizer(texts, 400), train_tokenizer(iter(texts), 400)
    assert first.vocab_size == 400
    assert first.sha256 == second.sha256
    assert Tokenizer.load(first.save(tmp_path / "t.json")).sha256 == first.sha256
    assert first.decode(first.encode("wörld 🙂").ids) == "wörld 🙂"
    with pytest.raises(ConfigError, match="vocab_size=256: at least 257"):
        train_tokenizer(texts, 256)
    with pytest.raises(ConfigError, match="give only"):
        train_tokenizer(["abc"], 300)
    with pytest.raises(TextError, match="no text"):
        train_tokenizer(["", ""], 300)


def test_shipped_tokenizer_is_the_one_of_the_shipped_text(tokenizer: Tokenizer) -> None:
    texts = (document.text for document in read_jsonl(data_path("text/train.jsonl")))
    assert train_tokenizer(texts, 2048).sha256 == tokenizer.sha256


# --- tokens and their order


def test_load_tokens(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokens = load_tokens("validation", tokenizer)
    documents = read_jsonl(data_path("text/validation.jsonl"))
    assert tokens.dtype == np.uint16
    assert tokens[-1] == 0
    parts = np.split(tokens, np.flatnonzero(tokens == 0) + 1)
    assert [tokenizer.decode(part[:-1]) for part in parts[:-1]] == [document.text for document in documents]
    assert load_tokens("validation", Tokenizer.load()) is tokens
    with pytest.raises(ValueError, match="read-only"):
        tokens[0] = 1
    own = tmp_path / "own.jsonl"
    own.write_text('{"text": "one"}\n')
    before = load_tokens(own, tokenizer)
    own.write_text('{"text": "two two"}\n')
    os.utime(own, ns=(1, 1))
    assert len(load_tokens(own, tokenizer)) > len(before)
    with pytest.raises(ConfigError, match="split='test': choose one of train, validation"):
        load_tokens("test", tokenizer)


def test_every_window_once_an_epoch() -> None:
    tokens = np.arange(101, dtype=np.uint16)
    order = WindowOrder(tokens, seq_len=10, sequences=3, seed=5)
    assert order.n_windows == 10
    windows = [window for step in range(20) for window in order.windows(step)]
    for epoch in range(6):
        assert sorted(windows[10 * epoch : 10 * epoch + 10]) == list(range(10))
    assert windows[:10] != windows[10:20]
    inputs, targets = order.batch(7)
    assert inputs.shape == targets.shape == (3, 10)
    assert (inputs[:, 0] == 10 * np.asarray(order.windows(7))).all()
    assert (targets == inputs + 1).all()


def test_order_depends_on_seed_and_step_alone() -> None:
    tokens = np.arange(1000, dtype=np.uint16)
    one = WindowOrder(tokens, seq_len=10, sequences=4, seed=0)
    other = WindowOrder(tokens, seq_len=10, sequences=4, seed=0)
    assert other.windows(90) == [one.windows(step) for step in range(91)][90]
    assert one.windows(3) != WindowOrder(tokens, seq_len=10, sequences=4, seed=1).windows(3)
    # Two steps of four are one step of eight.
    eight = WindowOrder(tokens, seq_len=10, sequences=8, seed=0)
    assert eight.windows(12) == one.windows(24) + one.windows(25)


def test_order_errors() -> None:
    with pytest.raises(ConfigError, match="the text has 10 tokens, one window needs 11"):
        WindowOrder(np.zeros(10, np.uint16), seq_len=10, sequences=1, seed=0)
    with pytest.raises(ConfigError, match="sequences=0"):
        WindowOrder(np.zeros(100, np.uint16), seq_len=10, sequences=0, seed=0)


# --- patterns


def test_shipped_patterns() -> None:
    for layer, largest, fullest_tile in ((0, 5249, 244), (7, 1299, 68)):
        pattern = load_pattern(layer)
        assert pattern.shape == (512, 5632)
        assert pattern.dtype == np.bool_
        assert pattern.sum(1).max() == largest
        assert pattern.reshape(512, 22, 256).sum(2).max() == fullest_tile


def test_pattern_roundtrip_and_errors(tmp_path: Path) -> None:
    pattern = np.random.default_rng(0).random((3, 5632)) < 0.1
    path = save_pattern(tmp_path / "layer3.xz", pattern)
    assert (load_pattern(3, folder=tmp_path) == pattern).all()
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    with pytest.raises(TraceError, match="not a whole xz file"):
        load_pattern(3, tmp_path)
    path.write_bytes(lzma.compress(b"x" * 705))
    with pytest.raises(TraceError, match="705 bytes: a pattern has a multiple of 704"):
        load_pattern(3, tmp_path)
    with pytest.raises(ConfigError, match="layers 0, 7 ship"):
        load_pattern(1)
    with pytest.raises(ConfigError, match="layer=5"):
        load_pattern(5, tmp_path)
    with pytest.raises(ConfigError, match=r"bool \[M, 5632\]"):
        save_pattern(path, pattern[:, :-1])


def test_licences_name_everything_that_ships() -> None:
    text = data_path("LICENSES.md").read_text()
    root = data_path("text").parent
    for path in root.rglob("*"):
        if path.is_file() and path.name != "LICENSES.md":
            name = path.relative_to(root)
            assert f"`{name.as_posix()}`" in text or f"`{name.parent.as_posix()}/`" in text, name
    for source in {document.source for document in read_jsonl(data_path("text/train.jsonl"))}:
        assert f"`{source}`" in text
