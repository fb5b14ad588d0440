"""Bytes between brokers: one hello, then request and answer frames. Pure.

The two ends of a peer connection, `peer_channel` and `peer_server`, encode and decode with it. A
`KafkaError` crosses between nodes as a JSON object of its number, name, message and outcome; the
controllers' HTTP plane uses the same body.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum, IntEnum

import orjson

from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import BrokerId, ClusterId

MAX_MESSAGE_CHARACTERS = 4096
"""Longest message of an error, cut there: an error must never be too large to send."""


def body_of(error: KafkaError) -> dict[str, object]:
    """Return the JSON object that `error_from_body` turns back into an equal error."""
    # File names may hold bytes that are no text, which JSON can't represent.
    message = error.message[:MAX_MESSAGE_CHARACTERS].encode(errors="replace").decode()
    return {
        "error": error.code.number,
        "name": error.code.name,
        "message": message,
        "outcome": error.outcome.value,
    }


def error_from_body(body: object) -> KafkaError:
    """Return the error that another node sent; ValueError when this is no such body."""
    match body:
        case {"error": int(number), "message": str(message), "outcome": str(outcome)}:
            return KafkaError(ErrorCode.from_number(number), message, outcome=Outcome(outcome))
        case _:
            msg = "expected an object with error, message and outcome"
            raise ValueError(msg)


MAGIC = b"QLPP"
VERSION = 1
MAX_HELLO_BYTES = 32_768
"""A hello is about 100 bytes, its answer at most an error of 4096 characters, all escaped."""
MAX_FRAME_BYTES = 75_497_472
"""72 MiB: the largest fetch answer (64 MiB of lines, ``max_fetch_bytes``) with its headers."""

_HELLO_HEAD = struct.Struct(">4sH")
_HEAD = struct.Struct(">IBQ")
_REQUEST_FACTS = struct.Struct(">HI")
_REQUEST_HEAD = struct.Struct(">IBQHI")
_LENGTH_BYTES = 4
_SHORTEST = _HEAD.size - _LENGTH_BYTES
_MAX_TIMEOUT_MS = 0xFFFFFFFF


class ProtocolViolationError(Exception):
    """The other side speaks another protocol; the connection is of no more use."""


class Plane(Enum):
    """Purpose of a connection."""

    RPC = "rpc"
    REPLICATION = "replication"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """First message on a connection: dialling broker, addressee, cluster, purpose."""

    cluster_id: ClusterId
    from_broker: BrokerId
    to_broker: BrokerId
    plane: Plane


@dataclass(frozen=True, slots=True)
class Request:
    """A request of one ``kind``, to be answered within ``timeout_ms``."""

    request_id: int
    kind: int
    timeout_ms: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to a request that was carried out."""

    request_id: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Refusal:
    """Answer to a request that failed; the error's outcome shows what it left behind."""

    request_id: int
    error: KafkaError


Frame = Request | Answer | Refusal


class FrameType(IntEnum):
    """Type of a frame: the byte after the length."""

    REQUEST = 1
    ANSWER = 2
    REFUSAL = 3


# ---------------------------------------------------------------- hello


def encode_hello(hello: Hello) -> bytes:
    """Encode the first bytes that the dialling side sends."""
    return _hello_frame(
        {
            "version": VERSION,
            "cluster_id": hello.cluster_id,
            "from": hello.from_broker,
            "to": hello.to_broker,
            "plane": hello.plane.value,
        }
    )


def encode_welcome(error: KafkaError | None) -> bytes:
    """Encode the answer to a hello: None accepts it, an error refuses it."""
    return _hello_frame({"ok": True} if error is None else body_of(error))


def take_hello(received: bytearray) -> dict[str, object] | None:
    """Take one hello frame off the front; return None while it is incomplete.

    Raises ProtocolViolationError as soon as the bytes can't become one: another protocol is refused
    after four bytes, and a length over the limit is never waited for.
    """
    if not MAGIC.startswith(received[: len(MAGIC)]):
        msg = "not a peer connection"
        raise ProtocolViolationError(msg)
    if len(received) < _HELLO_HEAD.size:
        return None
    _, length = _HELLO_HEAD.unpack_from(received)
    if length > MAX_HELLO_BYTES:
        msg = f"hello of {length} bytes is over the limit of {MAX_HELLO_BYTES}"
        raise ProtocolViolationError(msg)
    end = _HELLO_HEAD.size + length
    if len(received) < end:
        return None
    try:
        body: object = orjson.loads(received[_HELLO_HEAD.size : end])
    except orjson.JSONDecodeError as error:
        msg = "hello is not JSON"
        raise ProtocolViolationError(msg) from error
    if not isinstance(body, dict):
        msg = "hello is not an object"
        raise ProtocolViolationError(msg)
    del received[:end]
    return body


def decode_hello(body: dict[str, object]) -> Hello:
    """Return the hello in a body from `take_hello`, checked field by field."""
    if body.get("version") != VERSION:
        msg = f"peer version {body.get('version')!r} is not {VERSION}"
        raise ProtocolViolationError(msg)
    cluster_id, plane = body.get("cluster_id"), body.get("plane")
    from_broker, to_broker = body.get("from"), body.get("to")
    if (
        not isinstance(cluster_id, str)
        or not isinstance(from_broker, int)
        or not isinstance(to_broker, int)
        or plane not in {each.value for each in Plane}
    ):
        msg = "hello lacks cluster_id, from, to or plane"
        raise ProtocolViolationError(msg)
    return Hello(
        cluster_id=ClusterId(cluster_id),
        from_broker=BrokerId(from_broker),
        to_broker=BrokerId(to_broker),
        plane=Plane(plane),
    )


def decode_welcome(body: dict[str, object]) -> KafkaError | None:
    """Return None when the hello was accepted, else the refusal."""
    if body.get("ok") is True:
        return None
    try:
        return error_from_body(body)
    except ValueError as error:
        msg = "answer to hello is neither ok nor an error"
        raise ProtocolViolationError(msg) from error


def _hello_frame(fields: dict[str, object]) -> bytes:
    body = orjson.dumps(fields)
    return _HELLO_HEAD.pack(MAGIC, len(body)) + body


# ---------------------------------------------------------------- frames


def request_head(request_id: int, kind: int, timeout_ms: int, body_bytes: int) -> bytes:
    """Return the bytes before a request's body, which is sent beside them and not copied."""
    return _REQUEST_HEAD.pack(
        _REQUEST_HEAD.size - _LENGTH_BYTES + body_bytes,
        FrameType.REQUEST,
        request_id,
        kind,
        min(max(timeout_ms, 0), _MAX_TIMEOUT_MS),
    )


def answer_head(request_id: int, body_bytes: int) -> bytes:
    """Return the bytes before an answer's body."""
    return _HEAD.pack(_SHORTEST + body_bytes, FrameType.ANSWER, request_id)


def encode_refusal(request_id: int, error: KafkaError) -> bytes:
    """Encode a whole refusal frame."""
    body = orjson.dumps(body_of(error))
    return _HEAD.pack(_SHORTEST + len(body), FrameType.REFUSAL, request_id) + body


def request_frame_bytes(body_bytes: int) -> int:
    """Return the ``length`` field of a request with such a body, to compare with the limit."""
    return _REQUEST_HEAD.size - _LENGTH_BYTES + body_bytes


def answer_frame_bytes(body_bytes: int) -> int:
    """Return the ``length`` field of an answer with such a body."""
    return _SHORTEST + body_bytes


class FrameReader:
    """Decoder of received bytes; keeps at most one incomplete frame, never over the limit.

    Owner: one connection's protocol. Nothing is allocated ahead for a length that was announced:
    memory grows with the bytes that really came.
    """

    __slots__ = ("_accepts", "_buffer", "_max_frame_bytes")

    def __init__(
        self, accepts: frozenset[FrameType], max_frame_bytes: int = MAX_FRAME_BYTES
    ) -> None:
        self._accepts = accepts
        self._max_frame_bytes = max_frame_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that are complete now. ProtocolViolationError ends the connection."""
        buffer = self._buffer
        if buffer:
            buffer += data
        source: bytes | bytearray = buffer or data
        frames: list[Frame] = []
        start = 0
        with memoryview(source) as view:
            while len(view) - start >= _HEAD.size:
                length, frame_type, request_id = _HEAD.unpack_from(view, start)
                self._check(length, frame_type)
                end = start + _LENGTH_BYTES + length
                if end > len(view):
                    break
                with view[start + _HEAD.size : end] as content:
                    frames.append(_decode(frame_type, request_id, content))
                start = end
        if source is buffer:
            del buffer[:start]
        elif start < len(data):
            buffer += data[start:]
        return frames

    def _check(self, length: int, frame_type: int) -> None:
        if frame_type not in self._accepts:
            msg = f"unexpected frame type {frame_type}"
            raise ProtocolViolationError(msg)
        if not _SHORTEST <= length <= self._max_frame_bytes:
            msg = f"frame of {length} bytes is outside {_SHORTEST}..{self._max_frame_bytes}"
            raise ProtocolViolationError(msg)


def _decode(frame_type: int, request_id: int, content: memoryview) -> Frame:
    if frame_type == FrameType.ANSWER:
        return Answer(request_id, bytes(content))
    if frame_type == FrameType.REQUEST:
        if len(content) < _REQUEST_FACTS.size:
            msg = "request without kind and time-out"
            raise ProtocolViolationError(msg)
        kind, timeout_ms = _REQUEST_FACTS.unpack_from(content)
        return Request(request_id, kind, timeout_ms, bytes(content[_REQUEST_FACTS.size :]))
    try:
        return Refusal(request_id, error_from_body(orjson.loads(content)))
    except ValueError as error:
        msg = "refusal without an error"
        raise ProtocolViolationError(msg) from error
