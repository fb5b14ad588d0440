"""What the coordinator needs of the broker around it; ``broker.server`` implements these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from broker.record.batch import BatchSlice
from raft_metadata.common.ids import TopicName, TopicPartition


class Fetched(NamedTuple):
    """Stored records below the high watermark, and where to read on."""

    slices: Sequence[BatchSlice]
    next_offset: int


class Ends(NamedTuple):
    """Log start, and the next offset a reader gets."""

    beginning: int
    end: int


class DataDoor(Protocol):
    """The broker's own door, for partitions wherever they are led. Raises `KafkaError`."""

    async def fetch(
        self, partition: TopicPartition, offset: int, max_bytes: int, max_wait_ms: int
    ) -> Fetched:
        """Records from an offset on; OFFSET_OUT_OF_RANGE outside the log."""
        ...

    async def ends(self, partition: TopicPartition) -> Ends:
        """Both ends of a partition."""
        ...

    async def offset_at(self, partition: TopicPartition, timestamp_ms: int) -> int:
        """The first record at or behind this time, or the end."""
        ...

    async def catch_up_with_topic(self, topic: TopicName) -> None:
        """Wait, a second at most, for the newest image."""
        ...


class Proof(Protocol):
    """Whether this broker may have been deposed without having heard of it (rule G3)."""

    def is_proven(self) -> bool: ...

    async def prove(self, timeout_ms: int) -> bool: ...
