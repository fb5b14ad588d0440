"""Standstills of a process: it was stopped, its machine was suspended, or its loop was blocked.

What was sent to it meanwhile lies in its sockets as if it had just come. Requests carry the time
that is left for them, not an age, so a request of transactions could be decided long after its
client gave up, when its key is decided by another broker and forgotten: its rows would be written
twice (rule S12). So behind a long standstill all that was sent before is dropped: each listener
aborts its connections, and takes no new ones until those that waited to be accepted are gone.

The doors look themselves, before they begin a request: the loop may run what its sockets hold
before the timer that is late.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from raft_metadata.common.clock import Clock

STANDSTILL_MS: Final = 15_000
"""A standstill from which on all that was sent before is dropped.

A request may lie so long in its first broker, on the way to its home and there, and has 60 s at
most beside that: 105 s, less than the smallest `idempotency.key.retention.ms` (120 s).
"""
TICK_MS: Final = 500
WAKING_TICKS: Final = 4
"""Ticks in which a listener refuses connections: they may have waited, with a request, to be
accepted. Every turn of the loop accepts some, so a backlog is gone long before."""


class Standstills:
    """Watch over the turns of a process's loop. Owned by the node, on that loop.

    It notices nothing unless `run` runs.
    """

    def __init__(self, clock: Clock, limit_ms: int = STANDSTILL_MS, tick_ms: int = TICK_MS) -> None:
        self._clock = clock
        self._limit_ms = limit_ms
        self._tick_ms = tick_ms
        self._seen_ms: int | None = None
        """Time of the last look; None: `run` does not run."""
        self._waking_ticks = 0
        self._cuts: list[Callable[[], None]] = []
        self.count = 0
        """Standstills that were noticed; compared behind a wait."""

    def when_noticed(self, cut: Callable[[], None]) -> None:
        """Call this at each standstill, in the turn that notices it; it must not raise."""
        self._cuts.append(cut)

    def look(self) -> int:
        """Notice a standstill that just ended; return `count`."""
        if self._seen_ms is None:
            return self.count
        now_ms = self._clock.monotonic_ms()
        stood_ms, self._seen_ms = now_ms - self._seen_ms, now_ms
        if stood_ms > self._limit_ms:
            self.count += 1
            self._waking_ticks = WAKING_TICKS
            for cut in self._cuts:
                cut()
        return self.count

    def admits(self) -> bool:
        """Return False if a new connection may have waited through a standstill."""
        self.look()
        return not self._waking_ticks

    def is_cut(self, transport: asyncio.BaseTransport | None) -> bool:
        """Return True if a request from this connection must not be begun any more."""
        self.look()
        return transport is None or transport.is_closing()

    def tick(self) -> None:
        """Look, and come nearer to the end of the time in which connections are refused."""
        self._waking_ticks = max(0, self._waking_ticks - 1)
        self.look()

    async def run(self) -> None:
        """Tick until cancelled."""
        self._seen_ms = self._clock.monotonic_ms()
        try:
            while True:
                await asyncio.sleep(self._tick_ms / 1000)
                self.tick()
        finally:
            self._seen_ms = None
