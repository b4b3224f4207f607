"""Sparse formats and kernels for the feed-forward blocks of language models.

``twell`` is an independent implementation of the formats of "Sparser, Faster, Lighter Transformer Language Models"
(arXiv 2603.23198): TwELL (tile-wise ELLPACK) and Hybrid, with plain torch and Numba CPU backends.
"""

from twell.errors import CapacityError, DeviceError, DtypeError, OptionError, ShapeError, TwellError
from twell.formats import ELL, Clipped, Hybrid, TwELL

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
    "TwELL",
    "TwellError",
    "__version__",
]
