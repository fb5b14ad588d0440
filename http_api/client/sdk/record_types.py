"""Records as programs see them: what they write, what they read, and places in partitions.

`Record`, `Receipt`, `NewRecord` and `TopicPartition` are what the classes of the SDK take and give.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic

import msgspec
from typing_extensions import TypeVar, override

if TYPE_CHECKING:
    from datetime import datetime

    from http_api.client.client_errors import QuorumlogError

K = TypeVar("K", default=Any)
V = TypeVar("V", default=Any)

OFFSET_BEGINNING: Final = -2
"""Stands for the first offset of a partition, where an offset to read from is given."""
OFFSET_END: Final = -1
"""Stands for the high watermark of a partition, where an offset to read from is given."""

Headers = Mapping[str, "str | bytes | None"] | Iterable[tuple[str, "str | bytes | None"]]
"""Headers as a program gives them: pairs or a mapping; a text is encoded as UTF-8."""


class TopicPartition:
    """A partition, and an offset in it where one is meant. Equal and hashed by topic and partition.

    ``leader_epoch`` is the epoch of the offset, of the record right before it; None if it is not
    known. ``error`` is set in results, for a partition that failed.
    """

    __slots__ = ("error", "leader_epoch", "metadata", "offset", "partition", "topic")

    def __init__(
        self,
        topic: str,
        partition: int = -1,
        offset: int | None = None,
        *,
        metadata: str = "",
        leader_epoch: int | None = None,
        error: QuorumlogError | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.metadata = metadata
        self.leader_epoch = leader_epoch
        self.error = error

    @override
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TopicPartition):
            return NotImplemented
        return self.topic == other.topic and self.partition == other.partition

    def __lt__(self, other: TopicPartition) -> bool:
        return (self.topic, self.partition) < (other.topic, other.partition)

    @override
    def __hash__(self) -> int:
        return hash((self.topic, self.partition))

    @override
    def __repr__(self) -> str:
        given = [repr(self.topic), repr(self.partition)]
        if self.offset is not None:
            given.append(repr(self.offset))
        given += [
            f"{name}={value!r}" for name in ("metadata", "error") if (value := getattr(self, name))
        ]
        return f"TopicPartition({', '.join(given)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRecord:
    """A record that is to be written, as the program gives it; a ``partitioner`` gets it."""

    topic: str
    key: Any = None
    value: Any = None
    headers: Headers | None = None
    partition: int | None = None
    """None: by the key, or any."""
    timestamp: int | datetime | None = None
    """Milliseconds since 1970, or a datetime with a time zone; None: the time of the append."""


@dataclass(frozen=True, slots=True)
class ConsumerGroupMetadata:
    """A consumer's group and membership, for which a transaction commits offsets."""

    group_id: str
    member_id: str | None = None
    """None: the partitions were assigned by hand, so ``expected`` fences in place of the member."""
    member_epoch: int | None = None
    expected: dict[tuple[str, int], int] = field(default_factory=dict)
    """By (topic, partition): the committed offset from which the consumer goes on, -1 for none.
    A producer that commits another one writes it here."""


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """Place of a record that was written, with the key and value as the program gave them.

    ``offset`` is -1 with ``acks=0``, and None where a transaction was committed and the place of
    the record is not known, or not known any more. ``timestamp`` is the record's own, in
    milliseconds; None where the leader sets it.
    """

    topic: str
    partition: int
    offset: int | None
    timestamp: int | None
    key: Any
    value: Any


class Record(msgspec.Struct, Generic[K, V], frozen=True, gc=False):
    """A record that was read. ``key`` and ``value`` are None for a null.

    ``timestamp`` is in milliseconds; ``timestamp_type`` is ``"create"`` for the time that the
    producer set, ``"append"`` for the time at which the leader appended the record.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: str
    headers: list[tuple[str, bytes | None]]
    key: K
    value: V
    leader_epoch: int
    """Leader epoch in which the record was written."""
    unreadable: tuple[str, ...] = ()
    """With ``on_unreadable="mark"``: which of key and value can't be decoded; these are bytes."""
