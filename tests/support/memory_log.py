"""A partition log in memory: what the process reads, and what of it has reached the platters.

Implements ``broker.replication.partition.ReplicaLog``. An entry is ``(leader epoch, value)`` at its
offset; a pushed batch is the JSON list of entries. The flusher is an actor of its own: a flush that
was started holds what was there then, and proves nothing once the log was truncated (rule Q3).
"""

from __future__ import annotations

from collections.abc import Callable

import orjson

from broker.log.leader_epoch_cache import LeaderEpochCache

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
        self.name = "memory-0"
        self.entries: list[Entry] = []
        self.epochs = LeaderEpochCache()
        self.synced: list[Entry] = []
        self.log_start_offset = 0
        self.durable_end = 0
        self.dropped_to = self.compacted_to = 0
        self.generation = 0
        self.flush: tuple[int, list[Entry]] | None = None
        self.wants_flush = False
        self._on_append = on_append

    @property
    def log_end_offset(self) -> int:
        return len(self.entries)

    @property
    def last_epoch(self) -> int:
        return self.epochs.last_epoch(len(self.entries))

    @property
    def epoch_entries(self) -> list[tuple[int, int]]:
        return self.epochs.entries

    def note_dropped(self, offset: int) -> None:
        self.dropped_to = max(self.dropped_to, offset)

    def epoch_at(self, offset: int) -> int:
        return self.epochs.epoch_of(offset) if 0 <= offset < len(self.entries) else -1

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        return self.epochs.end_offset_for(epoch, self.log_start_offset, len(self.entries))

    def start_epoch(self, epoch: int) -> None:
        self.epochs.assign(epoch, len(self.entries))

    def append(self, entry: Entry) -> None:
        self._on_append(entry, len(self.entries))
        self.epochs.assign(entry[0], len(self.entries))
        self.entries.append(entry)

    def check_epochs(self) -> None:
        """Invariant L11: the cache says of every entry what the entry says of itself."""
        for offset, (epoch, _) in enumerate(self.entries):
            assert self.epoch_at(offset) == epoch, (offset, epoch, self.epochs.entries)

    def recover(self, entries: list[Entry], *, keep_cache: bool) -> None:
        """A new process finds these entries; the cache is a checkpoint or built anew from them."""
        self.entries = list(entries)
        if keep_cache:
            self.epochs.truncate_from_end(len(entries))
            return
        self.epochs = LeaderEpochCache()
        for offset, (epoch, _) in enumerate(entries):
            self.epochs.assign(epoch, offset)

    def append_as_follower(self, batches: memoryview | bytes) -> None:
        for entry in decode(batches):
            self.append(entry)

    def truncate_to(self, end_offset: int) -> None:
        if end_offset < len(self.entries):
            del self.entries[end_offset:]
            self.epochs.truncate_from_end(end_offset)
            self.generation += 1
            self.durable_end = min(self.durable_end, end_offset)

    def advance_log_start(self, offset: int) -> bool:
        """Durable at once: the wait for it is the real log's, and tested there."""
        if offset <= self.log_start_offset:
            return False
        self.log_start_offset = offset
        self.epochs.truncate_from_start(offset)
        return True

    def producers_told(self, as_of: int) -> bytes | None:
        """Nothing here names a producer."""
        return b"" if as_of >= self.log_start_offset else None

    def start_over(self, offset: int, _: bytes | None = None) -> None:
        """Below the start stand entries that nobody may read."""
        self.entries = [(-1, -1)] * offset
        self.epochs = LeaderEpochCache()
        self.generation += 1
        self.log_start_offset = offset
        self.durable_end = min(self.durable_end, offset)
        self.wants_flush = True

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
