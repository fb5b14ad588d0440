"""Deadlines and polling: `within` names what did not happen, the others report it by their result.

Runs, clients and the cluster poll because what they wait for is seen only over HTTP or on disk.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

Value = TypeVar("Value")
POLL_EVERY_S = 0.05


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


async def read_until(
    seconds: float, is_expected: Callable[[Value], bool], read: Callable[[], Awaitable[Value]]
) -> Value:
    """Read until a value is the expected one or `seconds` have passed; return the last value."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        value = await read()
        if is_expected(value) or loop.time() > deadline:
            return value
        await asyncio.sleep(POLL_EVERY_S)


async def wait_until(seconds: float, holds: Callable[[], bool]) -> bool:
    """Return True once `holds` returns True, False after `seconds`."""

    async def read() -> bool:
        return holds()

    return await read_until(seconds, bool, read)
