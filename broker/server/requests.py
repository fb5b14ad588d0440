"""Requests of clients to a broker, free of HTTP, and the Protocols that answer them.

`http_api.server` calls `DirectApis` for what can be answered at once and `BrokerApis` for all else.
Any broker answers any request (decision D7): what is led elsewhere is forwarded once.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import (
    FIRST_RESERVED_PRODUCER_ID,
    BrokerId,
    ClusterId,
    LeaderEpoch,
    PartitionId,
    TopicId,
    TopicIdPartition,
    TopicName,
    is_reserved,
)
from raft_metadata.common.record_placement import Partitioner

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from broker.coordinator.group_messages import A, GroupDescription, GroupRequest
    from broker.coordinator.troubles import ShardTroubles
    from broker.record.batch import BatchSlice, RecordFormat
    from broker.record.compression import Piece
    from broker.record.lines import ProduceRecord
    from broker.server.health import Damage
    from broker.server.metadata_requests import MetadataApis
    from broker.server.transaction_apis import TransactionApis
    from raft_metadata.common.ids import Claim
    from raft_metadata.image.metadata_image import MetadataImage, TopicImage
    from raft_metadata.records.commands import A as AdminAnswer
    from raft_metadata.records.commands import (
        Command,
        CreateTopic,
        DeleteTopic,
        TopicCreated,
        TopicDeleted,
    )

PASSED_TO: ContextVar[list[int] | None] = ContextVar("passed_to", default=None)
"""Set by a front end that wants to know where its present request goes, in the request's task: the
ids of the brokers to which this broker passed a part of it, each once. It changes nothing."""


def note_passed_to(broker: BrokerId) -> None:
    """Add a broker to the present request's `PASSED_TO`, if a front end asked for it."""
    brokers = PASSED_TO.get()
    if brokers is not None and broker not in brokers:
        brokers.append(broker)


UNKNOWN_EPOCH: Final = -1
"""In place of a leader epoch that a reader does not know."""
ACKS_NONE = 0
ACKS_LEADER = 1
ACKS_ALL = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRequest:
    """Records of one topic.

    ``partition``, from the path, wins over each record's own, which wins over its key.
    ``key_format`` and ``value_format`` hold for all records of the request.
    """

    topic: TopicName
    records: Sequence[ProduceRecord]
    key_format: RecordFormat
    value_format: RecordFormat
    partition: PartitionId | None = None
    acks: int = ACKS_ALL
    timeout_ms: int = 10_000
    claim: Claim | None = None
    """A client's producer id, epoch and sequence; then all records go to one partition."""
    partitioner: Partitioner = Partitioner.STICKY
    """The rule for records without a partition and a key."""


class RecordResult(NamedTuple):
    """Result of one record. ``offset`` is -1 for acks=0, None with an ``error``.

    A request has one for each record, in its order.
    """

    partition: PartitionId | None
    offset: int | None
    error: KafkaError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """A read of one partition. Exactly one of ``offset`` and ``timestamp_ms`` is set."""

    topic: TopicName
    partition: PartitionId
    offset: int | None = None
    timestamp_ms: int | None = None
    max_bytes: int = 1_048_576
    max_wait_ms: int = 1_000
    leader_wait_ms: int = 0
    """Least time to find a leader, whatever ``max_wait_ms`` is."""
    rack: str | None = None
    """The reader's rack: a replica in it may serve the read (KIP-392)."""
    packed: bool = False
    """True if compressed batches are taken as they are stored: see `FetchResult.packed`."""
    leader_epoch: int = UNKNOWN_EPOCH
    """Epoch of ``offset``: that of the record right before it, as the reader knows it (KIP-320)."""
    seen_epoch: int = UNKNOWN_EPOCH
    """The largest leader epoch that the reader has seen: an older leader may not answer (R8)."""
    topic_id: TopicId | None = None
    """The topic that the reader means; another one of that name is TOPIC_CHANGED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResult:
    """Stored lines below the high watermark, batch by batch; empty at the time-out."""

    slices: Sequence[BatchSlice]
    packed: Sequence[Piece] = ()
    """In place of ``slices``, if requested and a compressed batch is among them."""
    lines: Sequence[bytes | memoryview] = ()
    """In place of ``slices``, if only lines were requested."""
    high_watermark: int
    log_start_offset: int
    next_offset: int
    """Offset to read next: one past the last record here, or the requested offset."""
    next_leader_epoch: int
    """Epoch of ``next_offset``: that of the record right before it; -1 if it is not known."""
    leader_id: BrokerId
    leader_epoch: LeaderEpoch
    served_by: BrokerId | None = None
    """The follower that served the read; None: the leader."""


EPOCHS_MAX: Final = 16
"""Most epochs that a page without records names; more have to be asked for from the last one on."""
BATCH_OVERHEAD_BYTES: Final = 160
"""Bytes that a batch takes beside its lines in an answer, at most: the line about it, or the
headers between brokers."""


class PollRow(NamedTuple):
    """A partition to read, and the position from which on."""

    topic: TopicName
    partition: PartitionId
    offset: int
    leader_epoch: int = UNKNOWN_EPOCH
    """See `FetchRequest.leader_epoch`."""
    topic_id: TopicId | None = None
    """See `FetchRequest.topic_id`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PollRequest:
    """A read of many partitions, none of them named twice."""

    rows: Sequence[PollRow]
    max_wait_ms: int = 1_000
    min_bytes: int = 1
    """Bytes of lines that one partition must have to end the wait; no effect with `news_only`."""
    max_bytes: int = 8 << 20
    """Room for the records of all pages; the first page holds at least one record whatever it is.
    """
    max_partition_bytes: int = 1 << 20
    news_only: bool = False
    """No records: each page has the end of its partition now, and the epochs up to there."""
    rack: str | None = None
    """See `FetchRequest.rack`."""
    packed: bool = False
    """See `FetchResult.packed`."""


@dataclass(frozen=True, slots=True)
class PollPage:
    """Result of one row: records, news or an error."""

    row: int
    """Index of the row in the request."""
    topic_id: TopicId | None
    """The topic that was read, or that has the name now; None: there is none."""
    found: FetchResult | KafkaError
    epochs: Sequence[tuple[int, int]] = ()
    """With `news_only`: (epoch, first offset) of what lies before ``found.next_offset``, at most
    `EPOCHS_MAX`, the first ones."""

    @property
    def size(self) -> int:
        """Bytes that the records take in an answer, about; 0 without records."""
        if isinstance(self.found, KafkaError):
            return 0
        pieces = self.found.packed or self.found.slices
        sizes = (len(piece[1]) for piece in pieces)  # lines or frame
        return sum(sizes) + BATCH_OVERHEAD_BYTES * len(pieces)


FINAL: Final = -2
"""In place of a base offset: the error is the final answer, whatever its outcome."""


class DirectProduce(NamedTuple):
    """Records of one body for one topic, as the fast lane of a front end hands them over."""

    topic: TopicName
    partition: PartitionId | None
    records: Sequence[ProduceRecord]
    body: bytes
    """Text from which the records were decoded."""
    stored_as: RecordFormat
    acks: int
    timeout_ms: int


class DirectApis(Protocol):
    """The short way to a broker: answers at once, or leaves the request to `BrokerApis`."""

    def produce(
        self,
        request: DirectProduce,
        answered: Callable[[PartitionId, int, KafkaError | None], None],
    ) -> bool:
        """Append here; return False if nothing was done and `BrokerApis.produce` is to be called.

        ``answered(partition, base offset, error)`` is called exactly once, perhaps before this
        returns; it must not raise. An error with outcome NOT_WRITTEN is no answer, unless the base
        offset is `FINAL`: the request may be made again through `BrokerApis.produce`.
        """
        ...

    def fetch(
        self,
        topic: TopicName,
        partition: PartitionId,
        offset: int,
        max_bytes: int,
        *,
        packed: bool = False,
        bare: bool = False,
        leader_epoch: int = UNKNOWN_EPOCH,
        seen_epoch: int = UNKNOWN_EPOCH,
    ) -> tuple[FetchResult, TopicImage] | None:
        """Return records from this offset on, if some can be read here at once; else None.

        ``packed``: see `FetchResult.packed`. ``bare``: the caller needs no facts about batches, so
        the answer may come as `FetchResult.lines`. ``leader_epoch``, ``seen_epoch``: see
        `FetchRequest`; None if they have to be checked further.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsResult:
    """Ends of a partition: the log start, and the high watermark (the offset to be read next)."""

    beginning_offset: int
    end_offset: int
    end_leader_epoch: int = UNKNOWN_EPOCH
    """Epoch of ``end_offset``: that of the record right before it; -1 if it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProgress:
    """Progress of a partition's replicas, as its leader knows it."""

    log_end_offset: int
    """The leader's own log end."""
    high_watermark: int
    follower_ends: Mapping[BrokerId, int]
    """Log end of each follower that fetched from this leader in its present epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFacts:
    """Facts that only a broker itself knows of itself."""

    static_configs: Mapping[str, str]
    """Values from its config.toml, environment and ``--set``, by config name."""
    shutdown_blocked_by: str = ""
    """Reason of the active controller's last answer not to grant the controlled shutdown yet."""
    damage: Damage
    """The partitions that it leads over damaged logs."""
    troubles: tuple[ShardTroubles, ...] = ()
    """Groups that stand still, of the partitions of the offsets topic that it leads."""


class BrokerApis(Protocol):
    """All that `http_api.server` may call of a broker.

    Every method raises `KafkaError`; a failed write carries its outcome. Arguments are validated
    here (limits, names, ranges), so that every front end gives the same answers.
    """

    @property
    def broker_id(self) -> BrokerId: ...

    @property
    def cluster_id(self) -> ClusterId: ...

    @property
    def image(self) -> MetadataImage:
        """Present image of this broker."""
        ...

    @property
    def controller_id(self) -> int | None:
        """The active controller as last reported, or None."""
        ...

    @property
    def direct(self) -> DirectApis:
        """The short way, for what can be answered at once."""
        ...

    async def produce(self, request: ProduceRequest) -> list[RecordResult]:
        """Append, and wait as ``acks`` requires. An unknown topic is created if that is allowed.

        Otherwise it is error 3. Raises only if the request as a whole is refused; else each record
        has its own result.
        """
        ...

    async def topic_for_produce(self, topic: TopicName, timeout_ms: int) -> TopicImage:
        """Return the topic that a produce would append to; create it if that is allowed.

        Otherwise it is error 3.
        """
        ...

    def next_keyless(self, topic: TopicImage, partitioner: Partitioner) -> Callable[[], int]:
        """Return the function that gives each keyless record of a batch its partition.

        `produce` uses it for a request; it is for a batch that is written as several requests.
        """
        ...

    def record_time_ms(self, topic: TopicImage) -> int | None:
        """Return the time for records that have none, as a producer would set it.

        None: the topic's records get the time at which the leader appends them.
        """
        ...

    async def producer_id(self) -> int:
        """Return a producer id that no other producer has or will have; its epochs begin with 0."""
        ...

    async def fetch(self, request: FetchRequest) -> FetchResult:
        """Read from the leader, or from a follower in the reader's rack.

        OFFSET_OUT_OF_RANGE names both ends of the log. A position that is not one of this log any
        more is a `PositionTruncatedError`, a topic with another id TOPIC_CHANGED.
        """
        ...

    async def poll(self, request: PollRequest) -> list[PollPage]:
        """Read many partitions; wait for the first that has a page.

        Returns a page for each row with records, news or an error, in the order of the rows. Errors
        that pass by themselves are returned only once something else is, or the wait is over.
        QUEUE_FULL if too many partitions are polled here.
        """
        ...

    async def offsets(
        self, topic: TopicName, partition: PartitionId, seen_epoch: int = UNKNOWN_EPOCH
    ) -> OffsetsResult:
        """Return both ends of a partition, from its leader.

        OFFSET_NOT_AVAILABLE while a new leader does not know its high watermark (rule R8).
        ``seen_epoch``: see `FetchRequest`.
        """
        ...

    async def delete_records(self, topic: TopicName, partition: PartitionId, before: int) -> int:
        """Delete the records below an offset (-1: the high watermark); return the new log start.

        OFFSET_OUT_OF_RANGE names both ends. Durable at the leader; followers take it over.
        """
        ...

    async def create_topic(self, command: CreateTopic) -> TopicCreated:
        """Create a topic; return once its partitions have ready leaders and this image holds it."""
        ...

    async def delete_topic(self, command: DeleteTopic) -> TopicDeleted:
        """Delete a topic; return once this broker's image has lost it."""
        ...

    async def admin(self, command: Command[AdminAnswer]) -> AdminAnswer:
        """Have the active controller decide a command of `raft_metadata.records.commands`.

        Returns once this image holds the decision, and new partitions have ready leaders. Sent
        again only if surely nothing was decided (rules F1, F2).
        """
        ...

    async def replication_progress(
        self, partitions: Sequence[TopicIdPartition]
    ) -> Mapping[TopicIdPartition, PartitionProgress]:
        """Return the progress of replicas as their leaders report it, without what is unknown."""
        ...

    async def own_facts(self, broker_id: BrokerId) -> OwnFacts:
        """Return the facts that only that broker knows; BROKER_NOT_AVAILABLE without an answer."""
        ...

    async def group(self, request: GroupRequest[A]) -> A:
        """Have the group's coordinator answer a request; see `broker.coordinator.group_messages`.

        Sent at most once if it may have taken effect (rules F1, F2).
        """
        ...

    async def list_groups(self) -> list[GroupDescription]:
        """Return the groups of all coordinators, sorted.

        COORDINATOR_NOT_AVAILABLE if a coordinator does not answer.
        """
        ...

    async def catch_up_with_topic(self, topic: TopicName, partition: int = 0) -> None:
        """Wait, if this image lacks the topic, at most 1 s for the active controller's newest.

        LEADER_NOT_AVAILABLE if it still lacks it and no controller answers: it may exist.
        """
        ...

    @property
    def metadata(self) -> MetadataApis:
        """Reads of the quorum, the metadata log, the image and the cluster's health."""
        ...

    @property
    def transactions(self) -> TransactionApis:
        """Transactions: staged rows, decisions, and what became of them."""
        ...

    def readiness(self) -> list[tuple[str, bool]]:
        """Return (reason, ok) rows for ``/readyz``: node, metadata, state of the broker."""
        ...

    def topic_defaults(self) -> dict[str, str]:
        """Return the cluster's defaults of topic configs, by Kafka's dotted names."""
        ...


def check_producer_id(producer_id: int) -> None:
    """Refuse a reserved producer id: only homes complete rows under one (rule S4).

    Raises:
        KafkaError: INVALID_REQUEST, naming the ids that may be used.
    """
    if is_reserved(producer_id):
        text = (
            f"producer id {producer_id} is the cluster's own: expected an id from 0 to "
            f"{FIRST_RESERVED_PRODUCER_ID - 1}"
        )
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
