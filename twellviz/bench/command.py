"""``python -m twellviz bench``: its options, and what it does with them."""

from __future__ import annotations

import argparse
import itertools
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to ``parser``."""
    parser.add_argument("what", choices=("ffn",), help="ffn: one feed-forward block, dense against sparse")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to run (%(default)s)")
    layer = parser.add_argument_group("layer")
    layer.add_argument("--tokens", type=int, default=512, metavar="M", help="tokens of a call (%(default)s)")
    layer.add_argument("--width", type=int, default=2048, metavar="D", help="model width (%(default)s)")
    layer.add_argument("--hidden", type=int, default=5632, metavar="H", help="hidden neurons (%(default)s)")
    layer.add_argument(
        "--density",
        default="29",
        metavar="N[,N...]",
        help="mean active neurons of a token; several give a row each (%(default)s, the paper's 1.5B model)",
    )
    layer.add_argument(
        "--dtype",
        default="float32",
        metavar="T[,T...]",
        help="of tokens and weights: float32, bfloat16, float16; several are measured one after another (%(default)s)",
    )
    layer.add_argument("--plain", action="store_true", help="a block without a gate")
    run = parser.add_argument_group("run")
    run.add_argument("--train", action="store_true", help="time a training step (forward and backward) as well")
    run.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: torch's own choice)")
    run.add_argument("--repeats", type=int, default=9, metavar="N", help="timed rounds (%(default)s)")
    run.add_argument("--seed", type=int, default=0, metavar="N", help="of weights and tokens (%(default)s)")
    run.add_argument("--json", metavar="FILE", help="write the figures there")


def run_cli(args: argparse.Namespace) -> int:
    """Run the command; the exit status is 0, or 1 where a path gave wrong numbers."""
    from twellviz._atomic import check_file_name
    from twellviz.bench.ffn import BenchConfig, run_bench
    from twellviz.bench.report import parse_densities, table, write_json

    if args.json is not None:
        check_file_name(args.json)
    densities = parse_densities(args.density)
    results = []
    for dtype, density in itertools.product(args.dtype.split(","), densities):
        config = BenchConfig(
            tokens=args.tokens,
            width=args.width,
            hidden=args.hidden,
            density=density,
            dtype=dtype,
            gated=not args.plain,
            train=args.train,
            threads=args.threads,
            repeats=args.repeats,
            seed=args.seed,
            device=args.device,
        )
        result = run_bench(config, progress=lambda text: print(text, file=sys.stderr, flush=True))
        print(table(result), flush=True)
        results.append(result)
    if args.json:
        write_json(results, args.json)
        print(f"written to {args.json}")
    return int(any(not path.right for result in results for path in result.paths))
