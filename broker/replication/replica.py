"""A hosted replica: the pure `Partition`, its log, and the listeners and streams attached to it.

The `ReplicaManager` owns one `Replica` for each partition that is assigned to this broker.
`TopicViews` reads from an image what a topic's configs mean for its replicas here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from broker.log.compaction import CompactionConfig
from broker.log.log_directory import LogConfig
from broker.log.retention import RetentionConfig
from broker.replication.leader_state import Settings
from raft_metadata.common.configs.table import (
    CLEANUP_POLICY,
    COMPRESSION_TYPE,
    DELETE_RETENTION_MS,
    FLUSH,
    MAX_COMPACTION_LAG_MS,
    MESSAGE_TIMESTAMP_TYPE,
    MIN_CLEANABLE_DIRTY_RATIO,
    MIN_COMPACTION_LAG_MS,
    RETENTION_BYTES,
    RETENTION_MS,
    SEGMENT_BYTES,
    SEGMENT_MS,
)
from raft_metadata.image.metadata_image import topic_layers

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.log.partition_log import PartitionLog
    from broker.replication.frames import Key
    from broker.replication.partition import Partition
    from raft_metadata.common.configs.layers import ConfigLayers
    from raft_metadata.common.ids import BrokerId, TopicId, TopicName
    from raft_metadata.image.metadata_image import ConfigKey, MetadataImage, PartitionRegistration


class TopicView(NamedTuple):
    """The values in force: one object for all replicas of a topic."""

    settings: Settings
    log_config: LogConfig


class TopicViews:
    """Owned by the `ReplicaManager`. Remembers one topic: partitions come topic by topic."""

    def __init__(self, config: BrokerConfig) -> None:
        self._broker_id = config.broker_id
        self._static = config.static()
        self._made_of: tuple[TopicId, Mapping[ConfigKey, Mapping[str, str]]] | None = None
        self._views: dict[int, TopicView] = {}
        """By replication factor, which caps a default min ISR; it may differ for a while."""

    def of(
        self, image: MetadataImage, topic_id: TopicId, partition: PartitionRegistration
    ) -> TopicView:
        """The topic's own configs over this broker's, the cluster's, and config.toml's."""
        made_of = self._made_of
        if made_of is None or made_of[0] != topic_id or made_of[1] is not image.configs:
            self._made_of, self._views = (topic_id, image.configs), {}
        factor = partition.replication_factor
        view = self._views.get(factor)
        if view is None:
            view = self._views[factor] = self._make(image, topic_id, factor)
        return view

    def _make(self, image: MetadataImage, topic_id: TopicId, factor: int) -> TopicView:
        layers = topic_layers(image, topic_id, self._static, self._broker_id)
        by_durable = layers.word(FLUSH) == "ack"
        compaction = _compaction(layers)
        segment_ms = layers.number(SEGMENT_MS)
        if compaction is not None:  # what is still written to is never compacted (KIP-354)
            segment_ms = min(segment_ms, compaction.max_lag_ms)
        log_config = LogConfig(
            segment_bytes=layers.number(SEGMENT_BYTES),
            segment_ms=segment_ms,
            compaction=compaction,
            flush_before_ack=by_durable,
            retention=_retention(layers),
            append_time=layers.word(MESSAGE_TIMESTAMP_TYPE) == "append",
            zstd=layers.word(COMPRESSION_TYPE) == "zstd",
        )
        return TopicView(Settings(layers.min_isr(factor), by_durable), log_config)


def _retention(layers: ConfigLayers) -> RetentionConfig | None:
    """Return the retention of the topic; None if its policy does not include delete."""
    if "delete" not in layers.word(CLEANUP_POLICY).split(","):
        return None
    return RetentionConfig(layers.number(RETENTION_MS), layers.number(RETENTION_BYTES))


def _compaction(layers: ConfigLayers) -> CompactionConfig | None:
    """Return the compaction of the topic; None if its policy does not include compact."""
    if "compact" not in layers.word(CLEANUP_POLICY).split(","):
        return None
    return CompactionConfig(
        min_dirty_ratio=layers.ratio(MIN_CLEANABLE_DIRTY_RATIO),
        delete_retention_ms=layers.number(DELETE_RETENTION_MS),
        min_lag_ms=layers.number(MIN_COMPACTION_LAG_MS),
        max_lag_ms=layers.number(MAX_COMPACTION_LAG_MS),
        segment_bytes=layers.number(SEGMENT_BYTES),
    )


WAKE_SLICE = 200
"""DelayedProduce fetches woken per loop turn: 5,000 at once would starve producers (hot-path, 7).
"""


class FollowerSession(Protocol):
    """A follower that is pushed to (``leader_stream.PushSession``)."""

    number: int

    @property
    def follower(self) -> BrokerId: ...
    def offer(self, base_offset: int, next_offset: int, raw: bytes) -> None: ...
    def announce(self) -> None: ...
    def forget(self) -> None: ...


class LeaderPort(Protocol):
    """The way to the leader of a followed partition (``leader_link.LeaderLink``)."""

    def open(self, replica: Replica) -> None: ...
    def stop_replicating(self, replica: Replica) -> None: ...
    def acknowledge(self, replica: Replica) -> None: ...


class ReplicaHost(Protocol):
    """The part of the `ReplicaManager` that a replica calls."""

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
        self.link: LeaderPort | None = None
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

    def readmit(self) -> None:
        """Take back a replica that was reassigned here before it was removed; validate it anew."""
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

    def forget_waiter(self, waiter: asyncio.Future[None]) -> None:
        """Forget a fetch that no longer waits."""
        if self.fetch_waiters:
            self.fetch_waiters.pop(waiter, None)


def _wake(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters[:WAKE_SLICE]:
        if not waiter.done():
            waiter.set_result(None)
    if len(waiters) > WAKE_SLICE:
        asyncio.get_running_loop().call_soon(_wake, waiters[WAKE_SLICE:])
