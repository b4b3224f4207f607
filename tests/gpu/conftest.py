"""Tests that need an NVIDIA GPU of compute capability 7.5 or more; elsewhere each is skipped with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch


def _reason() -> str:
    if not torch.cuda.is_available():
        return "no NVIDIA GPU"
    from twell.cuda_target import why_not

    return why_not(torch.device("cuda", torch.cuda.current_device()))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if Path(__file__).parent in item.path.parents]
    reason = _reason() if ours else ""
    for item in ours:
        item.add_marker(pytest.mark.gpu)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
    torch.compiler.reset()  # each test may compile afresh: dynamo counts the compilations of a code object
