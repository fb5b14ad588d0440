"""Opens, sets aside and purges the logs of a broker's replicas, as the image allows."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from broker.log.log_directory import LogConfig
from broker.replication.partition_state import Settings
from raft_metadata.common.ids import IncarnationId, PartitionId, TopicId, TopicIdPartition
from raft_metadata.common.topic_config import (
    FLUSH,
    MESSAGE_TIMESTAMP_TYPE,
    SEGMENT_BYTES,
    SEGMENT_MS,
    choice_value,
    effective_min_isr,
    integer_value,
)

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.log.log_manager import LogManager
    from broker.log.partition_log import PartitionLog
    from raft_metadata.image.metadata_image import MetadataImage, TopicImage

QUARANTINED_AT_ONCE = 50
"""Logs moved with one tick: more would hold the loop longer than a heartbeat."""

_log = logging.getLogger("broker.replication")


class _TopicViews(NamedTuple):
    """What a topic's configs mean here."""

    topic_id: TopicId
    replication_factor: int
    configs: Mapping[str, str]
    settings: Settings
    log_config: LogConfig


class LogKeeper:
    """Owned by the `ReplicaManager`, which calls it only with images of this incarnation's life."""

    def __init__(
        self, config: BrokerConfig, incarnation_id: IncarnationId, logs: LogManager
    ) -> None:
        self._config = config
        self._incarnation_id = incarnation_id
        self._logs = logs
        self._deleted: deque[TopicIdPartition] = deque()
        """Logs of deleted topics that are still to be moved into quarantine."""
        self._last_views: _TopicViews | None = None
        self._quarantined: dict[str, int] = {}
        """Deleted logs on disk, and since when this process has known of each."""

    def open(
        self, image: MetadataImage, topic: TopicImage, number: PartitionId
    ) -> PartitionLog | None:
        """The log of an assigned partition; None while it is offline (rule Q5)."""
        partition_id = TopicIdPartition(topic.topic_id, number)
        self._logs.identify(topic.name, number, topic.topic_id)
        if partition_id in self._logs.offline and not self._set_damaged_aside(image, partition_id):
            return None
        holder = self._logs.holder(topic.name, number)
        if holder is not None and holder != topic.topic_id:
            # A name has one topic id at a time: this one says that the other was deleted (M5).
            self._logs.delete([TopicIdPartition(holder, number)])
        config = self._views(image, topic).log_config
        return self._logs.get_or_create(topic.name, number, topic.topic_id, config)

    def _set_damaged_aside(self, image: MetadataImage, partition_id: TopicIdPartition) -> bool:
        """Start empty and fill from the leader, once the controller knows of the damage (Q5, R6).

        Never where nobody else leads: these bytes may be the last copy.
        """
        registration = image.partition(*partition_id)
        if partition_id not in self._recorded_damage(image) or registration is None:
            return False
        if not registration.has_leader or registration.leader == self._config.broker_id:
            return False
        self._logs.reset_damaged(*partition_id)
        return True

    def _recorded_damage(self, image: MetadataImage) -> tuple[TopicIdPartition, ...]:
        """What this incarnation reported and the controller has recorded (rules M4, R6)."""
        mine = image.brokers.get(self._config.broker_id)
        if mine is None or not mine.settled or mine.incarnation_id != self._incarnation_id:
            return ()
        return mine.unclean_partitions

    def forget_recorded_damage(self, image: MetadataImage) -> None:
        """Rule R6: a mark without its log is done with once it is recorded.

        A damaged log that is still here keeps its mark until it is set aside.
        """
        for partition_id in self._recorded_damage(image):
            if partition_id in self._logs.unclean and partition_id not in self._logs.offline:
                self._logs.forget_unclean(*partition_id)

    def settings(self, image: MetadataImage, topic: TopicImage) -> Settings:
        """What the topic's configs say about replication."""
        return self._views(image, topic).settings

    def _views(self, image: MetadataImage, topic: TopicImage) -> _TopicViews:
        """Made once for all partitions of a topic, which come one after the other."""
        configs = image.topic_configs(topic.topic_id)
        replication_factor = len(topic.partitions[0].replicas) if topic.partitions else 1
        last = self._last_views
        if last is None or (last.topic_id, last.replication_factor, last.configs) != (
            topic.topic_id,
            replication_factor,
            configs,
        ):
            last = self._last_views = self._made_views(topic.topic_id, replication_factor, configs)
        return last

    def _made_views(
        self, topic_id: TopicId, replication_factor: int, configs: Mapping[str, str]
    ) -> _TopicViews:
        defaults = self._config.defaults
        settings = Settings(
            min_isr=effective_min_isr(configs, defaults.min_insync_replicas, replication_factor),
            by_durable=choice_value(configs, FLUSH, defaults.flush) == "ack",
        )
        times = choice_value(configs, MESSAGE_TIMESTAMP_TYPE, defaults.message_timestamp_type)
        log_config = LogConfig(
            segment_bytes=integer_value(configs, SEGMENT_BYTES, defaults.segment_bytes),
            segment_ms=integer_value(configs, SEGMENT_MS, defaults.segment_ms),
            flush_before_ack=settings.by_durable,
            append_time=times == "append",
        )
        return _TopicViews(topic_id, replication_factor, configs, settings, log_config)

    def set_aside_strays(self, image: MetadataImage) -> None:
        """Topics that were deleted while this broker was down.

        The first image with the own registration is behind all that this disk has lived through:
        what it lacks was deleted (rule M5).
        """
        here = [TopicIdPartition(log.topic_id, log.partition) for log in self._logs.logs()]
        here += self._logs.offline
        self._deleted.extend(where for where in here if where.topic_id not in image.topics)

    def set_aside(self, partition_id: TopicIdPartition) -> None:
        """The topic of this log was deleted."""
        self._deleted.append(partition_id)

    def quarantine_some(self) -> None:
        """Move the next of what was set aside; with every tick."""
        if self._deleted:
            steps = min(len(self._deleted), QUARANTINED_AT_ONCE)
            self._logs.delete([self._deleted.popleft() for _ in range(steps)])

    def due_for_purge(self, image: MetadataImage, now_ms: int) -> list[str]:
        """Deleted logs whose grace period is over (rule M5).

        A set-aside log of a topic that still exists is no deletion: it stays for its operator.
        """
        grace_ms = self._config.limits.topic_delete_grace_ms
        names = self._logs.quarantined()
        self._quarantined = {name: self._quarantined.get(name, now_ms) for name in names}
        return [
            name
            for name, since_ms in self._quarantined.items()
            if now_ms - since_ms >= grace_ms and name.split(":")[0] not in image.topics
        ]

    async def purge(self, names: list[str]) -> None:
        """Unlink these, off the loop; what fails is tried again later."""
        try:
            await asyncio.to_thread(self._logs.purge, names)
            _log.info("deleted logs unlinked count=%d", len(names))
        except OSError as error:
            _log.warning("deleted logs not unlinked, tried again later error=%s", error)
