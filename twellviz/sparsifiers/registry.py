"""The methods by name. Importing this loads no torch; asking for a method loads its file alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from typing import Any

from twellviz.errors import ConfigError
from twellviz.sparsifiers.base import Sparsifier

METHODS: dict[str, str] = {
    "relu": "ReLUAlone",
    "l1": "L1Penalty",
    "drelu": "DReLU",
    "prosparse": "ProSparse",
    "topk": "TopK",
    "teal": "TEAL",
    "cats": "CATS",
    "moe": "MixtureOfExperts",
}
"""Name of a method, which is that of its module, and the class in it."""


def sparsifier(name: str, options: Mapping[str, Any] | None = None) -> Sparsifier:
    """A method with its options.

    Parameters
    ----------
    name : str
        One of :data:`METHODS`.
    options : mapping, optional
        Fields of the method's class; its defaults where not given.

    Raises
    ------
    ConfigError
        No such method, an option that it does not have, or a value out of range.

    Examples
    --------
    >>> from twellviz.sparsifiers import sparsifier
    >>> sparsifier("topk", {"share": 0.1})
    TopK(share=0.1, squared=False)
    """
    if name not in METHODS:
        raise ConfigError(f"sparsifier={name!r}: choose one of {', '.join(METHODS)}")
    method: type[Sparsifier] = getattr(import_module(f"twellviz.sparsifiers.{name}"), METHODS[name])
    if not isinstance(options or {}, Mapping):
        raise ConfigError(f"sparsifier_options={options!r}: a mapping of option names to values is needed")
    known = [field.name for field in fields(method)]
    if unknown := sorted(str(given) for given in options or {} if given not in known):
        told = f"known are {', '.join(known)}" if known else "it has none"
        raise ConfigError(f"sparsifier_options: {name} has no option {', '.join(unknown)}; {told}")
    return method(**(options or {}))
