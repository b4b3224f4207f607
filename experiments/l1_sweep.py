"""Train ``mini`` many times on one GPU: what the L1 coefficient, its warm-up, re-initialisation, SiLU and the gate do.

    python experiments/l1_sweep.py --train pd_train.npy --validation pd_valid.npy --out runs/sweep

A small model leaves most of a large GPU idle, so several runs share it, each in a process of its own. A finished run
is a JSON file in the folder; started again, the sweep does what is missing. ``--table FILE`` gathers them in a CSV
file with device, versions, date and command, ``--curves FILE`` their losses and L0 over the steps.

Fixed before any run: the recommended coefficient is the largest one of the sweep whose mean L0 is at least 0.5 % of H,
whatever the loss does there.

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
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

COEFFICIENTS = (0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
SEVERAL_SEEDS = (3e-4, 1e-3)
STEPS, BATCH, LR, WARMUP = 400, 128, 2e-3, 40


@dataclass(frozen=True)
class Setting:
    """One run of the sweep; ``group`` says which comparison it belongs to."""

    name: str
    group: str
    l1: float
    seed: int = 0
    l1_start: int = 0
    l1_full: int = 0
    reinit: float = 0.0
    activation: str = "relu"
    gated: bool = True
    steps: int = STEPS
    batch: int = BATCH
    keep_model: bool = False


def settings() -> list[Setting]:
    """All runs, the longest first."""
    runs = [Setting(f"mini-l1_{l1:g}", "shipped", l1, steps=1400, keep_model=True) for l1 in (1e-3, 2e-3)]
    runs += [Setting(f"l1_{l1:g}", "coefficient", l1) for l1 in COEFFICIENTS]
    runs += [Setting(f"l1_{l1:g}-seed{seed}", "coefficient", l1, seed=seed) for l1 in SEVERAL_SEEDS for seed in (1, 2)]
    base = Setting("", "recipe", 3e-3)
    runs += [
        replace(base, name="warmup", l1_start=60, l1_full=200),
        replace(base, name="reinit", reinit=0.1),
        replace(base, name="warmup-reinit", l1_start=60, l1_full=200, reinit=0.1),
        Setting("silu", "activation", 0.0, activation="silu"),
        Setting("plain-l1_0", "gate", 0.0, gated=False),
        Setting("plain-l1_0.001", "gate", 1e-3, gated=False),
    ]
    return runs


def run_one(setting: Setting, args: argparse.Namespace) -> None:
    """Train, measure on all held-out text, and write the result."""
    import numpy as np
    import torch

    from twellviz._atomic import write_text_atomically
    from twellviz._machine import gpu, processor, versions
    from twellviz.models import PRESETS, save_checkpoint
    from twellviz.training import TrainConfig, train

    train_tokens, validation_tokens = (np.load(path, mmap_mode="r") for path in (args.train, args.validation))
    model = replace(PRESETS["mini"], activation=setting.activation, gated=setting.gated)
    if args.smoke:
        model = replace(model, d_model=64, d_hidden=256, max_seq_len=64)
        setting = replace(setting, steps=3, batch=2, l1_start=min(1, setting.l1_start), l1_full=min(2, setting.l1_full))
    cuda = torch.cuda.is_available()
    config = TrainConfig(
        model=model,
        steps=setting.steps,
        batch_size=setting.batch,
        lr=LR,
        lr_warmup_steps=min(WARMUP, setting.steps),
        l1_coefficient=setting.l1,
        l1_start_step=setting.l1_start,
        l1_full_step=setting.l1_full,
        dead_reinit=setting.reinit,
        seed=setting.seed,
        dtype="bfloat16" if cuda else "float32",
        eval_interval=0,
    )
    begin = time.perf_counter()
    result = train(config, train_tokens=train_tokens, validation_tokens=validation_tokens, progress=False)
    measured = result.evaluation
    assert measured is not None
    if setting.keep_model:
        save_checkpoint(result.model, Path(args.out, f"{setting.name}.safetensors"), metadata={}, dtype=torch.bfloat16)
    record = {
        "setting": asdict(setting),
        "parameters": result.model.num_parameters(),
        "tokens": config.steps * config.tokens_per_step,
        "H": model.d_hidden,
        "loss": measured.loss,
        "loss_without_ffn": measured.loss_without_ffn,
        "l0": measured.l0,
        "l0_per_layer": list(measured.l0_L),
        "dead_per_layer": list(measured.dead_L),
        "held_out_tokens": measured.n_tokens,
        "seconds": round(time.perf_counter() - begin, 1),
        "device": gpu() if cuda else processor(),
        "versions": versions("torch", "numpy"),
        "date": datetime.now(UTC).date().isoformat(),
        "command": shlex.join(["python", "experiments/l1_sweep.py", *sys.argv[1:]]),
        "curve": [
            {key: row[key] for key in ("step", "cross_entropy", "l0", "dead")}
            for row in result.history[:: max(1, setting.steps // 100)]
        ],
    }
    write_text_atomically(Path(args.out, f"{setting.name}.json"), json.dumps(record) + "\n")


def run_all(args: argparse.Namespace) -> int:
    """Start what is missing, ``args.jobs`` at once; the number of runs that failed."""
    Path(args.out).mkdir(parents=True, exist_ok=True)
    missing = [setting for setting in settings() if not Path(args.out, f"{setting.name}.json").exists()]
    if args.only:
        missing = [setting for setting in missing if setting.name in args.only.split(",")]
    running: dict[str, subprocess.Popen[bytes]] = {}
    failed, begin = 0, time.monotonic()
    while missing or running:
        while missing and len(running) < args.jobs:
            setting = missing.pop(0)
            command = [sys.executable, __file__, *sys.argv[1:], "--one", setting.name]
            with Path(args.out, f"{setting.name}.log").open("wb") as log:
                running[setting.name] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        time.sleep(0.5)
        for name, process in list(running.items()):
            if process.poll() is not None:
                del running[name]
                failed += process.returncode != 0
                state = "done" if process.returncode == 0 else f"FAILED, see {name}.log"
                print(f"{time.monotonic() - begin:6.0f} s  {name}: {state}", flush=True)
    return failed


def gather(folder: Path) -> list[dict[str, Any]]:
    """One flat row a finished run, in the order of :func:`settings`."""
    rows = []
    for setting in settings():
        path = folder / f"{setting.name}.json"
        if not path.exists():
            continue
        record = json.loads(path.read_text(encoding="utf-8"))
        L = len(record["l0_per_layer"])
        rows.append(
            {
                **{key: value for key, value in record["setting"].items() if key != "keep_model"},
                "tokens": record["tokens"],
                "H": record["H"],
                "loss": round(record["loss"], 4),
                "loss_without_ffn": round(record["loss_without_ffn"], 4),
                "l0": round(record["l0"], 2),
                "l0_share": round(record["l0"] / record["H"], 5),
                "dead_share": round(sum(record["dead_per_layer"]) / L, 4),
                **{f"l0_{i}": round(record["l0_per_layer"][i], 2) for i in range(L)},
                **{f"dead_{i}": round(record["dead_per_layer"][i], 4) for i in range(L)},
                "seconds": record["seconds"],
                "device": record["device"],
                **record["versions"],
                "date": record["date"],
                "command": record["command"],
            }
        )
    return rows


def gather_curves(folder: Path) -> list[dict[str, Any]]:
    """About a hundred steps of each finished run: loss and L0."""
    rows = []
    for setting in settings():
        path = folder / f"{setting.name}.json"
        if path.exists():
            curve = json.loads(path.read_text(encoding="utf-8"))["curve"]
            rows += [
                {"name": setting.name, **{key: round(value, 4) for key, value in point.items()}} for point in curve
            ]
    return rows


def write_csv(path: str, rows: Sequence[dict[str, Any]]) -> None:
    """Rows of equal columns."""
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True, metavar="FILE", help="token ids, .npy uint16")
    parser.add_argument("--validation", required=True, metavar="FILE", help="held-out token ids, .npy uint16")
    parser.add_argument("--out", required=True, metavar="FOLDER", help="one JSON file a run goes there")
    parser.add_argument("--jobs", type=int, default=8, help="runs at once (%(default)s)")
    parser.add_argument("--only", metavar="NAME[,NAME...]", help="these runs alone")
    parser.add_argument("--table", metavar="FILE", help="gather the finished runs in this CSV file, and train nothing")
    parser.add_argument("--curves", metavar="FILE", help="the same with the curves of the finished runs")
    parser.add_argument("--smoke", action="store_true", help="three tiny steps each, to try the script on a CPU")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.curves:
        write_csv(args.curves, gather_curves(Path(args.out)))
    if args.table:
        rows = gather(Path(args.out))
        write_csv(args.table, rows)
        import pandas as pd

        from twellviz.training.sweep import recommended_coefficient

        found = recommended_coefficient(pd.DataFrame(rows))
        print(f"{len(rows)} runs in {args.table}; recommended coefficient {found}")
    if args.table or args.curves:
        return 0
    if args.one:
        run_one(next(setting for setting in settings() if setting.name == args.one), args)
        return 0
    return int(run_all(args) > 0)


if __name__ == "__main__":
    sys.exit(main())
