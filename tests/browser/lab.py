"""What the browser tests do with a page: look, click, type, run cells, and read what went over the wire."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

Found = TypeVar("Found")


class Page:
    """A browser's page."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def wait(self, look: Callable[[], Found | None], what: str, seconds: float = 20) -> Found:
        """What ``look`` finds, as soon as it finds something."""
        from selenium.common.exceptions import JavascriptException, StaleElementReferenceException

        end = time.monotonic() + seconds
        while True:
            try:
                if found := look():
                    return found
            except (StaleElementReferenceException, JavascriptException):
                pass
            assert time.monotonic() < end, f"waited {seconds} s for {what}"
            time.sleep(0.03)

    def all(self, css: str, inside: WebElement | None = None) -> list[WebElement]:
        """Elements that are on the page, seen or not."""
        return list((inside or self.driver).find_elements(By.CSS_SELECTOR, css))

    def one(self, css: str, inside: WebElement | None = None, seconds: float = 20) -> WebElement:
        """The first element, waited for."""
        return self.wait(lambda: next(iter(self.all(css, inside)), None), css, seconds)

    def js(self, script: str, *values: Any) -> Any:
        """Run a script; its ``return`` comes back."""
        return self.driver.execute_script(script, *values)

    def pixels(self, canvas: WebElement) -> str:
        """What a canvas shows."""
        return str(self.js("return arguments[0].toDataURL()", canvas))

    def into_view(self, element: WebElement) -> None:
        """Scroll so that the element is in the middle."""
        self.js("arguments[0].scrollIntoView({block: 'center'})", element)

    def click_at(self, canvas: WebElement, x: float, y: float) -> None:
        """A real click at a place of an element, in pixels from its upper left corner."""
        self.over(canvas, x, y).click().perform()

    def over(self, canvas: WebElement, x: float, y: float) -> ActionChains:
        """The pointer over a place of an element."""
        self.into_view(canvas)
        left, top = -canvas.size["width"] / 2, -canvas.size["height"] / 2
        # A move from elsewhere, so that the element hears of it.
        return ActionChains(self.driver, duration=20).move_to_element_with_offset(
            canvas, round(left + x), round(top + y)
        )

    def press(self, *keys: str) -> None:
        """Keys to whatever has the focus."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def tab_to(self, css: str, most: int = 60) -> WebElement:
        """Press Tab until an element of this kind has the focus."""
        for _ in range(most):
            self.press(Keys.TAB)
            active = self.driver.switch_to.active_element
            if self.js("return arguments[0].matches(arguments[1])", active, css):
                return active
        raise AssertionError(f"Tab reached no {css}")

    def screenshot(self, element: WebElement, path: Path) -> None:
        """Keep a picture of an element."""
        self.into_view(element)
        time.sleep(0.6)
        path.write_bytes(element.screenshot_as_png)

    def forget(self) -> None:
        """Drop what was logged so far."""
        self.driver.get_log("browser")
        self.driver.get_log("performance")

    def errors(self) -> list[str]:
        """Errors on the console since the last look.

        One of JupyterLab's own is left out: seen once in six runs, on a busy machine, its React removes a node of its
        own that is gone already. Our module is loaded from a ``blob:`` address, so nothing of ours reads like this.
        """
        found = [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]
        return [message for message in found if not ("/jlab_core." in message and "'removeChild'" in message)]

    def traffic(self) -> tuple[set[str], int]:
        """Addresses that were asked, and the bytes that came in over web sockets, since the last look, in this tab."""
        addresses, received = set(), 0
        for entry in self.driver.get_log("performance"):
            logged = json.loads(entry["message"])
            message = logged["message"]
            # Other tabs are logged too.
            if logged.get("webview") != self.driver.current_window_handle:
                continue
            if message["method"] == "Network.requestWillBeSent":
                addresses.add(message["params"]["request"]["url"])
            if message["method"] == "Network.webSocketFrameReceived":
                frame = message["params"]["response"]
                size = len(frame["payloadData"])
                received += size * 3 // 4 if frame["opcode"] == 2 else size
        return addresses, received


class Lab:
    """JupyterLab in the page."""

    def __init__(self, page: Page, url: str, token: str) -> None:
        self.page, self.url, self.token = page, url, token

    def open(self, name: str) -> None:
        """Open a notebook, and wait for its kernel."""
        self.page.driver.get(f"{self.url}/lab/tree/{name}?token={self.token}&reset")
        self.ready()

    def ready(self) -> None:
        """Wait until a notebook and its kernel are there."""
        self.page.wait(
            lambda: self.page.js(
                "const panel = window.jupyterapp?.shell?.currentWidget;"
                "return panel?.content?.widgets?.length > 0 && panel.sessionContext?.session?.kernel?.status === 'idle'"
            ),
            "a notebook with an idle kernel",
            60,
        )

    def command(self, name: str, **options: Any) -> None:
        """Run one of JupyterLab's commands to its end."""
        answer = self.page.driver.execute_async_script(
            "const done = arguments[2];"
            "const run = window.jupyterapp.commands.execute(arguments[0], arguments[1]);"
            "run.then(() => done(''), (error) => done(String(error)))",
            name,
            options,
        )
        assert not answer, f"{name}: {answer}"

    def run_all(self) -> None:
        """Run all cells; an error in one fails the test."""
        self.command("notebook:run-all-cells")
        self._no_error_outputs()

    def run_cell(self, place: int) -> None:
        """Run one cell."""
        self.page.js("window.jupyterapp.shell.currentWidget.content.activeCellIndex = arguments[0]", place)
        self.command("notebook:run-cell")
        self._no_error_outputs()

    def restart(self) -> None:
        """Restart the kernel, as the menu does after its question."""
        self.page.driver.execute_async_script(
            "const done = arguments[0];"
            "window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart().then(() => done())"
        )
        self.ready()

    def save(self) -> None:
        """Save the notebook, so that a reload asks nothing."""
        self.command("docmanager:save")

    def theme(self, name: str) -> None:
        """``"JupyterLab Light"`` or ``"JupyterLab Dark"``."""
        self.command("apputils:change-theme", theme=name)
        light = "true" if name.endswith("Light") else "false"
        self.page.wait(
            lambda: self.page.js("return document.body.dataset.jpThemeLight === arguments[0]", light), f"theme {name}"
        )

    def cell(self, place: int) -> WebElement:
        """A cell's element."""
        return self.page.wait(lambda: self.page.js(_CELL, place), f"cell {place}")

    def _no_error_outputs(self) -> None:
        found = self.page.js(
            "const cells = window.jupyterapp.shell.currentWidget.content.model.sharedModel.cells;"
            "return cells.flatMap((cell) => (cell.outputs ?? []).filter((out) => out.output_type === 'error'))"
        )
        assert not found, found


_CELL = """
const cell = window.jupyterapp.shell.currentWidget.content.widgets[arguments[0]];
cell?.node?.scrollIntoView({block: "start"});
return cell?.node
"""
