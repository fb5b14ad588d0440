"""Topics that the cluster keeps for itself: created on first use, written by coordinators only."""

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
"""Hidden in v2 lists, ``is_internal`` in v3; client requests can't create, write or grow them."""

INTERNAL_CONFIGS = frozenset({MIN_INSYNC_REPLICAS, SEGMENT_BYTES, SEGMENT_MS})
"""Configs that an operator may set on internal topics.

Every other topic config could drop committed offsets that groups were promised to keep."""

INTERNAL_DEFAULTS: Mapping[str, str] = MappingProxyType(
    {CLEANUP_POLICY: "compact", SEGMENT_BYTES: "104857600"}
)
"""Configs of internal topics unless an operator sets others.

Compaction keeps the newest record of each key (KIP-58). The segment size is Kafka's
offsets.topic.segment.bytes: the active segment is never compacted, so it is kept small."""
