"""What a client can ask a broker, without a word of HTTP. `BrokerApis` answers these.

Any broker answers any request (decision D7): what is led elsewhere is forwarded once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from raft_metadata.common.errors import KafkaError
from raft_metadata.common.ids import (
    BrokerId,
    ClusterId,
    LeaderEpoch,
    PartitionId,
    TopicIdPartition,
    TopicName,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from broker.coordinator.group_messages import A, GroupDescription, GroupRequest
    from broker.record.batch import BatchSlice, RecordFormat
    from broker.record.compression import Piece
    from broker.record.lines import ProduceRecord
    from broker.server.health import Damage
    from broker.server.metadata_requests import MetadataApis
    from raft_metadata.common.ids import Claim
    from raft_metadata.image.metadata_image import MetadataImage, TopicImage
    from raft_metadata.records.commands import A as AdminAnswer
    from raft_metadata.records.commands import (
        AdminCommand,
        CreateTopic,
        DeleteTopic,
        TopicCreated,
        TopicDeleted,
    )

ACKS_NONE = 0
ACKS_LEADER = 1
ACKS_ALL = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceRequest:
    """Records of one topic. ``partition`` from the path wins; else each record's own, else its key.

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


class RecordResult(NamedTuple):
    """One per record, in request order. ``offset`` is -1 for acks=0; None with an ``error``."""

    partition: PartitionId | None
    offset: int | None
    error: KafkaError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """Exactly one of ``offset`` and ``timestamp_ms`` is set."""

    topic: TopicName
    partition: PartitionId
    offset: int | None = None
    timestamp_ms: int | None = None
    max_bytes: int = 1_048_576
    max_wait_ms: int = 1_000
    leader_wait_ms: int = 0
    """A leader is waited for at least so long, whatever is said of records."""
    rack: str | None = None
    """Where the reader is: a replica in that rack may serve it (KIP-392)."""
    packed: bool = False
    """Compressed batches are taken as they are stored: see `FetchResult.packed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResult:
    """Stored lines below the high watermark, batch by batch; empty at the time-out."""

    slices: Sequence[BatchSlice]
    packed: Sequence[Piece] = ()
    """In place of ``slices``, for who asked for it, where a compressed batch is among them."""
    lines: Sequence[bytes | memoryview] = ()
    """In place of ``slices``, for who asked for lines alone."""
    high_watermark: int
    log_start_offset: int
    next_offset: int
    """Where to read on: one past the last record here, or the offset asked for."""
    leader_id: BrokerId
    leader_epoch: LeaderEpoch
    served_by: BrokerId | None = None
    """The follower these came from; None: the leader."""


FINAL: Final = -2
"""In place of a base offset: this error is the answer, whatever its outcome."""


class DirectProduce(NamedTuple):
    """Records of one body for one topic, as the fast lane of a front end hands them over."""

    topic: TopicName
    partition: PartitionId | None
    records: Sequence[ProduceRecord]
    body: bytes
    """What the records were decoded from."""
    stored_as: RecordFormat
    acks: int
    timeout_ms: int

    @property
    def body_bytes(self) -> int:
        """More than the sum of all keys and values."""
        return len(self.body)


class DirectApis(Protocol):
    """The short way to a broker: answers at once, or leaves the request to `BrokerApis`."""

    def produce(
        self,
        request: DirectProduce,
        answered: Callable[[PartitionId, int, KafkaError | None], None],
    ) -> bool:
        """Append here; False: nothing was done, and `BrokerApis.produce` is to be asked.

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
    ) -> tuple[FetchResult, TopicImage] | None:
        """Records from this offset on, if some are here to be read; else None.

        ``packed``: see `FetchResult.packed`. ``bare``: nobody asks what batches say of their lines;
        the answer may come as `FetchResult.lines`.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsResult:
    """``beginning_offset`` = log start, ``end_offset`` = high watermark (the next to be read)."""

    beginning_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProgress:
    """How far a partition's replicas are, as its leader knows."""

    log_end_offset: int
    """The leader's own."""
    high_watermark: int
    follower_ends: Mapping[BrokerId, int]
    """Log end of each follower that fetched from this leader in its present epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFacts:
    """What only a broker itself knows of itself."""

    static_configs: Mapping[str, str]
    """What its config.toml, environment and ``--set`` say, by config name."""
    shutdown_blocked_by: str = ""
    """Why its controlled shutdown is not granted yet, as the active controller last said."""
    damage: Damage | None = None
    """None: its version does not tell."""


class BrokerApis(Protocol):
    """The one door to a broker: everything `http_api.server` may call.

    Every method raises `KafkaError`; a failed write carries its outcome. Arguments are validated
    here (limits, names, ranges), so that every front end gives the same answers.
    """

    @property
    def broker_id(self) -> BrokerId: ...

    @property
    def cluster_id(self) -> ClusterId: ...

    @property
    def image(self) -> MetadataImage:
        """This broker's present image."""
        ...

    @property
    def controller_id(self) -> int | None:
        """The active controller as last heard, or None."""
        ...

    @property
    def direct(self) -> DirectApis:
        """The short way, for what can be answered at once."""
        ...

    async def produce(self, request: ProduceRequest) -> list[RecordResult]:
        """Append; wait as ``acks`` says. Unknown topic: created if allowed, else error 3.

        Raises only where the request as a whole is refused; else each record has its own result.
        """
        ...

    async def producer_id(self) -> int:
        """A producer id that nobody else has or will have; its epochs begin with 0."""
        ...

    async def fetch(self, request: FetchRequest) -> FetchResult:
        """Read from the leader. OFFSET_OUT_OF_RANGE names both ends of the log."""
        ...

    async def offsets(self, topic: TopicName, partition: PartitionId) -> OffsetsResult:
        """Both ends of a partition, from its leader (withheld as rule R8 says)."""
        ...

    async def delete_records(self, topic: TopicName, partition: PartitionId, before: int) -> int:
        """Delete what lies below an offset (-1: the high watermark); the log start then.

        OFFSET_OUT_OF_RANGE names both ends. Durable at the leader; followers take it over.
        """
        ...

    async def create_topic(self, command: CreateTopic) -> TopicCreated:
        """Answers once every partition has a ready leader and this image holds the topic."""
        ...

    async def delete_topic(self, command: DeleteTopic) -> TopicDeleted:
        """Answers once this broker's image has lost the topic."""
        ...

    async def admin(self, command: AdminCommand[AdminAnswer]) -> AdminAnswer:
        """What an operator asks of the active controller; see `raft_metadata.records.commands`.

        Answers once this image holds what was decided, and new partitions have ready leaders. Sent
        again only where nothing was decided for sure (rules F1, F2).
        """
        ...

    async def replication_progress(
        self, partitions: Sequence[TopicIdPartition]
    ) -> Mapping[TopicIdPartition, PartitionProgress]:
        """How far replicas are, asked of the leaders; what is not known just now is left out."""
        ...

    async def own_facts(self, broker_id: BrokerId) -> OwnFacts:
        """What a broker knows of itself. BROKER_NOT_AVAILABLE when it can't be asked."""
        ...

    async def group(self, request: GroupRequest[A]) -> A:
        """Ask the group's coordinator, wherever it is; see `broker.coordinator.group_messages`.

        Sent at most once where it may have taken effect (rules F1, F2).
        """
        ...

    async def list_groups(self) -> list[GroupDescription]:
        """Every coordinator's groups, sorted. COORDINATOR_NOT_AVAILABLE if one can't be asked."""
        ...

    async def catch_up_with_topic(self, topic: TopicName, partition: int = 0) -> None:
        """If this image lacks it, wait (at most 1 s) for the active controller's newest."""
        ...

    @property
    def metadata(self) -> MetadataApis:
        """The quorum, the metadata log, the image and the cluster's health, to be read."""
        ...

    def readiness(self) -> list[tuple[str, bool]]:
        """(reason, ok) rows for ``/readyz``: node, log, metadata, unfenced."""
        ...

    def topic_defaults(self) -> dict[str, str]:
        """Cluster defaults of topic configs, by Kafka's dotted names."""
        ...
