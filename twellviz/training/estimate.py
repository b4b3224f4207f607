"""Memory of a training step before anything runs: pure functions of shapes.

What a GPU holds is followed through three moments of a step, and the fullest counts:

=========  =========================================================================================================
moment     what is held beside parameters and optimiser
=========  =========================================================================================================
loss       all activations, the copies of the weights in bfloat16, a chunk of logits
backward   all activations, what the last layer's backward needs
update     all gradients, what the first layer's backward needs
=========  =========================================================================================================

Between them it is a straight line: each layer's activations go and its gradients come. With accumulation the gradients
are there from the second pass on, so they are at all three.

The formulas follow ``twellviz.models.lm`` as ``twellviz.training`` runs it: weights and optimiser in float32, matrix
products in the dtype of autocast, the residual stream and the norms in float32. Tests compare them with real models;
``experiments/estimate_check.py`` with a GPU. The CUDA context (about 0.5 GB) and what the allocator leaves unused
between blocks come on top.

Letters: M tokens of a GPU in one pass, N positions, D model width, A heads, H hidden width, L layers, V vocabulary,
E active neurons of a token, c bytes of a number in the dtype of the products, P parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from twellviz.errors import ConfigError
from twellviz.models.config import LMConfig, require_float, require_int

BYTES = {"float32": 4, "bfloat16": 2}
PARTS = ("parameters", "gradients", "optimiser", "copies", "activations", "loss", "workspace")
"""Parts of the memory, in the order in which they are shown."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A training step to estimate.

    Attributes
    ----------
    model : LMConfig
    batch_size, accumulation : int
        Sequences of one pass, of all GPUs together, and passes of one step.
    seq_len : int, optional
        N; the model's ``max_seq_len`` if not given.
    gpus : int
        GPUs that share the model by rows and the batch by sequences.
    dtype : {"bfloat16", "float32"}
        Of the products.
    checkpoint_activations : bool
        Keep what enters a layer alone.
    mean_active : float, optional
        E, for the sparse training step; None is the dense one.
    fused_norm : bool
        RMSNorm as one kernel, as on GPUs: it keeps its input; torch's parts on a CPU keep the normed values too.

    Raises
    ------
    ConfigError
        A value is out of range or contradicts another.
    """

    model: LMConfig
    batch_size: int
    seq_len: int | None = None
    accumulation: int = 1
    gpus: int = 1
    dtype: str = "bfloat16"
    checkpoint_activations: bool = False
    mean_active: float | None = None
    fused_norm: bool = True

    def __post_init__(self) -> None:
        for name in ("batch_size", "accumulation", "gpus"):
            require_int(name, getattr(self, name), least=1)
        if self.seq_len is not None:
            require_int("seq_len", self.seq_len, least=1)
        if self.positions > self.model.max_seq_len:
            raise ConfigError(f"seq_len={self.seq_len}: the model takes at most max_seq_len={self.model.max_seq_len}")
        if self.batch_size % self.gpus:
            raise ConfigError(f"batch_size={self.batch_size} on {self.gpus} GPUs: a multiple of their number is needed")
        if self.dtype not in BYTES:
            raise ConfigError(f"dtype={self.dtype!r}: choose one of {', '.join(BYTES)}")
        if self.mean_active is None:
            return
        require_float("mean_active", self.mean_active, least=0.0)
        if self.mean_active > self.model.d_hidden:
            raise ConfigError(f"mean_active={self.mean_active}: the model has d_hidden={self.model.d_hidden} neurons")
        if self.model.activation != "relu":
            raise ConfigError(
                f"mean_active={self.mean_active} with activation={self.model.activation!r}: only ReLU gives exact "
                "zeros to skip; leave it out"
            )

    @property
    def positions(self) -> int:
        """N."""
        return self.model.max_seq_len if self.seq_len is None else self.seq_len

    @property
    def tokens(self) -> int:
        """M."""
        return self.batch_size // self.gpus * self.positions

    @property
    def width(self) -> int:
        """c."""
        return BYTES[self.dtype]


@dataclass(frozen=True)
class Memory:
    """Bytes of a GPU, part by part, at the moments of a step.

    Attributes
    ----------
    moments : dict
        ``{"loss": {"parameters": ..., ...}, "backward": ..., "update": ...}``.
    """

    moments: dict[str, dict[str, int]]

    @property
    def fullest(self) -> str:
        """The moment with the most."""
        return max(self.moments, key=lambda moment: sum(self.moments[moment].values()))

    @property
    def peak(self) -> int:
        """Bytes at the fullest moment."""
        return sum(self.moments[self.fullest].values())


def parameter_shapes(cfg: LMConfig) -> Iterator[tuple[int, ...]]:
    """Shapes of all weights: embedding ``[V, D]``; in each layer two gains ``[D]``, four ``[D, D]`` of the attention,
    three ``[H, D]`` (two without a gate), and a router's rows ``[E, D]`` where the sparsifier has one; a gain ``[D]``;
    ``[V, D]`` once more where embeddings are not tied."""
    V, D, H = cfg.vocab_size, cfg.d_model, cfg.d_hidden
    yield V, D
    for _ in range(cfg.n_layers):
        yield from [(D,)] * 2 + [(D, D)] * 4 + [(H, D)] * (3 if cfg.gated else 2)
        if extra := cfg.method.extra_parameters(cfg):
            yield extra // D, D
    yield (D,)
    if not cfg.tie_embeddings:
        yield V, D


def kept_parameters(cfg: LMConfig, gpus: int = 1) -> int:
    """Weights on the fullest GPU: ``ceil(rows / gpus)`` rows of each."""
    return sum(-(-shape[0] // gpus) * math.prod(shape[1:]) for shape in parameter_shapes(cfg))


def parameter_bytes(step: Step) -> int:
    """``4 P / gpus``: float32."""
    return 4 * kept_parameters(step.model, step.gpus)


def gradient_bytes(step: Step) -> int:
    """``4 P / gpus``: float32."""
    return parameter_bytes(step)


def optimiser_bytes(step: Step) -> int:
    """``8 P / gpus`` for AdamW's two moments in float32, and a counter of 4 bytes for each weight matrix or gain."""
    return 2 * parameter_bytes(step) + 4 * sum(1 for _ in parameter_shapes(step.model))


def layer_parameters(cfg: LMConfig) -> int:
    """Weights of the matrices of a layer: ``4 D^2 + 3 H D`` (2 without a gate)."""
    return 4 * cfg.d_model**2 + (3 if cfg.gated else 2) * cfg.d_hidden * cfg.d_model


def copy_bytes(step: Step, layers: int) -> int:
    """Weights of ``layers`` layers as the products read them, beside the float32 ones.

    One GPU: ``2 (4 D^2 + 3 H D)`` a layer where autocast makes bfloat16 copies, which the backward needs again; none in
    float32. Several: a layer and the next one, gathered in the dtype of the products, the buffer they arrive in, and
    the embedding in float32, whatever ``layers`` is.
    """
    cfg = step.model
    if step.gpus > 1:
        return 3 * step.width * layer_parameters(cfg) + 4 * cfg.vocab_size * cfg.d_model
    return layers * 2 * layer_parameters(cfg) if step.width == 2 else 0


def layer_activation_bytes(step: Step) -> int:
    """What a layer keeps from its forward to its backward; a token takes

    - attention: the stream before its norm ``4 D`` and 4 for the norm's scale; the normed values as the products read
      them, ``4 D`` once in float32, ``2 D`` for each of the three products under autocast; query, key, value and the
      mixed values ``4 c D``; the attention's normaliser ``4 A``;
    - feed-forward block: the stream and the scale ``4 D + 4``; the normed values, ``4 D`` once in float32, ``2 D`` for
      each of the two products under autocast (one without a gate or sparse); then

      - dense: gate, up and hidden values ``3 c H`` (without a gate the hidden values alone, ``c H``; SiLU keeps what
        enters it too, ``c H`` more);
      - sparse: column, gate and up value of each active neuron, ``12 E`` (8 without a gate), and where a token's begin,
        8.

    Without the fused norm each norm keeps ``4 D`` more.
    """
    cfg, c = step.model, step.width
    D, H, A = cfg.d_model, cfg.d_hidden, cfg.n_heads
    autocast, sparse = c == 2, step.mean_active is not None
    norm = (1 if step.fused_norm else 2) * 4 * D + 4
    attention = norm + (3 * 2 * D if autocast else 4 * D) + 4 * c * D + 4 * A
    readers = 2 if cfg.gated and not sparse else 1
    block = norm + (readers * 2 * D if autocast else 4 * D)
    if step.mean_active is not None:
        block_hidden = (12 if cfg.gated else 8) * step.mean_active + 8
    else:
        block_hidden = c * H * ((3 if cfg.gated else 1) + (cfg.activation == "silu"))
    return round(step.tokens * (attention + block + block_hidden))


def activation_bytes(step: Step) -> int:
    """What all layers and the last norm keep until the backward.

    ``L`` times :func:`layer_activation_bytes`, or with checkpointing the stream that enters each layer, ``4 M D``; the
    last norm's input ``4 M D + 4 M``; the rotary angles ``8 N D / A``; the token ids, 8 M.
    """
    cfg, M, D = step.model, step.tokens, step.model.d_model
    layer = 4 * M * D if step.checkpoint_activations else layer_activation_bytes(step)
    last = M * ((1 if step.fused_norm else 2) * 4 * D + 4)
    return cfg.n_layers * layer + last + 8 * step.positions * cfg.head_width + 8 * M


def loss_bytes(step: Step) -> int:
    """Gradients that the loss makes in its forward: ``4 M D`` of its input, ``4 V D`` of the projection."""
    return 4 * step.model.d_model * (step.tokens + step.model.vocab_size)


def chunk_tokens(step: Step) -> int:
    """C, tokens whose logits the loss holds at once: ``min(M, 2^26 / V)``."""
    # Here, since it brings torch along, which the command's --help does without.
    from twellviz.models.loss import CHUNK_ELEMENTS

    return min(step.tokens, max(1, CHUNK_ELEMENTS // step.model.vocab_size))


def logits_bytes(step: Step) -> int:
    """Working memory of the loss: the projection in bfloat16 and the product that is added to its gradient,
    ``2 c V D`` (once in float32, where no copy is made), and two arrays of a chunk's logits in float32, ``8 C V`` with
    ``C = min(M, 2^26 / V)`` tokens."""
    V, D = step.model.vocab_size, step.model.d_model
    return (2 if step.width == 2 else 1) * step.width * V * D + 8 * chunk_tokens(step) * V


def backward_bytes(step: Step) -> int:
    """Working memory of a layer's backward.

    The larger of two: in the dense block the gradient of the hidden values, once from the down product and once from
    the penalty, ``2 c M H``, beside that of the block's output, ``c M D``; in the attention three float32 arrays,
    ``12 M D``. In the sparse block, whose gradients live at the active neurons, ``24 M E`` for ``2 c M H``. With
    checkpointing the layer's own activations and copies come on top, made anew, but for the stream that was kept.
    Several GPUs: its gradients before they are averaged, ``c`` and 4 bytes a weight.
    """
    cfg, M, D, c = step.model, step.tokens, step.model.d_model, step.width
    hidden = 24 * step.mean_active if step.mean_active is not None else 2 * c * cfg.d_hidden
    total = round(M * max(hidden + c * D, 12 * D))
    if step.checkpoint_activations:
        total += layer_activation_bytes(step) - 4 * M * D + (copy_bytes(step, 1) if step.gpus == 1 else 0)
    if step.gpus > 1:
        total += (c + 4) * layer_parameters(cfg)
    return total


def memory(step: Step) -> Memory:
    """Bytes of each part at the three moments, on the fullest GPU.

    Parameters
    ----------
    step : Step

    Returns
    -------
    Memory
    """
    cfg = step.model
    held = {"parameters": parameter_bytes(step), "optimiser": optimiser_bytes(step)}
    early = gradient_bytes(step) if step.accumulation > 1 else 0
    # A checkpointed layer gives its copies back when the forward ends.
    in_backward = 0 if step.checkpoint_activations and step.gpus == 1 else cfg.n_layers
    one_layer = replace(step, checkpoint_activations=False)
    rest = 0 if step.checkpoint_activations else layer_activation_bytes(one_layer) + copy_bytes(step, 1)
    embedding = 4 * cfg.vocab_size * cfg.d_model
    moments = {
        "loss": {
            "gradients": early,
            "copies": copy_bytes(step, cfg.n_layers),
            "activations": activation_bytes(step),
            "loss": loss_bytes(step),
            "workspace": logits_bytes(step),
        },
        "backward": {
            "gradients": early,
            "copies": copy_bytes(step, in_backward),
            "activations": activation_bytes(step),
            "loss": loss_bytes(step),
            "workspace": backward_bytes(step),
        },
        "update": {
            "gradients": gradient_bytes(step),
            "copies": 0,
            "activations": 0,
            "loss": 0,
            # The embedding's gradient from its rows, beside that of the projection; or the first layer's backward.
            "workspace": max(embedding, backward_bytes(step) + rest - 4 * layer_parameters(cfg) // step.gpus),
        },
    }
    return Memory({name: {part: (held | parts)[part] for part in PARTS} for name, parts in moments.items()})


def largest_batch(step: Step, limit: float) -> int:
    """The largest multiple of ``gpus`` sequences whose peak stays within ``limit`` bytes; 0 where none does."""
    low, high = 0, 1
    while memory(replace(step, batch_size=high * step.gpus)).peak <= limit:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if memory(replace(step, batch_size=middle * step.gpus)).peak <= limit:
            low = middle
        else:
            high = middle
    return low * step.gpus
