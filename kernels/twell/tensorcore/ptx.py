"""Instructions of Hopper that Numba has no name for, each as a function that kernels call.

Every function has two forms, as in :mod:`twell.simt.bits`: one that emits a line of PTX, and one in Python that does
the same in a :class:`twell.tensorcore.machine.Machine`. Shared addresses are 32-bit numbers (:func:`shared_address`),
global ones 64-bit (:func:`global_address`). The PTX ISA names each instruction; its chapter is given in the docstring.

================================  ====================================================================================
barriers in shared memory         :func:`barrier_init`, ``_arrive``, ``_expect``, ``_wait``
copies into shared memory         :func:`copy_box` (TMA), :func:`copy_box_to_cluster`, :func:`copy_16_bytes` (cp.async)
order between them                :func:`fence_barriers`, :func:`fence_async`
products                          :func:`product_fence`, :func:`product_commit`, :func:`product_wait`
registers                         :func:`take_registers`, :func:`give_registers`
clusters                          :func:`cluster_rank`, ``_sync``, :func:`address_in`, :func:`barrier_arrive_in`
numbers                           :func:`quotient`: 32-bit, since a 64-bit division is a call, which stops wgmma
================================  ====================================================================================

Letters: none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]

from twell.cuda_target import two_forms
from twell.simt.bits import _types
from twell.tensorcore.machine import RANK, current

_VOID, _I32, _I64 = ir.VoidType(), ir.IntType(32), ir.IntType(64)
_KINDS = {"r": _I32, "l": _I64}


def emitted(builder: Any, text: str, constraints: str, returns: Any, arguments: Sequence[Any]) -> Any:
    """A line of PTX that stays where it is."""
    kind = ir.FunctionType(returns, [argument.type for argument in arguments])
    return builder.asm(kind, text, constraints, arguments, side_effect=True)


def _instruction(host: Callable[..., Any], text: str, kinds: str = "", returns: str = "") -> Any:
    """A function that emits ``text``; ``kinds`` has a letter an argument: r for 32 bits, l for 64."""

    def gpu(typing: Any, *arguments: Any) -> Any:
        types = _types()
        wanted = [types.int32 if kind == "r" else types.int64 for kind in kinds]
        result = {"": types.void, "r": types.int32, "l": types.int64}[returns]

        def emit(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            cast = [
                context.cast(builder, value, given, kind)
                for value, given, kind in zip(values, signature.args, wanted, strict=True)
            ]
            constraints = [f"={returns}"] if returns else []
            constraints += [*kinds, "~{memory}"]
            found = emitted(builder, text, ",".join(constraints), _KINDS.get(returns, _VOID), cast)
            return found if returns else context.get_dummy_value()

        return result(*arguments), emit

    host.instruction = True  # type: ignore[attr-defined]
    return two_forms(host, _with_arity(gpu, len(kinds)))


def _with_arity(gpu: Callable[..., Any], n: int) -> Any:
    """Numba reads the number of arguments off the signature."""
    return (
        lambda typing: gpu(typing),
        lambda typing, a: gpu(typing, a),
        lambda typing, a, b: gpu(typing, a, b),
        lambda typing, a, b, c: gpu(typing, a, b, c),
        lambda typing, a, b, c, d: gpu(typing, a, b, c, d),
        lambda typing, a, b, c, d, e: gpu(typing, a, b, c, d, e),
        lambda typing, a, b, c, d, e, f: gpu(typing, a, b, c, d, e, f),
    )[n]


# Barriers ----------------------------------------------------------------------------------------------------------


def barrier_init(address: int, count: int) -> None:
    """mbarrier.init: a barrier that turns over when ``count`` threads have arrived (and its bytes have come)."""
    from twell.tensorcore.machine import Barrier

    here = current()
    with here.machine.lock:
        here.block.barriers[int(address)] = Barrier(int(count), int(count), here.machine.condition())


def barrier_arrive(address: int) -> None:
    """mbarrier.arrive: one thread has arrived."""
    _arrive(address)


def _arrive(address: int) -> None:
    with current().machine.lock:
        current().machine.arrive(int(address))


def barrier_expect(address: int, n_bytes: int) -> None:
    """mbarrier.arrive.expect_tx: one thread has arrived, and bytes will come from the copy engine."""
    with current().machine.lock:
        current().machine.announce(int(address), int(n_bytes))
        current().machine.arrive(int(address))


def barrier_wait(address: int, parity: int) -> None:
    """mbarrier.try_wait.parity, until it holds: the phase of this parity is over."""
    machine = current().machine
    with machine.lock:
        barrier = machine.barrier(int(address))
        what = f"mbarrier {int(address)}, parity {int(parity)}"
        machine.wait_until(lambda: barrier.phase != int(parity) & 1, barrier.turned, what)


def fence_barriers() -> None:
    """fence.mbarrier_init: other blocks of the cluster and the copy engine see the initialised barriers."""


def fence_async() -> None:
    """fence.proxy.async: what this thread wrote (or cp.async brought) is seen by tensor cores and the copy engine."""


def barrier_of_group(number: int, threads: int) -> None:
    """bar.sync: the ``threads`` threads that name barrier ``number`` (1 to 15) wait for each other."""
    current().machine.meet(("bar", int(number)), int(threads))


# Copies ------------------------------------------------------------------------------------------------------------


def swizzled(place: Any) -> Any:
    """Where a byte of a box 128 bytes wide stands: 16-byte pieces of a row change places by the row's number.

    Eight rows of one column then lie in eight different groups of banks (PTX ISA, swizzle mode 128B).
    """
    return place ^ ((place >> 7 & 7) << 4)


def _box(map_number: int, column: int, row: int) -> Any:
    found = current().machine.maps[map_number]
    box = np.zeros((found.rows, found.columns), found.matrix.dtype)
    inside = found.matrix[max(row, 0) : row + found.rows, max(column, 0) : column + found.columns]
    box[: inside.shape[0], : inside.shape[1]] = inside
    return box.view(np.uint8).reshape(-1)


def _deliver(block: Any, place: int, data: Any) -> None:
    if place % 1024:
        raise AssertionError(f"a swizzled box at {place}: it must begin at a multiple of 1,024 bytes")
    block.memory[swizzled(place + np.arange(data.size))] = data


def copy_box(destination: int, tensor_map: int, column: int, row: int, barrier: int) -> None:
    """cp.async.bulk.tensor.2d: one thread has a box copied into shared memory, zeros where it leaves the matrix.

    The bytes are credited to ``barrier``, which must expect them (:func:`barrier_expect`).
    """
    machine = current().machine
    data = _box(int(tensor_map), int(column), int(row))
    with machine.lock:
        _deliver(current().block, int(destination), data)
        machine.announce(int(barrier), -data.size)


def copy_box_to_cluster(destination: int, tensor_map: int, column: int, row: int, barrier: int, blocks: int) -> None:
    """The same into each block of the cluster whose bit stands in ``blocks``, at the same place, to its barrier."""
    machine = current().machine
    data = _box(int(tensor_map), int(column), int(row))
    with machine.lock:
        for block in machine.cluster:
            if int(blocks) >> block.rank & 1:
                _deliver(block, int(destination), data)
                machine.announce((block.rank + 1) << RANK | int(barrier), -data.size)


def copy_16_bytes(destination: Any, source: Any, n_bytes: int) -> None:
    """cp.async.cg: 16 bytes into shared memory; the first ``n_bytes`` (0 or 16) are read, the rest are zero."""
    here = current()
    data = np.zeros(16, np.uint8)
    if int(n_bytes):
        data[: int(n_bytes)] = here.machine.global_bytes(int(source), int(n_bytes))
    with here.machine.lock:
        here.block.memory[int(destination) : int(destination) + 16] = data


def copies_arrive(barrier: int) -> None:
    """cp.async.mbarrier.arrive.noinc: this thread arrives when all its :func:`copy_16_bytes` so far are there."""
    _arrive(barrier)


# Products ----------------------------------------------------------------------------------------------------------


def product_fence() -> None:
    """wgmma.fence: registers written before are seen by the products that follow."""


def product_commit() -> None:
    """wgmma.commit_group: the products since the last one are a group."""
    current().machine.commit()


def _wait(left: int) -> None:
    """wgmma.wait_group: at most ``left`` groups are still under way."""
    current().machine.wait_for_group(left)


def product_wait() -> None:
    """wgmma.wait_group 0: all products are done."""
    _wait(0)


def product_wait_but_last() -> None:
    """wgmma.wait_group 1: all products but those of the last group are done."""
    _wait(1)


# Registers ---------------------------------------------------------------------------------------------------------


def take_registers() -> None:
    """setmaxnreg.inc 232: each thread of this warpgroup, which computes, may use so many."""


def give_registers() -> None:
    """setmaxnreg.dec 40: each thread of this warpgroup, which starts copies, is content with so many."""


def take_some_registers() -> None:
    """setmaxnreg.inc 224: where the warpgroup that copies needs more than 40."""


def give_some_registers() -> None:
    """setmaxnreg.dec 56: a warpgroup that gathers rows keeps their addresses."""


# Clusters ----------------------------------------------------------------------------------------------------------


def cluster_rank() -> int:
    """%cluster_ctarank: number of this block in its cluster."""
    return current().block.rank


def cluster_sync() -> None:
    """barrier.cluster: every thread of the cluster is here."""
    current().machine.meet_cluster()


def address_in(address: int, rank: int) -> int:
    """mapa: the same shared address in another block of the cluster."""
    return (int(rank) + 1) << RANK | int(address)


def barrier_arrive_in(address: int) -> None:
    """mbarrier.arrive at a barrier of any block of the cluster (:func:`address_in`)."""
    _arrive(address)


# Addresses and numbers ---------------------------------------------------------------------------------------------


def _host_shared_address(array: Any) -> int:
    """Address of a shared array's first element, 32 bits."""
    return int(array.ctypes.data - current().block.memory.ctypes.data)


def _host_global_address(array: Any) -> int:
    """Address of a global array's first element, 64 bits."""
    return int(array.ctypes.data)


def _host_store_pair(array: Any, index: int, both: int) -> None:
    """Store two 16-bit numbers at the flat element ``index``, which is even."""
    array.reshape(-1).view(np.uint32)[int(index) // 2] = both


def _gpu_store_pair(typing: Any, array: Any, index: Any, both: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(array)(context, builder, arguments[0]).data
        place = builder.bitcast(builder.gep(data, [arguments[1]]), _I32.as_pointer())
        builder.store(arguments[2], place, align=4)
        return context.get_dummy_value()

    types = _types()
    return types.void(array, types.int64, types.uint32), emit


def _gpu_shared_address(typing: Any, array: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(array)(context, builder, arguments[0]).data
        generic = builder.ptrtoint(data, _I64)
        return builder.trunc(emitted(builder, "cvta.to.shared.u64 $0, $1;", "=l,l", _I64, [generic]), _I32)

    return _types().int32(array), emit


def _host_quotient(a: int, b: int) -> int:
    """``a // b`` of numbers from 0 to 2**31 - 1."""
    return int(a) // int(b)


def _gpu_quotient(typing: Any, a: Any, b: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        narrow = [
            context.cast(builder, value, given, _types().int32)
            for value, given in zip(arguments, signature.args, strict=True)
        ]
        return builder.zext(builder.udiv(*narrow), _I64)

    return _types().int64(a, b), emit


def _gpu_global_address(typing: Any, array: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ptrtoint(context.make_array(array)(context, builder, arguments[0]).data, _I64)

    return _types().int64(array), emit


_WAIT = """{
.reg .pred done;
W${:uid}:
mbarrier.try_wait.parity.shared::cta.b64 done, [$0], $1;
@!done bra W${:uid};
}"""
_TENSOR = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"

barrier_init = _instruction(barrier_init, "mbarrier.init.shared::cta.b64 [$0], $1;", "rr")
barrier_arrive = _instruction(barrier_arrive, "mbarrier.arrive.shared::cta.b64 _, [$0];", "r")
barrier_expect = _instruction(barrier_expect, "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", "rr")
barrier_wait = _instruction(barrier_wait, _WAIT, "rr")
fence_barriers = _instruction(fence_barriers, "fence.mbarrier_init.release.cluster;")
fence_async = _instruction(fence_async, "fence.proxy.async.shared::cta;")
barrier_of_group = _instruction(barrier_of_group, "bar.sync $0, $1;", "rr")
copy_box = _instruction(copy_box, f"{_TENSOR} [$0], [$1, {{$2, $3}}], [$4];", "rlrrr")
copy_box_to_cluster = _instruction(
    copy_box_to_cluster,
    "{\n.reg .b16 blocks;\ncvt.u16.u32 blocks, $5;\n"
    f"{_TENSOR}.multicast::cluster [$0], [$1, {{$2, $3}}], [$4], blocks;\n}}",
    "rlrrrr",
)
copy_16_bytes = _instruction(copy_16_bytes, "cp.async.cg.shared.global [$0], [$1], 16, $2;", "rlr")
copies_arrive = _instruction(copies_arrive, "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [$0];", "r")
product_fence = _instruction(product_fence, "wgmma.fence.sync.aligned;")
product_commit = _instruction(product_commit, "wgmma.commit_group.sync.aligned;")
product_wait = _instruction(product_wait, "wgmma.wait_group.sync.aligned 0;")
product_wait_but_last = _instruction(product_wait_but_last, "wgmma.wait_group.sync.aligned 1;")
take_registers = _instruction(take_registers, "setmaxnreg.inc.sync.aligned.u32 232;")
give_registers = _instruction(give_registers, "setmaxnreg.dec.sync.aligned.u32 40;")
take_some_registers = _instruction(take_some_registers, "setmaxnreg.inc.sync.aligned.u32 224;")
give_some_registers = _instruction(give_some_registers, "setmaxnreg.dec.sync.aligned.u32 56;")
cluster_rank = _instruction(cluster_rank, "mov.u32 $0, %cluster_ctarank;", "", "r")
cluster_sync = _instruction(cluster_sync, "barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;")
address_in = _instruction(address_in, "mapa.shared::cluster.u32 $0, $1, $2;", "rr", "r")
barrier_arrive_in = _instruction(barrier_arrive_in, "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [$0];", "r")
_host_shared_address.instruction = True  # type: ignore[attr-defined]
_host_global_address.instruction = True  # type: ignore[attr-defined]
_host_store_pair.instruction = True  # type: ignore[attr-defined]
_host_quotient.instruction = True  # type: ignore[attr-defined]
shared_address = two_forms(_host_shared_address, _gpu_shared_address)
global_address = two_forms(_host_global_address, _gpu_global_address)
store_pair = two_forms(_host_store_pair, _gpu_store_pair)
quotient = two_forms(_host_quotient, _gpu_quotient)
