"""Topics the cluster keeps for itself: made on first use, written by coordinators only."""

from __future__ import annotations

from raft_metadata.common.configs.table import MIN_INSYNC_REPLICAS, SEGMENT_BYTES, SEGMENT_MS
from raft_metadata.common.ids import TopicName

OFFSETS_TOPIC = TopicName("__consumer_offsets")
TRANSACTIONS_TOPIC = TopicName("__transaction_state")
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
"""Hidden in v2 lists, ``is_internal`` in v3; nobody makes, writes or grows them by hand."""

INTERNAL_CONFIGS = frozenset({MIN_INSYNC_REPLICAS, SEGMENT_BYTES, SEGMENT_MS})
"""What an operator may set on them. The others would let go of what groups were told is kept."""
