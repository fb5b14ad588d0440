"""Records out of the bytes of a polled page: formats, deserializers, records that can't be read.

A page is what ``include=batches`` defines: a line about each batch, then a line per record. One
pass of msgspec decodes all lines of a page, and one comprehension per batch makes `Record`s. A page
with anything unusual in it (a number beyond floats, bytes that are not UTF-8) is decoded again line
by line, where each key and value stands alone; what fails becomes an unreadable record. Pure.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec
import orjson

from http_api.client.client_errors import ProtocolError, UnreadableRecordError
from http_api.client.sdk.consumer_settings import AS_STORED
from http_api.client.sdk.part_joining import is_part
from http_api.client.sdk.record_types import Record, TopicPartition

Deserializer = Callable[[bytes], Any]
_CREATE: Final = "create"
_APPEND: Final = "append"
_OFFSET: Final = re.compile(rb'\{"offset":(\d+)')
_JSON_VALUES: Final = re.compile(rb'[^\n]*"value_format":"json"')
"""A page whose first batch has JSON values, or nulls only."""
_NULL: Final = b"null"
_UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""Errors of decoders: numbers beyond floats, bytes that are not UTF-8, too great a depth."""


class StoredText(NamedTuple):
    """JSON text of a key or value as it is stored, and its format: json, string or binary.

    Given as a deserializer, this class itself makes a decoder return all but nulls in this form.
    """

    text: bytes
    format_word: str = "json"


class _PageBatch(msgspec.Struct, gc=False):
    """The line before the records of a batch."""

    count: int
    timestamp: int
    key_format: str
    value_format: str
    leader_epoch: int = -1


class _PageLine(msgspec.Struct, gc=False):
    """A line with decoded key and value, or the line before a batch."""

    offset: int = -1
    key: Any = None
    value: Any = None
    timestamp: int | None = None
    headers: list[dict[str, str | None]] | None = None
    batch: _PageBatch | None = None


class _RawLine(msgspec.Struct, gc=False):
    """A line whose key and value are kept as JSON text."""

    offset: int = -1
    key: msgspec.Raw = msgspec.Raw(_NULL)
    value: msgspec.Raw = msgspec.Raw(_NULL)
    timestamp: int | None = None
    headers: list[dict[str, str | None]] | None = None
    batch: _PageBatch | None = None
    is_broken: bool = False
    """True if the line can't be decoded: its value is all of it."""


_decode_lines = msgspec.json.Decoder(_PageLine).decode_lines
_decode_raw_lines = msgspec.json.Decoder(_RawLine).decode_lines
_decode_raw_line = msgspec.json.Decoder(_RawLine).decode
_decode_json = msgspec.json.Decoder().decode
_headers_of: Final = attrgetter("headers")


@dataclass(frozen=True, slots=True)
class DecodedPage:
    """Records of a page, in order; with the numbers of those that need more than a return."""

    records: list[Record[Any, Any]]
    unreadable: tuple[int, ...]
    """Indices of records whose key or value could not be decoded."""
    has_headers: bool
    """True if any of the records has headers."""


class PageDecoder:
    """Decodes pages with the deserializers of one consumer. Keeps no state between pages."""

    def __init__(
        self,
        key: Deserializer | str | None = None,
        value: Deserializer | str | None = None,
        *,
        joins: bool = True,
    ) -> None:
        """Take deserializers; with ``joins`` that of values is not called for parts of values."""
        self._key, self._value, self._joins = key, value, joins
        self._is_auto = key is None and value is None
        self._is_stored = key == AS_STORED and value == AS_STORED

    def decode(self, topic: str, partition: int, body: bytes) -> DecodedPage:
        """Return the records of a page; raises `ProtocolError` only for bytes that are no page."""
        if self._is_auto or (self._is_stored and not _JSON_VALUES.match(body)):
            halves = _decode_formats if self._is_auto else _store_formats
            try:
                return _decode_whole(topic, partition, body, halves)
            except _UNREADABLE:
                pass  # one line by itself can't be read, or has to be kept as text
        return self._decode_each(topic, partition, body)

    def _decode_each(self, topic: str, partition: int, body: bytes) -> DecodedPage:
        records: list[Record[Any, Any]] = []
        unreadable: list[int] = []
        has_headers = False
        batch: _PageBatch | None = None
        for line in _raw_lines(body):
            if line.batch is not None:
                batch = line.batch
                continue
            if batch is None:
                msg = f"a page of {topic}-{partition} begins without a line about its batch"
                raise ProtocolError(msg)
            key, key_fails = _half(line.key, batch.key_format, self._key)
            headers = [] if line.headers is None else _headers(line.headers)
            is_piece = self._joins and bool(headers) and is_part(headers)
            by_value = AS_STORED if is_piece else self._value
            value, value_fails = (
                (bytes(line.value), True)
                if line.is_broken
                else _half(line.value, batch.value_format, by_value)
            )
            marks = tuple(
                name for name, fails in (("key", key_fails), ("value", value_fails)) if fails
            )
            has_headers = has_headers or bool(headers)
            if marks:
                unreadable.append(len(records))
            is_append = line.timestamp is None
            records.append(
                Record(
                    topic,
                    partition,
                    line.offset,
                    batch.timestamp if line.timestamp is None else line.timestamp,
                    _APPEND if is_append else _CREATE,
                    headers,
                    key,
                    value,
                    batch.leader_epoch,
                    marks,
                )
            )
        return DecodedPage(records, tuple(unreadable), has_headers)


def _decode_whole(
    topic: str,
    partition: int,
    body: bytes,
    halves: Callable[[list[_PageLine], _PageBatch], None],
) -> DecodedPage:
    """Decode a page in one pass; ``halves`` makes keys and values of decoded JSON, in place."""
    lines = _decode_lines(body)
    records: list[Record[Any, Any]] = []
    has_headers = False
    at, end = 0, len(lines)
    while at < end:
        batch = lines[at].batch
        if batch is None:
            msg = f"a page of {topic}-{partition} has more lines than its batches count"
            raise ProtocolError(msg)
        part = lines[at + 1 : at + 1 + batch.count]
        at += 1 + batch.count
        halves(part, batch)
        time_ms, epoch = batch.timestamp, batch.leader_epoch
        records += [
            Record(topic, partition, one.offset, time_ms, _APPEND, [], one.key, one.value, epoch)
            if one.timestamp is None and one.headers is None
            else Record(
                topic,
                partition,
                one.offset,
                time_ms if one.timestamp is None else one.timestamp,
                _APPEND if one.timestamp is None else _CREATE,
                [] if one.headers is None else _headers(one.headers),
                one.key,
                one.value,
                epoch,
            )
            for one in part
        ]
        has_headers = has_headers or any(map(_headers_of, part))
    return DecodedPage(records, (), has_headers)


def _decode_formats(lines: list[_PageLine], batch: _PageBatch) -> None:
    """Decode base64 in place; the other formats are decoded with the JSON text."""
    if batch.value_format == "binary":
        for one in lines:
            if one.value is not None:
                one.value = binascii.a2b_base64(one.value, strict_mode=True)
    if batch.key_format == "binary":
        for one in lines:
            if one.key is not None:
                one.key = binascii.a2b_base64(one.key, strict_mode=True)


def _store_formats(lines: list[_PageLine], batch: _PageBatch) -> None:
    """Make the bytes views in place; raise `ValueError` for JSON, whose text is not there."""
    if batch.value_format == "string":
        for one in lines:
            one.value = None if one.value is None else str(one.value).encode()
    elif batch.value_format == "json" and any(one.value is not None for one in lines):
        msg = "the bytes view of a JSON value is its text"
        raise ValueError(msg)
    if batch.key_format == "string":
        for one in lines:
            one.key = None if one.key is None else str(one.key).encode()
    elif batch.key_format == "json" and any(one.key is not None for one in lines):
        msg = "the bytes view of a JSON key is its text"
        raise ValueError(msg)
    _decode_formats(lines, batch)


def _raw_lines(body: bytes) -> list[_RawLine]:
    try:
        return list(_decode_raw_lines(body))
    except _UNREADABLE:
        return [_raw_line(line) for line in body.split(b"\n") if line]


def _raw_line(line: bytes) -> _RawLine:
    try:
        return _decode_raw_line(line)
    except _UNREADABLE:
        found = _OFFSET.match(line)
        if found is None:
            msg = f"a line of a page is no record: {line[:100]!r}"
            raise ProtocolError(msg) from None
        return _RawLine(offset=int(found[1]), value=msgspec.Raw(line), is_broken=True)


def _half(
    raw: msgspec.Raw, format_word: str, deserializer: Deserializer | str | None
) -> tuple[Any, bool]:
    """Return a key or value, and True if it could not be decoded: then it is its stored text."""
    text = bytes(raw)
    if text == _NULL:
        return None, False
    if deserializer is StoredText:
        return StoredText(text, format_word), False
    try:
        if deserializer is None:
            if format_word == "binary":
                return binascii.a2b_base64(_decode_json(text), strict_mode=True), False
            return _decode_json(text), False
        view = bytes_view(text, format_word)
        if deserializer == AS_STORED:
            return view, False
    except (*_UNREADABLE, TypeError):
        return text, True
    assert not isinstance(deserializer, str)
    try:
        return deserializer(view), False
    except Exception:  # noqa: BLE001 a program's function may raise anything
        return view, True


def bytes_view(text: bytes, format_word: str) -> bytes:
    """Return the bytes that the JSON text of a key or value stands for; raises `ValueError`."""
    if format_word == "json":
        return text
    decoded = orjson.loads(text)
    if format_word == "string":
        return str(decoded).encode()
    return binascii.a2b_base64(decoded, strict_mode=True)


def _headers(rows: list[dict[str, str | None]]) -> list[tuple[str, bytes | None]]:
    found: list[tuple[str, bytes | None]] = []
    for row in rows:
        value = row.get("value")
        found.append((row.get("key") or "", None if value is None else binascii.a2b_base64(value)))
    return found


def unreadable_error(record: Record[Any, Any]) -> UnreadableRecordError:
    """Return the error of a record that can't be decoded."""
    halves = " and ".join(record.unreadable)
    place = TopicPartition(record.topic, record.partition, record.offset)
    text = f"{halves} of {record.topic}-{record.partition} at {record.offset} can't be decoded"
    return UnreadableRecordError(
        text,
        place=place,
        following=TopicPartition(record.topic, record.partition, record.offset + 1),
        key=record.key if isinstance(record.key, bytes) else None,
        value=record.value if isinstance(record.value, bytes) else None,
    )
