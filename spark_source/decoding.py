"""Stored lines to Arrow batches, usually without Python work per record. Pure.

A page is NDJSON with ``include=batches`` (interfaces.md §4): a line about each batch, then its
lines ``{"offset":N,"timestamp"?,"headers"?,"key":K,"value":V}``, fields in this order. Arrow's own
kernels cut columns out of the lines, splitting at ``,"key":`` and ``,"value":``: a quote in a JSON
string is always escaped, so neither text can occur inside a key that is a string, a number, true,
false or null. Keys that are objects or arrays, and lines with headers, take the slow path: a real
JSON decoder.

The Spark column of a key or value is its bytes view (interfaces.md §3): JSON text as it was sent
(strings keep their quotes), UTF-8 of string, the decoded bytes of binary, null for null.
"""

from __future__ import annotations

import binascii
from array import array
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from spark_source.schema import HEADERS_ARROW, arrow_schema
from spark_source.typed import TypedValues, as_lines, meta_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BATCH_LINE = b'{"batch":'
OFFSET_AT = len(b'{"offset":')
OFFSET_END_MAX = OFFSET_AT + 20
_MICROSECONDS = 1000


class DecodingError(Exception):
    """A page that does not have the form which the API promises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineGroup:
    """Lines of neighbouring batches with the same formats."""

    lines: bytes
    count: int
    key_format: str
    value_format: str
    times: array[int]
    """Batch time in ms, one per line; the record's time unless the line has its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The topic partition of a page, and the columns to produce from it."""

    topic: str
    partition: int
    timestamp_type: int
    """Kafka's timestamp type: 0 = create time, 1 = log append time."""
    columns: tuple[str, ...]
    typed: pa.Schema | None = None
    """Columns of the values' fields (``valueFormat=json``), in place of Kafka's columns."""


class _Line(msgspec.Struct, gc=False):
    """A stored line, for the slow path."""

    offset: int
    key: msgspec.Raw
    value: msgspec.Raw
    timestamp: int | None = None
    headers: msgspec.Raw = msgspec.Raw(b"null")


_decode_lines = msgspec.json.Decoder(_Line).decode_lines


@dataclass(frozen=True, slots=True)
class Cells:
    """Columns of a group before conversion to Spark's types; keys and values are JSON text."""

    offsets: pa.Array
    own_times: pa.Array | None
    keys: pa.Array
    values: pa.Array
    headers: pa.Array | None


def decode(page: bytes, source: Source, end: int) -> Iterator[pa.RecordBatch]:
    """Yield the records of a page with offsets below ``end``: a batch per run of the same formats.

    Raises:
        DecodingError: the page has another form.
    """
    typed = None if source.typed is None else TypedValues(source.typed)
    for group in groups(page):
        if typed is not None:
            yield from _decode_typed(group, source, typed, end)
            continue
        cells = cut(group)
        if len(cells.offsets) != group.count:
            msg = f"{group.count} records were announced, {len(cells.offsets)} came"
            raise DecodingError(msg)
        batch = _rows_before(end, cells.offsets, _spark_columns(cells, group, source))
        if batch.num_rows:
            yield batch


def _rows_before(end: int, offsets: pa.Array, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows with offsets below ``end``."""
    if not len(offsets) or offsets[-1].as_py() < end:
        return batch
    return batch.slice(0, pc.sum(pc.less(offsets, end)).as_py())


def _decode_typed(
    group: LineGroup, source: Source, typed: TypedValues, end: int
) -> Iterator[pa.RecordBatch]:
    """Yield as `decode` for columns of values; lines are cut only where another column needs it."""
    schema = source.typed
    assert schema is not None
    last_line = group.lines.rfind(b"\n", 0, -1) + 1
    last = int(group.lines[last_line + OFFSET_AT : group.lines.index(b",", last_line)])
    meta = [name for name in schema.names if meta_of(name) is not None]
    plain = group.value_format == "json"
    cells = None if plain and not meta and last < end else cut(group)
    lines = group.lines
    if not plain and cells is not None:
        lines = as_lines(bytes_view(cells.values, group.value_format))
    values = typed.parse(lines, group.count)
    arrays = dict(zip(values.type.names, values.flatten(), strict=True))
    if cells is not None and meta:
        wanted = tuple(meta_of(name) or "" for name in meta)
        batch = _spark_columns(cells, group, replace(source, columns=wanted))
        arrays |= dict(zip(meta, batch.columns, strict=True))
    made = pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)
    if cells is not None:
        made = _rows_before(end, cells.offsets, made)
    if made.num_rows:
        yield made


def groups(page: bytes) -> Iterator[LineGroup]:
    """Split a page at the lines about batches, and yield neighbours of the same formats joined."""
    formats = ("", "")
    parts: list[bytes] = []
    times: array[int] = array("q")
    at = 0
    while at < len(page):
        if not page.startswith(BATCH_LINE, at):
            msg = f"expected a line about a batch, got {page[at : at + 60]!r}"
            raise DecodingError(msg)
        first = page.index(b"\n", at)
        batch = orjson.loads(page[at:first])["batch"]
        found = (batch["key_format"], batch["value_format"])
        if found != formats and times:
            yield _group(parts, times, formats)
            parts, times = [], array("q")
        formats = found
        at = page.find(b"\n" + BATCH_LINE, first) + 1 or len(page)
        parts.append(page[first + 1 : at])
        times.extend(array("q", [batch["timestamp"]]) * batch["count"])
    if times:
        yield _group(parts, times, formats)


def epoch_before(page: bytes, offset: int) -> int | None:
    """Return the leader epoch of the last batch with records below an offset; None without one."""
    at = len(page)
    while at >= 0:
        at = 0 if at == 0 else page.rfind(b"\n" + BATCH_LINE, 0, at) + 1
        batch = orjson.loads(page[at : page.index(b"\n", at)])["batch"] if page else None
        if batch is None or batch["offset"] < offset:
            return None if batch is None else int(batch["leader_epoch"])
        at -= 1
    return None


def _group(parts: list[bytes], times: array[int], formats: tuple[str, str]) -> LineGroup:
    return LineGroup(
        lines=parts[0] if len(parts) == 1 else b"".join(parts),
        count=len(times),
        key_format=formats[0],
        value_format=formats[1],
        times=times,
    )


# ---------------------------------------------------------------- lines to columns of text


def cut(group: LineGroup) -> Cells:
    """Return the columns of a group, as text."""
    return cut_quickly(group.lines) or cut_slowly(group.lines)


def cut_quickly(lines: bytes) -> Cells | None:
    """Cut the lines by splitting; return None if that could be wrong for a line."""
    rows = pc.split_pattern(pa.array([lines], pa.binary()), b"\n").flatten()
    rows = rows.slice(0, len(rows) - 1)
    halves = pc.split_pattern(rows, b',"value":', max_splits=1)
    heads = pc.list_element(halves, 0)
    if pc.any(pc.match_substring(heads, b'"headers":')).as_py():
        return None
    values = pc.binary_slice(pc.list_element(halves, 1), 0, -1)
    parts = pc.split_pattern(heads, b',"key":', max_splits=1)
    keys = pc.list_element(parts, 1)
    first = pc.binary_slice(keys, 0, 1)
    if pc.any(pc.or_(pc.equal(first, b"{"), pc.equal(first, b"["))).as_py():
        return None
    offsets, own_times = _numbers(pc.list_element(parts, 0))
    return Cells(offsets, own_times, keys, values, None)


def _numbers(heads: pa.Array) -> tuple[pa.Array, pa.Array | None]:
    """Return offsets and times of ``{"offset":N`` or ``{"offset":N,"timestamp":T``."""
    if not pc.any(pc.match_substring(heads, b",")).as_py():
        return _integers(pc.binary_slice(heads, OFFSET_AT, OFFSET_END_MAX)), None
    mark = b',"timestamp":'
    marked = pc.binary_join_element_wise(heads, pa.scalar(b"", pa.binary()), mark)
    parts = pc.split_pattern(marked, mark)
    offsets = pc.binary_slice(pc.list_element(parts, 0), OFFSET_AT, OFFSET_END_MAX)
    times = pc.list_element(parts, 1)
    none = pc.equal(times, b"")
    return _integers(offsets), _integers(pc.if_else(none, pa.scalar(None, pa.binary()), times))


def _integers(texts: pa.Array) -> pa.Array:
    return texts.cast(pa.string()).cast(pa.int64())


def cut_slowly(lines: bytes) -> Cells:
    """Cut the lines by a JSON decoder, one after the other."""
    try:
        rows = _decode_lines(lines)
    except msgspec.MsgspecError as error:
        msg = f"a stored line is not what it should be: {error}"
        raise DecodingError(msg) from error
    return Cells(
        pa.array([row.offset for row in rows], pa.int64()),
        pa.array([row.timestamp for row in rows], pa.int64()),
        pa.array([bytes(row.key) for row in rows], pa.binary()),
        pa.array([bytes(row.value) for row in rows], pa.binary()),
        pa.array([_headers(bytes(row.headers)) for row in rows], HEADERS_ARROW),
    )


def _headers(text: bytes) -> list[dict[str, str | bytes | None]] | None:
    """Return a line's headers, or None for none, as Spark's Kafka source does.

    ``text`` is ``[{"key": text, "value": base64 or null}]``.
    """
    found = orjson.loads(text)
    if not found:
        return None
    return [{"key": header["key"], "value": _base64(header.get("value"))} for header in found]


def _base64(text: str | None) -> bytes | None:
    return None if text is None else binascii.a2b_base64(text)


# ---------------------------------------------------------------- columns for Spark


def _spark_columns(cells: Cells, group: LineGroup, source: Source) -> pa.RecordBatch:
    """Return the wanted columns, in their fixed types."""
    makers: dict[str, Callable[[], pa.Array]] = {
        "key": lambda: bytes_view(cells.keys, group.key_format),
        "value": lambda: bytes_view(cells.values, group.value_format),
        "topic": lambda: pa.repeat(pa.scalar(source.topic, pa.string()), group.count),
        "partition": lambda: pa.repeat(pa.scalar(source.partition, pa.int32()), group.count),
        "offset": lambda: cells.offsets,
        "timestamp": lambda: _timestamps(cells, group),
        "timestampType": lambda: pa.repeat(
            pa.scalar(source.timestamp_type, pa.int32()), group.count
        ),
        "headers": lambda: (
            pa.nulls(group.count, HEADERS_ARROW) if cells.headers is None else cells.headers
        ),
    }
    arrays = [makers[name]() for name in source.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(source.columns))


def _timestamps(cells: Cells, group: LineGroup) -> pa.Array:
    defaults = pa.Array.from_buffers(pa.int64(), group.count, [None, pa.py_buffer(group.times)])
    times = defaults if cells.own_times is None else pc.coalesce(cells.own_times, defaults)
    return pc.multiply(times, _MICROSECONDS).cast(pa.timestamp("us", tz="UTC"))


def bytes_view(texts: pa.Array, form: str) -> pa.Array:
    """Return the bytes that these JSON texts represent to the client.

    Raises:
        DecodingError: a format this reader does not know.
    """
    null = pc.equal(texts, b"null")
    if form == "json":
        if not pc.any(null).as_py():
            return texts
        return pc.if_else(null, pa.scalar(None, pa.binary()), texts)
    convert = _CONVERTERS.get(form)
    if convert is None:
        msg = f"a batch is of format {form}, expected json, binary or string"
        raise DecodingError(msg)
    rows = texts.to_pylist()
    return pa.array([None if row == b"null" else convert(row) for row in rows], pa.binary())


def _unquoted_base64(text: bytes) -> bytes:
    return binascii.a2b_base64(text[1:-1], strict_mode=True)


def _utf8(text: bytes) -> bytes:
    value = orjson.loads(text)
    assert isinstance(value, str)
    return value.encode()


_CONVERTERS: dict[str, Callable[[bytes], bytes]] = {"binary": _unquoted_base64, "string": _utf8}
