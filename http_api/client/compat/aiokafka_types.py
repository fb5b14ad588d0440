"""The records, places and interfaces of aiokafka: `structs` and `abc` of the library.

`AIOKafkaProducer` and `AIOKafkaConsumer` take and return them. Pure.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from http_api.client.compat.aiokafka_errors import KafkaError

KT = TypeVar("KT")
VT = TypeVar("VT")

CREATE_TIME = 0
"""Type of a timestamp that the producer set."""
LOG_APPEND_TIME = 1
"""Type of a timestamp that the leader set."""


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class BrokerMetadata(NamedTuple):
    """A broker, with the host and port of its HTTP listener."""

    nodeId: int | str  # noqa: N815 the library's name
    host: str
    port: int
    rack: str | None


class PartitionMetadata(NamedTuple):
    """A partition with its leader (-1: none), its replicas and those in sync."""

    topic: str
    partition: int
    leader: int
    replicas: list[int]
    isr: list[int]
    error: KafkaError | None


class OffsetAndMetadata(NamedTuple):
    """The next offset to read, as it is committed, with a text of the program."""

    offset: int
    metadata: str


class OffsetAndTimestamp(NamedTuple):
    """The offset and the timestamp in milliseconds of a record that was looked up by time."""

    offset: int
    timestamp: int | None


class RecordMetadata(NamedTuple):
    """The place of a written record. ``log_start_offset`` is always None here."""

    topic: str
    partition: int
    topic_partition: TopicPartition
    offset: int
    timestamp: int | None
    """Milliseconds since 1970."""
    timestamp_type: int
    """0: set by the producer; 1: set by the leader."""
    log_start_offset: int | None


@dataclass
class ConsumerRecord(Generic[KT, VT]):
    """A record that was read. Sizes are in bytes, -1 for a null."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since 1970."""
    timestamp_type: int
    """0: set by the producer; 1: set by the leader."""
    key: KT | None
    value: VT | None
    checksum: int | None
    """Always None."""
    serialized_key_size: int
    serialized_value_size: int
    headers: Sequence[tuple[str, bytes | None]]


class ConsumerRebalanceListener(abc.ABC):
    """Functions of a program that run when a group's partitions move. Both may be coroutines.

    Each rebalance that changes something calls `on_partitions_revoked` with all partitions of
    before, then `on_partitions_assigned` with all of after, as aiokafka does: partitions that stay
    are among both. They run inside the consumer's calls that wait.
    """

    @abc.abstractmethod
    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> Any:
        """Take the partitions of before; a commit still holds. Not called by ``stop``."""

    @abc.abstractmethod
    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> Any:
        """Take the partitions of after; a seek holds, as nothing was read of new ones yet."""


class AbstractTokenProvider(abc.ABC):
    """A source of tokens for SASL OAUTHBEARER, which quorumlog's adapters refuse."""

    @abc.abstractmethod
    async def token(self) -> str:
        """Return a token."""

    def extensions(self) -> Mapping[str, str]:
        """Return further pairs that belong to the token."""
        return {}


class RoundRobinPartitionAssignor:
    """Stands for the default way in which a group shares partitions."""

    name = "roundrobin"


class RangePartitionAssignor:
    """Stands for our ``range``: neighbours in each topic go to one member."""

    name = "range"


class StickyPartitionAssignor:
    """Stands for our ``uniform``, which moves as few partitions as it can."""

    name = "sticky"


def checked_offsets(
    offsets: Mapping[TopicPartition, int | tuple[int, str] | OffsetAndMetadata],
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets that a commit names; raises ValueError or TypeError for wrong ones."""
    if not offsets or not isinstance(offsets, dict):
        raise ValueError(offsets)
    found = {}
    for partition, given in offsets.items():
        if not isinstance(partition, TopicPartition):
            msg = f"offsets: {partition!r}: expected a TopicPartition"
            raise TypeError(msg)
        if isinstance(given, int):
            found[partition] = OffsetAndMetadata(given, "")
            continue
        try:
            offset, metadata = given
        except (TypeError, ValueError) as error:
            raise ValueError(offsets) from error
        if not isinstance(metadata, str):
            msg = f"offsets: metadata {metadata!r}: expected a str"
            raise TypeError(msg)
        found[partition] = OffsetAndMetadata(offset, metadata)
    return found
