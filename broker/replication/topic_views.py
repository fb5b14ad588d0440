"""What a topic's configs mean for its replicas on this broker, from one image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from broker.log.compaction import CompactionConfig
from broker.log.log_directory import LogConfig
from broker.log.retention import RetentionConfig
from broker.replication.partition_state import Settings
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
    from raft_metadata.common.configs.layers import ConfigLayers
    from raft_metadata.common.ids import TopicId
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
    """What of the topic is kept; None where its policy does not say delete."""
    if "delete" not in layers.word(CLEANUP_POLICY).split(","):
        return None
    return RetentionConfig(layers.number(RETENTION_MS), layers.number(RETENTION_BYTES))


def _compaction(layers: ConfigLayers) -> CompactionConfig | None:
    """How the topic is compacted; None where its policy does not say compact."""
    if "compact" not in layers.word(CLEANUP_POLICY).split(","):
        return None
    return CompactionConfig(
        min_dirty_ratio=layers.ratio(MIN_CLEANABLE_DIRTY_RATIO),
        delete_retention_ms=layers.number(DELETE_RETENTION_MS),
        min_lag_ms=layers.number(MIN_COMPACTION_LAG_MS),
        max_lag_ms=layers.number(MAX_COMPACTION_LAG_MS),
        segment_bytes=layers.number(SEGMENT_BYTES),
    )
