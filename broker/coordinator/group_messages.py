"""Requests to a group coordinator and its answers, and their bytes between brokers.

`BrokerApis.group` answers these requests on any broker; between brokers one crosses as a JSON head
followed by raw bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

import msgspec
import orjson

from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import (
    BrokerId,
    GroupId,
    InstanceId,
    PartitionId,
    TopicName,
    TopicPartition,
)

A = TypeVar("A")

SCHEMA_FORMATS = frozenset({"avro", "jsonschema", "protobuf"})
"""Accepted when an instance is created, refused when it reads (interfaces, section 4)."""
FORMATS = frozenset({"binary", "json"}) | SCHEMA_FORMATS


class OffsetReset(Enum):
    """The start of a partition without a committed offset. NONE: reading it is an error."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """The settings a consumer instance was created with; all times in milliseconds."""

    format: str = "binary"
    """One of `FORMATS`."""
    auto_offset_reset: OffsetReset = OffsetReset.LATEST
    auto_commit: bool = True
    """Commits only positions that an earlier read already returned."""
    auto_commit_interval_ms: int = 5_000
    fetch_min_bytes: int = 1
    """-1: wait the whole time-out (Confluent's own default)."""
    request_timeout_ms: int = 1_000
    """The wait of a read that names no time-out."""
    session_timeout_ms: int = 300_000
    strimzi: bool = False
    """Strimzi's dialect: a commit stores the offset as given; Confluent's stores offset + 1."""


# what partitions are named by


class Edge(Enum):
    """An end of a partition to seek to."""

    BEGINNING = "beginning"
    END = "end"


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record at or behind this time (ms since 1970)."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class SeekTarget:
    """The target of a seek: an offset, an end, or a time."""

    topic: TopicName
    partition: PartitionId
    to: int | Edge | AtTime


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """A committed offset, or one to commit. See each request for what ``offset`` means there."""

    topic: TopicName
    partition: PartitionId
    offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class GroupOffsetRow:
    """A row of `GroupOffsets`: ``offset`` is the next one to read."""

    topic: TopicName
    partition: PartitionId
    offset: int
    metadata: str
    end_offset: int | None
    """The high watermark; None where the topic is gone or its leader did not answer."""

    @property
    def lag(self) -> int | None:
        """Records to be read yet; None where the end is not known."""
        return None if self.end_offset is None else max(0, self.end_offset - self.offset)


# requests


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRequest(Generic[A]):
    """Anything asked of one group's coordinator. ``A`` is the type of its answer."""

    group: GroupId


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceCreated:
    """The name as asked for, or the one that was made up."""

    instance: InstanceId


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateInstance(GroupRequest[InstanceCreated]):
    """``instance`` None: the door makes up a name before anything is sent."""

    instance: InstanceId | None = None
    settings: ConsumerSettings = ConsumerSettings()
    client_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteInstance(GroupRequest[None]):
    """Leaves the group at once. With auto-commit, positions already returned are committed."""

    instance: InstanceId


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe(GroupRequest[None]):
    """Replaces the subscription and joins at once. Exactly one of topics and pattern is set."""

    instance: InstanceId
    topics: tuple[TopicName, ...] | None = None
    pattern: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsubscribe(GroupRequest[None]):
    """Gives up subscription and manual assignment alike; also without any."""

    instance: InstanceId


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceDescription:
    """An instance as the coordinator sees it."""

    settings: ConsumerSettings
    topics: tuple[TopicName, ...]
    """Subscribed by name, or matched by the pattern; sorted."""
    pattern: str | None
    assignment: tuple[TopicPartition, ...]
    """Owned now, by subscription or by hand; sorted."""
    is_manual: bool
    member_epoch: int
    """-1 without a subscription."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeInstance(GroupRequest[InstanceDescription]):
    """Subscription and assignment."""

    instance: InstanceId


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign(GroupRequest[None]):
    """Replaces the manual assignment; outside the group's rebalancing."""

    instance: InstanceId
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolledRecords:
    """``body``: a JSON array in the v2 record shape, in the instance's format."""

    body: bytes
    count: int
    format: str
    """``json`` or ``binary``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll(GroupRequest[PolledRecords]):
    """Read on. Moves positions: never sent again by anyone but the client (rule F2)."""

    instance: InstanceId
    timeout_ms: int | None = None
    """None: the instance's own ``request_timeout_ms``."""
    max_bytes: int | None = None
    accepted: frozenset[str] | None = None
    """Formats the client takes, as in `FORMATS`; None: any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsCommitted:
    """``strimzi``: the instance's dialect, which decides how HTTP says "done"."""

    strimzi: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit(GroupRequest[OffsetsCommitted]):
    """``offsets`` None: everything delivered. Else as the client said them: the dialect adds 1."""

    instance: InstanceId
    offsets: tuple[GroupOffset, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffsets(GroupRequest[tuple[GroupOffset, ...]]):
    """Committed offsets, as stored (the next one to read); without any, left out."""

    instance: InstanceId
    partitions: tuple[TopicPartition, ...] | None = None
    """None: whatever the instance owns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seek(GroupRequest[None]):
    """Move positions of owned partitions; all of them or none."""

    instance: InstanceId
    targets: tuple[SeekTarget, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitGroup(GroupRequest[None]):
    """Commit without an instance: ``offset`` = the next one to read, any offset.

    While the group has live members, both member fields are required and must be a live member's
    present ones (FENCED_MEMBER_EPOCH otherwise).
    """

    offsets: tuple[GroupOffset, ...]
    member_id: InstanceId | None = None
    member_epoch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffsets(GroupRequest[tuple[GroupOffsetRow, ...]]):
    """Everything the group has committed, with ends and lag; sorted. Empty for an unknown group."""

    topics: frozenset[TopicName] | None = None
    """None: all."""


class GroupState(Enum):
    """The states of KIP-848. RECONCILING: a member does not yet own its target."""

    EMPTY = "Empty"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDescription:
    """A live instance of the group: a member where it subscribes, else assigned by hand or idle."""

    instance: InstanceId
    """Also its member id."""
    client_id: str
    assignment: tuple[TopicPartition, ...]
    is_manual: bool
    member_epoch: int
    """-1 without a subscription."""
    topics: tuple[TopicName, ...] = ()
    target: tuple[TopicPartition, ...] = ()
    """The partitions that it will own once their present owners have revoked them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group as its coordinator sees it. ``members`` sorted by instance."""

    group: GroupId
    state: GroupState
    assignor: str
    coordinator: BrokerId
    group_epoch: int
    members: tuple[MemberDescription, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroup(GroupRequest[GroupDescription]):
    """GROUP_ID_NOT_FOUND for a group without instances and offsets."""


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
}
_REQUESTS: Mapping[str, type[GroupRequest[Any]]] = {cls.__name__: cls for cls in _ANSWERS}
PURE_READS = (DescribeInstance, CommittedOffsets, GroupOffsets, DescribeGroup)
"""May be asked twice: they refresh a session at most."""


def encode_request(request: GroupRequest[Any]) -> bytes:
    """A GROUP body."""
    head = orjson.dumps([type(request).__name__, request], default=_plain)
    return _join(b'{"group":%b}' % head)


def decode_request(body: bytes) -> GroupRequest[Any]:
    """The inverse. INVALID_REQUEST says what is wrong."""
    try:
        name, fields = _head(body)[0]["group"]
        found: GroupRequest[Any] = msgspec.convert(fields, _REQUESTS[name])
    except (struct.error, ValueError, KeyError, TypeError) as error:
        text = f"malformed group request: {error}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text) from error
    return found


def encode_answer(answer: object) -> bytes:
    """The answer to any of them."""
    if isinstance(answer, PolledRecords):
        head = {"body": "", "count": answer.count, "format": answer.format}
        return _join(b'{"answer":%b}' % orjson.dumps(head), answer.body)
    return _join(b'{"answer":%b}' % orjson.dumps(answer, default=_plain))


def decode_answer(request: GroupRequest[T], body: bytes) -> T:
    """The inverse of `encode_answer`."""
    cls = _ANSWERS[type(request)]
    head, payload = _head(body)
    found = head["answer"]
    answer: Any = None
    if cls is PolledRecords:
        answer = PolledRecords(body=payload, count=found["count"], format=found["format"])
    elif cls is not None:
        answer = msgspec.convert(found, cls)
    return answer  # type: ignore[no-any-return]


def decode_groups(body: bytes) -> tuple[GroupDescription, ...]:
    """The answer to LIST_GROUPS."""
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
