"""The port of transactions to front ends: requests as clients make them, before any check.

`RoutedBrokerApis.transactions` implements `TransactionApis`. Rows are checked, get their partitions
and go to their home in `broker.server`; answers are those of `broker.transactions.messages`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from broker.transactions.messages import (
    AttemptNamed,
    OffsetMove,
    Position,
    ProducerInitialized,
    ProducerPosition,
    TransactionalId,
    TransactionDescription,
    TransactionOutcome,
    TransactionState,
)
from raft_metadata.common.configs.table import (
    TRANSACTION_CHUNK_MAX_BYTES,
    TRANSACTION_INLINE_MAX_BYTES,
    TRANSACTION_MAX_CHUNKS,
    TRANSACTION_MAX_PARTITIONS,
    default_number,
)
from raft_metadata.common.record_placement import Partitioner

if TYPE_CHECKING:
    from broker.record.batch import RecordFormat
    from broker.record.lines import ProduceRecord
    from raft_metadata.common.errors import KafkaError
    from raft_metadata.common.ids import BrokerId, InstanceId, PartitionId, TopicName

TRANSACTION_TIMEOUT_MS = 10_000
"""Time for a request of transactions, unless the client names another."""
TRANSACTION_TIMEOUT_MS_MAX = 60_000
"""A request is dropped at its deadline, so none is older than this when it arrives (rule S12)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLimits:
    """Limits of requests in force, by configs of the cluster."""

    inline_bytes: int = default_number(TRANSACTION_INLINE_MAX_BYTES)
    """Bytes of records that one request commits without a stage."""
    chunk_bytes: int = default_number(TRANSACTION_CHUNK_MAX_BYTES)
    """Bytes of one staged request."""
    chunks: int = default_number(TRANSACTION_MAX_CHUNKS)
    """Chunks of one transaction."""
    partitions: int = default_number(TRANSACTION_MAX_PARTITIONS)
    """Partitions that one transaction writes to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRows:
    """Rows of one topic, decoded and with checked formats (`broker.record.lines`)."""

    topic: TopicName
    records: Sequence[ProduceRecord]
    key_format: RecordFormat
    value_format: RecordFormat
    partition: PartitionId | None = None
    """The partition of the path; it wins over each record's own, which wins over its key."""
    partitioner: Partitioner = Partitioner.STICKY
    """The rule for records without a partition and a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequest:
    """A commit of any kind, one-shots included. Either ``topics`` or ``attempts`` has rows."""

    id: TransactionalId
    """For a one-shot without a key a name that is never used again."""
    position: Position
    digest: str
    """Digest of the text of the request's content: what a repeat must bring again (rule S7)."""
    topics: Sequence[TopicRows] = ()
    attempts: tuple[AttemptNamed, ...] = ()
    offsets: tuple[OffsetMove, ...] = ()
    member_id: InstanceId | None = None
    member_epoch: int | None = None
    timeout_ms: int = TRANSACTION_TIMEOUT_MS
    answers_rows: bool = False
    """True if the answer is to say where each row stands (`Committed.rows`)."""


class RowPlace(NamedTuple):
    """The place of one row of a request; the offset is -1 where it is not known any more."""

    partition: PartitionId
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The outcome of a commit, and the home that gave it."""

    outcome: TransactionOutcome
    home_leader: BrokerId | None
    rows: Sequence[RowPlace] = ()
    """With `CommitRequest.answers_rows`: one for each row, in the order of the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRequest:
    """A chunk of a transaction that is not decided yet: rows that no reader sees."""

    id: TransactionalId
    position: ProducerPosition | int | None
    """A producer's, a number of a numbered id, or null for an idempotency key."""
    attempt_id: str
    chunk: int
    rows: TopicRows
    timeout_ms: int = TRANSACTION_TIMEOUT_MS


class StagedRow(NamedTuple):
    """The result of one row of a chunk; a row that is refused refuses its whole chunk."""

    partition: PartitionId | None
    error: KafkaError | None = None


class TransactionApis(Protocol):
    """Transactions, through any broker. Every method raises `KafkaError`; see `BrokerApis`.

    A `timeout_ms` above `TRANSACTION_TIMEOUT_MS_MAX` is INVALID_REQUEST.
    """

    @property
    def limits(self) -> TransactionLimits:
        """The limits in force, which a front end checks before it decodes."""
        ...

    def home_leader(self, id_: TransactionalId) -> BrokerId | None:
        """Return the leader of an id's home in this broker's image; None: there is none now."""
        ...

    async def init(self, id_: TransactionalId, timeout_ms: int) -> ProducerInitialized:
        """Give a producer's id the next epoch, which fences what came before (rule S6)."""
        ...

    async def stage(self, request: StageRequest) -> list[StagedRow]:
        """Stage a chunk with acks=all (rule S9); it is repeated without harm."""
        ...

    async def commit(self, request: CommitRequest) -> Committed:
        """Decide a transaction and wait until all its targets have committed their rows.

        Returns it as COMMITTING if that takes longer than the request's time.

        Raises:
            KafkaError: PRODUCER_FENCED, TRANSACTION_CONFLICT, STAGE_INCOMPLETE,
                TRANSACTION_ABORTED, TRANSACTION_SUPERSEDED, OFFSET_NOT_EXPECTED,
                FENCED_MEMBER_EPOCH, CONCURRENT_TRANSACTIONS, MESSAGE_TOO_LARGE (naming the limit),
                THROTTLING_QUOTA_EXCEEDED (naming the limit), and those of a produce;
                DECIDED_ROWS_LOST, it is decided, and some of its rows are lost (rule S3).
        """
        ...

    async def abort(
        self, id_: TransactionalId, position: ProducerPosition, timeout_ms: int
    ) -> TransactionState:
        """Abort a producer's position; what was decided before stands, and is returned.

        Raises:
            KafkaError: PRODUCER_FENCED, TRANSACTION_CONFLICT, TRANSACTION_SUPERSEDED;
                DECIDED_ROWS_LOST, it was decided, and some of its rows are lost (rule S3).
        """
        ...

    async def describe(self, id_: TransactionalId) -> TransactionDescription:
        """Return one id; TRANSACTIONAL_ID_NOT_FOUND."""
        ...

    async def transactions(self, state: TransactionState | None) -> list[TransactionDescription]:
        """Return the ids of all homes and stages, sorted by group and name."""
        ...

    async def forget(self, id_: TransactionalId) -> None:
        """Forget a numbered id or a key; CONCURRENT_TRANSACTIONS while it is committing."""
        ...
