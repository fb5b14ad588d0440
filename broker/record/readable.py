"""Records of a consumer instance's read in the v2 shape, as far as its format can show them.

The group coordinator calls `show_records` for each run of stored records that it returns. Nearly
always all of them can be shown, and `render_v2` renders them at once. A record that the format
can't show (bytes that are not JSON, or in the format text not UTF-8, or a number that no decoder
can hold, like 1e400) ends the run in front of it, or is shown as base64 and marked; a record that
an operator chose to step over is left out. A page therefore never holds a value that makes a client
fail on the whole page.
"""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

import orjson

from broker.record.batch import BatchSlice, RecordFormat
from broker.record.render import Line, array_pieces, convert, render_v2, split_line
from broker.record.values import RecordNotJsonError, bytes_view, encode_base64, is_json

_DIGITS_AND_EXPONENTS = bytes.maketrans(b"0123456789eE", b"0000000000ee")
_LARGE_EXPONENT = b"e000"
_MANY_DIGITS = b"0" * 200
"""With fewer digits and an exponent of two digits, a number stays below 1e300."""
_NOTHING: frozenset[int] = frozenset()


class ShownRecords(NamedTuple):
    """Rendered records of a run, separated by commas, and the offset behind them."""

    body: bytes
    count: int  # type: ignore[assignment]  # as in `BatchSlice`
    size: int
    """Bytes of the shown records as stored."""
    next_offset: int
    stopped_by: RecordNotJsonError | None = None
    """The record at ``next_offset`` that the format can't show; None if the run has no such one."""


def may_overflow(lines: bytes | memoryview) -> bool:
    """Return True if JSON text may hold a number above 1e308; strings may look like one."""
    plain = bytes(lines).translate(_DIGITS_AND_EXPONENTS, b"+")
    return _LARGE_EXPONENT in plain or _MANY_DIGITS in plain


def show_records(
    piece: BatchSlice,
    *,
    topic: str,
    partition: int,
    door: RecordFormat,
    mark: bool = False,
    passed_over: Set[int] = _NOTHING,
) -> ShownRecords:
    """Return the records of a slice in the v2 shape, up to the first that can't be shown.

    ``mark``: such a record is shown instead, with base64 for what can't be shown, and
    ``"unreadable":["key","value"]`` names that. ``passed_over``: offsets of records that are left
    out if they can't be shown.
    """
    if door is not RecordFormat.JSON or _is_decodable(piece):
        try:
            body = render_v2(piece, topic=topic, partition=partition, door=door)
        except RecordNotJsonError:
            pass
        else:
            return ShownRecords(body, piece.count, len(piece.lines), piece.next_offset)
    return _show_each(piece, topic, partition, door, mark=mark, passed_over=passed_over)


def _is_decodable(piece: BatchSlice) -> bool:
    """Return True if no value that is stored as JSON makes a client fail that decodes the page."""
    header = piece.header
    if RecordFormat.JSON not in {header.key_format, header.value_format}:
        return True
    return not may_overflow(piece.lines) or is_json(b"".join(array_pieces([piece])))


def _show_each(
    piece: BatchSlice,
    topic: str,
    partition: int,
    door: RecordFormat,
    *,
    mark: bool,
    passed_over: Set[int],
) -> ShownRecords:
    parts: list[bytes] = []
    size = 0
    for line in bytes(piece.lines).split(b"\n")[:-1]:
        record = split_line(line)
        offset = int(record[0])
        texts: list[bytes] = []
        errors: list[RecordNotJsonError] = []
        for text, stored, what in (
            (record[3], piece.header.key_format, "key"),
            (record[4], piece.header.value_format, "value"),
        ):
            try:
                texts.append(_shown_text(text, stored, door, offset, what))
            except RecordNotJsonError as error:
                errors.append(error)
                texts.append(encode_base64(bytes_view(text, stored) or b""))
        if errors and not mark:
            if offset in passed_over:
                continue
            return ShownRecords(b",".join(parts), len(parts), size, offset, errors[0])
        unreadable = [error.what for error in errors]
        parts.append(_record(topic, partition, record, texts, unreadable, piece))
        size += len(line) + 1
    return ShownRecords(b",".join(parts), len(parts), size, piece.next_offset)


def _shown_text(
    text: bytes, stored: RecordFormat, door: RecordFormat, offset: int, what: str
) -> bytes:
    shown = convert(text, stored, door, offset, what)
    if stored is door is RecordFormat.JSON and not is_json(text):
        raise RecordNotJsonError(offset, what)
    return shown


def _record(
    topic: str,
    partition: int,
    record: Line,
    texts: list[bytes],
    unreadable: list[str],
    piece: BatchSlice,
) -> bytes:
    offset, timestamp, headers, _, _ = record
    key, value = texts
    fields = [
        b'{"topic":%b,"key":%b,"value":%b' % (orjson.dumps(topic), key, value),
        b'"partition":%d,"offset":%b' % (partition, offset),
        b'"timestamp":%b' % (timestamp or b"%d" % piece.header.append_timestamp),
    ]
    if headers is not None:
        fields.append(b'"headers":%b' % headers)
    if unreadable:
        fields.append(b'"unreadable":%b' % orjson.dumps(unreadable))
    return b",".join(fields) + b"}"
