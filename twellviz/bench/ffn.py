"""One feed-forward block, dense against sparse: every path is checked against float64, then timed in turns.

On a CPU the forward step, and the training step on request; on a GPU also the two parts of the forward step by
themselves: the gate product up to a packed form, and up and down given the same gate values.

Letters: M tokens, D model width, H hidden width, U neurons that any token of a block fires.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from twell import ops
from twell.formats import TwELL

from twellviz.bench.paths import Path, forward_paths, training_paths
from twellviz.bench.synthetic import Layer, make_layer
from twellviz.bench.timer import Timer, check_device
from twellviz.errors import ConfigError

TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-3}
"""Largest error of a path over the largest magnitude of the result; dense torch in the dtype has the same order."""


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """What is timed; see ``python -m twellviz bench --help``."""

    tokens: int = 512
    width: int = 2048
    hidden: int = 5632
    density: float = 29.0
    dtype: str = "float32"
    gated: bool = True
    train: bool = False
    threads: int | None = None
    repeats: int = 9
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.dtype not in TOLERANCE:
            raise ConfigError(f"dtype={self.dtype!r}: choose one of {', '.join(TOLERANCE)}")
        if self.repeats < 1:
            raise ConfigError(f"repeats={self.repeats}: at least 1 is needed")
        if self.threads is not None and self.threads < 1:
            raise ConfigError(f"threads={self.threads}: at least 1 is needed")
        check_device(self.device)
        if self.train and self.device != "cpu":
            raise ConfigError(f'train=True with device="{self.device}": the sparse training step runs on the CPU')


@dataclass(frozen=True)
class PathResult:
    """What one path measured.

    Attributes
    ----------
    name : str
    step : {"forward", "training", "gate", "up_down"}
    error : float
        Largest difference from float64 over the largest magnitude, of the output or the worst gradient.
    right : bool
        Whether ``error`` is within the tolerance of the dtype.
    milliseconds : list of float
        One for each timed round.
    held_bytes : int or None
        In training: activations that autograd keeps after forward.
    note : str
        What the path chose, where it chooses.
    """

    name: str
    step: str
    error: float
    right: bool
    milliseconds: list[float]
    held_bytes: int | None = None
    note: str = ""

    @property
    def median(self) -> float:
        """Median time in milliseconds."""
        return statistics.median(self.milliseconds)

    @property
    def spread(self) -> tuple[float, float]:
        """Lower and upper quartile in milliseconds."""
        if len(self.milliseconds) < 2:
            return self.median, self.median
        low, _, high = statistics.quantiles(self.milliseconds, n=4, method="inclusive")
        return low, high


@dataclass(frozen=True)
class BenchResult:
    """What a benchmark measured.

    Attributes
    ----------
    config : BenchConfig
    threads : int
    activity : dict
        Mean, 99th percentile and maximum of active neurons of a token, the fullest tile, spilled tiles.
    paths : list of PathResult
        ``dense`` first.
    floor : float
        Median time of the gate product alone in milliseconds, which no path of a gated block avoids.
    """

    config: BenchConfig
    threads: int
    activity: dict[str, float]
    paths: list[PathResult]
    floor: float

    def of(self, name: str, step: str = "forward") -> PathResult:
        """The path of this name."""
        return next(path for path in self.paths if (path.name, path.step) == (name, step))

    def speedup(self, name: str, step: str = "forward") -> float:
        """Median time of dense over that of the path."""
        return self.of("dense", step).median / self.of(name, step).median


def run_bench(config: BenchConfig, *, progress: Callable[[str], None] = lambda text: None) -> BenchResult:
    """Check, then time.

    Parameters
    ----------
    config : BenchConfig
    progress : callable
        Called with a line of text now and then.

    Returns
    -------
    BenchResult

    Raises
    ------
    ConfigError
    """
    before = torch.get_num_threads()
    try:
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        return _run(config, progress)
    finally:
        torch.set_num_threads(before)


def _run(config: BenchConfig, progress: Callable[[str], None]) -> BenchResult:
    progress(
        f"drawing a layer of {config.hidden} neurons, {config.density:g} active for each of {config.tokens} tokens"
    )
    layer = make_layer(
        config.tokens,
        config.width,
        config.hidden,
        config.density,
        dtype=getattr(torch, config.dtype),
        seed=config.seed,
        device=config.device,
    )
    packed = ops.gate_pack(layer.x_MD, layer.gate_HD)
    timer = Timer(config.device)

    def gate_product() -> Tensor:
        return F.linear(layer.x_MD, layer.gate_HD)

    results: list[PathResult] = []
    floor: list[float] = []
    for step, paths in _steps(config, layer):
        truth = _truth(layer, config.gated, step)
        errors, held = {}, {}
        for path in paths:
            progress(f"checking {path.name} ({step}) against float64")
            errors[path.name] = worst_error(path.result(), truth)
            held[path.name] = None if path.held is None else path.held()
        progress(f"timing {len(paths)} paths of the {step} step in turns, {config.repeats} rounds")
        times: dict[str, list[float]] = {path.name: [] for path in paths}
        for _ in range(config.repeats):
            for path in paths:
                times[path.name].append(timer.milliseconds(path.run))
            if step == "forward":
                floor.append(timer.milliseconds(gate_product))
        results += [
            PathResult(
                path.name,
                step,
                errors[path.name],
                errors[path.name] <= TOLERANCE[config.dtype],
                times[path.name],
                held[path.name],
                path.note,
            )
            for path in paths
        ]
    return BenchResult(config, torch.get_num_threads(), _activity(packed), results, statistics.median(floor))


def _steps(config: BenchConfig, layer: Layer) -> list[tuple[str, list[Path]]]:
    if config.device == "cpu":
        steps = [("forward", forward_paths(layer, gated=config.gated))]
        if config.train:
            steps.append(("training", training_paths(layer, gated=config.gated)))
        return steps
    from twellviz.bench import gpu_paths

    return [
        ("forward", gpu_paths.forward_paths(layer, gated=config.gated)),
        ("gate", gpu_paths.gate_paths(layer)),
        ("up_down", gpu_paths.up_down_paths(layer, gated=config.gated)),
    ]


def _truth(layer: Layer, gated: bool, step: str) -> list[Tensor]:
    """Output, or output, L1 and gradients, or gate values, in float64 from the gate values as they are stored."""
    training = step == "training"
    x_MD, gate_HD, up_HD, down_HD = (array.double().requires_grad_(training) for array in layer)
    # Which neurons fire is decided by the stored, rounded value; float64 may differ within rounding of zero.
    stored_MH = F.relu(F.linear(layer.x_MD, layer.gate_HD)).double()
    if step == "gate":
        return [stored_MH]
    gate_MH = F.linear(x_MD, gate_HD) * (stored_MH > 0) if training else stored_MH
    h_MH = gate_MH * F.linear(x_MD, up_HD) if gated else gate_MH
    y_MD = h_MH @ down_HD
    if not training:
        return [y_MD]
    l1 = h_MH.abs().sum() / x_MD.shape[0]
    weights = [x_MD, gate_HD, up_HD, down_HD] if gated else [x_MD, gate_HD, down_HD]
    return [y_MD.detach(), l1.detach(), *torch.autograd.grad(y_MD.sum() + l1, weights)]


def worst_error(found: Sequence[Tensor], truth: Sequence[Tensor]) -> float:
    """Largest difference over the largest magnitude, of the worst array; NaN where any value is NaN."""
    errors = [_error(one, other) for one, other in zip(found, truth, strict=True)]
    return math.nan if any(math.isnan(error) for error in errors) else max(errors)


def _error(found: Tensor, truth: Tensor) -> float:
    scale = float(truth.abs().max())
    difference = float((found.detach().double() - truth).abs().max())
    return difference / scale if scale else difference


def _activity(packed: TwELL) -> dict[str, float]:
    counts_M = packed.counts().double()
    return {
        "mean": float(counts_M.mean()),
        "p99": float(counts_M.quantile(0.99)),
        "max": float(counts_M.max()),
        "fullest_tile": float(packed.tile_counts().max()),
        "spilled_tiles": float(packed.spill_tile.numel()),
    }
