"""The bytes view, and every format through every door."""

from __future__ import annotations

import base64

import orjson
import pytest

from broker.record.batch import BatchSlice, RecordFormat, attributes_of, build_header, parse_header
from broker.record.render import (
    before_offset,
    first_records,
    lines_to_array,
    render_v2,
    splice_timestamps,
)
from broker.record.values import RecordNotJsonError, bytes_view

JSON, BINARY, STRING = RecordFormat.JSON, RecordFormat.BINARY, RecordFormat.STRING


@pytest.mark.parametrize(
    ("text", "record_format", "view"),
    [
        (b"null", JSON, None),
        (b"null", BINARY, None),
        (b"null", STRING, None),
        (b'"AA"', JSON, b'"AA"'),
        (b'"AA"', STRING, b"AA"),
        (b'"QUE="', BINARY, b"AA"),
        (b'"\\u00e9"', JSON, b'"\\u00e9"'),
        (b'"\\u00e9"', STRING, "é".encode()),
        (b'{"id": 1}', JSON, b'{"id": 1}'),
        (b'""', BINARY, b""),
    ],
)
def test_the_bytes_view(text: bytes, record_format: RecordFormat, view: bytes | None) -> None:
    assert bytes_view(text, record_format) == view


def piece(
    *lines: bytes, key_format: RecordFormat = JSON, value_format: RecordFormat = JSON, base: int = 5
) -> BatchSlice:
    body = b"".join(line + b"\n" for line in lines)
    header = parse_header(
        build_header(
            body,
            durable_end=0,
            base_offset=base,
            count=len(lines),
            last_offset_delta=len(lines) - 1,
            leader_epoch=1,
            append_timestamp=1234,
            base_timestamp=1234,
            max_timestamp=1234,
            attributes=attributes_of(key_format, value_format),
        )
    )
    return BatchSlice(header, memoryview(body), base, base + len(lines), len(lines))


def test_lines_become_an_array_by_one_replace() -> None:
    first = piece(b'{"offset":5,"key":null,"value":"a,\\n"}', b'{"offset":6,"key":1,"value":2}')
    second = piece(b'{"offset":7,"key":null,"value":[]}', base=7)
    assert lines_to_array([]) == b"[]"
    assert orjson.loads(lines_to_array([first, second])) == [
        {"offset": 5, "key": None, "value": "a,\n"},
        {"offset": 6, "key": 1, "value": 2},
        {"offset": 7, "key": None, "value": []},
    ]


def test_timestamps_are_spliced_where_a_record_has_none() -> None:
    lines = splice_timestamps(
        piece(
            b'{"offset":5,"key":{"offset":1,"x":2},"value":"{\\"offset\\":9,"}',
            b'{"offset":6,"timestamp":7,"key":null,"value":null}',
            b'{"offset":7,"headers":[],"key":null,"value":null}',
        )
    )
    assert lines.split(b"\n") == [
        b'{"offset":5,"timestamp":1234,"key":{"offset":1,"x":2},"value":"{\\"offset\\":9,"}',
        b'{"offset":6,"timestamp":7,"key":null,"value":null}',
        b'{"offset":7,"timestamp":1234,"headers":[],"key":null,"value":null}',
        b"",
    ]


@pytest.mark.parametrize("dense", [True, False])
def test_rule_r7_a_read_ends_before_an_offset_also_where_there_are_holes(dense: bool) -> None:
    offsets = [5, 6, 7] if dense else [5, 8, 9]
    texts = [b'{"offset":%d,"k":1}' % offset for offset in offsets]
    whole = piece(*texts)
    if not dense:
        header = whole.header._replace(last_offset_delta=4)
        whole = whole._replace(header=header, next_offset=10)
    cut_in_front = whole._replace(
        lines=b"\n".join([*texts[1:], b""]), first_offset=offsets[1], count=2
    )
    for first, found in ((5, whole), (offsets[1], cut_in_front)):
        for end in range(4, 12):
            kept = [text for o, text in zip(offsets, texts, strict=True) if first <= o < end]
            slices = before_offset([found], end)
            assert b"".join(bytes(each.lines) for each in slices).splitlines() == kept
            assert sum(each.count for each in slices) == len(kept)
            assert all(each.next_offset == min(end, found.next_offset) for each in slices)


@pytest.mark.parametrize("dense", [True, False])
def test_rule_r7_the_first_records_end_before_the_next_one_also_where_there_are_holes(
    dense: bool,
) -> None:
    offsets = [5, 6, 7] if dense else [5, 8, 9]
    texts = [b'{"offset":%d,"k":1}' % offset for offset in offsets]
    whole = piece(*texts)
    if not dense:
        header = whole.header._replace(last_offset_delta=4)
        whole = whole._replace(header=header, next_offset=10)
    more = piece(b'{"offset":12,"k":1}', base=12)
    nothing = more._replace(lines=b"", count=0)
    every = [(offset, text) for offset, text in zip(offsets, texts, strict=True)]
    every.append((12, b'{"offset":12,"k":1}'))
    for count in range(1, 7):
        slices, end = first_records([whole, nothing, more], count)
        lines = b"".join(bytes(each.lines) for each in slices).splitlines()
        assert lines == [text for _, text in every[:count]]
        assert sum(each.count for each in slices) == len(lines)
        assert end == (every[count][0] if count < len(every) else None)


def test_the_v2_shape_keeps_the_clients_text() -> None:
    batch = piece(
        b'{"offset":5,"key":"k","value":{"b": 10000000000000000000001,"b":2}}',
        b'{"offset":6,"timestamp":7,"headers":[{"key":"h","value":null}],"key":null,"value":null}',
    )
    assert render_v2(batch, topic='t"x', partition=2, door=JSON) == (
        b'{"topic":"t\\"x","key":"k","value":{"b": 10000000000000000000001,"b":2},'
        b'"partition":2,"offset":5,"timestamp":1234},'
        b'{"topic":"t\\"x","key":null,"value":null,"partition":2,"offset":6,"timestamp":7,'
        b'"headers":[{"key":"h","value":null}]}'
    )
    plain = render_v2(batch, topic="t", partition=0, door=JSON, with_timestamp=False)
    assert b"timestamp" not in plain


@pytest.mark.parametrize(
    ("stored", "record_format", "door", "shown"),
    [
        (b'{"a": 1}', JSON, BINARY, base64.b64encode(b'{"a": 1}').decode()),
        (b'"AA"', JSON, BINARY, base64.b64encode(b'"AA"').decode()),
        ('"é"'.encode(), STRING, BINARY, base64.b64encode("é".encode()).decode()),
        ('"é"'.encode(), STRING, JSON, "é"),
        (b'"' + base64.b64encode(b' {"a":\n1}') + b'"', BINARY, JSON, {"a": 1}),
        (b'"QUE="', BINARY, BINARY, "QUE="),
        (b'{"a": 1}', JSON, STRING, '{"a": 1}'),
        (b'"AA"', JSON, STRING, '"AA"'),
        (b"1e400", JSON, STRING, "1e400"),
        ('"\\u0000é"'.encode(), STRING, STRING, "\0é"),
        (b'"w6k="', BINARY, STRING, "é"),
        (b"null", JSON, STRING, None),
        (b"null", BINARY, JSON, None),
        (b"null", JSON, BINARY, None),
        (b"null", STRING, BINARY, None),
    ],
)
def test_every_format_through_every_door(
    stored: bytes, record_format: RecordFormat, door: RecordFormat, shown: object
) -> None:
    line = b'{"offset":5,"key":%b,"value":%b}' % (stored, stored)
    batch = piece(line, key_format=record_format, value_format=record_format)
    record = orjson.loads(render_v2(batch, topic="t", partition=0, door=door))
    assert (record["key"], record["value"]) == (shown, shown)


@pytest.mark.parametrize("view", [b"\xff\xfe", b"", b"AA", b"{", b"\xef\xbb\xbf1"])
def test_bytes_that_are_not_json_name_their_offset(view: bytes) -> None:
    text = b'"' + base64.b64encode(view) + b'"'
    batch = piece(
        b'{"offset":5,"key":null,"value":"MQ=="}',
        b'{"offset":6,"key":null,"value":%b}' % text,
        value_format=BINARY,
    )
    with pytest.raises(
        RecordNotJsonError, match="value deserialization error for format json"
    ) as e:
        render_v2(batch, topic="t", partition=0, door=JSON)
    assert e.value.offset == 6
