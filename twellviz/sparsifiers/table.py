"""What a comparison of the methods found, from its table (``data/benchmarks/sparsifiers_mini.csv``).

Letters: H hidden width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twellviz.errors import ConfigError
from twellviz.sparsifiers.registry import METHODS

if TYPE_CHECKING:
    import pandas as pd

MEASURED = ("loss", "l0_share")
SPEEDS = ("prefill_plain_ms", "prefill_dense_ms", "prefill_sparse_ms")
DECODES = tuple(name.replace("prefill", "decode") for name in SPEEDS)
NEEDED = ("setting", "method", "seed", *MEASURED)


def load_comparison(name: str = "sparsifiers_mini") -> pd.DataFrame:
    """A recorded comparison, one row a setting and seed.

    Parameters
    ----------
    name : str
        File in ``data/benchmarks``, without its ending.

    Returns
    -------
    DataFrame
        ``setting, method, seed, sparsity`` (the target of a calibrated method), then what was measured on held-out
        text: ``loss``, ``loss_without_ffn``, ``l0``, ``l0_share`` (of H), ``dead_share``; then milliseconds of all
        feed-forward blocks together, ``prefill_*`` for 4096 tokens and ``decode_*`` for one (see
        :class:`twellviz.sparsifiers.speed.Speed`), and steps, tokens, device, versions, date and command.

    Raises
    ------
    DataNotFoundError
        No such file ships: ``experiments/sparsifiers.py`` makes it.
    """
    import pandas as pd

    from twellviz.data.paths import data_path

    return pd.read_csv(data_path(f"benchmarks/{name}.csv"))


def by_setting(table: pd.DataFrame) -> pd.DataFrame:
    """One row a setting, in the order of :data:`twellviz.sparsifiers.METHODS`.

    Parameters
    ----------
    table : DataFrame
        As from :func:`load_comparison`; the columns of speed may be missing.

    Returns
    -------
    DataFrame
        ``setting, method, seeds``; for loss, share of active neurons, and ``prefill_over_plain`` and
        ``decode_over_plain`` (plain dense time over the method's sparse time) the mean over the seeds, and its lowest
        and highest value with ``_low`` and ``_high``.

    Raises
    ------
    ConfigError
        A column is missing, or a method is unknown.
    """
    import pandas as pd

    if missing := [name for name in NEEDED if name not in table.columns]:
        raise ConfigError(f"table has no column {', '.join(missing)}: give a comparison, as load_comparison() does")
    if unknown := sorted(set(table["method"]) - set(METHODS)):
        raise ConfigError(f"table has methods {', '.join(unknown)}: known are {', '.join(METHODS)}")
    runs = table.assign(
        **{
            f"{kind}_over_plain": table[f"{kind}_plain_ms"] / table[f"{kind}_sparse_ms"]
            for kind in ("prefill", "decode")
            if f"{kind}_sparse_ms" in table.columns
        }
    )
    figures = [name for name in (*MEASURED, "prefill_over_plain", "decode_over_plain") if name in runs.columns]
    rows = []
    for (method, setting), group in runs.groupby(["method", "setting"], sort=False):
        row: dict[str, Any] = {"setting": setting, "method": method, "seeds": group["seed"].nunique()}
        for name in figures:
            row |= {name: group[name].mean(), f"{name}_low": group[name].min(), f"{name}_high": group[name].max()}
        rows.append(row)
    order = list(METHODS)
    rows.sort(key=lambda row: (order.index(row["method"]), -row["l0_share"]))
    return pd.DataFrame(rows)


def on_front(summary: pd.DataFrame) -> list[bool]:
    """Which settings no other beats in both mean loss and mean share of active neurons (the Pareto front).

    Parameters
    ----------
    summary : DataFrame
        As from :func:`by_setting`.
    """
    points = list(zip(summary["loss"], summary["l0_share"], strict=True))
    return [not any(a <= loss and b <= share and (a, b) != (loss, share) for a, b in points) for loss, share in points]
