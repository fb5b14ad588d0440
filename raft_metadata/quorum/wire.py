"""Messages between voters: the codec and the shape of every message. Pure.

MessagePack, never pickle: bytes from a socket must not be able to name code (D11). `transport.py`
checks a whole message with `checked` before any of it is used, and closes the connection if it does
not fit; `peer_links.py` does so for the hello.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

import msgspec

from raft_metadata.quorum.data_dir import Stamp

PROTOCOL = 2
"""Version 2: both ends send a hello, and a voter is identified by its node id."""
MAX_HELLO_BYTES = 1024
"""Largest frame from a peer whose hello is not accepted yet."""
MAX_FRAME_BYTES = 16 * 1024 * 1024
"""Largest frame from a voter. The largest message is an append of just over 1 MiB of entries."""

Message = dict[str, Any]
"""A message as pysyncobj defines it: a dict with a "type"."""

_STAMP_LENGTH = 3
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder()


class MalformedMessageError(Exception):
    """Bytes from a peer that are not a valid message."""


class Codec:
    """Replacement of the module ``pickle`` where pysyncobj uses it."""

    @staticmethod
    def dumps(value: object, _protocol: int | None = None) -> bytes:
        """Encode None, bool, int, str, bytes, list, tuple and dict; raise TypeError otherwise."""
        return _encoder.encode(value)

    @staticmethod
    def loads(data: bytes | memoryview) -> Any:
        """Decode MessagePack; raise MalformedMessageError for anything else."""
        try:
            return _decoder.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise MalformedMessageError(str(error)) from error


def hello(node_id: int, cluster_id: str, directory_id: str) -> Message:
    """Return the first message of a connection, in either direction."""
    return {
        "type": "hello",
        "protocol": PROTOCOL,
        "node_id": node_id,
        "cluster_id": cluster_id,
        "directory_id": directory_id,
    }


def validate_hello(message: object) -> tuple[int, str, str]:
    """Return (node id, cluster id, directory id) of a hello, or raise MalformedMessageError."""
    if not isinstance(message, dict) or message.get("type") != "hello":
        raise MalformedMessageError("no hello")
    if message.get("protocol") != PROTOCOL:
        text = f"protocol {message.get('protocol')!r}, expected {PROTOCOL}"
        raise MalformedMessageError(text)
    node_id = message.get("node_id")
    cluster_id = message.get("cluster_id")
    directory_id = message.get("directory_id")
    if not (_is_number(node_id) and isinstance(cluster_id, str) and isinstance(directory_id, str)):
        raise MalformedMessageError("hello without identity")
    return node_id, cluster_id, directory_id


def _is_number(value: object) -> TypeGuard[int]:
    return type(value) is int and value >= 0


def _flag(value: object) -> bool:
    return type(value) is bool


_SHAPES: Mapping[str, Mapping[str, Callable[[object], bool]]] = {
    "append_entries": {"term": _is_number, "commit_index": _is_number},
    "next_node_idx": {
        "term": _is_number,
        "next_node_idx": _is_number,
        "reset": _flag,
        "success": _flag,
    },
    "request_vote": {"term": _is_number, "last_log_index": _is_number, "last_log_term": _is_number},
    "response_vote": {"term": _is_number},
    "pre_vote": {"term": _is_number, "last_log_index": _is_number, "last_log_term": _is_number},
    "pre_vote_answer": {"term": _is_number, "granted": _flag},
    "term_query": {},
    "term_answer": {"term": _is_number},
    "timeout_now": {"term": _is_number},
    "ping": {"feature_level_max": _is_number},
}
"""Every message that a voter accepts, with its checked fields. Absent, hence refused: forwarded
commands, admin commands, and parts of an entry too large for one message ("transmission")."""


def validate_message(value: object) -> tuple[Message, Stamp]:
    """Return a message and its stamp after checking every field that will be read.

    Raises MalformedMessageError.
    """
    if not isinstance(value, dict):
        raise MalformedMessageError("not a message")
    message: Message = value
    shape = _SHAPES.get(str(message.get("type")))
    if shape is None:
        text = f"unknown type {message.get('type')!r}"
        raise MalformedMessageError(text)
    for name, fits in shape.items():
        if not fits(message.get(name)):
            text = f"{message['type']}.{name} is {message.get(name)!r}"
            raise MalformedMessageError(text)
    if message["type"] == "append_entries":
        _check_append(message)
    stamp = message.get("stamp")
    if not (
        isinstance(stamp, list)
        and len(stamp) == _STAMP_LENGTH
        and all(isinstance(part, str) for part in stamp)
    ):
        raise MalformedMessageError("no stamp")
    return message, (stamp[0], stamp[1], stamp[2])


def _check_append(message: Message) -> None:
    if "transmission" in message:
        raise MalformedMessageError("an entry that is split")
    if "prevLogIdx" in message:
        fits = _is_number(message["prevLogIdx"]) and _is_number(message.get("prevLogTerm"))
        if not fits or "serialized" in message or not _entries_fit(message):
            raise MalformedMessageError("append_entries with bad entries")
        message["entries"] = [tuple(entry) for entry in message["entries"]]
        return
    if "entries" in message:
        raise MalformedMessageError("entries without an index")
    part = message.get("serialized")
    if part is None:
        return
    # (bytes, first, last, index of the snapshot)
    if not isinstance(part, list) or [type(field) for field in part] != [bytes, bool, bool, int]:
        raise MalformedMessageError("bad part of a snapshot")


def _entries_fit(message: Message) -> bool:
    entries = message.get("entries")
    if not isinstance(entries, list):
        return False
    index = message["prevLogIdx"]
    for entry in entries:
        index += 1
        if not isinstance(entry, list) or [type(field) for field in entry] != [bytes, int, int]:
            return False
        if entry[1] != index or entry[2] < 0 or not entry[0]:
            return False
    return True
