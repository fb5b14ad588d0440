"""Transactions as clients name them and hear of them, on the way to their home and back.

A *home* is the partition whose leader decides a transaction: one of `__transaction_state`, or the
group's own partition of `__consumer_offsets` if it commits offsets of a group. A *position* is what
a transactional id decides once: an epoch and a number of a producer, a number of a numbered id, or
the one position of an idempotency key.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from broker.log.leader_epoch_cache import NO_EPOCH
from broker.record.batch import RecordFormat
from raft_metadata.common.ids import (
    BrokerId,
    GroupId,
    InstanceId,
    LeaderEpoch,
    PartitionId,
    TopicId,
    TopicName,
)

NO_GROUP = GroupId("")
"""In place of a group: the home is a partition of `__transaction_state`."""
KEY_PREFIX = "key:"
"""Beginning of the id that an idempotency key is kept under; no client may choose such an id."""
ONCE_PREFIX = f"{KEY_PREFIX} "
"""Beginning of the id of a one-shot without a key. Keys have no blanks, so no client repeats it."""
EXPECTED_NONE = -1
"""`OffsetMove.expected` of a partition for which the group has committed nothing yet."""


class TransactionalId(NamedTuple):
    """A transactional id under its group; the same name under another group is another id."""

    group: GroupId
    """`NO_GROUP`, or the group whose offsets its transactions may commit."""
    name: str
    """The client's id, or ``key:K`` for an idempotency key K."""

    @property
    def is_key(self) -> bool:
        """True for an idempotency key, which has one position."""
        return self.name.startswith(KEY_PREFIX)

    @property
    def is_once(self) -> bool:
        """True for a one-shot without a key: it is repeated between brokers only."""
        return self.name.startswith(ONCE_PREFIX)


class ProducerPosition(NamedTuple):
    """The position of a producer's transaction: a lower epoch decides nothing any more."""

    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class NumberedPosition:
    """A number that is decided once, by the run that brings it first."""

    number: int
    run_id: str
    """Name of one run of the job: 1 to 64 characters."""
    input: str | None = None
    """Name of what the number was made of; another run with another one is refused. Null: not said.
    """


@dataclass(frozen=True, slots=True)
class KeyPosition:
    """The one position of an idempotency key."""


Position = ProducerPosition | NumberedPosition | KeyPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRows:
    """Rows for one partition, in the client's text; checked by the topic's configs already."""

    topic_id: TopicId
    partition: PartitionId
    key_format: RecordFormat
    value_format: RecordFormat
    rows: int
    records: bytes
    """The rows as a JSON array: its elements are stored lines without offset (rule R12)."""


class AttemptNamed(NamedTuple):
    """A staged attempt that a commit names, with all that it must hold (rule S9)."""

    attempt_id: str
    chunks: int
    rows: int


@dataclass(frozen=True, slots=True)
class OffsetMove:
    """An offset that a transaction commits for its group, in the turn of its decision (rule S8)."""

    topic: TopicName
    partition: PartitionId
    offset: int
    """The next offset to read."""
    expected: int | None = None
    """The committed offset that the client expects, `EXPECTED_NONE` for none; null: any."""
    metadata: str = ""
    leader_epoch: int = NO_EPOCH


class LogPlace(NamedTuple):
    """The place of a record in all histories of a log, below and above the places of others.

    An unclean election gives an offset to another record; but no two leaders have one epoch (rule
    R3), so no other record has both. The epochs of one history never fall: what is below a place in
    this order, and not in its history, is of an older one, which was cut.
    """

    leader_epoch: LeaderEpoch
    """Leader epoch in which the record's batch was appended."""
    offset: int

    def moved(self, by: int) -> LogPlace:
        """Return the place of the record so many records behind this one in its batch."""
        return LogPlace(self.leader_epoch, self.offset + by)


class TransactionState(Enum):
    """The state of a position. STAGING is known to stages only: their home has decided nothing."""

    EMPTY = "empty"
    """Of an id only: a producer was initialised, and has neither a position nor staged rows."""
    STAGING = "staging"
    COMMITTING = "committing"
    """Decided: nothing can undo it. Some target may not have committed its rows yet."""
    COMPLETE = "complete"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class PlacedRows:
    """Rows of a decided transaction in one partition."""

    topic_id: TopicId
    partition: PartitionId
    rows: int
    base_offset: int | None
    """Offset of the first row; null if it is not known, or not known any more. Rows of other
    requests may stand between rows that were staged in several chunks."""


@dataclass(frozen=True, slots=True)
class LostRows:
    """Decided rows of one partition that an unclean election of a stage took: they are nowhere."""

    topic_id: TopicId
    partition: PartitionId
    rows: int


@dataclass(frozen=True, slots=True)
class PendingTarget:
    """A partition whose rows are decided and not committed there yet, and what it waits for."""

    topic_id: TopicId
    partition: PartitionId
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionOutcome:
    """Fate of the position that a commit named. Never ABORTED: that is an error."""

    epoch: int
    number: int
    state: TransactionState
    already: bool = False
    """True for a numbered run that came later: its rows are discarded."""
    placed: tuple[PlacedRows, ...] = ()
    pending: tuple[PendingTarget, ...] = ()
    """Empty once complete."""
    dropped: tuple[tuple[TopicId, PartitionId], ...] = ()
    """Targets whose topic was deleted behind the decision (rule S11)."""
    lost: tuple[LostRows, ...] = ()
    """Then it is not all there, and no success (rule S3)."""
    layout: int = 0
    """Checksum of the partitions that the first attempt chose for its inline rows, in their order:
    a repeat that chose others can't tell which row stands where."""


@dataclass(frozen=True, slots=True)
class PositionFate:
    """Fate of a position as its abort hears it: aborted, or what was decided before."""

    state: TransactionState
    lost: tuple[LostRows, ...] = ()
    """Then it is decided, and not all there (rule S3)."""


class LastPosition(NamedTuple):
    """The newest position of a transactional id, and its fate."""

    epoch: int
    number: int
    state: TransactionState
    lost_rows: int = 0
    """Decided rows that are nowhere: then it is not all there (rule S3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerInitialized:
    """The epoch of a producer's new life, and what became of its last one.

    A position behind ``last``, of an epoch above ``forgotten_to_epoch``, was never decided and
    never will be (rule S6).
    """

    epoch: int
    last: LastPosition | None = None
    forgotten_to_epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedAttempt:
    """A staged attempt as its stage knows it."""

    attempt_id: str
    chunks: int
    rows: int
    bytes: int
    age_ms: int
    number: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    """A transactional id as its home and the stages know it."""

    id: TransactionalId
    epoch: int
    """Present epoch of a producer; -1 for an id without epochs."""
    last: LastPosition | None
    """Null while nothing was decided."""
    state: TransactionState
    """STAGING if a stage holds rows of a position behind the last one."""
    decided_ms: int | None = None
    placed: tuple[PlacedRows, ...] = ()
    pending: tuple[PendingTarget, ...] = ()
    dropped: tuple[tuple[TopicId, PartitionId], ...] = ()
    lost: tuple[LostRows, ...] = ()
    attempts: tuple[StagedAttempt, ...] = ()
    home_leader: BrokerId
    home_partition: PartitionId
    member_id: InstanceId | None = None
