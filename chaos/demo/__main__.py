"""Entry point of ``python -m chaos.demo``."""

from __future__ import annotations

import sys

from chaos.demo.story import main

if __name__ == "__main__":
    sys.exit(main())
