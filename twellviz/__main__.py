"""``python -m twellviz``."""

from __future__ import annotations

import sys

from twellviz.cli import main

if __name__ == "__main__":
    sys.exit(main())
