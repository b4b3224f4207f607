"""Benchmarks that were recorded earlier and ship in ``data/benchmarks``, as a table. Letters: none."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from twellviz.bench.report import FORMAT, VERSION
from twellviz.data.paths import DataNotFoundError, data_path
from twellviz.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd


def recorded(name: str) -> pd.DataFrame | None:
    """Figures of ``data/benchmarks/<name>.json``, one row for each timed path.

    Parameters
    ----------
    name : str
        Without folder and ending: ``"ffn_cpu"``.

    Returns
    -------
    DataFrame or None
        None where no such file ships. ``tokens, width, hidden, dtype, gated`` (of the layer), ``active`` (mean active
        neurons of a token), ``floor_ms`` (the gate product alone), ``step, path, median_ms, low_ms, high_ms``
        (quartiles), ``times_dense`` (how many times as fast as dense), ``error, right, note``. ``attrs`` holds
        ``device, versions, date, command``; :func:`origin` says them in a line.

    Raises
    ------
    ConfigError
        The file is no such record, or of another version.
    """
    try:
        path = data_path(f"benchmarks/{name}.json")
    except DataNotFoundError:
        return None
    record = json.loads(path.read_text(encoding="utf-8"))
    found = (record.get("format"), record.get("version")) if isinstance(record, dict) else (None, None)
    if found != (FORMAT, VERSION):
        raise ConfigError(
            f"{path} is {found[0]!r}, version {found[1]!r}: {FORMAT!r}, version {VERSION} is needed; make it with "
            "python -m twellviz bench ffn --json"
        )
    import pandas as pd

    frame = pd.DataFrame([_row(result, path) for result in record["results"] for path in result["paths"]])
    frame.attrs.update({key: record[key] for key in ("device", "versions", "date", "command")})
    return frame


def origin(frame: pd.DataFrame) -> str:
    """Device, versions, date and command of a recorded table, in two lines."""
    about = frame.attrs
    versions = ", ".join(f"{package} {version}" for package, version in about["versions"].items())
    return f"recorded on {about['date']}: {about['device']}; {versions}\nby: {about['command']}"


def _row(result: dict[str, Any], path: dict[str, Any]) -> dict[str, Any]:
    config = result["config"]
    low, high = path["quartiles_ms"]
    return {
        **{key: config[key] for key in ("tokens", "width", "hidden", "dtype", "gated")},
        "active": result["activity"]["mean"],
        "floor_ms": result["floor_ms"],
        "step": path["step"],
        "path": path["name"],
        "median_ms": path["median_ms"],
        "low_ms": low,
        "high_ms": high,
        **{key: path[key] for key in ("times_dense", "error", "right", "note")},
    }
