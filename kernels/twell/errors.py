"""Errors of ``twell``: each message names the argument, its value, the limit and the remedy."""

from __future__ import annotations


class TwellError(ValueError):
    """Base of every error that ``twell`` raises on purpose."""


class ShapeError(TwellError):
    """An array has the wrong number of axes, or axes that do not match."""


class DtypeError(TwellError):
    """An array has a dtype that the format or the kernel does not hold."""


class DeviceError(TwellError):
    """Arrays are on different devices, or on one that the backend cannot use."""


class OptionError(TwellError):
    """An option has a value outside the ones listed in the message."""


class CapacityError(TwellError):
    """Under ``overflow="raise"``: a tile or a row holds more active neurons than its slots.

    Attributes
    ----------
    row : int
        The first token that does not fit.
    tile : int or None
        Its column tile, or None where the limit is one of the whole row (ELL, Hybrid).
    count : int
        Active neurons found there.
    limit : int
        Entries that fit.
    """

    def __init__(self, *, row: int, tile: int | None, count: int, limit: int, remedy: str) -> None:
        self.row, self.tile, self.count, self.limit = row, tile, count, limit
        where = f"row {row}" if tile is None else f"row {row}, tile {tile}"
        super().__init__(f"{where} has {count} active neurons, {limit} fit: {remedy}")
