"""Records of the coordinators' topics: a key, and the newest fact about it.

A shard writes them and replays them when it is loaded. Those of groups stand in
`__consumer_offsets`, those of a home (`broker.transactions.home_records`) there and in
`__transaction_state`. They are ordinary JSON records, so that
compaction by key keeps the newest fact of each key. The key is an array that starts with its kind;
the value is an object, or null if the fact no longer holds. Every prefix of records that are
written together is valid, because a large append may survive in part.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import msgspec
import orjson

from broker.coordinator.assignors import UNIFORM
from broker.coordinator.group_messages import ConsumerSettings
from broker.log.leader_epoch_cache import NO_EPOCH
from broker.transactions.home_records import (
    HOME_KEYS,
    HOME_KINDS,
    HomeKey,
    HomeValue,
    TransactionValue,
    decode_home_key,
    decode_home_value,
    encode_home_key,
    encode_home_value,
)
from broker.transactions.messages import LogPlace
from raft_metadata.common.errors import CorruptionError
from raft_metadata.common.ids import (
    GroupId,
    InstanceId,
    PartitionId,
    TopicId,
    TopicName,
    TopicPartition,
)
from raft_metadata.common.internal_topics import OFFSETS_TOPIC as OFFSETS_TOPIC

REASON_CHARACTERS_MAX = 300
"""Most characters of the reason why a record can't be decoded."""
ByTopic = Mapping[TopicName, tuple[PartitionId, ...]]
"""Partitions by topic, the stored form: the name of a topic is stored once."""


class GroupKey(NamedTuple):
    """Key of a group as a whole."""

    group: GroupId


class InstanceKey(NamedTuple):
    """Key of a consumer instance."""

    group: GroupId
    instance: InstanceId


class MemberKey(NamedTuple):
    """Key of a subscribed instance as a member of its group."""

    group: GroupId
    instance: InstanceId


class OffsetKey(NamedTuple):
    """Key of the committed offset of a partition."""

    group: GroupId
    topic: TopicName
    partition: PartitionId


class StartKey(NamedTuple):
    """Key of the start offset of a partition without a committed offset (rule G2)."""

    group: GroupId
    topic: TopicName
    partition: PartitionId


class SeekKey(NamedTuple):
    """Key of a position that an instance sought, until it commits (rule G2)."""

    group: GroupId
    instance: InstanceId
    topic: TopicName
    partition: PartitionId


class SkipKey(NamedTuple):
    """Key of the records that a group steps over in a partition, until a commit passes them."""

    group: GroupId
    topic: TopicName
    partition: PartitionId


class LeftOutKey(NamedTuple):
    """Key of the undecodable records that named no group and that a load left out."""

    group: GroupId = GroupId("")


class UnknownKey(NamedTuple):
    """Key that is not known to this broker, as the JSON text that it is stored as."""

    group: GroupId
    text: bytes


class ProbeKey(NamedTuple):
    """Key of a record without content; its being committed proves which broker leads (rule G3)."""

    group: GroupId = GroupId("")


GroupFactKey = (
    GroupKey
    | InstanceKey
    | MemberKey
    | OffsetKey
    | StartKey
    | SeekKey
    | SkipKey
    | LeftOutKey
    | UnknownKey
    | ProbeKey
)
Key = HomeKey | GroupFactKey


@dataclass(frozen=True, slots=True)
class GroupValue:
    """The group epoch; it grows with every new target assignment and never goes back."""

    epoch: int
    default_assignor: str = UNIFORM
    """The assignor if no member names one: the cluster's default when the group was last empty."""
    empty_since_ms: int | None = None
    """Wall time at which the last instance left; None: it has some, or the time is not known."""


class Seat(Enum):
    """The place of a static member in its group (KIP-345)."""

    TAKEN = "taken"
    """The instance has it; instances without a static id are always here."""
    VACANT = "vacant"
    """The instance has closed and its seat is kept: its static id may come back."""
    LOST = "lost"
    """A newer instance with the same static id has it: every call of this one is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceValue:
    """Settings of an instance, and either a subscription, a manual assignment, or neither."""

    settings: ConsumerSettings
    client_id: str = ""
    topics: tuple[TopicName, ...] | None = None
    pattern: str | None = None
    manual: ByTopic | None = None
    is_token_reader: bool = False
    """True from its first read with a token on: only what a token acknowledges is received (G5)."""
    seat: Seat = Seat.TAKEN
    rebalance_timeout_ms: int | None = None
    """Set for a member that reads for itself: the time in which it must give up partitions. None:
    an instance, for which the coordinator reads."""

    @property
    def reads_itself(self) -> bool:
        """True for a member that reads from leaders, and names what it owns in heartbeats."""
        return self.rebalance_timeout_ms is not None

    @property
    def is_subscribed(self) -> bool:
        """True if the instance is a member of its group."""
        return self.topics is not None or self.pattern is not None


@dataclass(frozen=True, slots=True)
class MemberValue:
    """The member epoch; ``owned``: what it reads and may commit; ``target``: what it is to own."""

    epoch: int
    target: ByTopic
    owned: ByTopic
    previous_epoch: int = -1
    """The epoch that a member which reads for itself has until it receives the present one; -1 if
    there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetValue:
    """A committed offset: the next one to read, valid only for the topic with ``topic_id``."""

    topic_id: TopicId
    offset: int
    metadata: str = ""
    instance: InstanceId | None = None
    """The instance that committed it; None for a commit without an instance."""
    committed_ms: int | None = None
    """Wall time of the commit; None if this broker's clock was not trusted then."""
    leader_epoch: int = NO_EPOCH
    """Epoch of the offset: that of the record right before it; -1 if it is not known."""


@dataclass(frozen=True, slots=True)
class StartValue:
    """A resolved start offset, valid only for the topic with ``topic_id``."""

    topic_id: TopicId
    offset: int
    leader_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class SeekValue:
    """A sought offset, valid only for the topic with ``topic_id``."""

    topic_id: TopicId
    offset: int
    leader_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True, order=True)
class StoredRecord:
    """A record of a partition: no other one ever has both its offset and its epoch."""

    offset: int
    leader_epoch: int
    """Epoch in which it was written."""


@dataclass(frozen=True, slots=True)
class SkipValue:
    """Records that are stepped over, ascending; valid only for the topic with ``topic_id``."""

    topic_id: TopicId
    records: tuple[StoredRecord, ...]


@dataclass(frozen=True, slots=True)
class LeftOutValue:
    """Undecodable records up to ``offset`` that name no group are dealt with."""

    offset: int
    count: int
    """Number of records that the newest such load left out."""
    at_ms: int | None = None
    """Wall time of that load; None if this broker's clock was not trusted then."""


@dataclass(frozen=True, slots=True)
class ProbeValue:
    """The empty value of a probe."""


Value = (
    HomeValue
    | GroupValue
    | InstanceValue
    | MemberValue
    | OffsetValue
    | StartValue
    | SeekValue
    | SkipValue
    | LeftOutValue
    | ProbeValue
)


class ShardRecord(NamedTuple):
    """A fact about a group, or of a home. ``value`` None: the fact no longer holds."""

    key: Key
    value: Value | None


_KINDS: Mapping[str, tuple[type[Any], type[Any]]] = {
    "group": (GroupKey, GroupValue),
    "instance": (InstanceKey, InstanceValue),
    "member": (MemberKey, MemberValue),
    "offset": (OffsetKey, OffsetValue),
    "start": (StartKey, StartValue),
    "seek": (SeekKey, SeekValue),
    "skip": (SkipKey, SkipValue),
    "left-out": (LeftOutKey, LeftOutValue),
    "probe": (ProbeKey, ProbeValue),
}
_NAMES: Mapping[type[Any], str] = {key: name for name, (key, _) in _KINDS.items()}


def partition_of_group(group: GroupId, partitions: int) -> PartitionId:
    """Return the partition of the offsets topic whose leader coordinates the group (D8)."""
    return PartitionId(zlib.crc32(group.encode()) % partitions)


def encode_key(key: Key) -> bytes:
    """Return the key as JSON text."""
    if isinstance(key, UnknownKey):
        return key.text
    if isinstance(key, HOME_KEYS):
        return encode_home_key(key)
    return orjson.dumps([_NAMES[type(key)], *key])


def encode_value(value: Value | None) -> bytes:
    """Return the value as JSON text."""
    if isinstance(value, TransactionValue | LogPlace):
        return encode_home_value(value)
    return orjson.dumps(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class UndecodableRecord:
    """A record with a sound checksum, whose kind or shape is not known to this broker."""

    offset: int
    key: Key
    """Key as far as it is known: an `UnknownKey` if not; without a group if it names none."""
    reason: str


def decode_entry(key: object, value: object) -> ShardRecord:
    """Return the record of a parsed JSON key and value, not of a home's (`decode_record`).

    Raises:
        CorruptionError: the kind or shape is not known to this broker.
    """
    try:
        kind, *parts = msgspec.convert(key, list[str | int])
        key_type, value_type = _KINDS[str(kind)]
        return ShardRecord(
            msgspec.convert(parts, key_type),
            None if value is None else msgspec.convert(value, value_type),
        )
    except (ValueError, KeyError, TypeError) as error:
        msg = f"unknown group record key={key!r}: {error}"
        raise CorruptionError(msg) from error


def is_of_home(key: object) -> bool:
    """Return True if a parsed key is that of a home's record: its value must stay text (R12)."""
    return isinstance(key, list) and bool(key) and str(key[0]) in HOME_KINDS


def _decode_home(key: list[str | int], value: bytes) -> ShardRecord:
    kind, *parts = key
    try:
        return ShardRecord(decode_home_key(str(kind), parts), decode_home_value(str(kind), value))
    except (ValueError, TypeError) as error:
        msg = f"unknown record of a home key={key!r}: {error}"
        raise CorruptionError(msg) from error


def _decode_key(text: bytes) -> Key | None:
    try:
        parts = orjson.loads(text)
        if is_of_home(parts):
            return _decode_home(parts, b"null").key
        return decode_entry(parts, None).key
    except (CorruptionError, orjson.JSONDecodeError):
        return None


def decode_record(key: bytes, value: bytes, offset: int) -> ShardRecord | UndecodableRecord:
    """Return the record of a stored key and value, each its bytes view.

    No fact is skipped: it would be lost with the next change of its key. A null value is no fact,
    so it is known under any key.
    """
    try:
        parts = orjson.loads(key)
        if is_of_home(parts):
            return _decode_home(parts, value)
        return decode_entry(parts, orjson.loads(value))
    except (CorruptionError, orjson.JSONDecodeError) as error:
        known = _decode_key(key) or UnknownKey(_group_in(key), key)
        if value == b"null":
            return ShardRecord(known, None)
        reason = str(error)[:REASON_CHARACTERS_MAX]
        return UndecodableRecord(offset=offset, key=known, reason=reason)


def _group_in(key: bytes) -> GroupId:
    """Return the group that a key of any kind names; an empty one if it names none."""
    try:
        parts = msgspec.convert(orjson.loads(key), list[str | int])
    except (ValueError, TypeError):
        return GroupId("")
    named = len(parts) > 1 and isinstance(parts[0], str) and isinstance(parts[1], str)
    return GroupId(str(parts[1])) if named else GroupId("")


@dataclass(slots=True)
class UndecodableRecords:
    """The undecodable records of a load: the newest of each key, in the order of the log."""

    by_key: dict[bytes, UndecodableRecord] = field(default_factory=dict)

    def note(self, record: UndecodableRecord) -> None:
        """Add a record that can't be decoded."""
        key = encode_key(record.key)
        self.by_key.pop(key, None)
        self.by_key[key] = record

    def replace(self, entry: ShardRecord) -> None:
        """Drop a record whose key has a newer one that can be decoded."""
        if self.by_key:
            self.by_key.pop(encode_key(entry.key), None)


def is_record_of_home(record: UndecodableRecord) -> bool:
    """Return True if an undecodable record has the key of a home's record."""
    key = record.key
    if isinstance(key, UnknownKey):
        try:
            return is_of_home(orjson.loads(key.text))
        except orjson.JSONDecodeError:
            return False
    return isinstance(key, HOME_KEYS)


def by_topic(partitions: Iterable[TopicPartition]) -> ByTopic:
    """Return partitions in their stored form, sorted, so that equal sets give equal records."""
    found: dict[TopicName, list[PartitionId]] = {}
    for topic, partition in sorted(partitions):
        found.setdefault(topic, []).append(partition)
    return {topic: tuple(numbers) for topic, numbers in found.items()}


def partitions_of(stored: ByTopic) -> frozenset[TopicPartition]:
    """Return the set of partitions in their stored form."""
    return frozenset(
        TopicPartition(topic, partition)
        for topic, partitions in stored.items()
        for partition in partitions
    )
