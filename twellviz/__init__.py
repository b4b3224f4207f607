"""See, train and exploit activation sparsity in the feed-forward layers of language models.

Importing this package is cheap: it loads no torch and touches no GPU. ``twellviz.start()`` opens a notebook,
``twellviz.show(figure, alt=...)`` draws in one; everything else lives in the subpackages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twellviz._lazy import lazy

if TYPE_CHECKING:
    from twellviz._show import show, show_source
    from twellviz._start import Session, start

__version__ = "0.1.0"

__all__ = ["Session", "__version__", "show", "show_source", "start"]


__getattr__ = lazy(__name__, {"Session": "_start", "show": "_show", "show_source": "_show", "start": "_start"})
