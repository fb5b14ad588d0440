"""Topics that the cluster keeps for itself: created on first use, written by their leaders only."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from raft_metadata.common.configs.table import (
    CLEANUP_POLICY,
    MIN_INSYNC_REPLICAS,
    RETENTION_BYTES,
    RETENTION_MS,
    SEGMENT_BYTES,
    SEGMENT_MS,
)
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import TopicName

OFFSETS_TOPIC = TopicName("__consumer_offsets")
TRANSACTIONS_TOPIC = TopicName("__transaction_state")
"""Decisions of transactions that commit no offsets of a group."""
STAGED_TOPIC = TopicName("__staged")
"""Rows of transactions that are not decided yet. Only its leaders move its log starts (rule S10).
"""
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, STAGED_TOPIC})
"""Hidden in v2 lists, ``is_internal`` in v3. Client requests can't create, write, grow or trim
them, and no group reads them."""
UNREADABLE_TOPICS = frozenset({TRANSACTIONS_TOPIC, STAGED_TOPIC})
"""Internal topics that no client reads: they hold rows that may never be committed."""

TRANSACTIONS_PARTITIONS: Final = 12
STAGED_PARTITIONS: Final = 12

INTERNAL_CONFIGS = frozenset({MIN_INSYNC_REPLICAS, SEGMENT_BYTES, SEGMENT_MS})
"""Configs that an operator may set on internal topics.

Every other topic config could drop what groups and transactions were promised to keep."""

INTERNAL_DEFAULTS: Mapping[TopicName, Mapping[str, str]] = MappingProxyType(
    {
        OFFSETS_TOPIC: {CLEANUP_POLICY: "compact", SEGMENT_BYTES: "104857600"},
        TRANSACTIONS_TOPIC: {CLEANUP_POLICY: "compact", SEGMENT_BYTES: "16777216"},
        STAGED_TOPIC: {
            CLEANUP_POLICY: "delete",
            RETENTION_MS: "-1",
            RETENTION_BYTES: "-1",
            SEGMENT_BYTES: "67108864",
        },
    }
)
"""Configs of internal topics unless an operator sets others.

Compaction keeps the newest record of each key (KIP-58). Segments are small, because an active one
is never compacted and is deleted only as a whole: Kafka's offsets.topic.segment.bytes, 16 MiB of
decisions, which a new leader loads, and 64 MiB of staged rows."""


def read_refusal(name: TopicName) -> KafkaError | None:
    """Return INVALID_TOPIC_EXCEPTION for a topic whose rows no client may read, else None."""
    if name not in UNREADABLE_TOPICS:
        return None
    text = f"{name} is the cluster's own: it holds rows that may never be committed"
    return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, text)
