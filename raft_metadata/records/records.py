"""The facts in the metadata log: each record states a change that was decided (decision D1).

Deciders of the active controller create records; ``image.metadata_delta`` is the only code that
applies them. Every field is explicit, so that a dump of the log reads as history and replay needs
no policy, clock or randomness. An older node ignores an unknown field; a new record type, or a
field that means a change, needs a higher feature level (``records.feature_levels``).

Records about users, access rules and quotas are stored and replicated, but not enforced yet. Their
names and values are Kafka's (``kafka-acls``, KIP-546, KIP-554) in lower case; Kafka's REST API has
them in upper case, and the HTTP layer translates. Bytes are base64 text.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from raft_metadata.common.ids import (
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    DirectoryId,
    IncarnationId,
    LeaderEpoch,
    MetadataOffset,
    PartitionEpoch,
    PartitionId,
    TopicId,
    TopicName,
)
from raft_metadata.records.partition_set import PartitionRange


class QuotaEntityType(Enum):
    """The kind of entity that a quota can be set for (KIP-546)."""

    USER = "user"
    CLIENT_ID = "client-id"
    IP = "ip"


class QuotaEntity(NamedTuple):
    """A part of the entity that a quota is for; ``name`` None: the default of that type."""

    type: QuotaEntityType
    name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuotaRecord:
    """A quota was set, or removed when ``value`` is None."""

    entity: tuple[QuotaEntity, ...]
    """Sorted by type, each type at most once."""
    key: str
    """``producer_byte_rate``, ``consumer_byte_rate``, ``request_percentage``, …"""
    value: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AclRecord:
    """An access rule was added."""

    acl_id: str
    """22 characters by which `RemoveAclRecord` refers to this rule."""
    resource_type: str
    resource_name: str
    pattern_type: str
    principal: str
    host: str
    operation: str
    permission: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveAclRecord:
    """An access rule was removed."""

    acl_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UserScramRecord:
    """A user's salted password was set (KIP-554); the password itself is never stored."""

    name: str
    mechanism: str
    salt: str
    stored_key: str
    server_key: str
    iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveUserScramRecord:
    """A user's password for this mechanism was removed."""

    name: str
    mechanism: str


class BrokerState(Enum):
    """State of a registration. Only an UNFENCED broker may be elected or join an ISR (rule M4)."""

    STARTING = "starting"
    """Registered: it keeps its places in ISR and ELR and leads nothing."""
    UNFENCED = "unfenced"
    CONTROLLED_SHUTDOWN = "controlled_shutdown"
    """Shutting down: it gives up leaderships and ISR places and is not elected (rule R11)."""
    FENCED = "fenced"
    """Its session expired: it leaves every ISR."""


class DrainScope(Enum):
    """The load that an operator wants removed from a broker; in force until it is set to NONE."""

    NONE = "none"
    LEADERS = "leaders"
    """For maintenance: the broker leads nothing that another in-sync replica can lead."""
    REPLICAS = "replicas"
    """Before unregistration: all its replicas move to other brokers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLevelRecord:
    """The ``metadata.version`` of the records that may follow; the first record of every log."""

    level: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBrokerRecord:
    """A broker process registered. Its state is STARTING, and its registration is not settled."""

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
    unclean_ranges: tuple[PartitionRange, ...] = ()
    """Partitions whose recovered end is below the proven durable end (rule R6). A range may include
    partitions without a replica on this broker."""
    feature_level_max: int
    """The highest ``metadata.version`` this process can follow."""
    min_insync_replicas: int
    """The value in its config.toml, by which it acknowledges where no other is set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistrationChangeRecord:
    """A broker changed state, or the consequences of its registration are all recorded."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    state: BrokerState
    settled: bool
    """True once the consequences of the registration are recorded (rule M4)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerDrainRecord:
    """An operator drains a broker, or ends its drain. Outlives the broker's registrations."""

    broker_id: BrokerId
    scope: DrainScope


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBrokerRecord:
    """A broker that holds no replica was removed from the cluster."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """A topic was created; its partitions follow as PartitionRecords, perhaps in later batches."""

    name: TopicName
    topic_id: TopicId
    partitions_count: int
    """The number of its PartitionRecords; while the image has fewer, it is still being created."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsCountRecord:
    """A topic gets more partitions; their PartitionRecords follow, perhaps in later batches."""

    topic_id: TopicId
    partitions_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveTopicRecord:
    """A topic was deleted, with its partitions and configs."""

    topic_id: TopicId


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRecord:
    """A partition was created; in a snapshot, the present state of a partition."""

    topic_id: TopicId
    partition: PartitionId
    replicas: tuple[BrokerId, ...]
    """Replicas in order of preference; the first is the preferred leader."""
    directories: tuple[DirectoryId, ...]
    """The recorded directory id of each replica, same order; "" = not yet known (rule R6)."""
    isr: tuple[BrokerId, ...]
    elr: tuple[BrokerId, ...]
    leader: BrokerId
    """`NO_LEADER` while the partition has no leader."""
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    leader_epoch_offset: MetadataOffset | None = None
    """Metadata offset that set the leader epoch (rule R3). None: this record's own offset."""
    adding: tuple[BrokerId, ...] = ()
    """See `PartitionChangeRecord`, for the three below too."""
    removing: tuple[BrokerId, ...] = ()
    last_known_elr: tuple[BrokerId, ...] = ()
    last_known_leader: BrokerId = NO_LEADER
    unclean_epoch: LeaderEpoch = LeaderEpoch(-1)
    """The leader epoch of the last unclean election; -1: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChangeRecord:
    """The state of a partition after a change; partition_epoch is one more than before.

    Every field gives the value from now on, also where it did not change.
    """

    topic_id: TopicId
    partition: PartitionId
    directories: tuple[DirectoryId, ...]
    isr: tuple[BrokerId, ...]
    elr: tuple[BrokerId, ...]
    leader: BrokerId
    leader_epoch: LeaderEpoch
    """One more than before if this record elects or deposes a leader; else unchanged."""
    partition_epoch: PartitionEpoch
    replicas: tuple[BrokerId, ...] = ()
    """The replicas from now on, with ``directories`` in the same order; empty: unchanged."""
    adding: tuple[BrokerId, ...] = ()
    """Replicas that a reassignment in progress (KIP-455) adds; they are among ``replicas``."""
    removing: tuple[BrokerId, ...] = ()
    """Replicas that it removes once ``adding`` are in sync; until then among ``replicas``."""
    last_known_elr: tuple[BrokerId, ...] = ()
    """While the ISR is below min ISR: replicas that were in ISR or ELR since it fell below, and
    lost the proof of their end, but not their disk (KIP-966)."""
    last_known_leader: BrokerId = NO_LEADER
    """While there is no leader: the last one, if its disk is still the recorded one."""
    unclean: bool = False
    """True if the elected leader may lack acknowledged records: followers may have to truncate
    below their high watermark, once."""


class ResourceType(Enum):
    """The kind of resource that a config belongs to."""

    TOPIC = "topic"
    BROKER = "broker"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRecord:
    """A config was set, or reset to its default when ``value`` is None."""

    resource_type: ResourceType
    resource_name: str
    """The topic id (so that configs are deleted with their topic), the broker id, or ""."""
    name: str
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdsRecord:
    """Producer ids below ``next_producer_id`` were handed out, the last block to this broker."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    next_producer_id: int


MetadataRecord = (
    FeatureLevelRecord
    | RegisterBrokerRecord
    | BrokerRegistrationChangeRecord
    | BrokerDrainRecord
    | UnregisterBrokerRecord
    | TopicRecord
    | PartitionsCountRecord
    | RemoveTopicRecord
    | PartitionRecord
    | PartitionChangeRecord
    | ConfigRecord
    | ProducerIdsRecord
    | ClientQuotaRecord
    | AclRecord
    | RemoveAclRecord
    | UserScramRecord
    | RemoveUserScramRecord
)
