"""Deadlines whose error names the event that did not happen."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class TooLateError(Exception):
    """An expected event did not happen in time."""


@asynccontextmanager
async def within(seconds: float, what: str) -> AsyncIterator[None]:
    """Run the block for at most `seconds`.

    Raises:
        TooLateError: `what` did not happen.
    """
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        msg = f"{what}: not within {seconds:g} s"
        raise TooLateError(msg) from None
