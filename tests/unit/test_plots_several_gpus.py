"""The pictures of sharding and memory show the numbers behind them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import matplotlib as mpl
import pytest
from matplotlib import pyplot as plt

from twellviz import plots
from twellviz.errors import ConfigError
from twellviz.models import PRESETS
from twellviz.training.estimate import Step, memory

mpl.use("Agg")

DENSE = Step(model=PRESETS["0.5b"], batch_size=8)
STEPS = {"dense": DENSE, "sparse": replace(DENSE, mean_active=29.0)}


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    yield
    plt.close("all")


def test_every_row_lies_on_one_gpu_and_one_layer_is_gathered() -> None:
    table = plots.sharding_table(3, 5, n_rows=12)
    for (_, _), rows in table.groupby(["moment", "layer"]):
        assert (rows["last"] - rows["first"]).sum() == 12
    gathered = table[table["gathered"]].groupby("moment")["layer"].unique()
    assert {moment: layers.tolist() for moment, layers in gathered.items()} == {
        f"{way} {layer}": [layer] for way in ("forward", "backward") for layer in range(3)
    }
    ax = plots.sharding(3, 2)
    assert [label.get_text() for label in ax.get_xticklabels()][:2] == ["at rest", "forward 0"]
    assert len([patch for patch in ax.patches if patch.get_hatch()]) == 2 * 6
    with pytest.raises(ConfigError, match="gpus=0"):
        plots.sharding(2, 0)


def test_bars_end_at_the_peak() -> None:
    table = plots.memory_table(STEPS)
    assert table.loc["dense", "sum"] == memory(DENSE).peak
    ax = plots.memory_parts(STEPS, limit=80e9)
    for place, step in enumerate(STEPS.values()):
        ends = [bars[place].get_x() + bars[place].get_width() for bars in ax.containers]
        assert max(ends) == pytest.approx(memory(step).peak / 1e9)
    assert "dense 20 GB; sparse 15 GB; the GPU has 80 GB" in plots.describe(plots.memory_parts, STEPS, limit=80e9)
    assert "2 GPUs keep 1/2" in plots.describe(plots.sharding, 3, gpus=2)
    with pytest.raises(ConfigError, match="steps is empty"):
        plots.memory_parts({})
