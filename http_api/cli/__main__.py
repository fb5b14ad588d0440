"""``python -m http_api.cli``: how the supervisor starts its nodes."""

from __future__ import annotations

import os

from http_api.node.parent_death import end_with_supervisor

if __name__ == "__main__":
    # before anything heavy is imported: the supervisor may be dead already
    end_with_supervisor(os.environ)
    from http_api.cli.main import main

    main()
