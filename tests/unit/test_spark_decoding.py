"""Pages of stored lines to Arrow batches, against a plain reading of the same lines."""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from broker.record.batch import BatchSlice, RecordFormat, parse_header
from broker.record.lines import decode_records, encode_batches
from broker.record.render import lines_with_batches
from spark_source.decoding import DecodingError, Source, decode
from spark_source.schema import KAFKA_COLUMNS, arrow_schema, kafka_schema

APPEND_MS = 1_700_000_000_123
ALL = (*KAFKA_COLUMNS, "headers")
WANTED = Source(topic="t", partition=3, timestamp_type=0, columns=ALL)

texts = st.text(max_size=12) | st.sampled_from([',"value":', '","value":', "\\", '"', "null", ',"'])
scalars = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | texts
trees = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["key", "value", "batch", "headers", "x"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)
headers = st.none() | st.lists(
    st.fixed_dictionaries({"key": texts, "value": st.none() | st.binary(max_size=5)}), max_size=2
)
records = st.fixed_dictionaries(
    {"key": trees, "value": trees},
    optional={"timestamp": st.integers(0, 2 * 10**12), "headers": headers},
)
plain_records = st.fixed_dictionaries({"key": scalars, "value": trees})
BYTES = st.none() | st.binary(max_size=9)
binary_records = st.fixed_dictionaries({"key": BYTES, "value": BYTES})


def compact(value: object) -> bytes:
    """Without spaces, so that what is searched for in a line occurs inside values too."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def page_of(*batches: tuple[RecordFormat, list[dict[str, Any]]]) -> bytes:
    """What a broker answers for these batches of records."""
    slices, offset = [], 5
    for form, rows in batches:
        body = compact({"records": [stored(row, form) for row in rows]})
        encoded = encode_batches(
            decode_records(body),
            key_format=form,
            value_format=form,
            base_offset=offset,
            leader_epoch=1,
            append_timestamp=APPEND_MS,
            durable_end=0,
        )
        for one in encoded:
            header = parse_header(one.raw, 0)
            lines = one.raw[header.size - header.length :]
            slices.append(BatchSlice(header, lines, one.base_offset, one.next_offset, header.count))
        offset += len(rows)
    return lines_with_batches(slices)


def stored(row: dict[str, Any], form: RecordFormat) -> dict[str, Any]:
    fields = dict(row)
    if form is RecordFormat.BINARY:
        fields = {name: as_base64(value) for name, value in row.items()}
    if fields.get("headers") is not None:
        fields["headers"] = [
            {"key": one["key"], "value": as_base64(one["value"])} for one in fields["headers"]
        ]
    return fields


def as_base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def view(value: Any, form: RecordFormat) -> bytes | None:
    if value is None or form is RecordFormat.BINARY:
        return value  # type: ignore[no-any-return]
    return compact(value)


def rows_of(page: bytes, end: int = 10**9, source: Source = WANTED) -> list[dict[str, Any]]:
    return [row for batch in decode(page, source, end) for row in batch.to_pylist()]


batches = st.lists(
    st.tuples(st.just(RecordFormat.JSON), st.lists(records, min_size=1, max_size=5))
    | st.tuples(st.just(RecordFormat.JSON), st.lists(plain_records, min_size=1, max_size=5))
    | st.tuples(st.just(RecordFormat.BINARY), st.lists(binary_records, min_size=1, max_size=5)),
    max_size=4,
)


@given(batches, st.integers(5, 30))
def test_every_record_comes_out_as_its_bytes_view(
    written: list[tuple[RecordFormat, list[dict[str, Any]]]], end: int
) -> None:
    expected = [(form, row) for form, rows in written for row in rows][: end - 5]
    found = rows_of(page_of(*written), end)
    assert [row["offset"] for row in found] == list(range(5, 5 + len(expected)))
    for row, (form, record) in zip(found, expected, strict=True):
        assert row["key"] == view(record["key"], form)
        assert row["value"] == view(record["value"], form)
        time_ms = row["timestamp"].timestamp() * 1000
        assert round(time_ms) == record.get("timestamp", APPEND_MS)
        assert row["headers"] == (record.get("headers") or None)
        assert (row["topic"], row["partition"], row["timestampType"]) == ("t", 3, 0)


def test_the_quick_path_is_taken_for_ordinary_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_source.decoding.cut_slowly", None)
    page = page_of((RecordFormat.JSON, [{"key": "k", "value": {"value": 1}, "timestamp": 7}]))
    assert rows_of(page)[0]["value"] == b'{"value":1}'


def test_a_key_that_looks_like_the_rest_of_a_line_is_a_key() -> None:
    key = {"a": 1, "value": 2, "key": 3}
    page = page_of((RecordFormat.JSON, [{"key": key, "value": 4}]))
    assert (rows_of(page)[0]["key"], rows_of(page)[0]["value"]) == (compact(key), b"4")


def test_neighbours_of_the_same_formats_are_one_batch() -> None:
    one = (RecordFormat.JSON, [{"key": 1, "value": 2}])
    page = page_of(one, one, (RecordFormat.BINARY, [{"key": b"", "value": b"x"}]), one)
    assert [batch.num_rows for batch in decode(page, WANTED, 100)] == [2, 1, 1]


def test_strings_are_their_text() -> None:
    page = page_of((RecordFormat.STRING, [{"key": "k", "value": "a\u00e9\n"}]))
    assert (rows_of(page)[0]["key"], rows_of(page)[0]["value"]) == (b"k", "a\u00e9\n".encode())


def test_only_wanted_columns_are_made() -> None:
    page = page_of((RecordFormat.JSON, [{"key": 1, "value": 2}]))
    source = Source(topic="t", partition=0, timestamp_type=1, columns=("offset", "value"))
    assert rows_of(page, source=source) == [{"offset": 5, "value": b"2"}]


@pytest.mark.parametrize(
    "page",
    [
        b'{"offset":1,"key":1,"value":2}\n',
        page_of((RecordFormat.JSON, [{"key": 1, "value": 2}])).replace(b'"count":1', b'"count":2'),
        page_of((RecordFormat.JSON, [{"key": 1, "value": 2}])).replace(b"json", b"avro"),
    ],
)
def test_a_page_that_is_not_what_was_promised_is_refused(page: bytes) -> None:
    with pytest.raises(DecodingError):
        rows_of(page)


def test_an_empty_page_is_no_batch() -> None:
    assert rows_of(b"") == []


def test_arrow_types_are_exactly_those_spark_expects() -> None:
    """Spark hands the buffers to the JVM as they are, so almost right is wrong."""
    expected: pa.Schema = to_arrow_schema(kafka_schema(include_headers=True), timezone="UTC")
    assert arrow_schema(ALL).equals(expected)
