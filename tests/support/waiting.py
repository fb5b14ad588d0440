"""Waiting for a condition with a deadline: tests never sleep until it passes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    """Return as soon as the condition holds; TimeoutError when it never does."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 the thing waited for has no event
            await asyncio.sleep(0.005)
