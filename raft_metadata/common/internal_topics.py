"""Topics the cluster keeps for itself: made on first use, written by coordinators only."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from raft_metadata.common.configs.table import (
    CLEANUP_POLICY,
    MIN_INSYNC_REPLICAS,
    SEGMENT_BYTES,
    SEGMENT_MS,
)
from raft_metadata.common.ids import TopicName

OFFSETS_TOPIC = TopicName("__consumer_offsets")
TRANSACTIONS_TOPIC = TopicName("__transaction_state")
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
"""Hidden in v2 lists, ``is_internal`` in v3; nobody makes, writes or grows them by hand."""

INTERNAL_CONFIGS = frozenset({MIN_INSYNC_REPLICAS, SEGMENT_BYTES, SEGMENT_MS})
"""What an operator may set on them. The others would let go of what groups were told is kept."""

INTERNAL_DEFAULTS: Mapping[str, str] = MappingProxyType(
    {CLEANUP_POLICY: "compact", SEGMENT_BYTES: "104857600"}
)
"""What they say themselves while no operator does: the newest fact of each key is kept (KIP-58).
Segments are Kafka's offsets.topic.segment.bytes: what is still written to is never compacted."""
