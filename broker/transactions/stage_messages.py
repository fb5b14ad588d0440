"""Requests between brokers about staged rows, and their encoding. Pure.

STAGE carries a chunk to the leader of its stage partition; REFS asks that leader, for the home of a
transaction, for the places of named attempts; STATUS asks a home, for that leader, whether a place
may go; READ_STAGED fetches rows for the leader of a target; LIST_STAGED lists attempts. Each body
is a JSON head and a payload, the rows as bytes; `broker.server` joins them and sends them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from broker.record.batch import RecordFormat
from broker.transactions.chunk_records import ChunkKey, RowsChunk, TargetPart
from broker.transactions.messages import (
    AttemptNamed,
    LogPlace,
    StagedAttempt,
    TargetRows,
    TransactionalId,
)
from broker.transactions.stage_index import AttemptRefs, StagedRef
from raft_metadata.common.ids import GroupId, LeaderEpoch, PartitionId, TopicId


class StageBody(NamedTuple):
    """A request or an answer: the fields of its JSON head, and the bytes behind it."""

    head: dict[str, Any]
    payload: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageChunk:
    """Request to append a chunk with acks=all; repeated without harm (rule S9)."""

    partition: PartitionId
    chunk: RowsChunk
    timeout_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FindRefs:
    """Request of a home for the places of committed chunks of a transaction's attempts."""

    partition: PartitionId
    id: TransactionalId
    epoch: int
    """Epoch as in `ChunkKey`."""
    number: int
    attempts: tuple[AttemptNamed, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusQuestion:
    """Question of a stage to the home of a chunk: may the chunk at this place go (rule S10)?"""

    partition: PartitionId
    """Partition of `__staged`."""
    id: TransactionalId
    epoch: int
    """Epoch as in `ChunkKey`: `NO_EPOCHS` for a numbered id, and for a key (`id.is_key`)."""
    number: int
    attempt_id: str
    place: LogPlace
    """Place of the chunk's first record; a record for each target follows."""
    records: int
    copy: LogPlace | None = None
    """Place of the first record of a committed copy, whose records have the same order, if the
    chunk was moved. Only of the first place that is left of its home."""
    is_aged: bool = False
    """True if the place is older than `transaction.max.age.ms`. Only of the first place that is
    left of its home."""
    is_passed: bool = False
    """True for the last question before the log start passes the place: it and all older places of
    its home were let go."""


class Word(Enum):
    """The word of a home about a place."""

    GONE = "gone"
    """Nothing names this place any more, and nothing ever will: committed in the home's log."""
    KEEP = "keep"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStaged:
    """Request for the rows of some records, all below the high watermark."""

    partition: PartitionId
    places: tuple[LogPlace, ...]


Attempts = Sequence[tuple[TransactionalId, StagedAttempt]]
"""Answer to LIST_STAGED."""


# ---- STAGE


def encode_stage(request: StageChunk) -> StageBody:
    """Encode a STAGE request."""
    chunk = request.chunk
    head = {
        "partition": request.partition,
        "key": [*chunk.key.id, *chunk.key[1:]],
        "digest": chunk.digest,
        "layout": chunk.layout,
        "timeout_ms": request.timeout_ms,
    }
    rows = encode_rows(chunk.targets)
    return StageBody(head | rows.head, rows.payload)


def decode_stage(head: dict[str, Any], payload: bytes) -> StageChunk:
    """Decode a STAGE request; KeyError if it lacks a field."""
    group, name, epoch, number, attempt_id, sequence = head["key"]
    id_ = TransactionalId(GroupId(group), name)
    return StageChunk(
        partition=PartitionId(head["partition"]),
        chunk=RowsChunk(
            key=ChunkKey(id_, epoch, number, attempt_id, sequence),
            targets=tuple(decode_rows(head, payload)),
            digest=head["digest"],
            layout=head["layout"],
        ),
        timeout_ms=head["timeout_ms"],
    )


def encode_staged(layout: int) -> StageBody:
    """Encode the answer to STAGE: the layout of the chunk, of its first request for a repeat."""
    return StageBody({"layout": layout})


def decode_staged(head: dict[str, Any]) -> int:
    """Decode the answer to STAGE."""
    return int(head["layout"])


# ---- rows


def encode_rows(rows: Iterable[TargetRows]) -> StageBody:
    """Encode rows of targets, with their text as it is (rule R12)."""
    targets = list(rows)
    head = {
        "targets": [
            [
                one.topic_id,
                one.partition,
                int(one.key_format),
                int(one.value_format),
                one.rows,
                len(one.records),
            ]
            for one in targets
        ]
    }
    return StageBody(head, b"".join(one.records for one in targets))


def decode_rows(head: dict[str, Any], payload: bytes) -> list[TargetRows]:
    """Decode rows of targets; ValueError if the payload has another length."""
    found, at = [], 0
    for topic_id, partition, key_format, value_format, rows, length in head["targets"]:
        found.append(
            TargetRows(
                topic_id=TopicId(topic_id),
                partition=PartitionId(partition),
                key_format=RecordFormat(key_format),
                value_format=RecordFormat(value_format),
                rows=rows,
                records=payload[at : at + length],
            )
        )
        at += length
    if at != len(payload):
        msg = f"rows of {at} bytes in a payload of {len(payload)}"
        raise ValueError(msg)
    return found


def encode_found_rows(rows: Iterable[TargetRows | None]) -> StageBody:
    """Encode the answer to READ_STAGED: rows, or null where a place is gone."""
    found = list(rows)
    body = encode_rows(one for one in found if one is not None)
    return StageBody(body.head | {"found": [one is not None for one in found]}, body.payload)


def decode_found_rows(head: dict[str, Any], payload: bytes) -> list[TargetRows | None]:
    """Decode the answer to READ_STAGED."""
    rows = iter(decode_rows(head, payload))
    return [next(rows) if is_found else None for is_found in head["found"]]


# ---- REFS


def encode_find_refs(request: FindRefs) -> StageBody:
    """Encode a REFS request."""
    return StageBody(
        {
            "partition": request.partition,
            "id": list(request.id),
            "epoch": request.epoch,
            "number": request.number,
            "attempts": [list(named) for named in request.attempts],
        }
    )


def decode_find_refs(head: dict[str, Any]) -> FindRefs:
    """Decode a REFS request; KeyError if it lacks a field."""
    return FindRefs(
        partition=PartitionId(head["partition"]),
        id=_id_in(head),
        epoch=head["epoch"],
        number=head["number"],
        attempts=tuple(AttemptNamed(*named) for named in head["attempts"]),
    )


def encode_refs(found: Iterable[AttemptRefs]) -> StageBody:
    """Encode the answer to REFS: one `AttemptRefs` for each attempt, in their order."""
    return StageBody(
        {
            "attempts": [
                [
                    one.attempt_id,
                    one.missing,
                    [[*ref.at, *ref.target] for ref in one.refs],
                    one.size_bytes,
                ]
                for one in found
            ]
        }
    )


def decode_refs(head: dict[str, Any]) -> tuple[AttemptRefs, ...]:
    """Decode the answer to REFS."""
    return tuple(
        AttemptRefs(
            attempt_id=attempt_id,
            missing=missing,
            refs=tuple(
                StagedRef(
                    _place_in(at), TargetPart(TopicId(topic_id), PartitionId(partition), rows)
                )
                for *at, topic_id, partition, rows in refs
            ),
            size_bytes=size_bytes,
        )
        for attempt_id, missing, refs, size_bytes in head["attempts"]
    )


# ---- STATUS


def encode_status(question: StatusQuestion) -> StageBody:
    """Encode a STATUS request."""
    return StageBody(
        {
            "partition": question.partition,
            "id": list(question.id),
            "epoch": question.epoch,
            "number": question.number,
            "attempt": question.attempt_id,
            "place": list(question.place),
            "records": question.records,
            "copy": None if question.copy is None else list(question.copy),
            "is_aged": question.is_aged,
            "is_passed": question.is_passed,
        }
    )


def decode_status(head: dict[str, Any]) -> StatusQuestion:
    """Decode a STATUS request; KeyError if it lacks a field."""
    return StatusQuestion(
        partition=PartitionId(head["partition"]),
        id=_id_in(head),
        epoch=head["epoch"],
        number=head["number"],
        attempt_id=head["attempt"],
        place=_place_in(head["place"]),
        records=head["records"],
        copy=None if head["copy"] is None else _place_in(head["copy"]),
        is_aged=head["is_aged"],
        is_passed=head["is_passed"],
    )


def encode_word(word: Word) -> StageBody:
    """Encode the answer to STATUS."""
    return StageBody({"word": word.value})


def decode_word(head: dict[str, Any]) -> Word:
    """Decode the answer to STATUS."""
    return Word(head["word"])


# ---- READ_STAGED and LIST_STAGED


def encode_read_staged(request: ReadStaged) -> StageBody:
    """Encode a READ_STAGED request; `encode_found_rows` encodes its answer."""
    return StageBody(
        {"partition": request.partition, "places": [list(place) for place in request.places]}
    )


def decode_read_staged(head: dict[str, Any]) -> ReadStaged:
    """Decode a READ_STAGED request; KeyError if it lacks a field."""
    return ReadStaged(
        partition=PartitionId(head["partition"]), places=tuple(map(_place_in, head["places"]))
    )


def encode_list_staged(partition: PartitionId) -> StageBody:
    """Encode a LIST_STAGED request."""
    return StageBody({"partition": partition})


def encode_attempts(found: Attempts) -> StageBody:
    """Encode the answer to LIST_STAGED."""
    return StageBody(
        {
            "attempts": [
                [*id_, one.attempt_id, one.chunks, one.rows, one.bytes, one.age_ms, one.number,
                 one.epoch]
                for id_, one in found
            ]
        }
    )  # fmt: skip


def decode_attempts(head: dict[str, Any]) -> Attempts:
    """Decode the answer to LIST_STAGED."""
    return [
        (
            TransactionalId(GroupId(group), name),
            StagedAttempt(
                attempt_id=attempt_id, chunks=chunks, rows=rows, bytes=size, age_ms=age_ms,
                number=number, epoch=epoch,
            ),
        )
        for group, name, attempt_id, chunks, rows, size, age_ms, number, epoch in head["attempts"]
    ]  # fmt: skip


def _place_in(fields: list[Any]) -> LogPlace:
    leader_epoch, offset = fields
    return LogPlace(LeaderEpoch(int(leader_epoch)), int(offset))


def _id_in(head: dict[str, Any]) -> TransactionalId:
    group, name = head["id"]
    return TransactionalId(GroupId(group), name)
