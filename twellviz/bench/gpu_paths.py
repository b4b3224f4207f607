"""The ways through a feed-forward block that the benchmark compares on a GPU.

Letters: M tokens, D model width, H hidden width, N active entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F
from twell import ops, simt
from twell.formats import ELL, TwELL
from twell.simt.pack_ell import launch_ell
from twell.simt.pack_epilogue import launch_gate_pack, launch_spilled
from twell.simt.spill import finish, tiles_of
from twell.simt.token_block import launch_token_ffn
from twell.simt.token_warp import warp_fits
from twell.simt.whole_block import COMPRESSION
from twell.tensorcore.hopper import block as hopper_block

from twellviz.bench.paths import Path
from twellviz.bench.synthetic import Layer


def forward_paths(layer: Layer, *, gated: bool) -> list[Path]:
    """Inference from the tokens to the output, dense first."""
    x_MD, gate_HD, up_HD, down_HD = layer

    def block(x_MD: Tensor, gate_HD: Tensor, up_HD: Tensor, down_HD: Tensor) -> Tensor:
        gate_MH = F.relu(F.linear(x_MD, gate_HD))
        return (gate_MH * F.linear(x_MD, up_HD) if gated else gate_MH) @ down_HD

    compiled = torch.compile(block, fullgraph=True)

    def sparse(backend: str) -> Callable[[], Sequence[Tensor]]:
        def run() -> Sequence[Tensor]:
            with torch.no_grad():
                if gated:
                    return [ops.gated_ffn(x_MD, gate_HD, up_HD, down_HD, backend=backend)[0]]
                return [ops.ffn(x_MD, gate_HD, down_HD, backend=backend)[0]]

        return run

    def csr() -> Sequence[Tensor]:
        return [csr_up_down(layer, F.relu(F.linear(x_MD, gate_HD)).to_sparse_csr(), gated=gated)]

    def hopper(tokens: int) -> Callable[[], Sequence[Tensor]]:
        if gated:
            return lambda: [hopper_block.gated_ffn(x_MD, gate_HD, up_HD, down_HD, block=tokens)]
        return lambda: [hopper_block.ffn(x_MD, gate_HD, down_HD, block=tokens)]

    return [
        Path("dense", lambda: [block(*layer)], note="eager"),
        Path("compiled", lambda: [compiled(*layer)], note="torch.compile of dense"),
        Path("csr", csr, note="torch gate product, to CSR, dense up, sparse down"),
        Path("auto", sparse("auto"), note="torch gate product, pack, token"),
        Path("simt", sparse("simt"), note="pack in the epilogue, token"),
        *(
            Path(f"hopper {tokens}", hopper(tokens), note=f"tensor cores, unions of {tokens} tokens")
            for tokens in _sizes(layer)
        ),
    ]


def _sizes(layer: Layer) -> tuple[int, ...]:
    """Tokens of the unions that the tensor core kernels can take here."""
    if hopper_block.why_not_hopper(layer.x_MD.device, layer.x_MD.dtype, layer.gate_HD.shape[0]):
        return ()
    return hopper_block.BLOCKS


def gate_paths(layer: Layer) -> list[Path]:
    """The gate product up to a packed form; dense, which packs nothing, first."""
    x_MD, gate_HD = layer.x_MD, layer.gate_HD
    width = int(ops.gate_pack(x_MD, gate_HD).counts().max())
    shape = (x_MD.shape[0], gate_HD.shape[0])

    def of_ell(parts: tuple[Tensor, Tensor, Tensor]) -> list[Tensor]:
        return [ELL(*parts, shape).to_dense()]

    def of_twell(packed: TwELL) -> list[Tensor]:
        return [packed.to_dense()]

    def of_words(parts: tuple[Tensor, Tensor]) -> list[Tensor]:
        def fill(*spilled: Tensor) -> None:
            launch_spilled(x_MD, gate_HD, parts[0], *spilled)

        return of_twell(finish(*parts, fill, n_hidden=shape[1], value_dtype=x_MD.dtype, overflow="spill"))

    hopper = [
        Path(
            "hopper epilogue",
            lambda: hopper_block.pack(x_MD, gate_HD),
            note="tensor cores, TwELL packed there",
            dense_of=lambda packed: of_twell(hopper_block.to_twell(packed, n_hidden=shape[1])),
        )
    ]
    return [
        Path("dense", lambda: [F.relu(F.linear(x_MD, gate_HD))], note="torch, nothing packed"),
        Path("torch product + pack", lambda: simt.pack(F.linear(x_MD, gate_HD)), dense_of=of_twell),
        Path("simt product", lambda: [simt.gate_product(x_MD, gate_HD)], note="nothing packed"),
        Path(
            "simt product + ELL",
            lambda: launch_ell(simt.gate_product(x_MD, gate_HD), width),
            note=f"width {width}, known beforehand",
            dense_of=of_ell,
        ),
        Path("simt product + pack", lambda: simt.pack(simt.gate_product(x_MD, gate_HD)), dense_of=of_twell),
        Path(
            "epilogue",
            lambda: launch_gate_pack(x_MD, gate_HD, COMPRESSION),
            note="simt product, TwELL packed there",
            dense_of=of_words,
        ),
        *(hopper if _sizes(layer) else []),
    ]


def up_down_paths(layer: Layer, *, gated: bool) -> list[Path]:
    """Up and down given the same gate values; dense first."""
    x_MD, gate_HD, up_HD, down_HD = layer
    gate_MH = F.relu(F.linear(x_MD, gate_HD))
    packed = simt.pack(gate_MH)
    gate_csr = gate_MH.to_sparse_csr()
    arguments = (x_MD, tiles_of(packed), packed.spill_start, packed.spill_values, gate_HD, up_HD, down_HD)

    def dense() -> Sequence[Tensor]:
        return [(gate_MH * F.linear(x_MD, up_HD) if gated else gate_MH) @ down_HD]

    paths = [Path("dense", dense), Path("csr", lambda: [csr_up_down(layer, gate_csr, gated=gated)])]
    if sizes := _sizes(layer):
        words = hopper_block.pack(x_MD, gate_HD)
        paths += [Path(f"unions of {size}", _unions(layer, words, size, gated=gated)) for size in sizes]
    if gated and x_MD.dtype == torch.float32:
        paths.append(
            Path("csr sampled", lambda: [csr_sampled(layer, gate_csr)], note="up at the pattern alone (SDDMM)")
        )
    if not gated:
        return [*paths, Path("token", lambda: [simt.token_down(packed, down_HD)])]
    if warp_fits(x_MD, up_HD, down_HD):
        paths.append(Path("token warp", lambda: [launch_token_ffn(*arguments, warp=True)]))
    return [*paths, Path("token block", lambda: [launch_token_ffn(*arguments, warp=False)])]


def _unions(layer: Layer, words: hopper_block.Packed, size: int, *, gated: bool) -> Callable[[], Sequence[Tensor]]:
    up_HD = layer.up_HD if gated else None
    return lambda: [hopper_block.through_unions(layer.x_MD, words, up_HD, layer.down_HD, block=size)]


def csr_up_down(layer: Layer, gate_csr: Tensor, *, gated: bool) -> Tensor:
    """Up and down with the gate values in CSR: the up product densely, taken at the pattern, then a sparse product."""
    if gated:
        row_N = csr_rows(gate_csr)
        up_N = F.linear(layer.x_MD, layer.up_HD)[row_N, gate_csr.col_indices()]
        gate_csr = torch.sparse_csr_tensor(
            gate_csr.crow_indices(), gate_csr.col_indices(), gate_csr.values() * up_N, gate_csr.shape
        )
    return gate_csr @ layer.down_HD


def csr_sampled(layer: Layer, gate_csr: Tensor) -> Tensor:
    """The same with the up product at the pattern alone, which cuSPARSE has in float32."""
    up_csr = torch.sparse.sampled_addmm(gate_csr, layer.x_MD, layer.up_HD.T, beta=0.0)
    h_csr = torch.sparse_csr_tensor(
        gate_csr.crow_indices(), gate_csr.col_indices(), gate_csr.values() * up_csr.values(), gate_csr.shape
    )
    return h_csr @ layer.down_HD


def csr_rows(matrix: Tensor) -> Tensor:
    """Row of each entry, int64 [N]."""
    starts = matrix.crow_indices()
    rows_M = torch.arange(len(starts) - 1, device=starts.device)
    return torch.repeat_interleave(rows_M, starts.diff(), output_size=matrix.values().numel())
