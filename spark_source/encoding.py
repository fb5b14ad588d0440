"""Arrow batches to bodies of produce requests. Pure.

Records are assigned to their partitions here, by the documented rule (interfaces.md §3), so that
each request is sent directly to a leader: a request that a broker has to split and forward costs
the cluster twice. Arrow's kernels join the text of all records. A user's JSON is put into a body
only after it was parsed as JSON by itself, so a value cannot end its record and add another one.
"""

from __future__ import annotations

import binascii
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from raft_metadata.common.record_placement import partition_for_key, partition_of
from spark_source.errors import RejectedError
from spark_source.options import TextFormat

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spark_source.options import SinkOptions

BODY_BYTES_MAX = 1 << 20
"""Largest body of a request, unless a single record is larger; a log's batch ends at 1 MB too."""
BODY_RECORDS_MAX = 20_000
"""Most records of a request; brokers accept 100,000 (max_records_per_request)."""
SHOWN_BYTES_MAX = 80

_NULL = pa.scalar(b"null", pa.binary())
_LINE_BREAKS = bytes.maketrans(b"\r\n", b"  ")
_EMPTY = pa.scalar(b"", pa.binary())
_write_json = msgspec.json.Encoder().encode
_read_json = msgspec.json.Decoder(msgspec.Raw).decode


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records of one request, each as its JSON text, in order."""

    topic: str
    partition: int | None
    """None: the topic does not exist yet; the broker that creates it assigns partitions."""
    records: list[bytes]


class Placement(Protocol):
    """Facts about topics that are needed to assign records to partitions."""

    def partitions(self, topic: str) -> int:
        """Return the number of partitions; 0 while the topic does not exist."""

    def unkeyed(self, topic: str) -> int:
        """Return the partition for the next run of records without a key."""


def body_of(records: Sequence[bytes]) -> bytes:
    """Return the body of a produce request."""
    return b'{"records":[' + b",".join(records) + b"]}"


def encode(batch: pa.RecordBatch, options: SinkOptions, placement: Placement) -> Iterator[Chunk]:
    """Yield a batch as requests, in its order for each partition.

    Raises:
        RejectedError: a row that cannot be written, with the reason.
    """
    names = batch.schema.names
    values = _texts(batch.column("value"), options.value_format, "value")
    keys = _texts(batch.column("key"), options.key_format, "key") if "key" in names else None
    texts = _records(batch, names, keys, values)
    named = batch.column("partition") if "partition" in names else None
    views = None if keys is None else _key_views(batch.column("key"), keys, options.key_format)
    for topic, rows in _topics(batch, names, options):
        if not placement.partitions(topic):
            left_to_broker = _filter_rows(_with_partitions(texts, named), rows)
            yield from _chunks(topic, None, left_to_broker.to_pylist())
            continue
        records = _filter_rows(texts, rows).to_pylist()
        places = _places(topic, placement, _filter_rows(named, rows), _filter_rows(views, rows))
        if isinstance(places, int):
            yield from _chunks(topic, places, records)
            continue
        shares: dict[int, list[bytes]] = {place: [] for place in dict.fromkeys(places)}
        for place, record in zip(places, records, strict=True):
            shares[place].append(record)
        for place, share in shares.items():
            yield from _chunks(topic, place, share)


def _topics(
    batch: pa.RecordBatch, names: Sequence[str], options: SinkOptions
) -> Iterator[tuple[str, pa.Array | None]]:
    """Yield each topic of the batch and a mask of its rows; None: all rows."""
    if options.topic is not None:
        yield options.topic, None
        return
    assert "topic" in names
    topics = batch.column("topic")
    if topics.null_count:
        msg = "a row has no topic: fill the column topic, or set option topic"
        raise RejectedError(msg)
    for topic in pc.unique(topics).to_pylist():
        yield topic, pc.equal(topics, topic)


def _filter_rows(column: pa.Array, rows: pa.Array | None) -> pa.Array:
    """Return these rows of a column; None for no column."""
    return column if column is None or rows is None else column.filter(rows)


def _with_partitions(texts: pa.Array, named: pa.Array | None) -> pa.Array:
    """Return the records with the partition added to each that names one."""
    if named is None:
        return texts
    numbers = named.cast(pa.string()).cast(pa.binary())
    ends = pc.binary_join_element_wise(
        pa.scalar(b',"partition":', pa.binary()), numbers, b"}", _EMPTY
    )
    open_ended = pc.binary_slice(texts, 0, -1)
    return pc.binary_join_element_wise(
        open_ended, pc.coalesce(ends, pa.scalar(b"}", pa.binary())), _EMPTY
    )


def _places(
    topic: str, placement: Placement, named: pa.Array | None, views: pa.Array | None
) -> list[int] | int:
    """Return each record's partition: the named one, else by key, else that of this run."""
    if (views is None or views.null_count == len(views)) and named is None:
        return placement.unkeyed(topic)
    count, run = placement.partitions(topic), None

    def next_keyless() -> int:
        nonlocal run
        run = placement.unkeyed(topic) if run is None else run
        return run

    if views is not None and named is None and not views.null_count:
        return [partition_for_key(view, count) for view in views.to_pylist()]
    rows = len(named) if named is not None else len(views or ())
    named_partitions = [None] * rows if named is None else named.to_pylist()
    keys = [None] * rows if views is None else views.to_pylist()
    return [
        partition_of(partition, view, count, next_keyless)
        for partition, view in zip(named_partitions, keys, strict=True)
    ]


def _key_views(column: pa.Array, texts: pa.Array, form: TextFormat) -> pa.Array:
    """Return the bytes from which a key's partition is computed; null for no key.

    JSON text is normalized as brokers store it: without blanks around it, line breaks as blanks.
    """
    if form is TextFormat.BINARY:
        return column.cast(pa.binary())
    if not pc.any(pc.match_substring_regex(texts, r"^\s|\s$|[\r\n]")).as_py():
        return pc.if_else(pc.equal(texts, b"null"), pa.scalar(None, pa.binary()), texts)
    rows = [row.translate(_LINE_BREAKS).strip() for row in texts.to_pylist()]
    return pa.array([None if row == b"null" else row for row in rows], pa.binary())


def _records(
    batch: pa.RecordBatch, names: Sequence[str], keys: pa.Array | None, values: pa.Array
) -> pa.Array:
    parts: list[Any] = [b'{"value":', values]
    if keys is not None:
        parts = [b'{"key":', keys, b',"value":', values]
    if "headers" in names:
        parts.append(_headers(batch.column("headers")))
    parts.append(b"}")
    scalars = [pa.scalar(one, pa.binary()) if isinstance(one, bytes) else one for one in parts]
    return pc.binary_join_element_wise(*scalars, _EMPTY)


def _texts(column: pa.Array, form: TextFormat, what: str) -> pa.Array:
    """Return keys or values as the JSON text of the request; null for null."""
    if form is TextFormat.JSON:
        raw = column.cast(pa.binary())
        _check_json(raw, what)
        return pc.coalesce(raw, _NULL)
    rows = column.cast(pa.binary()).to_pylist()
    quoted = _quoted_base64 if form is TextFormat.BINARY else _quoted_text
    return pa.array([b"null" if row is None else quoted(row) for row in rows], pa.binary())


def _quoted_base64(value: bytes) -> bytes:
    return b'"%b"' % binascii.b2a_base64(value, newline=False)


def _quoted_text(value: bytes) -> bytes:
    try:
        return _write_json(value.decode())
    except UnicodeDecodeError:
        msg = f"a key is not UTF-8, as keyFormat=string wants it: {_shown(value)}"
        raise RejectedError(msg) from None


def _check_json(column: pa.Array, what: str) -> None:
    for row in column.to_pylist():
        if row is None:
            continue
        try:
            _read_json(row)
            if not row.isascii():
                row.decode()
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            hint = (
                "keyFormat=string takes plain text, valueFormat=binary any bytes"
                if what == "key"
                else "valueFormat=binary takes any bytes"
            )
            msg = f"a {what} is not JSON ({error}): {_shown(row)}; {hint}"
            raise RejectedError(msg) from None


def _headers(column: pa.Array) -> pa.Array:
    """Return each row's field ``,"headers":[{"key": text, "value": base64 or null}]``, or b""."""
    texts = []
    for row in column.to_pylist():
        found = [
            {"key": header["key"], "value": _base64_text(header["value"])} for header in row or ()
        ]
        texts.append(b',"headers":' + orjson.dumps(found) if found else b"")
    return pa.array(texts, pa.binary())


def _base64_text(value: bytes | None) -> str | None:
    return None if value is None else binascii.b2a_base64(value, newline=False).decode()


def _chunks(topic: str, partition: int | None, records: list[bytes]) -> Iterator[Chunk]:
    """Yield the records in chunks limited by bytes and by number; never an empty chunk."""
    ends = list(accumulate(map(len, records)))
    at = 0
    while at < len(records):
        most = (ends[at - 1] if at else 0) + BODY_BYTES_MAX
        stop = bisect_right(ends, most, at, min(len(ends), at + BODY_RECORDS_MAX))
        stop = max(stop, at + 1)
        yield Chunk(topic, partition, records[at:stop])
        at = stop


def _shown(value: bytes) -> str:
    return repr(value[:SHOWN_BYTES_MAX].decode(errors="replace"))
