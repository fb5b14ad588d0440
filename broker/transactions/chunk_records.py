"""Chunks of staged rows as records of `__staged`. Pure.

A chunk is one request of a client: rows of one attempt of a transaction, under a sequence number.
It is one batch of the log with a record for each target, so no replica has a part of it (rule S9).
The key of a record is ``["chunk", group, id, epoch, number, attempt, sequence, part, parts]``; its
value holds the rows as the client's text (rule R12), behind fields that are enough for an index:
`decode_head` reads a line without its rows. `StageIndex` folds the heads, and the leader of a
target gets the rows by `rows_in`.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Final, NamedTuple

import orjson

from broker.record.batch import RecordFormat
from broker.transactions.messages import ProducerPosition, TargetRows, TransactionalId
from raft_metadata.common.errors import CorruptionError
from raft_metadata.common.ids import GroupId, PartitionId, TopicId
from raft_metadata.common.internal_topics import STAGED_PARTITIONS

NO_EPOCHS: Final = 0
"""In place of an epoch: a numbered id, or an idempotency key. A producer's begin with 1."""
CHUNK: Final = "chunk"
PROBE: Final = "probe"
PROBE_KEY: Final = b'["probe",""]'
"""Key of a record without content: its commitment proves the leader that appended it (rule G3)."""
_RECORDS: Final = b'"records":'
_END: Final = b"}}"


class ChunkKey(NamedTuple):
    """The identity of a chunk: (attempt, sequence), once (rule S9)."""

    id: TransactionalId
    epoch: int
    """Epoch of a producer's position, else `NO_EPOCHS`."""
    number: int
    """0 for an idempotency key, which has one position."""
    attempt_id: str
    sequence: int


class TargetPart(NamedTuple):
    """The target of one record of a chunk, and the number of its rows."""

    topic_id: TopicId
    partition: PartitionId
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsChunk:
    """A chunk on its way to the log of its stage."""

    key: ChunkKey
    targets: tuple[TargetRows, ...]
    """Not empty; rows of one partition are in one of them."""
    digest: str
    """Digest of the request's content: a repeat brings the same one."""
    layout: int = 0
    """Checksum of the partitions of the rows, in their order in the request."""
    since_ms: int | None = None
    """Time of the first append of a chunk that is moved: it does not become young by that."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the rows."""
        return sum(len(target.records) for target in self.targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkHead:
    """One record of a chunk without its rows, as an index reads it."""

    key: ChunkKey
    part: int
    parts: int
    target: TargetPart
    size_bytes: int
    """Bytes of the rows."""
    digest: str
    layout: int
    since_ms: int | None


def position_numbers(position: ProducerPosition | int | None) -> tuple[int, int]:
    """Return (epoch, number) of a staged position: a producer's, a number, or null for a key."""
    if isinstance(position, ProducerPosition):
        return position
    return NO_EPOCHS, position or 0


def stage_partition_of(
    id_: TransactionalId, attempt_id: str, partitions: int = STAGED_PARTITIONS
) -> PartitionId:
    """Return the partition of `__staged` that holds an attempt, whole.

    A client may choose attempts until it has one whose stage is led by the broker it talks to.
    """
    return PartitionId(zlib.crc32(f"{id_.group}/{id_.name}/{attempt_id}".encode()) % partitions)


def layout_of(partitions: list[int]) -> int:
    """Return the checksum of the partitions of rows, in the order of the request."""
    return zlib.crc32(b"".join(number.to_bytes(4, "little") for number in partitions))


def encode_chunk(chunk: RowsChunk) -> list[tuple[bytes, bytes]]:
    """Return the (key, value) of each record of a chunk, as JSON text without line breaks."""
    key, parts = chunk.key, len(chunk.targets)
    records = []
    for part, target in enumerate(chunk.targets):
        fields = (*key.id, key.epoch, key.number, key.attempt_id, key.sequence, part, parts)
        head: dict[str, object] = {
            "topic_id": target.topic_id,
            "partition": target.partition,
            "key_format": int(target.key_format),
            "value_format": int(target.value_format),
            "rows": target.rows,
            "digest": chunk.digest,
            "layout": chunk.layout,
        }
        if chunk.since_ms is not None:
            head["since_ms"] = chunk.since_ms
        value = b"%b,%b%b}" % (orjson.dumps(head)[:-1], _RECORDS, target.records)
        records.append((orjson.dumps((CHUNK, *fields)), value))
    return records


def decode_head(line: bytes) -> ChunkHead | None:
    """Return the head of a stored line; None for a record that is no chunk.

    Raises:
        CorruptionError: no record of this topic.
    """
    at = line.find(_RECORDS)  # not within a string: there each quote has a backslash before it
    try:
        stored = orjson.loads(line if at < 0 else b"%b%b0}}" % (line[:at], _RECORDS))
        key, value = stored["key"], stored["value"]
        if key[0] == PROBE:
            return None
        kind, group, name, epoch, number, attempt_id, sequence, part, parts = key
        if kind != CHUNK or at < 0:
            raise CorruptionError(f"not a chunk: {bytes(line[:200])!r}")
        chunk_key = ChunkKey(
            TransactionalId(GroupId(group), name), epoch, number, attempt_id, sequence
        )
        return ChunkHead(
            key=chunk_key,
            part=part,
            parts=parts,
            target=TargetPart(
                TopicId(value["topic_id"]), PartitionId(value["partition"]), value["rows"]
            ),
            size_bytes=len(line) - at - len(_RECORDS) - len(_END),
            digest=value["digest"],
            layout=value["layout"],
            since_ms=value.get("since_ms"),
        )
    except (orjson.JSONDecodeError, KeyError, ValueError, TypeError, IndexError) as error:
        raise CorruptionError(f"not a chunk: {bytes(line[:200])!r}") from error


def rows_in(line: bytes) -> TargetRows:
    """Return the rows of a stored line of a chunk, byte for byte as they were staged.

    Raises:
        CorruptionError: the line is no chunk.
    """
    head, at = decode_head(line), line.find(_RECORDS)
    if head is None:
        raise CorruptionError(f"not a chunk: {bytes(line[:200])!r}")
    value = orjson.loads(b"%b%b0}}" % (line[:at], _RECORDS))["value"]
    return TargetRows(
        topic_id=head.target.topic_id,
        partition=head.target.partition,
        key_format=RecordFormat(value["key_format"]),
        value_format=RecordFormat(value["value_format"]),
        rows=head.target.rows,
        records=line[at + len(_RECORDS) : len(line) - len(_END)],
    )


def chunk_in(lines: list[bytes]) -> RowsChunk:
    """Return the chunk whose records these lines are, in order.

    Raises:
        CorruptionError: they are not all records of one chunk.
    """
    heads = [decode_head(line) for line in lines]
    first = heads[0]
    if first is None or any(
        head is None or (head.key, head.part, head.parts) != (first.key, part, len(lines))
        for part, head in enumerate(heads)
    ):
        raise CorruptionError(f"not a whole chunk: {bytes(lines[0][:200])!r}")
    return RowsChunk(
        key=first.key,
        targets=tuple(rows_in(line) for line in lines),
        digest=first.digest,
        layout=first.layout,
        since_ms=first.since_ms,
    )
