"""How a notebook shows a figure with its alternative text, and the source of a kernel."""

from __future__ import annotations

import ast
import base64
import inspect
import io
from importlib import import_module
from typing import TYPE_CHECKING

from twellviz.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def show(figure: Figure | Axes, *, alt: str, dpi: int = 80) -> None:
    """Display a figure as PNG with alternative text, then close it.

    Parameters
    ----------
    figure : matplotlib Figure or Axes
        Of axes, the whole figure is shown.
    alt : str
        What a reader who does not see the picture needs to know; screen readers speak it.
    dpi : int
        Pixels an inch.

    Raises
    ------
    ConfigError
        ``alt`` is empty.
    """
    from matplotlib import pyplot as plt
    from matplotlib.figure import Figure

    if not alt.strip():
        raise ConfigError("alt='': say in words what the figure shows")
    root = figure if isinstance(figure, Figure) else figure.get_figure(root=True)
    assert root is not None  # axes made by pyplot always belong to a figure
    buffer = io.BytesIO()
    # An explicit white ground: the labels are dark, and a notebook's page may be too.
    root.savefig(buffer, format="png", dpi=dpi, facecolor="white", bbox_inches="tight", metadata={"Software": None})
    plt.close(root)
    bundle = {"image/png": base64.b64encode(buffer.getvalue()).decode(), "text/plain": alt}
    display = import_module("IPython.display").display
    display(bundle, raw=True, metadata={"image/png": {"alt": alt, "needs_background": "light"}})


def show_source(module: str, *names: str, full: bool = False) -> None:
    """Display functions or classes as they stand in a module's file: the code that runs, not a copy.

    The file is parsed, so that a compiled kernel shows as readily as a plain function.

    Parameters
    ----------
    module : str
        Full name; as a string, because a package may export a function under the name of a module of its own.
    *names : str
        ``"function"`` or ``"Class.method"``.
    full : bool
        Show docstrings whole; by default their first line alone.

    Raises
    ------
    ConfigError
        There is no such module, or it has no such definition.
    """
    try:
        text = inspect.getsource(import_module(module))
    except ImportError as error:
        raise ConfigError(f"module={module!r}: {error}; give its full name, such as twell.reference") from error
    source = "\n\n\n".join(_definition(module, text, name, full=full) for name in names)
    cut = "" if full else ", docstrings cut to their first line"
    bundle = {"text/markdown": f"`{module}`{cut}:\n```python\n{source}\n```", "text/plain": source}
    import_module("IPython.display").display(bundle, raw=True)


def _definition(module: str, text: str, name: str, *, full: bool) -> str:
    body: list[ast.stmt] = ast.parse(text).body
    found: ast.stmt | None = None
    for part in name.split("."):
        found = next((node for node in body if getattr(node, "name", None) == part), None)
        if not isinstance(found, (ast.FunctionDef, ast.ClassDef)):
            raise ConfigError(f"name={name!r}: {module} defines no function or class of that name")
        body = found.body
    assert isinstance(found, (ast.FunctionDef, ast.ClassDef))  # the name has at least one part
    lines = dict(enumerate(text.splitlines(), start=1))
    docstring = found.body[0]
    last = docstring.end_lineno or docstring.lineno
    if not full and ast.get_docstring(found) is not None and last > docstring.lineno:
        opening = lines[docstring.lineno]
        quotes = next(quotes for quotes in ('"""', "'''") if quotes in opening)
        lines[docstring.lineno] = opening.rstrip() + quotes
        for number in range(docstring.lineno + 1, last + 1):
            del lines[number]
    first = min([found.lineno, *(decorator.lineno for decorator in found.decorator_list)])
    shown = [line for number, line in lines.items() if first <= number <= (found.end_lineno or first)]
    return inspect.cleandoc("\n" + "\n".join(shown))
