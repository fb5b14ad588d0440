"""Ports of the broker to the network. ``http_api.peer`` implements these Protocols."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from raft_metadata.common.errors import KafkaError
from raft_metadata.common.ids import BrokerId, NodeId
from raft_metadata.records.commands import (
    A,
    AdminCommand,
    AlterPartition,
    AlterPartitions,
    BrokerHeartbeat,
    BrokerRegistered,
    CreateTopic,
    DeleteTopic,
    FetchMetadata,
    FetchMetadataAnswer,
    HeartbeatAnswer,
    PartitionAltered,
    PartitionsAltered,
    RegisterBroker,
    TopicCreated,
    TopicDeleted,
)
from raft_metadata.records.quorum_view import ControllerState


class Heartbeats(Protocol):
    """Heartbeats on their own time, as long as the loop makes progress (rule M7)."""

    def set_content(self, command: BrokerHeartbeat, *, at_once: bool) -> None:
        """Report that the loop turns, and what heartbeats carry now; send one at once if asked.

        To be called many times a session: each call is the progress that heartbeats need.
        """
        ...


class ControllerChannel(Protocol):
    """Commands to the active controller, wherever it is; reads from any controller.

    Commands find the active controller and follow it for ``timeout_ms``. NOT_CONTROLLER (surely
    not appended) may be retried inside; anything uncertain surfaces as OUTCOME_UNKNOWN and is
    never sent twice by the channel (rule F1).
    """

    @property
    def controllers(self) -> tuple[NodeId, ...]:
        """All controllers, from the config file."""
        ...

    async def register_broker(self, command: RegisterBroker) -> BrokerRegistered: ...

    def heartbeats(
        self, on_answer: Callable[[HeartbeatAnswer, int], None]
    ) -> AbstractContextManager[Heartbeats]:
        """Heartbeats of one registration, to every controller, until the block is left.

        ``on_answer(answer, sent_ms)`` is called on the loop with each answer as it comes (a proof
        must not wait for the others) and when its heartbeat was sent, on the monotonic clock.
        """
        ...

    async def alter_partition(self, command: AlterPartition) -> PartitionAltered:
        """One attempt, sent once to the controller believed active (rule M3)."""
        ...

    async def alter_partitions(self, command: AlterPartitions) -> PartitionsAltered:
        """Many attempts, sent once together. What is raised holds for each of them (rule M3)."""
        ...

    async def create_topic(self, command: CreateTopic, timeout_ms: int) -> TopicCreated: ...

    async def delete_topic(self, command: DeleteTopic, timeout_ms: int) -> TopicDeleted: ...

    async def ask(self, command: AdminCommand[A], timeout_ms: int) -> A:
        """Any command of ``raft_metadata.records.commands``."""
        ...

    async def fetch_metadata(self, source: NodeId, request: FetchMetadata) -> FetchMetadataAnswer:
        """Long poll one controller. NETWORK_EXCEPTION when it can't be reached."""
        ...

    async def describe_quorum(self, source: NodeId, timeout_ms: int) -> ControllerState:
        """Return one controller's view of the quorum. NETWORK_EXCEPTION, REQUEST_TIMED_OUT."""
        ...

    def controller_url(self, controller: NodeId) -> str:
        """Return the address for operators: ``http://host:port``, as advertised."""
        ...


Answered = Callable[[bytes, KafkaError | None], None]
"""Takes the answer's body or, with an empty one, the error. Called once; it must not raise."""


class PeerRequest(NamedTuple):
    """A request whose answer goes to a function."""

    kind: int
    body: bytes
    timeout_ms: int
    answered: Answered


class PeerCall(Protocol):
    """A posted request under way."""

    def hasten(self, left_ms: int) -> None:
        """Wait so long at most: then its outcome is unknown."""
        ...


class PeerChannel(Protocol):
    """Requests to other brokers over their peer listener; each is sent at most once.

    ``call`` raises NETWORK_EXCEPTION with outcome NOT_WRITTEN when the request surely was not
    delivered (no connection), with UNKNOWN when it may have been.
    """

    async def call(
        self, broker_id: BrokerId, peer: str, kind: int, body: bytes, timeout_ms: int
    ) -> bytes:
        """Send one request frame to the broker advertised at ``peer`` and await its answer."""
        ...

    def post(
        self, broker_id: BrokerId, peer: str, requests: Sequence[PeerRequest]
    ) -> Sequence[PeerCall] | None:
        """`call` without tasks, of many written as one; each is answered alone, and never at once.

        None: nothing was done, because no connection takes all of them now; `call` finds out why.
        """
        ...

    async def open_stream(
        self,
        broker_id: BrokerId,
        peer: str,
        factory: Callable[[], asyncio.BaseProtocol],
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Dial the broker's peer listener for a replication stream and hand the connection over."""
        ...


class PeerServices(Protocol):
    """The services that the peer listener of a broker offers to other brokers."""

    async def answer(self, kind: int, body: bytes, timeout_ms: int) -> bytes:
        """Answer a request frame. A `KafkaError` crosses the wire with code and outcome."""
        ...

    def answer_directly(self, kind: int, body: bytes, answered: Answered) -> bool:
        """`answer` without a task. False: nothing was done, this kind is not answered like that.

        ``answered`` is called once, perhaps before this returns; not if this raises.
        """
        ...

    def accept_stream(self, follower: BrokerId) -> asyncio.BaseProtocol:
        """The protocol that serves a follower's replication stream."""
        ...
