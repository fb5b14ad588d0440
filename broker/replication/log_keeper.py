"""Opens, sets aside and purges the logs of a broker's replicas, as the image allows."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from broker.log.log_directory import LogConfig
from broker.replication.partition import Settings
from raft_metadata.common.ids import IncarnationId, PartitionId, TopicIdPartition
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

_log = logging.getLogger("broker.replication")


class LogKeeper:
    """Owned by the `ReplicaManager`, which calls it only with images of this incarnation's life."""

    def __init__(
        self, config: BrokerConfig, incarnation_id: IncarnationId, logs: LogManager
    ) -> None:
        self._config = config
        self._incarnation_id = incarnation_id
        self._logs = logs
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
        config = self._log_config(image, topic, self.settings(image, topic))
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

    def _log_config(self, image: MetadataImage, topic: TopicImage, settings: Settings) -> LogConfig:
        configs, defaults = image.topic_configs(topic.topic_id), self._config.defaults
        times = choice_value(configs, MESSAGE_TIMESTAMP_TYPE, defaults.message_timestamp_type)
        return LogConfig(
            segment_bytes=integer_value(configs, SEGMENT_BYTES, defaults.segment_bytes),
            segment_ms=integer_value(configs, SEGMENT_MS, defaults.segment_ms),
            flush_before_ack=settings.by_durable,
            append_time=times == "append",
        )

    def settings(self, image: MetadataImage, topic: TopicImage) -> Settings:
        """What the topic's configs say about replication."""
        configs, defaults = image.topic_configs(topic.topic_id), self._config.defaults
        replication_factor = len(topic.partitions[0].replicas) if topic.partitions else 1
        return Settings(
            min_isr=effective_min_isr(configs, defaults.min_insync_replicas, replication_factor),
            by_durable=choice_value(configs, FLUSH, defaults.flush) == "ack",
        )

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
