"""Arrow batches to bodies of produce requests. Pure.

The text of all records is joined by Arrow's kernels. JSON of a user's is put into a body only once
it was read as JSON by itself: so a value can't end its record and smuggle in another.
"""

from __future__ import annotations

import binascii
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from spark_source.errors import RejectedError
from spark_source.options import TextFormat

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from spark_source.options import SinkOptions

BODY_BYTES_MAX = 1 << 20
"""Of one request, unless a single record is larger: a log's batch ends at 1 MB too."""
BODY_RECORDS_MAX = 20_000
"""Of one request; brokers take 100,000 (max_records_per_request)."""
SHOWN_BYTES_MAX = 80

_NULL = pa.scalar(b"null", pa.binary())
_NOTHING = pa.scalar(b"", pa.binary())
_read_json = msgspec.json.Decoder(msgspec.Raw).decode


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records of one request, each as its JSON text, in order."""

    topic: str
    records: list[bytes]


def body_of(records: Sequence[bytes]) -> bytes:
    """The body of a produce request."""
    return b'{"records":[' + b",".join(records) + b"]}"


def encode(batch: pa.RecordBatch, options: SinkOptions) -> Iterator[Chunk]:
    """A batch as requests, in its order for each topic.

    Raises:
        RejectedError: a row that can't be written, with what is wrong with it.
    """
    names = batch.schema.names
    texts = _records(batch, names, options)
    if options.topic is not None:
        yield from _chunks(options.topic, texts)
        return
    topics = batch.column("topic")
    if topics.null_count:
        msg = "a row has no topic: fill the column topic, or set option topic"
        raise RejectedError(msg)
    for topic in pc.unique(topics).to_pylist():
        yield from _chunks(topic, texts.filter(pc.equal(topics, topic)))


def _records(batch: pa.RecordBatch, names: Sequence[str], options: SinkOptions) -> pa.Array:
    values = _texts(batch.column("value"), options.value_format, "value")
    parts: list[pa.Array | pa.Scalar] = []
    if "key" in names:
        parts += [b'{"key":', _texts(batch.column("key"), options.key_format, "key")]
        parts += [b',"value":', values]
    else:
        parts += [b'{"value":', values]
    if "partition" in names:
        parts.append(_partitions(batch.column("partition")))
    if "headers" in names:
        parts.append(_headers(batch.column("headers")))
    parts.append(b"}")
    scalars = [pa.scalar(one, pa.binary()) if isinstance(one, bytes) else one for one in parts]
    return pc.binary_join_element_wise(*scalars, _NOTHING)


def _texts(column: pa.Array, form: TextFormat, what: str) -> pa.Array:
    """Keys or values as the JSON text the request holds; null for null."""
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
        return orjson.dumps(value.decode())
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


def _partitions(column: pa.Array) -> pa.Array:
    numbers = column.cast(pa.string()).cast(pa.binary())
    named = pc.binary_join_element_wise(pa.scalar(b',"partition":', pa.binary()), numbers, _NOTHING)
    return pc.coalesce(named, _NOTHING)


def _headers(column: pa.Array) -> pa.Array:
    """``[{"key": text, "value": base64 or null}]``."""
    texts = []
    for row in column.to_pylist():
        found = [
            {"key": header["key"], "value": _base64_text(header["value"])} for header in row or ()
        ]
        texts.append(b',"headers":' + orjson.dumps(found) if found else b"")
    return pa.array(texts, pa.binary())


def _base64_text(value: bytes | None) -> str | None:
    return None if value is None else binascii.b2a_base64(value, newline=False).decode()


def _chunks(topic: str, texts: pa.Array) -> Iterator[Chunk]:
    """Cut by bytes and by number; never an empty one."""
    records = texts.to_pylist()
    ends = pc.cumulative_sum(pc.binary_length(texts).cast(pa.int64())).to_pylist()
    at = 0
    while at < len(records):
        before = ends[at - 1] if at else 0
        stop = bisect_right(
            ends, before + BODY_BYTES_MAX, at, min(len(ends), at + BODY_RECORDS_MAX)
        )
        stop = max(stop, at + 1)
        yield Chunk(topic, records[at:stop])
        at = stop


def _shown(value: bytes) -> str:
    return repr(value[:SHOWN_BYTES_MAX].decode(errors="replace"))
