"""The Hopper kernels in a machine made of Python threads: indices, barriers, swizzles and the edges of every shape.

Inputs are small integers, so that results must be equal. ``late=True`` reads a product's operands as late as the
hardware may, which shows a stage that is given back too early.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from twell import TileUnion, TwELL, reference
from twell.errors import DeviceError
from twell.tensorcore import machine as machine_module
from twell.tensorcore.hopper.gate_pack import pack_kernel
from twell.tensorcore.hopper.tiles import BK, BM, BN, SHARED_BYTES, THREADS
from twell.tensorcore.hopper.union_block import THREADS as UNION_THREADS
from twell.tensorcore.hopper.union_block import gather_unions
from twell.tensorcore.hopper.union_products import down_kernel, up_kernel
from twell.tensorcore.machine import Machine

from tests.helpers import assert_same_bits
from tests.simt_checks import integers

assert SHARED_BYTES < machine_module.SHARED


def packed_by_machine(x_MD: Tensor, gate_HD: Tensor, *, cluster: int, late: bool) -> tuple[Tensor, ...]:
    """Words, spilled tiles of each row, and the values of those tiles."""
    M, H = x_MD.shape[0], gate_HD.shape[0]
    n_tiles, n_row_tiles = -(-H // BN), -(-M // (BM * cluster)) * cluster
    words_MNS = torch.zeros(M, n_tiles, 32, dtype=torch.int32)
    over_M, spills = torch.zeros(M, dtype=torch.int32), torch.zeros(1 + n_row_tiles * n_tiles, dtype=torch.int32)
    spilled_ML = torch.full((M, n_tiles * BN), float("nan"), dtype=x_MD.dtype)
    for spilled in (False, True):
        machine = Machine(late=late)
        x_map, gate_map = machine.map_of(x_MD, BM, BK), machine.map_of(gate_HD, BN // cluster, BK)
        arguments = (x_map, gate_map, x_MD, words_MNS, over_M, spills, spilled_ML, H)
        machine.run(pack_kernel(cluster, spilled), cluster, THREADS, *arguments, cluster=cluster)
    return words_MNS, over_M, spilled_ML


@pytest.mark.parametrize(
    ("n_tokens", "width", "n_hidden", "cluster", "late", "dtype"),
    [
        (130, 72, 300, 1, True, torch.bfloat16),
        (5, 136, 520, 2, True, torch.float16),
        (260, 8, 40, 2, False, torch.bfloat16),
    ],
)
def test_gate_product_with_pack(
    n_tokens: int, width: int, n_hidden: int, cluster: int, late: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    x_MD = integers(-2, 3, n_tokens, width, dtype=dtype, device="cpu")
    gate_HD = integers(-2, 3, n_hidden, width, dtype=dtype, device="cpu")
    x_MD[:, 0], gate_HD[:, 0] = 1, -round(3.5 * width**0.5)
    x_MD[1] = 0
    x_MD[2, 0] = -3.0  # every neuron fires: tiles that do not fit
    x_MD[3, 1] = float("nan")
    words_MNS, over_M, spilled_ML = packed_by_machine(x_MD, gate_HD, cluster=cluster, late=late)
    expected = reference.gate_pack(x_MD, gate_HD)
    assert 0 < int(over_M.sum()) < expected.words.numel()
    assert_same_bits(words_MNS.flatten(1), expected.words)
    assert_same_bits(over_M.long(), expected.spill_start.diff())
    rows, tiles = expected.spill_rows().long(), expected.spill_tile.long()
    assert_same_bits(spilled_ML.unflatten(1, (-1, BN))[rows, tiles], expected.spill_values)
    untouched = torch.ones(spilled_ML.shape[0], spilled_ML.shape[1] // BN, dtype=torch.bool)
    untouched[rows, tiles] = False
    assert spilled_ML.unflatten(1, (-1, BN))[untouched].isnan().all()


@pytest.mark.parametrize(
    ("n_tokens", "width", "n_hidden", "block", "late", "dtype"),
    [(270, 136, 300, 128, True, torch.bfloat16), (140, 72, 270, 64, True, torch.float16)],
)
def test_union_tiles(n_tokens: int, width: int, n_hidden: int, block: int, late: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x_MD = integers(-2, 3, n_tokens, width, dtype=dtype, device="cpu")
    up_HD = integers(-2, 3, n_hidden, width, dtype=dtype, device="cpu")
    down_HD = integers(-1, 2, n_hidden, width, dtype=dtype, device="cpu")
    gate_MH = integers(1, 3, n_tokens, n_hidden, dtype=dtype, device="cpu") * (torch.rand(n_tokens, n_hidden) < 0.03)
    gate_MH[2, :200] = 1  # more than fit into a tile
    gate_MH[block : 2 * block] = 0  # a union of no neurons
    up_HD[7, 3] = float("inf")
    gate_MH[:, 7] = 0  # so inf must not be met, in no token's sum
    packed = TwELL.from_dense(gate_MH)
    n_unions, n_columns = -(-n_tokens // block), packed.n_tiles * BN
    neurons_UH = torch.full((n_unions, n_hidden), -9, dtype=torch.int32)
    counts_U = torch.full((n_unions,), -9, dtype=torch.int32)
    tiles_U = torch.full((n_unions + 1,), -9, dtype=torch.int32)
    ended = torch.zeros(1, dtype=torch.int32)
    h_ML, spilled_ML = torch.full((2, n_tokens, n_columns), float("nan"), dtype=dtype)
    spilled_ML[2] = 0
    spilled_ML[2, :n_hidden] = gate_MH[2]
    words_MNS = packed.words.view(n_tokens, packed.n_tiles, 32)
    arguments = (words_MNS, spilled_ML, block, n_hidden, neurons_UH, counts_U, tiles_U, ended, h_ML)
    Machine().run(gather_unions, n_unions, UNION_THREADS, *arguments)
    unions = TileUnion.from_twell(packed, block=block)
    assert counts_U.tolist() == unions.union_sizes().tolist()
    assert tiles_U.diff().tolist() == [max(1, -(-count // BN)) for count in counts_U.tolist()]
    for g in range(n_unions):
        neurons, values = unions.block_of(g)
        assert neurons_UH[g, : len(neurons)].tolist() == neurons.tolist()
        rows = h_ML[g * block : (g + 1) * block]
        assert_same_bits(rows[:, : len(neurons)].contiguous(), values)
        assert (rows[:, len(neurons) : max(1, -(-len(neurons) // BN)) * BN] == 0).all()

    machine = Machine(late=late)
    x_map = machine.map_of(x_MD, block, BK)
    machine.run(up_kernel(block), 1, THREADS, x_map, up_HD, neurons_UH, counts_U, tiles_U, h_ML)
    up_HD[7, 3] = 0
    wanted_MH = (gate_MH.float() * (x_MD.float() @ up_HD.float().T)).to(dtype)
    y_MD = torch.full((n_tokens, width), float("nan"), dtype=dtype)
    machine = Machine(late=late)
    h_map = machine.map_of(h_ML, block, BK)
    machine.run(down_kernel(block), 1, THREADS, h_map, down_HD, neurons_UH, counts_U, y_MD)
    assert_same_bits(y_MD, (wanted_MH.float() @ down_HD.float()).to(dtype))


def test_the_machine_names_what_hangs_or_strays(monkeypatch: pytest.MonkeyPatch) -> None:
    from twell.cuda_target import cuda
    from twell.tensorcore import ptx

    monkeypatch.setattr(machine_module, "PATIENCE", 0.2)

    def waits(out: Any) -> None:
        if cuda.threadIdx.x == 0:
            ptx.barrier_init(1024, 2)
        cuda.syncthreads()
        ptx.barrier_wait(1024, 0)

    def strays(out: Any) -> None:
        ptx.copy_16_bytes(2048, ptx.global_address(out) + 8, 16)

    def crowds(out: Any) -> None:
        if cuda.threadIdx.x == 0:
            ptx.barrier_init(1024, 1)
            ptx.barrier_expect(1024, 16)
            ptx.barrier_arrive(1024)

    def alone(out: Any) -> None:
        if cuda.threadIdx.x < 32:
            ptx.product_commit()
            ptx.product_wait()

    out = torch.zeros(4, dtype=torch.float32)
    for function, message in (
        (waits, "waits for ever: mbarrier 1024, parity 0"),
        (strays, "lie in no array"),
        (crowds, "more threads arrive"),
        (alone, "not all warps of the warpgroup issue"),
    ):
        with pytest.raises(DeviceError, match=message):
            Machine().run(SimpleNamespace(py_func=function), 1, 128, out)
    with pytest.raises(DeviceError, match="was called in Python"):
        ptx.barrier_arrive.py_func(1024)
