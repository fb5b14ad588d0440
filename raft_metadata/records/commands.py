"""Commands to the controllers and their answers.

They cross the network as JSON (``http_api.peer``). Every command of a broker carries the epochs on
which its sender decided, so that a late one changes nothing. A failed command is a `KafkaError`:
NOT_CONTROLLER means that it was surely not appended, OUTCOME_UNKNOWN that it may still be (rule
M3).

A `Command` names the type of its answer as its type argument and has a row in `COMMANDS`, by which
both ends of the controllers' plane route it. One method, ``execute``, takes any of them on every
hop: the broker's channel (``http_api.peer.controller_channel``), the controller's listener
(``controller_server``) and `ActiveController`; `Controller.decide` decides it. Heartbeats and
fetches of metadata are no commands: any controller answers them.

A heartbeat with more damaged replicas than one may list is sent in pages (`next_page`). A page
lists all damaged replicas in a range of partitions, so its receiver replaces everything it knew
about that range: no replica is dropped while others are listed, and each is listed in turn. A
broker sends every controller its own sequence of pages and repeats a page that was not answered.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Generic, TypeVar

from raft_metadata.common.ids import (
    NO_LEADER,
    UNKNOWN_BROKER_EPOCH,
    BrokerEpoch,
    BrokerId,
    ClusterId,
    ControllerEpoch,
    DirectoryId,
    IncarnationId,
    LeaderEpoch,
    MetadataOffset,
    NodeId,
    PartitionEpoch,
    PartitionId,
    TopicId,
    TopicIdPartition,
    TopicName,
)
from raft_metadata.records.partition_set import PartitionRange
from raft_metadata.records.records import (
    AclRecord,
    BrokerState,
    DrainScope,
    MetadataRecord,
    QuotaEntity,
    ResourceType,
    UserScramRecord,
)

A = TypeVar("A")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(Generic[A]):
    """A command to the active controller; ``A`` is the type of its answer."""


# ---- registration and heartbeats


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker(Command["BrokerRegistered"]):
    """The registration of a broker process. A repeat with the same incarnation keeps its epoch."""

    broker_id: BrokerId
    cluster_id: ClusterId
    incarnation_id: IncarnationId
    directory_id: DirectoryId
    http: str
    peer: str
    rack: str | None = None
    unclean_ranges: tuple[PartitionRange, ...] = ()
    """The unclean partitions, as in `RegisterBrokerRecord`."""
    last_broker_epoch: BrokerEpoch = UNKNOWN_BROKER_EPOCH
    """Compare-and-set: the broker epoch of this id in the requester's image; -1 without one. A
    registration that was overtaken by another is refused (rule R6)."""
    feature_level_max: int
    """The highest ``metadata.version`` this process can follow."""
    min_insync_replicas: int
    """The min ISR of the broker's config.toml."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistered:
    broker_epoch: BrokerEpoch


DAMAGED_REPLICAS_MAX = 100
"""Damaged replicas in one heartbeat (13 KB); more are sent in pages (`damage_pages`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedReplica:
    """A replica whose log is damaged and so must not count as a copy (rules Q5, R6)."""

    topic_id: TopicId
    partition: PartitionId
    leader_epoch: LeaderEpoch
    """The newest leader epoch in which this log took part; -1: none since the process started."""
    can_lead: bool
    """True if the readable part of the log can be served when no other replica can lead."""
    partition_epoch: PartitionEpoch = PartitionEpoch(-1)
    """The partition epoch in the broker's image when it found the damage; -1: partition unknown. A
    report of another partition epoch removes no replica from ISR and ELR."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHeartbeat:
    """The periodic report of a broker, sent to *every* controller (rule M7).

    Standby controllers keep the session ages, the active controller decides.
    """

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    metadata_offset: MetadataOffset
    """The next metadata offset that this broker will apply: it has applied all below."""
    want_shutdown: bool = False
    failed: tuple[DamagedReplica, ...] = ()
    """Damaged replicas, at most `DAMAGED_REPLICAS_MAX`, repeated until each is repaired."""
    failed_after: TopicIdPartition | None = None
    """``failed`` lists all damaged replicas after this partition (None: from the first one on) …"""
    failed_up_to: TopicIdPartition | None = None
    """… up to and including this one; None: to the last."""
    number: int = 0
    """Sequence number of this process's reports; a report overtaken by a newer one is ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswer:
    is_active: bool
    """False from a standby: it recorded the contact, and the other fields mean nothing."""
    state: BrokerState
    should_shut_down: bool
    """True if controlled shutdown is granted: the broker leads nothing, and all live brokers have
    applied that (rule R11)."""
    committed_offset: MetadataOffset
    """The next metadata offset of this controller; a broker that lags changes its source (rule
    M6)."""
    shutdown_blocked_by: str = ""
    """The reason why a requested shutdown is not granted yet; empty otherwise."""
    majority_answers: bool = True
    """False from an active controller without recent contact to a majority: another one may have
    been elected and have fenced the broker (rule G3)."""
    wall_ms: int = 0
    """This controller's wall clock, with which brokers compare theirs (rule R10); filled in by
    `ActiveController`."""
    controller_id: NodeId = NodeId(0)
    """The answering controller; filled in by the receiver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrMember:
    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    """The epoch with which the leader saw this replica catch up; a newer registration makes the
    ISR change fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartition:
    """An ISR change that a leader proposes, one attempt of `AlterPartitions`.

    It is never sent again (rule M3).
    """

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    topic_id: TopicId
    partition: PartitionId
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    new_isr: tuple[IsrMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAltered:
    """The partition after an accepted ISR change.

    The partition epoch grows by one even if the ISR is the same (rule M3).
    """

    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    isr: tuple[BrokerId, ...]


MAX_ISR_CHANGES_PER_COMMAND = 500
"""ISR changes in one `AlterPartitions`: about 170 KB of JSON, and 25 ms of a controller's loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitions(Command["PartitionsAltered"]):
    """ISR changes of one leader for many distinct partitions, each judged alone (rule M3)."""

    attempts: tuple[AlterPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitionAnswer:
    """The result of one ISR change: ``altered``, or a refusal, which surely was not appended."""

    altered: PartitionAltered | None = None
    error: int = 0
    """The Kafka error number of a refusal."""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsAltered:
    """The answers to `AlterPartitions`, one for each ISR change and in their order."""

    answers: tuple[AlterPartitionAnswer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic(Command["TopicCreated"]):
    name: TopicName
    topic_id: TopicId
    """Proposed by the requester, so that a repeat is recognized and answered alike (rule F1)."""
    partitions_count: int | None = None
    """None: the cluster's ``num_partitions``."""
    replication_factor: int | None = None
    """None: the cluster's ``default_replication_factor``."""
    replicas_assignments: dict[int, tuple[BrokerId, ...]] | None = None
    configs: dict[str, str | None] = field(default_factory=dict)
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCreated:
    topic_id: TopicId
    partitions_count: int
    replication_factor: int
    next_offset: MetadataOffset
    """The topic is visible in images that have reached this offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopic(Command["TopicDeleted"]):
    name: TopicName


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeleted:
    topic_id: TopicId
    next_offset: MetadataOffset


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchMetadata:
    """A long poll for applied records, answered by any controller (decision D3, rules M5, M6)."""

    cluster_id: ClusterId
    broker_id: BrokerId
    from_offset: MetadataOffset
    """The first offset wanted."""
    max_wait_ms: int = 1000
    inside_batch: bool = False
    """True for a reader of the log that keeps no image: ``from_offset`` may lie within a batch and
    the whole batch is returned. No snapshot is sent: an answer without batches although
    ``from_offset`` is below ``end_offset`` means that ``from_offset`` is too old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataBatch:
    """Records ``base_offset .. base_offset + len(records) - 1``, decided in ``epoch``."""

    base_offset: MetadataOffset
    epoch: ControllerEpoch
    records: tuple[MetadataRecord, ...]
    time_ms: int = 0
    """The deciding controller's wall clock, ms since 1970; for people, never used to decide."""
    encoded: bytes = field(default=b"", compare=False, repr=False)
    """The JSON that it was decoded from, so that it is encoded once for all brokers; empty: not
    kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataSnapshot:
    """A shorter log with the same end.

    Its ``records``, applied to an empty image, give the whole image.
    """

    next_offset: MetadataOffset
    epoch: ControllerEpoch
    records: tuple[MetadataRecord, ...]
    encoded: bytes = field(default=b"", compare=False, repr=False)
    """The JSON that it was decoded from; empty: not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchMetadataAnswer:
    """Batches that follow ``from_offset`` without a gap, or a snapshot if that is too old."""

    leader_id: NodeId | None
    epoch: ControllerEpoch
    leader_contact_age_ms: int
    end_offset: MetadataOffset
    batches: tuple[MetadataBatch, ...] = ()
    snapshot: MetadataSnapshot | None = None


def replica_partition(failed: DamagedReplica) -> TopicIdPartition:
    """Return the partition of a damaged replica; pages are sorted by it."""
    return TopicIdPartition(failed.topic_id, failed.partition)


def next_page(beat: BrokerHeartbeat, after: TopicIdPartition | None) -> BrokerHeartbeat:
    """Return the heartbeat with the next page of the damaged replicas that ``beat`` lists.

    ``beat.failed`` holds all of them, sorted by `replica_partition`. ``after`` is
    `BrokerHeartbeat.failed_up_to` of the page before, or None to begin anew.
    """
    if after is None and len(beat.failed) <= DAMAGED_REPLICAS_MAX:
        return beat
    start = 0 if after is None else bisect_right(beat.failed, after, key=replica_partition)
    page = beat.failed[start : start + DAMAGED_REPLICAS_MAX]
    is_last = start + DAMAGED_REPLICAS_MAX >= len(beat.failed)
    up_to = None if is_last else replica_partition(page[-1])
    return replace(beat, failed=page, failed_after=after, failed_up_to=up_to)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterAnswer:
    """The answer to a change that is made, or would be made (``validate_only``)."""

    next_offset: MetadataOffset
    """The change is visible in images that have reached this offset."""


# ---- topics and configs


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions(Command["PartitionsAdded"]):
    """A request for more partitions of a topic; INVALID_PARTITIONS for as many as now or fewer."""

    topic: TopicName
    partitions_count: int
    """The number of partitions in all, those that exist included."""
    replicas_assignments: dict[int, tuple[BrokerId, ...]] | None = None
    """Replicas of the new partitions by partition id; None: placed as at creation."""
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsAdded:
    topic_id: TopicId
    partitions_count: int
    next_offset: MetadataOffset


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """A config to set, or to reset when ``value`` is None."""

    resource_type: ResourceType
    resource_name: str
    """A topic's name, a broker's id as text, or "" for the cluster."""
    name: str
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigs(Command[AlterAnswer]):
    """Config changes that are made all together or, where one is refused, not at all.

    INVALID_CONFIG names the first that is refused.
    """

    changes: tuple[ConfigChange, ...]
    validate_only: bool = False


# ---- partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """The replicas that a partition is to have; None cancels its reassignment (KIP-455)."""

    topic: TopicName
    partition: PartitionId
    replicas: tuple[BrokerId, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterReassignments(Command[AlterAnswer]):
    """Reassignments to start, change or cancel: all of them or, where one is refused, none."""

    changes: tuple[Reassignment, ...]
    validate_only: bool = False


class Election(Enum):
    """The kind of leader election that an operator requests (KIP-460)."""

    PREFERRED = "preferred"
    UNCLEAN = "unclean"
    """Any live replica if no clean leader is available; acknowledged records may be lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlace:
    """A partition identified by its topic's name."""

    topic: TopicName
    partition: PartitionId


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeaders(Command["LeadersElected"]):
    """A request for elections, held where they change something; None: in the whole cluster."""

    election: Election
    partitions: tuple[PartitionPlace, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionResult:
    """The result for one partition: its leader, newly elected or not, if ``error`` is None."""

    topic: TopicName
    partition: PartitionId
    leader: BrokerId = NO_LEADER
    error: int | None = None
    """Number of an `ErrorCode`: PREFERRED_LEADER_NOT_AVAILABLE, ELIGIBLE_LEADERS_NOT_AVAILABLE,
    UNKNOWN_TOPIC_OR_PARTITION."""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadersElected:
    results: tuple[ElectionResult, ...]
    """Results of the named partitions; for the whole cluster, of those that changed or failed, at
    most 20,000."""
    next_offset: MetadataOffset


# ---- brokers


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainBroker(Command[AlterAnswer]):
    """A request to drain a broker of leaderships or replicas, or to end that.

    BROKER_ID_NOT_REGISTERED for an unknown broker.
    """

    broker_id: BrokerId
    scope: DrainScope


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBroker(Command[AlterAnswer]):
    """A request to remove a broker from the cluster.

    POLICY_VIOLATION while it holds replicas, with their number.
    """

    broker_id: BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIds(Command["ProducerIdBlock"]):
    """A broker's request for a block of producer ids; no id is handed out twice (invariant T5)."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdBlock:
    first_producer_id: int
    count: int


# ---- quotas, access, users, features


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterClientQuotas(Command[AlterAnswer]):
    """Quotas of an entity to set; a value of None removes that key (KIP-546)."""

    entity: tuple[QuotaEntity, ...]
    changes: dict[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterAcls(Command[AlterAnswer]):
    """Access rules to add, and ids of rules to remove."""

    add: tuple[AclRecord, ...] = ()
    remove: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UserScram:
    """The name of a user and the mechanism of one of its credentials."""

    name: str
    mechanism: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterUsers(Command[AlterAnswer]):
    """Salted passwords to set, and credentials to remove (KIP-554)."""

    put: tuple[UserScramRecord, ...] = ()
    remove: tuple[UserScram, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeMetadata(Command["MetadataUpgraded"]):
    """A request to raise ``metadata.version`` (KIP-584).

    POLICY_VIOLATION names every node that can't follow the new level.
    """

    level: int | None = None
    """None: the highest that every node can follow."""
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataUpgraded:
    level_before: int
    level: int
    next_offset: MetadataOffset


# ---- the table


class RepeatRule(Enum):
    """The failures after which a broker's channel sends a command again (rule F1)."""

    NEVER = "never"
    """No failure: the sender makes a new command of what is still wanted."""
    NOT_APPENDED = "not appended"
    """Failures after which the command was surely not appended."""
    ALWAYS = "always"
    """Also unknown outcomes: a repeat is recognized, or changes nothing more."""


@dataclass(frozen=True, slots=True)
class CommandRow:
    """The types of one command and of its answer, and the rule for its repeats."""

    command: type[Command[Any]]
    answer: type[Any]
    repeat: RepeatRule = RepeatRule.NOT_APPENDED


COMMANDS: Mapping[str, CommandRow] = {
    "register-broker": CommandRow(RegisterBroker, BrokerRegistered),
    "alter-partitions": CommandRow(AlterPartitions, PartitionsAltered, RepeatRule.NEVER),
    "create-topic": CommandRow(CreateTopic, TopicCreated, RepeatRule.ALWAYS),
    "delete-topic": CommandRow(DeleteTopic, TopicDeleted),
    "add-partitions": CommandRow(AddPartitions, PartitionsAdded),
    "alter-configs": CommandRow(AlterConfigs, AlterAnswer),
    "alter-reassignments": CommandRow(AlterReassignments, AlterAnswer),
    "elect-leaders": CommandRow(ElectLeaders, LeadersElected, RepeatRule.ALWAYS),
    "drain-broker": CommandRow(DrainBroker, AlterAnswer),
    "unregister-broker": CommandRow(UnregisterBroker, AlterAnswer),
    "allocate-producer-ids": CommandRow(AllocateProducerIds, ProducerIdBlock, RepeatRule.ALWAYS),
    "alter-client-quotas": CommandRow(AlterClientQuotas, AlterAnswer),
    "alter-acls": CommandRow(AlterAcls, AlterAnswer),
    "alter-users": CommandRow(AlterUsers, AlterAnswer),
    "upgrade-metadata": CommandRow(UpgradeMetadata, MetadataUpgraded, RepeatRule.ALWAYS),
}
"""All commands by the last part of their path, ``POST /controller/v1/<name>``. After
an unknown outcome a deletion is not repeated: the name may belong to a new topic by then."""

COMMAND_NAMES: Mapping[type[Command[Any]], str] = {
    row.command: name for name, row in COMMANDS.items()
}
