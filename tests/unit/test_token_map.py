"""Token maps: the format, what is refused, constant memory, and the same ids on every way into one."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from twellviz.cli import main
from twellviz.data import Tokenizer, TokenMap, build_token_map, data_path, load_tokens, read_jsonl
from twellviz.data.documents import DATASETS, PIECE_CHARACTERS, Piece, _boundary, read_dataset, read_files
from twellviz.errors import ConfigError, TextError

VALIDATION = data_path("text/validation.jsonl")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load()


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The held-out text as three Parquet shards, one with several row groups and rows without text."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    folder = tmp_path_factory.mktemp("shards")
    documents = read_jsonl(VALIDATION)
    paths = []
    for number, part in enumerate((documents[:10], documents[10:11], documents[11:])):
        texts: list[str | None] = [document.text for document in part]
        sources = [document.source for document in part]
        if number == 2:
            texts[3:3], sources[3:3] = [None, " \n"], ["austen", "austen"]
        paths.append(folder / f"part-{number}.parquet")
        table = pyarrow.table({"id": range(len(texts)), "source": sources, "text": texts})
        parquet.write_table(table, paths[-1], row_group_size=7)
    return paths


def test_every_way_gives_the_ids_of_load_tokens(tmp_path: Path, tokenizer: Tokenizer, shards: list[Path]) -> None:
    expected = load_tokens(VALIDATION, tokenizer)
    ways = {
        "jsonl": read_files([VALIDATION]),
        "parquet": read_files(shards),
        "datasets": read_dataset(DATASETS["fineweb-edu"], shards),
    }
    starts = [0, *(np.flatnonzero(expected == tokenizer.end_of_text) + 1)][:-1]
    for name, pieces in ways.items():
        token_map = build_token_map(pieces, tokenizer, tmp_path / f"{name}.tokens", progress=False)
        np.testing.assert_array_equal(token_map.tokens, expected, err_msg=name)
        np.testing.assert_array_equal(token_map.document_starts, starts, err_msg=name)
        assert token_map.tokens.dtype == np.uint16
    np.testing.assert_array_equal(token_map.document(1), expected[starts[1] : starts[2]])
    np.testing.assert_array_equal(token_map.document(len(starts) - 1), expected[starts[-1] :])
    with pytest.raises(ConfigError, match="has documents 0 to 35"):
        token_map.document(36)


def test_any_safetensors_reader_opens_it(tmp_path: Path, tokenizer: Tokenizer) -> None:
    from safetensors import safe_open

    made = {"command": "by hand", "quote": '"</script>"'}
    token_map = build_token_map(read_files([VALIDATION]), tokenizer, tmp_path / "a.tokens", made=made, progress=False)
    with safe_open(token_map.path, framework="np") as file:
        np.testing.assert_array_equal(file.get_tensor("tokens"), token_map.tokens)
        np.testing.assert_array_equal(file.get_tensor("document_starts"), token_map.document_starts)
        assert file.metadata()["tokenizer_sha256"] == tokenizer.sha256
    assert token_map.made == made
    assert token_map.document_starts.ctypes.data % 8 == 0
    assert not token_map.tokens.flags.writeable
    token_map.verify()
    assert [path.name for path in tmp_path.iterdir()] == ["a.tokens"]


def test_max_tokens_and_sources(tmp_path: Path, tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]) -> None:
    expected = load_tokens(VALIDATION, tokenizer)
    out = tmp_path / "a.tokens"
    first = int(np.flatnonzero(expected == tokenizer.end_of_text)[0]) + 1
    for n in (1, first - 1, first, first + 1, 2000):
        assert main(["tokenize", str(VALIDATION), "--out", str(out), "--max-tokens", str(n), "--no-progress"]) == 0
        token_map = TokenMap.open(out)
        np.testing.assert_array_equal(token_map.tokens, expected[:n])
        assert len(token_map.document_starts) == 1 + np.count_nonzero(expected[: n - 1] == tokenizer.end_of_text)
    assert "2,000 of 2,048 entries, uint16" in capsys.readouterr().out
    wanted = ["--source", "sotu", "--source", "austen"]
    assert main(["tokenize", str(VALIDATION), "--out", str(out), *wanted, "--no-progress"]) == 0
    texts = [document.text for document in read_jsonl(VALIDATION) if document.source in ("sotu", "austen")]
    np.testing.assert_array_equal(TokenMap.open(out).tokens, tokenizer.encode_documents(texts))
    assert "--source sotu --source austen" in TokenMap.open(out).made["command"]
    before = out.read_bytes()
    assert main(["tokenize", str(VALIDATION), "--out", str(out), "--source", "sotu", "--source", "novels"]) == 2
    error = capsys.readouterr().err
    assert "source novels: not in this text, whose sources are: austen, factbook" in error
    assert out.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["a.tokens"]


def test_a_long_text_in_pieces_has_the_ids_of_the_whole(tmp_path: Path, tokenizer: Tokenizer) -> None:
    text = "\n\n  ".join(document.text for document in read_jsonl(data_path("text/train.jsonl")))[
        : 5 * PIECE_CHARACTERS
    ]
    assert len(text) > 2.5 * PIECE_CHARACTERS
    path = tmp_path / "book.txt"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    pieces = list(read_files([path]))
    assert [(piece.starts, piece.ends) for piece in pieces] == [(True, False), (False, False), (False, True)]
    assert "".join(piece.text for piece in pieces) == text
    token_map = build_token_map(pieces, tokenizer, tmp_path / "a.tokens", progress=False)
    np.testing.assert_array_equal(token_map.tokens, tokenizer.encode_documents([text]))
    assert len(token_map.document_starts) == 1


@pytest.mark.parametrize(
    "text", ["a b\n\n\n  c", "one two", "x \n y", "a\r\n\r\nb c", "end. \t\t\nThe", "1 23  45\n", "\u3000a \u3000b c"]
)
def test_boundaries_are_those_of_the_pre_tokenizer(text: str, tokenizer: Tokenizer) -> None:
    cut = _boundary(text)
    assert 0 < cut < len(text)
    parts = tokenizer.encode_batch([text[:cut], text[cut:]])
    assert [*parts[0], *parts[1]] == tokenizer.encode_batch([text])[0]
    assert _boundary("nothingtocut") == 0


def test_large_vocabularies_take_32_bits(tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "vocab_size", (1 << 16) + 1)
    token_map = build_token_map([Piece("one two", None)], tokenizer, tmp_path / "a.tokens", progress=False)
    assert token_map.tokens.dtype == np.uint32
    monkeypatch.undo()
    np.testing.assert_array_equal(token_map.tokens, tokenizer.encode_documents(["one two"]))


def test_damage_is_named(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = build_token_map(read_files([VALIDATION]), tokenizer, tmp_path / "a.tokens", progress=False).path
    whole = path.read_bytes()

    def header(**changes: Any) -> bytes:
        entries = json.loads(whole[8:4096])
        for name, change in changes.items():
            entries[name].update(change)
        return whole[:8] + json.dumps(entries).encode().ljust(4088) + whole[4096:]

    meta = "__metadata__"
    for content, message in (
        (b"", "is no token map"),
        (whole[:100], "is no token map"),
        (b"\xff" * 5000, "is no token map"),
        (whole[:8] + b"[]".ljust(4088), "is no token map"),
        (header(__metadata__={"format": "twellviz.lm"}), "is no token map"),
        (header(__metadata__={"version": "2"}), "version '2': this program reads '1'"),
        (whole[:5000], "damaged token map"),
        (whole[:-1], "damaged token map"),
        (header(tokens={"shape": [-4]}), "damaged token map"),
        (header(tokens={"shape": [10**30]}), "damaged token map"),
        (header(tokens={"dtype": "F32"}), "damaged token map"),
        (header(**{meta: {"vocab_size": "many"}}), "damaged token map"),
        (header(**{meta: {"vocab_size": "100000"}}), "damaged token map: uint16 ids of 100000 entries"),
        (header(**{meta: {"made": "{"}}), "damaged token map"),
    ):
        path.write_bytes(content)
        with pytest.raises(TextError, match=message):
            TokenMap.open(path)
    path.write_bytes(whole[:5000] + b"\x00\x01" + whole[5002:])
    with pytest.raises(TextError, match="another SHA-256"):
        TokenMap.open(path).verify()
    with pytest.raises(TextError, match="no token map at"):
        TokenMap.open(tmp_path / "none.tokens")


def test_bad_input(tmp_path: Path, tokenizer: Tokenizer) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "empty.txt").write_bytes(b" \n")
    parquet.write_table(pyarrow.table({"content": ["a"]}), tmp_path / "other.parquet")
    parquet.write_table(pyarrow.table({"text": ["", None]}), tmp_path / "blank.parquet")
    out = tmp_path / "out" / "a.tokens"
    for name, message in (
        ("none.txt", "there is no such file"),
        ("bad.parquet", "is truncated or no Parquet file"),
        ("other.parquet", 'no column "text": its columns are content'),
        ("blank.parquet", "no documents"),
        ("latin.txt", "byte 0xe9 is not UTF-8"),
        ("empty.txt", "is empty"),
    ):
        with pytest.raises(TextError, match=message):
            build_token_map(read_files([tmp_path / name]), tokenizer, out, progress=False)
    for shard in ("bad.parquet", "none.parquet"):
        with pytest.raises(TextError, match=f"cannot read .*{shard}"):
            list(read_dataset(DATASETS["fineweb-edu"], [tmp_path / shard]))
    with pytest.raises(TextError, match="has no column 'text': its columns are content"):
        list(read_dataset(DATASETS["fineweb-edu"], [tmp_path / "other.parquet"]))
    with pytest.raises(ConfigError, match="max_tokens=0"):
        build_token_map([], tokenizer, out, max_tokens=0, progress=False)
    with pytest.raises(ConfigError, match=r"made: .* bytes too many"):
        build_token_map([], tokenizer, out, made={"command": "x" * 5000}, progress=False)
    assert not out.exists()
    assert list(out.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "a.tokens"], "no SOURCE"),
        (["x.txt", "--out", "a.bin"], "which ends in .tokens"),
        (["x.txt", "--out", "a.tokens", "--tokenizer", "nowhere"], "no tokenizer at nowhere"),
        (["x.txt", "--out", "a.tokens"], "cannot read x.txt"),
    ],
)
def test_command_errors(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["tokenize", *arguments, "--no-progress"]) == 2
    assert message in capsys.readouterr().err


def test_no_network_is_said_within_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A closed port answers at once; one that never answers is given up."""
    import twellviz.data.documents as documents

    monkeypatch.setattr(documents, "_CONNECT_SECONDS", 0.5)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for port, reason in ((1, "refused"), (silent.getsockname()[1], "timed out|no answer")):
            monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
            monkeypatch.setenv("no_proxy", "127.0.0.1")
            begin = time.monotonic()
            arguments = ["--source-dataset", "fineweb-edu", "--out", str(tmp_path / "a.tokens"), "--no-progress"]
            assert main(["tokenize", *arguments]) == 2
            assert time.monotonic() - begin < 20
            error = capsys.readouterr().err
            assert "HuggingFaceFW/fineweb-edu cannot be reached at http://127.0.0.1" in error
            assert "give Parquet shards of it that were downloaded elsewhere" in error
            assert any(word in error for word in reason.split("|")), error
    assert list(tmp_path.iterdir()) == []


def test_a_revision_that_is_gone_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(url: str, timeout: float) -> Any:
        assert DATASETS["fineweb-edu"].revision in url
        raise urllib.error.HTTPError(url, 404, "Not Found", None, None)  # type: ignore[arg-type]

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(urllib.request, "urlopen", gone)
    with pytest.raises(TextError, match=r"cannot be reached at .*Not Found"):
        next(read_dataset(DATASETS["fineweb-edu"]))


@pytest.mark.slow
def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    """Peak memory of a process that tokenises 40 MB is that of one that tokenises 10 MB."""
    text = data_path("text/train.jsonl").read_bytes()
    (tmp_path / "long.jsonl").write_bytes(text * 12)
    (tmp_path / "short.jsonl").write_bytes(text * 3)
    code = (
        "import resource, sys; from twellviz.cli import main\n"
        "assert main(['tokenize', sys.argv[1], '--out', sys.argv[2], '--no-progress']) == 0\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    peaks = {}
    for name in ("short", "long"):
        arguments = [str(tmp_path / f"{name}.jsonl"), str(tmp_path / f"{name}.tokens")]
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        peaks[name] = int(done.stdout.split()[-1])
    assert peaks["long"] < peaks["short"] + 20_000  # kB
