"""The training loop.

The loss is ``cross-entropy + l1_coefficient * L1`` with L1 the sum of ``|h|`` over the hidden units, mean over
tokens, mean over layers: the same number for any split of a step into micro-batches and over processes.

Letters: B sequences, N positions, L layers, H hidden width.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from twellviz._machine import torch_threads
from twellviz.data.order import WindowOrder
from twellviz.data.token_map import TokenMap
from twellviz.data.tokens import TokenArray
from twellviz.errors import ConfigError, DivergedError
from twellviz.models.checkpoint import load_checkpoint
from twellviz.models.lm import LM
from twellviz.training.config import TrainConfig
from twellviz.training.distributed import ALONE, Ranks, processes
from twellviz.training.history import CsvLog, Row, columns
from twellviz.training.inputs import Text, training_texts
from twellviz.training.measure import Evaluation, autocast, evaluate
from twellviz.training.mfu import device_peak, flops_per_token
from twellviz.training.optimizer import adamw
from twellviz.training.progress import TensorBoard, progress_bar, say
from twellviz.training.reinit import reinitialise_dead_gates
from twellviz.training.shards import shard, whole, whole_model
from twellviz.training.signals import StopRequest
from twellviz.training.state import checkpoints, move_aside, restore_newest, save_state, write_config

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class TrainResult:
    """What a run gave.

    Attributes
    ----------
    config : TrainConfig
    model : LM
        In evaluation mode. Of several processes rank 0 alone has its weights.
    history : list of dict
        One row a step; the columns are those of :mod:`twellviz.training.history`.
    evaluation : Evaluation or None
        On the whole held-out text, with and without the feed-forward blocks; None where the run was stopped.
    stopped : str or None
        Name of the signal that stopped it before the last step.
    ranks : Ranks
        Which process this is; rank 0 of one, unless started by torchrun.
    """

    config: TrainConfig
    model: LM
    history: list[Row]
    evaluation: Evaluation | None
    stopped: str | None = None
    ranks: Ranks = ALONE

    @property
    def seconds(self) -> float:
        """Time spent in training steps, without measurements and checkpoints."""
        return sum(self.config.tokens_per_step / row["tokens_per_second"] for row in self.history)

    @property
    def mfu(self) -> float | None:
        """Mean share of the devices' dense peak; None where the peak is not known."""
        device = next(self.model.parameters()).device
        peak = device_peak(device, self.config.dtype, self.config.peak_tflops)
        if peak is None or not self.history:
            return None
        n_tokens = len(self.history) * self.config.tokens_per_step
        work = n_tokens * flops_per_token(self.config.lm, self.config.tokens_per_sequence)
        return work / self.seconds / (peak * self.ranks.world)

    def frame(self) -> pd.DataFrame:
        """The history as a table."""
        import pandas as pd

        return pd.DataFrame(self.history)


def train(
    config: TrainConfig,
    *,
    train_tokens: TokenArray | TokenMap | None = None,
    validation_tokens: TokenArray | TokenMap | None = None,
    resume: bool = False,
    progress: bool = True,
    on_step: Callable[[Row], None] | None = None,
) -> TrainResult:
    """Train a model for a fixed number of steps.

    Seeds torch's global random state with ``config.seed``. The first Ctrl-C or SIGTERM stops after the current
    step, with a checkpoint if there is a folder.

    Under ``torchrun`` each process calls this with the same arguments: they share each pass of ``batch_size``
    sequences and cut the model among them (:mod:`twellviz.training.shards`). The settings, the token ids of a step, the
    files and, up to rounding, the losses are those of one process. A signal to any of them stops all.

    Parameters
    ----------
    config : TrainConfig
    train_tokens, validation_tokens : uint16 or uint32 [n_tokens], or TokenMap, optional
        The shipped text with the shipped tokenizer if not given. A token map stays on disk; the same ids as an array
        give the same losses.
    resume : bool
        Continue the run in ``config.out``; with its settings and text the losses are, on one machine with the same
        number of threads, those of an unbroken run to the last bit.
    progress : bool
        Show a progress bar.
    on_step : callable, optional
        Called with the row of each step, as soon as its figures are fetched (``log_interval``); on rank 0.

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
    ProcessError
        Another process has failed, or they found different checkpoints.
    """
    train_text, validation_text = training_texts(train_tokens, validation_tokens, config)
    with processes(config.device, timeout=config.process_timeout) as (ranks, device), torch_threads(config.threads):
        shown = progress and ranks.first
        run = _Run(config, train_text, validation_text.tokens, device, ranks, resume=resume)
        try:
            stopped = run.loop(shown, on_step)
        finally:
            run.close()
        evaluation = None
        if stopped is None:
            say("measuring held-out loss ...", shown=shown)
            evaluation = evaluate(
                run.model, validation_text.tokens, seq_len=config.tokens_per_sequence, dtype=config.dtype, ranks=ranks
            )
        model = whole_model(run.model, ranks).eval()
    return TrainResult(config, model, run.history, evaluation, stopped, ranks)


class _Run:
    """State of one run: what a checkpoint holds, and the open log."""

    def __init__(
        self,
        config: TrainConfig,
        train_text: Text,
        validation_tokens: TokenArray,
        device: torch.device,
        ranks: Ranks,
        *,
        resume: bool,
    ) -> None:
        self.config, self.device, self.validation_tokens, self.ranks = config, device, validation_tokens, ranks
        ranks.check_batch(config.batch_size)
        self.order = WindowOrder(
            train_text.tokens,
            seq_len=config.tokens_per_sequence,
            sequences=config.batch_size * config.accumulation,
            seed=config.seed,
        )
        self.text_sha256 = train_text.sha256
        torch.manual_seed(config.seed)
        self.model = _first_model(config).train()
        self.model.checkpoint_layers = config.checkpoint_activations
        self.method = config.lm.method
        if config.compile:
            for layer in self.model.layers:
                # Layer by layer: they share one compiled graph, and their parameters keep their names.
                layer.compile(dynamic=False)
        low_precision = config.dtype == "bfloat16" and device.type == "cuda"
        self.model = shard(self.model, device, ranks, low_precision=low_precision)
        self.optimizer = adamw(self.model, config)
        self.log_interval = config.log_interval or (10 if device.type == "cuda" else 1)
        self.history: list[Row] = []
        self.step = 0
        self._pending: list[tuple[Row, Tensor]] = []
        self._timed_from = 0.0
        self.log: CsvLog | None = None
        self.board: TensorBoard | None = None
        if config.out == "":
            raise ConfigError("out='': name a folder, as in runs/nano ('.' is the current one)")
        self.folder = None if config.out is None else Path(config.out)
        if resume and self.folder is None:
            raise ConfigError("resume=True without out: give the folder of the run to continue")
        if self.folder is not None:
            self._open_folder(self.folder, resume)

    def _open_folder(self, folder: Path, resume: bool) -> None:
        log = folder / "log.csv"
        if resume:
            self.step, self.history = restore_newest(folder, self.model, self.optimizer, self.config, self.text_sha256)
            self.ranks.check_same(
                "the step of the newest checkpoint", self.step, f"{folder} must be one folder for all"
            )
        self.ranks.first_does(lambda: self._prepare(folder, log, resume))

    def _prepare(self, folder: Path, log: Path, resume: bool) -> None:
        """Begin or go on with the folder's files: rank 0."""
        if resume and not self.step:
            aside = move_aside(log)
            warnings.warn(
                f"{folder} holds no finished checkpoint: the run starts anew"
                + (f"; its log so far is now {aside.name}" if aside else ""),
                stacklevel=7,
            )
        elif not resume and (checkpoints(folder) or (folder / "config.json").exists() or log.exists()):
            raise ConfigError(f"out={str(folder)!r} already holds a run: resume it, or give another folder")
        if self.config.tensorboard:
            self.board = TensorBoard(folder / "tensorboard", self.step)
        write_config(folder, self.config)
        self.log = CsvLog(log, columns(self.config.lm.n_layers), self.history)

    def close(self) -> None:
        for writer in (self.log, self.board):
            if writer is not None:
                writer.close()

    def loop(self, progress: bool, on_step: Callable[[Row], None] | None) -> str | None:
        """Run the remaining steps; the name of the signal that stopped it, if one did."""
        saved, config = self.step, self.config
        work = flops_per_token(config.lm, config.tokens_per_sequence)
        peak = device_peak(self.device, config.dtype, config.peak_tflops)
        peak = None if peak is None else peak * self.ranks.world
        request = StopRequest(repeats=self.ranks.world > 1)
        with request, progress_bar(config.steps, self.step, work, peak, shown=progress) as bar:

            def fetch() -> None:
                for row in (rows := self._fetch()):
                    if self.log is not None:
                        self.log.write(row)
                    if self.board is not None:
                        self.board.write(row)
                if rows:
                    bar(rows)
                if on_step is not None and self.ranks.first:
                    for row in rows:
                        on_step(row)

            stopped = None
            while self.step < config.steps and (stopped := self.ranks.agreed_signal(request.received)) is None:
                validation = self._validation_loss(fetch)
                self._one_step(validation)
                self.step += 1
                due = bool(config.checkpoint_interval) and self.step % config.checkpoint_interval == 0
                if due or self.step % self.log_interval == 0:
                    fetch()
                if due:
                    saved = self._save()
            fetch()
            # Still inside: a second Ctrl-C may end the writing, it cannot leave half a file.
            if self.folder is not None and saved < self.step:
                self._save()
        return stopped if self.step < config.steps else None

    def _save(self) -> int:
        assert self.folder is not None
        run = (self.step, self.model, self.optimizer, self.history, self.config, self.text_sha256)
        save_state(self.folder, *run, ranks=self.ranks)
        return self.step

    def _validation_loss(self, fetch: Callable[[], None]) -> float:
        config = self.config
        if not config.eval_interval or self.step % config.eval_interval:
            return float("nan")
        # First, so that the time of measuring is not counted as the time of steps.
        fetch()
        return evaluate(
            self.model,
            self.validation_tokens,
            seq_len=config.tokens_per_sequence,
            batch_size=config.batch_size,
            max_windows=config.eval_windows,
            without_ffn=False,
            dtype=config.dtype,
            ranks=self.ranks,
        ).loss

    def _one_step(self, validation: float) -> None:
        """Queue the work of a step; nothing here waits for a GPU."""
        config, step = self.config, self.step
        if not self._pending:
            self._timed_from = time.perf_counter()
        lr, l1_coefficient = config.learning_rate(step), config.l1_at(step)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        cross_entropy, l1_L, activity_LH = self._gradients(l1_coefficient)
        grad_norm = whole(torch.nn.utils.clip_grad_norm_(self.model.parameters(), config.grad_clip))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.method.after_step(self.model, config, step)
        if config.dead_reinit:
            reinitialise_dead_gates(self.model, list(activity_LH), config.dead_reinit)
        l0_L = activity_LH.sum(1).double() / config.tokens_per_step
        dead_L = (activity_LH == 0).double().mean(1)
        scalars = torch.stack([cross_entropy, l1_L.mean(), grad_norm.double()])
        known: Row = {
            "step": step,
            "tokens": step * config.tokens_per_step,
            "lr": lr,
            "l1_coefficient": l1_coefficient,
            "validation_loss": validation,
        }
        self._pending.append((known, torch.cat([scalars, l0_L, dead_L])))

    def _fetch(self) -> list[Row]:
        """Rows of the steps since the last call, from the device in one transfer."""
        if not self._pending:
            return []
        names = columns(self.config.lm.n_layers)
        numbers = torch.stack([values for _, values in self._pending]).tolist()
        speed = len(numbers) * self.config.tokens_per_step / (time.perf_counter() - self._timed_from)
        rows = []
        for (known, _), values in zip(self._pending, numbers, strict=True):
            row = self._row(known, values, speed)
            rows.append({name: row[name] for name in names})
        self._pending = []
        self.history += rows
        return rows

    def _row(self, known: Row, values: list[float], speed: float) -> Row:
        L = self.config.lm.n_layers
        (ce, l1, norm), l0, dead = values[:3], values[3 : 3 + L], values[3 + L :]
        if not math.isfinite(ce + l1 + norm):
            raise DivergedError(
                f"step {known['step']}: cross-entropy {ce}, L1 {l1}, gradient norm {norm}. The run has diverged; lower "
                f"lr ({self.config.lr:g}) or l1_coefficient ({self.config.l1_coefficient:g}). Checkpoints from before "
                "remain"
            )
        figures: Row = {
            "loss": ce + known["l1_coefficient"] * l1,
            "cross_entropy": ce,
            "l1": l1,
            "l0": sum(l0) / L,
            "dead": sum(dead) / L,
            "grad_norm": norm,
            "tokens_per_second": speed,
        }
        return known | figures | {f"l0_{i}": l0[i] for i in range(L)} | {f"dead_{i}": dead[i] for i in range(L)}

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
            own = self.ranks.share(config.batch_size)
            inputs_BN, targets_BN = (self._to_device(array[rows][own]) for array in (inputs, targets))
            with autocast(self.device, config.dtype):
                output = self.model(inputs_BN, targets_BN, with_stats=True, with_logits=False)
            part_l1_L = torch.stack([stats.l1 for stats in output.stats])
            # Parts hold equally many tokens, so the mean of their means is the mean over the step. Over processes the
            # sharded gradients are averaged as they are made.
            loss = output.loss + l1_coefficient * part_l1_L.mean()
            balance = self.method.balance(output.stats)
            if balance is not None:
                loss = loss + balance
            (loss / config.accumulation).backward()
            cross_entropy += output.loss.detach().double() / config.accumulation
            l1_L += part_l1_L.detach().double() / config.accumulation
            activity_LH += torch.stack([stats.activity for stats in output.stats])
        means = self.ranks.mean_(torch.cat([cross_entropy.unsqueeze(0), l1_L]))
        return means[0], means[1:], self.ranks.sum_(activity_LH)

    def _to_device(self, array_BN: npt.NDArray[np.int64]) -> Tensor:
        tensor = torch.from_numpy(array_BN)
        if self.device.type != "cuda":
            return tensor
        # From page-locked memory the copy is queued like a kernel; torch keeps the memory until it is done.
        return tensor.contiguous().pin_memory().to(self.device, non_blocking=True)


def _first_model(config: TrainConfig) -> LM:
    model = LM(config.lm)  # Also where its weights are replaced: what follows is drawn after the same numbers.
    if config.init is None:
        return model
    given = load_checkpoint(config.init)
    if given.cfg != config.lm:
        raise ConfigError(f"init={config.init!r} is a model of other sizes or options: {given.cfg}, not {config.lm}")
    return given
