"""Records of a produce that are refused one by one, by what their topic's configuration says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.record.lines import are_bare, oversized
from broker.record.values import NULL
from raft_metadata.common.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.record.lines import ProduceRecord
    from broker.server.live_configs import LiveConfigs, TimestampLimits
    from raft_metadata.image.metadata_image import MetadataImage, TopicImage

_NULL_LENGTH = len(NULL)


def is_keyless(record: ProduceRecord) -> bool:
    """No key, or null: nothing that compaction could replace by a newer record."""
    key = record.key
    return len(key) == _NULL_LENGTH and bytes(key) == NULL


def refusals(
    records: Sequence[ProduceRecord],
    configs: LiveConfigs,
    image: MetadataImage,
    topic: TopicImage,
    now_ms: int,
) -> dict[int, KafkaError]:
    """By index, the records that are not taken; the others are stored.

    ``now_ms``: what a record without a timestamp would bear (rule R10: not one clock's word).
    """
    limit = configs.max_message_bytes(image, topic.topic_id)
    refused = {
        index: KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"the record is larger than {limit} bytes")
        for index in oversized(records, limit)
    }
    if configs.is_compacted(image, topic.topic_id):
        for index, record in enumerate(records):
            if index not in refused and is_keyless(record):
                refused[index] = KafkaError(
                    ErrorCode.INVALID_RECORD,
                    f"topic {topic.name} is compacted (cleanup.policy), so every record needs a "
                    "key: this one has none",
                )
    timestamps = configs.timestamp_limits(image, topic.topic_id)
    if timestamps is not None and not are_bare(records):
        for index, record in enumerate(records):
            why = _untimely(record.timestamp, timestamps, now_ms)
            if why and index not in refused:
                refused[index] = KafkaError(ErrorCode.INVALID_TIMESTAMP, why)
    return refused


def _untimely(timestamp: int | None, limits: TimestampLimits, now_ms: int) -> str:
    """Why the topic takes no record of this time; empty where it does."""
    if timestamp is None:
        return ""
    if now_ms - timestamp > limits.before_max_ms:
        limit = f"{limits.before_max_ms} ms before it (message.timestamp.before.max.ms)"
    elif timestamp - now_ms > limits.after_max_ms:
        limit = f"{limits.after_max_ms} ms after it (message.timestamp.after.max.ms)"
    else:
        return ""
    return f"timestamp {timestamp}: now is {now_ms}, the topic takes at most {limit}"
