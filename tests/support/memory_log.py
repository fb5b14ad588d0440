"""A partition log in memory: what the process reads, and what of it has reached the platters.

Implements ``broker.replication.partition.ReplicaLog``. An entry is ``(leader epoch, value)`` at its
offset; a pushed batch is the JSON list of entries. The flusher is an actor of its own: a flush that
was started holds what was there then, and proves nothing once the log was truncated (rule Q3).
"""

from __future__ import annotations

from collections.abc import Callable

import orjson

Entry = tuple[int, int]


def encode(entries: list[Entry]) -> bytes:
    """Entries as they are pushed."""
    return orjson.dumps(entries) if entries else b""


def decode(raw: bytes | memoryview) -> list[Entry]:
    """Pushed bytes as entries."""
    return [(epoch, value) for epoch, value in orjson.loads(raw)] if len(raw) else []


class MemoryLog:
    """One replica's log on one disk. ``synced`` survives a power cut, ``entries`` a SIGKILL."""

    def __init__(self, on_append: Callable[[Entry, int], None] = lambda _entry, _at: None) -> None:
        self.entries: list[Entry] = []
        self.synced: list[Entry] = []
        self.log_start_offset = 0
        self.durable_end = 0
        self.generation = 0
        self.flush: tuple[int, list[Entry]] | None = None
        self.wants_flush = False
        self._on_append = on_append

    @property
    def log_end_offset(self) -> int:
        return len(self.entries)

    @property
    def last_epoch(self) -> int:
        return self.entries[-1][0] if self.entries else -1

    def epoch_at(self, offset: int) -> int:
        return self.entries[offset][0] if 0 <= offset < len(self.entries) else -1

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        end = len(self.entries)
        while end and self.entries[end - 1][0] > epoch:
            end -= 1
        return (self.entries[end - 1][0], end) if end else (-1, 0)

    def start_epoch(self, epoch: int) -> None:
        assert epoch >= self.last_epoch, "a leader epoch went back"

    def append(self, entry: Entry) -> None:
        self._on_append(entry, len(self.entries))
        self.entries.append(entry)

    def append_as_follower(self, batches: memoryview | bytes) -> None:
        for entry in decode(batches):
            self.append(entry)

    def truncate_to(self, end_offset: int) -> None:
        if end_offset < len(self.entries):
            del self.entries[end_offset:]
            self.generation += 1
            self.durable_end = min(self.durable_end, end_offset)

    def request_flush(self) -> None:
        self.wants_flush = True

    def flush_start(self) -> None:
        if self.flush is None:
            self.wants_flush = False
            self.flush = (self.generation, list(self.entries))

    def flush_end(self) -> bool:
        """Whether the durable end moved."""
        if self.flush is None:
            return False
        generation, self.synced = self.flush
        self.flush = None
        if generation != self.generation or len(self.synced) <= self.durable_end:
            return False
        self.durable_end = len(self.synced)
        return True

    def flush_now(self) -> bool:
        self.flush_start()
        return self.flush_end()
