"""Sparse formats and kernels for the feed-forward blocks of language models.

``twell`` is an independent implementation of the formats of "Sparser, Faster, Lighter Transformer Language Models"
(arXiv 2603.23198): TwELL (tile-wise ELLPACK) and Hybrid, and of a format of our own, TileUnion.
They run in plain torch on any device and in Numba on the CPU.
"""

from twell.errors import CapacityError, DeviceError, DtypeError, OptionError, ShapeError, TwellError
from twell.formats import ELL, Clipped, Hybrid, TileUnion, TwELL

__version__ = "0.1.0"

__all__ = [
    "ELL",
    "CapacityError",
    "Clipped",
    "DeviceError",
    "DtypeError",
    "Hybrid",
    "OptionError",
    "ShapeError",
    "TileUnion",
    "TwELL",
    "TwellError",
    "__version__",
]
