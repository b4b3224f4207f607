"""Union lists: for every B consecutive tokens, the neurons that any of them fires, ascending.

With them the up and down products of B tokens become small dense products over the union: the ground that the tensor
core kernels stand on.

Letters: M tokens, H hidden width, G groups of 32 tokens, B tokens of a union (32, 64 or 128), U unions.
"""

from __future__ import annotations

import torch
from numpy import int32
from torch import Tensor

from twell.cuda_target import BLOCK_THREADS, Array, check_device, cuda, device, kernel
from twell.errors import OptionError
from twell.formats import TwELL
from twell.simt.masks import GROUP, masks_of
from twell.simt.scan import MAX_GROUPS, MAX_THREADS, sum_before, sum_of_all

SIZES = (32, 64, 128)

COLUMNS = 4
"""Neighbouring neurons of a thread."""


@device
def fires(masks_GH: Array, first_group: int, last_group: int, neuron: int) -> bool:
    """Whether any token of the groups fires the neuron."""
    found = False
    for group in range(first_group, last_group):
        if masks_GH[group, neuron] != 0:
            found = True
    return found


@kernel()
def list_union(masks_GH: Array, groups: int, neurons_UH: Array, counts_U: Array) -> None:
    """List the neurons of one union (``blockIdx.x``). ``neurons_UH`` starts as zeros."""
    counts = cuda.shared.array(MAX_THREADS, int32)
    sums = cuda.shared.array(MAX_GROUPS, int32)
    union = cuda.blockIdx.x
    first_group = union * groups
    last_group = min(first_group + groups, masks_GH.shape[0])
    done = 0
    for start in range(0, masks_GH.shape[1], cuda.blockDim.x * COLUMNS):
        first = start + cuda.threadIdx.x * COLUMNS
        last = min(first + COLUMNS, masks_GH.shape[1])
        found = int32(0)
        for neuron in range(first, last):
            if fires(masks_GH, first_group, last_group, neuron):
                found += 1
        place = done + sum_before(found, counts, sums)
        for neuron in range(first, last):
            if fires(masks_GH, first_group, last_group, neuron):
                neurons_UH[union, place] = neuron
                place += 1
        done += sum_of_all(sums)
    if cuda.threadIdx.x == 0:
        counts_U[union] = done


def union_lists(packed: TwELL, *, block: int = 128) -> tuple[Tensor, Tensor]:
    """Neurons that each block of consecutive tokens fires. No synchronisation.

    Parameters
    ----------
    packed : TwELL
        On the GPU (on the CPU in the simulator).
    block : {32, 64, 128}
        B, tokens of a union; the last union may have fewer.

    Returns
    -------
    neurons : Tensor, int32 [U, H]
        Ascending, zero past the count.
    counts : Tensor, int32 [U]

    Raises
    ------
    OptionError, DeviceError
    """
    if block not in SIZES:
        raise OptionError(f"block={block!r}: choose 32, 64 or 128")
    check_device([packed.words], ["packed"])
    masks_GH = masks_of(packed)
    n_unions = -(-packed.shape[0] // block)
    neurons_UH = torch.zeros(n_unions, packed.shape[1], dtype=torch.int32, device=packed.device)
    counts_U = torch.empty(n_unions, dtype=torch.int32, device=packed.device)
    list_union[n_unions, BLOCK_THREADS](masks_GH, block // GROUP, neurons_UH, counts_U)
    return neurons_UH, counts_U
