"""Values that are JSON objects, as columns of a user's schema (``valueFormat=json``). Pure.

Arrow's JSON reader parses the stored lines directly, ``{"offset":N,"key":K,"value":{…}}``, into
typed columns of the value's fields: no ``from_json`` in the JVM. A missing field is null, a field
that is not in the schema is skipped, and a value that does not fit the schema (no object, text for
a number) is a row of nulls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.json as pj
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from spark_source.errors import SchemaError
from spark_source.schema import KAFKA_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.types import DataType

_SCALARS: dict[type[DataType], pa.DataType] = {
    StringType: pa.string(),
    BooleanType: pa.bool_(),
    ShortType: pa.int16(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    FloatType: pa.float32(),
    DoubleType: pa.float64(),
}
_META = {f"_{name}": name for name in KAFKA_COLUMNS if name not in {"value", "timestampType"}}
"""Name of a column about the record (``_offset`` and so on) → the Kafka column behind it."""


def typed_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of a user's columns.

    Raises:
        SchemaError: JSON values cannot be read as a column's type.
    """
    if schema.fieldNames() == list(KAFKA_COLUMNS):
        msg = (
            "valueFormat=json needs .schema('field type, …') of the values' fields; "
            f"{', '.join(_META)} may be among them"
        )
        raise SchemaError(msg)
    return pa.schema([(field.name, _arrow(field.name, field.dataType)) for field in schema.fields])


def meta_of(name: str) -> str | None:
    """Return the Kafka column behind ``_offset`` and the like, or None."""
    return _META.get(name)


def _arrow(name: str, kind: DataType) -> pa.DataType:
    if name in _META:
        expected, found = KAFKA_COLUMNS[_META[name]]
        if kind == expected:
            return found
        msg = f"column {name} is {expected.simpleString()}, not {kind.simpleString()}"
        raise SchemaError(msg)
    if isinstance(kind, ArrayType):
        return pa.list_(_arrow("", kind.elementType))
    if isinstance(kind, StructType):
        return pa.struct([(field.name, _arrow("", field.dataType)) for field in kind.fields])
    scalar = _SCALARS.get(type(kind))
    if scalar is None:
        names = ", ".join(one().simpleString() for one in _SCALARS)
        msg = (
            f"column {name} {kind.simpleString()} can't be read from JSON values: expected "
            f"{names}, arrays and structs of them; or read the column value and use from_json"
        )
        raise SchemaError(msg)
    return scalar


class TypedValues:
    """Parser of runs of lines into the value's fields. One per task; holds no data."""

    def __init__(self, schema: pa.Schema) -> None:
        fields = [field for field in schema if field.name not in _META]
        self._struct = pa.struct(fields)
        self._options = pj.ParseOptions(
            explicit_schema=pa.schema([("value", self._struct)]),
            unexpected_field_behavior="ignore",
        )

    def parse(self, lines: bytes, count: int) -> pa.StructArray:
        """Return the values of ``count`` lines, each an object with a field ``value``."""
        whole = self._try(lines, count)
        if whole is not None:
            return whole
        return pa.concat_arrays(
            self._parse_parts([line + b"\n" for line in lines.split(b"\n")[:-1]])
        )

    def _parse_parts(self, lines: Sequence[bytes]) -> list[pa.StructArray]:
        """Parse by halves, so that only a bad line is null, and costs the logarithm of its run."""
        whole = self._try(b"".join(lines), len(lines))
        if whole is not None:
            return [whole]
        if len(lines) == 1:
            return [pa.nulls(1, self._struct)]
        half = len(lines) // 2
        return [*self._parse_parts(lines[:half]), *self._parse_parts(lines[half:])]

    def _try(self, lines: bytes, count: int) -> pa.StructArray | None:
        """Parse all lines at once; return None if a line does not fit."""
        size = pj.ReadOptions(use_threads=False, block_size=len(lines) + 1)
        try:
            table = pj.read_json(pa.BufferReader(lines), size, self._options)
        except pa.ArrowInvalid:
            return None
        column = table.column("value")
        if len(column) != count:
            return None
        chunks = column.chunks
        return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)


def as_lines(values: pa.Array) -> bytes:
    """Return bytes views as lines that `TypedValues.parse` reads."""
    rows = (
        b"null" if row is None else row.replace(b"\n", b" ").replace(b"\r", b" ")
        for row in values.to_pylist()
    )
    return b"".join([b'{"value":%b}\n' % row for row in rows])
