"""How much of a device's peak a run uses: model FLOPs utilisation (MFU; Chowdhery et al., arXiv 2204.02311, B).

The count is that of the dense model, also where neurons are skipped: a sparse step may exceed it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twellviz.models.config import LMConfig

if TYPE_CHECKING:
    import torch

# Dense peaks in TFLOP/s from the makers' data sheets: bfloat16 on tensor cores with float32 sums, and float32 outside
# of them, where torch computes it unless told otherwise. The first name that occurs in the device's counts.
_PEAKS: tuple[tuple[str, float, float], ...] = (
    ("H200", 989.4, 66.9),
    ("GH200", 989.4, 66.9),
    ("H100 NVL", 835.0, 60.0),
    ("H100 PCIe", 756.0, 51.2),
    ("H100", 989.4, 66.9),
    ("A100", 311.9, 19.5),
    ("A30", 165.0, 10.3),
    ("A10G", 70.0, 31.5),
    ("A10", 125.0, 31.2),
    ("L40S", 362.0, 91.6),
    ("L4", 121.0, 30.3),
    ("RTX 4090", 165.2, 82.6),
    ("RTX 3090", 71.0, 35.6),
)


def flops_per_token(cfg: LMConfig, seq_len: int) -> float:
    """FLOPs of forward and backward for a token of a sequence.

    6 for each weight of a product (the projection to the vocabulary included, the look-up of the embedding not), and
    ``6 L N D`` for the causal half of the attention's two products.
    """
    layer = 4 * cfg.d_model**2 + (3 if cfg.gated else 2) * cfg.d_model * cfg.d_hidden
    weights = cfg.n_layers * layer + cfg.vocab_size * cfg.d_model
    return 6.0 * weights + 6.0 * cfg.n_layers * seq_len * cfg.d_model


def peak_tflops(device_name: str, dtype: str) -> float | None:
    """Dense peak of a GPU by its name, in TFLOP/s; None where it is not known.

    Parameters
    ----------
    device_name : str
        As ``torch.cuda.get_device_name()`` gives it.
    dtype : {"float32", "bfloat16"}
    """
    for name, low, single in _PEAKS:
        # "L4" must not be found in "L40".
        if f" {name} " in f" {device_name.replace('-', ' ')} ":
            return low if dtype == "bfloat16" else single
    return None


def device_peak(device: torch.device, dtype: str, given: float | None) -> float | None:
    """The given peak, or the known one of the device, in FLOP/s."""
    found = given
    if found is None and device.type == "cuda":
        import torch

        found = peak_tflops(torch.cuda.get_device_name(device), dtype)
    return None if found is None else found * 1e12
