"""Settings of a training run, and the two schedules that follow from them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from twellviz.errors import ConfigError
from twellviz.models.config import PRESETS, LMConfig, require_float, require_int

DTYPES = ("float32", "bfloat16")
OPERATIONAL = (
    *("out", "device", "threads", "eval_interval", "eval_windows", "checkpoint_interval", "checkpoint_activations"),
    *("log_interval", "tensorboard", "peak_tflops", "process_timeout"),
)
"""Settings that a resumed run may change; the others decide the losses."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Settings of :func:`twellviz.training.train`. The defaults train the shipped ``nano``.

    The paper (Table 2) takes lr 1e-3 with 600 warm-up steps, 1,048,576 tokens a step, and the same betas, eps,
    weight decay, clipping and initialisation as here.

    Attributes
    ----------
    model : LMConfig or str
        A config, or the name of a preset; it is kept as a config.
    steps : int
        Optimiser steps, a fixed number.
    batch_size, accumulation : int
        Sequences of one forward pass, of all processes together, and passes of one step. Only their product decides
        the losses (up to rounding), only ``batch_size`` the memory. It is a multiple of the number of processes.
    seq_len : int, optional
        Tokens of a sequence; the model's ``max_seq_len`` if not given.
    lr, lr_warmup_steps, lr_final : float, int, float
        Peak learning rate; steps of linear rise; share of the peak at which the cosine ends.
    betas, eps, weight_decay, grad_clip : float
        AdamW and the largest norm of the gradient. Weight decay applies to matrices, not to norm gains.
    l1_coefficient : float
        Factor of the L1 penalty: the sum of ``|h|`` over the hidden units, mean over tokens and layers. 0 is needed
        where the model's sparsifier has no penalty.
    l1_start_step, l1_full_step : int
        L1 warm-up: no penalty before the first, a linear rise up to the second (paper Table 5).
    dead_reinit : float
        Dead-gate re-initialisation (paper Table 5: 0.1): after each step, gate rows of neurons that no token of
        the step fired become ``(1 - dead_reinit) row + dead_reinit N(0, init_std^2)``. 0 turns it off.
    init : str, optional
        A ``model.safetensors`` of this model's sizes whose weights the run starts from; drawn from ``seed`` if not
        given.
    seed : int
        Of weights, order of the text, and re-initialisation.
    eval_interval : int
        Steps between held-out measurements in the history; 0 measures at the end alone.
    eval_windows : int, optional
        Sequences of each of these measurements, spread over the held-out text; all if not given. The one at the
        end takes all.
    checkpoint_interval : int
        Steps between checkpoints; 0 writes one at the end (and when stopped). Needs ``out``.
    out : str, optional
        Folder for log and checkpoints; nothing is written without.
    device : str
        ``"auto"``, ``"cpu"``, ``"cuda"``, ``"cuda:1"``; of several processes each takes the GPU of its own number.
    dtype : {"float32", "bfloat16"}
        Of the computation; weights and optimiser stay float32.
    compile : bool
        Compile each layer with ``torch.compile``: minutes at the start, faster steps on a GPU, other last bits, dense.
        Held-out measurements run without.
    checkpoint_activations : bool
        Keep what enters each layer alone and run the layer again in the backward: less memory, a third more work,
        the same losses.
    log_interval : int, optional
        Steps whose figures are fetched from the device together; 1 on a CPU and 10 on a GPU if not given. Every
        step gets its row; its ``tokens_per_second`` is the mean of those fetched with it.
    tensorboard : bool
        Write the history to ``out/tensorboard`` too; needs the package ``tensorboard``.
    peak_tflops : float, optional
        Dense peak of the device in TFLOP/s for the MFU, where :mod:`twellviz.training.mfu` does not know it.
    threads : int, optional
        CPU threads; torch's own number if not given. Another number may give other last bits.
    process_timeout : float
        Seconds after which one of several processes gives up waiting for another: longer than writing a checkpoint
        and measuring take.

    Raises
    ------
    ConfigError
        A value is out of range or contradicts another.
    """

    model: LMConfig | str = "nano"
    steps: int = 800
    batch_size: int = 8
    accumulation: int = 1
    seq_len: int | None = None
    lr: float = 3e-3
    lr_warmup_steps: int = 20
    lr_final: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    grad_clip: float = 1.0
    l1_coefficient: float = 3e-3
    l1_start_step: int = 0
    l1_full_step: int = 0
    dead_reinit: float = 0.0
    init: str | None = None
    seed: int = 0
    eval_interval: int = 0
    eval_windows: int | None = 32
    checkpoint_interval: int = 0
    out: str | None = None
    device: str = "auto"
    dtype: str = "float32"
    compile: bool = False
    checkpoint_activations: bool = False
    log_interval: int | None = None
    tensorboard: bool = False
    peak_tflops: float | None = None
    threads: int | None = None
    process_timeout: float = 600.0

    def __post_init__(self) -> None:
        if isinstance(self.model, str):
            if self.model not in PRESETS:
                raise ConfigError(f"model={self.model!r}: choose one of {', '.join(PRESETS)}, or give an LMConfig")
            object.__setattr__(self, "model", PRESETS[self.model])
        elif not isinstance(self.model, LMConfig):
            raise ConfigError(f"model={self.model!r}: the name of a preset or an LMConfig is needed")
        if not isinstance(self.betas, list | tuple) or len(self.betas) != 2 or not all(map(_is_share, self.betas)):
            raise ConfigError(f"betas={self.betas!r}: two numbers from 0 to below 1 are needed, as in [0.9, 0.95]")
        object.__setattr__(self, "betas", tuple(self.betas))
        for name in ("out", "init"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str | os.PathLike):
                raise ConfigError(f"{name}={value!r}: a path is needed")
            if value is not None:
                object.__setattr__(self, name, os.fspath(value))
        self._check_numbers()
        if self.tokens_per_sequence > self.lm.max_seq_len:
            raise ConfigError(f"seq_len={self.seq_len}: the model takes at most max_seq_len={self.lm.max_seq_len}")
        for name in ("lr_final", "dead_reinit"):
            if getattr(self, name) > 1:
                raise ConfigError(f"{name}={getattr(self, name)}: a share from 0 to 1 is needed")
        if self.l1_full_step < self.l1_start_step:
            raise ConfigError(
                f"l1_full_step={self.l1_full_step} lies before l1_start_step={self.l1_start_step}: the penalty rises "
                "from the one to the other"
            )
        if self.lm.activation != "relu" and self.dead_reinit:
            raise ConfigError(
                f"dead_reinit={self.dead_reinit} with activation={self.lm.activation!r}: only ReLU neurons die; set 0"
            )
        self.lm.method.check_training(self)
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype={self.dtype!r}: choose one of {', '.join(DTYPES)}")
        for name in ("compile", "checkpoint_activations", "tensorboard"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name}={getattr(self, name)!r}: True or False is needed")
        if self.tensorboard and self.out is None:
            raise ConfigError("tensorboard=True without out: give a folder to write to")
        if self.checkpoint_interval and self.out is None:
            raise ConfigError(f"checkpoint_interval={self.checkpoint_interval} without out: give a folder to write to")

    def _check_numbers(self) -> None:
        for name in ("steps", "batch_size", "accumulation"):
            require_int(name, getattr(self, name), least=1)
        for name in (
            "lr_warmup_steps",
            "l1_start_step",
            "l1_full_step",
            "seed",
            "eval_interval",
            "checkpoint_interval",
        ):
            require_int(name, getattr(self, name), least=0)
        if self.seed >= 2**63:
            raise ConfigError(f"seed={self.seed}: at most {2**63 - 1} is possible")
        for name in ("seq_len", "eval_windows", "threads", "log_interval"):
            if getattr(self, name) is not None:
                require_int(name, getattr(self, name), least=1)
        for name in ("lr", "eps", "grad_clip"):
            require_float(name, getattr(self, name), above=0.0)
        require_float("process_timeout", self.process_timeout, above=0.0)
        if self.peak_tflops is not None:
            require_float("peak_tflops", self.peak_tflops, above=0.0)
        for name in ("lr_final", "weight_decay", "l1_coefficient", "dead_reinit"):
            require_float(name, getattr(self, name), least=0.0)

    @property
    def lm(self) -> LMConfig:
        """The model's config."""
        assert isinstance(self.model, LMConfig)
        return self.model

    @property
    def tokens_per_sequence(self) -> int:
        """``seq_len``, or the model's ``max_seq_len``."""
        return self.lm.max_seq_len if self.seq_len is None else self.seq_len

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one optimiser step learns from."""
        return self.batch_size * self.accumulation * self.tokens_per_sequence

    def learning_rate(self, step: int) -> float:
        """Rate of a step (from 0): linear rise, then a cosine down to ``lr_final * lr`` at the last step."""
        if step < self.lr_warmup_steps:
            return self.lr * (step + 1) / self.lr_warmup_steps
        share = (step - self.lr_warmup_steps) / max(1, self.steps - 1 - self.lr_warmup_steps)
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, share)))
        return self.lr * (self.lr_final + (1 - self.lr_final) * cosine)

    def l1_at(self, step: int) -> float:
        """L1 coefficient of a step (from 0), as the model's sparsifier has it: :meth:`l1_warmup` for most."""
        return self.lm.method.l1_at(self, step)

    def l1_warmup(self, step: int) -> float:
        """L1 coefficient of a step by ``l1_start_step`` and ``l1_full_step``."""
        if step < self.l1_start_step:
            return 0.0
        if step >= self.l1_full_step:
            return self.l1_coefficient
        return self.l1_coefficient * (step - self.l1_start_step) / (self.l1_full_step - self.l1_start_step)

    def to_dict(self) -> dict[str, Any]:
        """All settings, for JSON."""
        return {
            field.name: self.lm.to_dict() if field.name == "model" else getattr(self, field.name)
            for field in fields(self)
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainConfig:
        """The config that :meth:`to_dict` wrote.

        Raises
        ------
        ConfigError
            A setting is unknown or out of range.
        """
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise ConfigError(f"unknown training settings {', '.join(unknown)}: known are {', '.join(sorted(known))}")
        settings = dict(values)
        if isinstance(settings.get("model"), Mapping):
            settings["model"] = LMConfig.from_dict(settings["model"])
        return cls(**settings)

    def differences(self, other: TrainConfig) -> list[str]:
        """Settings other than operational ones in which two runs differ: ``"lr: 0.001 and 0.002"``."""
        mine, theirs = self.to_dict(), other.to_dict()
        return [
            f"{name}: {mine[name]} and {theirs[name]}"
            for name in mine
            if name not in OPERATIONAL and _plain(mine[name]) != _plain(theirs[name])
        ]


def _is_share(value: object) -> bool:
    """Whether it is a number from 0 to below 1."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1


def _plain(value: object) -> object:
    """JSON gives lists for tuples."""
    return list(value) if isinstance(value, tuple) else value
