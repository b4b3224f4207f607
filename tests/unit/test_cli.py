"""The command line: help without torch, one line for each error, and a run from training to resuming."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from twellviz.cli import COMMANDS, main
from twellviz.models import PRESETS, load_checkpoint, read_checkpoint_info
from twellviz.training import read_log, stored_config

TINY = ["--batch-size", "1", "--seq-len", "16", "--device", "cpu", "--threads", "1", "--no-progress"]


@pytest.fixture
def held_out(tmp_path: Path) -> str:
    path = tmp_path / "held_out.jsonl"
    path.write_text(json.dumps({"text": "The king and the queen of the United States. " * 20}) + "\n")
    return str(path)


def program(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "twellviz", *arguments], capture_output=True, text=True, timeout=60)


def test_help_loads_no_torch() -> None:
    code = (
        "import sys; from twellviz.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "assert not {'torch', 'numba', 'tokenizers', 'pandas', 'matplotlib'} & set(sys.modules)"
    )
    for arguments in (["--help"], ["train", "--help"], ["record", "--help"], ["estimate", "--help"], ["--version"]):
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        if arguments == ["--help"]:
            for name, command in COMMANDS.items():
                assert name in done.stdout
                assert command.examples[0] in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert COMMANDS[command].examples[0] in text
    assert "usage: twellviz" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["trian"], "invalid choice: 'trian'"),
        (["train", "--preset", "giant"], "invalid choice: 'giant'"),
        (["train", "--steps", "many"], "invalid int value: 'many'"),
        (["train", "--stepz", "3"], "unrecognized arguments: --stepz"),
    ],
)
def test_wrong_usage(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--steps", "0"], "steps=0: a whole number of at least 1"),
        (["train", "--seq-len", "999"], "seq_len=999: the model takes at most max_seq_len=256"),
        (["train", "--text", "none.jsonl"], "none.jsonl"),
        (["train", "--text", "bad.jsonl"], "bad.jsonl, line 2: byte 0 (0xff) is not UTF-8"),
        (["train", "--text", "empty.jsonl"], "empty.jsonl holds no documents"),
        (["train", "--tokenizer", "bad.jsonl"], "bad.jsonl is not a tokenizer.json"),
        (["train", "--resume", "nowhere"], "nowhere holds no training run"),
        (["train", "--device", "tpu"], "device='tpu'"),
        (["train", "--out", "empty.jsonl"], "empty.jsonl"),
        (["record", "--text", "bad.jsonl"], "bad.jsonl, line 2"),
        (["record", "--text", "latin.txt"], "latin.txt: byte 3 (0xe9) is not UTF-8"),
        (["record", "--text", "empty.txt"], "empty.txt is empty"),
        (["record", "--string", ""], "texts[0] is empty"),
        (["record", "--model", "bad.jsonl"], "bad.jsonl is truncated or no safetensors file"),
        (["record", "--model", "none.safetensors"], "no file at none.safetensors"),
    ],
)
def test_errors_are_one_line_and_status_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.jsonl").write_bytes(b'{"text": "a"}\n\xff\n')
    Path("empty.jsonl").touch()
    Path("empty.txt").touch()
    Path("latin.txt").write_bytes(b"caf\xe9")
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.startswith("twellviz: error: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_faults_of_the_program_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    import twellviz._doctor as command

    def fail(args: object) -> int:
        raise ValueError("a fault")

    monkeypatch.setattr(command, "run_cli", fail)
    with pytest.raises(ValueError, match="a fault"):
        main(["doctor"])

    def lack(args: object) -> int:
        raise ModuleNotFoundError("No module named 'tokenizers'", name="tokenizers")

    monkeypatch.setattr(command, "run_cli", lack)
    assert main(["doctor"]) == 2


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert main(["train", "--out", "never"]) == 2
    assert "Python package 'tokenizers' is not installed: pip install 'twellviz[all]'" in capsys.readouterr().err


def test_train_writes_what_it_says(tmp_path: Path, held_out: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    arguments = [
        *("train", "--steps", "3", "--plain", "--l1", "0.002", "--seed", "4", "--eval-interval", "2", *TINY),
        *("--validation", held_out, "--storage", "float16", "--out", str(out)),
    ]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "held-out loss" in shown
    assert "without FFN" in shown
    info = read_checkpoint_info(out / "model.safetensors")
    assert info.config.gated is False
    assert info.config.d_hidden == PRESETS["nano"].d_hidden
    assert load_checkpoint(out / "model.safetensors").num_parameters() > 0
    record = json.loads((out / "training.json").read_text())
    assert record["command"].startswith("python -m twellviz train --steps 3 --plain")
    assert record["settings"]["l1_coefficient"] == 0.002
    assert record["settings"]["seed"] == 4
    assert record["storage"] == "float16"
    assert set(record["machine"]["versions"]) >= {"torch", "python", "twellviz"}
    assert len(read_log(out / "log.csv")) == 3
    assert sorted(path.name for path in out.iterdir()) == [
        *("checkpoints", "config.json", "log.csv", "model.safetensors", "training.json"),
    ]

    # The same folder again is an error, resuming a finished run is not, and a run keeps its settings.
    assert main(arguments) == 2
    assert "already holds a run: resume it" in capsys.readouterr().err
    assert main(["train", "--resume", str(out), "--lr", "0.1"]) == 2
    assert "--resume with lr" in capsys.readouterr().err
    assert main(["train", "--resume", str(out), "--validation", held_out, "--threads", "1", "--no-progress"]) == 0
    assert read_checkpoint_info(out / "model.safetensors").config == info.config


def test_ctrl_c_and_resume(tmp_path: Path, held_out: str) -> None:
    """In a process of its own: a signal stops it with a message and a checkpoint, resuming finishes it."""
    out = tmp_path / "run"
    arguments = ["train", "--steps", "120", *TINY, "--validation", held_out, "--out", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-m", "twellviz", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    log = out / "log.csv"
    deadline = time.monotonic() + 60
    while not (log.exists() and log.read_bytes().count(b"\n") > 3) and time.monotonic() < deadline:
        assert process.poll() is None, process.stderr
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    shown, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT, errors
    assert "stopped by SIGINT after" in shown
    assert f"python -m twellviz train --resume {out}" in shown
    assert "Traceback" not in errors
    rows = read_log(log)
    assert 3 <= len(rows) < 120
    assert not (out / "model.safetensors").exists()
    assert main(["train", "--resume", str(out), "--validation", held_out, "--no-progress"]) == 0
    np.testing.assert_equal(read_log(log)[: len(rows)], rows)
    assert len(read_log(log)) == stored_config(out).steps == 120


def test_own_tokenizer_sets_the_vocabulary(tmp_path: Path, held_out: str) -> None:
    from twellviz.data import data_path, read_jsonl, train_tokenizer

    texts = [document.text for document in read_jsonl(data_path("text/validation.jsonl"))]
    tokenizer = str(train_tokenizer(texts, 300).save(tmp_path / "t.json"))
    out = tmp_path / "run"
    own = ["--tokenizer", tokenizer, "--text", held_out, "--validation", held_out]
    assert main(["train", "--steps", "1", *TINY, *own, "--out", str(out)]) == 0
    assert read_checkpoint_info(out / "model.safetensors").config.vocab_size == 300


def test_a_reader_that_goes_away_is_no_error() -> None:
    done = subprocess.run(
        f"{sys.executable} -m twellviz doctor | head -n 1; echo ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_python_m_twellviz() -> None:
    done = program("train", "--steps", "-1")
    assert done.returncode == 2
    assert done.stderr.startswith("twellviz: error: steps=-1")
    assert "Traceback" not in done.stderr


def test_record_writes_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from twellviz.traces import Trace

    plain = tmp_path / "a.txt"
    plain.write_text("All happy families are alike.\n")
    lines = tmp_path / "b.jsonl"
    lines.write_text('{"text": "one two three four five six seven eight nine", "source": "numbers"}\n' * 2)
    out = tmp_path / "new" / "t.safetensors"
    arguments = ["record", "--text", str(plain), "--text", str(lines), "--string", "The king", "--out", str(out)]
    assert main([*arguments, "--tokens-per-source", "5", "--no-progress"]) == 0
    assert f"written to {out}" in capsys.readouterr().out
    trace = Trace.load(out)
    # Three sources: none (the string), the file's name, and "numbers"; the second line of it is beyond five tokens.
    assert trace.n_sequences == 3
    assert trace.n_layers == 4
    assert trace.n_tokens <= 15
    assert trace.counts_LM.sum() > 0


def test_limit_sources_keeps_the_first_tokens_of_each() -> None:
    from twellviz._record import limit_sources
    from twellviz.data import Document, Tokenizer
    from twellviz.errors import ConfigError

    tokenizer = Tokenizer.load()
    text = "The queen of England and the parliament"
    given = [Document(text, "a"), Document(text, "b"), Document(text, "a"), Document(text, "a")]
    n = len(tokenizer.encode(text).ids)
    kept = limit_sources(given, tokenizer, n + 2)
    assert [document.source for document in kept] == ["a", "b", "a"]
    assert kept[0].text == kept[1].text == text
    assert text.startswith(kept[2].text)
    assert len(tokenizer.encode(kept[2].text).ids) == 2
    with pytest.raises(ConfigError, match="tokens_per_source=0"):
        limit_sources(given, tokenizer, 0)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["record", "--out", ""], "is no file name: name a file"),
        (["record", "--out", "."], "is a folder: name a file"),
        (["bench", "ffn", "--json", "."], "is a folder: name a file"),
        (["train", "--out", ""], "--out '': name a folder"),
        (["train", "--seed", "99999999999999999999999"], "seed=99999999999999999999999: at most"),
    ],
)
def test_outputs_are_checked_before_the_work(
    command: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command) == 2
    assert words in capsys.readouterr().err.strip().splitlines()[-1]


def test_a_run_that_diverges_says_so_and_writes_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    options = ["--steps", "8", "--batch-size", "2", "--seq-len", "32", "--lr", "1e30", "--lr-warmup", "0"]
    assert main(["train", *options, "--out", str(out), "--no-progress"]) == 2
    assert "The run has diverged; lower lr" in capsys.readouterr().err
    assert not (out / "model.safetensors").exists()


def test_what_is_no_notebook_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.ipynb"
    path.write_text("{}")
    assert main(["notebooks", str(path), "--out", str(tmp_path / "out")]) == 2
    assert "is not an nbformat 4 notebook" in capsys.readouterr().err
