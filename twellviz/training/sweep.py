"""What a sweep over L1 coefficients found, from its table (``data/benchmarks/l1_sweep_mini.csv``).

Letters: H hidden width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twellviz.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd

LEAST_SHARE = 0.005
"""Least share of H that the recommended coefficient leaves active: below it the paper sees quality slip (section 4)."""

NEEDED = ("group", "l1", "seed", "loss", "l0_share", "dead_share")


def load_sweep(name: str = "l1_sweep_mini") -> pd.DataFrame:
    """A recorded sweep, one row a run.

    Parameters
    ----------
    name : str
        File in ``data/benchmarks``, without its ending.

    Returns
    -------
    DataFrame
        ``name, group`` ("coefficient", "recipe", "activation", "gate", "shipped"), ``l1, seed, l1_start, l1_full,
        reinit, activation, gated, steps, batch, tokens, H``, then what was measured on held-out text: ``loss``,
        ``loss_without_ffn``, ``l0`` (mean active neurons of a token), ``l0_share`` (of H), ``dead_share``, ``l0_i`` and
        ``dead_i`` for layer i; then ``seconds``, device, versions, date and command.

    Raises
    ------
    DataNotFoundError
        No such file ships.
    """
    import pandas as pd

    from twellviz.data.paths import data_path

    return pd.read_csv(data_path(f"benchmarks/{name}.csv"))


def by_coefficient(sweep: pd.DataFrame) -> pd.DataFrame:
    """The runs that differ in coefficient and seed alone, one row a coefficient.

    Parameters
    ----------
    sweep : DataFrame
        As from :func:`load_sweep`.

    Returns
    -------
    DataFrame
        Ascending ``l1``; ``seeds``; mean, lowest and highest over the seeds of ``loss``, ``l0_share`` and
        ``dead_share`` (``loss``, ``loss_low``, ``loss_high``, ...); ``loss_rise``, the mean loss over that of
        coefficient 0, less 1.

    Raises
    ------
    ConfigError
        A column is missing, or no run has coefficient 0.
    """
    missing = [name for name in NEEDED if name not in sweep.columns]
    if missing:
        raise ConfigError(f"sweep has no column {', '.join(missing)}: give the table of a sweep, as load_sweep() does")
    runs = sweep[sweep["group"] == "coefficient"].groupby("l1")
    table = runs.agg(seeds=("seed", "nunique")).reset_index()
    for name in ("loss", "l0_share", "dead_share"):
        for suffix, how in (("", "mean"), ("_low", "min"), ("_high", "max")):
            table[name + suffix] = runs[name].agg(how).to_numpy()
    zero = table.loc[table["l1"] == 0, "loss"]
    if zero.empty:
        raise ConfigError("sweep has no run with coefficient 0: the rise of the loss is measured against it")
    table["loss_rise"] = table["loss"] / float(zero.iloc[0]) - 1
    return table


def recommended_coefficient(sweep: pd.DataFrame) -> float | None:
    """The largest coefficient whose mean L0 is at least 0.5 % of H, whatever the loss does there.

    The rule was fixed before the first run. None where no coefficient keeps so many neurons active.
    """
    table = by_coefficient(sweep)
    kept = table.loc[(table["l1"] > 0) & (table["l0_share"] >= LEAST_SHARE), "l1"]
    return None if kept.empty else float(kept.max())
