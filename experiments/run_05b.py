"""Train the paper's ``0.5b`` shape for some minutes on one GPU, and record where its sparsity sits.

    python -m twellviz tokenize CORPUS/train-*.parquet --tokenizer CORPUS/tokenizer-32k \\
        --max-tokens 20000000 --out runs/big/train.tokens
    python -m twellviz tokenize CORPUS/validation.parquet --tokenizer CORPUS/tokenizer-32k \\
        --out runs/big/validation.tokens
    python experiments/run_05b.py --text runs/big --out OUT --minutes 8 --deadline-minutes 9.5 --compile

The first 20 steps are timed and thrown away; they fix how many steps fit into ``--minutes``. That number is recorded,
so that ``--steps`` repeats the run. Where the deadline comes nearer than ``--reserve`` seconds the run stops after its
step, and all files are written from what there is.

=====================  ============================================================================================
file                   what it holds
=====================  ============================================================================================
``run.json``           command, settings, machine, speed, held-out loss, L0 and dead share of each layer
``log.csv``            a row a step, as ``python -m twellviz train`` writes it
``counts.safetensors`` of held-out text: ``counts_LM`` uint16, active neurons of each token (position in its sequence:
                       ``m mod seq_len``); ``word_sum_LV`` float32 and ``word_n_V`` int64, the same added up for each
                       entry of the vocabulary; no token ids, from which the text could be read
``patterns.tar``       ``layerN.xz`` for ``twellviz.data.load_pattern(N, folder)``: which neurons fired for the first
                       tokens of it, at most 3 MB together
=====================  ============================================================================================

Letters: M tokens, H hidden width, L layers, V vocabulary.
"""

from __future__ import annotations

import argparse
import io
import json
import lzma
import os
import shlex
import signal
import statistics
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from twellviz._atomic import write_atomically, write_text_atomically
from twellviz._machine import gpu, processor, versions
from twellviz.data import TokenMap
from twellviz.models import LM, PRESETS
from twellviz.training import TrainConfig, TrainResult, evaluate, train
from twellviz.training.history import CsvLog, Row, columns
from twellviz.training.measure import autocast

TIMED_STEPS, UNTIMED_STEPS = 20, 5
LARGEST_PATTERNS = 3_000_000
BEGIN = time.monotonic()


def settings(args: argparse.Namespace, vocab_size: int) -> TrainConfig:
    """The run with as many steps as are timed; :func:`main` sets their number."""
    model = replace(PRESETS["0.5b"], vocab_size=vocab_size)
    if args.smoke:
        model = replace(model, d_model=32, n_layers=2, n_heads=2, max_seq_len=64)
    cuda = torch.cuda.is_available()
    return TrainConfig(
        model=model,
        steps=UNTIMED_STEPS + TIMED_STEPS,
        batch_size=2 if args.smoke else args.batch_size,
        accumulation=1 if args.smoke else args.accumulation,
        lr=args.lr,
        lr_warmup_steps=0,
        l1_coefficient=args.l1,
        log_interval=5,
        dtype="bfloat16" if cuda else "float32",
        compile=args.compile,
        checkpoint_activations=args.checkpoint_activations,
    )


def time_steps(config: TrainConfig, train_map: TokenMap, validation: Any) -> tuple[TrainConfig, float]:
    """Seconds of a step, and the config that runs: without ``compile`` where that fails."""
    try:
        rows = train(config, train_tokens=train_map, validation_tokens=validation, progress=False).history
    except Exception as error:
        if not config.compile:
            raise
        print(f"compile=True failed ({type(error).__name__}: {error}); going on without", flush=True)
        return time_steps(replace(config, compile=False), train_map, validation)
    speeds = [row["tokens_per_second"] for row in rows[UNTIMED_STEPS:]]
    return config, config.tokens_per_step / statistics.median(speeds)


def train_until(config: TrainConfig, train_map: TokenMap, validation: Any, out: Path, stop_at: float) -> TrainResult:
    """The run, its log written as it goes, stopped after the first step whose figures come later than ``stop_at``."""
    log = CsvLog(out / "log.csv", columns(config.lm.n_layers), [])
    asked = False

    def on_step(row: Row) -> None:
        nonlocal asked
        log.write(row)
        if not asked and time.monotonic() > stop_at:
            asked = True
            os.kill(os.getpid(), signal.SIGTERM)  # The trainer takes the first as a request to stop.

    try:
        return train(config, train_tokens=train_map, validation_tokens=validation, progress=False, on_step=on_step)
    finally:
        log.close()


@torch.inference_mode()
def activity(model: LM, tokens_BN: torch.Tensor, dtype: str) -> Iterator[tuple[int, torch.Tensor]]:
    """Number of a layer and which of its neurons fire, bool [M, H], for one batch."""
    found: list[torch.Tensor] = []

    def note(block: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        found.append(block.is_active(block.hidden(inputs[0])[0]))

    handles = [layer.get_submodule("ffn").register_forward_pre_hook(note) for layer in model.layers]
    try:
        with autocast(tokens_BN.device, dtype):
            # With targets the logits are computed chunk by chunk.
            model(tokens_BN, tokens_BN, with_logits=False)
    finally:
        for handle in handles:
            handle.remove()
    yield from enumerate(found)


def record(result: TrainResult, validation: Any, out: Path, windows: int, pattern_tokens: int) -> None:
    """Write ``counts.safetensors`` and ``patterns.tar``."""
    from safetensors.numpy import save_file

    model, N = result.model, result.config.tokens_per_sequence
    device = next(model.parameters()).device
    L, V = model.cfg.n_layers, model.cfg.vocab_size
    windows = min(windows, len(validation) // N)
    ids = np.asarray(validation[: windows * N]).astype(np.int64).reshape(windows, N)
    counts_LM = np.zeros((L, windows * N), np.uint16)
    rows: list[list[np.ndarray[Any, Any]]] = [[] for _ in range(L)]
    with torch.compiler.set_stance("force_eager"):
        for first in range(0, windows, 4):
            part = torch.from_numpy(ids[first : first + 4]).to(device)
            for layer, active_MH in activity(model, part, result.config.dtype):
                place = slice(first * N, first * N + active_MH.shape[0])
                counts_LM[layer, place] = active_MH.sum(1).cpu().numpy()
                if (left := pattern_tokens - first * N) > 0:
                    rows[layer].append(np.packbits(active_MH[:left].cpu().numpy(), axis=1))
    flat = ids.reshape(-1)
    word_sum_LV = np.stack([np.bincount(flat, counts_LM[layer], V) for layer in range(L)]).astype(np.float32)
    arrays = {"counts_LM": counts_LM, "word_sum_LV": word_sum_LV, "word_n_V": np.bincount(flat, minlength=V)}
    header = {"seq_len": str(N), "H": str(model.cfg.d_hidden), "format": "twellviz.counts", "version": "1"}
    write_atomically(out / "counts.safetensors", lambda path: save_file(arrays, path, metadata=header))
    patterns = [np.concatenate(layer) for layer in rows]
    n_tokens = patterns[0].shape[0]
    while n_tokens:
        packed = [lzma.compress(layer[:n_tokens].tobytes(), preset=9) for layer in patterns]
        if sum(map(len, packed)) <= LARGEST_PATTERNS:
            break
        n_tokens //= 2
    write_atomically(out / "patterns.tar", lambda path: _tar(path, packed))
    print(f"patterns of {n_tokens} tokens, counts of {windows * N}", flush=True)


def _tar(path: Path, packed: list[bytes]) -> None:
    with tarfile.open(path, "w") as archive:
        for layer, data in enumerate(packed):
            entry = tarfile.TarInfo(f"layer{layer}.xz")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


def write_record(result: TrainResult, config: TrainConfig, validation: Any, out: Path, step_seconds: float) -> None:
    """Measure on held-out text and write ``run.json``."""
    measured = result.evaluation
    if measured is None:
        measured = evaluate(result.model, validation, dtype=config.dtype)
    cuda = torch.cuda.is_available()
    content = {
        "command": shlex.join(["python", *sys.argv]),
        "settings": config.to_dict(),
        "stopped": result.stopped,
        "steps_done": len(result.history),
        "tokens_seen": len(result.history) * config.tokens_per_step,
        "parameters": result.model.num_parameters(),
        "training_seconds": round(result.seconds, 1),
        "timed_step_seconds": round(step_seconds, 4),
        "tokens_per_second": round(len(result.history) * config.tokens_per_step / result.seconds),
        "mfu": result.mfu,
        "peak_memory_bytes": torch.cuda.max_memory_allocated() if cuda else None,
        "held_out": {
            "tokens": measured.n_tokens,
            "loss": measured.loss,
            "loss_without_ffn": measured.loss_without_ffn,
            "l0_per_layer": measured.l0_L,
            "dead_share_per_layer": measured.dead_L,
        },
        "device": gpu() if cuda else processor(),
        "versions": versions("torch", "numpy"),
        "date": datetime.now(UTC).date().isoformat(),
    }
    write_text_atomically(out / "run.json", json.dumps(content, indent=1) + "\n")
    print(json.dumps(content["held_out"]), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True, metavar="FOLDER", help="with train.tokens and validation.tokens")
    parser.add_argument("--out", required=True, metavar="FOLDER")
    parser.add_argument("--minutes", type=float, default=8.0, help="of training steps (%(default)s)")
    parser.add_argument("--steps", type=int, help="this many steps, instead of --minutes")
    parser.add_argument(
        "--deadline-minutes", type=float, default=9.5, help="from the start of the script (%(default)s)"
    )
    parser.add_argument(
        "--reserve", type=float, default=45.0, help="seconds kept for measuring and writing (%(default)s)"
    )
    parser.add_argument("--batch-size", type=int, default=32, help="sequences of 2048 in a pass (%(default)s)")
    parser.add_argument("--accumulation", type=int, default=1, help="passes of a step (%(default)s)")
    parser.add_argument("--lr", type=float, default=1e-3, help="(%(default)s)")
    parser.add_argument("--l1", type=float, default=1e-4, help="(%(default)s)")
    parser.add_argument("--record-windows", type=int, default=64, help="held-out sequences of the counts (%(default)s)")
    parser.add_argument("--pattern-tokens", type=int, default=2048, help="of the patterns, at most (%(default)s)")
    parser.add_argument("--compile", action="store_true", help="torch.compile the layers, or go on without")
    parser.add_argument("--checkpoint-activations", action="store_true", help="less memory, a third more work")
    parser.add_argument("--smoke", action="store_true", help="a tiny model, to try the script on a CPU")
    args = parser.parse_args()

    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    train_map, validation_map = (
        TokenMap.open(Path(args.text) / f"{split}.tokens") for split in ("train", "validation")
    )
    if train_map.tokenizer_sha256 != validation_map.tokenizer_sha256:
        raise SystemExit("train.tokens and validation.tokens are of two tokenizers: make both with the same")
    validation = validation_map.tokens[: 1000 if args.smoke else None]
    config = settings(args, train_map.vocab_size)
    # Timed against a little held-out text, as that is measured at the end.
    config, step_seconds = time_steps(config, train_map, validation[: 4 * config.tokens_per_sequence])
    stop_at = BEGIN + args.deadline_minutes * 60 - args.reserve
    left = stop_at - time.monotonic()
    steps = args.steps or max(1, int(min(args.minutes * 60, left) / step_seconds))
    config = replace(config, steps=steps, lr_warmup_steps=min(100, steps // 5), log_interval=min(10, steps))
    print(f"{step_seconds:.3f} s a step: {steps} steps of {config.tokens_per_step:,} tokens", flush=True)
    result = train_until(config, train_map, validation, out, stop_at)
    write_record(result, config, validation, out, step_seconds)
    record(result, validation, out, args.record_windows, args.pattern_tokens)
    print(f"all written after {time.monotonic() - BEGIN:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
