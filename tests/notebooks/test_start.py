"""The first cell of a notebook, figures with alternative text, and sources shown as they run."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import matplotlib as mpl
import pytest
from matplotlib import pyplot as plt

import twellviz
from twellviz.errors import ConfigError

mpl.use("Agg")


@pytest.fixture
def displayed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, dict[str, Any]]]:
    import IPython.display

    calls: list[tuple[Any, dict[str, Any]]] = []
    monkeypatch.setattr(IPython.display, "display", lambda bundle, **options: calls.append((bundle, options)))
    return calls


def test_import_is_light_and_opens_no_gpu() -> None:
    code = "import sys, twellviz; print([m for m in ('torch', 'numpy', 'numba', 'matplotlib') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_start_says_device_and_scale(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TWELLVIZ_SCALE", "full")
    with mpl.rc_context():
        session = twellviz.start()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["versions", "device", "kernels", "scale"]
    assert session.pick(1, full=2) == 2
    monkeypatch.delenv("TWELLVIZ_SCALE")
    with mpl.rc_context():
        assert twellviz.start().pick(1, full=2) == 1


def test_start_refuses_an_unknown_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWELLVIZ_SCALE", "huge")
    with pytest.raises(ConfigError, match=r"TWELLVIZ_SCALE='huge': set it to one of default, full"):
        twellviz.start()


@pytest.mark.parametrize(
    ("available", "capability", "device", "says"),
    [(False, (0, 0), "cpu", "no CUDA GPU"), (True, (6, 0), "cpu", "6.0, 7.5 is needed"), (True, (9, 0), "cuda", "9.0")],
)
def test_device_by_capability_not_by_availability(
    available: bool,
    capability: tuple[int, int],
    device: str,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A card")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    with mpl.rc_context():
        assert twellviz.start().device == device
    assert says in capsys.readouterr().out


def test_show_gives_png_alt_and_text_and_closes(displayed: list[tuple[Any, dict[str, Any]]]) -> None:
    figure, axes = plt.subplots(figsize=(2, 1))
    twellviz.show(axes, alt="an empty frame")
    ((bundle, options),) = displayed
    assert bundle["text/plain"] == "an empty frame"
    assert bundle["image/png"].startswith("iVBORw0KGgo")
    assert options["metadata"]["image/png"]["alt"] == "an empty frame"
    assert not plt.fignum_exists(figure.number)
    with pytest.raises(ConfigError, match="alt=''"):
        twellviz.show(figure, alt=" ")


def test_show_source_is_the_file_itself(displayed: list[tuple[Any, dict[str, Any]]]) -> None:
    twellviz.show_source("twellviz.exercises.nb03", "bf16_bits", "_fit_cases")
    text = displayed[0][0]["text/plain"]
    assert text.startswith("def bf16_bits(value: float) -> int:")
    assert "def _fit_cases()" in text
    for name in ("missing", "bf16_bits.missing", ""):
        with pytest.raises(ConfigError, match="defines no function or class"):
            twellviz.show_source("twellviz.exercises.nb03", name)
    with pytest.raises(ConfigError, match=r"module='twellviz\.missing'"):
        twellviz.show_source("twellviz.missing", "name")


def test_show_source_cuts_long_docstrings_unless_told(displayed: list[tuple[Any, dict[str, Any]]]) -> None:
    twellviz.show_source("twellviz._show", "show")
    twellviz.show_source("twellviz._show", "show", full=True)
    cut, full = (bundle["text/plain"] for bundle, _ in displayed)
    first = '    """Display a figure as PNG with alternative text, then close it.'
    assert f'{first}"""\n    from matplotlib' in cut
    assert f"{first}\n\n    Parameters" in full
    assert cut.splitlines()[-1] == full.splitlines()[-1]
