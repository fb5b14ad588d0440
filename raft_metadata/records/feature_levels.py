"""``metadata.version``: the records that the log may hold at each feature level (KIP-584).

A record of a newer level is refused by the deciding controller while the level is lower, and a
level that some node can't follow is refused when it is raised: a node that is too old never meets
an unknown record at run time.
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
"""The level of records about brokers, topics, partitions and topic configs."""
OPERATIONS_LEVEL = 2
"""The level of all other records: reassignment, last known leaders, added partitions, drains,
quotas, users, producer ids."""
BATCHED_ISR_LEVEL = 3
"""The level at which every controller accepts `AlterPartitions`; it adds no record."""
SEQUENCED_APPENDS_LEVEL = 3
"""The level at which every broker remembers the producers of its logs (invariants T1 to T4); it
adds no record."""
FAILED_REPLICAS_LEVEL = 4
"""The level at which every controller accepts reports of damaged logs (`DamagedReplica`), so that a
broker gets one repaired without a restart; it adds no record."""
COMPRESSED_BATCHES_LEVEL = 4
"""The level at which every broker reads compressed batches, so that ``compression.type`` may be
set to them; it adds no record."""
SUPPORTED_FEATURE_LEVEL = FAILED_REPLICAS_LEVEL
"""The highest level at which this version can decide and apply records."""

_FIRST = (
    FeatureLevelRecord,
    BrokerRegistrationChangeRecord,
    TopicRecord,
    RemoveTopicRecord,
    ConfigRecord,
)


def check_supported(level: int) -> None:
    """Raise `NewerVersionError` for a ``metadata.version`` above `SUPPORTED_FEATURE_LEVEL`."""
    if level > SUPPORTED_FEATURE_LEVEL:
        message = (
            f"the cluster's metadata.version is {level}, this version of quorumlog follows "
            f"{SUPPORTED_FEATURE_LEVEL} at most: start a newer version"
        )
        raise NewerVersionError(message)


def level_of(record: MetadataRecord) -> int:
    """Return the lowest feature level at which every node understands all of this record."""
    if isinstance(record, _FIRST):
        return FIRST_LEVEL
    if isinstance(record, RegisterBrokerRecord):
        return OPERATIONS_LEVEL if record.unclean_ranges else FIRST_LEVEL
    if isinstance(record, PartitionRecord | PartitionChangeRecord):
        return OPERATIONS_LEVEL if _says_more(record) else FIRST_LEVEL
    return OPERATIONS_LEVEL


def _says_more(record: PartitionRecord | PartitionChangeRecord) -> bool:
    """Return True if a node that ignores the newer fields would have another image."""
    if isinstance(record, PartitionChangeRecord):
        newer = bool(record.replicas or record.unclean)
    else:
        newer = record.unclean_epoch is not None
    return (
        newer
        or bool(record.adding or record.removing or record.last_known_elr)
        or record.last_known_leader != NO_LEADER
    )
