"""``python -m twellviz train``: its options, and what it does with them."""

from __future__ import annotations

import argparse
import shlex
import signal
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twellviz.errors import ConfigError
from twellviz.models.config import ACTIVATIONS, PRESETS
from twellviz.sparsifiers.registry import METHODS
from twellviz.training.config import DTYPES, OPERATIONAL, TrainConfig
from twellviz.training.settings_file import COMMAND_KEYS, read_settings, write_settings

if TYPE_CHECKING:
    from twellviz.data.token_map import TokenMap
    from twellviz.data.tokenizer import Tokenizer
    from twellviz.data.tokens import TokenArray
    from twellviz.training.loop import TrainResult

_DEFAULTS = {field.name: field.default for field in fields(TrainConfig)}
_SWITCHES = {
    "--compile": "compile each layer: minutes at the start, faster steps on a GPU",
    "--checkpoint-activations": "run each layer again in the backward: less memory, a third more work",
    "--tensorboard": "write the history for TensorBoard too",
}
_STORAGE = (*DTYPES, "float16")

# Option, setting of TrainConfig, type, help. Options not given are absent from the namespace, so that --resume can
# tell what was asked for.
_SETTINGS: tuple[tuple[str, str, Any, str], ...] = (
    ("--steps", "steps", int, "optimiser steps"),
    ("--batch-size", "batch_size", int, "sequences of one forward pass, of all processes together"),
    ("--accumulation", "accumulation", int, "forward passes of one step"),
    ("--seq-len", "seq_len", int, "tokens of a sequence (default: the preset's longest)"),
    ("--lr", "lr", float, "peak learning rate"),
    ("--lr-warmup", "lr_warmup_steps", int, "steps of linear rise"),
    ("--lr-final", "lr_final", float, "share of the peak at which the cosine ends"),
    ("--weight-decay", "weight_decay", float, "AdamW's, on matrices"),
    ("--grad-clip", "grad_clip", float, "largest norm of the gradient"),
    ("--l1", "l1_coefficient", float, "factor of the L1 penalty"),
    ("--l1-start", "l1_start_step", int, "L1 warm-up: no penalty before this step"),
    ("--l1-full", "l1_full_step", int, "L1 warm-up: the whole penalty from this step on"),
    ("--dead-reinit", "dead_reinit", float, "share of fresh noise in gate rows that never fired (paper: 0.1)"),
    ("--init", "init", str, "model.safetensors to start from"),
    ("--seed", "seed", int, "of weights, order of the text, and noise"),
    ("--eval-interval", "eval_interval", int, "steps between held-out losses in the log; 0: none"),
    ("--eval-windows", "eval_windows", int, "sequences of each of them"),
    ("--checkpoint-interval", "checkpoint_interval", int, "steps between checkpoints; 0: at the end and when stopped"),
    (
        "--log-interval",
        "log_interval",
        int,
        "steps whose figures leave the GPU together (default: 10; CPU: 1)",
    ),
    ("--peak-tflops", "peak_tflops", float, "dense peak of the device, for the MFU of one that is not known"),
    ("--device", "device", str, "auto, cpu, cuda or cuda:N"),
    ("--threads", "threads", int, "CPU threads (default: torch's own choice)"),
    ("--process-timeout", "process_timeout", float, "seconds until one of several processes gives up waiting"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to ``parser``."""
    parser.argument_default = argparse.SUPPRESS
    model = parser.add_argument_group("model")
    model.add_argument("--preset", choices=PRESETS, help="sizes (default: nano)")
    gate = model.add_mutually_exclusive_group()
    gate.add_argument("--gated", action=argparse.BooleanOptionalAction, help="feed-forward blocks with a gate")
    gate.add_argument("--plain", dest="gated", action="store_false", help="the same as --no-gated")
    model.add_argument("--activation", choices=ACTIVATIONS, help="relu gives exact zeros (default: relu)")
    model.add_argument(
        "--sparsifier", choices=METHODS, help="what makes neurons inactive; options: --config (default: l1)"
    )
    text = parser.add_argument_group("text (default: the shipped text and tokenizer)")
    text.add_argument(
        "--text", metavar="FILE", help='JSON lines with "text" to train on, or a .tokens file of the command tokenize'
    )
    text.add_argument("--validation", metavar="FILE", help="held-out text, likewise")
    text.add_argument(
        "--tokenizer", metavar="PATH", help="tokenizer.json or its folder; the model gets its vocabulary size"
    )
    settings = parser.add_argument_group("training")
    for option, name, kind, text_ in _SETTINGS:
        default = _DEFAULTS[name]
        shown = text_ if default is None else f"{text_} (default: {default})"
        settings.add_argument(option, dest=name, type=kind, metavar=_metavar(kind), help=shown)
    settings.add_argument("--dtype", choices=DTYPES, help="of the computation (default: float32)")
    for option, text_ in _SWITCHES.items():
        settings.add_argument(option, action=argparse.BooleanOptionalAction, help=text_)
    parser.add_argument("--config", metavar="YAML", help="settings from a file; options given here win")
    parser.add_argument("--print-config", action="store_true", help="print all settings as such a file, and stop")
    output = parser.add_argument_group("output")
    output.add_argument(
        "--out",
        metavar="FOLDER",
        help="gets log.csv, checkpoints/, model.safetensors, training.json (default: runs/PRESET)",
    )
    output.add_argument(
        "--resume",
        metavar="FOLDER",
        help="continue the run in FOLDER with its own settings, to the same losses as without the break",
    )
    output.add_argument("--storage", choices=_STORAGE, help="dtype of model.safetensors (default: float32)")
    output.add_argument("--no-progress", action="store_true", help="show no progress bar")


def run_cli(args: argparse.Namespace) -> int:
    """Train, export, print what was measured.

    Returns
    -------
    int
        0; 128 + the signal's number if the run was stopped.
    """
    from twellviz.data.token_map import TokenMap
    from twellviz.data.tokenizer import Tokenizer
    from twellviz.training.export import export_model
    from twellviz.training.loop import train
    from twellviz.training.progress import say

    given = {name: value for name, value in vars(args).items() if name not in ("command", "command_line")}
    settings = _from_file(given)
    given = {**{name: settings.pop(name) for name in COMMAND_KEYS if name in settings}, **given}
    tokenizer = Tokenizer.load(given.get("tokenizer"))
    config = _config(given, settings, tokenizer.vocab_size if "tokenizer" in given else None)
    if "print_config" in given:
        print(write_settings(config, given), end="")
        return 0
    validation_tokens = _text(given.get("validation", "validation"), tokenizer)
    shown = "no_progress" not in given
    result = train(
        config,
        train_tokens=_text(given.get("text", "train"), tokenizer),
        validation_tokens=validation_tokens,
        resume="resume" in given,
        progress=shown,
    )
    assert config.out is not None
    if not result.ranks.first:
        return 0 if result.stopped is None else 128 + signal.Signals[result.stopped]
    if result.stopped is not None:
        print(
            f"stopped by {result.stopped} after {len(result.history)} of {config.steps} steps; nothing is lost. "
            f"Continue with: python -m twellviz train --resume {shlex.quote(config.out)}"
        )
        return 128 + signal.Signals[result.stopped]
    say("measuring held-out loss of the written model ...", shown=shown)
    record = export_model(
        result,
        config.out,
        tokenizer=tokenizer,
        validation_tokens=validation_tokens.tokens if isinstance(validation_tokens, TokenMap) else validation_tokens,
        storage=given.get("storage", "float32"),
        command=args.command_line,
    )
    _report(result, record, Path(config.out))
    return 0


def _check_target(given: dict[str, Any]) -> None:
    for name in ("out", "resume"):
        if given.get(name) == "":
            raise ConfigError(f"--{name} '': name a folder, as in runs/nano")


def _text(name: str, tokenizer: Tokenizer) -> TokenArray | TokenMap:
    """A token map of this tokenizer, or the tokens of JSON lines."""
    from twellviz.data.token_map import SUFFIX, TokenMap
    from twellviz.data.tokens import load_tokens

    if not name.endswith(SUFFIX):
        return load_tokens(name, tokenizer)
    token_map = TokenMap.open(name)
    token_map.check_tokenizer(tokenizer)
    token_map.verify()  # a second a gigabyte or so, against hours on damaged text
    return token_map


def _from_file(given: dict[str, Any]) -> dict[str, Any]:
    if "config" not in given:
        return {}
    if "resume" in given:
        raise ConfigError("--resume with --config: a run goes on with its own settings; leave the file out")
    return read_settings(given["config"])


def _config(given: dict[str, Any], from_file: dict[str, Any], vocab_size: int | None) -> TrainConfig:
    _check_target(given)
    switches = [option.removeprefix("--").replace("-", "_") for option in _SWITCHES]
    names = [name for _, name, _, _ in _SETTINGS] + ["dtype", *switches]
    settings = {name: given[name] for name in names if name in given}
    if "resume" in given:
        from twellviz.training.state import stored_config

        fixed = [name for name in (*settings, "preset", "gated", "activation", "sparsifier", "out") if name in given]
        if clash := [name for name in fixed if name not in OPERATIONAL or name == "out"]:
            raise ConfigError(
                f"--resume with {', '.join(clash)}: a run goes on with its own settings; leave them out, or train into "
                "another folder"
            )
        return replace(stored_config(given["resume"]), **settings)
    preset = given.get("preset", "nano" if "model" not in from_file else None)
    model = from_file["model"] if preset is None else PRESETS[preset]
    model = replace(model, **{name: given[name] for name in ("gated", "activation") if name in given})
    if given.get("sparsifier", model.sparsifier) != model.sparsifier:
        # Options of another method mean nothing to this one.
        model = replace(model, sparsifier=given["sparsifier"], sparsifier_options={})
    if vocab_size is not None:
        model = replace(model, vocab_size=vocab_size)
    out = given.get("out", from_file.get("out") or f"runs/{preset or Path(given['config']).stem}")
    return TrainConfig(**{**from_file, **settings, "model": model, "out": out})


def _report(result: TrainResult, record: dict[str, Any], folder: Path) -> None:
    held_out, hidden = record["held_out"], result.config.lm.d_hidden
    per_layer = ", ".join(f"{l0:.1f}" for l0 in held_out["l0_per_layer"])
    print(f"trained       {result.config.steps} steps, {record['tokens_seen']:,} tokens, {result.seconds:.0f} s")
    print(f"held-out loss {held_out['loss']:.3f} (untrained {record['loss_at_start']:.3f})")
    print(f"without FFN   {held_out['loss_without_ffn']:.3f}")
    print(f"active        {held_out['l0']:.1f} of {hidden} neurons a token ({held_out['l0_share_of_hidden']:.1%})")
    print(f"by layer      {per_layer}")
    speed = "not available" if result.mfu is None else f"{result.mfu:.1%}"
    print(f"MFU           {speed}")
    print(f"written       {folder / 'model.safetensors'} ({record['storage']}), training.json, log.csv, checkpoints/")


def _metavar(kind: Any) -> str:
    return {int: "N", float: "X"}.get(kind, "NAME")
