"""``metadata.version``: which records may stand in the log at which feature level (KIP-584).

A record of a newer level is refused where it is decided, while the level is lower, and a level
nobody could fold is refused when it is raised: never at run time on a node that is too old.
"""

from __future__ import annotations

from raft_metadata.common.errors import NewerVersionError
from raft_metadata.common.ids import NO_LEADER
from raft_metadata.records.records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)

FIRST_LEVEL = 1
"""Brokers, topics, partitions, topic configs."""
OPERATIONS_LEVEL = 2
"""Everything else: reassignment, last known leaders, growth, drains, quotas, users, producers."""
BATCHED_ISR_LEVEL = 3
"""No new record: every controller takes many ISR proposals in one command (`AlterPartitions`)."""
SEQUENCED_APPENDS_LEVEL = 3
"""No new record: every broker remembers the producers of its logs (invariants T1 to T4)."""
FAILED_REPLICAS_LEVEL = 4
"""No new record: every controller takes what heartbeats say of damaged logs (`FailedReplica`): a
broker need not end to have one of them filled again."""
COMPRESSED_BATCHES_LEVEL = 4
"""No new record: every broker reads compressed batches, so that ``compression.type`` may ask for
them."""
SUPPORTED_FEATURE_LEVEL = FAILED_REPLICAS_LEVEL
"""The highest level this version can decide and fold."""

_FIRST = (
    FeatureLevelRecord,
    BrokerRegistrationChangeRecord,
    TopicRecord,
    RemoveTopicRecord,
    ConfigRecord,
)


def check_supported(level: int) -> None:
    """`NewerVersionError` for a ``metadata.version`` whose records this version does not know."""
    if level > SUPPORTED_FEATURE_LEVEL:
        message = (
            f"the cluster's metadata.version is {level}, this version of quorumlog follows "
            f"{SUPPORTED_FEATURE_LEVEL} at most: start a newer version"
        )
        raise NewerVersionError(message)


def level_of(record: MetadataRecord) -> int:
    """The lowest feature level at which every node understands all of this record."""
    if isinstance(record, _FIRST):
        return FIRST_LEVEL
    if isinstance(record, RegisterBrokerRecord):
        return OPERATIONS_LEVEL if record.unclean_ranges else FIRST_LEVEL
    if isinstance(record, PartitionRecord | PartitionChangeRecord):
        return OPERATIONS_LEVEL if _says_more(record) else FIRST_LEVEL
    return OPERATIONS_LEVEL


def _says_more(record: PartitionRecord | PartitionChangeRecord) -> bool:
    """Whether a node that ignores the newer fields would have another image."""
    if isinstance(record, PartitionChangeRecord):
        newer = bool(record.replicas or record.unclean)
    else:
        newer = record.unclean_epoch is not None
    return (
        newer
        or bool(record.adding or record.removing or record.last_known_elr)
        or record.last_known_leader != NO_LEADER
    )
