"""The checks of notebooks 05 and 06 take right kernels and name what is wrong with each wrong one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from numba import cuda
from numpy import float32, int32
from twell.cuda_compile import compile_for
from twell.cuda_target import kernel, numba_type

from twellviz.exercises import ExerciseError, nb05, nb06
from twellviz.kernel_trace import KernelExerciseError

Kernel = Callable[..., None]

MODULES: list[ModuleType] = [nb05, nb06]


def pack_tile(h: Any, columns: Any, values: Any) -> None:
    counts = cuda.shared.array(8, int32)
    thread, tile = cuda.threadIdx.x, cuda.blockIdx.x
    first = tile * 32 + thread * 4
    last = min(first + 4, h.size)
    found = 0
    for column in range(first, last):
        if h[column] > 0:
            found += 1
    counts[thread] = found
    cuda.syncthreads()
    slot = 1
    for left in range(thread):
        slot += counts[left]
    for column in range(first, last):
        if h[column] > 0:
            if slot < columns.shape[1]:
                columns[tile, slot] = column
                values[tile, slot] = h[column]
            slot += 1
    if thread == 7:
        columns[tile, 0] = slot - 1


def pack_without_barrier(h: Any, columns: Any, values: Any) -> None:
    counts = cuda.shared.array(8, int32)
    thread, tile = cuda.threadIdx.x, cuda.blockIdx.x
    first = tile * 32 + thread * 4
    last = min(first + 4, h.size)
    found = 0
    for column in range(first, last):
        if h[column] > 0:
            found += 1
    counts[thread] = found
    slot = 1
    for left in range(thread):
        slot += counts[left]
    for column in range(first, last):
        if h[column] > 0:
            if slot < columns.shape[1]:
                columns[tile, slot] = column
                values[tile, slot] = h[column]
            slot += 1
    if thread == 7:
        columns[tile, 0] = slot - 1


def pack_unguarded_columns(h: Any, columns: Any, values: Any) -> None:
    counts = cuda.shared.array(8, int32)
    thread, tile = cuda.threadIdx.x, cuda.blockIdx.x
    first = tile * 32 + thread * 4
    found = 0
    for column in range(first, first + 4):
        if h[column] > 0:
            found += 1
    counts[thread] = found
    cuda.syncthreads()
    slot = 1
    for left in range(thread):
        slot += counts[left]
    for column in range(first, first + 4):
        if h[column] > 0:
            if slot < columns.shape[1]:
                columns[tile, slot] = column
                values[tile, slot] = h[column]
            slot += 1
    if thread == 7:
        columns[tile, 0] = slot - 1


def pack_unguarded_slots(h: Any, columns: Any, values: Any) -> None:
    counts = cuda.shared.array(8, int32)
    thread, tile = cuda.threadIdx.x, cuda.blockIdx.x
    first = tile * 32 + thread * 4
    last = min(first + 4, h.size)
    found = 0
    for column in range(first, last):
        if h[column] > 0:
            found += 1
    counts[thread] = found
    cuda.syncthreads()
    slot = 1
    for left in range(thread):
        slot += counts[left]
    for column in range(first, last):
        if h[column] > 0:
            columns[tile, slot] = column
            values[tile, slot] = h[column]
            slot += 1
    if thread == 7:
        columns[tile, 0] = slot - 1


def pack_from_slot_0(h: Any, columns: Any, values: Any) -> None:
    """Slot 0 is the count's: off by one."""
    counts = cuda.shared.array(8, int32)
    thread, tile = cuda.threadIdx.x, cuda.blockIdx.x
    first = tile * 32 + thread * 4
    last = min(first + 4, h.size)
    found = 0
    for column in range(first, last):
        if h[column] > 0:
            found += 1
    counts[thread] = found
    cuda.syncthreads()
    slot = 0
    for left in range(thread):
        slot += counts[left]
    for column in range(first, last):
        if h[column] > 0:
            if slot < columns.shape[1]:
                columns[tile, slot] = column
                values[tile, slot] = h[column]
            slot += 1
    cuda.syncthreads()
    if thread == 7:
        columns[tile, 0] = slot


def pack_cut_count(h: Any, columns: Any, values: Any) -> None:
    counts = cuda.shared.array(8, int32)
    thread, tile = cuda.threadIdx.x, cuda.blockIdx.x
    first = tile * 32 + thread * 4
    last = min(first + 4, h.size)
    found = 0
    for column in range(first, last):
        if h[column] > 0:
            found += 1
    counts[thread] = found
    cuda.syncthreads()
    slot = 1
    for left in range(thread):
        slot += counts[left]
    for column in range(first, last):
        if h[column] > 0 and slot < columns.shape[1]:
            columns[tile, slot] = column
            values[tile, slot] = h[column]
            slot += 1
    if thread == 7:
        columns[tile, 0] = min(slot, columns.shape[1]) - 1


def pack_tile_columns(h: Any, columns: Any, values: Any) -> None:
    """Columns counted from the tile's start, right in the first tile only."""
    counts = cuda.shared.array(8, int32)
    thread, tile = cuda.threadIdx.x, cuda.blockIdx.x
    first = tile * 32 + thread * 4
    last = min(first + 4, h.size)
    found = 0
    for column in range(first, last):
        if h[column] > 0:
            found += 1
    counts[thread] = found
    cuda.syncthreads()
    slot = 1
    for left in range(thread):
        slot += counts[left]
    for column in range(first, last):
        if h[column] > 0:
            if slot < columns.shape[1]:
                columns[tile, slot] = column - tile * 32
                values[tile, slot] = h[column]
            slot += 1
    if thread == 7:
        columns[tile, 0] = slot - 1


def pack_into_mirrored_tiles(h: Any, columns: Any, values: Any) -> None:
    """Each tile is right and stands in another's place."""
    counts = cuda.shared.array(8, int32)
    thread, tile = cuda.threadIdx.x, cuda.blockIdx.x
    first = tile * 32 + thread * 4
    last = min(first + 4, h.size)
    found = 0
    for column in range(first, last):
        if h[column] > 0:
            found += 1
    counts[thread] = found
    cuda.syncthreads()
    place = columns.shape[0] - 1 - tile
    slot = 1
    for left in range(thread):
        slot += counts[left]
    for column in range(first, last):
        if h[column] > 0:
            if slot < columns.shape[1]:
                columns[place, slot] = column
                values[place, slot] = h[column]
            slot += 1
    if thread == 7:
        columns[place, 0] = slot - 1


def pack_by_arrival(h: Any, columns: Any, values: Any) -> None:
    """Slots by an atomic counter: all entries are there, in the order in which threads came."""
    taken = cuda.shared.array(1, int32)
    thread, tile = cuda.threadIdx.x, cuda.blockIdx.x
    if thread == 0:
        taken[0] = 0
    cuda.syncthreads()
    # Threads of another order, as on a GPU.
    first = tile * 32 + (7 - thread) * 4
    for column in range(first, min(first + 4, h.size)):
        if h[column] > 0:
            slot = cuda.atomic.add(taken, 0, 1) + 1
            if slot < columns.shape[1]:
                columns[tile, slot] = column
                values[tile, slot] = h[column]
    cuda.syncthreads()
    if thread == 0:
        columns[tile, 0] = taken[0]


def write_row(x: Any, gate: Any, h: Any) -> None:
    row_part = cuda.shared.array(32, float32)
    thread, first, m = cuda.threadIdx.x, cuda.blockIdx.x * 32, cuda.blockIdx.y
    for j in range(4):
        row_part[thread * 4 + j] = nb05.gate_sum(x, gate, m, first + thread * 4 + j)
    cuda.syncthreads()
    for j in range(4):
        column = first + j * 8 + thread
        if column < h.shape[1]:
            value = row_part[j * 8 + thread]
            h[m, column] = value if value > 0 else float32(0)


def write_directly(x: Any, gate: Any, h: Any) -> None:
    """Right, and each step writes cells 16 bytes apart."""
    thread, first, m = cuda.threadIdx.x, cuda.blockIdx.x * 32, cuda.blockIdx.y
    for j in range(4):
        column = first + thread * 4 + j
        if column < h.shape[1]:
            value = nb05.gate_sum(x, gate, m, column)
            h[m, column] = value if value > 0 else float32(0)


def write_without_barrier(x: Any, gate: Any, h: Any) -> None:
    row_part = cuda.shared.array(32, float32)
    thread, first, m = cuda.threadIdx.x, cuda.blockIdx.x * 32, cuda.blockIdx.y
    for j in range(4):
        row_part[thread * 4 + j] = nb05.gate_sum(x, gate, m, first + thread * 4 + j)
    for j in range(4):
        column = first + j * 8 + thread
        if column < h.shape[1]:
            value = row_part[j * 8 + thread]
            h[m, column] = value if value > 0 else float32(0)


def write_unguarded(x: Any, gate: Any, h: Any) -> None:
    row_part = cuda.shared.array(32, float32)
    thread, first, m = cuda.threadIdx.x, cuda.blockIdx.x * 32, cuda.blockIdx.y
    for j in range(4):
        row_part[thread * 4 + j] = nb05.gate_sum(x, gate, m, first + thread * 4 + j)
    cuda.syncthreads()
    for j in range(4):
        value = row_part[j * 8 + thread]
        h[m, first + j * 8 + thread] = value if value > 0 else float32(0)


def write_one_too_far(x: Any, gate: Any, h: Any) -> None:
    row_part = cuda.shared.array(32, float32)
    thread, first, m = cuda.threadIdx.x, cuda.blockIdx.x * 32, cuda.blockIdx.y
    for j in range(4):
        row_part[thread * 4 + j] = nb05.gate_sum(x, gate, m, first + thread * 4 + j)
    cuda.syncthreads()
    for j in range(4):
        column = first + j * 8 + thread
        if column <= h.shape[1]:
            value = row_part[j * 8 + thread]
            h[m, column] = value if value > 0 else float32(0)


def write_one_too_few(x: Any, gate: Any, h: Any) -> None:
    row_part = cuda.shared.array(32, float32)
    thread, first, m = cuda.threadIdx.x, cuda.blockIdx.x * 32, cuda.blockIdx.y
    for j in range(4):
        row_part[thread * 4 + j] = nb05.gate_sum(x, gate, m, first + thread * 4 + j)
    cuda.syncthreads()
    for j in range(4):
        column = first + j * 8 + thread
        if column < h.shape[1] - 1:
            value = row_part[j * 8 + thread]
            h[m, column] = value if value > 0 else float32(0)


def write_without_relu(x: Any, gate: Any, h: Any) -> None:
    row_part = cuda.shared.array(32, float32)
    thread, first, m = cuda.threadIdx.x, cuda.blockIdx.x * 32, cuda.blockIdx.y
    for j in range(4):
        row_part[thread * 4 + j] = nb05.gate_sum(x, gate, m, first + thread * 4 + j)
    cuda.syncthreads()
    for j in range(4):
        column = first + j * 8 + thread
        if column < h.shape[1]:
            h[m, column] = row_part[j * 8 + thread]


def write_mirrored(x: Any, gate: Any, h: Any) -> None:
    """Every value is there, and every row's sum is right."""
    thread, first, m = cuda.threadIdx.x, cuda.blockIdx.x * 32, cuda.blockIdx.y
    for j in range(4):
        column = first + thread * 4 + j
        if column < h.shape[1]:
            value = nb05.gate_sum(x, gate, m, column)
            h[m, h.shape[1] - 1 - column] = value if value > 0 else float32(0)


def count_spilled(counts: Any, slots: Any, over: Any) -> None:
    i = cuda.grid(1)
    if i < counts.size:
        m = i // counts.shape[1]
        if counts[m, i % counts.shape[1]] >= slots:
            cuda.atomic.add(over, m, 1)


def count_without_atomic(counts: Any, slots: Any, over: Any) -> None:
    i = cuda.grid(1)
    if i < counts.size:
        m = i // counts.shape[1]
        if counts[m, i % counts.shape[1]] >= slots:
            over[m] += 1


def count_unguarded(counts: Any, slots: Any, over: Any) -> None:
    i = cuda.grid(1)
    m = i // counts.shape[1]
    if counts[m, i % counts.shape[1]] >= slots:
        cuda.atomic.add(over, m, 1)


def count_off_by_one(counts: Any, slots: Any, over: Any) -> None:
    i = cuda.grid(1)
    if i < counts.size:
        m = i // counts.shape[1]
        if counts[m, i % counts.shape[1]] > slots:
            cuda.atomic.add(over, m, 1)


def count_full_as_spilled(counts: Any, slots: Any, over: Any) -> None:
    i = cuda.grid(1)
    if i < counts.size:
        m = i // counts.shape[1]
        if counts[m, i % counts.shape[1]] >= slots - 1:
            cuda.atomic.add(over, m, 1)


def count_at_mirrored_rows(counts: Any, slots: Any, over: Any) -> None:
    """As many tiles in all, and each row's count at another row."""
    i = cuda.grid(1)
    if i < counts.size:
        m = i // counts.shape[1]
        if counts[m, i % counts.shape[1]] >= slots:
            cuda.atomic.add(over, counts.shape[0] - 1 - m, 1)


def shared_dot(x: Any, up: Any, neurons: Any, dots: Any) -> None:
    parts = cuda.shared.array(32, float32)
    lane, neuron = cuda.threadIdx.x, neurons[cuda.blockIdx.x]
    part = float32(0)
    for d in range(lane, x.size, 32):
        part += x[d] * up[neuron, d]
    parts[lane] = part
    cuda.syncthreads()
    if lane == 0:
        total = float32(0)
        for i in range(32):
            total += parts[i]
        dots[cuda.blockIdx.x] = total


def dot_without_barrier(x: Any, up: Any, neurons: Any, dots: Any) -> None:
    parts = cuda.shared.array(32, float32)
    lane, neuron = cuda.threadIdx.x, neurons[cuda.blockIdx.x]
    part = float32(0)
    for d in range(lane, x.size, 32):
        part += x[d] * up[neuron, d]
    parts[lane] = part
    if lane == 31:
        total = float32(0)
        for i in range(32):
            total += parts[i]
        dots[cuda.blockIdx.x] = total


def dot_unguarded(x: Any, up: Any, neurons: Any, dots: Any) -> None:
    parts = cuda.shared.array(32, float32)
    lane, neuron = cuda.threadIdx.x, neurons[cuda.blockIdx.x]
    part = float32(0)
    for first in range(0, x.size, 32):
        part += x[first + lane] * up[neuron, first + lane]
    parts[lane] = part
    cuda.syncthreads()
    if lane == 0:
        total = float32(0)
        for i in range(32):
            total += parts[i]
        dots[cuda.blockIdx.x] = total


def dot_of_31_parts(x: Any, up: Any, neurons: Any, dots: Any) -> None:
    parts = cuda.shared.array(32, float32)
    lane, neuron = cuda.threadIdx.x, neurons[cuda.blockIdx.x]
    part = float32(0)
    for d in range(lane, x.size, 32):
        part += x[d] * up[neuron, d]
    parts[lane] = part
    cuda.syncthreads()
    if lane == 0:
        total = float32(0)
        for i in range(31):
            total += parts[i]
        dots[cuda.blockIdx.x] = total


def dot_whole_rounds_only(x: Any, up: Any, neurons: Any, dots: Any) -> None:
    """Right where D is a multiple of 32."""
    parts = cuda.shared.array(32, float32)
    lane, neuron = cuda.threadIdx.x, neurons[cuda.blockIdx.x]
    part = float32(0)
    for i in range(x.size // 32):
        part += x[i * 32 + lane] * up[neuron, i * 32 + lane]
    parts[lane] = part
    cuda.syncthreads()
    if lane == 0:
        total = float32(0)
        for i in range(32):
            total += parts[i]
        dots[cuda.blockIdx.x] = total


def dot_in_last_place_first(x: Any, up: Any, neurons: Any, dots: Any) -> None:
    parts = cuda.shared.array(32, float32)
    lane, neuron = cuda.threadIdx.x, neurons[cuda.blockIdx.x]
    part = float32(0)
    for d in range(lane, x.size, 32):
        part += x[d] * up[neuron, d]
    parts[lane] = part
    cuda.syncthreads()
    if lane == 0:
        total = float32(0)
        for i in range(32):
            total += parts[i]
        dots[dots.size - 1 - cuda.blockIdx.x] = total


def dot_of_block_number(x: Any, up: Any, neurons: Any, dots: Any) -> None:
    parts = cuda.shared.array(32, float32)
    lane = cuda.threadIdx.x
    part = float32(0)
    for d in range(lane, x.size, 32):
        part += x[d] * up[cuda.blockIdx.x, d]
    parts[lane] = part
    cuda.syncthreads()
    if lane == 0:
        total = float32(0)
        for i in range(32):
            total += parts[i]
        dots[cuda.blockIdx.x] = total


def dot_by_lane_0(x: Any, up: Any, neurons: Any, dots: Any) -> None:
    if cuda.threadIdx.x == 0:
        total = float32(0)
        for d in range(x.size):
            total += x[d] * up[neurons[cuda.blockIdx.x], d]
        dots[cuda.blockIdx.x] = total


def dot_by_atomics(x: Any, up: Any, neurons: Any, dots: Any) -> None:
    total = cuda.shared.array(1, float32)
    lane = cuda.threadIdx.x
    if lane == 0:
        total[0] = 0
    cuda.syncthreads()
    for d in range(lane, x.size, 32):
        cuda.atomic.add(total, 0, x[d] * up[neurons[cuda.blockIdx.x], d])
    cuda.syncthreads()
    if lane == 0:
        dots[cuda.blockIdx.x] = total[0]


def add_down(neurons: Any, h: Any, down: Any, y: Any) -> None:
    column = cuda.grid(1)
    if column < y.size:
        total = float32(0)
        for i in range(neurons.size):
            total += h[i] * down[neurons[i], column]
        y[column] = total


def down_unguarded(neurons: Any, h: Any, down: Any, y: Any) -> None:
    column = cuda.grid(1)
    total = float32(0)
    for i in range(neurons.size):
        total += h[i] * down[neurons[i], column]
    y[column] = total


def down_by_neuron(neurons: Any, h: Any, down: Any, y: Any) -> None:
    """A thread a neuron: all of them add to the same columns."""
    i = cuda.grid(1)
    if i == 0:
        for column in range(y.size):
            y[column] = 0
    cuda.syncthreads()
    if i < neurons.size:
        for column in range(y.size):
            y[column] += h[i] * down[neurons[i], column]


def down_without_first(neurons: Any, h: Any, down: Any, y: Any) -> None:
    column = cuda.grid(1)
    if column < y.size:
        total = float32(0)
        for i in range(1, neurons.size):
            total += h[i] * down[neurons[i], column]
        y[column] = total


def down_of_places(neurons: Any, h: Any, down: Any, y: Any) -> None:
    column = cuda.grid(1)
    if column < y.size:
        total = float32(0)
        for i in range(neurons.size):
            total += h[i] * down[i, column]
        y[column] = total


def down_mirrored(neurons: Any, h: Any, down: Any, y: Any) -> None:
    column = cuda.grid(1)
    if column < y.size:
        total = float32(0)
        for i in range(neurons.size):
            total += h[i] * down[neurons[i], column]
        y[y.size - 1 - column] = total


def down_one_block(neurons: Any, h: Any, down: Any, y: Any) -> None:
    column = cuda.threadIdx.x
    total = float32(0)
    for i in range(neurons.size):
        total += h[i] * down[neurons[i], column]
    y[column] = total


def whole_token(x: Any, counts: Any, neurons: Any, gates: Any, up: Any, down: Any, y: Any) -> None:
    parts = cuda.shared.array(32, float32)
    lane, m = cuda.threadIdx.x, cuda.blockIdx.x
    for column in range(lane, y.shape[1], 32):
        y[m, column] = 0
    for i in range(counts[m]):
        neuron = neurons[m, i]
        part = float32(0)
        for d in range(lane, x.shape[1], 32):
            part += x[m, d] * up[neuron, d]
        parts[lane] = part
        cuda.syncthreads()
        total = float32(0)
        for j in range(32):
            total += parts[j]
        for column in range(lane, y.shape[1], 32):
            y[m, column] += gates[m, i] * total * down[neuron, column]
        cuda.syncthreads()


def token_one_barrier(x: Any, counts: Any, neurons: Any, gates: Any, up: Any, down: Any, y: Any) -> None:
    parts = cuda.shared.array(32, float32)
    lane, m = cuda.threadIdx.x, cuda.blockIdx.x
    for column in range(lane, y.shape[1], 32):
        y[m, column] = 0
    for i in range(counts[m]):
        neuron = neurons[m, i]
        part = float32(0)
        for d in range(lane, x.shape[1], 32):
            part += x[m, d] * up[neuron, d]
        parts[lane] = part
        cuda.syncthreads()
        total = float32(0)
        for j in range(32):
            total += parts[j]
        for column in range(lane, y.shape[1], 32):
            y[m, column] += gates[m, i] * total * down[neuron, column]


def token_never_zeroed(x: Any, counts: Any, neurons: Any, gates: Any, up: Any, down: Any, y: Any) -> None:
    parts = cuda.shared.array(32, float32)
    lane, m = cuda.threadIdx.x, cuda.blockIdx.x
    for i in range(counts[m]):
        neuron = neurons[m, i]
        part = float32(0)
        for d in range(lane, x.shape[1], 32):
            part += x[m, d] * up[neuron, d]
        parts[lane] = part
        cuda.syncthreads()
        total = float32(0)
        for j in range(32):
            total += parts[j]
        for column in range(lane, y.shape[1], 32):
            y[m, column] += gates[m, i] * total * down[neuron, column]
        cuda.syncthreads()


def token_silent_left_out(x: Any, counts: Any, neurons: Any, gates: Any, up: Any, down: Any, y: Any) -> None:
    """The first neuron sets y, the others add: a token without any leaves it unwritten."""
    parts = cuda.shared.array(32, float32)
    lane, m = cuda.threadIdx.x, cuda.blockIdx.x
    for i in range(counts[m]):
        neuron = neurons[m, i]
        part = float32(0)
        for d in range(lane, x.shape[1], 32):
            part += x[m, d] * up[neuron, d]
        parts[lane] = part
        cuda.syncthreads()
        total = float32(0)
        for j in range(32):
            total += parts[j]
        for column in range(lane, y.shape[1], 32):
            share = gates[m, i] * total * down[neuron, column]
            y[m, column] = share if i == 0 else y[m, column] + share
        cuda.syncthreads()


def token_without_gate(x: Any, counts: Any, neurons: Any, gates: Any, up: Any, down: Any, y: Any) -> None:
    parts = cuda.shared.array(32, float32)
    lane, m = cuda.threadIdx.x, cuda.blockIdx.x
    for column in range(lane, y.shape[1], 32):
        y[m, column] = 0
    for i in range(counts[m]):
        neuron = neurons[m, i]
        part = float32(0)
        for d in range(lane, x.shape[1], 32):
            part += x[m, d] * up[neuron, d]
        parts[lane] = part
        cuda.syncthreads()
        total = float32(0)
        for j in range(32):
            total += parts[j]
        for column in range(lane, y.shape[1], 32):
            y[m, column] += total * down[neuron, column]
        cuda.syncthreads()


def token_all_places(x: Any, counts: Any, neurons: Any, gates: Any, up: Any, down: Any, y: Any) -> None:
    """Goes through the whole list, whatever the count."""
    parts = cuda.shared.array(32, float32)
    lane, m = cuda.threadIdx.x, cuda.blockIdx.x
    for column in range(lane, y.shape[1], 32):
        y[m, column] = 0
    for i in range(neurons.shape[1]):
        neuron = neurons[m, i]
        part = float32(0)
        for d in range(lane, x.shape[1], 32):
            part += x[m, d] * up[neuron, d]
        parts[lane] = part
        cuda.syncthreads()
        total = float32(0)
        for j in range(32):
            total += parts[j]
        for column in range(lane, y.shape[1], 32):
            y[m, column] += gates[m, i] * total * down[neuron, column]
        cuda.syncthreads()


def token_one_past(x: Any, counts: Any, neurons: Any, gates: Any, up: Any, down: Any, y: Any) -> None:
    parts = cuda.shared.array(32, float32)
    lane, m = cuda.threadIdx.x, cuda.blockIdx.x
    for column in range(lane, y.shape[1], 32):
        y[m, column] = 0
    for i in range(counts[m] + 1):
        neuron = neurons[m, i]
        part = float32(0)
        for d in range(lane, x.shape[1], 32):
            part += x[m, d] * up[neuron, d]
        parts[lane] = part
        cuda.syncthreads()
        total = float32(0)
        for j in range(32):
            total += parts[j]
        for column in range(lane, y.shape[1], 32):
            y[m, column] += gates[m, i] * total * down[neuron, column]
        cuda.syncthreads()


def token_one_column_a_lane(x: Any, counts: Any, neurons: Any, gates: Any, up: Any, down: Any, y: Any) -> None:
    """Right for D = 32 only."""
    parts = cuda.shared.array(32, float32)
    lane, m = cuda.threadIdx.x, cuda.blockIdx.x
    y[m, lane] = 0
    for i in range(counts[m]):
        neuron = neurons[m, i]
        parts[lane] = x[m, lane] * up[neuron, lane]
        cuda.syncthreads()
        total = float32(0)
        for j in range(32):
            total += parts[j]
        y[m, lane] += gates[m, i] * total * down[neuron, lane]
        cuda.syncthreads()


def token_mirrored(x: Any, counts: Any, neurons: Any, gates: Any, up: Any, down: Any, y: Any) -> None:
    """Every number is right and stands in the mirrored column."""
    parts = cuda.shared.array(32, float32)
    lane, m, width = cuda.threadIdx.x, cuda.blockIdx.x, y.shape[1]
    for column in range(lane, width, 32):
        y[m, width - 1 - column] = 0
    for i in range(counts[m]):
        neuron = neurons[m, i]
        part = float32(0)
        for d in range(lane, width, 32):
            part += x[m, d] * up[neuron, d]
        parts[lane] = part
        cuda.syncthreads()
        total = float32(0)
        for j in range(32):
            total += parts[j]
        for column in range(lane, width, 32):
            y[m, width - 1 - column] += gates[m, i] * total * down[neuron, column]
        cuda.syncthreads()


RIGHT: list[tuple[str, Kernel]] = [
    ("5.1", pack_tile),
    ("5.2", write_row),
    ("5.3", count_spilled),
    ("6.1", shared_dot),
    ("6.2", add_down),
    ("6.3", whole_token),
]

WRONG: list[tuple[str, Kernel, int, str, str]] = [
    ("5.1", pack_without_barrier, 64, "race", r"counts\[\d\].*cuda\.syncthreads\(\) between"),
    ("5.1", pack_unguarded_columns, 77, "out of range", r"h\[77\]"),
    ("5.1", pack_unguarded_slots, 64, "out of range", r"columns\[1, 12\]"),
    ("5.1", pack_from_slot_0, 64, "wrong value", r"columns\[0, 1\]: expected 0, found 8"),
    ("5.1", pack_cut_count, 64, "wrong value", r"columns\[1, 0\]: expected 20, found 11"),
    ("5.1", pack_tile_columns, 64, "wrong value", r"columns\[1, 1\]: expected 32, found 0"),
    ("5.1", pack_into_mirrored_tiles, 64, "wrong index", r"columns\[0, 0\]: expected 6, found 20.*at columns\[1, 0\]"),
    ("5.1", pack_by_arrival, 64, "wrong value", r"columns\[0, 1\]: expected 0, found 30"),
    ("5.2", write_without_barrier, 8, "race", r"row_part\[\d+\]"),
    ("5.2", write_unguarded, 8, "out of range", r"h\[0, 25\]"),
    ("5.2", write_one_too_far, 8, "out of range", r"h\[0, 25\]"),
    ("5.2", write_one_too_few, 8, "unwritten output", r"nothing wrote h\[0, 24\] \(8 of 200 cells of h\)"),
    ("5.2", write_without_relu, 8, "wrong value", r"h\[0, 0\]: expected 0\.0, found -4\.0"),
    ("5.2", write_mirrored, 8, "wrong index", r"found 20\.0; .* belongs at h\[0, 24\]"),
    ("5.2", write_directly, 8, "right and too costly", r"h\[m, column\].*shared memory"),
    ("5.3", count_without_atomic, 8, "race", r"over\[\d\]"),
    ("5.3", count_unguarded, 11, "out of range", r"counts\[11, 0\]"),
    ("5.3", count_off_by_one, 8, "wrong value", r"over\[1\]: expected 5, found 0"),
    ("5.3", count_full_as_spilled, 8, "wrong value", r"over\[2\]: expected 0, found 5"),
    ("5.3", count_at_mirrored_rows, 8, "wrong index", r"over\[\d\]"),
    ("6.1", dot_without_barrier, 64, "race", r"parts\[\d+\]"),
    ("6.1", dot_unguarded, 45, "out of range", r"x\[45\]"),
    ("6.1", dot_of_31_parts, 64, "wrong value", r"dots\[0\]"),
    ("6.1", dot_whole_rounds_only, 45, "wrong value", r"dots\[0\]"),
    ("6.1", dot_in_last_place_first, 64, "wrong index", r"belongs at dots\[3\]"),
    ("6.1", dot_of_block_number, 64, "wrong value", r"dots\[0\]"),
    ("6.1", dot_by_lane_0, 64, "right and too costly", r"thread 0 of block 0 reads 64 values of up.* read 2 each"),
    ("6.1", dot_by_atomics, 64, "right and too costly", r"last bits differ from run to run"),
    ("6.2", down_unguarded, 37, "out of range", r"down\[1, 37\]"),
    ("6.2", down_by_neuron, 32, "race", r"y\[0\]"),
    ("6.2", down_without_first, 32, "wrong value", r"y\[0\]"),
    ("6.2", down_of_places, 32, "wrong value", r"y\[0\]"),
    ("6.2", down_mirrored, 32, "wrong index", r"belongs at y\[31\]"),
    ("6.2", down_one_block, 32, "unwritten output", r"nothing wrote y\[16\] \(16 of 32 cells of y\)"),
    ("6.3", token_one_barrier, 32, "race", r"parts\[\d+\]"),
    ("6.3", token_never_zeroed, 32, "unwritten read", r"y\[0, 0\]"),
    ("6.3", token_silent_left_out, 32, "unwritten output", r"nothing wrote y\[1, 0\] \(32 of 96 cells of y\)"),
    ("6.3", token_without_gate, 32, "wrong value", r"y\[0, \d\]"),
    ("6.3", token_all_places, 32, "wrong value", r"y\[0, 0\]"),
    ("6.3", token_one_past, 32, "out of range", r"neurons\[2, 5\]"),
    ("6.3", token_one_column_a_lane, 45, "unwritten output", r"nothing wrote y\[0, 32\]"),
    ("6.3", token_mirrored, 32, "wrong index", r"y\[0, 0\]"),
]


def sheet_of(number: str) -> ModuleType:
    return next(module for module in MODULES if number in module.SHEET.numbers)


def all_numbers() -> list[str]:
    return [number for module in MODULES for number in module.SHEET.numbers]


def test_every_exercise_is_tried_with_each_kind_of_mistake() -> None:
    assert {number for number, _ in RIGHT} == set(all_numbers())
    for number in all_numbers():
        kinds = "|".join(kind for n, _, _, kind, _ in WRONG if n == number)
        assert all(kind in kinds for kind in ("race", "out of range", "wrong value", "wrong index")), (number, kinds)


@pytest.mark.parametrize(("number", "kernel"), RIGHT, ids=[f"{n} {k.__name__}" for n, k in RIGHT])
def test_right_kernels_pass(number: str, kernel: Kernel, capsys: pytest.CaptureFixture[str]) -> None:
    trace = sheet_of(number).check(number, kernel)
    assert trace is not None
    assert trace.faults == ()
    said = capsys.readouterr().out
    assert re.fullmatch(rf"Exercise {number}: correct in all 2 sizes: \d+, \d+ \(recorder.*\)\n", said)


@pytest.mark.parametrize(
    ("number", "kernel", "size", "kind", "message"), WRONG, ids=[f"{n} {k.__name__}" for n, k, *_ in WRONG]
)
def test_wrong_kernels_are_named(number: str, kernel: Kernel, size: int, kind: str, message: str) -> None:
    with pytest.raises(KernelExerciseError, match=rf"^Exercise {number}, size {size}: ({kind}): .*{message}") as caught:
        sheet_of(number).check(number, kernel)
    assert isinstance(caught.value, ExerciseError)


@pytest.mark.parametrize("number", all_numbers())
def test_hint_and_skeleton(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    def skeleton(*arguments: Any) -> Any:
        return ...

    module = sheet_of(number)
    assert module.check(number, skeleton) is None
    module.hint(number)
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"Exercise {number}: not attempted yet"
    assert len(second) > 60


@pytest.mark.parametrize("number", all_numbers())
def test_sizes_and_values_tell_answers_apart(number: str) -> None:
    """Two sizes, one no multiple of the block; references by plain loops."""
    spec = sheet_of(number).SHEET.spec(number)
    _, block = spec.launch(spec.sizes[0])
    assert any(size % block for size in spec.sizes)
    for size in spec.sizes:
        arguments = spec.make(size)
        for name, right in spec.reference(**{key: np.copy(value) for key, value in arguments.items()}).items():
            assert right.shape == arguments[name].shape
            assert len(np.unique(right)) > 3, "equal values would hide a wrong index"


def test_tile_with_more_entries_than_slots_is_among_the_inputs() -> None:
    for size in nb05.SHEET.spec("5.1").sizes:
        packed = nb05.SHEET.spec("5.1").reference(**nb05.SHEET.spec("5.1").make(size))
        assert packed["columns"][1, 0] > nb05.SLOTS - 1 > packed["columns"][0, 0]


def test_the_simulator_runs_the_worked_kernels_too() -> None:
    program = (
        "import sys; sys.path.insert(0, '.')\n"
        "from tests.notebooks import test_exercises_05_06 as own\n"
        "for number, worked in own.RIGHT: own.sheet_of(number).check(number, worked)\n"
    )
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}
    root = Path(__file__).resolve().parents[2]
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=root, capture_output=True, text=True, check=True
    )
    said = ran.stdout.splitlines()
    assert len(said) == len(RIGHT)
    assert all(line.endswith("(recorder and Numba's simulator)") for line in said)


@pytest.mark.parametrize(("number", "worked"), RIGHT, ids=[f"{n} {k.__name__}" for n, k in RIGHT])
def test_worked_kernels_compile_for_a_gpu(number: str, worked: Kernel) -> None:
    """The check compiles a learner's kernel where there is a GPU; so must these, device function included."""
    spec = sheet_of(number).SHEET.spec(number)
    arguments = spec.make(spec.sizes[0]).values()
    tensors = [torch.from_numpy(np.array(value)) if np.ndim(value) else value for value in arguments]
    (ptx,) = compile_for(kernel()(worked), [numba_type(value) for value in tensors], (7, 5)).values()
    assert ".visible .entry" in ptx
