"""Names of a package that are imported when they are first used, so that ``--help`` loads no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(package: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """A module-level ``__getattr__`` for ``package``.

    Parameters
    ----------
    package : str
        ``__name__`` of the package.
    names : mapping of str to str
        Public name to the submodule that holds it.
    """

    def getattr_(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{names[name]}"), name)

    return getattr_
