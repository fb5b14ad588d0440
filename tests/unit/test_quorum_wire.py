"""What a peer may say: no code, no surprise, no more than was asked for (defect 16, D11)."""

from __future__ import annotations

import contextlib
import pickle
import socket
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pysyncobj.poller import Poller
from typing_extensions import override

from raft_metadata.quorum.pysyncobj_internals import (
    PINNED_SHA256,
    CappedConnection,
    UnsupportedLibraryError,
    verify_library,
)
from raft_metadata.quorum.wire import (
    MAX_FRAME_BYTES,
    MAX_HELLO_BYTES,
    Codec,
    MalformedMessageError,
    checked,
    checked_hello,
)

WRITABLE = 2
STAMP = ["c", "d1", "d2"]
VOTE = {"type": "request_vote", "term": 1, "last_log_index": 1, "last_log_term": 1, "stamp": STAMP}
APPEND = {
    "type": "append_entries",
    "term": 1,
    "commit_index": 1,
    "prevLogIdx": 4,
    "prevLogTerm": 1,
    "entries": [[b"\0x", 5, 1]],
    "stamp": STAMP,
}
PART = {
    "type": "append_entries",
    "term": 1,
    "commit_index": 1,
    "serialized": [b"", True, False, 9],
    "stamp": STAMP,
}


class Evil:
    @override
    def __reduce__(self) -> Any:
        return Path.touch, (Path("/tmp/quorum-evil"),)


def test_a_pickle_is_no_message() -> None:
    for protocol in range(6):
        with pytest.raises(MalformedMessageError):
            checked(Codec.loads(pickle.dumps(Evil(), protocol)))
    assert not Path("/tmp/quorum-evil").exists()


@given(st.binary())
def test_any_bytes_are_refused_or_read(data: bytes) -> None:
    with contextlib.suppress(MalformedMessageError):
        checked(Codec.loads(data))


def test_good_messages_pass() -> None:
    for message in (VOTE, APPEND, PART, {**PART, "serialized": None}):
        decoded, stamp = checked(Codec.loads(Codec.dumps(message)))
        assert decoded["type"] == message["type"]
        assert stamp == ("c", "d1", "d2")


@pytest.mark.parametrize(
    "message",
    [
        None,
        [],
        {},
        {**VOTE, "type": "apply_command"},
        {**VOTE, "term": "1"},
        {**VOTE, "term": True},
        {**VOTE, "term": -1},
        {**VOTE, "stamp": ["c", "d1"]},
        {**VOTE, "stamp": ["c", "d1", 2]},
        {key: value for key, value in VOTE.items() if key != "last_log_term"},
        {**APPEND, "entries": [[b"\0x", 6, 1]]},
        {**APPEND, "entries": [[b"", 5, 1]]},
        {**APPEND, "entries": [["x", 5, 1]]},
        {**APPEND, "entries": [[b"\0x", 5]]},
        {**APPEND, "entries": None},
        {**APPEND, "transmission": "start", "data": b""},
        {**APPEND, "serialized": [b"", True, True, 1]},
        {**APPEND, "prevLogIdx": None},
        {**PART, "serialized": [b"", 1, 1, 1]},
        {**PART, "serialized": [b"", True, True]},
        {**PART, "entries": []},
    ],
)
def test_a_message_that_does_not_fit_is_refused_whole(message: object) -> None:
    with pytest.raises(MalformedMessageError):
        checked(Codec.loads(Codec.dumps(message)))


@pytest.mark.parametrize(
    "message",
    [
        None,
        "voter-0000000001:0",
        {"type": "hello"},
        {"type": "hello", "protocol": 1, "address": 1, "cluster_id": "c", "directory_id": "d"},
    ],
)
def test_a_hello_that_does_not_fit_is_refused(message: object) -> None:
    with pytest.raises(MalformedMessageError):
        checked_hello(message)


# ---------------------------------------------------------------- one connection


class NoPoller(Poller):  # type: ignore[misc]  # untyped library
    def __init__(self) -> None:
        self.callback: Any = None
        self.mask = 0

    def subscribe(self, descr: int, callback: Any, mask: int) -> None:
        self.callback, self.mask = callback, mask

    def unsubscribe(self, descr: int) -> None:
        pass


class Pair:
    """A connection of ours and the bare socket at its other end."""

    def __init__(self) -> None:
        self.peer, mine = socket.socketpair()
        mine.setblocking(False)
        self.heard: list[object] = []
        self.poller = NoPoller()
        self.connection = CappedConnection(
            self.poller, socket=mine, onMessageReceived=self.heard.append, timeout=60
        )

    def say(self, data: bytes) -> None:
        self.peer.sendall(data)
        self.poller.callback(self.connection.fileno(), 1)

    def close(self) -> None:
        self.peer.close()
        self.connection.disconnect()


@pytest.fixture
def pair() -> Any:
    both = Pair()
    yield both
    both.close()


def framed(message: object) -> bytes:
    data = Codec.dumps(message)
    return struct.pack("<I", len(data)) + data


def test_frames_are_read_whole_and_in_pieces(pair: Pair) -> None:
    data = framed(VOTE) + framed({"type": "ping"})
    pair.say(data[:3])
    pair.say(data[3:20])
    assert pair.heard == []
    pair.say(data[20:])
    assert pair.heard == [VOTE, {"type": "ping"}]


@pytest.mark.parametrize("length", [MAX_HELLO_BYTES + 1, 2**31 - 1, 2**32 - 1])
def test_a_frame_over_the_limit_is_refused_before_it_is_read(pair: Pair, length: int) -> None:
    pair.say(struct.pack("<I", length))
    assert pair.connection.fileno() is None
    assert pair.heard == []


def test_a_pickle_that_runs_code_closes_the_connection(pair: Pair) -> None:
    data = pickle.dumps(Evil(), 2)
    pair.say(struct.pack("<I", len(data)) + data)
    assert pair.connection.fileno() is None
    assert pair.heard == []
    assert not Path("/tmp/quorum-evil").exists()


def test_a_known_voter_may_say_more(pair: Pair) -> None:
    pair.connection.max_frame_bytes = MAX_FRAME_BYTES
    large = {"type": "x", "data": b"." * 100_000}
    data = framed(large)
    for start in range(0, len(data), 30_000):
        pair.say(data[start : start + 30_000])
    assert pair.heard == [large]


def test_defect_15_what_the_socket_did_not_take_is_sent_when_it_can(pair: Pair) -> None:
    pair.poller.callback(pair.connection.fileno(), WRITABLE)
    assert not pair.poller.mask & WRITABLE  # nothing to send: it asks no more
    pair.connection.send(b"x" * 4_000_000)
    left = pair.connection.getSendBufferSize()
    assert left > 0
    received = 0
    pair.peer.setblocking(False)
    while received < 4_000_000:
        try:
            received += len(pair.peer.recv(1 << 20))
        except BlockingIOError:
            assert pair.poller.mask & WRITABLE
            pair.poller.callback(pair.connection.fileno(), WRITABLE)
    assert pair.connection.getSendBufferSize() == 0


# ---------------------------------------------------------------- the library itself


def test_the_installed_library_is_the_one_that_was_read() -> None:
    verify_library()


def test_a_changed_library_is_refused_with_the_file_and_the_cure(tmp_path: Path) -> None:
    import pysyncobj

    source = Path(pysyncobj.__file__).parent
    for name in PINNED_SHA256:
        (tmp_path / name).write_bytes((source / name).read_bytes())
    verify_library(tmp_path)
    with (tmp_path / "syncobj.py").open("a") as file:
        file.write("\n")
    with pytest.raises(UnsupportedLibraryError, match=r"syncobj\.py was changed.*reinstall"):
        verify_library(tmp_path)


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raft_metadata.quorum.pysyncobj_internals.VERSION", "0.3.18")
    with pytest.raises(UnsupportedLibraryError, match=r"0\.3\.18 is installed"):
        verify_library()
