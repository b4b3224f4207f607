"""GPUs that an estimate can be made for: memory, bandwidth and link from the makers' data sheets."""

from __future__ import annotations

from dataclasses import dataclass

from twellviz.errors import ConfigError
from twellviz.training.mfu import peak_tflops


@dataclass(frozen=True)
class Gpu:
    """What an estimate needs to know of a GPU.

    Attributes
    ----------
    key : str
        As the command line takes it.
    name : str
        As torch names the device.
    memory : float
        Bytes.
    bandwidth : float
        Bytes a second between memory and processor.
    link : float
        Bytes a second to other GPUs of the host, in one direction: NVLink, else PCIe with 16 lanes.
    """

    key: str
    name: str
    memory: float
    bandwidth: float
    link: float

    def peak(self, dtype: str = "bfloat16") -> float:
        """Dense peak in FLOP/s, as :mod:`twellviz.training.mfu` knows it."""
        found = peak_tflops(self.name, dtype)
        assert found is not None
        return found * 1e12


_NVLINK_4, _NVLINK_3, _PCIE_5, _PCIE_4 = 450e9, 300e9, 64e9, 32e9

GPUS = {
    gpu.key: gpu
    for gpu in (
        Gpu("h200", "NVIDIA H200", 141e9, 4.8e12, _NVLINK_4),
        Gpu("h100", "NVIDIA H100 80GB HBM3", 80e9, 3.35e12, _NVLINK_4),
        Gpu("h100-nvl", "NVIDIA H100 NVL", 94e9, 3.9e12, _NVLINK_3),
        Gpu("h100-pcie", "NVIDIA H100 PCIe", 80e9, 2.0e12, _PCIE_5),
        Gpu("a100-80", "NVIDIA A100 SXM4 80GB", 80e9, 2.039e12, _NVLINK_3),
        Gpu("a100-40", "NVIDIA A100 SXM4 40GB", 40e9, 1.555e12, _NVLINK_3),
        Gpu("l40s", "NVIDIA L40S", 48e9, 0.864e12, _PCIE_4),
        Gpu("a10", "NVIDIA A10", 24e9, 0.6e12, _PCIE_4),
        Gpu("l4", "NVIDIA L4", 24e9, 0.3e12, _PCIE_4),
        Gpu("rtx4090", "NVIDIA GeForce RTX 4090", 24e9, 1.008e12, _PCIE_4),
        Gpu("rtx3090", "NVIDIA GeForce RTX 3090", 24e9, 0.936e12, _PCIE_4),
    )
}


def find_gpu(key: str) -> Gpu:
    """The GPU of this name.

    Raises
    ------
    ConfigError
        It is not known.
    """
    if key.lower() not in GPUS:
        raise ConfigError(f"gpu={key!r} is not known: choose one of {', '.join(GPUS)}")
    return GPUS[key.lower()]


def same_gpu(device_name: str) -> Gpu | None:
    """The GPU that torch names so, None where it is not known."""
    return next((gpu for gpu in GPUS.values() if gpu.name == device_name), None)
