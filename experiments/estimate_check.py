"""Measure training steps at the paper's four sizes beside their estimate: peak memory and time.

    python experiments/estimate_check.py --out OUT/estimate_h200.json
    python experiments/estimate_check.py --checkpoint-activations --out OUT/estimate_h200_checkpointed.json
    torchrun --standalone --nproc-per-node 2 experiments/estimate_check.py --against OUT/estimate_h200.json \\
        --out OUT/estimate_h200_x2.json

The steps are those of ``twellviz.training.train``, on random token ids: forward, backward, clipping, update, and the
statistics of a log row, in eager mode. The first steps are not timed. Peak memory is what torch allocated at most
(``torch.cuda.max_memory_allocated``) up to the last step. Weights are fresh and nearly half of the neurons fire, so
what is measured is the dense step; the estimate of the sparse one stands beside it, unmeasured.

``--against`` takes the file of a run on one GPU and adds the share of ideal scaling: tokens a second, over those of one
GPU times the number of GPUs. Use the same number of sequences for each GPU then (``--batch-per-gpu``).

Each size is one row of ``sizes``: ``measured`` and ``estimated`` (dense), ``estimated_sparse``, and ``ratio``,
estimated over measured. ``--smoke`` tries it on a CPU with tiny models; there no memory is measured.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shlex
import statistics
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from twellviz._atomic import write_text_atomically
from twellviz._machine import gpu as gpu_name
from twellviz._machine import processor, versions
from twellviz.models import PRESETS, LMConfig
from twellviz.training import TrainConfig, train
from twellviz.training.distributed import ranks_of
from twellviz.training.estimate import Step, largest_batch, memory
from twellviz.training.estimate_time import seconds
from twellviz.training.gpus import Gpu, find_gpu, same_gpu

SIZES = ("0.5b", "1b", "1.5b", "2b")
UNTIMED = 2
DENSITY = 29.0
# The allocator needs room between its blocks: batches are chosen for this share of the memory.
FILL = 0.85


def size_of(name: str, smoke: bool) -> LMConfig:
    """The preset, or a tiny model of its depth's rank."""
    if not smoke:
        return PRESETS[name]
    layers = 1 + SIZES.index(name)
    return replace(PRESETS[name], vocab_size=512, d_model=32, d_hidden=88, n_layers=layers, n_heads=2, max_seq_len=64)


def measure(step: Step, timed: int) -> dict[str, Any]:
    """Run the step; on rank 0 its median time, tokens a second, peak memory and mean active neurons."""
    cuda = torch.cuda.is_available()
    gc.collect()  # the size before: its model and hooks refer to each other
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    peaks: list[int] = []
    ids = np.random.default_rng(0).integers(0, step.model.vocab_size, 64 * step.positions + 1).astype(np.uint16)
    config = TrainConfig(
        model=step.model,
        steps=UNTIMED + timed,
        batch_size=step.batch_size,
        seq_len=step.positions,
        lr=1e-4,
        lr_warmup_steps=0,
        l1_coefficient=1e-5,
        log_interval=1,
        dtype=step.dtype,
        checkpoint_activations=step.checkpoint_activations,
    )
    result = train(
        config,
        train_tokens=ids,
        validation_tokens=ids[: step.positions + 1],
        progress=False,
        # Before the measurement at the end and the gathering of the model, which are not part of a step.
        on_step=lambda row: peaks.append(torch.cuda.max_memory_allocated() if cuda else 0),
    )
    rows = result.history[UNTIMED:]
    speed = statistics.median(row["tokens_per_second"] for row in rows)
    return {
        "seconds": config.tokens_per_step / speed,
        "tokens_per_second": speed,
        "peak_bytes": peaks[-1] if cuda and peaks else None,
        "mean_active": statistics.mean(row["l0"] for row in rows),
    }


def estimated(step: Step, gpu: Gpu) -> dict[str, Any]:
    """What the estimate says of the step."""
    held, taken = memory(step), seconds(step, gpu)
    return {
        "seconds": taken.total,
        "tokens_per_second": taken.tokens_per_second,
        "peak_bytes": held.peak,
        "fullest": held.fullest,
        "moments": held.moments,
        "times": taken.parts,
    }


def ideal_share(row: dict[str, Any], one: dict[str, Any] | None, gpus: int) -> float | None:
    """Tokens a second over those of one GPU times their number, where the other file has this size."""
    found = [other for other in (one or {"sizes": []})["sizes"] if other["size"] == row["size"]]
    if not found:
        return None
    return float(row["measured"]["tokens_per_second"] / (gpus * found[0]["measured"]["tokens_per_second"]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, metavar="FILE", help="JSON")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=SIZES)
    parser.add_argument("--batch-per-gpu", type=int, metavar="N", help="sequences (default: what fits, at most 16)")
    parser.add_argument("--steps", type=int, default=6, help="timed steps (%(default)s)")
    parser.add_argument("--checkpoint-activations", action="store_true")
    parser.add_argument("--gpu", metavar="NAME", help="for the estimate (default: the one that is there)")
    parser.add_argument("--against", metavar="FILE", help="of a run on one GPU")
    parser.add_argument("--smoke", action="store_true", help="tiny models, to try the script on a CPU")
    args = parser.parse_args()

    cuda, ranks = torch.cuda.is_available(), ranks_of(os.environ)
    if not (cuda or args.smoke):
        raise SystemExit("no CUDA GPU was found: run this on one, or give --smoke")
    gpu = find_gpu(args.gpu) if args.gpu else same_gpu(torch.cuda.get_device_name()) if cuda else find_gpu("h100")
    if gpu is None:
        raise SystemExit(f"{torch.cuda.get_device_name()} is not in the table of GPUs: name a like one with --gpu")
    one = json.loads(Path(args.against).read_text(encoding="utf-8")) if args.against else None
    limit = FILL * torch.cuda.get_device_properties(0).total_memory if cuda else 1e12
    sizes: list[dict[str, Any]] = []
    for name in args.sizes:
        step = Step(
            model=size_of(name, args.smoke),
            batch_size=ranks.world,
            gpus=ranks.world,
            dtype="bfloat16" if cuda else "float32",
            checkpoint_activations=args.checkpoint_activations,
            fused_norm=cuda,
        )
        batch = args.batch_per_gpu or min(2 if args.smoke else 16, largest_batch(step, limit) // ranks.world)
        if not batch:
            print(f"{name}: not even one sequence fits into {limit / 1e9:.0f} GB; left out", flush=True)
            continue
        step = replace(step, batch_size=batch * ranks.world)
        row: dict[str, Any] = {
            "size": name,
            "gpus": ranks.world,
            "batch_size": step.batch_size,
            "seq_len": step.positions,
            "checkpoint_activations": step.checkpoint_activations,
            "measured": measure(step, args.steps),
            "estimated": estimated(step, gpu),
            "estimated_sparse": estimated(replace(step, mean_active=min(DENSITY, step.model.d_hidden)), gpu),
        }
        if not ranks.first:
            continue
        found, said = row["measured"], row["estimated"]
        row["ratio"] = {
            "peak_bytes": None if found["peak_bytes"] is None else said["peak_bytes"] / found["peak_bytes"],
            "seconds": said["seconds"] / found["seconds"],
        }
        row["share_of_ideal_scaling"] = ideal_share(row, one, ranks.world)
        sizes.append(row)
        peak = "n/a" if found["peak_bytes"] is None else f"{found['peak_bytes'] / 1e9:.2f} GB"
        print(
            f"{name:5s} batch {step.batch_size:3d}: {found['seconds'] * 1e3:.1f} ms (estimated "
            f"{said['seconds'] * 1e3:.1f}), peak {peak} (estimated {said['peak_bytes'] / 1e9:.2f} GB)",
            flush=True,
        )
        # After each size: what is measured is not lost when the next one fails.
        content = {
            "command": shlex.join(["python", *sys.argv]),
            "device": gpu_name() if cuda else processor(),
            "estimated_for": gpu.name,
            "versions": versions("torch", "numpy"),
            "date": datetime.now(UTC).date().isoformat(),
            "sizes": sizes,
        }
        write_text_atomically(Path(args.out), json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
