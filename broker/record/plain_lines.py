"""Produce records with orjson alone, for a machine without msgspec: slower, the same bytes.

orjson proves that the body is JSON, but its result has lost the client's text (20-digit integers,
duplicate keys); so the text of each value is cut out of the body by a lexical scan that relies on
that proof. `broker.record.lines` uses this module's names if msgspec is missing; `fields_of` serves
compaction and rendering in the same case.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import orjson

from broker.record.values import NULL, UnprocessableRecordsError
from raft_metadata.common.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_TOKEN = re.compile(
    rb'[ \t\r\n]*("[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]|[^ \t\r\n{}\[\],:"]+)', re.DOTALL
)
_OPENING = (b"{", b"[")
_CLOSING = (b"}", b"]")
_ENVELOPE_FIELDS = frozenset(
    {"records", "key_schema", "key_schema_id", "value_schema", "value_schema_id"}
)
_RECORD_FIELDS = frozenset({"partition", "timestamp", "headers", "key", "value"})


class PlainRecord:
    """A record with the fields of the msgspec struct `broker.record.lines.ProduceRecord`."""

    __slots__ = ("headers", "key", "offset", "partition", "timestamp", "value")
    is_bare = False

    def __init__(
        self,
        *,
        partition: int | None = None,
        offset: int = -1,
        timestamp: int | None = None,
        headers: bytes | None = None,
        key: bytes = NULL,
        value: bytes = NULL,
    ) -> None:
        self.partition = partition
        self.offset = offset
        self.timestamp = timestamp
        self.headers = headers
        self.key = key
        self.value = value


def decode_envelope(body: bytes) -> list[PlainRecord]:
    """Read a produce request; the caller has replaced line breaks and checks the rare fields.

    Raises:
        KafkaError: INVALID_REQUEST, the body is not JSON or not of the right shape.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"the body is not JSON: {error}") from None
    if document is None:
        msg = "expected an object, got null"
        raise UnprocessableRecordsError(msg)
    if not isinstance(document, dict):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "expected an object")
    for name in document:
        if name not in _ENVELOPE_FIELDS:
            msg = f"object contains unknown field `{name}`"
            raise UnprocessableRecordsError(msg)
    if "records" not in document:
        msg = "object is missing the required field `records`"
        raise UnprocessableRecordsError(msg)
    parsed = document["records"]
    if not isinstance(parsed, list):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "expected an array - at `$.records`")
    start = dict(_members(body, 0))["records"][0]
    spans = _elements(body, start)
    return [
        _record(body, span, fields, index)
        for index, (span, fields) in enumerate(zip(spans, parsed, strict=True))
    ]


def encode_lines(records: Sequence[PlainRecord]) -> bytes:
    """Return stored lines, with fields in their fixed order (interfaces, section 3)."""
    parts = []
    for record in records:
        parts.append(b'{"offset":%d' % record.offset)
        if record.timestamp is not None:
            parts.append(b',"timestamp":%d' % record.timestamp)
        if record.headers is not None:
            parts.append(b',"headers":' + record.headers)
        parts.append(b',"key":%b,"value":%b}\n' % (record.key, record.value))
    return b"".join(parts)


def fields_of(line: bytes) -> dict[str, bytes]:
    """Return the raw text of each field of one stored line."""
    return {name: line[start:end] for name, (start, end) in _members(line, 0)}


def _record(body: bytes, span: tuple[int, int], parsed: object, index: int) -> PlainRecord:
    if not isinstance(parsed, dict):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"expected an object - at `$.records[{index}]`")
    for name in parsed:
        if name not in _RECORD_FIELDS:
            msg = f"object contains unknown field `{name}` - at `$.records[{index}]`"
            raise UnprocessableRecordsError(msg)
    text = {name: body[start:end] for name, (start, end) in _members(body, span[0])}
    headers = text.get("headers")
    return PlainRecord(
        partition=_whole_number(parsed, "partition", index),
        timestamp=_whole_number(parsed, "timestamp", index),
        headers=headers,
        key=text.get("key", NULL),
        value=text.get("value", NULL),
    )


def _whole_number(parsed: dict[str, object], name: str, index: int) -> int | None:
    value = parsed.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        msg = f"expected an integer >= 0 - at `$.records[{index}].{name}`"
        raise UnprocessableRecordsError(msg)
    return value


def _members(body: bytes, at: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield (name, span of the value's text) of the object that starts here; a later name wins."""
    at = _token(body, at).end()
    while True:
        token = _token(body, at)
        at = token.end()
        if token[1] == b"}":
            return
        if token[1] == b",":
            continue
        name = orjson.loads(token[1])
        at = _token(body, at).end()
        start, at = _value(body, at)
        yield name, (start, at)


def _elements(body: bytes, at: int) -> list[tuple[int, int]]:
    """Return the span of each element's text of the array that starts here."""
    spans: list[tuple[int, int]] = []
    at = _token(body, at).end()
    while True:
        token = _token(body, at)
        if token[1] == b"]":
            return spans
        if token[1] == b",":
            at = token.end()
            continue
        start, at = _value(body, at)
        spans.append((start, at))


def _value(body: bytes, at: int) -> tuple[int, int]:
    """Return the span of the value's text that starts at or behind this position."""
    token = _token(body, at)
    start, end = token.span(1)
    depth = 1 if token[1] in _OPENING else 0
    while depth:
        token = _token(body, end)
        end = token.end()
        if token[1] in _OPENING:
            depth += 1
        elif token[1] in _CLOSING:
            depth -= 1
    return start, end


def _token(body: bytes, at: int) -> re.Match[bytes]:
    token = _TOKEN.match(body, at)
    assert token is not None, "orjson took a body that the scan does not understand"
    return token
