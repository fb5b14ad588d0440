"""What a peer may say: no code, no surprise, no more than was asked for (defect 16, D11)."""

from __future__ import annotations

import contextlib
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from raft_metadata.quorum.pysyncobj_internals import (
    PINNED_SHA256,
    UnsupportedLibraryError,
    verify_library,
)
from raft_metadata.quorum.wire import (
    Codec,
    MalformedMessageError,
    hello,
    validate_hello,
    validate_message,
)

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
            validate_message(Codec.loads(pickle.dumps(Evil(), protocol)))
    assert not Path("/tmp/quorum-evil").exists()


@given(st.binary())
def test_any_bytes_are_refused_or_read(data: bytes) -> None:
    with contextlib.suppress(MalformedMessageError):
        validate_message(Codec.loads(data))


def test_good_messages_pass() -> None:
    for message in (VOTE, APPEND, PART, {**PART, "serialized": None}):
        decoded, stamp = validate_message(Codec.loads(Codec.dumps(message)))
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
        validate_message(Codec.loads(Codec.dumps(message)))


@pytest.mark.parametrize(
    "message",
    [
        None,
        "voter-0000000001:0",
        {"type": "hello"},
        {"type": "hello", "protocol": 1, "address": "a", "cluster_id": "c", "directory_id": "d"},
        {**hello(1, "c", "d"), "node_id": "1"},
        {**hello(1, "c", "d"), "node_id": -1},
        {**hello(1, "c", "d"), "node_id": True},
        {**hello(1, "c", "d"), "cluster_id": None},
        {**hello(1, "c", "d"), "protocol": 1},
    ],
)
def test_a_hello_that_does_not_fit_is_refused(message: object) -> None:
    with pytest.raises(MalformedMessageError):
        validate_hello(message)


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
    expected = r"0\.3\.18 is installed, expected exactly 0\.3\.17"
    with pytest.raises(UnsupportedLibraryError, match=expected):
        verify_library()
