"""How long the feed-forward blocks of a model take: plain dense, by their method densely, over the active neurons.

Letters: M tokens, D model width, L layers.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from twell.nn import FFN, GatedFFN

from twellviz.errors import ConfigError
from twellviz.models.config import require_int
from twellviz.models.lm import LM
from twellviz.sparsifiers.block import SparseBlock
from twellviz.sparsifiers.kernels import forward_sparse

Block = GatedFFN | FFN | SparseBlock
DECODED = 16
"""Single tokens that are timed one after another, since they differ in active neurons."""

_REPLAYS = 10


@dataclass(frozen=True)
class Speed:
    """Medians over the repeats, for all L blocks of a model together.

    Attributes
    ----------
    plain_ms : float
        The plain dense ReLU block of these sizes, torch: what every method is held against.
    dense_ms : float
        The method's own function, densely: its masks and sorting included.
    sparse_ms : float
        The same through :func:`twellviz.sparsifiers.forward_sparse`. None has the name of a speed-up: it may be slower.
    graphs : bool
        Timed inside CUDA graphs, all three, so that launches do not count; False on a CPU and where the host must wait.
    """

    plain_ms: float
    dense_ms: float
    sparse_ms: float
    graphs: bool

    @property
    def over_plain(self) -> float:
        """Plain dense time over sparse time: above 1 the method's sparse way is faster than the plain dense block."""
        return self.plain_ms / self.sparse_ms


def blocks_of(model: LM) -> list[Block]:
    """The feed-forward blocks by layer."""
    found = [layer.get_submodule("ffn") for layer in model.layers]
    return [block for block in found if isinstance(block, GatedFFN | FFN | SparseBlock)]


def plain_forward(block: Block, x_MD: Tensor) -> Tensor:
    """The dense ReLU block with these weights, whatever the method."""
    if isinstance(block, FFN):
        return F.relu(F.linear(x_MD, block.up_weight)) @ block.down_weight
    return (F.relu(F.linear(x_MD, block.gate_weight)) * F.linear(x_MD, block.up_weight)) @ block.down_weight


def dense_forward(block: Block, x_MD: Tensor) -> Tensor:
    """The block's own function, densely, even where its ``forward`` would go through a kernel."""
    return block.hidden(x_MD)[1] @ block.get_parameter("down_weight")


def prefill_speed(model: LM, inputs: Sequence[Tensor], *, repeats: int = 9) -> Speed:
    """Time of all blocks on all of their tokens at once.

    Parameters
    ----------
    model : LM
    inputs : sequence of Tensor [M, D], one per layer
        What the blocks read, from :func:`twellviz.sparsifiers.calibration.block_inputs`, in the dtype of the weights.
    repeats : int

    Raises
    ------
    ConfigError
    """
    return _measure(model, [list(inputs)], repeats)


def decode_speed(model: LM, inputs: Sequence[Tensor], *, repeats: int = 9) -> Speed:
    """Time of all blocks on a single token, mean over up to 16 tokens; parameters as :func:`prefill_speed`."""
    n_tokens = min(DECODED, inputs[0].shape[0] if inputs else 0)
    return _measure(model, [[x_MD[m : m + 1] for x_MD in inputs] for m in range(n_tokens)], repeats)


@torch.no_grad()
def _measure(model: LM, calls: list[list[Tensor]], repeats: int) -> Speed:
    require_int("repeats", repeats, least=1)
    blocks = blocks_of(model)
    if not calls or len(calls[0]) != len(blocks):
        raise ConfigError(
            f"inputs has {len(calls[0]) if calls else 0} layers with tokens: one tensor for each of the model's "
            f"{len(blocks)} blocks is needed"
        )
    weight_HD = blocks[0].get_parameter("down_weight")
    if calls[0][0].dtype != weight_HD.dtype or calls[0][0].device != weight_HD.device:
        raise ConfigError(
            f"inputs is {calls[0][0].dtype} on {calls[0][0].device}, the weights {weight_HD.dtype} on "
            f"{weight_HD.device}: convert one with .to()"
        )

    def all_calls(forward: Callable[[Block, Tensor], Tensor]) -> Callable[[], None]:
        def run() -> None:
            for inputs in calls:
                for block, x_MD in zip(blocks, inputs, strict=True):
                    forward(block, x_MD)

        return run

    ways = [all_calls(forward) for forward in (plain_forward, dense_forward, forward_sparse)]
    for run in ways:
        run()  # compiles kernels
    graphs = weight_HD.is_cuda and all(not isinstance(block, SparseBlock) or block.packable for block in blocks)
    if graphs:
        ways = [_captured(run) for run in ways]
    clock = _cuda_milliseconds if weight_HD.is_cuda else _cpu_milliseconds
    # In turn, so that a machine that slows down slows all of them.
    times = [[clock(run) / len(calls) for run in ways] for _ in range(repeats)]
    plain, dense, sparse = (statistics.median(column) for column in zip(*times, strict=True))
    return Speed(plain, dense, sparse, graphs)


def _captured(run: Callable[[], None]) -> Callable[[], None]:
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def _cpu_milliseconds(run: Callable[[], None]) -> float:
    begin = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - begin)


def _cuda_milliseconds(run: Callable[[], None]) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    run()
    start.record()
    for _ in range(_REPLAYS):
        run()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) / _REPLAYS
