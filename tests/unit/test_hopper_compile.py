"""The Hopper kernels are compiled and assembled for 9.0a with no GPU: registers, spills, and no calls.

A call, a 64-bit division for instance, would make the assembler wait after every wgmma.
"""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor
from twell.cuda_compile import compile_for, resources_for
from twell.cuda_target import Kernel, numba_type
from twell.tensorcore.hopper.gate_pack import pack_kernel
from twell.tensorcore.hopper.maps import write_words
from twell.tensorcore.hopper.tiles import THREADS
from twell.tensorcore.hopper.union_block import gather_unions
from twell.tensorcore.hopper.union_products import down_kernel, up_kernel

# Letters as in test_simt_compile.py.
KERNELS: dict[str, tuple[Kernel, str]] = {
    "gate_pack": (pack_kernel(2), "nnVWiiVn"),
    "gate_pack, second pass": (pack_kernel(2, True), "nnVWiiVn"),
    "gather_unions": (gather_unions, "WVnnIiiiV"),
    "union_up 128": (up_kernel(128), "nVIiiV"),
    "union_up 64": (up_kernel(64), "nVIiiV"),
    "union_down 128": (down_kernel(128), "nVIiV"),
    "union_down 64": (down_kernel(64), "nVIiV"),
    "write_words": (write_words, "l" + 16 * "n"),
}
WITH_PRODUCTS = [name for name, (kernel, _) in KERNELS.items() if kernel.options.get("launch_bounds") == (THREADS, 1)]


def signature(letters: str, dtype: torch.dtype) -> list[object]:
    kinds = {"v": dtype, "w": torch.int32, "i": torch.int32, "l": torch.int64}
    axes = {"W": 3, "V": 2, "I": 2}
    values: list[Tensor | int] = [
        1 if letter == "n" else torch.empty([1] * axes.get(letter, 1), dtype=kinds[letter.lower()])
        for letter in letters
    ]
    return [numba_type(value) for value in values]


@pytest.mark.parametrize("name", KERNELS)
def test_nothing_spills(name: str) -> None:
    kernel, letters = KERNELS[name]
    (need,) = resources_for(kernel, signature(letters, torch.bfloat16), (9, 0)).values()
    print(f"\n{name:24} registers {need.registers:3}  spills {need.spills:4}  stack {need.stack}", end="")
    assert (need.spills, need.stack) == (0, 0)
    if name in WITH_PRODUCTS:
        assert need.registers * THREADS <= 1 << 16


@pytest.mark.parametrize("name", ["gather_unions", "union_down 64"])
def test_the_text_has_what_it_should(name: str) -> None:
    kernel, letters = KERNELS[name]
    (ptx,) = compile_for(kernel, signature(letters, torch.float16), (9, 0)).values()
    assert not re.findall(r"\bcall\b", ptx)
    assert not re.findall(r"\b(?:ld|st)\.local\b", ptx)
    products = re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k16\.f32\.(\w+)", ptx)
    if name in WITH_PRODUCTS:
        assert set(products) == {("128", "f16")}
        assert len(products) % 4 == 0, "four for each stage, however often the loop is written out"
        assert "setmaxnreg.inc.sync.aligned.u32 224" in ptx
    else:
        assert not products


def test_every_kernel_with_products_is_in_the_table() -> None:
    assert len(WITH_PRODUCTS) == 6
