"""The records of one partition in the answer to a read, rendered in the instance's format. Pure.

The `reader` makes a `Part` for each partition that it fetched and fills it (`fill_part`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from broker.coordinator.group_messages import SCHEMA_FORMATS
from broker.coordinator.positions import EpochSpan, ReadPosition, Spans, joined
from broker.coordinator.records import StoredRecord
from broker.record.batch import BatchSlice, RecordFormat
from broker.record.readable import show_records
from broker.record.render import first_records
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import TopicPartition

ANSWER_BYTES_MAX = 33_554_432
"""Bytes at which an answer in the v2 shape is cut; the last batch may exceed it. Short records of a
topic with a long name grow tenfold in that shape, and an answer must fit into a peer frame."""
FORMAT_MISMATCH = (
    "The requested embedded data format does not match the deserializer for this consumer instance"
)
"""Text of Confluent's REST proxy."""


_DOORS = {"json": RecordFormat.JSON, "text": RecordFormat.STRING}
"""Format of an instance → format in which its records are rendered; of all others BINARY."""


@dataclass(slots=True, eq=False)
class Part:
    """Records of one partition in an answer, from the position held when they were fetched.

    Without records, ``next`` may still be behind ``begin``: they were stepped over.
    """

    partition: TopicPartition
    position: ReadPosition
    begin: int
    next: int = 0
    body: bytes = b""
    count: int = 0
    size: int = 0
    """Bytes of the records as stored."""
    spans: Spans = ()
    """Epochs of the records."""
    stopped_by: tuple[StoredRecord, str] | None = None
    """The record at ``next`` that can't be shown, and the reason."""


def bytes_of(parts: Iterable[Part]) -> int:
    """Return the bytes of the rendered records."""
    return sum(len(part.body) for part in parts)


def join_bodies(parts: Iterable[Part]) -> bytes:
    """Return the records of all parts as one JSON array."""
    return b"[" + b",".join([part.body for part in parts]) + b"]"


def door_of(name: str, accepted: frozenset[str] | None) -> RecordFormat:
    """Return the format to render in; raise FORMAT_MISMATCH or SCHEMAS_NOT_SUPPORTED."""
    if accepted is not None and name not in accepted:
        raise KafkaError(ErrorCode.FORMAT_MISMATCH, FORMAT_MISMATCH)
    if name in SCHEMA_FORMATS:
        text = f"the consumer's format is {name}: schemas are not supported"
        raise KafkaError(ErrorCode.SCHEMAS_NOT_SUPPORTED, text)
    return _DOORS.get(name, RecordFormat.BINARY)


def at_most(
    slices: Sequence[BatchSlice], records: int | None
) -> tuple[Sequence[BatchSlice], int | None]:
    """Return the first records, and the offset of the next one; None: all are returned."""
    return (slices, None) if records is None else first_records(slices, records)


def fill_part(
    part: Part,
    slices: Sequence[BatchSlice],
    next_offset: int,
    door: RecordFormat,
    *,
    mark: bool,
    passed_over: Set[StoredRecord],
) -> None:
    """Fill a part with records, up to the first that can't be shown.

    ``next_offset``: the offset behind all of them.
    """
    pieces: list[bytes] = []
    spans: list[EpochSpan] = []
    rendered = 0
    part.next = next_offset
    for piece in slices:
        if rendered >= ANSWER_BYTES_MAX:
            part.next = piece.first_offset
            break
        epoch = piece.header.leader_epoch
        shown = show_records(
            piece,
            topic=part.partition.topic,
            partition=part.partition.partition,
            door=door,
            mark=mark,
            passed_over={one.offset for one in passed_over if one.leader_epoch == epoch},
        )
        if shown.next_offset > piece.first_offset:
            spans.append(EpochSpan(piece.first_offset, epoch))
        if shown.count:
            pieces.append(shown.body)
        rendered += len(shown.body)
        part.count += shown.count
        part.size += shown.size
        if shown.stopped_by is not None:
            record = StoredRecord(shown.next_offset, epoch)
            part.next, part.stopped_by = shown.next_offset, (record, shown.stopped_by.message)
            break
    part.body = b",".join(pieces)
    part.spans = joined((), spans)


def unreadable_error(
    partition: TopicPartition, offset: int, message: str, group: str
) -> KafkaError:
    """Return the refusal of a read that has nothing but records which its format can't show."""
    text = (
        f"{message} of partition {partition.partition} of topic {partition.topic}; "
        "read it with a consumer instance of format binary, seek behind it, or step over it with "
        f"`quorumlog group skip {group} {partition.topic}:{partition.partition}:{offset}`"
    )
    return KafkaError(ErrorCode.UNREADABLE_RECORD, text)
