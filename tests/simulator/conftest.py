"""These tests run in a process of their own, with Numba's simulator in the place of a GPU.

``NUMBA_ENABLE_CUDASIM=1`` must be in the environment before Python starts, and shuts out the real CUDA; so
``tests/unit/test_simt_simulator.py`` starts them in a second process, and by themselves they run as
``NUMBA_ENABLE_CUDASIM=1 pytest tests/simulator``.
"""

from __future__ import annotations

import os

import pytest
import torch

SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")

collect_ignore_glob = [] if SIMULATED else ["test_*.py"]


def pytest_report_header() -> str:
    if SIMULATED:
        return "kernels run in Numba's simulator"
    return "tests/simulator is left out: start with NUMBA_ENABLE_CUDASIM=1 in the environment"


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
