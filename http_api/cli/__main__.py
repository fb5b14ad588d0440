"""Entry point ``python -m http_api.cli``, with which the supervisor starts its nodes."""

from __future__ import annotations

import os

from http_api.node.node_start import end_with_supervisor

if __name__ == "__main__":
    # before any heavy import, because the supervisor may be dead already
    end_with_supervisor(os.environ)
    from http_api.cli.main import main

    main()
