"""What is seen of a run while it goes on: the progress bar and TensorBoard."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from twellviz.errors import ConfigError
from twellviz.training.history import Row


@contextmanager
def progress_bar(
    steps: int, done: int, flops_per_token: float, peak_flops: float | None, *, shown: bool
) -> Iterator[Callable[[list[Row]], None]]:
    """A function that shows further steps, the last of them in figures."""
    if not shown:
        yield lambda rows: None
        return
    from tqdm.auto import tqdm

    bar: Any = tqdm(total=steps, initial=done, desc="train", unit="step")

    def advance(rows: list[Row]) -> None:
        row = rows[-1]
        mfu = "n/a" if peak_flops is None else f"{row['tokens_per_second'] * flops_per_token / peak_flops:.1%}"
        bar.set_postfix(
            loss=f"{row['cross_entropy']:.3f}",
            L0=f"{row['l0']:.1f}",
            dead=f"{row['dead']:.0%}",
            tok_s=f"{row['tokens_per_second']:.3g}",
            MFU=mfu,
            refresh=False,
        )
        bar.update(len(rows))

    try:
        yield advance
    finally:
        bar.close()


def say(text: str, *, shown: bool) -> None:
    """A line beside the bar, where there is one."""
    if shown:
        print(text, file=sys.stderr, flush=True)


class TensorBoard:
    """The history as TensorBoard scalars, one tag a column, in ``folder``.

    Parameters
    ----------
    folder : Path
    first_step : int
        Of this run; what an earlier one wrote from there on is hidden.

    Raises
    ------
    ConfigError
        The package ``tensorboard`` is not installed.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                "tensorboard=True: the Python package 'tensorboard' is not installed; pip install 'twellviz[train]', "
                "or leave it out: log.csv holds the same"
            ) from error
        self._writer: Any = SummaryWriter(str(folder), purge_step=first_step)

    def write(self, row: Row) -> None:
        """Add the figures of a step."""
        for name, value in row.items():
            if name != "step" and not math.isnan(value):
                self._writer.add_scalar(_tag(name), value, int(row["step"]))

    def close(self) -> None:
        """Write what is left and close."""
        self._writer.close()


def _tag(name: str) -> str:
    """Layers in groups of their own: ``l0_3`` as ``l0_by_layer/3``."""
    stem, _, last = name.rpartition("_")
    return f"{stem}_by_layer/{last}" if last.isdigit() else f"train/{name}"
