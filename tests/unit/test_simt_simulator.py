"""Starts ``tests/simulator`` in a process of its own: the simulator excludes the real CUDA for good."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "NUMBA_"))}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.slow
def test_every_kernel_in_the_simulator() -> None:
    ran = run("-m", "pytest", "tests/simulator", "-q", "-p", "no:cacheprovider", NUMBA_ENABLE_CUDASIM="1")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert " passed" in ran.stdout
    assert "skipped" not in ran.stdout


def test_the_flag_set_too_late_is_an_error() -> None:
    late = "import numba.cuda, os; os.environ['NUMBA_ENABLE_CUDASIM'] = '1'; import twell.cuda_target"
    ran = run("-c", late)
    assert ran.returncode != 0
    assert "NUMBA_ENABLE_CUDASIM was set after Numba had been imported" in ran.stderr


def test_without_a_gpu_the_kernels_say_so() -> None:
    program = (
        "import torch, twell.simt as simt\n"
        "try:\n"
        "    simt.pack(torch.zeros(2, 3))\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
    )
    ran = run("-c", program)
    assert ran.stdout.startswith("DeviceError h_MH: the kernels run on an NVIDIA GPU, not on cpu; use backend=")


def test_importing_creates_no_context_and_twell_leaves_numba_cuda_alone() -> None:
    program = (
        "import sys, torch, twell, twell.nn\n"
        "assert 'numba.cuda' not in sys.modules\n"
        "import twell.simt\n"
        "assert 'numba.cuda' in sys.modules\n"
        "assert not torch.cuda.is_initialized()\n"
        "from numba.cuda.cudadrv.driver import driver\n"
        "assert driver.pid is None  # set where the driver was started\n"
    )
    ran = run("-c", program)
    assert ran.returncode == 0, ran.stderr


def test_numpy_without_row_stack() -> None:
    # NumPy 2.5 removed it; numba-cuda 0.30 needs it while it is imported. The name is gone again afterwards.
    program = (
        "import numpy as np\nvars(np).pop('row_stack', None)\nimport twell.simt\nassert 'row_stack' not in vars(np)\n"
    )
    ran = run("-c", program)
    assert ran.returncode == 0, ran.stderr
