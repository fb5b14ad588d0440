"""Group requests and answers as they cross between brokers: a JSON head, then raw bytes.

``{"request": name, ...fields}`` behind its length, as every request between brokers; the records of
a read follow its head untouched. What is a pure read may be asked again, anything else never
(rule F2).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
import orjson

from broker.coordinator.requests import (
    Assign,
    Commit,
    CommitGroup,
    CommittedOffsets,
    CreateInstance,
    DeleteInstance,
    DescribeGroup,
    DescribeInstance,
    GroupDescription,
    GroupOffset,
    GroupOffsetRow,
    GroupOffsets,
    GroupRequest,
    InstanceCreated,
    InstanceDescription,
    OffsetsCommitted,
    Poll,
    PolledRecords,
    Seek,
    Subscribe,
    Unsubscribe,
)
from raft_metadata.common.errors import ErrorCode, KafkaError

T = TypeVar("T")

_LENGTH = struct.Struct("<I")
_ANSWERS: Mapping[type[GroupRequest[Any]], Any] = {
    CreateInstance: InstanceCreated,
    DeleteInstance: None,
    Subscribe: None,
    Unsubscribe: None,
    DescribeInstance: InstanceDescription,
    Assign: None,
    Poll: PolledRecords,
    Commit: OffsetsCommitted,
    CommittedOffsets: tuple[GroupOffset, ...],
    Seek: None,
    CommitGroup: None,
    GroupOffsets: tuple[GroupOffsetRow, ...],
    DescribeGroup: GroupDescription,
}
_REQUESTS: Mapping[str, type[GroupRequest[Any]]] = {cls.__name__: cls for cls in _ANSWERS}
PURE_READS = (DescribeInstance, CommittedOffsets, GroupOffsets, DescribeGroup)
"""May be asked twice: they refresh a session at most."""


def encode_request(request: GroupRequest[Any]) -> bytes:
    """A GROUP body."""
    head = orjson.dumps([type(request).__name__, request], default=_plain)
    return _join(b'{"group":%b}' % head)


def decode_request(body: bytes) -> GroupRequest[Any]:
    """The inverse. INVALID_REQUEST says what is wrong."""
    try:
        name, fields = _head(body)[0]["group"]
        found: GroupRequest[Any] = msgspec.convert(fields, _REQUESTS[name])
    except (struct.error, ValueError, KeyError, TypeError) as error:
        text = f"malformed group request: {error}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text) from error
    return found


def encode_answer(answer: object) -> bytes:
    """The answer to any of them."""
    if isinstance(answer, PolledRecords):
        head = {"body": "", "count": answer.count, "format": answer.format}
        return _join(b'{"answer":%b}' % orjson.dumps(head), answer.body)
    return _join(b'{"answer":%b}' % orjson.dumps(answer, default=_plain))


def decode_answer(request: GroupRequest[T], body: bytes) -> T:
    """The inverse of `encode_answer`."""
    cls = _ANSWERS[type(request)]
    head, payload = _head(body)
    found = head["answer"]
    answer: Any = None
    if cls is PolledRecords:
        answer = PolledRecords(body=payload, count=found["count"], format=found["format"])
    elif cls is not None:
        answer = msgspec.convert(found, cls)
    return answer  # type: ignore[no-any-return]


def decode_groups(body: bytes) -> tuple[GroupDescription, ...]:
    """The answer to LIST_GROUPS."""
    return msgspec.convert(_head(body)[0]["answer"], tuple[GroupDescription, ...])


def _join(head: bytes, payload: bytes = b"") -> bytes:
    return b"".join((_LENGTH.pack(len(head)), head, payload))


def _head(body: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = _LENGTH.unpack_from(body)
    end = _LENGTH.size + length
    head: dict[str, Any] = orjson.loads(body[_LENGTH.size : end])
    return head, body[end:]


def _plain(value: object) -> object:
    if isinstance(value, tuple | frozenset):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not a field of a group request")
