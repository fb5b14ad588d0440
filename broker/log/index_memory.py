"""How much memory the indexes of sealed segments take: of the whole broker, the last used ones."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

INDEX_MEMORY_BYTES = 67_108_864
"""Whole indexes of 16 GB of log, or what is needed of those of 4,000 segments that are read from
one place each (a summary of 8 KB and a block of as much). What is missed costs 15 µs
where the system has the file in its cache."""


class Indexed(Protocol):
    """A segment, as far as it is known here."""

    def drop_index(self) -> None:
        """What of its index is in memory goes."""
        ...


class IndexMemory:
    """Segments that hold an index which they could read back from its file, the last used one last.

    On the loop. Segments that are written to, or whose index file is not there yet, are not here:
    reading theirs back would mean walking the segment, so they hold on to it.
    """

    def __init__(self, limit_bytes: int = INDEX_MEMORY_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._held: OrderedDict[Indexed, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def used(self, segment: Indexed, size: int) -> None:
        """This segment's index, of so many bytes now, was needed: others go first."""
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
        """This segment's index was needed, and is as large as it was."""
        if segment in self._held:
            self._held.move_to_end(segment)

    def forget(self, segment: Indexed) -> None:
        """It goes, or holds on to its index from now on."""
        self.held_bytes -= self._held.pop(segment, 0)
