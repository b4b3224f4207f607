"""Train ``mini`` with each road to sparsity on one GPU and time its feed-forward blocks: three seeds, the same tokens.

    python experiments/sparsifiers.py --train pd_train.npy --validation pd_valid.npy --out runs/sparsifiers

First all models are trained, several at once, each in a process of its own; then, on a GPU that does nothing else,
each is measured: held-out loss and L0 on all held-out text, and the time of all its feed-forward blocks for 4096
tokens and for one. Models with SiLU are trained once and given thresholds afterwards (TEAL, CATS), calibrated on
training text. Everything finished is a JSON file in the folder; started again, the script does what is missing.
``--minutes`` stops starting new runs in time to measure the rest. The table goes to ``--table``, and with device,
versions, date and command to a JSON file beside it.

The same for all: sizes, tokens and their order, first weights of the trunk, optimiser, number of steps. Fixed before
any run: the settings below, chosen from the L1 sweep (l1_sweep.py) and the papers' ranges, none tuned on the results.

Letters: H hidden width, L layers.
"""

from __future__ import annotations

import argparse
import csv
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

STEPS, BATCH, LR, WARMUP = 300, 128, 2e-3, 40
PREFILL = 4096
TRUNK = "silu"
"""The run whose model gets the thresholds."""


@dataclass(frozen=True)
class Setting:
    """One training run without its seed, or thresholds on the trunk (``sparsity``)."""

    name: str
    method: str
    options: dict[str, Any] = field(default_factory=dict)
    l1: float = 0.0
    activation: str = "relu"
    sparsity: float | None = None


def trained() -> list[Setting]:
    """What is trained, the slowest first."""
    return [
        *(Setting(f"topk-{share:g}", "topk", {"share": share}) for share in (0.02, 0.1)),
        *(Setting(f"moe-{k}of8", "moe", {"experts": 8, "chosen": k}, activation="silu") for k in (1, 2)),
        Setting(TRUNK, "l1", activation="silu"),
        Setting("relu", "relu"),
        *(Setting(f"l1-{l1:g}", "l1", l1=l1) for l1 in (1e-3, 3e-3)),
        *(Setting(f"drelu-{l1:g}" if l1 else "drelu", "drelu", l1=l1) for l1 in (0.0, 1e-3)),
        *(Setting(f"prosparse-{l1:g}", "prosparse", l1=l1) for l1 in (3e-3, 1e-2)),
    ]


def thresholded() -> list[Setting]:
    """What is measured on the trunk; sparsity 0 is the trunk itself."""
    return [
        Setting("cats-0", "cats", activation="silu", sparsity=0.0),
        *(
            Setting(f"{method}-{sparsity:g}", method, activation="silu", sparsity=sparsity)
            for method in ("teal", "cats")
            for sparsity in (0.5, 0.8, 0.95)
        ),
    ]


def measured(setting: Setting) -> list[Setting]:
    """The rows that a trained model gives."""
    return thresholded() if setting.name == TRUNK else [setting]


def wanted(args: argparse.Namespace) -> list[tuple[Setting, int]]:
    """Trained settings and seeds that ``--methods`` and ``--seeds`` ask for, all seeds of a setting together."""
    methods = None if args.methods is None else set(args.methods.split(","))
    known = {row.method for setting in trained() for row in measured(setting)}
    if methods is not None and (unknown := sorted(methods - known)):
        raise SystemExit(f"--methods {','.join(unknown)}: known are {', '.join(sorted(known))}")
    runs = []
    for setting in trained():
        if methods is None or methods & {row.method for row in measured(setting)}:
            runs += [(setting, seed) for seed in range(args.seeds)]
    # A stop in time should leave every method with a seed, not some methods with all.
    return sorted(runs, key=lambda run: run[1])


def texts(args: argparse.Namespace) -> tuple[Any, Any]:
    """Training and held-out token ids; the shipped text where no file is given."""
    import numpy as np

    if args.train:
        return np.load(args.train, mmap_mode="r"), np.load(args.validation, mmap_mode="r")
    from twellviz.data import Tokenizer, load_tokens

    tokenizer = Tokenizer.load()
    train_tokens, held_out = load_tokens("train", tokenizer), load_tokens("validation", tokenizer)
    return (train_tokens, held_out[:400]) if args.smoke else (train_tokens, held_out)


def train_one(setting: Setting, seed: int, args: argparse.Namespace) -> None:
    """Train one model and keep it, with its figures."""
    import torch

    from twellviz._atomic import write_text_atomically
    from twellviz.models import PRESETS, save_checkpoint
    from twellviz.training import TrainConfig, train

    model = replace(
        PRESETS["mini"], activation=setting.activation, sparsifier=setting.method, sparsifier_options=setting.options
    )
    batch = BATCH
    if args.smoke:
        model, batch = replace(model, d_model=32, d_hidden=128, n_layers=2, max_seq_len=32), 2
    train_tokens, validation_tokens = texts(args)
    config = TrainConfig(
        model=model,
        steps=args.steps,
        batch_size=batch,
        lr=LR,
        lr_warmup_steps=min(WARMUP, args.steps),
        l1_coefficient=setting.l1,
        seed=seed,
        dtype="bfloat16" if torch.cuda.is_available() else "float32",
    )
    begin = time.perf_counter()
    result = train(config, train_tokens=train_tokens, validation_tokens=validation_tokens, progress=False)
    seconds = time.perf_counter() - begin
    save_checkpoint(result.model, model_path(args, setting, seed), metadata={"steps": config.steps})
    # Last: the file that says the run is finished.
    record = {
        "steps": config.steps,
        "tokens": config.steps * config.tokens_per_step,
        "training_seconds": round(seconds, 1),
        "loss_in_training": [round(row["cross_entropy"], 4) for row in result.history[:: max(1, config.steps // 50)]],
    }
    write_text_atomically(trained_path(args, setting, seed), json.dumps(record) + "\n")


def model_path(args: argparse.Namespace, setting: Setting, seed: int) -> Path:
    return Path(args.out, f"{setting.name}-seed{seed}.safetensors")


def trained_path(args: argparse.Namespace, setting: Setting, seed: int) -> Path:
    return Path(args.out, f"{setting.name}-seed{seed}.trained.json")


def row_path(args: argparse.Namespace, row: Setting, seed: int) -> Path:
    return Path(args.out, f"{row.name}-seed{seed}.row.json")


def train_all(args: argparse.Namespace, begin: float) -> int:
    """Train what is missing, ``args.jobs`` at once; the number of runs that failed."""
    missing = [run for run in wanted(args) if not trained_path(args, *run).exists()]
    for run in wanted(args):
        if run not in missing and (steps := json.loads(trained_path(args, *run).read_text())["steps"]) != args.steps:
            raise SystemExit(
                f"{trained_path(args, *run)} is of {steps} steps, --steps is {args.steps}: give another --out"
            )
    if args.smoke:
        for setting, seed in missing:
            train_one(setting, seed, args)
        return 0
    running: dict[str, subprocess.Popen[bytes]] = {}
    failed = 0
    while missing or running:
        if missing and args.minutes and time.monotonic() - begin > 60 * args.minutes:
            print(f"{len(missing)} runs are left for another start: --minutes {args.minutes:g} are over", flush=True)
            missing = []
        while missing and len(running) < args.jobs:
            setting, seed = missing.pop(0)
            name = f"{setting.name}-seed{seed}"
            command = [sys.executable, __file__, *sys.argv[1:], "--one", setting.name, "--seed", str(seed)]
            with Path(args.out, f"{name}.log").open("wb") as log:
                running[name] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        time.sleep(0.2)
        for name, process in list(running.items()):
            if process.poll() is not None:
                del running[name]
                failed += process.returncode != 0
                state = "done" if process.returncode == 0 else f"FAILED, see {name}.log"
                print(f"{time.monotonic() - begin:6.0f} s  {name}: {state}", flush=True)
    return failed


def measure_all(args: argparse.Namespace, begin: float) -> int:
    """Measure every trained model that has no row yet, one after another; the number of rows that failed."""
    failed = 0
    for setting, seed in wanted(args):
        if not trained_path(args, setting, seed).exists():
            continue
        missing = [row for row in measured(setting) if not row_path(args, row, seed).exists()]
        for row in missing:
            state = "measured"
            try:
                measure_one(setting, row, seed, args)
            except RuntimeError as error:  # What is finished is kept, and the next row may still be had.
                failed, state = failed + 1, f"FAILED: {error}"
            print(f"{time.monotonic() - begin:6.0f} s  {row.name}-seed{seed}: {state}", flush=True)
    return failed


def measure_one(setting: Setting, row: Setting, seed: int, args: argparse.Namespace) -> None:
    """Held-out loss, activity, and speed of one row."""
    import torch

    from twellviz._atomic import write_text_atomically
    from twellviz._machine import gpu, processor, versions
    from twellviz.models import load_checkpoint
    from twellviz.sparsifiers import calibrate, with_sparsifier
    from twellviz.sparsifiers.calibration import block_inputs
    from twellviz.sparsifiers.speed import decode_speed, prefill_speed
    from twellviz.training import evaluate

    cuda = torch.cuda.is_available()
    device, dtype = ("cuda", "bfloat16") if cuda else ("cpu", "float32")
    train_tokens, validation_tokens = texts(args)
    model = load_checkpoint(model_path(args, setting, seed), device=device)
    if row.sparsity is not None:
        model = with_sparsifier(model, row.method)
        calibrate(model, train_tokens, sparsity=row.sparsity, max_windows=32)
    found = evaluate(model, validation_tokens, batch_size=64, dtype=dtype)
    N, H = model.cfg.max_seq_len, model.cfg.d_hidden
    n_windows = min(PREFILL, len(validation_tokens)) // N
    tokens = torch.from_numpy(validation_tokens[: n_windows * N].astype("int64")).view(n_windows, N).to(device)
    low = model.to(getattr(torch, dtype))
    inputs = block_inputs(low, tokens)
    speeds = {"prefill": prefill_speed(low, inputs), "decode": decode_speed(low, inputs)}
    run = json.loads(trained_path(args, setting, seed).read_text(encoding="utf-8"))
    record = {
        "setting": row.name,
        "method": row.method,
        "seed": seed,
        "sparsity": row.sparsity,
        "l1": row.l1,
        "options": json.dumps(dict(model.cfg.sparsifier_options)),
        "activation": row.activation,
        **{name: run[name] for name in ("steps", "tokens", "training_seconds")},
        "parameters": model.num_parameters(),
        "H": H,
        "loss": round(found.loss, 4),
        "loss_without_ffn": None if found.loss_without_ffn is None else round(found.loss_without_ffn, 4),
        "l0": round(found.l0, 2),
        "l0_share": round(found.l0 / H, 5),
        "dead_share": round(sum(found.dead_L) / len(found.dead_L), 4),
        **{f"l0_{layer}": round(value, 2) for layer, value in enumerate(found.l0_L)},
        "held_out_tokens": found.n_tokens,
        "prefill_tokens": int(inputs[0].shape[0]),
    }
    for kind, speed in speeds.items():
        times = {"plain": speed.plain_ms, "dense": speed.dense_ms, "sparse": speed.sparse_ms}
        record |= {f"{kind}_{name}_ms": round(value, 5) for name, value in times.items()}
        record[f"{kind}_graphs"] = speed.graphs
    record |= {
        "dtype": dtype,
        "device": gpu() if cuda else processor(),
        **versions("torch", "numpy", "numba", "numba-cuda"),
        "date": datetime.now(UTC).date().isoformat(),
        "command": shlex.join(["python", "experiments/sparsifiers.py", *sys.argv[1:]]),
    }
    write_text_atomically(row_path(args, row, seed), json.dumps(record) + "\n")


def gather(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The finished rows, methods and seeds in order."""
    runs = [(row, seed) for setting, seed in wanted(args) for row in measured(setting)]
    paths = [row_path(args, row, seed) for row, seed in sorted(runs, key=lambda run: (run[0].name, run[1]))]
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]


def write_table(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """The rows as CSV, and as JSON beside it with what holds for all of them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    common = (
        "device",
        "python",
        "torch",
        "numpy",
        "numba",
        "numba-cuda",
        "date",
        "command",
        "steps",
        "tokens",
        "dtype",
    )
    head: dict[str, Any] = {}
    for name in common:
        values = sorted({row[name] for row in rows})
        head[name] = values[0] if len(values) == 1 else values
    what = "milliseconds of all feed-forward blocks together, medians; loss and l0 on held-out text"
    own = [{name: value for name, value in row.items() if name not in common} for row in rows]
    report = {**head, "what": what, "rows": own}
    path.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", metavar="FILE", help="token ids, .npy uint16 (default: the shipped text)")
    parser.add_argument("--validation", metavar="FILE", help="held-out token ids, .npy uint16")
    parser.add_argument("--out", required=True, metavar="FOLDER", help="models and one JSON file a run go there")
    parser.add_argument("--table", metavar="FILE", help="CSV of all finished rows (default: OUT/sparsifiers_mini.csv)")
    parser.add_argument("--methods", metavar="NAME[,NAME...]", help="these methods alone")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of each setting (%(default)s)")
    parser.add_argument("--steps", type=int, help=f"optimiser steps of each run ({STEPS})")
    parser.add_argument("--jobs", type=int, default=8, help="runs at once (%(default)s)")
    parser.add_argument("--minutes", type=float, help="start no new run after so many minutes")
    parser.add_argument("--smoke", action="store_true", help="two tiny steps each, to try the script on a CPU")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if bool(args.train) != bool(args.validation):
        parser.error("--train and --validation go together")
    args.steps = args.steps or (2 if args.smoke else STEPS)
    Path(args.out).mkdir(parents=True, exist_ok=True)
    if args.one:
        train_one(next(setting for setting in trained() if setting.name == args.one), args.seed, args)
        return 0
    begin = time.monotonic()
    failed = train_all(args, begin)
    failed += measure_all(args, begin)
    rows = gather(args)
    if rows:
        table = Path(args.table or Path(args.out, "sparsifiers_mini.csv"))
        write_table(table, rows)
        print(f"{len(rows)} rows in {table}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
