"""A hosted replica: the pure `Partition`, its log, and the sessions and waiters attached to it.

The `ReplicaManager` owns one `Replica` for each partition that is assigned to this broker. Log and
partition call it when the durable end or the high watermark moves. `TopicViews` computes from an
image the configs that apply to a topic's replicas here.
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
    """Configs that apply to a topic's replicas; one object for all replicas of a topic."""

    settings: Settings
    log_config: LogConfig


class TopicViews:
    """Source of each partition's `TopicView`; it keeps the views of the last topic.

    Owned by the `ReplicaManager`, which applies partitions topic by topic.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._broker_id = config.broker_id
        self._static = config.static()
        self._made_of: tuple[TopicId, Mapping[ConfigKey, Mapping[str, str]]] | None = None
        self._views: dict[int, TopicView] = {}
        """Views by replication factor, which limits a default min ISR. Partitions of a topic may
        differ in it during a reassignment."""

    def of(
        self, image: MetadataImage, topic_id: TopicId, partition: PartitionRegistration
    ) -> TopicView:
        """Return the configs in force: topic over broker over cluster over config.toml."""
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
        if compaction is not None:  # the active segment is never compacted (KIP-354)
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
"""Waiting fetches woken in one turn of the event loop; 5,000 in one turn would delay producers."""


class FollowerSession(Protocol):
    """Port to a session that pushes to a follower: a ``leader_stream.PushSession``."""

    number: int

    @property
    def follower(self) -> BrokerId: ...
    def offer(self, base_offset: int, next_offset: int, raw: bytes) -> None: ...
    def announce(self) -> None: ...
    def forget(self) -> None: ...


class LeaderPort(Protocol):
    """Port to the leader of a followed partition: a ``follower_stream.LeaderLink``."""

    def open(self, replica: Replica) -> None: ...
    def stop_replicating(self, replica: Replica) -> None: ...
    def acknowledge(self, replica: Replica) -> None: ...


class ReplicaWaiter(Protocol):
    """Port to a read that waits at replicas: a future, or the watch of a poll over many."""

    def done(self) -> bool:
        """Return whether it waits no more."""
        ...

    def set_result(self, replica: Replica, /) -> None:
        """Take that this replica's high watermark or role has changed."""
        ...


class ReplicaHost(Protocol):
    """The part of the `ReplicaManager` that a replica uses."""

    dirty: set[Replica]


class Replica:
    """A partition hosted here, with its log, its sessions, and the fetches that wait at it.

    Owned by the `ReplicaManager`, on its event loop, for as long as this broker is assigned or
    delayed produces wait here.
    """

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
        """Link to the leader; None unless this replica follows one."""
        self.sessions: tuple[FollowerSession, ...] = ()
        """Sessions of the followers that this leader pushes to, at most one for each follower."""
        self.fetch_waiters: dict[ReplicaWaiter, None] | None = None
        """Waiting reads in order of arrival; None instead of an empty dict, to save memory."""

    def listen(self) -> None:
        """Follow moves of the log's durable end and of the high watermark from now on.

        Log and partition call this object itself: two bound methods for each of ten thousand
        partitions would take more than a megabyte.
        """
        self.partition.on_high_watermark = self
        self.log.on_durable = self

    def __call__(self, moved: Partition | None = None) -> None:
        """Take a move of ``moved``'s high watermark; without it, of the log's durable end.

        A durable end is acknowledged to the leader, or advances the high watermark as leader. A
        high watermark wakes waiting fetches at once; followers receive it with the next tick.
        """
        if moved is None:
            if self.link is not None:
                self.link.acknowledge(self)
            self.partition.advance()
            return
        self.log.high_watermark = moved.high_watermark
        self.host.dirty.add(self)
        if self.fetch_waiters:
            self.wake_fetches()

    def attach(self, session: FollowerSession) -> None:
        """Push to this follower in this session; it replaces the follower's previous one."""
        others = (s for s in self.sessions if s.follower != session.follower)
        self.sessions = (*others, session)

    def detach(self, session: FollowerSession) -> None:
        """Remove a session that ended or pauses."""
        self.sessions = tuple(s for s in self.sessions if s is not session)

    def forget_sessions(self) -> None:
        """End all sessions, because the role that validated them ended."""
        sessions, self.sessions = self.sessions, ()
        for session in sessions:
            session.forget()

    def configure(self, view: TopicView) -> None:
        """Apply the present configs of the topic, from the next append on."""
        self.log.config = view.log_config
        self.partition.configure(view.settings)

    def readmit(self) -> None:
        """Readmit a replica that is assigned again before it was removed; request a new session."""
        self.partition.is_observer = False
        if self.link is not None:
            self.link.open(self)

    def wake_fetches(self) -> None:
        """Let waiting fetches check again, `WAKE_SLICE` in each turn of the event loop."""
        waiters, self.fetch_waiters = self.fetch_waiters, None
        if waiters:
            _wake(self, list(waiters))

    def wait(self, waiter: ReplicaWaiter) -> None:
        """Wake this read once, when the high watermark or the role changes."""
        if self.fetch_waiters is None:
            self.fetch_waiters = {}
        self.fetch_waiters[waiter] = None

    def forget_waiter(self, waiter: ReplicaWaiter) -> None:
        """Forget a read that no longer waits."""
        if self.fetch_waiters:
            self.fetch_waiters.pop(waiter, None)


def _wake(replica: Replica, waiters: list[ReplicaWaiter]) -> None:
    for waiter in waiters[:WAKE_SLICE]:
        if not waiter.done():
            waiter.set_result(replica)
    if len(waiters) > WAKE_SLICE:
        asyncio.get_running_loop().call_soon(_wake, replica, waiters[WAKE_SLICE:])
