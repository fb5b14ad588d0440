"""A record of the v3 API, from its JSON text to the record that the log stores. Pure.

``{"partition_id"?, "headers"?: [{"name", "value"}], "key"?, "value"?, "timestamp"?}``; key and
value are ``{"type": "BINARY" | "JSON" | "STRING", "data"}``, each of its own type. A batch of the
log has one format for its keys and one for its values: `runs` cuts records where a format changes.

The texts of keys and values pass through as they are (rule R12): they are never parsed and dumped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
import orjson

from broker.record.batch import RecordFormat
from broker.record.lines import (
    NESTING_ACCEPTED,
    PARTITION_MAX,
    TIMESTAMP_MAX,
    ProduceRecord,
    make_raw,
    not_json,
)
from broker.record.values import NULL, bytes_view, check_binary, decode_base64
from http_api.contract.errors import RestCode, excerpt
from http_api.contract.grammar import GrammarError, parse_time_ms
from raft_metadata.common.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

EXPECTED: Final = (
    'expected {"partition_id"?, "headers"?: [{"name", "value"}], "key"?: {"type", "data"}, '
    '"value"?: {"type", "data"}, "timestamp"?: ISO 8601}'
)
_FORMATS = {
    "BINARY": RecordFormat.BINARY,
    "JSON": RecordFormat.JSON,
    "STRING": RecordFormat.STRING,
}
_SCHEMA_TYPES = frozenset({"AVRO", "JSONSCHEMA", "PROTOBUF"})
_NO_SCHEMAS = (
    "Error: 42206 : Payload error. Schema Registry must be configured when using schemas. Send the "
    '{half} as {{"type":"JSON","data":…}}, or as "STRING" or "BINARY" (base64): there are no '
    "schemas here"
)
"""Confluent's text, and what to send instead."""
ENTRY_ID = re.compile(r"[0-9A-Za-z_-]{1,80}")


class NotJsonError(Exception):
    """The text of an object is no JSON, so no object that follows can be found for sure."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


@dataclass(frozen=True, slots=True)
class RefusedEntry:
    """A record that can't be written as it was sent. Nothing was written."""

    code: RestCode
    message: str


@dataclass(slots=True)
class RecordEntry:
    """A record that can be written."""

    record: ProduceRecord
    """``timestamp`` is None where the client sent none."""
    partition: int | None
    """The partition that the client names, or that a keyless record is given; a produce clears the
    record's own."""
    key_format: RecordFormat | None
    """None: there is no key, so that any format holds for it."""
    value_format: RecordFormat | None
    shown: bytes
    """``,"key":{"type","size"},"value":{"type","size"}`` of the halves that the record has."""


class _Header(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    name: str
    value: str | None = None


class _Half(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A key or a value."""

    type: str | None = None
    data: msgspec.Raw = msgspec.Raw(NULL)


_SCHEMA_FIELD = re.compile(r"unknown field `(?:schema|subject)\w*` - at `\$\.(key|value)`")
"""The decoder's message for one of Confluent's fields that name a schema."""


class _Entry(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    partition_id: int | None = None
    headers: list[_Header] | None = None
    key: _Half | None = None
    value: _Half | None = None
    timestamp: str | None = None


class _BatchEntry(_Entry, gc=False, forbid_unknown_fields=True, kw_only=True):
    id: str


class _Identified(msgspec.Struct, gc=False):
    """An entry of a batch, of which only the id is looked at."""

    id: msgspec.Raw = msgspec.Raw()


class _BatchBody(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    entries: list[msgspec.Raw]


_decode_entry = msgspec.json.Decoder(_Entry).decode
_decode_batch_entry = msgspec.json.Decoder(_BatchEntry).decode
_decode_identified = msgspec.json.Decoder(_Identified).decode
_decode_batch = msgspec.json.Decoder(_BatchBody).decode


def read_entry(text: bytes, *, in_batch: bool = False) -> RecordEntry | RefusedEntry:
    """Return the record of an object's text, or why it is refused.

    ``in_batch``: the object has an ``id`` besides.

    Raises:
        NotJsonError: the text is no JSON; then the place of what follows it is not sure.
    """
    try:
        if not text.isascii():
            text.decode()
        entry: _Entry = (_decode_batch_entry if in_batch else _decode_entry)(text)
    except UnicodeDecodeError as error:
        raise NotJsonError(f"the record is not UTF-8 at byte {error.start}") from None
    except RecursionError:
        return _refused(f"it is nested too deep: expected at most {NESTING_ACCEPTED} levels")
    except msgspec.ValidationError as error:
        if schema := _SCHEMA_FIELD.search(str(error)):
            return _needs_schema(schema[1])
        return _refused(f"{error}; {EXPECTED}")
    except msgspec.DecodeError as error:
        raise NotJsonError(not_json(text, str(error)).replace("the body", "the record")) from None
    try:
        return _record(entry)
    except _RefusedError as error:
        return error.refused
    except KafkaError as error:
        return RefusedEntry(RestCode.BAD_REQUEST, error.message)


def read_batch(body: bytes) -> list[bytes]:
    """Return the texts of a batch's entries.

    Raises:
        NotJsonError: the body is no JSON, or not of the expected shape.
    """
    expected = 'expected {"entries":[{"id", …a record}]}'
    try:
        if not body.isascii():
            body.decode()
        return [bytes(entry) for entry in _decode_batch(body).entries]
    except UnicodeDecodeError as error:
        raise NotJsonError(f"the body is not UTF-8 at byte {error.start}") from None
    except RecursionError:
        text = f"the body is nested too deep: expected at most {NESTING_ACCEPTED} levels"
        raise NotJsonError(text) from None
    except msgspec.ValidationError as error:
        raise NotJsonError(f"{error}; {expected}") from None
    except msgspec.DecodeError as error:
        raise NotJsonError(not_json(body, str(error))) from None


def entry_id(text: bytes) -> str | None:
    """Return the id of a batch's entry; None unless it is a string of the expected form."""
    try:
        raw = bytes(_decode_identified(text).id)
        found = orjson.loads(raw) if raw else None
    except (msgspec.DecodeError, orjson.JSONDecodeError):
        return None
    return found if isinstance(found, str) and ENTRY_ID.fullmatch(found) else None


def runs(entries: Sequence[RecordEntry]) -> Iterator[tuple[RecordFormat, RecordFormat, int, int]]:
    """Yield (key format, value format, first, end) of records that one batch can hold, in order.

    A half that is null fits any format, so it never ends a run.
    """
    first = 0
    key_format = value_format = None
    for index, entry in enumerate(entries):
        if _differ(key_format, entry.key_format) or _differ(value_format, entry.value_format):
            yield _or_json(key_format), _or_json(value_format), first, index
            first = index
            key_format = value_format = None
        key_format = entry.key_format if key_format is None else key_format
        value_format = entry.value_format if value_format is None else value_format
    if entries:
        yield _or_json(key_format), _or_json(value_format), first, len(entries)


def _differ(one: RecordFormat | None, other: RecordFormat | None) -> bool:
    return one is not None and other is not None and one is not other


def _or_json(record_format: RecordFormat | None) -> RecordFormat:
    return RecordFormat.JSON if record_format is None else record_format


class _RefusedError(Exception):
    def __init__(self, refused: RefusedEntry) -> None:
        super().__init__(refused.message)
        self.refused = refused


def _record(entry: _Entry) -> RecordEntry:
    key, key_format, key_shown = _stored("key", entry.key)
    value, value_format, value_shown = _stored("value", entry.value)
    partition, timestamp = entry.partition_id, entry.timestamp
    if partition is not None and not 0 <= partition <= PARTITION_MAX:
        text = f"partition_id is {partition}: expected 0 to {PARTITION_MAX}"
        raise _RefusedError(RefusedEntry(RestCode.PARTITION_NOT_FOUND, text))
    record = ProduceRecord(
        partition=partition,
        timestamp=None if timestamp is None else _timestamp_ms(timestamp),
        headers=None if entry.headers is None else make_raw(_stored_headers(entry.headers)),
        key=make_raw(key),
        value=make_raw(value),
    )
    return RecordEntry(record, partition, key_format, value_format, key_shown + value_shown)


def _stored(name: str, half: _Half | None) -> tuple[bytes, RecordFormat | None, bytes]:
    """Return the text to store, its format (None for null), and what a receipt shows of it."""
    if half is None:
        return NULL, None, b""
    kind = half.type
    if kind is None or kind in _SCHEMA_TYPES:
        raise _RefusedError(_needs_schema(name))
    stored_as = _FORMATS.get(kind)
    if stored_as is None:
        why = f"the {name}'s type is '{excerpt(kind)}': expected BINARY, JSON or STRING"
        raise _RefusedError(_refused(why))
    text = bytes(half.data)
    if b"\n" in text or b"\r" in text:
        # Between tokens only: the decoder refuses a raw line break inside a string (rule R12).
        text = text.replace(b"\n", b" ").replace(b"\r", b" ")
    if stored_as is RecordFormat.BINARY:
        text = _checked_base64(text)
    view = bytes_view(text, stored_as)
    size = 0 if view is None else len(view)
    shown = b',"%b":{"type":"%b","size":%d}' % (name.encode(), kind.encode(), size)
    return text, None if text == NULL else stored_as, shown


def _checked_base64(text: bytes) -> bytes:
    try:
        return check_binary(text)
    except KafkaError:
        shown = excerpt(text.decode(errors="replace"))
        raise _RefusedError(_refused(f"data={shown} is not a base64 string.")) from None


def _timestamp_ms(text: str) -> int:
    try:
        found = -1 if text.startswith("@") else parse_time_ms(text)
    except GrammarError:
        found = -1
    if not 0 <= found <= TIMESTAMP_MAX:
        expected = "a time with its zone, as in 2026-01-31T12:00:00.000Z"
        raise _RefusedError(_refused(f"timestamp is '{excerpt(text)}': expected {expected}"))
    return found


def _stored_headers(headers: Sequence[_Header]) -> bytes:
    """Return headers as they are stored, under ``key`` in place of ``name``."""
    for header in headers:
        if header.value is not None:
            decode_base64(orjson.dumps(header.value))
    return orjson.dumps([{"key": header.name, "value": header.value} for header in headers])


def _needs_schema(half: str) -> RefusedEntry:
    return RefusedEntry(RestCode.UNPROCESSABLE, _NO_SCHEMAS.format(half=half))


def _refused(why: str) -> RefusedEntry:
    return RefusedEntry(RestCode.BAD_REQUEST, f"Bad Request: {why}")
