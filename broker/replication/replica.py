"""A hosted replica: the pure `Partition`, its log, and who waits or listens for it here."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from broker.log.partition_log import PartitionLog
    from broker.replication.frames import Key
    from broker.replication.partition import Partition
    from broker.replication.topic_views import TopicView
    from raft_metadata.common.ids import BrokerId, TopicName

WAKE_SLICE = 200
"""Parked fetches woken per loop turn: 5,000 at once would starve producers (hot-path, 7)."""


class FollowerSession(Protocol):
    """A follower that is pushed to (``leader_stream.PushSession``)."""

    number: int

    @property
    def follower(self) -> BrokerId: ...
    def offer(self, base_offset: int, next_offset: int, raw: bytes) -> None: ...
    def announce(self) -> None: ...
    def forget(self) -> None: ...


class Link(Protocol):
    """The way to the leader of a followed partition (``leader_link.LeaderLink``)."""

    def open(self, replica: Replica) -> None: ...
    def leave(self, replica: Replica) -> None: ...
    def acknowledge(self, replica: Replica) -> None: ...


class ReplicaHost(Protocol):
    """What a replica tells the `ReplicaManager`."""

    def durable_end_moved(self, replica: Replica) -> None: ...
    def high_watermark_moved(self, replica: Replica) -> None: ...


class Replica:
    """Owned by the `ReplicaManager`, on its loop. Lives while this broker is assigned."""

    __slots__ = (
        "fetch_waiters", "host", "key", "link", "log", "partition", "sessions", "topic",
    )  # fmt: skip

    def __init__(
        self,
        topic: TopicName,
        partition: Partition,
        log: PartitionLog,
        key: Key,
        host: ReplicaHost,
    ) -> None:
        self.host = host
        self.topic = topic
        self.partition = partition
        self.log = log
        self.key = key
        self.link: Link | None = None
        """To the leader, as follower."""
        self.sessions: tuple[FollowerSession, ...] = ()
        """Followers that are pushed to, as leader: each one once."""
        self.fetch_waiters: dict[asyncio.Future[None], None] | None = None
        """In order of arrival; None, not an empty one: most of ten thousand partitions are idle."""

    def listen(self) -> None:
        """Tell the host of the ends of this replica from now on.

        Log and partition call this object itself: two bound methods for each of ten thousand
        partitions would take more than a megabyte.
        """
        self.partition.on_high_watermark = self
        self.log.on_durable = self

    def __call__(self, moved: Partition | None = None) -> None:
        """The partition's high watermark moved, or, without it, a sync of the log is over."""
        if moved is None:
            self.host.durable_end_moved(self)
        else:
            self.host.high_watermark_moved(self)

    def attach(self, session: FollowerSession) -> None:
        """Push to this follower from now on, in this session."""
        others = (s for s in self.sessions if s.follower != session.follower)
        self.sessions = (*others, session)

    def detach(self, session: FollowerSession) -> None:
        """Its connection is gone."""
        self.sessions = tuple(s for s in self.sessions if s is not session)

    def forget_sessions(self) -> None:
        """The role that gave them is over."""
        sessions, self.sessions = self.sessions, ()
        for session in sessions:
            session.forget()

    def configure(self, view: TopicView) -> None:
        """The topic's configs as they are now, in force from the next append on."""
        self.log.config = view.log_config
        self.partition.configure(view.settings)

    def count_again(self) -> None:
        """It was given back before it had gone: validated anew, as any follower."""
        self.partition.observes = False
        if self.link is not None:
            self.link.open(self)

    def wake_fetches(self) -> None:
        """Let parked fetches look again, a slice per loop turn."""
        waiters, self.fetch_waiters = self.fetch_waiters, None
        if waiters:
            _wake(list(waiters))

    def wait(self, waiter: asyncio.Future[None]) -> None:
        """Wake this fetch when the high watermark or the role has changed."""
        if self.fetch_waiters is None:
            self.fetch_waiters = {}
        self.fetch_waiters[waiter] = None

    def wait_no_more(self, waiter: asyncio.Future[None]) -> None:
        """Whoever waited left."""
        if self.fetch_waiters:
            self.fetch_waiters.pop(waiter, None)


def _wake(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters[:WAKE_SLICE]:
        if not waiter.done():
            waiter.set_result(None)
    if len(waiters) > WAKE_SLICE:
        asyncio.get_running_loop().call_soon(_wake, waiters[WAKE_SLICE:])
