"""Encoding of the requests between brokers and of their answers. Pure.

A body is the u32 length of a JSON head, the head, then the payload (records as the client's JSON
text, or stored slices as bytes). `router` and the modules that use it send them, `peer_requests`
answers them.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import msgspec
import orjson

from broker.coordinator.troubles import ShardTroubles
from broker.log.read_positions import Divergence, DivergenceCause, PositionTruncatedError
from broker.record.batch import RecordFormat, decode_slices, encode_slices
from broker.record.compression import PackedSlice
from broker.record.lines import ProduceRecord, decode_records, encode_lines
from broker.server.health import Damage
from broker.server.local_partitions import Append, Read, split_packed
from broker.server.requests import (
    FetchResult,
    OffsetsResult,
    OwnFacts,
    PartitionProgress,
    check_producer_id,
)
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import (
    BrokerId,
    Claim,
    LeaderEpoch,
    MetadataOffset,
    PartitionId,
    TopicId,
    TopicIdPartition,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.record.batch import BatchSlice
    from broker.record.compression import Piece


class PeerRequestKind(IntEnum):
    """Kind of a request between brokers, as its frame carries it."""

    APPEND = 1
    FETCH = 2
    OFFSETS = 3
    AWAIT_METADATA = 4
    GROUP = 5
    LIST_GROUPS = 6
    PROGRESS = 7
    OWN_FACTS = 8
    APPEND_CLAIMED = 10
    FETCH_FOLLOWER = 11
    """FETCH from a replica that follows (KIP-392)."""
    DELETE_RECORDS = 13
    REPEAT_CLAIMED = 14
    """APPEND_CLAIMED of records that the topic's configs refuse: the answer is the earlier
    append's, or INVALID_RECORD if there was none."""
    POLL = 15
    """Rows of a poll of many partitions, all served by the peer; it waits there."""
    END_POLL = 16
    """End of the wait of a POLL; the POLL is then answered at once."""
    TXN = 17
    """A client's request of transactions, on the way to its home."""
    APPLY = 18
    """Decided rows, on the way from their home to a target."""
    LIST_TXNS = 19
    """All ids of a home in `__transaction_state`."""
    LIST_GROUP_TXNS = 20
    """All ids of a home in `__consumer_offsets`."""
    STAGE = 21
    """A chunk of staged rows, on the way to its stage's leader."""
    REFS = 22
    """Question of a home: where are the chunks of these attempts?"""
    STATUS = 23
    """Question of a stage to the home of a chunk: may it go?"""
    READ_STAGED = 24
    """Staged rows, for the leader of a target."""
    LIST_STAGED = 25
    """All attempts that a stage holds."""


_LENGTH = struct.Struct("<I")


def join_body(head: dict[str, Any], *payload: bytes) -> bytes:
    """Return a body: the length of the head, the head as JSON, the payload."""
    text = orjson.dumps(head)
    return b"".join((_LENGTH.pack(len(text)), text, *payload))


def split_body(body: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the head and the payload of a body; raise INVALID_REQUEST if it is malformed."""
    try:
        (length,) = _LENGTH.unpack_from(body)
        end = _LENGTH.size + length
        head = orjson.loads(body[_LENGTH.size : end])
    except (struct.error, orjson.JSONDecodeError) as error:
        text = f"malformed request between brokers: {error}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text) from error
    if not isinstance(head, dict):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "malformed request between brokers")
    return head, body[end:]


def partition_in(head: dict[str, Any]) -> TopicIdPartition:
    """Return the partition that a head names."""
    return TopicIdPartition(TopicId(head["topic_id"]), PartitionId(head["partition"]))


def place_fields(partition: TopicIdPartition) -> dict[str, Any]:
    """Return the fields by which a head names a partition."""
    return {"topic_id": partition.topic_id, "partition": partition.partition}


def _envelope(records: Sequence[ProduceRecord]) -> bytes:
    """Return the records as a produce body: its array elements are stored lines without offset."""
    for record in records:
        record.partition, record.offset = None, -1
    return b'{"records":[' + encode_lines(records)[:-1].replace(b"\n", b",") + b"]}"


def encode_append(request: Append) -> bytes:
    """Encode an APPEND body. The records keep the client's text (rule R12)."""
    head = {
        **place_fields(request.partition),
        "key_format": int(request.key_format),
        "value_format": int(request.value_format),
        "acks": request.acks,
        "timeout_ms": request.timeout_ms,
    }
    return join_body(head, _envelope(request.records))


def encode_claimed(request: Append, *body: bytes) -> bytes:
    """Encode an APPEND_CLAIMED body: an APPEND under a producer id.

    ``body``: the records as pieces of a produce body; the records
    in `request` are not used.
    """
    assert request.claim is not None
    head = {
        **place_fields(request.partition),
        "key_format": int(request.key_format),
        "value_format": int(request.value_format),
        "acks": request.acks,
        "timeout_ms": request.timeout_ms,
        "claim": list(request.claim),
        "may_begin": request.may_begin,
    }
    return join_body(head, *body)


def encode_records(records: Sequence[ProduceRecord]) -> bytes:
    """Encode records as a produce body."""
    return _envelope(records)


def encode_fetch(request: Read) -> bytes:
    """Encode a FETCH body."""
    return join_body(
        {
            **place_fields(request.partition),
            "offset": request.offset,
            "timestamp_ms": request.timestamp_ms,
            "max_bytes": request.max_bytes,
            "max_wait_ms": request.max_wait_ms,
            "packed": request.packed,
            "leader_epoch": request.leader_epoch,
            "seen_epoch": request.seen_epoch,
        }
    )


def encode_offsets(partition: TopicIdPartition, seen_epoch: int) -> bytes:
    """Encode an OFFSETS body."""
    return join_body({**place_fields(partition), "seen_epoch": seen_epoch})


def encode_delete_records(partition: TopicIdPartition, before_offset: int) -> bytes:
    """Encode a DELETE_RECORDS body."""
    return join_body({**place_fields(partition), "before_offset": before_offset})


def decode_log_start(body: bytes) -> int:
    """Decode the answer to DELETE_RECORDS: the new log start offset."""
    head, _ = split_body(body)
    return int(head["log_start_offset"])


def encode_await_metadata(offset: MetadataOffset) -> bytes:
    """Encode an AWAIT_METADATA body; it is answered once the peer's image has this offset."""
    return join_body({"offset": offset})


def encode_list_groups(partition: PartitionId) -> bytes:
    """Encode a LIST_GROUPS body."""
    return join_body({"partition": partition})


def encode_progress(partitions: Sequence[TopicIdPartition]) -> bytes:
    """Encode a PROGRESS body, which requests the followers' log ends of these partitions."""
    return join_body({"partitions": [place_fields(partition) for partition in partitions]})


def decode_progress(body: bytes) -> dict[TopicIdPartition, PartitionProgress]:
    """Decode the answer to PROGRESS: a row for each partition that the peer leads."""
    return {
        partition_in(row): PartitionProgress(
            log_end_offset=row["log_end_offset"],
            high_watermark=row["high_watermark"],
            follower_ends={BrokerId(broker): end for broker, end in row["follower_ends"]},
        )
        for row in split_body(body)[0]["rows"]
    }


def encode_own_facts() -> bytes:
    """Encode an OWN_FACTS body, which requests the facts that only the peer knows of itself."""
    return join_body({})


def decode_own_facts(body: bytes) -> OwnFacts:
    """Decode the answer to OWN_FACTS."""
    head = split_body(body)[0]
    damage = head["damage"]
    return OwnFacts(
        static_configs=head["static_configs"],
        shutdown_blocked_by=head["shutdown_blocked_by"],
        damage=Damage(
            count=damage["count"],
            partitions=tuple((partition_in(row), row["reason"]) for row in damage["partitions"]),
        ),
        troubles=msgspec.convert(head["troubles"], tuple[ShardTroubles, ...]),
    )


def decode_base_offset(body: bytes) -> int:
    """Decode the answer to APPEND: the offset of the first record."""
    return int(split_body(body)[0]["base_offset"])


def decode_fetch(body: bytes) -> FetchResult:
    """Decode the answer to FETCH; raise `PositionTruncatedError` if that is the answer."""
    head, payload = split_body(body)
    if "divergence" in head:
        raise truncated_in(head)
    lines, frames = split_packed(_mark_packed(decode_slices(payload), head.get("packed", ())))
    return FetchResult(
        slices=lines,
        packed=frames,
        high_watermark=head["high_watermark"],
        log_start_offset=head["log_start_offset"],
        next_offset=head["next_offset"],
        next_leader_epoch=head["next_leader_epoch"],
        leader_id=BrokerId(head["leader_id"]),
        leader_epoch=LeaderEpoch(head["leader_epoch"]),
        served_by=None if head.get("served_by") is None else BrokerId(head["served_by"]),
    )


def decode_offsets(body: bytes) -> OffsetsResult:
    """Decode the answer to OFFSETS."""
    head, _ = split_body(body)
    return OffsetsResult(
        beginning_offset=head["beginning_offset"],
        end_offset=head["end_offset"],
        end_leader_epoch=head["end_leader_epoch"],
    )


def read_in(head: dict[str, Any]) -> Read:
    """Return the read that a head describes."""
    return Read(
        partition=partition_in(head),
        offset=head["offset"],
        timestamp_ms=head["timestamp_ms"],
        max_bytes=head["max_bytes"],
        max_wait_ms=head["max_wait_ms"],
        packed=head["packed"],
        leader_epoch=head["leader_epoch"],
        seen_epoch=head["seen_epoch"],
    )


def encode_truncated(error: PositionTruncatedError) -> bytes:
    """Encode the answer to a FETCH whose position is not one of the log any more."""
    return join_body(truncated_fields(error))


def truncated_fields(error: PositionTruncatedError) -> dict[str, Any]:
    """Return the fields by which a head names such an error; the inverse of `truncated_in`."""
    cause, offset, epoch = error.divergence
    divergence = [cause.value, offset, epoch]
    return {"position": [error.position, error.epoch], "divergence": divergence}


def truncated_in(head: dict[str, Any]) -> PositionTruncatedError:
    """Return the error that `truncated_fields` described."""
    cause, offset, epoch = head["divergence"]
    divergence = Divergence(DivergenceCause(cause), offset, epoch)
    position, at_epoch = head["position"]
    return PositionTruncatedError(position, at_epoch, divergence)


def _mark_packed(slices: list[BatchSlice], packed: Sequence[int]) -> Sequence[Piece]:
    """Make packed slices of those at the indexes in `packed`; the others are lines.

    The bytes alone do not show it: lines cut out of a compressed frame are like any other lines.
    """
    pieces: list[Piece] = list(slices)
    for index in packed:
        pieces[index] = PackedSlice.received(slices[index])
    return pieces


def encode_fetched(result: FetchResult) -> bytes:
    """Encode the answer to FETCH and FETCH_FOLLOWER."""
    head: dict[str, Any] = {
        "high_watermark": result.high_watermark,
        "log_start_offset": result.log_start_offset,
        "next_offset": result.next_offset,
        "next_leader_epoch": result.next_leader_epoch,
        "leader_id": result.leader_id,
        "leader_epoch": result.leader_epoch,
    }
    if result.served_by is not None:
        head["served_by"] = result.served_by
    if not result.packed:
        return join_body(head, encode_slices(result.slices))
    pieces = result.packed
    head["packed"] = [at for at, piece in enumerate(pieces) if isinstance(piece, PackedSlice)]
    sent = [piece.as_sent() if isinstance(piece, PackedSlice) else piece for piece in pieces]
    return join_body(head, encode_slices(sent))


def decode_append(kind: int, head: dict[str, Any], payload: bytes) -> Append:
    """Decode APPEND, APPEND_CLAIMED and REPEAT_CLAIMED; raise INVALID_REQUEST."""
    try:
        claim = Claim(*head["claim"]) if "claim" in head else None
        if claim is not None:
            check_producer_id(claim.producer_id)
        return Append(
            partition=partition_in(head),
            records=decode_records(payload),
            key_format=RecordFormat(head["key_format"]),
            value_format=RecordFormat(head["value_format"]),
            acks=head["acks"],
            timeout_ms=head["timeout_ms"],
            claim=claim,
            may_begin=head.get("may_begin", True),
        )
    except KeyError as error:
        text = f"request of kind {kind} lacks {error}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text) from error
