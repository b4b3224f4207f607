"""``python -m twellviz estimate``: memory and time of a training step before anything runs."""

from __future__ import annotations

import argparse
from dataclasses import replace

from twellviz.errors import ConfigError
from twellviz.models.config import PRESETS
from twellviz.training.estimate import BYTES, PARTS, Memory, Step, largest_batch, memory
from twellviz.training.estimate_time import PRODUCTS, TIMES, Seconds, seconds
from twellviz.training.gpus import GPUS, Gpu, find_gpu

DENSITY = 29.0
CONTEXT = 0.5e9
"""What CUDA takes before the first tensor, in bytes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to ``parser``."""
    parser.add_argument("--preset", choices=PRESETS, default="2b", help="sizes (%(default)s)")
    parser.add_argument("--gpu", default="h100", metavar="NAME", help=f"one of {', '.join(GPUS)} (%(default)s)")
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="that share model and batch (%(default)s)")
    parser.add_argument(
        "--batch-size", type=int, default=8, metavar="N", help="sequences of a pass, of all GPUs (%(default)s)"
    )
    parser.add_argument("--accumulation", type=int, default=1, metavar="N", help="passes of a step (%(default)s)")
    parser.add_argument(
        "--sequence", type=int, metavar="N", help="tokens of a sequence (default: the preset's longest)"
    )
    parser.add_argument("--dtype", choices=sorted(BYTES), default="bfloat16", help="of the products (%(default)s)")
    parser.add_argument("--checkpoint-activations", action="store_true", help="run each layer again in the backward")
    parser.add_argument(
        "--density",
        type=float,
        default=DENSITY,
        metavar="E",
        help="active neurons of a token in the sparse step (%(default)g, the paper's 1.5B model)",
    )
    parser.add_argument("--plain", action="store_true", help="feed-forward blocks without a gate")
    parser.add_argument(
        "--products",
        type=float,
        default=PRODUCTS,
        metavar="X",
        help="share of the peak that products reach (%(default)g)",
    )


def run_cli(args: argparse.Namespace) -> int:
    """Print the tables; the exit status is 0 whether or not the step fits."""
    gpu = find_gpu(args.gpu)
    if not 0 < args.products <= 1:
        raise ConfigError(f"products={args.products}: a share of the peak, above 0 and up to 1, is needed")
    dense = Step(
        model=replace(PRESETS[args.preset], gated=not args.plain),
        batch_size=args.batch_size,
        accumulation=args.accumulation,
        seq_len=args.sequence,
        gpus=args.gpus,
        dtype=args.dtype,
        checkpoint_activations=args.checkpoint_activations,
    )
    steps = {"dense": dense, "sparse": replace(dense, mean_active=args.density)}
    print(report(args.preset, steps, gpu, products=args.products))
    return 0


def report(preset: str, steps: dict[str, Step], gpu: Gpu, *, products: float = PRODUCTS) -> str:
    """Both tables as text, a column for each of ``steps``.

    Parameters
    ----------
    preset : str
        For the heading.
    steps : dict of Step
    gpu : Gpu
    products : float
        Share of the peak that matrix products reach.

    Returns
    -------
    str
    """
    first = next(iter(steps.values()))
    held = {name: memory(step) for name, step in steps.items()}
    taken = {name: seconds(step, gpu, products=products) for name, step in steps.items()}
    active = ", ".join(f"{step.mean_active:g} active" for step in steps.values() if step.mean_active is not None)
    heading = (
        f"{preset} on {first.gpus} x {gpu.name}: {first.batch_size} sequences of {first.positions:,} tokens a pass, "
        f"{first.accumulation} a step, {first.dtype}, "
        f"{'checkpointed' if first.checkpoint_activations else 'all'} activations" + (f"; {active}" if active else "")
    )
    lines = [heading, "", *_memory_table(steps, held, gpu), "", *_time_table(taken)]
    if active:
        lines += ["", "Sparse: what twell's training step keeps, at the rate of the published kernels on an H200."]
    if first.gpus > 1:
        lines += ["", "Exchange: what the forward and backward do not hide."]
    return "\n".join(lines)


def _memory_table(steps: dict[str, Step], held: dict[str, Memory], gpu: Gpu) -> list[str]:
    def row(name: str, values: list[str]) -> str:
        return f"{name:24s}" + "".join(f"{value:>16s}" for value in values)

    lines = [row("memory of a GPU, GB", list(steps))]
    full = {name: found.moments[found.fullest] for name, found in held.items()}
    lines += [row(part, [f"{parts[part] / 1e9:.2f}" for parts in full.values()]) for part in PARTS]
    lines.append(row("sum at the fullest", [f"{found.peak / 1e9:.2f}" for found in held.values()]))
    lines.append(row("which is the moment of", [found.fullest for found in held.values()]))
    for moment in next(iter(held.values())).moments:
        totals = [sum(found.moments[moment].values()) for found in held.values()]
        lines.append(row(f"  sum at {moment}", [f"{total / 1e9:.2f}" for total in totals]))
    limit = gpu.memory - CONTEXT
    lines.append(row(f"fits {gpu.memory / 1e9:.0f} GB", ["yes" if f.peak <= limit else "no" for f in held.values()]))
    lines.append(row("largest batch that fits", [str(largest_batch(step, limit)) for step in steps.values()]))
    return lines


def _time_table(taken: dict[str, Seconds]) -> list[str]:
    def row(name: str, values: list[str]) -> str:
        return f"{name:24s}" + "".join(f"{value:>16s}" for value in values)

    lines = [row("time of a step, ms", list(taken))]
    lines += [row(part, [f"{found.parts[part] * 1e3:.1f}" for found in taken.values()]) for part in TIMES]
    lines.append(row("sum", [f"{found.total * 1e3:.1f}" for found in taken.values()]))
    lines.append(row("tokens a second", [f"{found.tokens_per_second:,.0f}" for found in taken.values()]))
    lines.append(row("MFU, as of a dense step", [f"{found.mfu:.1%}" for found in taken.values()]))
    return lines
