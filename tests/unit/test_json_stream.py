"""Objects of a stream: the same however it is cut, and an end with a reason where there is none."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_api.contract.json_stream import JsonStreamError, ObjectSplitter

LIMIT_BYTES = 1_000_000
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=3)
SPACES = st.text(" \t\r\n", max_size=3)


def all_of(pieces: list[bytes], most: int = 1_000) -> list[bytes]:
    splitter = ObjectSplitter(LIMIT_BYTES)
    found: list[bytes] = []
    for piece in pieces:
        splitter.feed(piece)
        while texts := splitter.take(most):
            assert len(texts) <= most
            found += texts
    splitter.check_end()
    return found


@given(
    objects=st.lists(st.tuples(OBJECTS, SPACES, st.booleans()), max_size=5),
    data=st.data(),
    most=st.integers(1, 3),
)
def test_any_cut_of_a_stream_gives_the_same_objects(objects, data, most):
    texts = [json.dumps(each, ensure_ascii=ascii_only).encode() for each, _, ascii_only in objects]
    spaces = [space.encode() for _, space, _ in objects]
    stream = b"".join(text + space for text, space in zip(texts, spaces, strict=True))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    ends = [0, *cuts, len(stream)]
    pieces = [stream[a:b] for a, b in pairwise(ends)]
    assert all_of(pieces, most) == texts


def test_a_stream_cut_at_every_byte_and_sent_byte_by_byte():
    texts = [
        rb'{"a":"}{\"\\"}',
        b"{}",
        '{"key":{"data":"käß€😀"}}'.encode(),
        rb'{"v":[{"x":"\u007b\\"},{"y":{}}],"e":""}',
    ]
    stream = b"".join(texts)
    for cut in range(len(stream) + 1):
        assert all_of([stream[:cut], stream[cut:]]) == texts
    assert all_of([stream[at : at + 1] for at in range(len(stream))]) == texts


@pytest.mark.parametrize("wrong", [b"[1]", b'"a"', b"1", b",{}", b"}", b"\xff", b"\0"])
def test_what_is_no_object_ends_the_stream_behind_the_objects_before_it(wrong):
    splitter = ObjectSplitter(LIMIT_BYTES)
    splitter.feed(b'{"a":1} {}' + wrong)
    assert splitter.take(10) == [b'{"a":1}', b"{}"]
    for _ in range(2):
        with pytest.raises(JsonStreamError, match=r"expected an object that begins with '{', got"):
            splitter.take(10)


@pytest.mark.parametrize("rest", [b"{", b'{"a', b'{"a\\', b'{"a":{}', b'{"a":"}'])
def test_a_stream_may_not_end_inside_an_object(rest):
    splitter = ObjectSplitter(LIMIT_BYTES)
    splitter.feed(b"{}" + rest)
    assert splitter.take(10) == [b"{}"]
    assert splitter.take(10) == []
    with pytest.raises(JsonStreamError, match="ends inside an object"):
        splitter.check_end()


def test_an_object_over_the_limit_ends_the_stream_before_it_is_whole():
    splitter = ObjectSplitter(20)
    splitter.feed(b'{"a":"12345678901"}')
    assert len(splitter.take(1)) == 1
    splitter.feed(b'{"a":"')
    for _ in range(14):
        splitter.feed(b"x")
        assert splitter.take(1) == []
    splitter.feed(b"x")
    with pytest.raises(JsonStreamError, match="max_body_bytes=20") as raised:
        splitter.take(1)
    assert raised.value.is_too_large


def test_a_long_object_in_many_pieces_is_looked_at_once():
    """A scan from the object's start for each piece would take minutes here."""
    splitter = ObjectSplitter(64_000_000)
    splitter.feed(b'{"a":"')
    piece = b"x\\n{" * 4_000
    for _ in range(2_000):
        splitter.feed(piece)
        assert splitter.take(1) == []
    splitter.feed(b'"}')
    [text] = splitter.take(1)
    assert len(text) == 8 + 2_000 * len(piece)
