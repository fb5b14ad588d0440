"""Stored lines in the forms of the HTTP API: arrays, added timestamps, the v2 record shape.

Fetch responses call it. Lines are returned unchanged wherever the API allows; only the v2 shape,
which repeats topic and partition in every record, is rendered record by record.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

import orjson

from broker.record.batch import (
    FORMATS_MASK,
    BatchSlice,
    RecordFormat,
    attributes_of,
)
from broker.record.lines import HAS_MSGSPEC
from broker.record.plain_lines import fields_of
from broker.record.values import (
    NULL,
    RecordNotJsonError,
    bytes_view,
    decode_base64,
    encode_base64,
    is_json,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.record.compression import Piece

_UNTIMED = re.compile(rb'^(\{"offset":\d+),(?!"timestamp":)', re.MULTILINE)
_OFFSET_AT = len(b'{"offset":')
_FORMATS = {
    attributes_of(key, value): (
        b'"key_format":"%b","value_format":"%b"'
        % (key.name.lower().encode(), value.name.lower().encode())
    )
    for key in RecordFormat
    for value in RecordFormat
}
"""Text of both formats in `batch_line`, by the attribute bits; enum names are slow to look up."""


def lines_to_array(slices: Sequence[BatchSlice]) -> bytes:
    """Return the stored lines of these slices as one JSON array: a same-length replace, no parse.

    A stored line never holds another line feed (rule R12), so each line feed is a separator.
    """
    return b"".join(array_pieces(slices))


def array_pieces(slices: Sequence[BatchSlice]) -> list[bytes | memoryview]:
    """Return the result of `lines_to_array` in consecutive pieces."""
    return array_of([piece.lines for piece in slices])


def array_of(lines: Sequence[bytes | memoryview]) -> list[bytes | memoryview]:
    """Return runs of stored lines as one JSON array, in pieces: two copies in all, not four."""
    if not lines:
        return [b"[]"]
    pieces: list[bytes | memoryview] = [b"[", *lines]
    pieces[-1] = pieces[-1][:-1]
    return [b"".join(pieces).replace(b"\n", b","), b"]"]


def lines_with_batches(slices: Sequence[BatchSlice]) -> bytes:
    """Return the stored lines, each run of one batch behind a line that describes the batch.

    ``{"batch":{"offset","next_offset","count","timestamp","key_format","value_format",
    "leader_epoch"}}``: facts that a line does not hold. ``timestamp`` applies to records without
    one of their own. No work per record; a stored line starts with its offset, so the two kinds
    can't be confused.
    """
    return b"".join(batch_pieces(slices))


def batch_pieces(slices: Sequence[BatchSlice]) -> list[bytes | memoryview]:
    """Return the result of `lines_with_batches` in pieces."""
    pieces: list[bytes | memoryview] = []
    for piece in slices:
        pieces += (batch_line(piece), piece.lines)
    return pieces


def batch_line(piece: Piece) -> bytes:
    """Return the line about a batch that `lines_with_batches` puts before its lines."""
    header = piece.header
    return (
        b'{"batch":{"offset":%d,"next_offset":%d,"count":%d,"timestamp":%d,%b,"leader_epoch":%d}}\n'
    ) % (
        piece.first_offset,
        piece.next_offset,
        piece.count,
        header.append_timestamp,
        _FORMATS[header.attributes & FORMATS_MASK],
        header.leader_epoch,
    )


def splice_timestamps(piece: BatchSlice) -> bytes:
    """Return the lines, each with a ``"timestamp"``: its own, else the batch's append time."""
    lines = piece.lines if isinstance(piece.lines, bytes) else bytes(piece.lines)
    return _UNTIMED.sub(rb'\1,"timestamp":%d,' % piece.header.append_timestamp, lines)


def in_partition(lines: bytes | memoryview, partition: int) -> bytes:
    """Return stored lines, each beginning with the partition: ``{"partition":P,"offset":…``.

    A stored line never holds another line feed (rule R12), so no value can look like its start.
    """
    text = b"\n" + bytes(lines)
    return text.replace(b"\n{", b'\n{"partition":%d,' % partition)[1:]


def before_offset(slices: Sequence[BatchSlice], end: int) -> list[BatchSlice]:
    """Return the records of the slices below an offset; no slice is empty."""
    cut = [
        piece if piece.next_offset <= end else _first_lines(piece, end)
        for piece in slices
        if piece.first_offset < end
    ]
    return [piece for piece in cut if piece.count]  # the first lines may be missing (rule R7)


def _first_lines(piece: BatchSlice, end: int) -> BatchSlice:
    """Return the records of a slice below an offset inside of it."""
    lines = bytes(piece.lines)
    if piece.header.is_dense:
        count = end - piece.first_offset
        size = len(lines) - len(lines.split(b"\n", count)[-1])
    else:
        count = size = 0
        while size < len(lines) and offset_of_line(lines, size) < end:
            size = lines.index(b"\n", size) + 1
            count += 1
    return piece._replace(lines=lines[:size], next_offset=end, count=count)


def first_records(slices: Sequence[BatchSlice], count: int) -> tuple[list[BatchSlice], int | None]:
    """Return the first ``count`` records, and the offset of the next one; None: all are returned.

    ``count`` is at least 1.
    """
    taken: list[BatchSlice] = []
    for at, piece in enumerate(slices):
        if piece.count >= count:
            lines = bytes(piece.lines)
            size = len(lines) - len(lines.split(b"\n", count)[-1])
            rest = [lines[size:], *(each.lines for each in slices[at + 1 :])]
            following = next((bytes(each) for each in rest if each), None)
            if following is None:
                return [*taken, piece], None
            end = offset_of_line(following, 0)
            taken.append(piece._replace(lines=lines[:size], next_offset=end, count=count))
            return taken, end
        taken.append(piece)
        count -= piece.count
    return taken, None


def offset_of_line(lines: bytes, at: int) -> int:
    """Return the offset in the stored line at this position."""
    return int(lines[at + _OFFSET_AT : lines.index(b",", at)])


def render_v2(
    piece: BatchSlice,
    *,
    topic: str,
    partition: int,
    door: RecordFormat,
    with_timestamp: bool = True,
) -> bytes:
    """Return records in the v2 shape, separated by commas and without brackets.

    ``{"topic":T,"key":…,"value":…,"partition":P,"offset":N,"timestamp"?,"headers"?}``; ``door``,
    the format of the response, is JSON, BINARY (base64) or STRING. Keys and values are converted
    only if the stored format differs.

    Raises:
        RecordNotJsonError: in the json format, bytes that are not JSON; in the text format, bytes
            that are not UTF-8.
    """
    header = piece.header
    if header.key_format is door and header.value_format is door:
        return _render_unchanged(piece, topic, partition, with_timestamp=with_timestamp)
    return _render_converted(piece, topic, partition, door, with_timestamp=with_timestamp)


def _render_converted(
    piece: BatchSlice,
    topic: str,
    partition: int,
    door: RecordFormat,
    *,
    with_timestamp: bool,
) -> bytes:
    header = piece.header
    key_format, value_format = header.key_format, header.value_format
    prefix = b'{"topic":%b,"key":' % orjson.dumps(topic)
    middle = b',"partition":%d,"offset":' % partition
    default = b"%d" % header.append_timestamp
    parts = []
    for line in bytes(piece.lines).split(b"\n")[:-1]:
        offset, timestamp, headers, key, value = split_line(line)
        key = convert(key, key_format, door, int(offset), "key")
        value = convert(value, value_format, door, int(offset), "value")
        tail = b',"timestamp":' + (timestamp or default) if with_timestamp else b""
        if headers is not None:
            tail += b',"headers":' + headers
        parts.append(b"".join((prefix, key, b',"value":', value, middle, offset, tail, b"}")))
    return b",".join(parts)


def convert(text: bytes, stored: RecordFormat, door: RecordFormat, offset: int, what: str) -> bytes:
    """Return a stored key or value (``what``) as JSON text in the response's format ``door``.

    JSON is a string in the format STRING: its text, in which a string keeps its quotes.

    Raises:
        RecordNotJsonError: bytes that are not JSON, in the json format; that are not UTF-8, in the
            text format.
    """
    if text == NULL or stored is door:
        return text
    if door is RecordFormat.STRING:
        return _as_string(text, stored, offset, what)
    if door is RecordFormat.BINARY:
        view = bytes_view(text, stored)
        return NULL if view is None else encode_base64(view)
    if stored is RecordFormat.STRING:
        return text
    view = decode_base64(text)
    if not is_json(view):
        raise RecordNotJsonError(offset, what)
    return view.strip()


def _as_string(text: bytes, stored: RecordFormat, offset: int, what: str) -> bytes:
    view = text if stored is RecordFormat.JSON else decode_base64(text)
    try:
        return orjson.dumps(view.decode())
    except UnicodeDecodeError:
        raise RecordNotJsonError(offset, what, "text") from None


def render_v3(piece: BatchSlice, partition: int) -> list[bytes]:
    """Return records in the v3 shape, one text each, without a line break.

    ``{"partition_id","offset","leader_epoch","timestamp","headers":[{"name","value"}],
    "key":{"type","data"},"value":{"type","data"}}``. Keys and values are not converted: the type
    is the format in which they are stored. The time is the record's own, else the append time.
    """
    header = piece.header
    middle = b',"leader_epoch":%d,"timestamp":' % header.leader_epoch
    prefix = b'{"partition_id":%d,"offset":' % partition
    key_type = b'"key":{"type":"%b","data":' % header.key_format.name.encode()
    value_type = b'},"value":{"type":"%b","data":' % header.value_format.name.encode()
    texts = []
    for line in bytes(piece.lines).split(b"\n")[:-1]:
        offset, timestamp, headers, key, value = split_line(line)
        time_ms = header.append_timestamp if timestamp is None else int(timestamp)
        shown = b'"' + iso_8601(time_ms) + b'","headers":' + _named_headers(headers) + b","
        texts.append(
            b"".join((prefix, offset, middle, shown, key_type, key, value_type, value, b"}}"))
        )
    return texts


def _named_headers(headers: bytes | None) -> bytes:
    """Return the text of stored headers with ``name`` for ``key``, as v3 calls it."""
    if headers is None:
        return b"[]"
    named = [{"name": each["key"], "value": each["value"]} for each in json.loads(headers)]
    return json.dumps(named, separators=(",", ":")).encode()  # json: also halves of surrogates


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@lru_cache(maxsize=1_024)
def iso_8601(timestamp_ms: int) -> bytes:
    """Return a time like ``2026-01-31T12:00:00.000Z``; ``@MILLISECONDS`` beyond the year 9999."""
    try:
        moment = _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return b"@%d" % timestamp_ms
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z").encode()


Line = tuple[bytes, bytes | None, bytes | None, bytes, bytes]

if HAS_MSGSPEC:
    import msgspec

    from broker.record.lines import OptionalRaw

    class _StoredLine(msgspec.Struct, gc=False, omit_defaults=True, kw_only=True):
        """A stored line, and the v2 record: read in any order, written in this one."""

        topic: str | None = None
        key: msgspec.Raw
        value: msgspec.Raw
        partition: int | None = None
        offset: int
        timestamp: int | None = None
        headers: OptionalRaw = None

    _decode_line = msgspec.json.Decoder(_StoredLine).decode
    _decode_lines = msgspec.json.Decoder(_StoredLine).decode_lines
    _encode = msgspec.json.Encoder().encode

    def split_line(line: bytes) -> Line:
        """Return the text of offset, timestamp, headers, key and value of a stored line."""
        stored = _decode_line(line)
        return (
            b"%d" % stored.offset,
            None if stored.timestamp is None else b"%d" % stored.timestamp,
            None if stored.headers is None else bytes(stored.headers),
            bytes(stored.key),
            bytes(stored.value),
        )

    def _render_unchanged(
        piece: BatchSlice, topic: str, partition: int, *, with_timestamp: bool
    ) -> bytes:
        """Return the v2 shape if no key or value has to be converted: one decode, one encode."""
        records = _decode_lines(piece.lines)
        default = piece.header.append_timestamp
        for record in records:
            record.topic = topic
            record.partition = partition
            if not with_timestamp:
                record.timestamp = None
            elif record.timestamp is None:
                record.timestamp = default
        return _encode(records)[1:-1]

elif not TYPE_CHECKING:

    def split_line(line):
        """Return the text of offset, timestamp, headers, key and value of a stored line."""
        fields = fields_of(line)
        return (
            fields["offset"],
            fields.get("timestamp"),
            fields.get("headers"),
            fields["key"],
            fields["value"],
        )

    def _render_unchanged(piece, topic, partition, *, with_timestamp):
        return _render_converted(
            piece, topic, partition, piece.header.key_format, with_timestamp=with_timestamp
        )
