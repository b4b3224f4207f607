"""TileUnion: for each B consecutive tokens, the neurons that any of them fires, and their gate values as a dense block.

Neighbouring tokens fire much the same neurons, so the U different neurons of a block are far fewer than B times a
token's own. A feed-forward over the union reads each weight row once a block instead of once a token, and the work
becomes small dense products. There is no overflow: a block is as wide as its union.

The format is ours; the paper has nothing like it.

Letters: M tokens, H hidden width, B tokens of a block, U neurons of a block's union, N stored entries, G blocks,
V values of all blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from twell.errors import OptionError
from twell.formats._coo import Coo
from twell.formats._rules import check_dense, density_text, ratio_text, short_dtype, tensor_bytes
from twell.formats.twell import TwELL

BLOCKS = (32, 64, 128)
"""Usual block lengths; any length from 1 is possible."""


@dataclass(frozen=True, repr=False)
class TileUnion:
    """A matrix [M, H] as one dense block of B x U values for each B consecutive rows.

    Attributes
    ----------
    neurons : Tensor, int32 [sum of U]
        The unions of all blocks behind one another, ascending inside a block.
    neuron_start : Tensor, int64 [G + 1]
        Block g owns ``neurons[neuron_start[g] : neuron_start[g + 1]]``.
    values : Tensor, float32, bfloat16 or float16 [V]
        The blocks behind one another, each row-major with a row per token; zero where a neuron is inactive.
    value_start : Tensor, int64 [G + 1]
    block : int
        B; the last block may have fewer rows.
    shape : (int, int)
    """

    neurons: Tensor
    neuron_start: Tensor
    values: Tensor
    value_start: Tensor
    block: int
    shape: tuple[int, int]

    @property
    def n_blocks(self) -> int:
        """G."""
        return self.neuron_start.numel() - 1

    @property
    def device(self) -> torch.device:
        """Device of the buffers."""
        return self.values.device

    @classmethod
    def from_dense(cls, h_MH: Tensor, *, block: int = 128, keep: str = "positive") -> TileUnion:
        """Pack a dense matrix. Packing applies ReLU unless ``keep="nonzero"``.

        Parameters
        ----------
        h_MH : Tensor, float32, bfloat16 or float16 [M, H]
        block : int
            B, at least 1.
        keep : {"positive", "nonzero"}

        Raises
        ------
        ShapeError, DtypeError, OptionError
        """
        return cls.from_coo(Coo.from_dense(check_dense(h_MH), keep=keep), block=block)

    @classmethod
    def from_twell(cls, packed: TwELL, *, block: int = 128) -> TileUnion:
        """Convert from TwELL, spilled tiles included; see :meth:`from_dense`."""
        return cls.from_coo(packed.to_coo(), block=block)

    @classmethod
    def from_coo(cls, entries: Coo, *, block: int = 128) -> TileUnion:
        """Pack an ordered coordinate list; see :meth:`from_dense`."""
        if isinstance(block, bool) or not isinstance(block, int) or block < 1:
            raise OptionError(f"block={block!r}: an integer of at least 1 is needed, as in {BLOCKS}")
        n_tokens, n_hidden = entries.shape
        n_blocks = -(-n_tokens // block)
        block_N = entries.row_N // block
        # Unique (block, neuron) pairs come out sorted: first by block, then by neuron.
        pair_U, place_N = torch.unique(block_N * n_hidden + entries.column_N, return_inverse=True)
        size_G = torch.bincount(pair_U // n_hidden, minlength=n_blocks)
        neuron_start = _starts(size_G)
        rows_G = torch.full_like(size_G, block)
        if n_blocks:
            rows_G[-1] = n_tokens - block * (n_blocks - 1)
        value_start = _starts(rows_G * size_G)
        values = entries.value_N.new_zeros(int(value_start[-1]))
        inside_N = place_N - neuron_start[block_N]
        values[value_start[block_N] + (entries.row_N % block) * size_G[block_N] + inside_N] = entries.value_N
        return cls((pair_U % n_hidden).to(torch.int32), neuron_start, values, value_start, block, entries.shape)

    def union_sizes(self) -> Tensor:
        """U of every block, int64 [G]."""
        return self.neuron_start.diff()

    def block_of(self, g: int) -> tuple[Tensor, Tensor]:
        """Neurons [U] and values [rows, U] of block ``g``, as views."""
        neurons_U = self.neurons[int(self.neuron_start[g]) : int(self.neuron_start[g + 1])]
        values = self.values[int(self.value_start[g]) : int(self.value_start[g + 1])]
        rows = min(self.block, self.shape[0] - g * self.block)
        return neurons_U, values.view(rows, neurons_U.numel())

    def to_coo(self) -> Coo:
        """All entries in row and column order."""
        place_N = (self.values != 0).nonzero().squeeze(1)
        block_N = torch.searchsorted(self.value_start, place_N, right=True) - 1
        size_N = self.union_sizes()[block_N]
        inside_N = place_N - self.value_start[block_N]
        row_N = block_N * self.block + inside_N // size_N
        column_N = self.neurons.long()[self.neuron_start[block_N] + inside_N % size_N]
        return Coo(row_N, column_N, self.values[place_N], self.shape)

    def to_dense(self) -> Tensor:
        """The matrix [M, H], zeros where a neuron is inactive."""
        return self.to_coo().to_dense()

    def counts(self) -> Tensor:
        """Active neurons of every token, int32 [M]."""
        return self.to_coo().counts()

    def byte_counts(self) -> dict[str, int]:
        """Bytes of the neuron lists, the blocks, the starts, of all, and of the same matrix stored densely."""
        parts = {
            "neurons": tensor_bytes(self.neurons),
            "values": tensor_bytes(self.values),
            "starts": tensor_bytes(self.neuron_start, self.value_start),
        }
        dense = self.shape[0] * self.shape[1] * self.values.element_size()
        return {**parts, "total": sum(parts.values()), "dense": dense}

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        return self.byte_counts()["total"]

    def __repr__(self) -> str:
        sizes, bytes_ = self.union_sizes(), self.byte_counts()
        mean = float(sizes.double().mean()) if sizes.numel() else 0.0
        largest = int(sizes.max()) if sizes.numel() else 0
        return (
            f"TileUnion {self.shape[0]} x {self.shape[1]} {short_dtype(self.values.dtype)}: "
            f"{density_text(int((self.values != 0).sum()), self.shape)}\n"
            f"  {self.n_blocks} blocks of {self.block} tokens; union mean {mean:.0f} "
            f"({mean / self.shape[1]:.0%} of all neurons), largest {largest}\n"
            f"  {ratio_text(bytes_['total'], bytes_['dense'])}"
        )


def _starts(size_G: Tensor) -> Tensor:
    return torch.cat([size_G.new_zeros(1), size_G.cumsum(0)])
