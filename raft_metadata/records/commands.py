"""What can be asked of the controllers, and what they answer.

These cross the network as JSON (``http_api.peer``). Every command is guarded by the epochs its
sender decided on, so that a late one changes nothing. A failed command is a `KafkaError`:
NOT_CONTROLLER means surely not appended, OUTCOME_UNKNOWN that it may still happen (rule M3).
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
    """Announce a broker process. A repeat with the same incarnation keeps its epoch."""

    broker_id: BrokerId
    cluster_id: ClusterId
    incarnation_id: IncarnationId
    directory_id: DirectoryId
    http: str
    peer: str
    rack: str | None = None
    unclean_partitions: tuple[TopicIdPartition, ...] = ()
    unclean_ranges: tuple[PartitionRange, ...] = ()
    """As in `RegisterBrokerRecord`, with the one above; a controller takes either."""
    last_broker_epoch: BrokerEpoch = UNKNOWN_BROKER_EPOCH
    """Compare-and-set: the epoch of this id's registration the requester saw in the image; -1 when
    it saw none. A registration that was overtaken never enters (rule R6)."""
    feature_level_max: int = 1
    """The highest ``metadata.version`` this process can follow."""
    min_insync_replicas: int | None = None
    """As in `RegisterBrokerRecord`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistered:
    broker_epoch: BrokerEpoch


FAILED_REPLICAS_MAX = 100
"""In one heartbeat: 13 KB. Of more, each heartbeat says a page (`damage_pages`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedReplica:
    """A replica whose log is damaged: nobody may count on it (rules Q5, R6)."""

    topic_id: TopicId
    partition: PartitionId
    leader_epoch: LeaderEpoch
    """The newest one in which this log took part; -1: none in this life."""
    can_lead: bool
    """What is readable can be served, where there is nobody else."""
    partition_epoch: PartitionEpoch = PartitionEpoch(-1)
    """Of the partition as the broker had seen it when it found this so: a report of another state
    of the partition takes nobody out of ISR and ELR; -1: it does not know the partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHeartbeat:
    """Sent to *every* controller (rule M7): standbys keep the ages, the active one decides."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    metadata_offset: MetadataOffset
    """Next metadata offset this broker will apply: it has applied everything below."""
    want_shutdown: bool = False
    failed: tuple[FailedReplica, ...] = ()
    """At most `FAILED_REPLICAS_MAX`, said again until each is done with; from level 4 on."""
    failed_after: TopicIdPartition | None = None
    """``failed`` are all damaged replicas behind this place, None: from the first one on …"""
    failed_up_to: TopicIdPartition | None = None
    """… up to and with this one, None: to the last."""
    number: int = 0
    """Grows with what this process says: one that was overtaken on its way tells no news."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswer:
    is_active: bool
    """False from a standby: the age was noted, the rest says nothing."""
    state: BrokerState
    should_shut_down: bool
    """Controlled shutdown is granted: nothing is led any more and everyone knows (rule R11)."""
    committed_offset: MetadataOffset
    """Next metadata offset of this controller (rule M6: a broker that lags changes its source)."""
    shutdown_blocked_by: str = ""
    """Why a wanted shutdown is not granted yet."""
    majority_answers: bool = True
    """False from an active controller that has not heard from a majority just now: another one may
    have been elected and have fenced the broker (rule G3)."""
    wall_ms: int = 0
    """This controller's wall clock, for brokers to compare theirs with (rule R10); 0: not said."""
    controller_id: NodeId = NodeId(0)
    """Who says it: filled in where it arrives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrMember:
    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    """As judged by the leader; refused when the broker has registered again since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartition:
    """A leader proposes an ISR. Each attempt is its own proposal, never re-sent (rule M3)."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    topic_id: TopicId
    partition: PartitionId
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    new_isr: tuple[IsrMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionAltered:
    """The partition epoch grew by one even if the ISR is the same (rule M3)."""

    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    isr: tuple[BrokerId, ...]


MAX_ATTEMPTS_PER_COMMAND = 500
"""In one `AlterPartitions`: about 170 KB of JSON, and 25 ms of a controller's loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterPartitions:
    """Many proposals of one leader, of as many partitions. Each is judged alone (rule M3).

    From feature level 3 on: an older controller knows `AlterPartition` only.
    """

    attempts: tuple[AlterPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptAnswer:
    """What became of one attempt: ``altered``, or refused and surely not appended."""

    altered: PartitionAltered | None = None
    error: int = 0
    """The Kafka error number of a refusal."""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsAltered:
    """One answer an attempt, in their order."""

    answers: tuple[AttemptAnswer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopic:
    name: TopicName
    topic_id: TopicId
    """Proposed by the requester, so that a repeat is recognised and answered alike (rule F1)."""
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
    """The image must reach this offset before the topic is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopic:
    name: TopicName


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeleted:
    topic_id: TopicId
    next_offset: MetadataOffset


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchMetadata:
    """Long poll for applied records, answered by any controller (decision D3, rules M5, M6)."""

    cluster_id: ClusterId
    broker_id: BrokerId
    from_offset: MetadataOffset
    """Next offset wanted."""
    max_wait_ms: int = 1000
    inside_batch: bool = False
    """Whoever only reads the log may ask from within a batch, is answered the whole of it, and is
    sent no snapshot: no batches below ``end_offset`` say that ``from_offset`` is too old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataBatch:
    """Records ``base_offset .. base_offset + len(records) - 1``, decided in ``epoch``."""

    base_offset: MetadataOffset
    epoch: ControllerEpoch
    records: tuple[MetadataRecord, ...]
    time_ms: int = 0
    """The deciding controller's wall clock, ms since 1970: for people, nothing is decided by it."""
    encoded: bytes = field(default=b"", compare=False, repr=False)
    """The JSON it was read from, so that it is encoded once for all brokers; empty: not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataSnapshot:
    """A shorter log with the same end: applying ``records`` to nothing gives the whole image."""

    next_offset: MetadataOffset
    epoch: ControllerEpoch
    records: tuple[MetadataRecord, ...]
    encoded: bytes = field(default=b"", compare=False, repr=False)
    """As in `MetadataBatch`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchMetadataAnswer:
    """Batches follow ``from_offset`` without a gap; or a snapshot, when that is too old."""

    leader_id: NodeId | None
    epoch: ControllerEpoch
    leader_contact_age_ms: int
    end_offset: MetadataOffset
    batches: tuple[MetadataBatch, ...] = ()
    snapshot: MetadataSnapshot | None = None
