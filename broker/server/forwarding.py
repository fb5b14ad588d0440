"""Requests between brokers: their kinds, their encoding, and the service that answers them.

A body is the u32 length of a JSON head, the head, then the payload (records as the client's JSON
text, or stored slices as bytes). `PeerRequests` answers a forwarded request locally or refuses it,
and never forwards it again (decision D7); the peer plane sends it at most once (rules F1, F2).
"""

from __future__ import annotations

import asyncio
import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from broker.coordinator import group_messages
from broker.record.batch import RecordFormat, decode_slices, encode_slices
from broker.record.compression import PackedSlice
from broker.record.lines import ProduceRecord, decode_records, encode_lines
from broker.server.health import Damage
from broker.server.local_partitions import Append, Read, local_progress, split_packed
from broker.server.requests import FetchResult, OffsetsResult, OwnFacts, PartitionProgress
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
    from collections.abc import Callable, Sequence

    from broker.coordinator.group_coordinator import GroupCoordinator
    from broker.ports import Answered
    from broker.record.batch import BatchSlice
    from broker.record.compression import Piece
    from broker.replication.leader_stream import LeaderStream
    from broker.replication.log_start_manager import LogTrimming
    from broker.replication.replica_manager import ReplicaManager
    from broker.server.local_partitions import LocalPartitions
    from broker.server.metadata_loader import MetadataLoader

APPEND, FETCH, OFFSETS, AWAIT_METADATA, GROUP, LIST_GROUPS = 1, 2, 3, 4, 5, 6
PROGRESS, OWN_FACTS = 7, 8
FETCH_FOLLOWER = 11
"""FETCH from a replica that follows (KIP-392)."""
DELETE_RECORDS = 13
APPEND_CLAIMED = 10
REPEAT_CLAIMED = 14
"""APPEND_CLAIMED of records that the topic's configs refuse: the answer is the earlier append's, or
INVALID_RECORD if there was none."""
_LENGTH = struct.Struct("<I")


def _join(head: dict[str, Any], *payload: bytes) -> bytes:
    text = orjson.dumps(head)
    return b"".join((_LENGTH.pack(len(text)), text, *payload))


def _split(body: bytes) -> tuple[dict[str, Any], bytes]:
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


def _partition(head: dict[str, Any]) -> TopicIdPartition:
    return TopicIdPartition(TopicId(head["topic_id"]), PartitionId(head["partition"]))


def _place(partition: TopicIdPartition) -> dict[str, Any]:
    return {"topic_id": partition.topic_id, "partition": partition.partition}


def _envelope(records: Sequence[ProduceRecord]) -> bytes:
    """Return the records as a produce body: its array elements are stored lines without offset."""
    for record in records:
        record.partition, record.offset = None, -1
    return b'{"records":[' + encode_lines(records)[:-1].replace(b"\n", b",") + b"]}"


def encode_append(request: Append) -> bytes:
    """Encode an APPEND body. The records keep the client's text (rule R12)."""
    head = {
        **_place(request.partition),
        "key_format": int(request.key_format),
        "value_format": int(request.value_format),
        "acks": request.acks,
        "timeout_ms": request.timeout_ms,
    }
    return _join(head, _envelope(request.records))


def encode_claimed(request: Append, *body: bytes) -> bytes:
    """Encode an APPEND_CLAIMED body: an APPEND under a producer id.

    ``body``: the records as pieces of a produce body; the records
    in `request` are not used.
    """
    assert request.claim is not None
    head = {
        **_place(request.partition),
        "key_format": int(request.key_format),
        "value_format": int(request.value_format),
        "acks": request.acks,
        "timeout_ms": request.timeout_ms,
        "claim": list(request.claim),
        "may_begin": request.may_begin,
    }
    return _join(head, *body)


def encode_records(records: Sequence[ProduceRecord]) -> bytes:
    """Encode records as a produce body."""
    return _envelope(records)


def encode_fetch(request: Read) -> bytes:
    """Encode a FETCH body."""
    return _join(
        {
            **_place(request.partition),
            "offset": request.offset,
            "timestamp_ms": request.timestamp_ms,
            "max_bytes": request.max_bytes,
            "max_wait_ms": request.max_wait_ms,
            "packed": request.packed,
        }
    )


def encode_offsets(partition: TopicIdPartition) -> bytes:
    """Encode an OFFSETS body."""
    return _join(_place(partition))


def encode_delete_records(partition: TopicIdPartition, before_offset: int) -> bytes:
    """Encode a DELETE_RECORDS body."""
    return _join({**_place(partition), "before_offset": before_offset})


def decode_log_start(body: bytes) -> int:
    """Decode the answer to DELETE_RECORDS: the new log start offset."""
    head, _ = _split(body)
    return int(head["log_start_offset"])


def encode_await_metadata(offset: MetadataOffset) -> bytes:
    """Encode an AWAIT_METADATA body; it is answered once the peer's image has this offset."""
    return _join({"offset": offset})


def encode_list_groups(partition: PartitionId) -> bytes:
    """Encode a LIST_GROUPS body."""
    return _join({"partition": partition})


def encode_progress(partitions: Sequence[TopicIdPartition]) -> bytes:
    """Encode a PROGRESS body, which requests the followers' log ends of these partitions."""
    return _join({"partitions": [_place(partition) for partition in partitions]})


def decode_progress(body: bytes) -> dict[TopicIdPartition, PartitionProgress]:
    """Decode the answer to PROGRESS: a row for each partition that the peer leads."""
    return {
        _partition(row): PartitionProgress(
            log_end_offset=row["log_end_offset"],
            high_watermark=row["high_watermark"],
            follower_ends={BrokerId(broker): end for broker, end in row["follower_ends"]},
        )
        for row in _split(body)[0]["rows"]
    }


def encode_own_facts() -> bytes:
    """Encode an OWN_FACTS body, which requests the facts that only the peer knows of itself."""
    return _join({})


def decode_own_facts(body: bytes) -> OwnFacts:
    """Decode the answer to OWN_FACTS."""
    head = _split(body)[0]
    damage = head["damage"]
    return OwnFacts(
        static_configs=head["static_configs"],
        shutdown_blocked_by=head["shutdown_blocked_by"],
        damage=Damage(
            count=damage["count"],
            partitions=tuple((_partition(row), row["reason"]) for row in damage["partitions"]),
        ),
    )


def decode_base_offset(body: bytes) -> int:
    """Decode the answer to APPEND: the offset of the first record."""
    return int(_split(body)[0]["base_offset"])


def decode_fetch(body: bytes) -> FetchResult:
    """Decode the answer to FETCH."""
    head, payload = _split(body)
    lines, frames = split_packed(_mark_packed(decode_slices(payload), head.get("packed", ())))
    return FetchResult(
        slices=lines,
        packed=frames,
        high_watermark=head["high_watermark"],
        log_start_offset=head["log_start_offset"],
        next_offset=head["next_offset"],
        leader_id=BrokerId(head["leader_id"]),
        leader_epoch=LeaderEpoch(head["leader_epoch"]),
        served_by=None if head.get("served_by") is None else BrokerId(head["served_by"]),
    )


def decode_offsets(body: bytes) -> OffsetsResult:
    """Decode the answer to OFFSETS."""
    head, _ = _split(body)
    return OffsetsResult(beginning_offset=head["beginning_offset"], end_offset=head["end_offset"])


def _read(head: dict[str, Any]) -> Read:
    return Read(
        partition=_partition(head),
        offset=head["offset"],
        timestamp_ms=head["timestamp_ms"],
        max_bytes=head["max_bytes"],
        max_wait_ms=head["max_wait_ms"],
        packed=head["packed"],
    )


def _mark_packed(slices: list[BatchSlice], packed: Sequence[int]) -> Sequence[Piece]:
    """Make packed slices of those at the indexes in `packed`; the others are lines.

    The bytes alone do not show it: lines cut out of a compressed frame are like any other lines.
    """
    pieces: list[Piece] = list(slices)
    for index in packed:
        pieces[index] = PackedSlice.received(slices[index])
    return pieces


def _fetched(result: FetchResult) -> bytes:
    head: dict[str, Any] = {
        "high_watermark": result.high_watermark,
        "log_start_offset": result.log_start_offset,
        "next_offset": result.next_offset,
        "leader_id": result.leader_id,
        "leader_epoch": result.leader_epoch,
    }
    if result.served_by is not None:
        head["served_by"] = result.served_by
    if not result.packed:
        return _join(head, encode_slices(result.slices))
    pieces = result.packed
    head["packed"] = [at for at, piece in enumerate(pieces) if isinstance(piece, PackedSlice)]
    sent = [piece.as_sent() if isinstance(piece, PackedSlice) else piece for piece in pieces]
    return _join(head, encode_slices(sent))


def _append_in(kind: int, head: dict[str, Any], payload: bytes) -> Append:
    try:
        return Append(
            partition=_partition(head),
            records=decode_records(payload),
            key_format=RecordFormat(head["key_format"]),
            value_format=RecordFormat(head["value_format"]),
            acks=head["acks"],
            timeout_ms=head["timeout_ms"],
            claim=Claim(*head["claim"]) if "claim" in head else None,
            may_begin=head.get("may_begin", True),
        )
    except KeyError as error:
        text = f"request of kind {kind} lacks {error}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text) from error


class FollowerReadService(Protocol):
    """Port to the reads from a replica that follows here, `broker.server.fetch.FollowerReads`."""

    async def serve(self, read: Read) -> FetchResult: ...


class PeerRequests:
    """Implementation of `broker.ports.PeerServices`: answers other brokers, never forwards.

    Owned by the `BrokerServer`, on its loop. Stateless.
    """

    def __init__(
        self,
        local: LocalPartitions,
        manager: ReplicaManager,
        loader: MetadataLoader,
        coordinator: GroupCoordinator,
        own_facts: Callable[[], OwnFacts],
        follower_reads: FollowerReadService | None = None,
    ) -> None:
        self._own_facts = own_facts
        self._follower_reads = follower_reads
        self.trimming: LogTrimming | None = None
        self._coordinator = coordinator
        self._local = local
        self._manager = manager
        self._loader = loader

    async def answer(self, kind: int, body: bytes, timeout_ms: int) -> bytes:
        """Answer a request of one of the kinds above.

        Raises KafkaError: INVALID_REQUEST for an unknown kind or a malformed body, METADATA_BEHIND
        at the time-out of AWAIT_METADATA, or the error of the request itself.
        """
        head, payload = _split(body)
        try:
            match kind:
                case 1 | 10 | 14:  # APPEND, APPEND_CLAIMED, REPEAT_CLAIMED
                    return await self._append(kind, head, payload)
                case 2 | 11:  # FETCH, FETCH_FOLLOWER
                    return await self._fetch(head, follower_reads=kind == FETCH_FOLLOWER)
                case 3:  # OFFSETS
                    found = self._local.offsets(_partition(head))
                    return _join(
                        {
                            "beginning_offset": found.beginning_offset,
                            "end_offset": found.end_offset,
                        }
                    )
                case 4:  # AWAIT_METADATA
                    async with asyncio.timeout(timeout_ms / 1000):
                        await self._loader.wait_for(MetadataOffset(head["offset"]))
                    return _join({})
                case 5:  # GROUP
                    request = group_messages.decode_request(body)
                    return group_messages.encode_answer(await self._coordinator.answer(request))
                case 6:  # LIST_GROUPS
                    groups = await self._coordinator.list_groups(PartitionId(head["partition"]))
                    return group_messages.encode_answer(tuple(groups))
                case 7:  # PROGRESS
                    return self._progress(head)
                case 8:  # OWN_FACTS
                    return self._facts()
                case 13:  # DELETE_RECORDS
                    return await self._delete_records(head, timeout_ms)
                case _:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, f"unknown request kind {kind}")
        except KeyError as error:
            text = f"request of kind {kind} lacks {error}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text) from error
        except TimeoutError as error:
            raise KafkaError(ErrorCode.METADATA_BEHIND) from error

    async def _delete_records(self, head: dict[str, Any], timeout_ms: int) -> bytes:
        assert self.trimming is not None, "the broker set it before it listened"
        start = await self.trimming.delete_records(
            _partition(head), head["before_offset"], timeout_ms
        )
        return _join({"log_start_offset": start})

    def answer_directly(self, kind: int, body: bytes, answered: Answered) -> bool:
        """Answer APPEND_CLAIMED, which is nearly all that other brokers send, without a task."""
        if kind != APPEND_CLAIMED:
            return False

        def done(base_offset: int, error: KafkaError | None) -> None:
            answered(b"" if error else _join({"base_offset": base_offset}), error)

        request = _append_in(kind, *_split(body))
        self._local.append_directly(request, done)
        return True

    async def _append(self, kind: int, head: dict[str, Any], payload: bytes) -> bytes:
        append = _append_in(kind, head, payload)
        if kind == REPEAT_CLAIMED:
            append = replace(append, refused=KafkaError(ErrorCode.INVALID_RECORD, "no repeat"))
        return _join({"base_offset": await self._local.append(append)})

    async def _fetch(self, head: dict[str, Any], *, follower_reads: bool) -> bytes:
        read = _read(head)
        if not follower_reads:
            return _fetched(await self._local.fetch(read))
        if self._follower_reads is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "followers serve no reads on this broker")
        return _fetched(await self._follower_reads.serve(read))

    def _facts(self) -> bytes:
        facts = self._own_facts()
        rows = [_place(where) | {"reason": why} for where, why in facts.damage.partitions]
        return _join(
            {
                "static_configs": dict(facts.static_configs),
                "shutdown_blocked_by": facts.shutdown_blocked_by,
                "damage": {"count": facts.damage.count, "partitions": rows},
            }
        )

    def _progress(self, head: dict[str, Any]) -> bytes:
        rows = [
            _place(place)
            | {
                "log_end_offset": one.log_end_offset,
                "high_watermark": one.high_watermark,
                "follower_ends": list(one.follower_ends.items()),
            }
            for place in map(_partition, head["partitions"])
            if (one := local_progress(self._local, place)) is not None
        ]
        return _join({"rows": rows})

    def accept_stream(self, follower: BrokerId) -> LeaderStream:
        return self._manager.accept_stream(follower)
