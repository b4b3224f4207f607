"""Time of a training step before anything runs: arithmetic, bytes and exchange, pure functions of shapes.

Each part is work divided by a rate that a GPU reaches, and the parts follow one another:

- matrix products, at a stated share of the dense peak (:data:`PRODUCTS`; attention's own at half of it);
- element-wise passes, counted operator by operator as eager torch runs them, at a share of the memory's bandwidth;
- rows of weights gathered for active neurons (sparse step), mostly from the cache, at a rate measured on one H200;
- the optimiser, 40 bytes a weight;
- with several GPUs what their link exchanges, as far as the forward and backward do not hide it.

Compiled layers (``--compile``) make fewer passes than are counted here.

Letters: M tokens of a GPU in one pass, N positions, D model width, H hidden width, L layers, V vocabulary, E active
neurons of a token, c bytes of a number in the dtype of the products.
"""

from __future__ import annotations

from dataclasses import dataclass

from twellviz.models.loss import CHUNK_ELEMENTS
from twellviz.training.estimate import Step, kept_parameters, layer_parameters
from twellviz.training.gpus import Gpu
from twellviz.training.mfu import flops_per_token

PRODUCTS = 0.70
"""Share of the peak that products reach: on an H200 a gated block of 16,384 tokens (D 2048, H 5632) trained at 0.68 of
989 TFLOP/s, its largest product alone at 0.78."""

ATTENTION = 0.5
"""Rate of the attention's products, as a share of that of the others."""

PASSES = 0.80
"""Share of the bandwidth that element-wise kernels reach."""

GATHERS = 1.27
"""Bytes of gathered weight rows a second, over the bandwidth: with 29.5 active neurons the published kernels read
4.0 GB in 0.65 ms on an H200 (4.8 TB/s); tokens that fire the same neuron find its row in the cache."""

LINK = 0.7
"""Share of the link's rate that NCCL reaches."""

TIMES = ("products", "attention", "passes", "gathers", "optimiser", "exchange")
"""Parts of the time, in the order in which they are shown."""


@dataclass(frozen=True)
class Seconds:
    """Estimated time of a step.

    Attributes
    ----------
    parts : dict
        Seconds of each of :data:`TIMES`.
    tokens : int
        Of the step, all GPUs together.
    flops : float
        Of the dense model's step, all GPUs together, as the MFU counts them.
    peak : float
        Dense peak of all GPUs in FLOP/s.
    """

    parts: dict[str, float]
    tokens: int
    flops: float
    peak: float

    @property
    def total(self) -> float:
        """Seconds of a step."""
        return sum(self.parts.values())

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all GPUs together."""
        return self.tokens / self.total

    @property
    def mfu(self) -> float:
        """Share of the peak (:mod:`twellviz.training.mfu`)."""
        return self.flops / self.total / self.peak


def product_flops(step: Step) -> float:
    """FLOPs of the matrix products of a pass on a GPU.

    ``6 M`` for each weight of the attention's projections, of the vocabulary's, and of the dense block; with
    checkpointing ``8 M`` in the layers. The sparse block computes its gate product forward alone, ``2 M D H`` (4 with
    checkpointing).
    """
    cfg, M = step.model, step.tokens
    D, H = cfg.d_model, cfg.d_hidden
    each = 8 if step.checkpoint_activations else 6
    block = each * (layer_parameters(cfg) - 4 * D * D) if step.mean_active is None else (each - 4) * D * H
    return float(M * (cfg.n_layers * (each * 4 * D * D + block) + 6 * cfg.vocab_size * D))


def attention_flops(step: Step) -> float:
    """FLOPs of the causal attention: ``2 N D`` a token forward, ``5 N D`` backward, which makes the scores anew."""
    each = 9 if step.checkpoint_activations else 7
    return float(each * step.tokens * step.model.n_layers * step.positions * step.model.d_model)


def pass_bytes(step: Step) -> float:
    """Bytes that element-wise operators of a pass read and write on a GPU.

    A token takes in each layer, with c = 2 (4 counts as 1.5 times as much):

    - ``178 D`` forward: two norms 16, casts of their results 30, two rotations in float32 104, two sums into the stream
      20, attention 8; ``262 D`` backward: 32, 90, 104, 36;
    - in the dense block ``22 H`` forward (ReLU, gate times up, L1, counting) and ``34 H`` backward;

    forward twice with checkpointing. The loss takes ``50 V`` a token, and ``12 V D`` for each chunk of ``2^26 / V``
    tokens; casting weights and their gradients 12 bytes a weight.
    """
    cfg, M = step.model, step.tokens
    D, H, V = cfg.d_model, cfg.d_hidden, cfg.vocab_size
    forwards = 2 if step.checkpoint_activations else 1
    hidden = 22 * forwards + 34 if step.mean_active is None else 0
    layer = (178 * forwards + 262) * D + hidden * H * (1 if cfg.gated else 0.75)
    wide = 1.0 if step.width == 2 else 1.5
    chunks = -(-M // max(1, CHUNK_ELEMENTS // V))
    casts = 12 * cfg.n_layers * layer_parameters(cfg) if step.width == 2 else 0
    return wide * M * (cfg.n_layers * layer + 50 * V) + chunks * 12 * V * D + casts


def gather_bytes(step: Step) -> float:
    """Bytes of weight rows that the sparse block reads or adds to: ``c D`` for each active neuron of each token, in 8
    passes (5 without a gate): up and down forward; backward down, up and gate for the gradients of h and x, and the
    three weight gradients. With checkpointing the forward's 2 (1) once more."""
    if step.mean_active is None:
        return 0.0
    passes, forward = (8, 2) if step.model.gated else (5, 1)
    passes += forward if step.checkpoint_activations else 0
    return step.model.n_layers * passes * step.tokens * step.mean_active * step.model.d_model * step.width


def optimiser_traffic(step: Step) -> float:
    """Bytes of the update on a GPU, 40 for each weight it keeps: AdamW 28, the gradient's norm 4, its clipping 8."""
    return 40.0 * kept_parameters(step.model, step.gpus)


def exchange_bytes(step: Step) -> float:
    """Bytes of a pass through a GPU's link: of ``(gpus - 1) / gpus`` of the weights, ``2 c`` to gather them for forward
    and backward and 4 to average the gradients; the embedding in float32 once."""
    cfg = step.model
    layers, embedding = cfg.n_layers * layer_parameters(cfg), cfg.vocab_size * cfg.d_model
    return (step.gpus - 1) / step.gpus * (layers * (2 * step.width + 4) + embedding * 8)


def seconds(step: Step, gpu: Gpu, *, products: float = PRODUCTS) -> Seconds:
    """Time of a step.

    Parameters
    ----------
    step : Step
    gpu : Gpu
    products : float
        Share of the peak that matrix products reach.

    Returns
    -------
    Seconds
    """
    peak = gpu.peak(step.dtype)
    parts = {
        "products": product_flops(step) / (products * peak),
        "attention": attention_flops(step) / (ATTENTION * products * peak),
        "passes": pass_bytes(step) / (PASSES * gpu.bandwidth),
        "gathers": gather_bytes(step) / (GATHERS * gpu.bandwidth),
    }
    exchanged = exchange_bytes(step) / (LINK * gpu.link)
    parts["exchange"] = max(0.0, exchanged - sum(parts.values()))
    parts = {name: step.accumulation * value for name, value in parts.items()}
    parts["optimiser"] = optimiser_traffic(step) / (PASSES * gpu.bandwidth)
    tokens = step.batch_size * step.positions * step.accumulation
    flops = tokens * flops_per_token(step.model, step.positions)
    return Seconds({name: parts[name] for name in TIMES}, tokens, flops, peak * step.gpus)
