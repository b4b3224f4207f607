"""Layouts for sparse activations: each a dataclass with ``from_dense``, ``to_dense`` and byte counts."""

from twell.formats._rules import TILE_WIDTH, Clipped
from twell.formats.ell import ELL
from twell.formats.hybrid import Hybrid
from twell.formats.tile_union import TileUnion
from twell.formats.twell import TwELL

__all__ = ["ELL", "TILE_WIDTH", "Clipped", "Hybrid", "TileUnion", "TwELL"]
