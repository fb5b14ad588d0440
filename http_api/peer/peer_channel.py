"""A broker's channel to other brokers: requests sent at most once, and replication streams.

The broker calls `TcpPeerChannel` on its loop. Requests to one broker share an `RpcConnection`,
which is dialled when first needed and again, after a back-off, when it is lost. A replication
stream is a connection of its own, handed over to the follower after the hello.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from http_api.peer.connections import DialledGreeting, hand_over, split_address
from http_api.peer.frames import (
    MAX_FRAME_BYTES,
    Hello,
    Plane,
    ProtocolViolationError,
    decode_welcome,
    request_frame_bytes,
)
from http_api.peer.rpc_connection import PostedCall, RpcConnection, unreachable
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import BrokerId, ClusterId
from raft_metadata.common.standstills import Standstills

if TYPE_CHECKING:
    from broker.ports import PeerRequest

CONNECT_TIMEOUT_MS = 1_000
"""Time for TCP and hello together: a black-holed link costs a caller no more."""
BACKOFF_FIRST_MS = 20
BACKOFF_MAX_MS = 200
"""A broker that is back is reached at most this much later."""
MAX_REQUESTS_IN_FLIGHT = 20_000
"""Unanswered requests per connection, as on the serving side."""

_Stream = TypeVar("_Stream", bound=asyncio.BaseProtocol)

_log = logging.getLogger("peer.channel")


class TcpPeerChannel:
    """`broker.ports.PeerChannel` over TCP: one connection per target, opened when first needed.

    Owner: the node; single-threaded, on its loop. Invariant (rule F1): a request is written at most
    once. The outcome is NOT_WRITTEN only if no byte of it was handed to a connection.
    """

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        cluster_id: ClusterId,
        dial: Mapping[BrokerId, str] | None = None,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        max_requests_in_flight: int = MAX_REQUESTS_IN_FLIGHT,
        standstills: Standstills | None = None,
    ) -> None:
        """Take the standstills of this process; without them none is noticed."""
        self._broker_id = broker_id
        self._cluster_id = cluster_id
        self._dial = dict(dial or {})
        self._connect_timeout_s = connect_timeout_ms / 1000
        self._max_frame_bytes = max_frame_bytes
        self._max_requests_in_flight = max_requests_in_flight
        self._links: dict[BrokerId, _Link] = {}
        self._streams: set[asyncio.Transport] = set()
        self._dialling: set[asyncio.Task[None]] = set()
        self._stopped = False
        self._standstills = standstills or Standstills(SystemClock())
        self._standstills.when_noticed(partial(self._close_all, "this broker stood still"))

    async def stop(self) -> None:
        """Close every connection; requests under way end with an unknown outcome."""
        self._stopped = True
        for task in self._dialling:
            task.cancel()
        await asyncio.gather(*self._dialling, return_exceptions=True)
        self._close_all("this broker stops")
        self._links.clear()
        for transport in self._streams:
            transport.abort()
        self._streams.clear()
        # Connections are notified of their loss one loop turn after the abort.
        await asyncio.sleep(0)

    def _close_all(self, reason: str) -> None:
        """Close the connections for requests; what they have not sent is dropped."""
        for link in list(self._links.values()):
            if link.connection is not None:
                link.connection.close(reason)

    async def call(
        self, broker_id: BrokerId, peer: str, kind: int, body: bytes, timeout_ms: int
    ) -> bytes:
        """Send a request and await its answer. REQUEST_TIMED_OUT has outcome UNKNOWN, too."""
        if request_frame_bytes(len(body)) > self._max_frame_bytes:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a request of {len(body)} bytes is over {self._max_frame_bytes}",
                outcome=Outcome.NOT_WRITTEN,
            )
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        standstills = self._standstills.look()
        connection = self._ready(broker_id, peer)
        if connection is None:
            try:
                async with asyncio.timeout_at(deadline):
                    connection = await self._connected(broker_id, peer)
                    await connection.writable.wait()
            except TimeoutError:
                raise unreachable(broker_id, f"not connected within {timeout_ms} ms") from None
        if self._standstills.look() != standstills:
            raise unreachable(broker_id, "this broker stood still")  # its deadline is over (S12)
        left_ms = max(1, round((deadline - loop.time()) * 1000))
        return await connection.request(kind, body, left_ms)

    def post(
        self, broker_id: BrokerId, peer: str, requests: Sequence[PeerRequest]
    ) -> Sequence[PostedCall] | None:
        connection = self._ready(broker_id, peer)
        if connection is None or len(requests) > connection.room:
            return None
        most = self._max_frame_bytes
        if any(request_frame_bytes(len(each.body)) > most for each in requests):
            return None
        return connection.post(requests)

    async def open_stream(
        self,
        broker_id: BrokerId,
        peer: str,
        factory: Callable[[], _Stream],
    ) -> tuple[asyncio.Transport, _Stream]:
        """Dial a replication stream and hand it over to ``factory()``; the caller closes it.

        Raises KafkaError: NETWORK_EXCEPTION when the broker can't be reached, else its refusal.
        """
        transport, greeting = await self._dial_peer(broker_id, peer, Plane.REPLICATION)
        self._streams = {each for each in self._streams if not each.is_closing()}
        self._streams.add(transport)
        try:
            protocol = factory()
            hand_over(transport, protocol, greeting.leftover)
        except BaseException:
            transport.abort()
            raise
        return transport, protocol

    # -- connections

    def _ready(self, broker_id: BrokerId, peer: str) -> RpcConnection | None:
        """Return the open connection if it can take a request at this moment, else None."""
        link = self._links.get(broker_id)
        if link is None or link.peer != peer:
            return None
        connection = link.connection
        if connection is None or not connection.usable or not connection.writable.is_set():
            return None
        return connection

    async def _connected(self, broker_id: BrokerId, peer: str) -> RpcConnection:
        """Return the connection to this broker at this address; dial if there is none.

        All callers that come meanwhile share one attempt and its failure.
        """
        if self._stopped:
            raise unreachable(broker_id, "this broker stops")
        link = self._links.get(broker_id)
        if link is None or link.peer != peer:
            if link is not None and link.connection is not None:
                link.connection.retire("the broker moved")
            link = self._links[broker_id] = _Link(broker_id, peer)
        if link.connection is not None and link.connection.usable:
            return link.connection
        if link.attempt is None:
            link.attempt = asyncio.get_running_loop().create_future()
            task = asyncio.get_running_loop().create_task(self._open(link, link.attempt))
            self._dialling.add(task)
            task.add_done_callback(self._dialling.discard)
        return await asyncio.shield(link.attempt)

    async def _open(self, link: _Link, attempt: asyncio.Future[RpcConnection]) -> None:
        """Dial once, after the rest of the back-off; resolve ``attempt`` in any case."""
        loop = asyncio.get_running_loop()
        try:
            await asyncio.sleep(max(0.0, link.not_before - loop.time()))
            transport, greeting = await self._dial_peer(link.broker_id, link.peer, Plane.RPC)
            connection = RpcConnection(
                link.broker_id, self._max_frame_bytes, self._max_requests_in_flight
            )
            hand_over(transport, connection, greeting.leftover)
        except KafkaError as error:
            link.fail(loop.time())
            attempt.set_exception(error)
            attempt.exception()  # callers may all have given up
        except BaseException as error:
            attempt.set_exception(unreachable(link.broker_id, f"dialling ended: {error!r}"))
            attempt.exception()
            raise
        else:
            link.connection = connection
            link.succeed()
            attempt.set_result(connection)
            if self._links.get(link.broker_id) is not link:
                connection.retire("the broker moved")
        finally:
            link.attempt = None

    async def _dial_peer(
        self, broker_id: BrokerId, peer: str, plane: Plane
    ) -> tuple[asyncio.Transport, DialledGreeting]:
        """Return a connection whose hello was accepted; its reading is paused."""
        address = self._dial.get(broker_id, peer)  # an own one lets a proxy fit on any link
        host, port = split_address(address)
        hello = Hello(
            cluster_id=self._cluster_id,
            from_broker=self._broker_id,
            to_broker=broker_id,
            plane=plane,
        )
        loop = asyncio.get_running_loop()
        greeting = DialledGreeting(hello)
        transport: asyncio.Transport | None = None
        accepted = False
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                transport, _ = await loop.create_connection(lambda: greeting, host, port)
                refusal = decode_welcome(await greeting.answered)
            if refusal is not None:
                raise KafkaError(refusal.code, refusal.message, outcome=Outcome.NOT_WRITTEN)
            if transport.is_closing():
                raise unreachable(broker_id, f"{address} closed the connection")
            accepted = True
            return transport, greeting
        except TimeoutError:
            raise unreachable(broker_id, f"{address} did not answer in time") from None
        except (OSError, ProtocolViolationError) as error:
            raise unreachable(broker_id, f"{address}: {error}") from error
        finally:
            greeting.answered.cancel()
            if not accepted and transport is not None:
                transport.abort()


@dataclass(slots=True, eq=False)
class _Link:
    """Connection, attempt to connect and back-off of one broker at one address."""

    broker_id: BrokerId
    peer: str
    connection: RpcConnection | None = None
    attempt: asyncio.Future[RpcConnection] | None = None
    not_before: float = 0.0
    """Loop time before which no connection is tried."""
    backoff_ms: int = field(default=BACKOFF_FIRST_MS)

    def fail(self, now: float) -> None:
        self.not_before = now + self.backoff_ms / 1000
        self.backoff_ms = min(2 * self.backoff_ms, BACKOFF_MAX_MS)

    def succeed(self) -> None:
        self.not_before = 0.0
        self.backoff_ms = BACKOFF_FIRST_MS
