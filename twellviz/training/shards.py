"""A model cut over the processes of a run with FSDP2 (``torch.distributed.fsdp.fully_shard``).

Each process keeps the same share of the rows of every weight, of its gradient and of its optimiser state (Rajbhandari
et al., arXiv 1910.02054, stage 3). A layer's weights are gathered before the layer runs, in the forward and again in
the backward, and freed after it; the gradients are averaged over the processes and each keeps its rows.

A checkpoint is gathered into the one safetensors file of a single process. At 2B this is 24.6 GB, which passes through
one weight at a time and needs the memory of the first process's host once, as a run of one process does; in return any
number of processes resumes from it, and every tool reads it. Sharded files (``torch.distributed.checkpoint``) pay from
several machines on.

Letters: n rows of a weight.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from twellviz.models.lm import LM
from twellviz.training.distributed import Ranks


def shard(model: LM, device: torch.device, ranks: Ranks, *, low_precision: bool) -> LM:
    """Move a model, equal on all processes, to its device, cut by rows; in place.

    Parameters
    ----------
    model : LM
        With one process it is moved alone.
    low_precision : bool
        Gather the matrices of the layers in bfloat16 and average their gradients in float32. Embedding and norms stay
        in float32, so that the residual stream does too, as under autocast on one GPU.

    Returns
    -------
    LM
        ``model``.
    """
    if ranks.world == 1:
        return model.to(device)
    mesh = init_device_mesh(device.type, (ranks.world,))
    exact = MixedPrecisionPolicy()
    policy = exact
    if low_precision:
        # Casting what enters a layer would round the residual stream.
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for layer in model.layers:
        if low_precision:
            for norm in (layer.get_submodule("attention_norm"), layer.get_submodule("ffn_norm")):
                fully_shard(norm, mesh=mesh, mp_policy=exact)
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=exact)
    return model.to(device)  # What is not cut: the plans of the blocks.


def whole(tensor: Tensor) -> Tensor:
    """The tensor with the rows of all processes; all of them must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local(tensor: Tensor) -> Tensor:
    """The rows of this process as a plain tensor that shares their memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def rows(n: int, ranks_in_mesh: int, rank: int) -> slice:
    """Rows of a weight with ``n`` rows that a process keeps: equal blocks, the last ones smaller or empty."""
    block = -(-n // ranks_in_mesh)
    return slice(min(n, block * rank), min(n, block * (rank + 1)))


def own_rows(tensor: Tensor, like: Tensor) -> Tensor:
    """This process's rows of a whole tensor, where ``like`` is cut; else the tensor itself, on the device of ``like``.

    No process speaks to another: each has the whole tensor, of a file or of random numbers.
    """
    if not isinstance(like, DTensor):
        return tensor.to(like.device)
    mesh = like.device_mesh
    kept = tensor[rows(tensor.shape[0], mesh.size(), mesh.get_local_rank())]
    # A copy: the rest of the whole tensor should not live on with its rows.
    local = kept.clone() if kept.device == like.to_local().device else kept.to(like.to_local().device)
    return DTensor.from_local(local, mesh, like.placements, run_check=False, shape=tensor.shape, stride=like.stride())


def whole_model(model: LM, ranks: Ranks) -> LM:
    """The model uncut on rank 0; on the others one on the meta device, which has sizes but no weights."""
    if ranks.world == 1:
        return model
    state = {}
    for name, tensor in model.state_dict().items():
        gathered = whole(tensor).detach()
        if ranks.first:
            state[name] = gathered
    with torch.device("meta"):
        uncut = LM(model.cfg)
    if ranks.first:
        uncut.load_state_dict(state, assign=True)
        uncut.requires_grad_(True)
    return uncut
