"""The metadata at one offset of the log. Immutable, so it can be passed to any thread or task.

Only ``metadata_delta`` makes new images: it folds a batch of records into a delta, and the delta
copies each changed dict once. Brokers and controllers read topics, partitions, brokers and configs
from it.

`topic_layers`, `broker_layers` and `cluster_layers` collect the configs of a resource for
``common.configs.layers``. Their ``static`` holds the values of the calling node's own config.toml,
by config name: a broker passes ``BrokerConfig.static``, a controller ``TopicDefaults.static``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from raft_metadata.common.configs.layers import ConfigLayers
from raft_metadata.common.errors import ErrorCode, KafkaError
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
from raft_metadata.common.internal_topics import INTERNAL_DEFAULTS, INTERNAL_TOPICS
from raft_metadata.records.partition_set import NO_PARTITIONS, PartitionSet
from raft_metadata.records.records import (
    AclRecord,
    BrokerState,
    DrainScope,
    QuotaEntity,
    ResourceType,
    UserScramRecord,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistration:
    """A broker after its last registration, state change and drain."""

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
    """Unclean partitions reported at registration (rule R6); one object, shared by later images."""
    feature_level_max: int
    min_insync_replicas: int
    drain: DrainScope = DrainScope.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRegistration:
    """The replicas of a partition, its in-sync replicas, its leader and their epochs."""

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
    """See `PartitionChangeRecord`, for the three below too."""
    removing: tuple[BrokerId, ...] = ()
    last_known_elr: tuple[BrokerId, ...] = ()
    last_known_leader: BrokerId = NO_LEADER
    unclean_epoch: LeaderEpoch = LeaderEpoch(-1)
    """The leader epoch of the last unclean election; -1: never."""

    @property
    def has_leader(self) -> bool:
        """True if the partition has a leader."""
        return self.leader != NO_LEADER

    @property
    def is_reassigning(self) -> bool:
        """True while a reassignment adds or removes replicas (KIP-455)."""
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[BrokerId, ...]:
        """The replicas after the reassignment in progress; without one, the replicas."""
        if not self.removing:
            return self.replicas
        return tuple(replica for replica in self.replicas if replica not in self.removing)

    @property
    def replication_factor(self) -> int:
        """The number of replicas; during a reassignment the smaller one of before and after."""
        return len(self.replicas) - max(len(self.adding), len(self.removing))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicImage:
    """A topic from its creation to its deletion, with its partitions."""

    name: TopicName
    topic_id: TopicId
    partitions_count: int
    """The requested number; ``len(partitions)`` is less while partitions are being created."""
    partitions: tuple[PartitionRegistration, ...]
    """The partitions; the index is the partition id."""
    grown_from: int = 0
    """Partitions before an increase in progress; 0: no increase, or the first creation."""

    @property
    def is_complete(self) -> bool:
        """True if every partition has been recorded."""
        return len(self.partitions) == self.partitions_count

    @property
    def routed_count(self) -> int:
        """The number of partitions over which keyless and keyed records, and groups, are spread.

        During an increase the number of before, so that a key changes its partition once and not
        with every batch of new partitions.
        """
        return self.grown_from or self.partitions_count

    @property
    def is_created(self) -> bool:
        """True once the topic's first partitions all exist, so that it can be written and read."""
        return self.grown_from > 0 or self.is_complete

    @property
    def replication_factor(self) -> int:
        """The replication factor of further partitions.

        That of partition 0 once its reassignment is complete; 1 without partitions.
        """
        return len(self.partitions[0].target) if self.partitions else 1


ConfigKey = tuple[ResourceType, str]
Quotas = Mapping[tuple[QuotaEntity, ...], Mapping[str, float]]
UserKey = tuple[str, str]
"""The name of a user and the mechanism of its credential."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataImage:
    """The metadata at ``next_offset``: every record below that offset is folded in."""

    next_offset: MetadataOffset = MetadataOffset(0)
    epoch: ControllerEpoch = ControllerEpoch(0)
    """The controller epoch of the newest record."""
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
    """Every producer id below this one was handed out."""
    quotas: Quotas = field(default_factory=lambda: MappingProxyType({}))
    acls: Mapping[str, AclRecord] = field(default_factory=lambda: MappingProxyType({}))
    users: Mapping[UserKey, UserScramRecord] = field(default_factory=lambda: MappingProxyType({}))

    def topic(self, name: TopicName) -> TopicImage | None:
        """Return the topic of this name, or None."""
        topic_id = self.topic_ids.get(name)
        return None if topic_id is None else self.topics[topic_id]

    def partition(self, topic_id: TopicId, partition: PartitionId) -> PartitionRegistration | None:
        """Return the partition, or None if the topic or the index is unknown."""
        topic = self.topics.get(topic_id)
        if topic is None or not 0 <= partition < len(topic.partitions):
            return None
        return topic.partitions[partition]

    def offset_after(self, count: int) -> MetadataOffset:
        """Return the next offset once ``count`` more records are applied."""
        return MetadataOffset(self.next_offset + count)

    def topic_configs(self, topic_id: TopicId) -> Mapping[str, str]:
        """Return the configs set on the topic itself, without defaults."""
        return self.configs.get((ResourceType.TOPIC, topic_id), MappingProxyType({}))

    def broker_configs(self, broker_id: BrokerId) -> Mapping[str, str]:
        """Return the configs set on this broker alone."""
        return self.configs.get((ResourceType.BROKER, str(broker_id)), MappingProxyType({}))

    def cluster_configs(self) -> Mapping[str, str]:
        """Return the configs set for every broker."""
        return self.configs.get((ResourceType.CLUSTER, ""), MappingProxyType({}))


def find_broker(image: MetadataImage, broker_id: BrokerId) -> BrokerRegistration:
    """Return the registration of a broker; raise BROKER_ID_NOT_REGISTERED without one."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        message = f"broker {broker_id} is not registered"
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, message)
    return broker


def find_topic(image: MetadataImage, name: TopicName) -> TopicImage:
    """Return the topic of this name; raise UNKNOWN_TOPIC_OR_PARTITION without one."""
    topic = image.topic(name)
    if topic is None:
        message = f"topic {name[:260]} does not exist"
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
    return topic


def topic_layers(
    image: MetadataImage,
    topic_id: TopicId,
    static: Mapping[str, str],
    broker_id: BrokerId | None = None,
) -> ConfigLayers:
    """Return the layers of a topic, on this broker if one is given, else without broker configs."""
    broker = {} if broker_id is None else image.broker_configs(broker_id)
    topic = image.topic_configs(topic_id)
    known = image.topics.get(topic_id)
    if known is not None and known.name in INTERNAL_TOPICS:
        topic = {**INTERNAL_DEFAULTS[known.name], **topic}
    return ConfigLayers(
        topic=topic,
        broker=broker,
        cluster=image.cluster_configs(),
        static=static,
    )


def broker_layers(
    image: MetadataImage, broker_id: BrokerId, static: Mapping[str, str]
) -> ConfigLayers:
    """Return the layers of a broker."""
    return ConfigLayers(
        broker=image.broker_configs(broker_id), cluster=image.cluster_configs(), static=static
    )


def cluster_layers(image: MetadataImage, static: Mapping[str, str]) -> ConfigLayers:
    """Return the layers of the cluster."""
    return ConfigLayers(cluster=image.cluster_configs(), static=static)
