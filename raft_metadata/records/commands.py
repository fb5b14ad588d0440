"""Commands to the controllers and their answers: registration, heartbeat, ISR, topics, fetch.

They cross the network as JSON (``http_api.peer``). Every command carries the epochs on which its
sender decided, so that a late one changes nothing. A failed command is a `KafkaError`:
NOT_CONTROLLER means that it was surely not appended, OUTCOME_UNKNOWN that it may still be (rule
M3).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from raft_metadata.common.ids import (
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
from raft_metadata.records.records import BrokerState, MetadataRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker:
    """The registration of a broker process. A repeat with the same incarnation keeps its epoch."""

    broker_id: BrokerId
    cluster_id: ClusterId
    incarnation_id: IncarnationId
    directory_id: DirectoryId
    http: str
    peer: str
    rack: str | None = None
    unclean_partitions: tuple[TopicIdPartition, ...] = ()
    unclean_ranges: tuple[PartitionRange, ...] = ()
    """Both unclean fields as in `RegisterBrokerRecord`; a controller accepts either."""
    last_broker_epoch: BrokerEpoch = UNKNOWN_BROKER_EPOCH
    """Compare-and-set: the broker epoch of this id in the requester's image; -1 without one. A
    registration that was overtaken by another is refused (rule R6)."""
    feature_level_max: int = 1
    """The highest ``metadata.version`` this process can follow."""
    min_insync_replicas: int | None = None
    """The min ISR of the broker's config.toml; None: an older version, which does not report it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistered:
    broker_epoch: BrokerEpoch


FAILED_REPLICAS_MAX = 100
"""Damaged replicas in one heartbeat (13 KB); more are sent in pages (`damage_pages`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedReplica:
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
    failed: tuple[FailedReplica, ...] = ()
    """Damaged replicas, at most `FAILED_REPLICAS_MAX`, repeated until each is repaired; from
    level 4 on."""
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
    """This controller's wall clock, with which brokers compare theirs (rule R10); 0: unknown."""
    controller_id: NodeId = NodeId(0)
    """The answering controller; filled in by the receiver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrMember:
    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    """The epoch with which the leader saw this replica catch up; a newer registration makes the
    proposal fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartition:
    """An ISR proposed by a leader.

    Each attempt is a proposal of its own and is never sent again (rule M3).
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
    """The partition after an accepted proposal.

    The partition epoch grows by one even if the ISR is the same (rule M3).
    """

    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    isr: tuple[BrokerId, ...]


MAX_ATTEMPTS_PER_COMMAND = 500
"""Attempts in one `AlterPartitions`: about 170 KB of JSON, and 25 ms of a controller's loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitions:
    """ISR proposals of one leader for many distinct partitions, each judged alone (rule M3).

    From feature level 3 on: an older controller knows `AlterPartition` only.
    """

    attempts: tuple[AlterPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptAnswer:
    """The result of one attempt: ``altered``, or a refusal, which surely was not appended."""

    altered: PartitionAltered | None = None
    error: int = 0
    """The Kafka error number of a refusal."""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsAltered:
    """The answers to `AlterPartitions`, one for each attempt and in their order."""

    answers: tuple[AttemptAnswer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic:
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
class DeleteTopic:
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
