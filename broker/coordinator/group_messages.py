"""Requests to a group coordinator and its answers, and their encoding between brokers.

`BrokerApis.group` takes a request on any broker and forwards it to the group's coordinator if that
is another broker. Between brokers a request or answer is a JSON head followed by raw bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeVar, cast

import msgspec
import orjson

from broker.log.leader_epoch_cache import NO_EPOCH
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import (
    BrokerId,
    GroupId,
    InstanceId,
    PartitionId,
    TopicId,
    TopicName,
    TopicPartition,
)

A = TypeVar("A")

MOVES_KEPT = 10
"""Moved positions that a group's description names."""
MOVES_REPORTED_MAX = 32
"""Most moved positions that one answer names; the next answer names more."""
SCHEMA_FORMATS = frozenset({"avro", "jsonschema", "protobuf"})
"""Formats that are accepted when an instance is created and refused when it reads."""
FORMATS = frozenset({"binary", "json", "text"}) | SCHEMA_FORMATS


class OffsetReset(Enum):
    """Start of a partition without a committed offset. NONE: reading it is an error."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"


class UnreadableRecords(Enum):
    """The treatment of a record that an instance's format can't show."""

    STOP = "stop"
    """The partition stops for the instance."""
    MARK = "mark"
    """The record is delivered in base64, and marked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """Settings with which a consumer instance was created; times in milliseconds."""

    format: str = "binary"
    """One of `FORMATS`."""
    auto_offset_reset: OffsetReset = OffsetReset.LATEST
    auto_commit: bool = True
    """Automatic commits cover only positions that an earlier read returned."""
    auto_commit_interval_ms: int = 5_000
    fetch_min_bytes: int = 1
    """Bytes at which a read returns; -1: it waits the whole time-out (Confluent's default)."""
    request_timeout_ms: int = 1_000
    """Longest wait of a read without its own time-out."""
    session_timeout_ms: int = 300_000
    max_poll_records: int | None = None
    """Most records of one read; None sets no limit."""
    unreadable_records: UnreadableRecords = UnreadableRecords.STOP
    rack: str | None = None
    """The rack of the client: partitions with a replica there are preferred in its assignment."""
    static_id: str | None = None
    """The static id (``group.instance.id``), by which a client that restarts owns the same."""
    assignors: tuple[str, ...] = ()
    """Names of `ASSIGNORS`, the preferred one first; empty: the group's default."""
    strimzi: bool = False
    """True for Strimzi's dialect, whose commits store the given offset; Confluent's store it +
    1."""


# positions in partitions


class Edge(Enum):
    """An end of a partition as the target of a seek."""

    BEGINNING = "beginning"
    END = "end"


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record at or after this time (ms since 1970) as the target of a seek."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class SeekTarget:
    """A partition and its new position: an offset, an end, or a time."""

    topic: TopicName
    partition: PartitionId
    to: int | Edge | AtTime
    leader_epoch: int = NO_EPOCH
    """Epoch of the offset in ``to``, if the client knows it."""


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """A committed offset, or one to commit; the request defines the meaning of ``offset``."""

    topic: TopicName
    partition: PartitionId
    offset: int
    metadata: str = ""
    leader_epoch: int = NO_EPOCH
    """Epoch of the offset as it is stored: that of the record right before it; -1: not known."""


class Move(NamedTuple):
    """A position that was moved: the log does not hold it, or the records before it, any more."""

    instance: InstanceId
    topic: TopicName
    partition: PartitionId
    from_offset: int
    to_offset: int
    cause: str
    """``truncated``, ``diverged`` or ``out_of_range``."""
    time_ms: int
    """Wall time of the coordinator."""


@dataclass(frozen=True, slots=True)
class GroupOffsetRow:
    """A row of `GroupOffsets`; ``offset`` is the next one to read.

    ``offset`` is None for a partition without a start: it was never committed, and its owner's
    ``auto.offset.reset`` is none.
    """

    topic: TopicName
    partition: PartitionId
    offset: int | None
    metadata: str
    end_offset: int | None
    """The high watermark; None if the topic is deleted or its leader did not answer."""
    is_committed: bool = True
    """False for the start of a partition that an instance reads and never committed."""
    leader_epoch: int = NO_EPOCH
    """See `GroupOffset.leader_epoch`."""
    blocked_offset: int | None = None
    """The record that stops an instance there, which can't show it; None: none does."""

    @property
    def lag(self) -> int | None:
        """Number of records not yet read; None if start or end is not known."""
        if self.end_offset is None or self.offset is None:
            return None
        return max(0, self.end_offset - self.offset)


# requests


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRequest(Generic[A]):
    """A request to the coordinator of a group. ``A`` is the type of its answer."""

    group: GroupId


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceCreated:
    """The name of the created instance: the requested one, or a generated one."""

    instance: InstanceId


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateInstance(GroupRequest[InstanceCreated]):
    """Request to create a consumer instance.

    The receiving broker generates a name if ``instance`` is None.
    """

    instance: InstanceId | None = None
    settings: ConsumerSettings = ConsumerSettings()
    client_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteInstance(GroupRequest[None]):
    """Request to remove an instance; with auto-commit, positions already returned are committed."""

    instance: InstanceId
    after: str | None = None
    """The token of the newest answer that the client holds, acknowledged first."""
    leave: bool = False
    """True: a static member gives up its seat, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe(GroupRequest[None]):
    """Request to replace the subscription and join. Exactly one of topics and pattern is set."""

    instance: InstanceId
    topics: tuple[TopicName, ...] | None = None
    pattern: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsubscribe(GroupRequest[None]):
    """Request to remove the subscription or the manual assignment; succeeds without either."""

    instance: InstanceId


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceDescription:
    """An instance as its coordinator knows it."""

    settings: ConsumerSettings
    topics: tuple[TopicName, ...]
    """Subscribed by name, or matched by the pattern; sorted."""
    pattern: str | None
    assignment: tuple[TopicPartition, ...]
    """Partitions owned now, by subscription or by manual assignment; sorted."""
    is_manual: bool
    member_epoch: int
    """-1 without a subscription."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeInstance(GroupRequest[InstanceDescription]):
    """Request for the subscription and assignment of an instance."""

    instance: InstanceId


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign(GroupRequest[None]):
    """Request to replace the manual assignment, which takes no part in rebalancing."""

    instance: InstanceId
    partitions: tuple[TopicPartition, ...]


class BlockedPlace(NamedTuple):
    """A record that stops an instance in its partition."""

    topic: TopicName
    partition: PartitionId
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PolledRecords:
    """Records in the v2 shape: ``body`` is a JSON array in the instance's format."""

    body: bytes
    count: int
    format: str
    """``json`` or ``binary``."""
    token: str = ""
    """The read token of this answer (rule G5)."""
    is_resumed: bool = False
    """True if the token was of an earlier coordinator: reading went on from the commit."""
    moved: tuple[Move, ...] = ()
    """Positions that were moved since the last answer, at most `MOVES_REPORTED_MAX`."""
    blocked: tuple[BlockedPlace, ...] = ()
    """The records at which this instance stands, because its format can't show them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll(GroupRequest[PolledRecords]):
    """Request for the next records; moves positions. Only the client may repeat it (rule F2)."""

    instance: InstanceId
    timeout_ms: int | None = None
    """None: the instance's own ``request_timeout_ms``."""
    max_bytes: int | None = None
    accepted: frozenset[str] | None = None
    """Formats that the client accepts, as in `FORMATS`; None: any."""
    after: str | None = None
    """The token of the newest answer that the client holds; None: a client without tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsCommitted:
    """Success of a commit. ``strimzi``: the instance's dialect, which selects the HTTP status."""

    strimzi: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit(GroupRequest[OffsetsCommitted]):
    """Request to commit offsets of an instance; ``offsets`` None: everything delivered.

    Offsets are as the client sent them; Confluent's dialect adds 1 to each.
    """

    instance: InstanceId
    offsets: tuple[GroupOffset, ...] | None = None
    after: str | None = None
    """The token of the newest answer that the client holds, acknowledged first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffsets(GroupRequest[tuple[GroupOffset, ...]]):
    """Request for committed offsets as stored: each is the next one to read.

    Partitions without a committed offset are left out of the answer.
    """

    instance: InstanceId
    partitions: tuple[TopicPartition, ...] | None = None
    """None: the partitions that the instance owns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions(GroupRequest[tuple[GroupOffset, ...]]):
    """Request for the next offset to be delivered of each partition that an instance owns."""

    instance: InstanceId


@dataclass(frozen=True, slots=True, kw_only=True)
class Seek(GroupRequest[None]):
    """Request to move the positions of owned partitions; all of them or none."""

    instance: InstanceId
    targets: tuple[SeekTarget, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitGroup(GroupRequest[None]):
    """Request to commit any offsets without an instance; each is the next one to read.

    While the group has live members, both member fields are required and must be a live member's
    present ones; else FENCED_MEMBER_EPOCH.
    """

    offsets: tuple[GroupOffset, ...]
    member_id: InstanceId | None = None
    member_epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffsets(GroupRequest[tuple[GroupOffsetRow, ...]]):
    """Request for all committed offsets of a group with ends and lag, sorted.

    The answer is empty for an unknown group.
    """

    topics: frozenset[TopicName] | None = None
    """None: all."""
    with_starts: bool = False
    """True: also the starts of partitions that instances own and never committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictInstance(GroupRequest[None]):
    """Request to remove an instance without a commit: it leaves, or is evicted.

    Exactly one of ``instance`` and ``static_id`` is set.
    """

    instance: InstanceId | None = None
    static_id: str | None = None
    """The static id of the instance to remove."""
    keep_seat: bool = False
    """True: a static member leaves and keeps its seat for its session time-out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroup(GroupRequest[None]):
    """Request to delete a group without live instances, with its offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOffsets(GroupRequest[None]):
    """Request to delete committed offsets of topics that no live instance reads."""

    topic: TopicName | None = None
    """None: all topics."""
    partition: PartitionId | None = None
    """None: all partitions of the topic."""


# members that read for themselves


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPartition:
    """A partition that a member owns now, and where its group stands in it."""

    topic: TopicName
    topic_id: TopicId
    partition: PartitionId
    offset: int | None
    """The next offset to read; None without a commit where ``auto_offset_reset`` is ``none``."""
    is_committed: bool
    """False for a resolved start (rule G2)."""
    leader_epoch: int = NO_EPOCH
    """The epoch of the record before ``offset``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """A member that reads for itself, as its coordinator knows it."""

    instance: InstanceId
    static_id: str | None
    member_epoch: int
    group_epoch: int
    assignor: str
    heartbeat_interval_ms: int
    """Time between two heartbeats that do not wait."""
    session_timeout_ms: int
    assignment: tuple[MemberPartition, ...]
    """Partitions to read, sorted."""
    revoked: tuple[TopicPartition, ...]
    """Partitions that the member is to give up, sorted: with its next heartbeat it names what it
    owns without them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinGroup(GroupRequest[Membership]):
    """Request to join as a member that reads for itself. It may be repeated.

    Exactly one of ``topics`` and ``pattern`` is set.
    """

    instance: InstanceId
    settings: ConsumerSettings
    """Only the offset reset, session time-out, rack, static id and assignors count."""
    rebalance_timeout_ms: int
    client_id: str = ""
    topics: tuple[TopicName, ...] | None = None
    pattern: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat(GroupRequest[Membership]):
    """Request of a member that reads for itself: it lives, and owns this. It may be repeated."""

    instance: InstanceId
    member_epoch: int
    owned: tuple[TopicPartition, ...]
    topics: tuple[TopicName, ...] | None = None
    """A new subscription; None with ``pattern`` None: it stays."""
    pattern: str | None = None
    wait_ms: int = 0
    """Longest wait for a change of what the member is to own."""


class SkippedRecord(NamedTuple):
    """A record that a group is to step over, because no member's format can show it."""

    topic: TopicName
    partition: PartitionId
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipRecords(GroupRequest[None]):
    """Request to step over records that stop members of a group; all of them or none."""

    records: tuple[SkippedRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgottenRecord:
    """A record of the group's log that this broker can't decode."""

    partition: PartitionId
    """Partition of the offsets topic."""
    offset: int
    key: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRepaired:
    """The group as it goes on: without these records, from these offsets."""

    forgotten: tuple[ForgottenRecord, ...]
    members: tuple[InstanceId, ...]
    """Instances that are forgotten with everything they own."""
    offsets: tuple[GroupOffset, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairGroup(GroupRequest[GroupRepaired]):
    """Request to go on without the records that can't be decoded and hold the group."""

    validate_only: bool = False


class GroupState(Enum):
    """The states of a group (KIP-848). RECONCILING: some member does not own its target yet.

    HELD: a record of it can't be decoded, and an operator must decide (`RepairGroup`).
    """

    EMPTY = "Empty"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    HELD = "Held"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDescription:
    """A live instance of a group: subscribed (a member), assigned by hand, or neither."""

    instance: InstanceId
    """Name of the instance, which is its member id too."""
    client_id: str
    assignment: tuple[TopicPartition, ...]
    is_manual: bool
    member_epoch: int
    """-1 without a subscription."""
    topics: tuple[TopicName, ...] = ()
    target: tuple[TopicPartition, ...] = ()
    """Partitions that it will own once their present owners have given them up."""
    static_id: str | None = None
    """Its ``group.instance.id``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedPartition:
    """A record that stops an instance in its partition, with the reason."""

    topic: TopicName
    partition: PartitionId
    offset: int
    instance: InstanceId
    message: str
    since_ms: int
    """Wall time at which a read found it first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group as its coordinator knows it; ``members`` is sorted by instance."""

    group: GroupId
    state: GroupState
    assignor: str
    coordinator: BrokerId
    group_epoch: int
    members: tuple[MemberDescription, ...]
    moved: tuple[Move, ...] = ()
    """The last positions that were moved, oldest first, at most `MOVES_KEPT`."""
    blocked: tuple[BlockedPartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroup(GroupRequest[GroupDescription]):
    """Request for the description of a group; GROUP_ID_NOT_FOUND without instances and offsets."""


T = TypeVar("T")

_LENGTH = struct.Struct("<I")
_ANSWERS: Mapping[type[GroupRequest[Any]], Any] = {
    CreateInstance: InstanceCreated,
    DeleteInstance: None,
    Subscribe: None,
    Unsubscribe: None,
    DescribeInstance: InstanceDescription,
    Assign: None,
    Poll: PolledRecords,
    Commit: OffsetsCommitted,
    CommittedOffsets: tuple[GroupOffset, ...],
    Seek: None,
    CommitGroup: None,
    GroupOffsets: tuple[GroupOffsetRow, ...],
    DescribeGroup: GroupDescription,
    Positions: tuple[GroupOffset, ...],
    EvictInstance: None,
    DeleteGroup: None,
    DeleteOffsets: None,
    JoinGroup: Membership,
    Heartbeat: Membership,
    SkipRecords: None,
    RepairGroup: GroupRepaired,
}
_REQUESTS: Mapping[str, type[GroupRequest[Any]]] = {cls.__name__: cls for cls in _ANSWERS}
PURE_READS = (DescribeInstance, CommittedOffsets, GroupOffsets, DescribeGroup, Positions)
"""Requests that change nothing but the time of a session's last call."""
MAY_REPEAT = (*PURE_READS, JoinGroup, Heartbeat)
"""Requests that may be sent twice: a repeat gets the answer of the first, or a newer one."""


def wait_ms_of(request: GroupRequest[Any]) -> int:
    """Return the longest time that a request waits at the coordinator, in milliseconds."""
    if isinstance(request, Heartbeat):
        return max(0, request.wait_ms)
    if isinstance(request, Poll) and request.timeout_ms is not None:
        return max(0, request.timeout_ms)
    return 0


def with_wait(request: GroupRequest[A], left_ms: int) -> GroupRequest[A]:
    """Return the request with what is left of its wait, for an attempt after the first."""
    if isinstance(request, Heartbeat):
        return cast("GroupRequest[A]", replace(request, wait_ms=left_ms))
    if isinstance(request, Poll) and request.timeout_ms is not None:
        return cast("GroupRequest[A]", replace(request, timeout_ms=left_ms))
    return request


def encode_request(request: GroupRequest[Any]) -> bytes:
    """Return the body of a GROUP request between brokers."""
    head = orjson.dumps([type(request).__name__, request], default=_plain)
    return _join(b'{"group":%b}' % head)


def decode_request(body: bytes) -> GroupRequest[Any]:
    """Return the request of a GROUP body.

    Raises KafkaError INVALID_REQUEST, which describes the defect.
    """
    try:
        name, fields = _head(body)[0]["group"]
        found: GroupRequest[Any] = msgspec.convert(fields, _REQUESTS[name])
    except (struct.error, ValueError, KeyError, TypeError) as error:
        text = f"malformed group request: {error}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text) from error
    return found


def encode_answer(answer: object) -> bytes:
    """Return the body of the answer to any group request."""
    if isinstance(answer, PolledRecords):
        head = {
            "body": "",
            "count": answer.count,
            "format": answer.format,
            "token": answer.token,
            "is_resumed": answer.is_resumed,
            "moved": answer.moved,
            "blocked": answer.blocked,
        }
        return _join(b'{"answer":%b}' % orjson.dumps(head, default=_plain), answer.body)
    return _join(b'{"answer":%b}' % orjson.dumps(answer, default=_plain))


def decode_answer(request: GroupRequest[T], body: bytes) -> T:
    """Return the answer to ``request`` of a body made by `encode_answer`."""
    cls = _ANSWERS[type(request)]
    head, payload = _head(body)
    found = head["answer"]
    answer: Any = None
    if cls is PolledRecords:
        answer = PolledRecords(
            body=payload,
            count=found["count"],
            format=found["format"],
            token=found["token"],
            is_resumed=found["is_resumed"],
            moved=msgspec.convert(found["moved"], tuple[Move, ...]),
            blocked=msgspec.convert(found["blocked"], tuple[BlockedPlace, ...]),
        )
    elif cls is not None:
        answer = msgspec.convert(found, cls)
    return answer  # type: ignore[no-any-return]


def decode_groups(body: bytes) -> tuple[GroupDescription, ...]:
    """Return the groups of the answer to LIST_GROUPS."""
    return msgspec.convert(_head(body)[0]["answer"], tuple[GroupDescription, ...])


def _join(head: bytes, payload: bytes = b"") -> bytes:
    return b"".join((_LENGTH.pack(len(head)), head, payload))


def _head(body: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = _LENGTH.unpack_from(body)
    end = _LENGTH.size + length
    head: dict[str, Any] = orjson.loads(body[_LENGTH.size : end])
    return head, body[end:]


def _plain(value: object) -> object:
    if isinstance(value, tuple | frozenset):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not a field of a group request")
