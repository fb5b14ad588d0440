"""A sparse index of one segment in memory: about one entry per 4 KiB, in three flat arrays.

16 bytes an entry, so 4 MB for a gigabyte of log; the interval is Kafka's index.interval.bytes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

INDEX_INTERVAL_BYTES = 4096
NO_TIMESTAMP = -1
ENTRY_BYTES = 16
EMPTY_BYTES = 400
"""Bytes of memory that an index takes before its first entry."""


class OffsetIndex:
    """Entries (offset, position, newest timestamp before it); the first batch has an entry.

    Offsets are relative to the segment's base, positions are below 4 GiB. Not thread-safe: lives on
    the event loop with its segment.
    """

    __slots__ = ("_offsets", "_positions", "_times")

    def __init__(self) -> None:
        self._offsets = array("I")
        self._positions = array("I")
        self._times = array("q")

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, relative_offset: int, position: int, newest_before: int) -> None:
        """Add the batch at this position, if it is far enough from the last entry."""
        if self._positions and position - self._positions[-1] < INDEX_INTERVAL_BYTES:
            return
        self._offsets.append(relative_offset)
        self._positions.append(position)
        self._times.append(newest_before)

    @property
    def held_bytes(self) -> int:
        """Bytes of memory, about."""
        return EMPTY_BYTES + ENTRY_BYTES * len(self._offsets)

    def part(self, first: int, end: int) -> tuple[int, int, bytes]:
        """Return the entries [first, end): offset and time of the first, and the bytes of all."""
        offsets, times = self._offsets[first:end], self._times[first:end]
        raw = (offsets.tobytes(), self._positions[first:end].tobytes(), times.tobytes())
        return offsets[0], times[0], b"".join(raw)

    def extend(self, part: memoryview) -> None:
        """Add the entries from such bytes, in native order."""
        count = len(part) // ENTRY_BYTES
        self._offsets.frombytes(part[: 4 * count])
        self._positions.frombytes(part[4 * count : 8 * count])
        self._times.frombytes(part[8 * count :])

    @property
    def entries(self) -> list[tuple[int, int]]:
        """All (relative offset, position), in order."""
        return list(zip(self._offsets, self._positions, strict=True))

    def position_for(self, relative_offset: int) -> int:
        """Return the position of a batch at or before the one that holds the offset."""
        index = bisect_right(self._offsets, relative_offset) - 1
        return self._positions[index] if index >= 0 else 0

    def position_for_time(self, timestamp_ms: int) -> int:
        """Return a position such that every batch before it is older than the timestamp."""
        index = bisect_left(self._times, timestamp_ms) - 1
        return self._positions[index] if index >= 0 else 0

    def truncate(self, position: int) -> None:
        """Remove the entries of batches at or behind this position."""
        keep = bisect_left(self._positions, position)
        del self._offsets[keep:]
        del self._positions[keep:]
        del self._times[keep:]
