"""Doors into asyncio, for worlds that run their own event loop on virtual time."""

from __future__ import annotations

import asyncio


def set_running_loop(loop: asyncio.AbstractEventLoop | None) -> None:
    """Make this the running loop of the thread, though `run_forever` does not run."""
    asyncio._set_running_loop(loop)
