"""Frames of a replication stream: one connection a (follower, leader), all partitions on it.

`FollowerStream` and `LeaderStream` encode and decode them here. Every frame contains topic id,
partition, leader epoch and session (or, before there is a session, the follower's request number);
either side drops a frame that does not match its present state (rule R4). Layout, little-endian::

    length u32 (bytes after the 5-byte prefix) | type u8 | topic id 16s | partition u32
    | leader epoch i32 | session or request u64 | fields of the type | payload

VALID and DIVERGING end with the leader's producers, in the form of a snapshot of the log, if the
follower's log is to begin anew; a SKIP always does (rule S5). A PING has no body. A PAUSE (follower
to leader) has only u32 milliseconds, for which the leader is requested to push nothing to
out-of-sync replicas. It concerns no single partition, and the leader need not comply. A receiver
refuses a frame whose length exceeds its limit before it reads on.
"""

from __future__ import annotations

import base64
import struct
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from raft_metadata.common.ids import PartitionId, TopicId, TopicIdPartition

PREFIX = struct.Struct("<IB")
_HEAD = struct.Struct("<16sIiQ")
_OPEN = struct.Struct("<IB16sIiQqiqqq")
_VALID = struct.Struct("<IB16sIiQQqq")
_DIVERGING = struct.Struct("<IB16sIiQiq")
_REFUSED = struct.Struct("<IB16sIiQi")
_ACK = struct.Struct("<IB16sIiQqqq")
_PUSH = struct.Struct("<IB16sIiQqqqqq")
_SKIP = struct.Struct("<IB16sIiQq")
_PUSH_FIELDS = struct.Struct("<qqqqq")
_OPEN_BYTES, _VALID_BYTES, _DIVERGING_BYTES, _REFUSED_BYTES, _ACK_BYTES, PUSH_HEAD_BYTES = (
    layout.size - PREFIX.size for layout in (_OPEN, _VALID, _DIVERGING, _REFUSED, _ACK, _PUSH)
)


class FrameKind(IntEnum):
    """Type of a frame: the byte after its length."""

    OPEN = 1
    VALID = 2
    DIVERGING = 3
    REFUSED = 4
    ACK = 5
    PUSH = 6
    PING = 7
    PAUSE = 8
    SKIP = 9


PING_FRAME = PREFIX.pack(0, FrameKind.PING)
_PAUSE = struct.Struct("<IBI")
_PAUSE_BYTES = _PAUSE.size - PREFIX.size
MAX_PAUSE_MS = 60_000
"""Longest pause of one PAUSE frame; a follower that needs more sends another one."""


START_OVER = -2
"""In place of an epoch: the follower must start over empty, because records that it lacks may have
included tombstones which compaction removed (rule R7)."""


class FrameError(ValueError):
    """A peer sent bytes that are no valid frame; the connection must be closed."""


class Open(NamedTuple):
    """Request of a follower for a session at the end of its log.

    Answered by Valid, Diverging or Refused.
    """

    request: int
    leader_epoch: int
    broker_epoch: int
    last_epoch: int
    """Leader epoch of the last entry; -1 for an empty log."""
    log_end: int
    durable_end: int
    log_start: int = 0


class Valid(NamedTuple):
    """Answer of a leader: the follower's log is a prefix of its own; opens the session."""

    request: int
    leader_epoch: int
    session: int
    log_start: int
    dropped_to: int = 0
    """Tombstones below this offset may be missing in the leader's log, and so in the log of a
    follower that is filled from below it (rule R7)."""
    producers: bytes | None = None
    """The producers below the log start, for a follower whose log begins anew there (rule S5)."""


class Diverging(NamedTuple):
    """Answer of a leader: the follower must truncate its log and then send OPEN again.

    It truncates to the smaller of ``end`` and its own end of epoch ``at_epoch``. With `START_OVER`
    in place of an epoch it empties its log and begins at ``end``.
    """

    request: int
    leader_epoch: int
    at_epoch: int
    end: int
    producers: bytes | None = None
    """The producers below ``end``, where the follower's log may have to begin anew (rule S5)."""


class Skip(NamedTuple):
    """The frame of a session in which all that the follower lacks below ``start`` is deleted.

    The follower's log begins anew there, with these producers (rule S5).
    """

    session: int
    leader_epoch: int
    start: int
    producers: bytes


class Refused(NamedTuple):
    """Answer of a leader: no session in this epoch. ``error`` is a Kafka error number."""

    request: int
    leader_epoch: int
    error: int


class Ack(NamedTuple):
    """Acknowledgement of a follower: its log end and durable end, in any flush mode (rule R1)."""

    session: int
    leader_epoch: int
    log_end: int
    durable_end: int
    log_start: int = 0
    """The log start offset that remains after any crash."""


class Push(NamedTuple):
    """Batches ``from_offset .. next_offset``, or none, and the high watermark, from a leader."""

    session: int
    leader_epoch: int
    from_offset: int
    next_offset: int
    high_watermark: int
    log_start: int
    batches: memoryview | bytes
    replicated_to: int = 0
    """Offset that every assigned replica has reached, as far as the leader knows in this epoch; 0
    while it is not known, and if the topic is not compacted. Compaction keeps tombstones above it
    (rule R7)."""


Frame = Open | Valid | Diverging | Refused | Ack | Push | Skip


@lru_cache(maxsize=4_096)
def topic_id_bytes(topic_id: TopicId) -> bytes:
    """Return the 16 bytes of a topic id of 22 characters."""
    return base64.urlsafe_b64decode(topic_id + "==")


def topic_id_text(raw: bytes) -> TopicId:
    """Return the topic id of 22 characters for 16 bytes."""
    return TopicId(base64.urlsafe_b64encode(raw).rstrip(b"=").decode())


class Key(NamedTuple):
    """A partition in the form of the frames: 16 bytes of topic id, and its number."""

    topic: bytes
    partition: int


def key_of(topic_id: TopicId, partition: PartitionId) -> Key:
    """Return the frame key of a partition."""
    return Key(topic_id_bytes(topic_id), partition)


def partition_of(key: Key) -> TopicIdPartition:
    """Return the partition of a frame key."""
    return TopicIdPartition(topic_id_text(key.topic), PartitionId(key.partition))


def encode(key: Key, frame: Open | Valid | Diverging | Refused | Ack | Skip) -> bytes:
    """Return the bytes of a control frame."""
    topic, partition = key
    match frame:
        case Ack(session, epoch, log_end, durable_end, log_start):
            return _ACK.pack(
                _ACK_BYTES, FrameKind.ACK, topic, partition, epoch, session,
                log_end, durable_end, log_start,
            )  # fmt: skip
        case Open(request, epoch, broker_epoch, last_epoch, log_end, durable_end, log_start):
            return _OPEN.pack(
                _OPEN_BYTES, FrameKind.OPEN, topic, partition, epoch, request,
                broker_epoch, last_epoch, log_end, durable_end, log_start,
            )  # fmt: skip
        case Valid(request, epoch, session, log_start, dropped_to, producers):
            told = producers or b""
            return _VALID.pack(
                _VALID_BYTES + len(told), FrameKind.VALID, topic, partition, epoch, request,
                session, log_start, dropped_to,
            ) + told  # fmt: skip
        case Diverging(request, epoch, at_epoch, end, producers):
            told = producers or b""
            return _DIVERGING.pack(
                _DIVERGING_BYTES + len(told), FrameKind.DIVERGING, topic, partition, epoch, request,
                at_epoch, end,
            ) + told  # fmt: skip
        case Skip(session, epoch, start, producers):
            size = _SKIP.size - PREFIX.size + len(producers)
            head = _SKIP.pack(size, FrameKind.SKIP, topic, partition, epoch, session, start)
            return head + producers
        case Refused(request, epoch, error):
            return _REFUSED.pack(
                _REFUSED_BYTES, FrameKind.REFUSED, topic, partition, epoch, request, error
            )


def encode_push_head(key: Key, push: Push, payload_bytes: int) -> bytes:
    """Return the bytes of a PUSH before its payload, which is written separately, uncopied."""
    topic, partition = key
    session, epoch, from_offset, next_offset, high_watermark, log_start, _, replicated_to = push
    return _PUSH.pack(
        PUSH_HEAD_BYTES + payload_bytes, FrameKind.PUSH, topic, partition, epoch, session,
        from_offset, next_offset, high_watermark, log_start, replicated_to,
    )  # fmt: skip


def pause_frame(pause_ms: int) -> bytes:
    """Return the bytes of a PAUSE for ``pause_ms``, at most `MAX_PAUSE_MS`."""
    return _PAUSE.pack(_PAUSE_BYTES, FrameKind.PAUSE, min(pause_ms, MAX_PAUSE_MS))


def decode_pause(body: memoryview) -> int:
    """Return the milliseconds that a PAUSE requests, at most `MAX_PAUSE_MS`."""
    if len(body) != _PAUSE_BYTES:
        msg = f"PAUSE frame of {len(body)} bytes, expected {_PAUSE_BYTES}"
        raise FrameError(msg)
    return min(int.from_bytes(body, "little"), MAX_PAUSE_MS)


def decode(kind: int, body: memoryview) -> tuple[Key, Frame]:
    """Return the key and frame of a body; the payload of a PUSH stays a view into ``body``.

    Raises FrameError for an unknown type or a short body.
    """
    try:
        topic, partition, epoch, number = _HEAD.unpack_from(body, 0)
        key, at = Key(topic, partition), _HEAD.size
        match kind:
            case FrameKind.PUSH:
                a, b, hw, start, everywhere = _PUSH_FIELDS.unpack_from(body, at)
                batches = body[at + _PUSH_FIELDS.size :]
                return key, Push(number, epoch, a, b, hw, start, batches, everywhere)
            case FrameKind.ACK:
                return key, Ack(number, epoch, *struct.unpack_from("<qqq", body, at))
            case FrameKind.OPEN:
                return key, Open(number, epoch, *struct.unpack_from("<qiqqq", body, at))
            case FrameKind.VALID:
                session, start, dropped_to = struct.unpack_from("<Qqq", body, at)
                told = bytes(body[_VALID_BYTES:]) or None
                return key, Valid(number, epoch, session, start, dropped_to, told)
            case FrameKind.DIVERGING:
                at_epoch, end = struct.unpack_from("<iq", body, at)
                told = bytes(body[_DIVERGING_BYTES:]) or None
                return key, Diverging(number, epoch, at_epoch, end, told)
            case FrameKind.SKIP:
                (start,) = struct.unpack_from("<q", body, at)
                return key, Skip(number, epoch, start, bytes(body[at + 8 :]))
            case FrameKind.REFUSED:
                return key, Refused(number, epoch, *struct.unpack_from("<i", body, at))
            case _:
                msg = f"unknown frame type {kind}"
                raise FrameError(msg)
    except struct.error as error:
        msg = f"frame of type {kind} is too short: {error}"
        raise FrameError(msg) from error
