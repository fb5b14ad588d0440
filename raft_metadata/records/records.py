"""What has happened: the facts in the metadata log (decision D1: facts, not commands).

A record is only ever applied through ``raft_metadata.image.metadata_delta``. Every field is
explicit, so that a dump of the log reads as history and replay needs no policy, clock or chance.
An unknown field is ignored by older nodes; a new record type, or a field that means a change, needs
a higher feature level (``records.feature_levels``). Users, access rules and quotas stand in
``records.security``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

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
    TopicIdPartition,
    TopicName,
)
from raft_metadata.records.partition_set import PartitionRange
from raft_metadata.records.security import (
    AclRecord,
    ClientQuotaRecord,
    RemoveAclRecord,
    RemoveUserScramRecord,
    UserScramRecord,
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


class DrainScope(Enum):
    """What an operator wants a broker to be rid of. It stays so until it is set to NONE."""

    NONE = "none"
    LEADERS = "leaders"
    """Leads nothing that another in-sync replica can lead: maintenance."""
    REPLICAS = "replicas"
    """Holds nothing: its replicas move to other brokers, so that it can be unregistered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureLevelRecord:
    """``metadata.version``: which records may follow. The first record of every log is one."""

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
    """Partitions whose recovered end is below the proven durable end (rule R6). Written at feature
    level 1 only; always read."""
    unclean_ranges: tuple[PartitionRange, ...] = ()
    """The same from feature level 2 on. A range may span partitions that have no replica here."""
    feature_level_max: int = 1
    """The highest ``metadata.version`` this process can follow."""
    min_insync_replicas: int | None = None
    """What its config.toml says, by which it acknowledges where nothing else is set; None: an older
    version, which does not tell."""


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
    """An operator drains a broker, or ends that. Outlives the broker's registrations."""

    broker_id: BrokerId
    scope: DrainScope


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBrokerRecord:
    """A broker that holds no replica was taken out of the cluster for good."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """A topic was created; its partitions follow as PartitionRecords, perhaps in later batches."""

    name: TopicName
    topic_id: TopicId
    partitions_count: int
    """How many PartitionRecords belong to it: fewer in the image = still being created."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsCountRecord:
    """A topic was given more partitions; their PartitionRecords follow, perhaps much later."""

    topic_id: TopicId
    partitions_count: int


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
    adding: tuple[BrokerId, ...] = ()
    """As in `PartitionChangeRecord`, with the three below."""
    removing: tuple[BrokerId, ...] = ()
    last_known_elr: tuple[BrokerId, ...] = ()
    last_known_leader: BrokerId = NO_LEADER
    unclean_epoch: LeaderEpoch | None = None
    """The leader epoch of the last unclean election; None: there was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChangeRecord:
    """The state of a partition after a change; partition_epoch is one more than before.

    Every field says what is so from now on, also one that did not change.
    """

    topic_id: TopicId
    partition: PartitionId
    directories: tuple[DirectoryId, ...]
    isr: tuple[BrokerId, ...]
    elr: tuple[BrokerId, ...]
    leader: BrokerId
    leader_epoch: LeaderEpoch
    """One more than before if this record elects or deposes; else unchanged."""
    partition_epoch: PartitionEpoch
    replicas: tuple[BrokerId, ...] = ()
    """The replicas from now on, ``directories`` in their order; empty: those of before."""
    adding: tuple[BrokerId, ...] = ()
    """Replicas a reassignment under way (KIP-455) brings in; they are among ``replicas``."""
    removing: tuple[BrokerId, ...] = ()
    """Replicas it takes out once ``adding`` are in sync; they are among ``replicas`` till then."""
    last_known_elr: tuple[BrokerId, ...] = ()
    """While the ISR is below min ISR: who was in ISR or ELR since it fell below, and lost the proof
    of its end, but not its disk (KIP-966)."""
    last_known_leader: BrokerId = NO_LEADER
    """While nobody leads: who led last, if its disk is still the recorded one."""
    unclean: bool = False
    """The leader was elected although it may lack acknowledged records: followers may have to cut
    below their high watermark, once."""


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
