"""The saved pages, opened from disk with the network off, do the same for what they hold."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("selenium") if not os.environ.get("CI") else None
from selenium.webdriver import Keys  # noqa: E402

from tests.browser.lab import Page  # noqa: E402
from tests.trace_samples import AFTER_HOSTILE, hostile_trace, sample_trace  # noqa: E402
from twellviz.data import data_path  # noqa: E402
from twellviz.explorers import compare, explore, explore_layouts  # noqa: E402
from twellviz.traces import Trace  # noqa: E402

SHOTS = Path(os.environ["TWELLVIZ_SHOTS"]) if "TWELLVIZ_SHOTS" in os.environ else None


@pytest.fixture
def offline(page: Page) -> Iterator[Page]:
    """The page without a network; a tab of its own, so that JupyterLab asks nothing."""
    before = page.driver.current_window_handle
    page.driver.switch_to.new_window("tab")
    page.driver.execute_cdp_cmd("Network.enable", {})
    page.driver.execute_cdp_cmd(
        "Network.emulateNetworkConditions",
        {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0},
    )
    page.forget()
    yield page
    page.driver.close()
    page.driver.switch_to.window(before)


def check_alone(page: Page) -> None:
    """No error, and nothing asked for but the file."""
    errors = page.errors()
    assert not errors, errors
    asked = {address for address in page.traffic()[0] if not address.startswith(("file:", "data:", "blob:"))}
    assert not asked, asked


def test_the_explorers_page(offline: Page, tmp_path: Path) -> None:
    page = offline
    trace = Trace.load(data_path("nano/trace.safetensors"))
    page.driver.get(explore(trace, layer=1, token=700).save(tmp_path / "page.html").as_uri())
    canvas = page.one("#heatmap canvas")
    page.wait(lambda: page.all("#heatmap .tv[data-painted]"), "the heatmap")

    def drawn() -> tuple[str, str, str]:
        texts = page.js("return ['counts', 'neurons'].map((id) => document.getElementById(id).innerText)")
        return page.pixels(canvas), *texts

    for act in (
        lambda: page.click_at(canvas, 300, 12),
        lambda: page.one("#token").send_keys(Keys.ARROW_RIGHT),
        lambda: page.one("#find").send_keys("the king", Keys.ENTER),
        lambda: page.all("#strip button")[20].click(),
    ):
        before = drawn()
        act()
        page.wait(
            lambda before=before: all(a != b for a, b in zip(before, drawn(), strict=True)), "all views to change"
        )
    before = drawn()
    page.one("#layer").send_keys(Keys.ARROW_RIGHT)
    page.wait(lambda: drawn() != before, "the layer")
    page.one("#numbers").click()
    assert len(page.all("#strip sub")) == 160
    page.over(canvas, 300, 12).perform()
    assert "active neurons" in page.wait(lambda: page.one("#heatmap .tv-tip").text, "a tooltip")
    # By keyboard: from the search to the heatmap, along it, zoomed.
    page.one("#find").click()
    page.tab_to("#heatmap canvas")
    for key in (Keys.ARROW_RIGHT, Keys.END, "+", "0"):
        before = drawn()
        page.press(key)
        page.wait(lambda before=before: drawn()[0] != before[0], f"the heatmap by {key!r}")
    seen = set()
    for radio in page.all("#panels input")[1:]:
        radio.click()
        chart = page.wait(
            lambda: next((c for c in page.all("#chart canvas[tabindex]") if c.is_displayed()), None), "a chart"
        )
        page.wait(lambda chart=chart: page.pixels(chart) not in seen, "another chart")
        seen.add(page.pixels(chart))
    assert len(seen) == 4
    assert "are left out" in page.one("#left-out").text
    # Dark where the system is.
    light = page.pixels(canvas), page.js("return getComputedStyle(document.body).backgroundColor")
    for theme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": theme}]
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        if SHOTS:
            page.driver.save_screenshot(str(SHOTS / f"page-{theme}.png"))
    page.wait(lambda: page.pixels(canvas) != light[0], "the dark heatmap")
    assert page.js("return getComputedStyle(document.body).backgroundColor") != light[1]
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    check_alone(page)


def test_hostile_texts_in_the_page(offline: Page, tmp_path: Path) -> None:
    page = offline
    trace = hostile_trace()
    page.driver.get(explore(trace).save(tmp_path / "hostile.html").as_uri())
    page.wait(lambda: page.all("#strip button"), "the strip")
    labels = [button.get_attribute("textContent") for button in page.all("#strip button")]
    assert labels == [trace.label(token) for token in range(trace.n_tokens)]
    assert tuple(labels[-len(AFTER_HOSTILE) :]) == AFTER_HOSTILE
    for token in range(trace.n_tokens):
        page.all("#strip button")[token].click()
    assert len(page.all("script")) == 2
    check_alone(page)


def test_pages_of_single_views(offline: Page, tmp_path: Path) -> None:
    page = offline
    trace = sample_trace()
    explorer = explore(trace)
    paths = [chart.save(tmp_path / f"{name}.html") for name, chart in explorer.views.items()]
    paths.append(compare(trace, sample_trace(n_hidden=300), names=("<a>", "$b$")).save(tmp_path / "compare.html"))
    paths.append(explore_layouts().save(tmp_path / "layouts.html"))
    for path in paths:
        page.driver.get(path.as_uri())
        page.wait(lambda: page.all(".tv[data-painted]"), f"{path.name} to be painted")
        for canvas in page.all(".tv canvas[tabindex]"):
            before = page.pixels(canvas)
            blank = page.js(
                "const { width, height } = arguments[0];"
                "return Object.assign(document.createElement('canvas'), { width, height }).toDataURL()",
                canvas,
            )
            assert before != blank, f"{path.name} is blank"
        check_alone(page)
