"""Doors into `http_api`: its listeners, its connections between nodes, and its client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from http_api.peer import controller_link
from http_api.peer.heartbeat_thread import HeartbeatThread
from http_api.server.lane_connection import LaneConnection, LaneState, Phase
from raft_metadata.common.sequenced_sender import SequencedSender

if TYPE_CHECKING:
    import asyncio
    import http.client
    from collections.abc import Callable, Iterator, Mapping

    import pytest
    from aiohttp.abc import AbstractStreamWriter

    from http_api.client.sdk.producer import Producer
    from http_api.client.sdk.producer_core import ProducerCore
    from http_api.client.transport import Client
    from http_api.peer.controller_channel import HttpControllerChannel
    from http_api.peer.frames import FrameReader
    from http_api.peer.peer_channel import TcpPeerChannel
    from http_api.server.fast_lane import FastLane
    from raft_metadata.common.errors import KafkaError
    from raft_metadata.common.ids import BrokerId, NodeId


# ---------------------------------------------------------------- between nodes


def believed_active(channel: HttpControllerChannel) -> NodeId:
    """Return the controller that a broker's next command is sent to first."""
    return channel._active


def heartbeat_refusals(channel: HttpControllerChannel) -> Mapping[NodeId, KafkaError]:
    """Return the refusals of the last heartbeat, by controller."""
    return channel._refusals


def buffered_bytes(reader: FrameReader) -> int:
    """Return the bytes of the incomplete frame."""
    return len(reader._buffer)


def set_believed_active(channel: HttpControllerChannel, controller: NodeId) -> None:
    """Let a broker's next command go to this controller first, as after its last answer."""
    channel._active = controller


def break_judgement(monkeypatch: pytest.MonkeyPatch, broken: Callable[..., Any]) -> None:
    """Plant a bug in the thread of heartbeats, whose end must end the broker."""
    monkeypatch.setattr(HeartbeatThread, "_judge", broken)


def call_before_commands(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[AbstractStreamWriter], None]
) -> None:
    """Call ``act`` before the body of a command is written: a connection may close just then."""
    command = controller_link._Command
    write = command.write_with_length

    async def write_later(self: Any, writer: AbstractStreamWriter, length: int | None) -> None:
        act(writer)
        await write(self, writer, length)

    monkeypatch.setattr(command, "write_with_length", write_later)


def transport_to(peers: TcpPeerChannel, broker: BrokerId) -> asyncio.Transport:
    """Return the transport to a broker, to pause its reading as a slow process does."""
    connection = peers._links[broker].connection
    assert connection is not None
    assert connection._transport is not None
    return connection._transport


# ---------------------------------------------------------------- the fast lane


def note_unparsed_requests(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return a list that grows by each request taken without the parser: answers are the same."""
    taken: list[bytes] = []
    append = LaneConnection._append_known

    def noted(self: LaneConnection, lane: Any, known: Any, pieces: Any, body: bytes) -> bool:
        done = append(self, lane, known, pieces, body)
        if done:
            taken.append(b"".join(pieces))
        return done

    monkeypatch.setattr(LaneConnection, "_append_known", noted)
    return taken


def texts_kept_by(lane: FastLane) -> Iterator[str | bytes]:
    """Yield what the lane remembers of clients' texts: their sum must stay bounded."""
    for kept in (lane._paths, lane._roles, lane._replies, lane._zstd):
        yield from (key for key in kept if key is not None)


def note_lane_transitions(monkeypatch: pytest.MonkeyPatch) -> dict[object, set[object]]:
    """Return a dict that grows by each change of a connection's state, to compare with a table."""
    seen: dict[object, set[object]] = {}

    def kind(state: LaneState) -> object:
        return state if isinstance(state, Phase) else type(state)

    slot: Any = LaneConnection.__dict__["_lane_state"]

    def noted(self: LaneConnection, state: LaneState) -> None:
        try:
            old = slot.__get__(self)
        except AttributeError:
            old = state
        if old is not state:
            seen.setdefault(kind(old), set()).add(kind(state))
        slot.__set__(self, state)

    watched = property(slot.__get__, noted)
    monkeypatch.setattr(LaneConnection, "_lane_state", watched, raising=False)
    return seen


# ---------------------------------------------------------------- the client


def kept_connection(client: Client, url: str) -> http.client.HTTPConnection:
    """Return the connection that a client keeps for its next request to this address."""
    return client._connections[url].http


def set_flush(
    monkeypatch: pytest.MonkeyPatch,
    producer: Producer,
    flush: Callable[[float | None], int],
) -> None:
    """Have a producer flush in another way when it is closed."""
    monkeypatch.setattr(producer, "_flush", flush)


def sender_of(core: ProducerCore, topic: str, partition: int) -> SequencedSender:
    """Return the sender of one partition: tests let it come near its last producer epoch."""
    sender = core._queues[topic, partition].sender
    assert isinstance(sender, SequencedSender)
    return sender


def set_producer_epoch(sender: SequencedSender, epoch: int, *, sequence: int | None = None) -> None:
    """Let a sender come near the last epoch of its producer id, which would take 32,767 losses."""
    sender._epoch = epoch
    if sequence is not None:
        sender._sequence = sequence
