"""What a read takes out of one partition, in the shape its client gets. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from broker.coordinator.ports import Fetched
from broker.coordinator.requests import SCHEMA_FORMATS
from broker.coordinator.state import Position
from broker.record.batch import BatchSlice, RecordFormat
from broker.record.render import render_v2, skip_lines
from broker.record.values import RecordNotJsonError
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import TopicPartition

ANSWER_BYTES_MAX = 33_554_432
"""Of the v2 shape, in which short records of a topic with a long name are ten times as large: an
answer that fits into no peer frame moves positions for nobody. Passed by one batch at most."""
FORMAT_MISMATCH = (
    "The requested embedded data format does not match the deserializer for this consumer instance"
)
"""Confluent's words."""


@dataclass(slots=True, eq=False)
class Part:
    """Some records of one partition, from the position on that was held when they were asked."""

    partition: TopicPartition
    position: Position
    begin: int
    next: int = 0
    body: bytes = b""
    count: int = 0
    size: int = 0
    """Bytes as stored."""


def bytes_of(parts: Iterable[Part]) -> int:
    """Of the answer so far."""
    return sum(len(part.body) for part in parts)


def door_of(name: str, accepted: frozenset[str] | None) -> RecordFormat:
    """The format to render in. FORMAT_MISMATCH, SCHEMAS_NOT_SUPPORTED."""
    if accepted is not None and name not in accepted:
        raise KafkaError(ErrorCode.FORMAT_MISMATCH, FORMAT_MISMATCH)
    if name in SCHEMA_FORMATS:
        text = f"the consumer's format is {name}: schemas are not supported"
        raise KafkaError(ErrorCode.SCHEMAS_NOT_SUPPORTED, text)
    return RecordFormat.JSON if name == "json" else RecordFormat.BINARY


def render(part: Part, result: Fetched, door: RecordFormat, *, first: bool) -> bool:
    """Fill the part up to the first record that can't be shown; whether there is anything in it.

    UNREADABLE_RECORD where that is the ``first`` of the whole answer.
    """
    pieces: list[bytes] = []
    rendered = 0
    part.next = result.next_offset
    for piece in result.slices:
        if rendered >= ANSWER_BYTES_MAX:
            part.next = piece.first_offset
            break
        shown = piece
        try:
            body = _rendered(part.partition, piece, door)
        except RecordNotJsonError as error:
            part.next = error.offset
            shown = _before(piece, error.offset)
            if not shown.count:
                if first and not part.count:
                    raise _unreadable(part.partition, error) from None
                break
            body = _rendered(part.partition, shown, door)
        pieces.append(body)
        rendered += len(body)
        part.count += shown.count
        part.size += len(shown.lines)
        if shown is not piece:
            break
    part.body = b",".join(pieces)
    return part.count > 0


def _rendered(partition: TopicPartition, piece: BatchSlice, door: RecordFormat) -> bytes:
    return render_v2(piece, topic=partition.topic, partition=partition.partition, door=door)


def _before(piece: BatchSlice, offset: int) -> BatchSlice:
    """The records of a slice below an offset."""
    lines = bytes(piece.lines)
    if piece.first_offset >= offset:
        return piece._replace(lines=b"", count=0, next_offset=piece.first_offset)
    end = _line_of(lines, piece, offset)
    return piece._replace(lines=lines[:end], count=lines[:end].count(b"\n"), next_offset=offset)


def _line_of(lines: bytes, piece: BatchSlice, offset: int) -> int:
    """Where in the slice's lines the record at this offset begins."""
    if piece.header.is_dense:
        wanted = offset - piece.first_offset
        return len(lines) - len(lines.split(b"\n", wanted)[-1])
    return skip_lines(lines, piece.header, offset)


def _unreadable(partition: TopicPartition, error: RecordNotJsonError) -> KafkaError:
    text = (
        f"{error.message} of partition {partition.partition} of topic {partition.topic}; "
        "read it with a consumer instance of format binary"
    )
    return KafkaError(ErrorCode.UNREADABLE_RECORD, text)
