"""The bytes between brokers: every cut gives the same frames, no bytes give anything else."""

from __future__ import annotations

import struct
import tracemalloc

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_api.peer.connections import split_address
from http_api.peer.frames import (
    MAX_HELLO_BYTES,
    MAX_MESSAGE_CHARACTERS,
    Answer,
    Frame,
    FrameReader,
    FrameType,
    Hello,
    Plane,
    ProtocolViolationError,
    Refusal,
    Request,
    answer_head,
    body_of,
    decode_hello,
    decode_welcome,
    encode_hello,
    encode_refusal,
    encode_welcome,
    error_from_body,
    request_head,
    take_hello,
)
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import BrokerId, ClusterId
from tests.support.doors.http import buffered_bytes

EVERY_TYPE = frozenset(FrameType)
U64 = st.integers(0, 2**64 - 1)
bodies = st.binary(max_size=300)
errors = st.builds(
    KafkaError,
    st.sampled_from(list(ErrorCode)),
    st.text(max_size=50),
    outcome=st.sampled_from(list(Outcome)),
)
frames = st.one_of(
    st.builds(Request, U64, st.integers(0, 65_535), st.integers(0, 2**32 - 1), bodies),
    st.builds(Answer, U64, bodies),
    st.builds(Refusal, U64, errors),
)
hellos = st.builds(
    Hello,
    cluster_id=st.text(max_size=40).map(ClusterId),
    from_broker=st.integers(0, 2**31).map(BrokerId),
    to_broker=st.integers(0, 2**31).map(BrokerId),
    plane=st.sampled_from(list(Plane)),
)


def encode(frame: Frame) -> bytes:
    match frame:
        case Request():
            head = request_head(frame.request_id, frame.kind, frame.timeout_ms, len(frame.body))
            return head + frame.body
        case Answer():
            return answer_head(frame.request_id, len(frame.body)) + frame.body
        case Refusal():
            return encode_refusal(frame.request_id, frame.error)


def facts(frame: Frame) -> object:
    """Errors don't compare; what they carry does."""
    if isinstance(frame, Refusal):
        error = frame.error
        return frame.request_id, error.code, error.message, error.outcome
    return frame


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted({cut % (len(data) + 1) for cut in cuts} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@given(st.lists(frames, max_size=6), st.lists(st.integers(0, 10_000), max_size=12))
def test_frames_come_out_as_they_went_in_however_they_are_cut(
    sent: list[Frame], cuts: list[int]
) -> None:
    reader = FrameReader(EVERY_TYPE)
    got: list[Frame] = []
    for piece in pieces(b"".join(map(encode, sent)), cuts):
        got += reader.feed(piece)
    assert [facts(each) for each in got] == [facts(each) for each in sent]
    assert buffered_bytes(reader) == 0


@given(st.lists(st.binary(max_size=100), max_size=10))
def test_no_bytes_make_the_reader_fail_in_another_way(noise: list[bytes]) -> None:
    reader = FrameReader(EVERY_TYPE, max_frame_bytes=64)
    try:
        for piece in noise:
            reader.feed(piece)
            assert buffered_bytes(reader) <= 64 + 4
    except ProtocolViolationError:
        pass


@pytest.mark.parametrize("length", [1_001, 2**31, 2**32 - 1])
def test_a_length_over_the_limit_is_refused_before_anything_is_kept(length: int) -> None:
    reader = FrameReader(EVERY_TYPE, max_frame_bytes=1_000)
    with pytest.raises(ProtocolViolationError, match=str(length)):
        reader.feed(struct.pack(">IBQ", length, FrameType.ANSWER, 1))


def test_an_announced_length_allocates_nothing() -> None:
    reader = FrameReader(EVERY_TYPE)
    tracemalloc.start()
    try:
        reader.feed(struct.pack(">IBQ", 70_000_000, FrameType.ANSWER, 1) + b"x" * 100)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", [FrameType.ANSWER, FrameType.REFUSAL, 0, 4, 255])
def test_a_side_takes_only_the_frames_meant_for_it(kind: int) -> None:
    reader = FrameReader(frozenset({FrameType.REQUEST}))
    with pytest.raises(ProtocolViolationError):
        reader.feed(struct.pack(">IBQ", 20, kind, 1))


def test_time_outs_fit_their_field() -> None:
    for timeout_ms, carried in ((-5, 0), (2**40, 2**32 - 1)):
        [frame] = FrameReader(EVERY_TYPE).feed(request_head(1, 2, timeout_ms, 0))
        assert isinstance(frame, Request)
        assert frame.timeout_ms == carried


@given(hellos, bodies, st.integers(0, 400))
def test_a_hello_is_taken_off_the_front_and_the_rest_stays(
    hello: Hello, rest: bytes, cut: int
) -> None:
    data = encode_hello(hello)
    received = bytearray(data[: min(cut, len(data) - 1)])
    assert take_hello(received) is None
    received = bytearray(data + rest)
    body = take_hello(received)
    assert body is not None
    assert decode_hello(body) == hello
    assert bytes(received) == rest


@given(st.binary(max_size=200), st.booleans())
def test_no_bytes_make_a_hello_fail_in_another_way(noise: bytes, with_magic: bool) -> None:
    received = bytearray(b"QLPP" + noise if with_magic else noise)
    try:
        body = take_hello(received)
        if body is not None:
            decode_hello(body)
    except ProtocolViolationError:
        pass


def test_a_stranger_is_known_by_its_first_bytes() -> None:
    with pytest.raises(ProtocolViolationError):
        take_hello(bytearray(b"G"))
    with pytest.raises(ProtocolViolationError):
        take_hello(bytearray(b"QLPP" + struct.pack(">H", MAX_HELLO_BYTES + 1)))


@given(errors)
def test_errors_keep_code_message_and_outcome(error: KafkaError) -> None:
    received = bytearray(encode_welcome(error))
    body = take_hello(received)
    assert body is not None
    again = decode_welcome(body)
    assert again is not None
    assert (again.code, again.message, again.outcome) == (
        error.code,
        error.message,
        error.outcome,
    )


def test_a_newer_nodes_error_code_is_unknown_but_its_outcome_counts() -> None:
    body = body_of(KafkaError(ErrorCode.NOT_CONTROLLER)) | {"error": 31_999}
    error = error_from_body(orjson.loads(orjson.dumps(body)))
    assert error.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert error.outcome is Outcome.NOT_WRITTEN


@pytest.mark.parametrize(
    "body", [None, [], "x", {}, {"error": "41", "message": "m", "outcome": "unknown"}]
)
def test_a_body_that_is_no_error_is_not_taken_for_one(body: object) -> None:
    with pytest.raises(ValueError, match="expected an object"):
        error_from_body(body)


def test_the_longest_error_fits_a_hello() -> None:
    for text in ("x", "\x01", "é", "🛫", "\udc80"):
        error = KafkaError(ErrorCode.INVALID_REQUEST, text * 1_000_000)
        received = bytearray(encode_welcome(error))
        body = take_hello(received)
        assert body is not None
        again = decode_welcome(body)
        assert again is not None
        assert len(again.message) == MAX_MESSAGE_CHARACTERS


@pytest.mark.parametrize("address", ["", "host", ":80", "host:", "host:x", "host:70000", "h:²"])
def test_an_address_that_is_none_is_named(address: str) -> None:
    with pytest.raises(KafkaError, match="host:port"):
        split_address(address)


def test_addresses() -> None:
    assert split_address("127.0.0.1:80") == ("127.0.0.1", 80)
    assert split_address("[::1]:80") == ("::1", 80)
