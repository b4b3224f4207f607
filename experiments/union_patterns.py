"""Time union tiles on recorded patterns, on a Hopper GPU: which neurons fire is real, values and weights are random.

    python experiments/union_patterns.py --patterns FOLDER --layers 0,1,2,3,4,5,6,7 --json OUT.json

``FOLDER`` holds ``layerN.xz`` for :func:`twellviz.data.load_pattern`; ``data/patterns`` has layers 0 and 7. Up and
down, lists and gate blocks included, are timed on the pattern; the gate product with its pack on synthetic input of
the same density in the same run, and added. Dense is ``torch.compile`` of the whole block. All in turns, medians,
after a check of the result against float32.

Letters: M tokens, D model width, H hidden width, L columns, N tiles of a row, S words of a tile.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from twell import simt
from twell.simt.spill import tiles_of
from twell.tensorcore.hopper import block as hopper

from twellviz._atomic import write_text_atomically
from twellviz._machine import gpu, versions
from twellviz.bench.synthetic import make_layer
from twellviz.bench.timer import Timer
from twellviz.data import load_pattern

DTYPE = torch.bfloat16


def dense_block(x_MD: Tensor, gate_HD: Tensor, up_HD: Tensor, down_HD: Tensor) -> Tensor:
    """The same layer with nothing skipped."""
    return (F.relu(F.linear(x_MD, gate_HD)) * F.linear(x_MD, up_HD)) @ down_HD


def packed_of(gate_MH: Tensor) -> hopper.Packed:
    """A dense matrix of gate values as the kernels hand it on."""
    packed = simt.pack(gate_MH)
    words_MNS = tiles_of(packed).clone()
    spilled_ML = F.pad(gate_MH, (0, -gate_MH.shape[1] % 256)).contiguous()
    return hopper.Packed(words_MNS, packed.spill_start.diff().int(), spilled_ML)


def measure(active_MH: Tensor, width: int, repeats: int, seed: int) -> dict[str, Any]:
    """Times in milliseconds and the error of one layer."""
    torch.manual_seed(seed)
    M, H = active_MH.shape
    gate_MH = ((torch.rand(M, H, device="cuda") + 0.1) * active_MH).to(DTYPE)
    density = float(active_MH.sum(1).double().mean())
    x_MD, gate_HD, up_HD, down_HD = make_layer(
        M, width, H, min(density, 0.3 * H), dtype=DTYPE, seed=seed, device="cuda"
    )
    words = packed_of(gate_MH)
    wanted_MD = (gate_MH.float() * (x_MD.float() @ up_HD.float().T)) @ down_HD.float()
    compiled = torch.compile(dense_block, fullgraph=True)
    runs = {
        "compiled": lambda: compiled(x_MD, gate_HD, up_HD, down_HD),
        "gate product": lambda: F.linear(x_MD, gate_HD),
        "gate and pack": lambda: hopper.pack(x_MD, gate_HD),
    }
    errors, unions = {}, {}
    for size in hopper.BLOCKS:
        runs[f"unions of {size}"] = lambda size=size: hopper.through_unions(x_MD, words, up_HD, down_HD, block=size)
        y_MD = runs[f"unions of {size}"]().float()
        errors[size] = float((y_MD - wanted_MD).norm() / wanted_MD.norm())
        rows_UBH = F.pad(active_MH, (0, 0, 0, -M % size)).view(-1, size, H)
        unions[size] = float(rows_UBH.any(1).sum(1).double().mean())
    timer = Timer("cuda")
    times: dict[str, list[float]] = {name: [] for name in runs}
    with torch.inference_mode():
        for run in runs.values():
            run()
        for _ in range(repeats):
            for name, run in runs.items():
                times[name].append(timer.milliseconds(run))
    medians = {name: statistics.median(values) for name, values in times.items()}
    best = min(medians[f"unions of {size}"] for size in hopper.BLOCKS)
    return {
        "density": density,
        "union_mean": unions,
        "error": errors,
        "milliseconds": medians,
        "speedup": medians["compiled"] / (medians["gate and pack"] + best),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--patterns", metavar="FOLDER", help="with layerN.xz (default: data/patterns)")
    parser.add_argument("--layers", default="0,7", help="numbers with commas (%(default)s)")
    parser.add_argument("--width", type=int, default=2048, help="D (%(default)s)")
    parser.add_argument("--repeats", type=int, default=25, help="timed rounds (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the figures here")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no NVIDIA GPU: these kernels need one of compute capability 9.0")
    if reason := hopper.why_not_hopper(torch.device("cuda", 0), DTYPE, 256):
        raise SystemExit(reason)
    rows: dict[str, Any] = {}
    for layer in map(int, args.layers.split(",")):
        pattern = load_pattern(layer, args.patterns) if args.patterns else load_pattern(layer)
        rows[str(layer)] = measure(torch.from_numpy(pattern).cuda(), args.width, args.repeats, seed=layer)
        print(layer, json.dumps(rows[str(layer)]), flush=True)
    content = {
        "command": shlex.join(["python", *sys.argv]),
        "device": gpu(),
        "versions": versions("torch", "numpy", "numba", "numba-cuda"),
        "date": datetime.now(UTC).date().isoformat(),
        "layers": rows,
    }
    if args.json:
        write_text_atomically(args.json, json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
