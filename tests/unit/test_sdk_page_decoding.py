"""Pages to records: formats, deserializers, unreadable records beside others, split values."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_api.client.client_errors import ProtocolError
from http_api.client.sdk.page_decoding import PageDecoder, StoredText, bytes_view
from http_api.client.sdk.part_joining import UNFINISHED_MAX, PartJoiner
from http_api.client.sdk.record_types import Record

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False,
    allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


def page(*lines: bytes, key: str = "json", value: str = "json", first: int = 0) -> bytes:
    """Return one batch with these lines."""
    head = {
        "offset": first,
        "next_offset": first + len(lines),
        "count": len(lines),
        "timestamp": 1000,
        "key_format": key,
        "value_format": value,
        "leader_epoch": 3,
    }
    return b"".join(line + b"\n" for line in (orjson.dumps({"batch": head}), *lines))


def line(offset: int, value: bytes, key: bytes = b"null", more: bytes = b"") -> bytes:
    return b'{"offset":%d,%s"key":%s,"value":%s}' % (offset, more, key, value)


@given(st.lists(st.tuples(JSON_VALUES, JSON_VALUES), min_size=1, max_size=5))
def test_json_comes_back_as_it_was_written(pairs: list[tuple[Any, Any]]) -> None:
    lines = [
        line(at, json.dumps(value).encode(), json.dumps(key).encode())
        for at, (key, value) in enumerate(pairs)
    ]
    decoded = PageDecoder().decode("t", 1, page(*lines))
    assert [(one.key, one.value) for one in decoded.records] == pairs
    assert [one.offset for one in decoded.records] == list(range(len(pairs)))
    assert decoded.unreadable == ()
    assert not decoded.has_headers


@given(st.lists(st.none() | st.binary(), min_size=1, max_size=5))
def test_binary_comes_back_as_bytes(values: list[bytes | None]) -> None:
    texts = [b"null" if one is None else b'"%s"' % base64.b64encode(one) for one in values]
    lines = [line(at, text, text) for at, text in enumerate(texts)]
    body = page(*lines, key="binary", value="binary")
    for decoder in (PageDecoder(), PageDecoder("bytes", "bytes")):
        found = decoder.decode("t", 0, body).records
        assert [(one.key, one.value) for one in found] == [(one, one) for one in values]


def test_stored_text_comes_with_its_format() -> None:
    """Nothing of it is decoded, so that numbers, spaces and escapes stay; a null is None."""
    texts = {"json": b'{"n": 1.50}', "string": b'"\\u00fc"', "binary": b'"AP8="'}
    decoder = PageDecoder(StoredText, StoredText)
    for word, text in texts.items():
        body = page(line(0, text, b"null"), line(1, b"null", text), key=word, value=word)
        found = decoder.decode("t", 0, body).records
        stored = StoredText(text, word)
        assert [(one.key, one.value) for one in found] == [(None, stored), (stored, None)]


HALVES = {"json": [b"null", b'{"a": 1}', b"7"], "string": [b"null", b'"x"'], "binary": [b'"QQ=="']}
BATCHES = st.lists(
    st.sampled_from(sorted(HALVES)).flatmap(
        lambda key: st.sampled_from(sorted(HALVES)).flatmap(
            lambda value: st.tuples(
                st.just(key),
                st.just(value),
                st.lists(
                    st.tuples(st.sampled_from(HALVES[key]), st.sampled_from(HALVES[value])),
                    min_size=1,
                    max_size=3,
                ),
            )
        )
    ),
    min_size=1,
    max_size=3,
)


@given(BATCHES)
def test_bytes_views_are_the_same_decoded_at_once_and_one_by_one(
    batches: list[tuple[str, str, list[tuple[bytes, bytes]]]],
) -> None:
    """Formats of any mix of batches give the bytes that a deserializer is given."""
    body, offset = b"", 0
    for key, value, rows in batches:
        lines = [line(offset + at, two, one) for at, (one, two) in enumerate(rows)]
        body += page(*lines, key=key, value=value, first=offset)
        offset += len(rows)
    at_once = PageDecoder("bytes", "bytes").decode("t", 0, body)
    one_by_one = PageDecoder(bytes, bytes).decode("t", 0, body)
    assert at_once == one_by_one


def test_a_record_tells_its_place_time_headers_and_epoch() -> None:
    headers = b'"timestamp":7,"headers":[{"key":"a","value":"AQ=="},{"key":"b","value":null}],'
    body = page(line(5, b'"x"', more=headers), line(6, b"1"), value="string", first=5)
    expected = [
        Record("t", 2, 5, 7, "create", [("a", b"\x01"), ("b", None)], None, "x", 3),
        Record("t", 2, 6, 1000, "append", [], None, 1, 3),
    ]
    decoded = PageDecoder().decode("t", 2, body)
    assert decoded.records == expected
    assert decoded.has_headers


@pytest.mark.parametrize(
    ("text", "value_format"),
    [(b"1e400", "json"), (b'"\\ud800"', "string"), (b'"*"', "binary"), (b'"a\xff"', "json")],
)
def test_one_unreadable_value_fails_no_other_record(text: bytes, value_format: str) -> None:
    good = b'"QQ=="'
    body = page(line(0, good), line(1, text), line(2, good), value=value_format)
    decoded = PageDecoder().decode("t", 0, body)
    assert decoded.unreadable == (1,)
    assert decoded.records[1].unreadable == ("value",)
    assert text in decoded.records[1].value
    expected = b"A" if value_format == "binary" else "QQ=="
    assert [decoded.records[at].value for at in (0, 2)] == [expected, expected]


def test_deserializers_get_the_bytes_view_and_may_fail() -> None:
    def fail_on_two(view: bytes) -> int:
        if view == b"2":
            raise ZeroDivisionError
        return int(view) * 10

    body = page(line(0, b"1", b'"k"'), line(1, b"2", b'"l"'), line(2, b"null", b"null"))
    decoded = PageDecoder(bytes.upper, fail_on_two).decode("t", 0, body)
    assert [one.key for one in decoded.records] == [b'"K"', b'"L"', None]
    assert [one.value for one in decoded.records] == [10, b"2", None]
    assert decoded.unreadable == (1,)


def test_bytes_views_of_each_format() -> None:
    assert bytes_view(b'{"a":1}', "json") == b'{"a":1}'
    assert bytes_view('"ä"'.encode(), "string") == "ä".encode()
    assert bytes_view(b'"AQI="', "binary") == b"\x01\x02"


@pytest.mark.parametrize("body", [line(0, b"1") + b"\n", page(line(0, b"1")) + line(1, b"1")])
def test_bytes_that_are_no_page_are_refused(body: bytes) -> None:
    if body.startswith(b'{"offset"'):
        with pytest.raises(ProtocolError):
            PageDecoder().decode("t", 0, body)
    else:
        with pytest.raises(ProtocolError, match="more lines"):
            PageDecoder().decode("t", 0, body)


# split values


def part(offset: int, name: str, number: int, of: list[bytes], **more: bytes) -> Record[Any, Any]:
    whole = b"".join(of)
    headers: list[tuple[str, bytes | None]] = [
        ("ql-part-id", name.encode()),
        ("ql-part", b"%d/%d" % (number, len(of))),
        ("ql-part-bytes", b"%d" % len(whole)),
        ("ql-part-crc32", more.get("crc", b"%d" % zlib.crc32(whole))),
        ("own", b"x"),
    ]
    return Record("t", 0, offset, 0, "append", headers, "k", of[number - 1], 1)


def plain(offset: int) -> Record[Any, Any]:
    return Record("t", 0, offset, 0, "append", [], None, offset, 1)


def test_parts_come_as_one_record_at_the_last_parts_offset() -> None:
    of = [b"ab", b"cd", b"e"]
    joiner = PartJoiner()
    found = joiner.join([plain(3), part(4, "a", 1, of), part(5, "a", 2, of)])
    assert found == [plain(3)]
    assert [joiner.first_needed(at) for at in (4, 5, 9)] == [4, 4, 4]
    assert joiner.join([part(5, "a", 2, of)]) == []  # the same part again
    (whole,) = joiner.join([part(6, "a", 3, of)])
    assert (whole.offset, whole.value, whole.key) == (6, b"abcde", "k")
    assert whole.headers == [("own", b"x")]
    assert [joiner.first_needed(at) for at in (4, 5, 6, 7)] == [4, 4, 4, 7]


def test_a_wrong_checksum_and_a_value_given_up_are_unreadable() -> None:
    of = [b"ab", b"cd"]
    joiner = PartJoiner()
    joiner.join([part(0, "a", 1, of)])
    (broken,) = joiner.join([part(1, "a", 2, of, crc=b"1")])
    assert broken.unreadable == ("value",)
    found = joiner.join([part(at, f"id{at}", 1, of) for at in range(10, 11 + UNFINISHED_MAX)])
    assert [(one.value, one.unreadable) for one in found] == [(b"ab", ("value",))]
    assert joiner.first_needed(100) == 11


def test_a_deserializer_gets_the_whole_value() -> None:
    of = [b"1", b"2"]
    assert [one.value for one in PartJoiner(int).join([part(0, "a", 1, of), part(1, "a", 2, of)])
    ] == [12]  # fmt: skip
