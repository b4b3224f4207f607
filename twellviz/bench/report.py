"""The table and the JSON file of a benchmark."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from twellviz._atomic import write_text_atomically
from twellviz._machine import gpu, processor, versions
from twellviz.bench.ffn import BenchResult, PathResult
from twellviz.errors import ConfigError

FORMAT = "twellviz.bench.ffn"
VERSION = 1


def parse_densities(text: str) -> list[float]:
    """``"5,29"`` as numbers.

    Raises
    ------
    ConfigError
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"density={text!r}: give a number, or numbers with commas between, as in 5,29,150") from error


def table(result: BenchResult) -> str:
    """The figures as text, slower paths called so."""
    config, activity = result.config, result.activity
    width = max(10, *(len(path.name) + 1 for path in result.paths))
    lines = [
        f"{'gated' if config.gated else 'plain'} block, {config.tokens} tokens, D={config.width}, H={config.hidden}, "
        f"{config.dtype}, {_device(config.device, result.threads)}",
        f"active neurons a token: mean {activity['mean']:.1f}, p99 {activity['p99']:.0f}, max {activity['max']:.0f}; "
        f"fullest tile {activity['fullest_tile']:.0f}, {activity['spilled_tiles']:.0f} tiles spilled",
        f"{'':10s}{'path':{width}s}{'error':>9s}{'median ms':>11s}{'quartiles':>17s}{'x dense':>9s}",
    ]
    lines += [_row(result, path, width) for path in result.paths]
    forward = [path for path in result.paths if path.step == "forward"]
    fastest = max(result.speedup(p.name) for p in forward)
    ceiling = result.of("dense").median / result.floor
    lines.append(
        f"floor: the gate product alone takes {result.floor:.{_digits(result)}f} ms, so at most {ceiling:.2f} x dense "
        f"is possible; reached {fastest:.2f} ({fastest / ceiling:.0%})"
    )
    lines += [
        f"SLOWER than dense: {path.name} ({path.step}), {result.speedup(path.name, path.step):.2f} x"
        for path in result.paths
        if result.speedup(path.name, path.step) < 1
    ]
    lines += [
        f"WRONG: {path.name} ({path.step}) is off by {path.error:.1e} of the largest value"
        for path in result.paths
        if not path.right
    ]
    return "\n".join(lines)


def _digits(result: BenchResult) -> int:
    """Digits after the point of a millisecond."""
    return 1 if result.config.device == "cpu" else 3


def _device(device: str, threads: int) -> str:
    return f"{threads} threads, {processor()}" if device == "cpu" else gpu()


def _row(result: BenchResult, path: PathResult, width: int) -> str:
    low, high = path.spread
    digits = _digits(result)
    text = (
        f"{path.step:10s}{path.name:{width}s}{path.error:9.1e}{path.median:11.{digits}f}"
        f"{f'{low:.{digits}f} - {high:.{digits}f}':>17s}"
        f"{result.speedup(path.name, path.step):9.2f}"
    )
    if path.held_bytes is not None:
        share = path.held_bytes / (result.of("dense", path.step).held_bytes or 1)
        text += f"  holds {path.held_bytes / 2**20:.1f} MiB after forward ({share:.2f} of dense)"
    return f"{text}  {path.note}".rstrip()


def write_json(results: Sequence[BenchResult], path: str | os.PathLike[str]) -> Path:
    """Write all figures with device, versions, date and command.

    Parameters
    ----------
    results : sequence of BenchResult
    path : path
        Replaced if it exists.
    """
    device = results[0].config.device
    record = {"format": FORMAT, "version": VERSION, **provenance(device), "results": [_to_json(r) for r in results]}
    return write_text_atomically(path, json.dumps(record, indent=1) + "\n")


def _to_json(result: BenchResult) -> dict[str, Any]:
    return {
        "config": asdict(result.config),
        "threads": result.threads,
        "activity": result.activity,
        "floor_ms": round(result.floor, 4),
        "paths": [
            {
                "name": path.name,
                "step": path.step,
                "error": path.error,
                "right": path.right,
                "median_ms": round(path.median, 4),
                "quartiles_ms": [round(edge, 4) for edge in path.spread],
                "times_dense": round(result.speedup(path.name, path.step), 3),
                "held_bytes": path.held_bytes,
                "note": path.note,
            }
            for path in result.paths
        ],
    }


def provenance(device: str = "cpu") -> dict[str, Any]:
    """Device, versions, date and command of this process."""
    program = Path(sys.argv[0])
    head = "python -m twellviz" if program.name == "__main__.py" else program.name
    return {
        "device": f"CPU, {processor()}" if device == "cpu" else gpu(),
        "threads_of_torch": torch.get_num_threads(),
        "versions": versions("twellviz", "torch", "numba", *(() if device == "cpu" else ("numba-cuda",)), "numpy"),
        "date": datetime.now(UTC).date().isoformat(),
        "command": shlex.join([*head.split(), *sys.argv[1:]]),
    }
