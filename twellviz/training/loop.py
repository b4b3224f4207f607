"""The training loop.

The loss is ``cross-entropy + l1_coefficient * L1`` with L1 the sum of ``|h|`` over the hidden units, mean over
tokens, mean over layers: the same number for any split of a step into micro-batches.

Letters: B sequences, N positions, L layers, H hidden width.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from twellviz.data.order import WindowOrder
from twellviz.data.tokenizer import Tokenizer
from twellviz.data.tokens import TokenArray, load_tokens
from twellviz.errors import ConfigError, DivergedError
from twellviz.models.lm import LM
from twellviz.training.config import TrainConfig
from twellviz.training.history import CsvLog, Row, columns
from twellviz.training.measure import Evaluation, autocast, evaluate
from twellviz.training.reinit import reinitialise_dead_gates
from twellviz.training.signals import StopRequest
from twellviz.training.state import checkpoints, restore_newest, save_state, write_config

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class TrainResult:
    """What a run gave.

    Attributes
    ----------
    config : TrainConfig
    model : LM
        In evaluation mode.
    history : list of dict
        One row a step; the columns are those of :mod:`twellviz.training.history`.
    evaluation : Evaluation or None
        On the whole held-out text, with and without the feed-forward blocks; None where the run was stopped.
    stopped : str or None
        Name of the signal that stopped it before the last step.
    """

    config: TrainConfig
    model: LM
    history: list[Row]
    evaluation: Evaluation | None
    stopped: str | None = None

    @property
    def seconds(self) -> float:
        """Time spent in training steps, without measurements and checkpoints."""
        return sum(self.config.tokens_per_step / row["tokens_per_second"] for row in self.history)

    def frame(self) -> pd.DataFrame:
        """The history as a table."""
        import pandas as pd

        return pd.DataFrame(self.history)


def train(
    config: TrainConfig,
    *,
    train_tokens: TokenArray | None = None,
    validation_tokens: TokenArray | None = None,
    resume: bool = False,
    progress: bool = True,
    on_step: Callable[[Row], None] | None = None,
) -> TrainResult:
    """Train a model for a fixed number of steps.

    Seeds torch's global random state with ``config.seed``. The first Ctrl-C or SIGTERM stops after the current
    step, with a checkpoint if there is a folder.

    Parameters
    ----------
    config : TrainConfig
    train_tokens, validation_tokens : uint16 or uint32 [n_tokens], optional
        The shipped text with the shipped tokenizer if not given.
    resume : bool
        Continue the run in ``config.out``; with its settings and text the losses are, on one machine with the same
        number of threads, those of an unbroken run to the last bit.
    progress : bool
        Show a progress bar.
    on_step : callable, optional
        Called with the row of each step.

    Returns
    -------
    TrainResult

    Raises
    ------
    ConfigError
        Settings contradict the text, the device or the folder.
    DivergedError
        Loss or gradient is no longer finite.
    CheckpointError
        With ``resume``: the checkpoint is damaged or of another text.
    """
    train_tokens = _tokens("train", train_tokens, config)
    validation_tokens = _tokens("validation", validation_tokens, config)
    device = _device(config.device)
    with _threads(config.threads):
        run = _Run(config, train_tokens, validation_tokens, device, resume=resume)
        try:
            stopped = run.loop(progress, on_step)
        finally:
            run.close()
        evaluation = None
        if stopped is None:
            evaluation = evaluate(run.model, validation_tokens, seq_len=config.tokens_per_sequence, dtype=config.dtype)
    return TrainResult(config, run.model.eval(), run.history, evaluation, stopped)


class _Run:
    """State of one run: what a checkpoint holds, and the open log."""

    def __init__(
        self,
        config: TrainConfig,
        train_tokens: TokenArray,
        validation_tokens: TokenArray,
        device: torch.device,
        *,
        resume: bool,
    ) -> None:
        self.config, self.device, self.validation_tokens = config, device, validation_tokens
        self.order = WindowOrder(
            train_tokens,
            seq_len=config.tokens_per_sequence,
            sequences=config.batch_size * config.accumulation,
            seed=config.seed,
        )
        self.text_sha256 = hashlib.sha256(train_tokens.tobytes()).hexdigest()
        torch.manual_seed(config.seed)
        self.model = LM(config.lm).to(device).train()
        self.optimizer = _optimizer(self.model, config)
        self.history: list[Row] = []
        self.step = 0
        self.log: CsvLog | None = None
        if config.out == "":
            raise ConfigError("out='': name a folder, as in runs/nano ('.' is the current one)")
        self.folder = None if config.out is None else Path(config.out)
        if resume and self.folder is None:
            raise ConfigError("resume=True without out: give the folder of the run to continue")
        if self.folder is not None:
            self._open_folder(self.folder, resume)

    def _open_folder(self, folder: Path, resume: bool) -> None:
        if resume:
            self.step, self.history = restore_newest(folder, self.model, self.optimizer, self.config, self.text_sha256)
        elif checkpoints(folder) or (folder / "config.json").exists():
            raise ConfigError(f"out={str(folder)!r} already holds a run: resume it, or give another folder")
        write_config(folder, self.config)
        self.log = CsvLog(folder / "log.csv", columns(self.config.lm.n_layers), self.history)

    def close(self) -> None:
        if self.log is not None:
            self.log.close()

    def loop(self, progress: bool, on_step: Callable[[Row], None] | None) -> str | None:
        """Run the remaining steps; the name of the signal that stopped it, if one did."""
        saved = self.step
        with StopRequest() as stop, _bar(self.config.steps, self.step, shown=progress) as bar:
            while self.step < self.config.steps and stop.received is None:
                row = self._one_step()
                self.history.append(row)
                self.step += 1
                if self.log is not None:
                    self.log.write(row)
                bar(row)
                if on_step is not None:
                    on_step(row)
                if self.config.checkpoint_interval and self.step % self.config.checkpoint_interval == 0:
                    saved = self._save()
            # Still inside: a second Ctrl-C may end the writing, it cannot leave half a file.
            if self.folder is not None and saved < self.step:
                self._save()
        return stop.received if self.step < self.config.steps else None

    def _save(self) -> int:
        assert self.folder is not None
        save_state(self.folder, self.step, self.model, self.optimizer, self.history, self.config, self.text_sha256)
        return self.step

    def _one_step(self) -> Row:
        config, step = self.config, self.step
        validation = float("nan")
        if config.eval_interval and step % config.eval_interval == 0:
            validation = evaluate(
                self.model,
                self.validation_tokens,
                seq_len=config.tokens_per_sequence,
                batch_size=config.batch_size,
                max_windows=config.eval_windows,
                without_ffn=False,
                dtype=config.dtype,
            ).loss
        begin = time.perf_counter()
        lr, l1_coefficient = config.learning_rate(step), config.l1_at(step)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        cross_entropy, l1_L, activity_LH = self._gradients(l1_coefficient)
        grad_norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.grad_clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if config.dead_reinit:
            reinitialise_dead_gates(self.model, list(activity_LH), config.dead_reinit)
        l0_L = activity_LH.sum(1).double() / config.tokens_per_step
        dead_L = (activity_LH == 0).double().mean(1)
        scalars = torch.stack([cross_entropy, l1_L.mean(), grad_norm.double()])
        # One wait for the device a step.
        numbers = torch.cat([scalars, l0_L, dead_L]).tolist()
        L = config.lm.n_layers
        (ce, l1, norm), l0, dead = numbers[:3], numbers[3 : 3 + L], numbers[3 + L :]
        if not math.isfinite(ce + l1 + norm):
            raise DivergedError(
                f"step {step}: cross-entropy {ce}, L1 {l1}, gradient norm {norm}. The run has diverged; lower lr "
                f"({config.lr:g}) or l1_coefficient ({config.l1_coefficient:g}). Checkpoints from before remain"
            )
        row: Row = {
            "step": step,
            "tokens": step * config.tokens_per_step,
            "lr": lr,
            "l1_coefficient": l1_coefficient,
            "loss": ce + l1_coefficient * l1,
            "cross_entropy": ce,
            "l1": l1,
            "l0": sum(l0) / L,
            "dead": sum(dead) / L,
            "grad_norm": norm,
            "validation_loss": validation,
            "tokens_per_second": config.tokens_per_step / (time.perf_counter() - begin),
        }
        return row | {f"l0_{i}": l0[i] for i in range(L)} | {f"dead_{i}": dead[i] for i in range(L)}

    def _gradients(self, l1_coefficient: float) -> tuple[Tensor, Tensor, Tensor]:
        """Accumulate the gradients of one step: mean cross-entropy, L1 per layer, activity per layer and neuron."""
        config = self.config
        inputs, targets = self.order.batch(self.step)
        L, H = config.lm.n_layers, config.lm.d_hidden
        cross_entropy = torch.zeros((), dtype=torch.float64, device=self.device)
        l1_L = torch.zeros(L, dtype=torch.float64, device=self.device)
        activity_LH = torch.zeros(L, H, dtype=torch.int64, device=self.device)
        for part in range(config.accumulation):
            rows = slice(part * config.batch_size, (part + 1) * config.batch_size)
            tokens_BN, targets_BN = (torch.from_numpy(array[rows]).to(self.device) for array in (inputs, targets))
            with autocast(self.device, config.dtype):
                output = self.model(tokens_BN, targets_BN, with_stats=True)
            part_l1_L = torch.stack([stats.l1 for stats in output.stats])
            # Parts hold equally many tokens, so the mean of their means is the mean over the step.
            loss = (output.loss + l1_coefficient * part_l1_L.mean()) / config.accumulation
            loss.backward()
            cross_entropy += output.loss.detach().double() / config.accumulation
            l1_L += part_l1_L.detach().double() / config.accumulation
            activity_LH += torch.stack([stats.activity for stats in output.stats])
        return cross_entropy, l1_L, activity_LH


def _optimizer(model: LM, config: TrainConfig) -> torch.optim.Optimizer:
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    gains = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": config.weight_decay}, {"params": gains, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)


def _tokens(split: str, given: TokenArray | None, config: TrainConfig) -> TokenArray:
    if given is None:
        tokenizer = Tokenizer.load()
        if tokenizer.vocab_size > config.lm.vocab_size:
            raise ConfigError(
                f"vocab_size={config.lm.vocab_size}: the shipped tokenizer has {tokenizer.vocab_size} entries; "
                "enlarge the model's vocabulary or give tokens of another tokenizer"
            )
        return load_tokens(split, tokenizer)
    if given.ndim != 1 or given.dtype not in (np.uint16, np.uint32):
        raise ConfigError(f"{split}_tokens is {given.dtype} {given.shape}: uint16 or uint32 [n_tokens] is needed")
    if given.size and int(given.max()) >= config.lm.vocab_size:
        raise ConfigError(
            f"{split}_tokens holds id {int(given.max())}: the model knows 0 to {config.lm.vocab_size - 1}; "
            "set vocab_size to the tokenizer's"
        )
    return given


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device={name!r}: give auto, cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device={name!r}: give auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device={name!r}: torch sees {torch.cuda.device_count()} CUDA devices; use auto or cpu")
    return device


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if number is not None:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _bar(steps: int, done: int, *, shown: bool) -> Iterator[Callable[[Row], None]]:
    """A function that shows one more step on a progress bar."""
    if not shown:
        yield lambda row: None
        return
    from tqdm.auto import tqdm

    bar: Any = tqdm(total=steps, initial=done, desc="train", unit="step")

    def advance(row: Row) -> None:
        bar.set_postfix(
            loss=f"{row['cross_entropy']:.3f}", L0=f"{row['l0']:.1f}", dead=f"{row['dead']:.0%}", refresh=False
        )
        bar.update()

    try:
        yield advance
    finally:
        bar.close()
