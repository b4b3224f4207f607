"""What of ``twell.simt`` runs without a device: bits, the twin, arguments, and the kernels under the recorder."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from twell import Hybrid, reference, simt
from twell.cuda_target import Kernel, kernel, why_not
from twell.errors import DeviceError, DtypeError, OptionError, ShapeError
from twell.simt import (
    bits,
    down_block,
    hybrid_dense,
    l1,
    masks,
    pack_ell,
    pack_epilogue,
    pack_hybrid,
    pack_twell,
    sampled,
    token_block,
    token_warp,
    transposed,
    union,
    unpack,
)
from twell.simt.spill import empty_words, tiles_of

from tests.helpers import DTYPES, assert_same_bits
from tests.simt_checks import gate_values, integers, product_inputs
from twellviz.kernel_trace import record_kernel

host = {name: getattr(bits, name).py_func for name in ("widen", "narrow", "make_word", "word_column", "word_value")}


def elements(array: Tensor) -> Any:
    """A tensor as kernels see it."""
    view = {torch.bfloat16: torch.int16, torch.float16: torch.uint16}.get(array.dtype, array.dtype)
    return array.view(view).numpy()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_every_16_bit_number_widens_and_comes_back(dtype: torch.dtype) -> None:
    every = torch.arange(1 << 16).to(torch.int32).to(torch.uint16).view(dtype)
    wide = torch.tensor([float(host["widen"](element)) for element in elements(every)])
    assert_same_bits(wide, every.float())
    back = np.array([host["narrow"](np.float32(value), elements(every)) for value in wide.tolist()])
    assert_same_bits(torch.from_numpy(back).view(dtype), every)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_rounding_is_that_of_torch(dtype: torch.dtype) -> None:
    values = torch.cat([torch.randn(2000) * 10.0 ** torch.randint(-9, 6, (2000,)), torch.tensor([65520.0, 3.4e38])])
    ties = torch.tensor([1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-11, 1 + 3 * 2.0**-11])
    values = torch.cat([values, ties])
    like = elements(torch.empty(1, dtype=dtype))
    narrowed = np.array([host["narrow"](value, like) for value in values.numpy()])
    assert_same_bits(torch.from_numpy(narrowed).view(dtype), values.to(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n_hidden", [300, 65537])
def test_words_are_those_of_the_format(dtype: torch.dtype, n_hidden: int) -> None:
    h_MH = -torch.ones(1, n_hidden, dtype=dtype)
    h_MH[0, [0, n_hidden - 1]] = torch.tensor([1.5, 3.0], dtype=dtype)
    packed = reference.pack(h_MH)
    words, like = packed.words.numpy(), elements(h_MH)
    for column, value in ((0, 1.5), (n_hidden - 1, 3.0)):
        word = host["make_word"](column, np.float32(value), words, like)
        assert word == words[0, column // 256 * 32 + 1]
        assert host["word_column"](word) == column
        assert host["word_value"](word, like) == value


@pytest.mark.parametrize("width", [8, 256, 520])
def test_the_twin_of_the_warp_kernel(width: int) -> None:
    x_MD, _, up_HD, down_HD = product_inputs(6, width, 300, torch.bfloat16, "cpu")
    packed = reference.pack(gate_values(6, 300, torch.bfloat16, "cpu").nan_to_num())
    expected = reference.token_ffn(x_MD, packed, up_HD, down_HD)
    assert_same_bits(token_warp.twin(x_MD, packed, up_HD, down_HD), expected)
    x_MD, up_HD, down_HD = (torch.randn_like(array) for array in (x_MD, up_HD, down_HD))
    actual = token_warp.twin(x_MD, packed, up_HD, down_HD).float()
    expected = reference.token_ffn(x_MD, packed, up_HD, down_HD).float()
    torch.testing.assert_close(actual, expected, rtol=1e-2, atol=1e-2 * float(expected.abs().max()))


def test_no_gpu_no_kernel() -> None:
    assert "NVIDIA GPU" in why_not(torch.device("cpu"))
    x_MD, gate_HD, up_HD, down_HD = product_inputs(2, 4, 8, torch.float32, "cpu")
    for call in (
        lambda: simt.gate_pack(x_MD, gate_HD),
        lambda: simt.token_ffn(x_MD, reference.gate_pack(x_MD, gate_HD), up_HD, down_HD),
        lambda: simt.gated_ffn(x_MD, gate_HD, up_HD, down_HD),
        lambda: simt.to_hybrid(reference.gate_pack(x_MD, gate_HD)),
    ):
        with pytest.raises(DeviceError, match='backend="cpu"'):
            call()


def test_arguments_are_checked_before_the_device() -> None:
    x_MD, gate_HD, up_HD, down_HD = product_inputs(2, 4, 8, torch.float32, "cpu")
    packed = reference.gate_pack(x_MD, gate_HD)
    with pytest.raises(ShapeError, match=r"down\.T\.contiguous"):
        simt.token_ffn(x_MD, packed, up_HD, down_HD.T)
    with pytest.raises(DtypeError, match="gate_HD"):
        simt.gate_pack(x_MD, gate_HD.half())
    with pytest.raises(OptionError, match="compression"):
        simt.gate_pack(x_MD, gate_HD, compression=3)
    with pytest.raises(OptionError, match="Hybrid"):
        simt.ell_pack(x_MD, overflow="spill")
    with pytest.raises(OptionError, match="block=48"):
        simt.union_lists(packed, block=48)
    h = Hybrid.from_twell(packed)
    with pytest.raises(ShapeError, match="pattern"):
        simt.sampled_product(x_MD[:1], up_HD, h)


def test_a_kernel_takes_contiguous_tensors_of_known_types() -> None:
    @kernel()
    def nothing(array: Any) -> None:
        return

    from twell.cuda_target import _check_argument

    assert isinstance(nothing, Kernel)
    assert _check_argument(torch.empty(2, dtype=torch.bfloat16)) == "<i2"
    with pytest.raises(ShapeError, match="contiguous"):
        _check_argument(torch.empty(3, 2).T)
    with pytest.raises(DtypeError, match="float64"):
        _check_argument(torch.empty(2, dtype=torch.float64))


def recorded(function: Kernel, blocks: Any, threads: int, *arguments: Any, unwritten: tuple[str, ...] = ()) -> Any:
    """Run a kernel thread by thread, from the first thread on and from the last: no fault, and the same result."""
    traces = [
        record_kernel(
            function, blocks, threads, *arguments, unwritten=unwritten, order=order, max_events=20_000_000
        ).check()
        for order in ("forward", "reverse")
    ]
    for name, output in traces[0].outputs.items():
        assert_same_bits(torch.as_tensor(output), torch.as_tensor(traces[1].outputs[name]))
    return traces[0].outputs


def test_no_race_in_the_packing_kernels() -> None:
    h_MH = gate_values(6, 300, torch.float32, "cpu").nan_to_num()
    packed = reference.pack(h_MH)
    words_MNS, over_M = empty_words(h_MH, 300, 8)
    out = recorded(pack_twell.pack_tiles, (6, 1), 64, h_MH, words_MNS, over_M)
    assert_same_bits(torch.as_tensor(out["words_MNS"]).flatten(1), packed.words)
    spilled = (torch.empty_like(packed.spill_tile), torch.empty_like(packed.spill_values))
    names = ("spill_tile_K", "spill_values_KT")
    out = recorded(
        pack_twell.copy_spilled, 6, 64, h_MH, tiles_of(packed), packed.spill_start, *spilled, unwritten=names
    )
    assert_same_bits(torch.as_tensor(out["spill_values_KT"]), packed.spill_values)
    rows = (torch.zeros(6, 300), torch.zeros(6, 300, dtype=torch.uint16), torch.empty(6, dtype=torch.int32))
    recorded(pack_ell.pack_rows, 6, 32, h_MH, *rows, unwritten=("counts_M",))
    recorded(pack_ell.count_rows, 6, 32, h_MH, torch.zeros(6, dtype=torch.int32))
    recorded(unpack.unpack_rows, 6, 32, tiles_of(packed), packed.spill_start, packed.spill_values, torch.zeros(6, 300))


def test_no_race_in_the_epilogue() -> None:
    # One block, one slice of x: 256 threads with 1,024 multiplications each.
    x_MD, gate_HD, *_ = product_inputs(3, 2, 70, torch.float32, "cpu")
    packed = reference.pack(x_MD @ gate_HD.T)
    trace = record_kernel(
        pack_epilogue.multiply_and_pack, 1, 256, x_MD, gate_HD, *empty_words(x_MD, 70, 8), max_events=20_000_000
    ).check()
    assert_same_bits(torch.as_tensor(trace.outputs["words_MNS"]).flatten(1), packed.words)


def test_no_race_in_the_token_kernels() -> None:
    x_MD, gate_HD, up_HD, down_HD = product_inputs(6, 5, 300, torch.float32, "cpu")
    packed = reference.pack(gate_values(6, 300, torch.float32, "cpu").nan_to_num())
    some = (tiles_of(packed)[2:], packed.spill_start[2:] - packed.spill_start[2], packed.spill_values)
    y_MD = torch.empty(4, 5)
    out = recorded(
        token_block.up_and_down, (4, 1), 256, x_MD[2:], *some, gate_HD, up_HD, down_HD, y_MD, unwritten=("y_MD",)
    )
    assert_same_bits(torch.as_tensor(out["y_MD"]), reference.token_ffn(x_MD, packed, up_HD, down_HD)[2:])
    out = recorded(down_block.down, (4, 1), 256, x_MD[2:], *some, up_HD, down_HD, y_MD, unwritten=("y_MD",))
    assert_same_bits(torch.as_tensor(out["y_MD"]), reference.token_down(packed, down_HD)[2:])


def test_no_race_in_the_hybrid_kernels() -> None:
    h_MH = gate_values(6, 300, torch.float32, "cpu").nan_to_num()
    packed, h = reference.pack(h_MH), Hybrid.from_dense(h_MH, width=60)
    buffers = (torch.zeros_like(h.values), torch.zeros(h.columns.shape, dtype=torch.uint16), torch.zeros_like(h.backup))
    words = (tiles_of(packed), packed.spill_start, packed.spill_values)
    recorded(pack_hybrid.count_entries, 1, 32, words[0], torch.empty(6, dtype=torch.int32), unwritten=("counts_M",))
    out = recorded(pack_hybrid.close_up, 6, 32, *words, h.backup_row, *buffers)
    assert_same_bits(torch.as_tensor(out["values_MW"]), h.values)
    x_MD, weight_HD, *_ = product_inputs(6, 5, 300, torch.float32, "cpu")
    pattern = (h.values, h.columns, h.counts, h.backup_row, h.backup)
    recorded(sampled.multiply_at_pattern, 6, 64, x_MD, weight_HD, *pattern, buffers[0], buffers[2])
    y_MD = torch.empty(6, 5)
    recorded(hybrid_dense.multiply_hybrid, (6, 1), 256, *pattern, weight_HD, y_MD, unwritten=("y_MD",))
    scale = torch.ones(1)
    flat = integers(-3, 4, 50, dtype=torch.float32, device="cpu")
    recorded(l1.add_signs, 1, 64, flat, flat, scale, torch.empty(50), unwritten=("out_E",))


def test_no_race_in_the_masks_the_transpose_and_the_union() -> None:
    h_MH = gate_values(40, 70, torch.float32, "cpu").nan_to_num()
    packed, h = reference.pack(h_MH), Hybrid.from_dense(h_MH, width=20)
    empty_GH = torch.zeros(2, 70, dtype=torch.int32).view(torch.uint32)
    out = recorded(masks.mark_twell, 40, 32, tiles_of(packed), packed.spill_start, packed.spill_values, empty_GH)
    masks_GH = torch.as_tensor(out["masks_GH"])
    out = recorded(masks.mark_hybrid, 40, 32, h.columns, h.counts, h.backup_row, h.backup, empty_GH)
    assert_same_bits(torch.as_tensor(out["masks_GH"]).view(torch.int32), masks_GH.view(torch.int32))
    sums = (torch.empty(2, 70, dtype=torch.int32), torch.empty(70, dtype=torch.int32))
    out = recorded(transposed.sum_groups, 3, 32, masks_GH, *sums, unwritten=("before_GH", "counts_H"))
    assert torch.as_tensor(out["counts_H"]).tolist() == (h_MH > 0).sum(0).tolist()
    lists = (torch.zeros(2, 70, dtype=torch.int32), torch.empty(2, dtype=torch.int32))
    recorded(union.list_union, 2, 32, masks_GH, 1, *lists, unwritten=("counts_U",))
    expected = Hybrid.from_dense(h_MH.T.contiguous(), width=9)
    buffers = [torch.zeros_like(expected.values), torch.zeros(expected.columns.shape, dtype=torch.uint16)]
    out = recorded(
        transposed.move_entries,
        40,
        32,
        h.columns,
        h.counts,
        h.backup_row,
        h.backup,
        h.values,
        h.backup,
        masks_GH,
        torch.as_tensor(out["before_GH"]),
        expected.backup_row,
        *buffers,
        torch.zeros_like(expected.backup),
    )
    assert_same_bits(torch.as_tensor(out["values_HV"]), expected.values)
    assert_same_bits(torch.as_tensor(out["tokens_HV"]).to(torch.int32), expected.columns.to(torch.int32))
