"""The configs that requests ask for, as the newest image has them; replicas' own: `TopicViews`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from raft_metadata.common.configs.table import (
    AUTO_CREATE_TOPICS_ENABLE,
    CLEANUP_POLICY,
    MAX_MESSAGE_BYTES,
    MESSAGE_TIMESTAMP_AFTER_MAX_MS,
    MESSAGE_TIMESTAMP_BEFORE_MAX_MS,
    MESSAGE_TIMESTAMP_TYPE,
    NO_TIMESTAMP_LIMIT,
)
from raft_metadata.image.metadata_image import cluster_layers, topic_layers

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from raft_metadata.common.ids import TopicId
    from raft_metadata.image.metadata_image import ConfigKey, MetadataImage


class TimestampLimits(NamedTuple):
    """How far the timestamp that a producer gives a record may be from now (KIP-937)."""

    before_max_ms: int
    after_max_ms: int


class LiveConfigs:
    """Owned by whoever asks. Keeps what it worked out until any config changes: produces ask."""

    def __init__(self, config: BrokerConfig) -> None:
        self._broker_id = config.broker_id
        self._static = config.static()
        self._configs: Mapping[ConfigKey, Mapping[str, str]] = {}
        self._max_message_bytes: dict[TopicId, int] = {}
        self._compacted: dict[TopicId, bool] = {}
        self._timestamps: dict[TopicId, TimestampLimits | None] = {}

    def max_message_bytes(self, image: MetadataImage, topic_id: TopicId) -> int:
        """The largest record the topic takes."""
        self._look_at(image)
        limit = self._max_message_bytes.get(topic_id)
        if limit is None:
            layers = topic_layers(image, topic_id, self._static, self._broker_id)
            limit = self._max_message_bytes[topic_id] = layers.number(MAX_MESSAGE_BYTES)
        return limit

    def is_compacted(self, image: MetadataImage, topic_id: TopicId) -> bool:
        """Whether the topic keeps the newest record of each key: then every record has one."""
        self._look_at(image)
        compacted = self._compacted.get(topic_id)
        if compacted is None:
            layers = topic_layers(image, topic_id, self._static, self._broker_id)
            compacted = "compact" in layers.word(CLEANUP_POLICY)
            self._compacted[topic_id] = compacted
        return compacted

    def timestamp_limits(self, image: MetadataImage, topic_id: TopicId) -> TimestampLimits | None:
        """None: any timestamp is taken, or none is kept (``message.timestamp.type=append``)."""
        self._look_at(image)
        if topic_id not in self._timestamps:
            layers = topic_layers(image, topic_id, self._static, self._broker_id)
            limits = TimestampLimits(
                layers.number(MESSAGE_TIMESTAMP_BEFORE_MAX_MS),
                layers.number(MESSAGE_TIMESTAMP_AFTER_MAX_MS),
            )
            kept = layers.word(MESSAGE_TIMESTAMP_TYPE) == "create"
            limited = kept and min(limits) < NO_TIMESTAMP_LIMIT
            self._timestamps[topic_id] = limits if limited else None
        return self._timestamps[topic_id]

    def _look_at(self, image: MetadataImage) -> None:
        if self._configs is not image.configs:
            self._configs, self._max_message_bytes, self._compacted = image.configs, {}, {}
            self._timestamps = {}

    def auto_create(self, image: MetadataImage) -> bool:
        """Whether a produce to an unknown topic creates it."""
        return cluster_layers(image, self._static).flag(AUTO_CREATE_TOPICS_ENABLE)
