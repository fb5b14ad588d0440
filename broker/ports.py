"""Ports of the broker to the network. ``http_api.peer`` implements these Protocols.

A broker sends commands and metadata fetches to controllers through `ControllerChannel`, heartbeats
through `Heartbeats`, and requests to other brokers through `PeerChannel`. It serves the requests of
other brokers as `PeerServices`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, TypeVar

from raft_metadata.common.errors import KafkaError
from raft_metadata.common.ids import BrokerId, NodeId
from raft_metadata.records.commands import (
    A,
    BrokerHeartbeat,
    Command,
    FetchMetadata,
    FetchMetadataAnswer,
    HeartbeatAnswer,
)
from raft_metadata.records.quorum_view import ControllerState

_Stream = TypeVar("_Stream", bound=asyncio.BaseProtocol)


class Heartbeats(Protocol):
    """Heartbeats sent on a thread of their own, while the event loop progresses (rule M7)."""

    def set_content(self, command: BrokerHeartbeat, *, at_once: bool) -> None:
        """Set the content of further heartbeats; send the next one now with ``at_once``.

        Called on the event loop, many times within a session timeout: each call proves that the
        loop progresses, and without such proof no heartbeat is sent.
        """
        ...


class ControllerChannel(Protocol):
    """Commands to the active controller, wherever it is; reads from any controller."""

    @property
    def controllers(self) -> tuple[NodeId, ...]:
        """All controllers of the config file."""
        ...

    async def execute(self, command: Command[A], timeout_ms: int | None = None) -> A:
        """Find the active controller and have it execute a command; return the answer.

        At most ``timeout_ms``, by default the channel's own time-out. NOT_CONTROLLER means that the
        command was surely not appended. An uncertain result is raised as OUTCOME_UNKNOWN, unless
        the command's row in `COMMANDS` allows a repeat (rule F1). An error for `AlterPartitions`
        applies to each of its ISR changes.
        """
        ...

    def heartbeats(
        self, on_answer: Callable[[HeartbeatAnswer, int], None]
    ) -> AbstractContextManager[Heartbeats]:
        """Send heartbeats of one registration to every controller until the block is left.

        Each answer is passed to ``on_answer(answer, sent_ms)`` on the event loop when it arrives,
        with the monotonic time at which its heartbeat was sent. It does not wait for the other
        controllers' answers, because it may prove the broker's session.
        """
        ...

    async def fetch_metadata(self, source: NodeId, request: FetchMetadata) -> FetchMetadataAnswer:
        """Fetch metadata from one controller by a long poll.

        Raises KafkaError NETWORK_EXCEPTION if the controller can't be reached.
        """
        ...

    async def describe_quorum(self, source: NodeId, timeout_ms: int) -> ControllerState:
        """Return one controller's view of the quorum.

        Raises KafkaError NETWORK_EXCEPTION or REQUEST_TIMED_OUT.
        """
        ...

    def controller_url(self, controller: NodeId) -> str:
        """Return the address of a controller for operators: ``http://host:port``, as advertised."""
        ...


Answered = Callable[[bytes, KafkaError | None], None]
"""Callback of a request: takes the body of the answer, or an empty body and the error. Called
exactly once; it must not raise."""


class PeerRequest(NamedTuple):
    """A request to another broker with the callback that takes its answer."""

    kind: int
    body: bytes
    timeout_ms: int
    answered: Answered


class PeerCall(Protocol):
    """A posted request that has no answer yet."""

    def hasten(self, left_ms: int) -> None:
        """Shorten the wait to at most ``left_ms``; then the outcome is unknown."""
        ...


class PeerChannel(Protocol):
    """Requests to other brokers over their peer listeners; each is sent at most once.

    ``call`` raises NETWORK_EXCEPTION: with outcome NOT_WRITTEN if the request was surely not
    delivered (there was no connection), with UNKNOWN if it may have been.
    """

    async def call(
        self, broker_id: BrokerId, peer: str, kind: int, body: bytes, timeout_ms: int
    ) -> bytes:
        """Send one request frame to the broker advertised at ``peer`` and await its answer."""
        ...

    def post(
        self, broker_id: BrokerId, peer: str, requests: Sequence[PeerRequest]
    ) -> Sequence[PeerCall] | None:
        """Send many requests in one write and return their calls, without a task for each.

        Each request is answered separately, and never before this returns. Returns None and sends
        nothing if no connection can take all of them now; `call` then raises the reason.
        """
        ...

    async def open_stream(
        self,
        broker_id: BrokerId,
        peer: str,
        factory: Callable[[], _Stream],
    ) -> tuple[asyncio.Transport, _Stream]:
        """Dial a broker's peer listener for a replication stream; return the connection."""
        ...


class PeerServices(Protocol):
    """Services that the peer listener of a broker offers to other brokers."""

    async def answer(self, kind: int, body: bytes, timeout_ms: int) -> bytes:
        """Return the answer to a request frame.

        A `KafkaError` that is raised is sent to the requesting broker with its code and outcome.
        """
        ...

    def answer_directly(self, kind: int, body: bytes, answered: Answered) -> bool:
        """Answer a request without a task; return False if this kind needs one.

        If it returns False it has done nothing. ``answered`` is called exactly once, perhaps before
        this returns; never if this raises.
        """
        ...

    def accept_stream(self, follower: BrokerId) -> asyncio.BaseProtocol:
        """Return the protocol object that serves a follower's replication stream."""
        ...
