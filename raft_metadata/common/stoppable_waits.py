"""Waits that the stop of their owner ends early, so that a server can stop at once."""

from __future__ import annotations

import asyncio


class StoppableWaits:
    """The waits under way of one owner, on its loop."""

    def __init__(self) -> None:
        self._timeouts: set[asyncio.Timeout] = set()
        self.is_stopping = False

    def wait(self, delay_s: float | None) -> StoppableWait:
        """Return `asyncio.timeout(delay_s)` that `stop` ends early; TimeoutError either way."""
        return StoppableWait(self._timeouts, 0 if self.is_stopping else delay_s)

    def stop(self) -> None:
        """End all waits, and at once every wait that begins from now on."""
        self.is_stopping = True
        now = asyncio.get_running_loop().time()
        for timeout in self._timeouts:
            if not timeout.expired():  # else its task ends by itself, and this would raise
                timeout.reschedule(now)


class StoppableWait:
    """One wait, an asynchronous context manager. Owned by the task that enters it."""

    __slots__ = ("_timeout", "_timeouts")

    def __init__(self, timeouts: set[asyncio.Timeout], delay_s: float | None) -> None:
        self._timeouts = timeouts
        self._timeout = asyncio.timeout(delay_s)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()
        self._timeouts.add(self._timeout)

    async def __aexit__(self, *raised: object) -> None:
        self._timeouts.discard(self._timeout)
        await self._timeout.__aexit__(*raised)  # type: ignore[arg-type] # what `async with` passes
