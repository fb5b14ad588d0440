"""Records of a run that a format can show: JSON as text, base64 with a mark, or no further."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from broker.record.batch import BatchSlice, RecordFormat
from broker.record.readable import ShownRecords, may_overflow, show_records
from broker.record.render import first_records
from tests.unit.test_record_values import piece

JSON, BINARY, STRING = RecordFormat.JSON, RecordFormat.BINARY, RecordFormat.STRING
LARGE = b"1e400"
LONG = b"-" + b"9" * 400
OTHER = b'"/w=="'


def line(offset: int, value: bytes, key: bytes = b"null") -> bytes:
    return b'{"offset":%d,"key":%b,"value":%b}' % (offset, key, value)


def run(*values: bytes, value_format: RecordFormat = JSON) -> BatchSlice:
    lines = [line(5 + at, value) for at, value in enumerate(values)]
    return piece(*lines, value_format=value_format)


def show(records: BatchSlice, door: RecordFormat = JSON, **options: Any) -> ShownRecords:
    return show_records(records, topic="t", partition=2, door=door, **options)


def rows(shown: ShownRecords) -> list[dict[str, Any]]:
    return json.loads(b"[" + shown.body + b"]")  # type: ignore[no-any-return]


@pytest.mark.parametrize("value", [LARGE, LONG, b"-1E+999", b'{"deep":[1,2,1e309]}'])
def test_a_number_that_no_decoder_holds_ends_the_run_in_front_of_it(value: bytes) -> None:
    """An older page with such a number failed as a whole at the client that decoded it."""
    shown = show(run(b"1", b"2", value, b"4"))
    assert [row["offset"] for row in rows(shown)] == [5, 6]
    assert (shown.count, shown.next_offset) == (2, 7)
    assert shown.size == len(line(5, b"1")) + len(line(6, b"2")) + 2
    assert shown.stopped_by is not None
    assert (shown.stopped_by.offset, shown.stopped_by.what) == (7, "value")


@pytest.mark.parametrize(
    "value",
    [
        b"1e308",
        b"12345678901234567890123",
        b'"1e400"',
        b'{"id":"a3e4005b"}',
        b'"' + b"1" * 400 + b'"',
    ],
)
def test_what_only_looks_like_such_a_number_is_shown_as_it_is(value: bytes) -> None:
    shown = show(run(b"1", value))
    assert shown.stopped_by is None
    assert (shown.count, shown.next_offset) == (2, 7)
    assert value in shown.body


def test_other_bytes_end_the_run_and_a_binary_reader_gets_all() -> None:
    records = run(b'"MQ=="', OTHER, b'"Mg=="', value_format=BINARY)
    shown = show(records)
    assert [row["value"] for row in rows(shown)] == [1]
    assert shown.next_offset == 6
    assert show(records, BINARY).count == 3


def test_marked_records_are_shown_in_base64_with_the_fields_that_are() -> None:
    records = piece(
        line(5, b'"MQ=="', key=LARGE),
        b'{"offset":6,"timestamp":9,"headers":[{"key":"h","value":"x"}],"key":null,"value":"/w=="}',
        line(7, OTHER, key=LARGE),
        value_format=BINARY,
    )
    shown = show(records, mark=True)
    assert (shown.count, shown.next_offset, shown.stopped_by) == (3, 8, None)
    large = base64.b64encode(LARGE).decode()
    first, second, third = rows(shown)
    assert first == {
        "topic": "t", "key": large, "value": 1, "partition": 2, "offset": 5, "timestamp": 1234,
        "unreadable": ["key"],
    }  # fmt: skip
    assert second == {
        "topic": "t", "key": None, "value": "/w==", "partition": 2, "offset": 6, "timestamp": 9,
        "headers": [{"key": "h", "value": "x"}], "unreadable": ["value"],
    }  # fmt: skip
    assert third["unreadable"] == ["key", "value"]


def test_only_what_cannot_be_shown_is_passed_over() -> None:
    records = run(b'"MQ=="', OTHER, b'"Mg=="', OTHER, value_format=BINARY)
    shown = show(records, passed_over={5, 6})
    assert [row["offset"] for row in rows(shown)] == [5, 7]
    assert shown.next_offset == 8
    shown = show(records, passed_over={6, 8})
    assert [row["offset"] for row in rows(shown)] == [5, 7]
    assert (shown.next_offset, shown.stopped_by) == (9, None)


def test_a_run_of_nothing_but_passed_over_records_moves_on_without_a_body() -> None:
    shown = show(run(OTHER, value_format=BINARY), passed_over={5})
    assert (shown.body, shown.count, shown.next_offset) == (b"", 0, 6)


def test_rule_r7_the_first_records_are_counted_by_lines_where_there_are_holes() -> None:
    records = piece(line(5, b"1"), line(8, b"2"), line(9, b"3"))
    [two], end = first_records([records], 2)
    assert [row["offset"] for row in rows(show(two))] == [5, 8]
    assert (two.count, end) == (2, 9)
    assert first_records([records], 1)[1] == 8
    assert first_records([records], 3) == ([records], None)


def test_a_text_reader_stops_at_what_is_no_utf_8() -> None:
    records = run(b'"YQ=="', OTHER, value_format=BINARY)
    shown = show(records, STRING)
    assert [row["value"] for row in rows(shown)] == ["a"]
    assert shown.stopped_by is not None
    assert "format text at offset 6" in shown.stopped_by.message
    assert rows(show(records, STRING, mark=True))[1]["unreadable"] == ["value"]


def test_strings_are_never_numbers() -> None:
    assert may_overflow(b'"1e400"')  # then the text is decoded to be sure
    assert not may_overflow(b'{"a":1.5e30,"b":"e2e"}')
    assert show(run(b'"1e400"', value_format=STRING)).count == 1
