"""Every simt kernel is compiled and assembled for each capability it declares, on a machine with no GPU.

``pytest tests/unit/test_simt_compile.py -s`` prints the registers, spills and shared memory of each.
"""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor
from twell.cuda_compile import Resources, compile_for, resources_for
from twell.cuda_target import CAPABILITIES, Kernel, numba_type
from twell.simt import (
    down_block,
    hybrid_dense,
    l1,
    masks,
    pack_ell,
    pack_epilogue,
    pack_hybrid,
    pack_twell,
    sampled,
    tiled_product,
    token_block,
    token_warp,
    transposed,
    union,
    unpack,
)

KERNELS: dict[str, tuple[Kernel, str]] = {
    # Parameters: v and V an array of values with one or two axes, W the words, i and I int32 with one or two axes,
    # l int64, C columns (uint16), M masks (uint32), f float32, n a number.
    "pack_tiles": (pack_twell.pack_tiles, "VWi"),
    "copy_spilled": (pack_twell.copy_spilled, "VWliV"),
    "count_rows": (pack_ell.count_rows, "Vi"),
    "pack_rows": (pack_ell.pack_rows, "VVCi"),
    "multiply": (tiled_product.multiply, "VVV"),
    "multiply_and_pack": (pack_epilogue.multiply_and_pack, "VVWi"),
    "multiply_spilled": (pack_epilogue.multiply_spilled, "VVWliV"),
    "unpack_rows": (unpack.unpack_rows, "WlVV"),
    "up_and_down": (token_block.up_and_down, "VWlVVVVV"),
    "up_and_down_warp": (token_warp.kernel_for(2048), "VWlVVVVV"),
    "down": (down_block.down, "VWlVVVV"),
    "count_entries": (pack_hybrid.count_entries, "Wi"),
    "close_up": (pack_hybrid.close_up, "WlViVCV"),
    "multiply_at_pattern": (sampled.multiply_at_pattern, "VVVCiiVVV"),
    "multiply_hybrid": (hybrid_dense.multiply_hybrid, "VCiiVVV"),
    "mark_twell": (masks.mark_twell, "WlVM"),
    "mark_hybrid": (masks.mark_hybrid, "CiiVM"),
    "sum_groups": (transposed.sum_groups, "MIi"),
    "move_entries": (transposed.move_entries, "CiiVVVMIiVCV"),
    "add_signs": (l1.add_signs, "vvfv"),
    "list_union": (union.list_union, "MnIi"),
}

SPILLS = {"up_and_down": 150, "up_and_down_warp": 150, "multiply_and_pack": 100, "multiply_spilled": 100}
"""Bytes that a thread of these may spill, but not on 9.0 and 10.0."""


def argument(letter: str, dtype: torch.dtype) -> Tensor | int:
    words = torch.int64 if dtype == torch.float32 else torch.int32
    kinds = {"v": dtype, "w": words, "i": torch.int32, "l": torch.int64}
    kinds |= {"c": torch.uint16, "m": torch.uint32, "f": torch.float32}
    if letter == "n":
        return 1
    axes = {"W": 3}.get(letter, 2 if letter.isupper() else 1)
    return torch.empty([1] * axes, dtype=kinds[letter.lower()])


def resources(name: str, dtype: torch.dtype, *capabilities: tuple[int, int]) -> dict[tuple[int, int], Resources]:
    kernel, letters = KERNELS[name]
    signature = [numba_type(argument(letter, dtype)) for letter in letters]
    found = resources_for(kernel, signature, *capabilities)
    for (major, minor), need in found.items():
        print(
            f"\n{name:20} {str(dtype)[6:]:8} {major}.{minor:<2} registers {need.registers:3}  spills {need.spills:4}  "
            f"shared {need.shared:5}",
            end="",
        )
    return found


@pytest.mark.parametrize("name", KERNELS)
def test_bf16_for_every_capability(name: str) -> None:
    for capability, need in resources(name, torch.bfloat16, *CAPABILITIES).items():
        limit = 0 if capability in ((9, 0), (10, 0)) else SPILLS.get(name, 0)
        assert need.spills <= limit, (capability, need)
        assert need.shared <= 48 << 10
        bounds = KERNELS[name][0].options.get("launch_bounds")
        if bounds is not None:
            threads, blocks = bounds
            assert need.registers * threads * blocks <= 1 << 16


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["pack_tiles", "multiply_and_pack", "up_and_down", "down"])
def test_the_other_dtypes(name: str, dtype: torch.dtype) -> None:
    (need,) = resources(name, dtype, (9, 0)).values()
    assert need.spills == 0


def test_every_kernel_is_in_the_table() -> None:
    modules = [down_block, hybrid_dense, l1, masks, pack_ell, pack_epilogue, pack_hybrid, pack_twell]
    modules += [sampled, tiled_product, token_block, token_warp, transposed, union, unpack]
    found = {kernel for module in modules for kernel in vars(module).values() if isinstance(kernel, Kernel)}
    assert found <= {kernel for kernel, _ in KERNELS.values()}


def test_the_product_reads_each_factor_once_a_step() -> None:
    """As notebook 05 says: 64 multiply-adds of a thread take four reads of 16 bytes from shared memory."""
    kernel, letters = KERNELS["multiply_and_pack"]
    signature = [numba_type(argument(letter, torch.bfloat16)) for letter in letters]
    (ptx,) = compile_for(kernel, signature, (9, 0)).values()
    assert len(re.findall(r"\bfma\.rn\.f32\b", ptx)) == 64
    assert len(re.findall(r"\bld\.shared\.v4\.f32\b", ptx)) == 4
    assert not re.findall(r"\b(?:ld|st)\.local\b", ptx)
