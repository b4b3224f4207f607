"""Union tiles from TwELL words: for B neighbouring tokens the neurons that any of them fires, and their gate values.

One block of threads a union. It marks the neurons in a bit mask in shared memory (a bit may be set twice, so the order
does not matter), counts the bits before each word of the mask, and so knows the place of every neuron in the union:

1. mark: each thread takes tiles of tokens and sets the bits of their entries;
2. count: running sum of the bits, a few words a thread;
3. list: the neurons, ascending, and their number;
4. gate values: a warp a token zeroes its row and writes its entries to their places;
5. add up: the block that ends last counts the tiles of 256 neurons of all unions before each.

What does not fit into a tile of TwELL is read from its backup, so that nothing depends on the capacity.

Letters: M tokens, H hidden width, N tiles of a row, S words of a tile, B tokens of a union, U unions,
L = 256 N columns.
"""

from __future__ import annotations

from numpy import float32, int32, uint32

from twell.cuda_target import Array, cuda, device, kernel
from twell.formats import TILE_WIDTH
from twell.simt.bits import active, narrow, widen, word_column, word_value
from twell.simt.spill import tile_spills

THREADS = 512
MASK_WORDS = 2048
"""Words of the mask: 65,536 neurons."""

ALL = 0xFFFFFFFF


@device
def bits_before(mask: Array, starts: Array, neuron: int) -> int:
    """Place of a neuron in the union: the neurons of the union that come before it."""
    word = mask[neuron >> 5]
    below = uint32((1 << (neuron & 31)) - 1)
    found: int = starts[neuron >> 5] + cuda.popc(uint32(word & below))
    return found


@kernel(launch_bounds=(THREADS, 2))
def gather_unions(
    words_MNS: Array,
    spilled_ML: Array,
    tokens: int,
    n_hidden: int,
    neurons_UH: Array,
    counts_U: Array,
    tiles_U: Array,
    ended: Array,
    gates_ML: Array,
) -> None:
    """One union (``blockIdx.x``) of ``tokens`` tokens. Columns past it, up to a multiple of 256, become zero.

    ``ended`` is one zero; ``tiles_U`` has a place more than there are unions.
    """
    mask = cuda.shared.array(MASK_WORDS, uint32)
    starts = cuda.shared.array(MASK_WORDS, int32)
    sums = cuda.shared.array(THREADS, int32)
    last_block = cuda.shared.array(1, int32)
    thread = cuda.threadIdx.x
    union = cuda.blockIdx.x
    first = union * tokens
    last = min(first + tokens, words_MNS.shape[0])
    n_tiles = words_MNS.shape[1]
    n_words = (n_hidden + 31) >> 5

    for word in range(thread, n_words, THREADS):
        mask[word] = uint32(0)
    cuda.syncthreads()

    # 1. Mark.
    place = thread
    while place < (last - first) * n_tiles:
        row = first + place // n_tiles
        tile = place % n_tiles
        count = words_MNS[row, tile, 0]
        if count < words_MNS.shape[2]:
            for i in range(count):
                neuron = word_column(words_MNS[row, tile, 1 + i])
                cuda.atomic.or_(mask, neuron >> 5, uint32(1 << (neuron & 31)))
        else:
            for neuron in range(tile * TILE_WIDTH, min((tile + 1) * TILE_WIDTH, n_hidden)):
                if active(widen(spilled_ML[row, neuron])):
                    cuda.atomic.or_(mask, neuron >> 5, uint32(1 << (neuron & 31)))
        place += THREADS
    cuda.syncthreads()

    # 2. Count: each thread its own stretch of words, then one running sum over the threads.
    stretch = (n_words + THREADS - 1) // THREADS
    mine = 0
    for i in range(stretch):
        word = thread * stretch + i
        if word < n_words:
            starts[word] = mine
            mine += cuda.popc(mask[word])
    sums[thread] = mine
    cuda.syncthreads()
    distance = 1
    while distance < THREADS:
        other = 0
        if thread >= distance:
            other = sums[thread - distance]
        cuda.syncthreads()
        sums[thread] += other
        cuda.syncthreads()
        distance *= 2
    before = sums[thread] - mine
    for i in range(stretch):
        word = thread * stretch + i
        if word < n_words:
            starts[word] += before
    total = sums[THREADS - 1]
    cuda.syncthreads()

    # 3. List.
    for word in range(thread, n_words, THREADS):
        bits = mask[word]
        at = starts[word]
        while bits != 0:
            neurons_UH[union, at] = word * 32 + cuda.ffs(bits) - 1
            bits = uint32(bits & uint32(bits - uint32(1)))
            at += 1
    if thread == 0:
        counts_U[union] = total
        cuda.threadfence()
        last_block[0] = cuda.atomic.add(ended, 0, 1)

    # 4. Gate values.
    lane = thread & 31
    width = min(max((total + 255) // 256, 1) * 256, gates_ML.shape[1])
    zero = narrow(float32(0), gates_ML)
    row = first + (thread >> 5)
    while row < last:
        for column in range(lane, width, 32):
            gates_ML[row, column] = zero
        cuda.syncwarp(ALL)  # zeros first: another lane's entry may come to stand where this one wrote
        for tile in range(lane, n_tiles, 32):
            if tile_spills(words_MNS, row, tile):
                for neuron in range(tile * TILE_WIDTH, min((tile + 1) * TILE_WIDTH, n_hidden)):
                    if active(widen(spilled_ML[row, neuron])):
                        gates_ML[row, bits_before(mask, starts, neuron)] = spilled_ML[row, neuron]
            else:
                for i in range(words_MNS[row, tile, 0]):
                    word = words_MNS[row, tile, 1 + i]
                    value = narrow(word_value(word, gates_ML), gates_ML)
                    gates_ML[row, bits_before(mask, starts, word_column(word))] = value
        row += THREADS // 32

    # 5. The last block: where each union's tiles begin, counted over all unions.
    cuda.syncthreads()
    if last_block[0] == cuda.gridDim.x - 1 and thread == 0:
        cuda.threadfence()
        running = 0
        for other in range(cuda.gridDim.x):
            tiles_U[other] = running
            running += max((counts_U[other] + 255) >> 8, 1)
        tiles_U[cuda.gridDim.x] = running
