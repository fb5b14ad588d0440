"""How much a follower may be sent beyond what it has proven to hold. Pure; clock as argument.

A follower whose disk hangs goes on reading its connection: without a limit it would hold any number
of unsynced bytes. So bytes that were pushed count until the end that counts (rule R1) passes them:
for a session, and for all sessions of a connection. Whoever is not in sync gets a smaller share,
about as much as the follower proves in `TARGET_MS`: what is in sync goes over the same connection
and to the same disk, and never waits behind more than that (rule R9).
"""

from __future__ import annotations

from collections import deque

TARGET_MS = 100
"""How long those in sync may wait behind those that catch up: connection, append and sync."""
MIN_WINDOW_BYTES = 131_072
"""So much may always be on its way to a follower that catches up: it must make progress."""
RATE_MEMORY_MS = 500
"""Acknowledgements come in bursts, one for a sync: the rate is one over about this time."""
MAX_TRIP_MS = 300
"""A way and a sync that take longer than this are waiting, not distance."""
TRIP_MEMORY_MS = 10_000
"""The shortest round trip of this time, or of the last such time, is what one takes at least."""
MARK_BYTES = 262_144
"""Grain of the count: a session's bytes are remembered in pieces of about this size."""
STUCK_MS = 10_000
"""A session that proved nothing for so long, while others of its connection did, is its own
trouble: it goes on counting for itself, but takes no room from the others."""


class PushWindow:
    """The unproven bytes of one session. Made with its first push, dropped when all is proven."""

    __slots__ = (
        "_marks", "_tail_bytes", "counted", "in_sync", "made_ms", "moved_ms", "sent_end",
        "unproven",
    )  # fmt: skip

    def __init__(self, now_ms: int, *, in_sync: bool = True) -> None:
        self.unproven = 0
        self.sent_end = 0
        self.in_sync = in_sync
        """Whether the follower was, when it was pushed to first."""
        self.made_ms = self.moved_ms = now_ms
        """When something was proven last, or first sent."""
        self.counted = True
        """Whether the connection counts these bytes."""
        self._tail_bytes = 0
        self._marks: deque[tuple[int, int]] | None = None

    def pushed(self, end: int, size: int) -> None:
        """So many bytes, up to this offset."""
        self.unproven += size
        self.sent_end = end
        self._tail_bytes += size
        if self._tail_bytes >= MARK_BYTES:
            if self._marks is None:
                self._marks = deque()
            self._marks.append((end, self._tail_bytes))
            self._tail_bytes = 0

    def proven(self, end: int, now_ms: int) -> int:
        """The follower holds everything below ``end``: how many bytes that makes."""
        released = 0
        marks = self._marks
        while marks and marks[0][0] <= end:
            released += marks.popleft()[1]
        if end >= self.sent_end:
            released, self._tail_bytes = released + self._tail_bytes, 0
        if released:
            self.unproven -= released
            self.moved_ms = now_ms
        return released


class ConnectionFlow:
    """The unproven bytes of one connection, and how much more it takes."""

    __slots__ = (
        "_bytes_per_ms", "_proven", "_since_ms", "_trip_before_ms", "_trip_ms", "_trips_since_ms",
        "catch_up_bytes", "catching_up", "limit", "proven_ms", "unproven",
    )  # fmt: skip

    def __init__(self, limit: int, now_ms: int) -> None:
        self.limit = limit
        """Unproven bytes of the connection; those of one session: half of it."""
        self.unproven = 0
        self.catch_up_bytes = MIN_WINDOW_BYTES
        """Whoever catches up is pushed to while less than this is unproven."""
        self.catching_up = 0
        """Sessions with something unproven whose followers were not in sync."""
        self.proven_ms = now_ms
        self._proven = 0
        self._bytes_per_ms = 0.0
        self._since_ms = now_ms
        self._trip_ms: int | None = None
        self._trip_before_ms = 0
        self._trips_since_ms = now_ms

    def has_room(self, *, in_sync: bool) -> bool:
        """Whether some session may be sent more. Of those that catch up one may always be."""
        if in_sync:
            return self.unproven < self.limit
        return self.unproven < self.catch_up_bytes or not self.catching_up

    def is_full(self, window: PushWindow | None) -> bool:
        """Whether this session has all that one session may have unproven."""
        return window is not None and window.unproven >= self.limit // 2

    def opened(self, window: PushWindow) -> None:
        """A session has something unproven."""
        self.catching_up += not window.in_sync

    def _leave(self, window: PushWindow) -> None:
        if window.counted:
            self.catching_up -= not window.in_sync

    def pushed(self, size: int) -> None:
        """Bytes of a session that counts."""
        self.unproven += size

    def released(self, window: PushWindow, size: int, now_ms: int) -> None:
        """A session's bytes were proven."""
        self._proven += size
        self.proven_ms = now_ms
        if window.counted:
            self.unproven -= size

    def emptied(self, window: PushWindow, now_ms: int) -> None:
        """All of a session was proven: how long a round trip took."""
        self._leave(window)
        trip_ms = min(now_ms - window.made_ms, MAX_TRIP_MS)
        self._trip_ms = trip_ms if self._trip_ms is None else min(self._trip_ms, trip_ms)

    def drop(self, window: PushWindow) -> None:
        """Nobody will prove these, or not soon: its session is over, or stuck."""
        self._leave(window)
        if window.counted:
            self.unproven -= window.unproven
            window.counted = False

    def is_stuck(self, window: PushWindow) -> bool:
        """Others prove, this one has not for `STUCK_MS`."""
        return window.counted and self.proven_ms - window.moved_ms > STUCK_MS

    def quantum(self) -> int:
        """How much to push at once to one that catches up: it proves only whole pieces."""
        return max(self.catch_up_bytes // 4, MIN_WINDOW_BYTES // 2)

    def measure(self, now_ms: int) -> None:
        """With every tick: what the follower proves now decides how much may be on its way."""
        passed_ms = now_ms - self._since_ms
        if passed_ms <= 0:
            return
        share = min(passed_ms / RATE_MEMORY_MS, 1.0)
        self._bytes_per_ms += (self._proven / passed_ms - self._bytes_per_ms) * share
        self._proven, self._since_ms = 0, now_ms
        # What is on its way anyway, way and sync being idle, holds up nobody.
        window = int(self._bytes_per_ms * (TARGET_MS + self._least_trip_ms(now_ms)))
        self.catch_up_bytes = min(max(window, MIN_WINDOW_BYTES), self.limit // 2)

    def _least_trip_ms(self, now_ms: int) -> int:
        least = self._trip_before_ms
        if self._trip_ms is not None:
            least = min(least, self._trip_ms) if least else self._trip_ms
            if now_ms - self._trips_since_ms >= TRIP_MEMORY_MS:
                self._trip_before_ms, self._trip_ms = self._trip_ms, None
                self._trips_since_ms = now_ms
        return least
