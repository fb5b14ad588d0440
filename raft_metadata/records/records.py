"""What has happened: the facts in the metadata log (decision D1: facts, not commands).

A record is only ever applied through ``raft_metadata.image.metadata_delta``. Every field is
explicit, so that a dump of the log reads as history and replay needs no policy, clock or chance.
An unknown field is ignored by older nodes; a new record type needs a higher feature level.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from raft_metadata.common.ids import (
    BrokerEpoch,
    BrokerId,
    DirectoryId,
    IncarnationId,
    LeaderEpoch,
    MetadataOffset,
    PartitionEpoch,
    PartitionId,
    TopicId,
    TopicIdPartition,
    TopicName,
)


class BrokerState(Enum):
    """Rule M4. Only an UNFENCED broker is electable or able to join an ISR."""

    STARTING = "starting"
    """Registered; keeps its ISR and ELR places, leads nothing."""
    UNFENCED = "unfenced"
    CONTROLLED_SHUTDOWN = "controlled_shutdown"
    """Asked to leave: gives up leaderships and ISR places, is elected nowhere (rule R11)."""
    FENCED = "fenced"
    """Its session expired: leaves every ISR."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLevelRecord:
    """The first record of every log: which record types may follow."""

    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerRecord:
    """A broker process announced itself. Its state is STARTING and it is not settled."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    """Equal to this record's own metadata offset."""
    incarnation_id: IncarnationId
    directory_id: DirectoryId
    http: str
    """Advertised ``host:port`` of the public listener."""
    peer: str
    """Advertised ``host:port`` of the peer listener."""
    rack: str | None = None
    unclean_partitions: tuple[TopicIdPartition, ...] = ()
    """Partitions whose recovered end is below the proven durable end (rule R6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistrationChangeRecord:
    """A broker changed state, or the consequences of its registration are all recorded."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    state: BrokerState
    settled: bool
    """True once the consequences of the registration are recorded (rule M4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """A topic was created; its partitions follow as PartitionRecords, perhaps in later batches."""

    name: TopicName
    topic_id: TopicId
    partitions_count: int
    """How many PartitionRecords belong to it: fewer in the image = still being created."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTopicRecord:
    """A topic was deleted, with its partitions and configs."""

    topic_id: TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRecord:
    """A partition was created, or (in a snapshot) stands like this."""

    topic_id: TopicId
    partition: PartitionId
    replicas: tuple[BrokerId, ...]
    """In order of preference: the first is the preferred leader."""
    directories: tuple[DirectoryId, ...]
    """The recorded directory id of each replica, same order; "" = not yet known (rule R6)."""
    isr: tuple[BrokerId, ...]
    elr: tuple[BrokerId, ...]
    leader: BrokerId
    """`NO_LEADER` when nobody leads."""
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    leader_epoch_offset: MetadataOffset | None = None
    """Metadata offset that set the leader epoch (rule R3). None: this record's own offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChangeRecord:
    """The state of a partition after a change; partition_epoch is one more than before."""

    topic_id: TopicId
    partition: PartitionId
    directories: tuple[DirectoryId, ...]
    isr: tuple[BrokerId, ...]
    elr: tuple[BrokerId, ...]
    leader: BrokerId
    leader_epoch: LeaderEpoch
    """One more than before if this record elects or deposes; else unchanged."""
    partition_epoch: PartitionEpoch


class ResourceType(Enum):
    """What a config belongs to."""

    TOPIC = "topic"
    BROKER = "broker"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRecord:
    """A config was set, or reset to its default when ``value`` is None."""

    resource_type: ResourceType
    resource_name: str
    """Topic id for topics (so that a deleted topic's configs go with it), broker id, or ""."""
    name: str
    value: str | None


MetadataRecord = (
    FeatureLevelRecord
    | RegisterBrokerRecord
    | BrokerRegistrationChangeRecord
    | TopicRecord
    | RemoveTopicRecord
    | PartitionRecord
    | PartitionChangeRecord
    | ConfigRecord
)
