"""Checks of notebook 06: a shared dot product, the down rows added up column by column, a whole fused token.

Inputs are small integers, so that sums are exact in any order. Letters: M tokens, D model width, H hidden width,
N active neurons of a token.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from twellviz.kernel_trace import KernelSheet, KernelSpec, KernelTrace, empty

LANES = 32
N_HIDDEN = 9
COUNTS = (3, 0, 5)
"""Active neurons of the three tokens of exercise 6.3."""

THREADS = 16


def _integers(*shape: int, step: int, modulus: int) -> Any:
    numbers = np.arange(int(np.prod(shape))) * step % modulus - modulus // 2
    return numbers.astype(np.float32).reshape(shape)


def _dot_arguments(width: int) -> dict[str, Any]:
    return {
        "x": _integers(width, step=5, modulus=13),
        "up": _integers(N_HIDDEN, width, step=7, modulus=31),
        "neurons": np.array([7, 0, 3, 8], np.int32),
        "dots": empty(4, np.float32),
    }


def _down_arguments(width: int) -> dict[str, Any]:
    return {
        "neurons": np.array([1, 4, 6, 8], np.int32),
        "h": np.array([2, 7, 1, 3], np.float32),
        "down": _integers(N_HIDDEN, width, step=11, modulus=101),
        "y": empty(width, np.float32),
    }


def _token_arguments(width: int) -> dict[str, Any]:
    n_tokens, most = len(COUNTS), max(COUNTS)
    neurons = np.stack([np.sort(np.random.default_rng(m).permutation(N_HIDDEN)[:most]) for m in range(n_tokens)])
    return {
        "x": _integers(n_tokens, width, step=5, modulus=11),
        "counts": np.array(COUNTS, np.int32),
        "neurons": neurons.astype(np.int32),
        "gates": (1 + np.arange(n_tokens * most)).reshape(n_tokens, most).astype(np.float32),
        "up": _integers(N_HIDDEN, width, step=7, modulus=29),
        "down": _integers(N_HIDDEN, width, step=3, modulus=23),
        "y": empty((n_tokens, width), np.float32),
    }


def _fused(x: Any, counts: Any, neurons: Any, gates: Any, up: Any, down: Any, y: Any) -> dict[str, Any]:
    result = np.zeros(y.shape, np.float64)
    for m, count in enumerate(counts):
        for n, gate in zip(neurons[m, :count], gates[m, :count], strict=True):
            result[m] += float(gate) * float(x[m] @ up[n]) * down[n]
    return {"y": result}


def _dot_costs(trace: KernelTrace) -> str:
    """All lanes share the work, and no sum depends on who comes first."""
    accesses = trace.accesses()
    if (accesses["operation"] == "atomic").any():
        return (
            "an atomic adds floats in the order in which threads come, so the last bits differ from run to run: let "
            "each lane leave its sum in shared memory, and one thread add them in order"
        )
    reads = (
        accesses[(accesses["array"] == "up") & (accesses["operation"] == "read")].groupby(["block", "thread"]).size()
    )
    fair = -(-int(reads.sum()) // (4 * LANES))
    if reads.max() > 2 * fair:
        worst: Any = reads.idxmax()
        return (
            f"thread {worst[1]} of block {worst[0]} reads {reads.max()} values of up, where {LANES} threads that share "
            f"them read {fair} each: let lane l take columns l, l + {LANES} and so on"
        )
    return ""


SHEET = KernelSheet(
    [
        KernelSpec(
            "6.1",
            make=_dot_arguments,
            reference=lambda x, up, neurons, dots: {"dots": up[neurons] @ x},
            launch=lambda n: (4, LANES),
            sizes=(64, 45),
            costs=_dot_costs,
            hint="A lane adds up columns lane, lane + 32, ...: `for d in range(lane, x.size, 32)`. Its sum goes to "
            "parts[lane]; after cuda.syncthreads() one thread adds the 32 parts and writes dots[cuda.blockIdx.x].",
        ),
        KernelSpec(
            "6.2",
            make=_down_arguments,
            reference=lambda neurons, h, down, y: {"y": h @ down[neurons]},
            launch=lambda n: (-(-n // THREADS), THREADS),
            sizes=(32, 37),
            hint="A thread keeps its sum to itself, walks through all neurons of the list, adds "
            "h[i] * down[neurons[i], column], and writes y once at the end. Some threads have no column.",
        ),
        KernelSpec(
            "6.3",
            make=_token_arguments,
            reference=_fused,
            launch=lambda n: (len(COUNTS), LANES),
            sizes=(32, 45),
            hint="Set y to 0 first: a token may have no active neuron. Then, for each i below counts[m]: the parts of "
            "exercise 6.1, a barrier, h = gate * sum of the parts, which every thread may add up for itself, then the "
            "columns of 6.2 with y[m, column] as the sum, and a second barrier before anyone overwrites the parts.",
        ),
    ]
)
check, hint, record = SHEET.check, SHEET.hint, SHEET.record
