"""A hosted replica: the pure `Partition`, its log, and who waits or listens for it here."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from broker.replication.frames import Key, key_of

if TYPE_CHECKING:
    from broker.log.partition_log import PartitionLog
    from broker.replication.partition import Partition
    from raft_metadata.common.ids import BrokerId, TopicName

WAKE_SLICE = 200
"""Parked fetches woken per loop turn: 5,000 at once would starve producers (hot-path, 7)."""


class FollowerSession(Protocol):
    """A follower that is pushed to (``leader_stream.PushSession``)."""

    number: int

    def offer(self, base_offset: int, next_offset: int, raw: bytes) -> None: ...
    def announce(self) -> None: ...
    def forget(self) -> None: ...


class Replica:
    """Owned by the `ReplicaManager`, on its loop. Lives while this broker is assigned."""

    __slots__ = (
        "fetch_waiters", "high_watermark_dirty", "key", "log", "partition", "sessions", "topic",
    )  # fmt: skip

    def __init__(self, topic: TopicName, partition: Partition, log: PartitionLog) -> None:
        self.topic = topic
        self.partition = partition
        self.log = log
        self.key: Key = key_of(partition.id.topic_id, partition.id.partition)
        self.sessions: dict[BrokerId, FollowerSession] = {}
        """Followers that are pushed to, as leader."""
        self.fetch_waiters: list[asyncio.Future[None]] = []
        self.high_watermark_dirty = False
        """The high watermark moved and followers have not heard of it."""

    def wake_fetches(self) -> None:
        """Let parked fetches look again, a slice per loop turn."""
        waiters, self.fetch_waiters = self.fetch_waiters, []
        _wake(waiters)


def _wake(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters[:WAKE_SLICE]:
        if not waiter.done():
            waiter.set_result(None)
    if len(waiters) > WAKE_SLICE:
        asyncio.get_running_loop().call_soon(_wake, waiters[WAKE_SLICE:])
