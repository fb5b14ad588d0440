"""Keys and values of the SDK: what is written is read back, and what JSON can't say is refused."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import math
import time
import uuid
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.record.batch import RecordFormat
from broker.record.lines import decode_records, key_view
from http_api.client.client_errors import InvalidRecordError
from http_api.client.sdk.values import (
    FORMATS,
    NULL,
    Encoded,
    Format,
    encode_auto,
    encoder,
    headers_text,
    json_text,
    stored_bytes,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS
)
JSON_VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)
NON_FINITE = st.sampled_from([math.nan, math.inf, -math.inf])
BROKERS_FORMATS = {
    Format.ANY: RecordFormat.JSON,
    Format.JSON: RecordFormat.JSON,
    Format.STRING: RecordFormat.STRING,
    Format.BINARY: RecordFormat.BINARY,
}


def brokers_view(encoded: Encoded) -> bytes | None:
    """Return what a broker makes the partition of, if this is the key of a produce request."""
    found, text = encoded
    [record] = decode_records(b'{"records":[{"key":' + text + b',"value":1}]}')
    return key_view(record, BROKERS_FORMATS[found])


@given(JSON_VALUES)
def test_a_json_value_is_read_back(value: Any) -> None:
    found, text = encode_auto(value)
    assert orjson.loads(text) == value
    assert found is (Format.ANY if value is None else Format.JSON)


@given(st.binary())
def test_bytes_of_every_kind_are_read_back(value: bytes) -> None:
    expected = encode_auto(value)
    assert stored_bytes(expected) == value
    for kind in (bytearray(value), memoryview(value), memoryview(value[::-1])[::-1]):
        assert encode_auto(kind) == expected


@given(JSON_VALUES | st.binary() | TEXTS, st.sampled_from(FORMATS))
def test_the_client_and_the_broker_hash_the_same_bytes(value: Any, word: str) -> None:
    try:
        encoded = encoder("key", word, None)(value)
    except InvalidRecordError:
        return
    assert stored_bytes(encoded) == brokers_view(encoded)


@pytest.mark.parametrize("text", [b"1", b'{"a" : 1}', b"null", b'"k"', b"[1,\r\n2]", b'"\\u0041"'])
@pytest.mark.parametrize("space", [b"", b" ", b"\r\n\t", b"\n\n"])
def test_json_text_with_space_and_line_breaks_lands_where_the_broker_says(
    text: bytes, space: bytes
) -> None:
    encoded = encoder("key", "json", None)(space + text + space)
    [record] = decode_records(b'{"records":[{"key":' + space + text + space + b',"value":1}]}')
    assert stored_bytes(encoded) == key_view(record, RecordFormat.JSON) == brokers_view(encoded)
    assert b"\n" not in encoded[1]


class Colour(enum.Enum):
    RED = 1
    ENDLESS = math.inf


class Level(enum.IntEnum):
    LOW = 3


class Name(str):
    __slots__ = ()


@dataclasses.dataclass
class Point:
    x: float
    _hidden: float = math.nan


@given(JSON_VALUES, NON_FINITE)
def test_a_number_that_json_has_not_is_refused_wherever_it_stands(
    other: Any, number: float
) -> None:
    for value in (
        number,
        [other, None, number],
        {"a": other, "b": None, "c": {"d": [number]}},
        (other, (number,)),
        Point(number),
        [None, {"p": Point(number)}],
        Colour.ENDLESS,
    ):
        with pytest.raises(InvalidRecordError, match="no JSON number"):
            json_text(value)


def test_an_attribute_that_orjson_does_not_write_is_not_refused_and_an_added_one_is() -> None:
    point = Point(1.0)
    assert json_text([None, point]) == b'[null,{"x":1.0}]'
    vars(point)["added"] = math.nan
    with pytest.raises(InvalidRecordError):
        json_text(point)


def test_what_orjson_knows_beyond_json_is_written_as_documented() -> None:
    assert json_text([Level.LOW, Colour.RED, Name("n")]) == b'[3,1,"n"]'
    assert json_text(uuid.UUID(int=1)) == b'"00000000-0000-0000-0000-000000000001"'
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    assert json_text(moment) == b'"2026-01-02T03:04:05+00:00"'


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        1 << 64,
        -(1 << 63) - 1,
        "\ud800",
        {"\udfff": 1},
        {1: 2},
        {None: 2},
        {b"k": 1},
        {Name("k"): 1},
        [b"bytes inside"],
        {1, 2},
        object(),
        nested(300),
        nested(100_000),
        Point,
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_can_not_be_read_back_is_refused_with_one_error(value: Any) -> None:
    for word in ("auto", "json"):
        with pytest.raises(InvalidRecordError, match="not a JSON value"):
            encoder("value", word, None)(value)


def test_a_value_that_refers_to_itself_is_refused() -> None:
    value: list[Any] = [None]
    value.append(value)
    with pytest.raises(InvalidRecordError):
        encode_auto(value)


@pytest.mark.parametrize(
    "text",
    [b"", b"1e400", b"NaN", b"Infinity", b"{", b'"\\ud800"', b"\xff", b"1 2", b"\xef\xbb\xbf1"],
)
def test_bytes_that_are_no_readable_json_text_are_refused(text: bytes) -> None:
    with pytest.raises(InvalidRecordError, match="not JSON text"):
        encoder("value", "json", None)(text)


def test_the_formats_refuse_other_kinds_and_take_their_own() -> None:
    string, binary = encoder("key", "string", None), encoder("key", "binary", None)
    assert string("null") == string(b"null") == (Format.STRING, b'"null"')
    assert string(Name("n")) == (Format.STRING, b'"n"')
    assert binary("ä") == binary("ä".encode()) == binary(bytearray("ä".encode()))
    assert string(None) == binary(None) == (Format.ANY, NULL)
    wrong: list[Any] = [1, [], "\ud800"]
    for refused in wrong:
        for encode in (string, binary):
            with pytest.raises(InvalidRecordError):
                encode(refused)
    with pytest.raises(InvalidRecordError, match="not UTF-8"):
        string(b"\xff")


def test_serializers_go_first_and_their_failures_are_one_error() -> None:
    assert encoder("key", "binary", lambda value: b"%d" % value)(7) == encode_auto(b"7")
    with pytest.raises(InvalidRecordError, match="key_serializer failed"):
        encoder("key", "auto", lambda value: value.missing)(7)
    with pytest.raises(InvalidRecordError, match="value_serializer returned dict"):
        encoder("value", "auto", lambda _: {})(7)


def test_the_check_for_non_finite_numbers_is_linear() -> None:
    def seconds(count: int) -> float:
        value = [{"a": "null", "b": None, "c": 1.5}] * count
        began_s = time.process_time()
        json_text(value)
        return time.process_time() - began_s

    seconds(1_000)
    short_s = min(seconds(2_000) for _ in range(3))
    assert min(seconds(40_000) for _ in range(3)) < 100 * max(short_s, 0.0005)


@given(st.lists(st.tuples(TEXTS, st.none() | st.binary() | TEXTS), max_size=5))
def test_headers_keep_their_order_and_their_duplicates(pairs: list[tuple[str, Any]]) -> None:
    rows = orjson.loads(headers_text([*pairs, *pairs]))
    assert [row["key"] for row in rows] == [name for name, _ in pairs] * 2
    expected = [one.encode() if isinstance(one, str) else one for _, one in pairs] * 2
    encoded = [None if one is None else encode_auto(one)[1][1:-1].decode() for one in expected]
    assert [row["value"] for row in rows] == encoded


@pytest.mark.parametrize(
    "headers",
    [5, "ab", b"ab", ["ab"], [("a",)], [(1, b"")], [("a", 1)], [("\ud800", b"")], {"a": []}],
)
def test_other_headers_are_refused(headers: Any) -> None:
    with pytest.raises(InvalidRecordError):
        headers_text(headers)
