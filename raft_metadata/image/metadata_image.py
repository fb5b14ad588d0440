"""What the metadata log says at one offset. Immutable: handing one over is safe by construction.

Changed only through ``metadata_delta``: a batch of records is folded into a delta, and the delta
copies each dict it changed once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from raft_metadata.common.ids import (
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    DirectoryId,
    IncarnationId,
    LeaderEpoch,
    MetadataOffset,
    PartitionEpoch,
    PartitionId,
    TopicId,
    TopicName,
)
from raft_metadata.records.partition_set import NO_PARTITIONS, PartitionSet
from raft_metadata.records.records import BrokerState, DrainScope, ResourceType
from raft_metadata.records.security import AclRecord, QuotaEntity, UserScramRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistration:
    """A broker as its last registration and state change left it."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    incarnation_id: IncarnationId
    directory_id: DirectoryId
    http: str
    peer: str
    rack: str | None
    state: BrokerState
    settled: bool
    unclean_partitions: PartitionSet = NO_PARTITIONS
    """What it reported at registration (rule R6); made once a registration, shared after."""
    feature_level_max: int = 1
    min_insync_replicas: int | None = None
    drain: DrainScope = DrainScope.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRegistration:
    """Who holds a partition, who is in sync, and who leads it since when."""

    replicas: tuple[BrokerId, ...]
    directories: tuple[DirectoryId, ...]
    isr: tuple[BrokerId, ...]
    elr: tuple[BrokerId, ...]
    leader: BrokerId
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    leader_epoch_offset: MetadataOffset
    """Metadata offset of the record that set ``leader_epoch`` (rule R3)."""
    adding: tuple[BrokerId, ...] = ()
    """The four below as in `PartitionChangeRecord`."""
    removing: tuple[BrokerId, ...] = ()
    last_known_elr: tuple[BrokerId, ...] = ()
    last_known_leader: BrokerId = NO_LEADER
    unclean_epoch: LeaderEpoch = LeaderEpoch(-1)
    """The leader epoch of the last unclean election; -1: there was none."""

    @property
    def has_leader(self) -> bool:
        """Whether anybody leads."""
        return self.leader != NO_LEADER

    @property
    def is_reassigning(self) -> bool:
        """Whether replicas are on their way in or out (KIP-455)."""
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[BrokerId, ...]:
        """The replicas once a reassignment under way is through; without one, the replicas."""
        if not self.removing:
            return self.replicas
        return tuple(replica for replica in self.replicas if replica not in self.removing)

    @property
    def replication_factor(self) -> int:
        """How many replicas there are; during a reassignment the fewer of before and after."""
        return len(self.replicas) - max(len(self.adding), len(self.removing))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicImage:
    """One life of a topic name, with its partitions."""

    name: TopicName
    topic_id: TopicId
    partitions_count: int
    """What was asked for; ``len(partitions)`` is less while the creation is still under way."""
    partitions: tuple[PartitionRegistration, ...]
    """Index = partition id."""
    grown_from: int = 0
    """How many partitions it had before a growth under way; 0: none is, or it is being created."""

    @property
    def is_complete(self) -> bool:
        """Whether every partition has been recorded."""
        return len(self.partitions) == self.partitions_count

    @property
    def routed_count(self) -> int:
        """Over how many partitions records without an explicit one are spread, and groups.

        During a growth those of before, so that a key changes its partition once and not with every
        batch of new ones.
        """
        return self.grown_from or self.partitions_count

    @property
    def is_created(self) -> bool:
        """Whether its first partitions are all there: from then on it is written and read."""
        return self.grown_from > 0 or self.is_complete

    @property
    def replication_factor(self) -> int:
        """What further partitions are given: that of the first, once it is reassigned; else 1."""
        return len(self.partitions[0].target) if self.partitions else 1


ConfigKey = tuple[ResourceType, str]
Quotas = Mapping[tuple[QuotaEntity, ...], Mapping[str, float]]
UserKey = tuple[str, str]
"""A user's name and the mechanism of a credential."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataImage:
    """The metadata at ``next_offset``: every record below it is folded in."""

    next_offset: MetadataOffset = MetadataOffset(0)
    epoch: ControllerEpoch = ControllerEpoch(0)
    """Controller epoch of the newest record."""
    feature_level: int = 0
    brokers: Mapping[BrokerId, BrokerRegistration] = field(
        default_factory=lambda: MappingProxyType({})
    )
    topics: Mapping[TopicId, TopicImage] = field(default_factory=lambda: MappingProxyType({}))
    topic_ids: Mapping[TopicName, TopicId] = field(default_factory=lambda: MappingProxyType({}))
    configs: Mapping[ConfigKey, Mapping[str, str]] = field(
        default_factory=lambda: MappingProxyType({})
    )
    next_producer_id: int = 0
    """Every id below was handed out."""
    quotas: Quotas = field(default_factory=lambda: MappingProxyType({}))
    acls: Mapping[str, AclRecord] = field(default_factory=lambda: MappingProxyType({}))
    users: Mapping[UserKey, UserScramRecord] = field(default_factory=lambda: MappingProxyType({}))

    def topic(self, name: TopicName) -> TopicImage | None:
        """The topic of this name, or None."""
        topic_id = self.topic_ids.get(name)
        return None if topic_id is None else self.topics[topic_id]

    def partition(self, topic_id: TopicId, partition: PartitionId) -> PartitionRegistration | None:
        """The partition, or None if the topic or the index is unknown."""
        topic = self.topics.get(topic_id)
        if topic is None or not 0 <= partition < len(topic.partitions):
            return None
        return topic.partitions[partition]

    def topic_configs(self, topic_id: TopicId) -> Mapping[str, str]:
        """Configs set on the topic itself; defaults are not in here."""
        return self.configs.get((ResourceType.TOPIC, topic_id), MappingProxyType({}))

    def broker_configs(self, broker_id: BrokerId) -> Mapping[str, str]:
        """Configs set on this broker alone."""
        return self.configs.get((ResourceType.BROKER, str(broker_id)), MappingProxyType({}))

    def cluster_configs(self) -> Mapping[str, str]:
        """Configs set for every broker."""
        return self.configs.get((ResourceType.CLUSTER, ""), MappingProxyType({}))
