"""A real JupyterLab on a free port, and a headless Chromium that looks at it.

Without a browser these tests are skipped, and say why; with ``CI=1`` they fail instead.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.lab import Lab, Page

ROOT = Path(__file__).resolve().parents[2]


def _missing() -> str:
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed (it is in the dependency group dev)"
    if not any(shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")):
        return "no Chromium found (Debian: apt-get install chromium chromium-driver)"
    if not shutil.which("chromedriver"):
        return "no chromedriver found (Debian: apt-get install chromium-driver)"
    return ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything here."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def page() -> Iterator[Page]:
    """One browser for all tests."""
    if why := _missing():
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = next(
        found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))
    )
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1300,1500"):
        options.add_argument(flag)
    # What the browser itself would fetch, such as lists of unsafe sites, is not what is tested.
    for flag in ("--disable-background-networking", "--disable-component-update", "--no-first-run", "--disable-sync"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.set_script_timeout(120)
    yield Page(driver)
    driver.quit()


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory, page: Page) -> Iterator[Lab]:
    """A JupyterLab with copies of the notebooks of these tests."""
    folder = tmp_path_factory.mktemp("lab")
    work = folder / "work"
    work.mkdir()
    shutil.copy(ROOT / "notebooks/10_layers_tokens_neurons.ipynb", work / "ten.ipynb")
    (work / "views.ipynb").write_text(json.dumps(_views_notebook()), encoding="utf-8")
    quiet = folder / "settings/@jupyterlab/apputils-extension/notification.jupyterlab-settings"
    quiet.parent.mkdir(parents=True)
    # JupyterLab asks whether it may fetch its news; this is the answer.
    quiet.write_text('{"fetchNews": "false", "checkForUpdates": false}', encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    token = secrets.token_hex(16)
    inherited = os.environ.get("PYTHONPATH", "")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels"), *filter(None, [inherited])]),
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
    }
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}", "--ip=127.0.0.1"]
    command += [f"--ServerApp.root_dir={work}", f"--IdentityProvider.token={token}", "--ServerApp.port_retries=0"]
    command += ["--LabApp.expose_app_in_browser=True"]
    command += ["--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate"]
    log = (folder / "log.txt").open("wb")
    server = subprocess.Popen(
        command, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=work, start_new_session=True
    )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(120):
            if server.poll() is not None:
                break
            try:
                urllib.request.urlopen(f"{url}/api?token={token}", timeout=5).read()
                break
            except OSError:
                time.sleep(0.5)
        else:
            pytest.fail(f"JupyterLab did not answer: {(folder / 'log.txt').read_text()[-2000:]}")
        if server.poll() is not None:
            pytest.fail(f"JupyterLab ended: {(folder / 'log.txt').read_text()[-2000:]}")
        yield Lab(page, url, token)
    finally:
        # The session that was started above, kernels included, and nothing else.
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
        log.close()


CELLS = {
    "hostile": (
        "from tests.trace_samples import big_trace, hostile_trace, sample_trace\n"
        "from twellviz.explorers import compare, explore, explore_layouts, play\n"
        "hostile = explore(hostile_trace(), token=2)\n"
        "hostile"
    ),
    "pair": (
        "from IPython.display import display\n"
        "first, second = explore(sample_trace()), explore(sample_trace())\n"
        "display(first, second)"
    ),
    "layouts": "layouts = explore_layouts()\nlayouts",
    "compare": (
        "from dataclasses import replace\n"
        "comparison = compare(sample_trace(), sample_trace(n_hidden=300), names=('a', 'b'))\n"
        "comparison"
    ),
    "nano": (
        "from twellviz.data import data_path\n"
        "from twellviz.traces import Trace\n"
        "nano = explore(Trace.load(data_path('nano/trace.safetensors')), layer=1, token=700)\n"
        "nano"
    ),
    "big": "big = explore(big_trace(28, 2048, 5632))\nbig",
}


def _views_notebook() -> dict[str, object]:
    cells = [
        {"cell_type": "code", "id": name, "metadata": {}, "execution_count": None, "outputs": [], "source": source}
        for name, source in CELLS.items()
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
