"""Memory of the indexes of sealed segments: one limit for the broker, least recently used first.

`Segment` reports each use of an index that its file can restore; above the limit, `IndexMemory`
tells the segments used longest ago to drop theirs.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

INDEX_MEMORY_BYTES = 67_108_864
"""Limit of the memory: whole indexes of 16 GB of log, or the needed parts of those of 4,000
segments that are read at one place each (a summary of 8 KB and a block of the same size). A miss
costs 15 µs if the file is in the page cache."""


class Indexed(Protocol):
    """The part of a segment that is used here."""

    def drop_index(self) -> None:
        """Free the memory of its index."""
        ...


class IndexMemory:
    """Segments with an index in memory that they could read back from its file, last used last.

    On the event loop. Segments that are being written to, or have no index file yet, are not
    included:
    restoring their index would mean walking the segment, so they keep it.
    """

    def __init__(self, limit_bytes: int = INDEX_MEMORY_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._held: OrderedDict[Indexed, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def used(self, segment: Indexed, size: int) -> None:
        """Record a use of this segment's index, now ``size`` bytes; drop others above the limit."""
        held = self._held
        before = held.get(segment, 0)
        if before == size:
            held.move_to_end(segment)
            return
        held[segment] = size
        held.move_to_end(segment)
        self.held_bytes += size - before
        while self.held_bytes > self.limit_bytes and len(held) > 1:
            oldest, freed = held.popitem(last=False)
            self.held_bytes -= freed
            oldest.drop_index()

    def touch(self, segment: Indexed) -> None:
        """Record a use of this segment's index, whose size is unchanged."""
        if segment in self._held:
            self._held.move_to_end(segment)

    def forget(self, segment: Indexed) -> None:
        """Stop counting this segment: it is removed, or keeps its index from now on."""
        self.held_bytes -= self._held.pop(segment, 0)
