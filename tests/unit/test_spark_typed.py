"""``valueFormat=json``: values straight into the columns of a user's schema."""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_source.decoding import Source, decode
from spark_source.errors import SchemaError
from spark_source.schema import kafka_schema
from spark_source.typed import typed_schema

TIME_MS = 1_700_000_000_000


def struct(**kinds: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


ROW = struct(n=LongType(), s=StringType(), d=DoubleType(), a=ArrayType(IntegerType()))
GOOD = st.fixed_dictionaries(
    {},
    optional={
        "n": st.none() | st.integers(-(2**63), 2**63 - 1),
        "s": st.none() | st.text(max_size=8),
        "d": st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 9),
        "a": st.none() | st.lists(st.integers(-9, 9), max_size=3),
        "other": st.none() | st.lists(st.text(max_size=3), max_size=2),
    },
)
BAD = st.sampled_from([5, "text", [1], {"n": "7"}, {"s": 1}, {"a": 3}, {"n": 2**70}])
NO_ROW = dict.fromkeys(ROW.names)


def line(offset: int, value: bytes) -> bytes:
    return b'{"offset":%d,"key":"k","value":%b}\n' % (offset, value)


def page_of(lines: list[bytes], form: str = "json") -> bytes:
    head = b'{"batch":{"offset":0,"next_offset":%d,"count":%d,"timestamp":%d,' % (
        len(lines),
        len(lines),
        TIME_MS,
    )
    formats = f'"key_format":"{form}","value_format":"{form}"}}}}\n'.encode()
    return head + formats + b"".join(lines)


def rows_of(page: bytes, schema: StructType = ROW, end: int = 10**9) -> list[dict[str, Any]]:
    source = Source(
        topic="t", partition=3, timestamp_type=0, columns=(), typed=typed_schema(schema)
    )
    return [row for batch in decode(page, source, end) for row in batch.to_pylist()]


@given(st.lists(GOOD.map(lambda row: (row, True)) | BAD.map(lambda row: (row, False)), max_size=12))
def test_a_value_that_does_not_fit_spoils_its_own_row_only(values: list[tuple[Any, bool]]) -> None:
    lines = [line(n, json.dumps(value).encode()) for n, (value, _) in enumerate(values)]
    expected = [
        {name: value.get(name) for name in ROW.names} if fits else NO_ROW for value, fits in values
    ]
    assert (rows_of(page_of(lines)) if lines else []) == expected


def test_tombstones_are_rows_of_nulls_and_what_lies_behind_is_left() -> None:
    lines = [line(0, b'{"n":1}'), line(1, b"null"), line(2, b'{"n":3}')]
    assert [row["n"] for row in rows_of(page_of(lines))] == [1, None, 3]
    assert [row["n"] for row in rows_of(page_of(lines), end=2)] == [1, None]


def test_columns_about_the_record_stand_beside_those_of_its_value() -> None:
    schema = struct(
        _offset=LongType(),
        n=LongType(),
        _partition=IntegerType(),
        _key=BinaryType(),
        _timestamp=TimestampType(),
    )
    (row,) = rows_of(page_of([line(0, b'{"n":1}')]), schema)
    assert round(row.pop("_timestamp").timestamp() * 1000) == TIME_MS
    assert row == {"_offset": 0, "n": 1, "_partition": 3, "_key": b'"k"'}


@pytest.mark.parametrize("text", [b'{"n": 1,\n "s": "x"}', b"not JSON", b'{"n":1}{"n":2}', b"{"])
def test_json_that_was_written_as_bytes_is_read_too(text: bytes) -> None:
    lines = [line(0, b'"' + base64.b64encode(text) + b'"'), line(1, b"null")]
    first, second = rows_of(page_of(lines, "binary"))
    assert first == ({**NO_ROW, "n": 1, "s": "x"} if text.startswith(b'{"n": 1') else NO_ROW)
    assert second == NO_ROW


def test_arrow_types_are_exactly_those_spark_expects() -> None:
    schema = StructType([*ROW.fields, *struct(o=struct(x=DoubleType())).fields])
    expected: pa.Schema = to_arrow_schema(schema, timezone="UTC")
    assert typed_schema(schema).equals(expected)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (kafka_schema(include_headers=False), r"needs \.schema"),
        (struct(day=DateType()), "column day date can't be read from JSON values"),
        (struct(_offset=StringType()), "column _offset is bigint, not string"),
    ],
)
def test_an_unreadable_value_is_reported(schema: StructType, says: str) -> None:
    with pytest.raises(SchemaError, match=says):
        typed_schema(schema)
