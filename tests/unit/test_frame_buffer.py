"""The receive buffer of streams and of connections between voters."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from raft_metadata.common.frame_buffer import FrameBuffer, FrameTooLargeError

PREFIX = struct.Struct("<IB")
USUAL, KEPT, LIMIT = 64, 256, 1_000


class Received(FrameBuffer):
    """A buffer that remembers the frames that it handed over."""

    def __init__(self) -> None:
        super().__init__(PREFIX, max_frame_bytes=LIMIT, usual_bytes=USUAL, kept_bytes=KEPT)
        self.found: list[bytes] = []

    def note(self, prefix: tuple[int, ...], body: memoryview) -> None:
        assert prefix == (len(body), 7)
        self.found.append(bytes(body))


def frame(body: bytes, kind: int = 7) -> bytes:
    return PREFIX.pack(len(body), kind) + body


def fill(one: FrameBuffer, data: bytes) -> bytes:
    """Receive what fits; return the rest."""
    room = one.room()
    count = min(len(room), len(data))
    room[:count] = data[:count]
    one.filled += count
    return data[count:]


@given(st.lists(st.binary(max_size=LIMIT)), st.integers(1, 400))
def test_every_frame_comes_out_once_and_in_order(bodies: list[bytes], step: int) -> None:
    one = Received()
    data = b"".join(map(frame, bodies))
    while data:
        rest = fill(one, data[:step])
        data = rest + data[step:]
        one.take(one.note)
    assert one.found == bodies
    assert one.filled == 0
    assert one.size <= max(USUAL, KEPT)


def test_a_limit_of_frames_leaves_the_rest_for_the_next_turn() -> None:
    one = Received()
    assert not fill(one, frame(b"a") + frame(b"b") + frame(b"c")[:-1])
    assert (one.take(one.note, 1), one.found) == (True, [b"a"])
    assert (one.take(one.note, 2), one.found) == (False, [b"a", b"b"])
    assert not fill(one, b"c")
    assert (one.take(one.note, 2), one.found) == (False, [b"a", b"b", b"c"])


def test_a_frame_over_the_limit_is_refused_before_its_body_comes() -> None:
    one = Received()
    fill(one, frame(b"sound") + PREFIX.pack(LIMIT + 1, 7))
    with pytest.raises(FrameTooLargeError, match="frame of 1001 bytes, at most 1000 allowed"):
        one.take(one.note)
    assert one.found == [b"sound"]


def test_memory_grows_with_what_came_and_not_with_what_was_announced() -> None:
    one = Received()
    data = fill(one, frame(b"x" * LIMIT))
    one.take(one.note)
    assert (one.found, one.size) == ([], USUAL)
    sizes = set()
    while data:
        data = fill(one, data)
        sizes.add(one.size)
    assert max(sizes) == 1_024
    one.take(one.note)
    assert one.found == [b"x" * LIMIT]
    assert one.size == USUAL, "a large buffer is given up"


def test_limits_may_change_from_one_frame_to_the_next() -> None:
    """A voter is a stranger until its hello, which its first message may follow at once."""

    class Introduced(Received):
        @override
        def note(self, prefix: tuple[int, ...], body: memoryview) -> None:
            super().note(prefix, body)
            self.max_frame_bytes, self.usual_bytes = LIMIT, 2 * USUAL

    one = Introduced()
    one.max_frame_bytes = 5
    fill(one, frame(b"hello") + frame(b"a first message"))
    one.take(one.note)
    assert one.found == [b"hello", b"a first message"]
    assert one.size == 2 * USUAL
