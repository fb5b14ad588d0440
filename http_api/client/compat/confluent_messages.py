"""Messages, partitions and small values of confluent-kafka's interface. Pure.

`message_of` wraps a record of the SDK without copying it: a message's fields are read when a method
asks for them. `partition_of` and `sdk_partition` translate a `TopicPartition` of either side.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum, IntEnum
from typing import Any, Final, Generic, Self, overload

import msgspec
from typing_extensions import TypeVar, override

from http_api.client.compat.confluent_errors import KafkaError, kafka_error
from http_api.client.sdk import record_types
from http_api.client.sdk.record_types import Record

K = TypeVar("K", default=bytes)
V = TypeVar("V", default=bytes)

OFFSET_BEGINNING: Final = -2
OFFSET_END: Final = -1
OFFSET_STORED: Final = -1000
OFFSET_INVALID: Final = -1001
TIMESTAMP_NOT_AVAILABLE: Final = 0
TIMESTAMP_CREATE_TIME: Final = 1
TIMESTAMP_LOG_APPEND_TIME: Final = 2
ANY_PARTITION: Final = -1
FOLLOWED_VERSION: Final = "2.16.1"
"""Version of confluent-kafka whose interface this is."""
FOLLOWED_LIBRARY: Final = ("2.16.0", 0x021000FF)
"""Version of librdkafka whose meanings these are."""

HeaderValue = str | bytes | None
HeadersType = dict[str, HeaderValue] | list[tuple[str, HeaderValue]]
_NO_TIMESTAMP: Final = (TIMESTAMP_NOT_AVAILABLE, 0)
_TIMESTAMP_TYPES: Final = {
    "create": TIMESTAMP_CREATE_TIME,
    "append": TIMESTAMP_LOG_APPEND_TIME,
    "none": TIMESTAMP_NOT_AVAILABLE,
}


def version() -> str:
    """Return the version of confluent-kafka whose interface this is."""
    return FOLLOWED_VERSION


def libversion() -> tuple[str, int]:
    """Return the version of librdkafka whose meanings these are, as text and number."""
    return FOLLOWED_LIBRARY


def consistent(key: bytes, partition_count: int) -> int:
    """Return the partition of a key by crc32: where this cluster's producers put it, too."""
    return zlib.crc32(key) % partition_count


def fnv1a(key: bytes, partition_count: int) -> int:
    """Return the partition of a key by Sarama's FNV-1a hash; no producer here uses it."""
    found = 0x811C9DC5
    for byte in key:
        found = (found ^ byte) * 0x01000193 & 0xFFFFFFFF
    signed = found - (1 << 32) if found & 0x80000000 else found
    return abs(signed) % partition_count


def murmur2(key: bytes, partition_count: int) -> int:
    """Return the partition of a key by the hash of Java producers; no producer here uses it."""
    mask, mix = 0xFFFFFFFF, 0x5BD1E995
    found = 0x9747B28C ^ len(key)
    whole = len(key) & ~3
    for at in range(0, whole, 4):
        part = int.from_bytes(key[at : at + 4], "little") * mix & mask
        part = (part ^ part >> 24) * mix & mask
        found = (found * mix & mask) ^ part
    if whole < len(key):
        found = (found ^ int.from_bytes(key[whole:], "little")) * mix & mask
    found = (found ^ found >> 13) * mix & mask
    return ((found ^ found >> 15) & 0x7FFFFFFF) % partition_count


class TopicPartition:
    """A partition, with an offset where one is meant. Equal and hashed by topic and partition."""

    __slots__ = ("error", "leader_epoch", "metadata", "offset", "partition", "topic")

    def __init__(
        self,
        topic: str,
        partition: int = ANY_PARTITION,
        offset: int = OFFSET_INVALID,
        metadata: str | None = None,
        leader_epoch: int | None = None,
    ) -> None:
        name: object = topic
        if not isinstance(name, str):
            msg = f"argument 1 must be str, not {type(name).__name__}"
            raise TypeError(msg)
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.metadata = metadata
        self.leader_epoch = None if leader_epoch is not None and leader_epoch < 0 else leader_epoch
        self.error: KafkaError | None = None
        """Set in results, for a partition that failed."""

    @override
    def __repr__(self) -> str:
        return (
            f"TopicPartition{{topic={self.topic},partition={self.partition},offset={self.offset},"
            f"leader_epoch={self.leader_epoch},error={self.error}}}"
        )

    @override
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TopicPartition):
            return NotImplemented
        return (self.topic, self.partition) == (other.topic, other.partition)

    def __lt__(self, other: TopicPartition) -> bool:
        return (self.topic, self.partition) < (other.topic, other.partition)

    def __le__(self, other: TopicPartition) -> bool:
        return (self.topic, self.partition) <= (other.topic, other.partition)

    def __gt__(self, other: TopicPartition) -> bool:
        return (self.topic, self.partition) > (other.topic, other.partition)

    def __ge__(self, other: TopicPartition) -> bool:
        return (self.topic, self.partition) >= (other.topic, other.partition)

    @override
    def __hash__(self) -> int:
        return hash((self.topic, self.partition))


def partition_of(one: record_types.TopicPartition) -> TopicPartition:
    """Return a partition of the SDK in this interface's terms."""
    offset = OFFSET_INVALID if one.offset is None else one.offset
    found = TopicPartition(one.topic, one.partition, offset, one.metadata or None, one.leader_epoch)
    found.error = None if one.error is None else kafka_error(one.error)
    return found


def sdk_partition(one: TopicPartition) -> record_types.TopicPartition:
    """Return a partition in the SDK's terms: a stored or an invalid offset becomes None."""
    offset = None if one.offset in {OFFSET_INVALID, OFFSET_STORED} else one.offset
    return record_types.TopicPartition(
        one.topic,
        one.partition,
        offset,
        metadata=one.metadata or "",
        leader_epoch=one.leader_epoch,
    )


class Message(Generic[K, V]):
    """A message that was consumed or produced, or an event: then `error` returns what happened."""

    __slots__ = ("failure", "latency_s", "record")

    def __init__(  # noqa: PLR0917 confluent-kafka's signature
        self,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
        key: Any = None,
        value: Any = None,
        headers: Any = None,
        error: KafkaError | None = None,
        timestamp: tuple[int, int] | None = None,
        latency: float | None = None,
        leader_epoch: int | None = None,
        delivery_count: int | None = None,
    ) -> None:
        """Make a message by hand, for tests of programs; ``delivery_count`` has no meaning here."""
        kind, time_ms = timestamp or _NO_TIMESTAMP
        word = next(name for name, number in _TIMESTAMP_TYPES.items() if number == kind)
        place: tuple[Any, Any, Any] = (topic, partition, offset)
        epoch: Any = leader_epoch
        self.record: Record[Any, Any] = Record(*place, time_ms, word, headers, key, value, epoch)
        self.failure = error
        self.latency_s = latency

    def topic(self) -> str | None:
        """Return the topic; None for an event of no topic."""
        return self.record.topic

    def partition(self) -> int | None:
        """Return the partition number."""
        return self.record.partition

    def offset(self) -> int | None:
        """Return the offset; None if the message has none."""
        return self.record.offset

    def key(self) -> Any:
        """Return the key: bytes, or None; from a `DeserializingConsumer`, the object."""
        return self.record.key

    def value(self) -> Any:
        """Return the value: bytes, or None; from a `DeserializingConsumer`, the object."""
        return self.record.value

    def deserialized_key(self) -> K | None:
        """Return what `key` returns, typed as the deserializer's."""
        found: K | None = self.record.key
        return found

    def deserialized_value(self) -> V | None:
        """Return what `value` returns, typed as the deserializer's."""
        found: V | None = self.record.value
        return found

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """Return pairs of name and bytes, or None; always None in a delivery report."""
        return self.record.headers or None

    def error(self) -> KafkaError | None:
        """Return the event that this message stands for; None for a proper message."""
        return self.failure

    def timestamp(self) -> tuple[int, int]:
        """Return the ``TIMESTAMP_`` type, and milliseconds since 1970."""
        record = self.record
        return _TIMESTAMP_TYPES[record.timestamp_type], record.timestamp

    def latency(self) -> float | None:
        """Return the seconds from the opening of a produced message's batch to its outcome."""
        return self.latency_s

    def leader_epoch(self) -> int | None:
        """Return the leader epoch in which the message was written, if known."""
        epoch: int | None = self.record.leader_epoch
        return None if epoch is None or epoch < 0 else epoch

    def delivery_count(self) -> int | None:
        """Return None: share groups are not supported."""
        return None

    def set_topic(self, topic: str) -> None:
        """Replace the topic."""
        self.record = msgspec.structs.replace(self.record, topic=topic)

    def set_headers(self, headers: Any) -> None:
        """Replace the headers."""
        self.record = msgspec.structs.replace(self.record, headers=headers)

    def set_key(self, key: Any) -> None:
        """Replace the key by any object."""
        self.record = msgspec.structs.replace(self.record, key=key)

    def set_value(self, value: Any) -> None:
        """Replace the value by any object."""
        self.record = msgspec.structs.replace(self.record, value=value)

    def set_error(self, error: KafkaError | None) -> None:
        """Replace the error."""
        self.failure = error

    def __len__(self) -> int:
        """Return the number of bytes of the value."""
        value = self.record.value
        return 0 if value is None else len(value)

    def __bool__(self) -> bool:
        """Return True: ``if message:`` asks for a message, whatever the length of its value."""
        return True


_new_message: Final = Message.__new__


def message_of(record: Record[Any, Any]) -> Message:
    """Return a consumed record as a message; costs about 0.2 µs."""
    message = _new_message(Message)
    message.record, message.failure, message.latency_s = record, None, None
    return message


def report_of(record: Record[Any, Any], error: KafkaError | None, latency_s: float) -> Message:
    """Return the message of a delivery report."""
    message = _new_message(Message)
    message.record, message.failure, message.latency_s = record, error, latency_s
    return message


def event(
    error: KafkaError,
    topic: str | None = None,
    partition: int | None = None,
    offset: int | None = None,
) -> Message:
    """Return the message that reports an error or the end of a partition."""
    return Message(topic=topic, partition=partition, offset=offset, error=error)


class Messages(Sequence[Message]):
    """A batch of messages that can't be changed."""

    def __init__(self, messages: Iterable[Message] = ()) -> None:
        self._messages = list(messages)

    def records(self) -> list[Message]:
        """Return a copy of the messages."""
        return list(self._messages)

    @override
    def count(self, value: object = None) -> int:
        """Return the number of messages."""
        return len(self._messages)

    def is_empty(self) -> bool:
        """Return True if there is no message."""
        return not self._messages

    @override
    def __len__(self) -> int:
        return len(self._messages)

    @override
    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    @override
    def __getitem__(self, index: int | slice) -> Message | Self:
        if isinstance(index, slice):
            return type(self)(self._messages[index])
        return self._messages[index]

    @override
    def __repr__(self) -> str:
        return f"Messages({self._messages!r})"


class Uuid:
    """An id of 128 bits, such as a topic's; its text is base64 without padding."""

    __slots__ = ("_high", "_low")

    def __init__(self, most_significant_bits: int, least_significant_bits: int) -> None:
        self._high, self._low = most_significant_bits, least_significant_bits

    def get_most_significant_bits(self) -> int:
        """Return the first 64 bits as a signed number."""
        return self._high

    def get_least_significant_bits(self) -> int:
        """Return the last 64 bits as a signed number."""
        return self._low

    def __int__(self) -> int:
        mask = (1 << 64) - 1
        return (self._high & mask) << 64 | self._low & mask

    @override
    def __str__(self) -> str:
        return base64.urlsafe_b64encode(int(self).to_bytes(16, "big")).rstrip(b"=").decode()

    __repr__ = __str__

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Uuid) and int(self) == int(other)

    @override
    def __hash__(self) -> int:
        return hash(int(self))


def uuid_of(text: str) -> Uuid:
    """Return the id of a text in base64, as brokers write topic ids."""
    both = base64.urlsafe_b64decode(text + "==")
    high, low = (int.from_bytes(part, "big", signed=True) for part in (both[:8], both[8:16]))
    return Uuid(high, low)


class Node:
    """A broker by its id and address."""

    def __init__(self, id: int, host: str, port: int, rack: str | None = None) -> None:  # noqa: A002
        self.id = id
        self.id_string = str(id)
        self.host = host
        self.port = port
        self.rack = rack

    @override
    def __str__(self) -> str:
        return f"({self.id}) {self.host}:{self.port} {f'(Rack - {self.rack})' if self.rack else ''}"


class ConsumerGroupTopicPartitions:
    """A group, and partitions with offsets of it."""

    def __init__(self, group_id: str, topic_partitions: list[TopicPartition] | None = None) -> None:
        self.group_id = group_id
        self.topic_partitions = topic_partitions


class TopicCollection:
    """Topics by their names."""

    def __init__(self, topic_names: list[str]) -> None:
        self.topic_names = topic_names


class TopicPartitionInfo:
    """A partition with its leader and replicas."""

    def __init__(
        self,
        id: int,  # noqa: A002 confluent-kafka's name
        leader: Node | None,
        replicas: list[Node],
        isr: list[Node],
    ) -> None:
        self.id = id
        self.leader = leader
        self.replicas = replicas
        self.isr = isr


class ThrottleEvent:
    """A request that a broker delayed. Brokers here refuse instead: ``throttle_cb`` never runs."""

    def __init__(self, broker_name: str, broker_id: int, throttle_time: float) -> None:
        self.broker_name = broker_name
        self.broker_id = broker_id
        self.throttle_time = throttle_time
        """Seconds."""

    @override
    def __str__(self) -> str:
        delay_ms = int(self.throttle_time * 1000)
        return f"{self.broker_name}/{self.broker_id} throttled for {delay_ms} ms"


class OrderedEnum(Enum):
    """Values that are ordered by their numbers."""

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, type(self)):
            return NotImplemented
        mine: int = self.value
        return bool(mine < other.value)


class ConsumerGroupState(OrderedEnum):
    """State of a group."""

    UNKNOWN = 0
    UNKOWN = UNKNOWN
    PREPARING_REBALANCING = 1
    COMPLETING_REBALANCING = 2
    STABLE = 3
    DEAD = 4
    EMPTY = 5


class ConsumerGroupType(OrderedEnum):
    """Protocol of a group; every group here is a ``CONSUMER`` one, KIP-848's."""

    UNKNOWN = 0
    CONSUMER = 1
    CLASSIC = 2


class IsolationLevel(OrderedEnum):
    """Records that a reader is given; both mean the same here: committed ones."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class ElectionType(OrderedEnum):
    """Kind of a leader election."""

    PREFERRED = 0
    UNCLEAN = 1


class AcknowledgeType(IntEnum):
    """Answers of a share consumer, which is not supported."""

    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
