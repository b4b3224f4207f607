"""The language model: embedding, layers of attention and feed-forward block, projection to the vocabulary.

Letters: B sequences, N positions, M = B N tokens, D model width, A attention heads, K head width (D = A K),
H hidden width, L layers, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from twell.nn import FFN, FFNStats, GatedFFN

from twellviz.errors import ConfigError
from twellviz.models.config import LMConfig, require_float, require_int
from twellviz.models.loss import projected_cross_entropy
from twellviz.sparsifiers.block import SparseBlock


class LMOutput(NamedTuple):
    """What one call of the model gives.

    Attributes
    ----------
    logits_BNV : Tensor [B, N, V], or None
        None where ``with_logits=False`` was given.
    loss : Tensor, float32 scalar, or None
        Mean cross-entropy over the tokens in nats, where targets were given.
    stats : list of FFNStats
        One per layer where ``with_stats`` was set, else empty.
    """

    logits_BNV: Tensor | None
    loss: Tensor | None
    stats: list[FFNStats]


class Attention(nn.Module):
    """Causal attention of all heads, with rotary positions."""

    def __init__(self, cfg: LMConfig) -> None:
        super().__init__()
        self.n_heads, self.head_width = cfg.n_heads, cfg.head_width
        self.query = _linear(cfg.d_model, cfg.d_model, cfg)
        self.key = _linear(cfg.d_model, cfg.d_model, cfg)
        self.value = _linear(cfg.d_model, cfg.d_model, cfg)
        self.out = _linear(cfg.d_model, cfg.d_model, cfg)

    def forward(self, x_BND: Tensor, cos_NK: Tensor, sin_NK: Tensor) -> Tensor:
        """Mix positions: [B, N, D] to [B, N, D]."""
        B, N, D = x_BND.shape

        def heads(y_BND: Tensor) -> Tensor:
            return y_BND.view(B, N, self.n_heads, self.head_width).transpose(1, 2)

        query_BANK = rotate(heads(self.query(x_BND)), cos_NK, sin_NK)
        key_BANK = rotate(heads(self.key(x_BND)), cos_NK, sin_NK)
        value_BANK = heads(self.value(x_BND))
        mixed_BANK = F.scaled_dot_product_attention(query_BANK, key_BANK, value_BANK, is_causal=True)
        return cast(Tensor, self.out(mixed_BANK.transpose(1, 2).reshape(B, N, D)))


class Layer(nn.Module):
    """Attention, then the feed-forward block ``ffn``; each reads a normed copy and adds to the stream."""

    ffn: GatedFFN | FFN | SparseBlock

    def __init__(self, cfg: LMConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(cfg.d_model, eps=cfg.norm_eps)
        self.attention = Attention(cfg)
        self.ffn_norm = nn.RMSNorm(cfg.d_model, eps=cfg.norm_eps)
        self.ffn = cfg.method.make_block(cfg)

    def forward(
        self, x_BND: Tensor, cos_NK: Tensor, sin_NK: Tensor, *, with_stats: bool = False, skip_ffn: bool = False
    ) -> tuple[Tensor, FFNStats | None]:
        """One layer: [B, N, D] to [B, N, D], with the statistics of its block where asked for."""
        x_BND = x_BND + self.attention(self.attention_norm(x_BND), cos_NK, sin_NK)
        if skip_ffn:
            return x_BND, None
        normed_BND = self.ffn_norm(x_BND)
        if not with_stats:
            return x_BND + self.ffn(normed_BND), None
        y_BND, stats = self.ffn.forward_with_stats(normed_BND)
        return x_BND + y_BND, stats


class LM(nn.Module):
    """Llama-style language model.

    Parameters
    ----------
    cfg : LMConfig
        Weights come from torch's global random state.

    Attributes
    ----------
    cfg : LMConfig
    layers : nn.ModuleList of Layer
        ``layers[i].ffn`` is the :class:`twell.nn.GatedFFN` or :class:`twell.nn.FFN` of layer i, or what
        ``cfg.sparsifier`` puts in its place (:class:`twellviz.sparsifiers.block.SparseBlock`).
    checkpoint_layers : bool
        In training keep what enters each layer alone and run the layer once more in the backward (Chen et al., arXiv
        1604.06174): less memory, a third more work, the same bits. False at first.

    Examples
    --------
    >>> import torch
    >>> from twellviz.models import LM, PRESETS
    >>> model = LM(PRESETS["nano"])
    >>> model(torch.zeros(1, 8, dtype=torch.long)).logits_BNV.shape
    torch.Size([1, 8, 2048])
    """

    def __init__(self, cfg: LMConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.checkpoint_layers = False
        self.embedding = nn.Embedding(cfg.vocab_size, cfg.d_model)
        nn.init.normal_(self.embedding.weight, std=cfg.init_std)
        self.layers = nn.ModuleList(Layer(cfg) for _ in range(cfg.n_layers))
        self.norm = nn.RMSNorm(cfg.d_model, eps=cfg.norm_eps)
        self.head = None if cfg.tie_embeddings else _linear(cfg.d_model, cfg.vocab_size, cfg)

    def forward(
        self,
        tokens_BN: Tensor,
        targets_BN: Tensor | None = None,
        *,
        with_stats: bool = False,
        skip_ffn: bool = False,
        with_logits: bool = True,
    ) -> LMOutput:
        """Predict the next token at each position.

        Parameters
        ----------
        tokens_BN : Tensor, integer [B, N]
            N from 1 to ``cfg.max_seq_len``.
        targets_BN : Tensor, integer [B, N], optional
            The next token at each position; then ``loss`` is given.
        with_stats : bool
            Count what each feed-forward block's neurons do.
        skip_ffn : bool
            Leave the feed-forward blocks out, to see what they are worth; not together with ``with_stats``.
        with_logits : bool
            False keeps the logits of a chunk of tokens at a time, for the loss alone; targets are needed then.

        Returns
        -------
        LMOutput

        Raises
        ------
        ConfigError
            The tokens do not fit the model.
        """
        if with_stats and skip_ffn:
            raise ConfigError("with_stats=True with skip_ffn=True: a block left out has no statistics; choose one")
        if targets_BN is None and not with_logits:
            raise ConfigError("with_logits=False without targets_BN: there is nothing to compute; give one of them")
        self._check(tokens_BN)
        cos_NK, sin_NK = rotation(tokens_BN.shape[1], self.cfg, tokens_BN.device)
        x_BND = self.embedding(tokens_BN)
        stats: list[FFNStats] = []
        for layer in self.layers:
            x_BND, layer_stats = self._run(layer, x_BND, cos_NK, sin_NK, with_stats=with_stats, skip_ffn=skip_ffn)
            if layer_stats is not None:
                stats.append(layer_stats)
        x_BND = self.norm(x_BND)
        weight_VD = self.embedding.weight if self.head is None else self.head.weight
        logits_BNV = F.linear(x_BND, weight_VD) if with_logits else None
        if targets_BN is None:
            return LMOutput(logits_BNV, None, stats)
        if targets_BN.shape != tokens_BN.shape:
            raise ConfigError(
                f"targets_BN has shape {tuple(targets_BN.shape)}: that of tokens_BN {tuple(tokens_BN.shape)} is needed"
            )
        if logits_BNV is None:
            return LMOutput(None, projected_cross_entropy(x_BND.flatten(0, 1), weight_VD, targets_BN.flatten()), stats)
        # In float32: in bfloat16 the sum over the vocabulary would lose the small terms.
        loss = F.cross_entropy(logits_BNV.flatten(0, 1).float(), targets_BN.flatten().long())
        return LMOutput(logits_BNV, loss, stats)

    def _run(
        self, layer: nn.Module, x_BND: Tensor, cos_NK: Tensor, sin_NK: Tensor, **options: bool
    ) -> tuple[Tensor, FFNStats | None]:
        run: Callable[..., tuple[Tensor, FFNStats | None]] = partial(layer, **options)
        if not (self.checkpoint_layers and self.training and torch.is_grad_enabled()):
            return run(x_BND, cos_NK, sin_NK)
        # A layer draws no random numbers, so there is no state of theirs to keep for its second run.
        again = checkpoint(run, x_BND, cos_NK, sin_NK, use_reentrant=False, preserve_rng_state=False)
        return cast(tuple[Tensor, FFNStats | None], again)

    @torch.no_grad()
    def generate(
        self, tokens_BN: Tensor, n_new: int, *, temperature: float = 0.0, generator: torch.Generator | None = None
    ) -> Tensor:
        """Continue sequences, one token at a time.

        Each step reads the last ``max_seq_len`` tokens anew: simple, and fast enough for short samples.

        Parameters
        ----------
        tokens_BN : Tensor, integer [B, N]
        n_new : int
            Tokens to add.
        temperature : float
            0 takes the likeliest token; above 0 samples from ``softmax(logits / temperature)``.
        generator : torch.Generator, optional
            Source of randomness on the tokens' device.

        Returns
        -------
        Tensor, int64 [B, N + n_new]

        Raises
        ------
        ConfigError
        """
        require_int("n_new", n_new, least=0)
        require_float("temperature", temperature, least=0.0)
        tokens_BN = tokens_BN.long()
        for _ in range(n_new):
            logits_BNV = self(tokens_BN[:, -self.cfg.max_seq_len :]).logits_BNV
            assert logits_BNV is not None
            logits_BV = logits_BNV[:, -1].float()
            if temperature == 0.0:
                next_B1 = logits_BV.argmax(-1, keepdim=True)
            else:
                next_B1 = torch.multinomial((logits_BV / temperature).softmax(-1), 1, generator=generator)
            tokens_BN = torch.cat([tokens_BN, next_B1], dim=1)
        return tokens_BN

    def num_parameters(self) -> int:
        """Number of weights; a tied embedding counts once."""
        return sum(parameter.numel() for parameter in self.parameters())

    @staticmethod
    def estimate_parameters(cfg: LMConfig) -> int:
        """:meth:`num_parameters` of a model of this config, without building it."""
        V, D, H = cfg.vocab_size, cfg.d_model, cfg.d_hidden
        layer = 4 * D * D + (3 if cfg.gated else 2) * D * H + 2 * D
        layer += cfg.method.extra_parameters(cfg)
        return (1 if cfg.tie_embeddings else 2) * V * D + cfg.n_layers * layer + D

    def _check(self, tokens_BN: Tensor) -> None:
        if tokens_BN.ndim != 2 or tokens_BN.is_floating_point() or tokens_BN.dtype in (torch.bool, torch.complex64):
            raise ConfigError(
                f"tokens_BN is {tokens_BN.dtype} {tuple(tokens_BN.shape)}: integers [sequences, positions] are needed"
            )
        n = tokens_BN.shape[1]
        if not 1 <= n <= self.cfg.max_seq_len:
            raise ConfigError(f"tokens_BN has {n} positions: 1 to max_seq_len={self.cfg.max_seq_len}; cut the text")
        # Reading the largest id would wait for a GPU, where torch's own assertion catches it.
        if tokens_BN.device.type == "cpu" and tokens_BN.numel():
            low, high = int(tokens_BN.min()), int(tokens_BN.max())
            if low < 0 or high >= self.cfg.vocab_size:
                raise ConfigError(
                    f"tokens_BN holds ids from {low} to {high}: 0 to {self.cfg.vocab_size - 1} are known; "
                    "is this the model's own tokenizer?"
                )


def rotation(n_positions: int, cfg: LMConfig, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the rotary angles (Su et al., arXiv 2104.09864): float32 [N, K], halves equal.

    Computed anew in each call: a buffer would lose its precision when a model moves to bfloat16.
    """
    half = torch.arange(0, cfg.head_width, 2, device=device, dtype=torch.float32)
    angle_NK = torch.outer(
        torch.arange(n_positions, device=device, dtype=torch.float32), cfg.rope_theta ** (-half / cfg.head_width)
    ).repeat(1, 2)
    return angle_NK.cos(), angle_NK.sin()


def rotate(x_BANK: Tensor, cos_NK: Tensor, sin_NK: Tensor) -> Tensor:
    """Turn each pair ``(x[k], x[k + K/2])`` by its angle; computed in float32, given in the dtype of ``x``."""
    first, second = x_BANK.float().chunk(2, dim=-1)
    turned_BANK = torch.cat([-second, first], dim=-1)
    return (x_BANK.float() * cos_NK + turned_BANK * sin_NK).to(x_BANK.dtype)


def _linear(n_in: int, n_out: int, cfg: LMConfig) -> nn.Linear:
    linear = nn.Linear(n_in, n_out, bias=False)
    nn.init.normal_(linear.weight, std=cfg.init_std)
    return linear
