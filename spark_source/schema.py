"""Kafka's column names and types, for Spark and for Arrow, and the check of a user's schema.

Arrow types are fixed here, because Spark passes the buffers of a batch to the JVM unchanged: a type
that differs from the announced one would be read as garbage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_source.errors import SchemaError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

HEADERS_ARROW = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

KAFKA_COLUMNS: dict[str, tuple[DataType, pa.DataType]] = {
    "key": (BinaryType(), pa.binary()),
    "value": (BinaryType(), pa.binary()),
    "topic": (StringType(), pa.string()),
    "partition": (IntegerType(), pa.int32()),
    "offset": (LongType(), pa.int64()),
    "timestamp": (TimestampType(), pa.timestamp("us", tz="UTC")),
    "timestampType": (IntegerType(), pa.int32()),
}
"""Name → Spark type and Arrow type, in the order of Spark's Kafka source."""

HEADERS_COLUMN: tuple[DataType, pa.DataType] = (
    ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
    HEADERS_ARROW,
)


def columns(*, include_headers: bool) -> dict[str, tuple[DataType, pa.DataType]]:
    """Return every column that can be read."""
    return {**KAFKA_COLUMNS, "headers": HEADERS_COLUMN} if include_headers else KAFKA_COLUMNS


def kafka_schema(*, include_headers: bool) -> StructType:
    """Return the schema of ``load()`` without a schema of the user's own."""
    found = columns(include_headers=include_headers)
    return StructType([StructField(name, kind) for name, (kind, _) in found.items()])


def chosen_columns(schema: StructType, *, include_headers: bool) -> tuple[str, ...]:
    """Return the columns of a user's ``.schema(…)``: only those are produced.

    Raises:
        SchemaError: a name or type that the source does not have.
    """
    there = columns(include_headers=include_headers)
    for field in schema.fields:
        if field.name not in there or there[field.name][0] != field.dataType:
            names = ", ".join(f"{name} {kind.simpleString()}" for name, (kind, _) in there.items())
            msg = (
                f"column {field.name} {field.dataType.simpleString()} can't be read: expected "
                f"some of {names}; for columns of JSON values set valueFormat=json"
            )
            raise SchemaError(msg)
    return tuple(field.name for field in schema.fields)


def arrow_schema(names: tuple[str, ...]) -> pa.Schema:
    """Return the Arrow schema of these columns."""
    there = columns(include_headers=True)
    return pa.schema([(name, there[name][1]) for name in names])
