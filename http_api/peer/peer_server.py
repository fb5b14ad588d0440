"""The peer listener of a broker: requests of other brokers, and their replication streams.

A broker's node runs one `PeerServer`. A connection begins with a hello, taken by `_Greeting`, which
then hands it to an `_RpcService` or to a replication stream. An `_RpcService` decodes requests,
lets `PeerServices` answer them, and writes the answers of one turn together.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import cast

from typing_extensions import override

from broker.ports import PeerServices
from http_api.peer.connections import bound_address, hand_over, split_address, tune_socket
from http_api.peer.frames import (
    MAX_FRAME_BYTES,
    FrameReader,
    FrameType,
    Hello,
    Plane,
    ProtocolViolationError,
    Request,
    answer_frame_bytes,
    answer_head,
    decode_hello,
    encode_refusal,
    encode_welcome,
    take_hello,
)
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import BrokerId, ClusterId
from raft_metadata.common.standstills import Standstills

BATCH_TEXT_BYTES_MAX = 65_536
"""Bytes of answers that are gathered for one write; larger writes gain nothing."""

_log = logging.getLogger("peer.server")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLimits:
    """Limits of the peer listener."""

    max_frame_bytes: int = MAX_FRAME_BYTES
    max_connections: int = 1_024
    """Connections: two per broker and some to spare for reconnects; brokers count in tens."""
    max_requests_in_flight: int = 20_000
    """Unanswered requests per connection; as many as may wait in the broker
    (``max_parked_fetches``)."""
    max_bytes_in_flight: int = 268_435_456
    """Bodies of unanswered requests per connection (256 MiB): over it, QUEUE_FULL."""
    hello_timeout_ms: int = 5_000
    """Time for a connection's hello; without it the connection is closed."""


class PeerServer:
    """Listener that checks hellos, runs requests and hands replication streams over.

    Owner: the node; single-threaded, on its loop. Every handler task and connection belongs to this
    object: when `stop` has returned, none of them is left.
    """

    def __init__(
        self,
        bind: str,
        *,
        broker_id: BrokerId,
        cluster_id: ClusterId,
        services: PeerServices,
        limits: PeerLimits | None = None,
        standstills: Standstills | None = None,
    ) -> None:
        """Take the standstills of this process; without them none is noticed."""
        self._host, self._port = split_address(bind)
        self.broker_id = broker_id
        self.cluster_id = cluster_id
        self.services = services
        self.limits = limits or PeerLimits()
        self.standstills = standstills or Standstills(SystemClock())
        self._server: asyncio.Server | None = None
        self._transports: set[asyncio.Transport] = set()
        self._handlers: set[asyncio.Task[None]] = set()
        self._stopping = False

    @property
    def address(self) -> str:
        """Address ``host:port`` that is really bound."""
        assert self._server is not None
        return bound_address(self._server.sockets[0].getsockname())

    async def start(self) -> None:
        """Listen. OSError when the port is taken."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Greeting(self), self._host, self._port)
        self.standstills.when_noticed(self._cut_all)
        _log.info("peer listener open address=%s", self.address)

    async def stop(self) -> None:
        """Stop listening, end every handler, close every connection, streams included."""
        self._stopping = True
        if self._server is not None:
            self._server.close()
        self._cut_all()
        for task in self._handlers:
            task.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)
        # Connections are notified of their loss one loop turn after the abort.
        await asyncio.sleep(0)
        self._transports.clear()

    def _cut_all(self) -> None:
        """Abort all connections, streams included."""
        for transport in self._transports:
            transport.abort()

    # -- for the protocols of this module

    def admit(self, transport: asyncio.Transport) -> bool:
        """Take one more connection; return False if there is no room for it."""
        # Streams that were handed over no longer report their end to this object.
        self._transports = {each for each in self._transports if not each.is_closing()}
        if self._stopping or len(self._transports) >= self.limits.max_connections:
            return False
        self._transports.add(transport)
        return True

    def forget(self, transport: asyncio.Transport) -> None:
        """Remove a closed connection."""
        self._transports.discard(transport)

    def run(self, handler: Coroutine[object, object, None]) -> None:
        """Run a request's handler as a task of this object."""
        task = asyncio.get_running_loop().create_task(handler)
        self._handlers.add(task)
        task.add_done_callback(self._handlers.discard)


class _Greeting(asyncio.Protocol):
    """The first phase of a connection: waits for the hello, checks it and answers it."""

    def __init__(self, server: PeerServer) -> None:
        self._server = server
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop has classes of its own
        if not self._server.standstills.admits():
            self._transport.abort()
            return
        if not self._server.admit(self._transport):
            _log.warning("peer connection refused reason=too_many")
            self._transport.abort()
            return
        tune_socket(transport.get_extra_info("socket"))
        self._deadline = asyncio.get_running_loop().call_later(
            self._server.limits.hello_timeout_ms / 1000, self._transport.abort
        )

    @override
    def data_received(self, data: bytes) -> None:
        transport = self._transport
        assert transport is not None
        if transport.is_closing():
            return
        self._received += data
        try:
            body = take_hello(self._received)
            if body is None:
                return
            hello = decode_hello(body)
        except ProtocolViolationError as error:
            self._refuse(KafkaError(ErrorCode.INVALID_REQUEST, str(error)))
            return
        self._welcome(transport, hello)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._end_wait()
        if self._transport is not None:
            self._server.forget(self._transport)

    def _welcome(self, transport: asyncio.Transport, hello: Hello) -> None:
        try:
            self._check(hello)
            protocol: asyncio.BaseProtocol
            if hello.plane is Plane.RPC:
                protocol = _RpcService(self._server, hello.from_broker)
            else:
                protocol = self._server.services.accept_stream(hello.from_broker)
        except KafkaError as error:
            self._refuse(error)
            return
        self._end_wait()
        transport.write(encode_welcome(None))
        hand_over(transport, protocol, bytes(self._received))

    def _check(self, hello: Hello) -> None:
        if hello.cluster_id != self._server.cluster_id:
            raise KafkaError(
                ErrorCode.INCONSISTENT_CLUSTER_ID,
                f"broker {self._server.broker_id} belongs to cluster {self._server.cluster_id}, "
                f"not {hello.cluster_id}",
            )
        if hello.to_broker != self._server.broker_id:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"this is broker {self._server.broker_id}, not {hello.to_broker}",
            )

    def _refuse(self, error: KafkaError) -> None:
        assert self._transport is not None
        _log.warning(
            "peer connection refused from=%s reason=%r",
            self._transport.get_extra_info("peername"),
            error.message,
        )
        self._end_wait()
        self._transport.write(encode_welcome(error))
        self._transport.close()

    def _end_wait(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class _RpcService(asyncio.Protocol):
    """Serving end of one broker's requests; answers of one turn leave as one write, in any order.

    A request runs as a task of its own, unless `PeerServices.answer_directly` takes it.
    """

    def __init__(self, server: PeerServer, from_broker: BrokerId) -> None:
        self._server = server
        self._from = from_broker
        self._reader = FrameReader(frozenset({FrameType.REQUEST}), server.limits.max_frame_bytes)
        self._transport: asyncio.Transport | None = None
        self._requests = 0
        self._request_bytes = 0
        self._writable = asyncio.Event()
        self._writable.set()
        self._outgoing: list[bytes] = []
        """Frames to be written at the end of this turn of the loop."""
        self._leaving_bytes = 0

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop has classes of its own

    @override
    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        if self._transport.is_closing():
            return
        try:
            frames = self._reader.feed(data)
        except ProtocolViolationError as error:
            _log.warning("peer connection closed broker=%d reason=%s", self._from, error)
            self._transport.abort()
            return
        for frame in frames:
            assert isinstance(frame, Request)
            self._begin(frame)

    @override
    def pause_writing(self) -> None:
        # A peer that reads no answers sends no requests: else answers would pile up here.
        self._writable.clear()
        assert self._transport is not None
        if self._transport.is_reading():
            self._transport.pause_reading()

    @override
    def resume_writing(self) -> None:
        self._writable.set()
        assert self._transport is not None
        self._transport.resume_reading()
        self._write()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        # Handlers go on: what they append is not undone by a lost connection.
        self._writable.set()
        assert self._transport is not None
        self._server.forget(self._transport)

    def _begin(self, request: Request) -> None:
        assert self._transport is not None
        if (
            self._requests >= self._server.limits.max_requests_in_flight
            or self._request_bytes + len(request.body) > self._server.limits.max_bytes_in_flight
        ):
            refusal = KafkaError(
                ErrorCode.QUEUE_FULL,
                f"broker {self._server.broker_id} has {self._requests} requests "
                f"({self._request_bytes} bytes) of broker {self._from} in flight",
                outcome=Outcome.NOT_WRITTEN,
            )
            self._send([encode_refusal(request.request_id, refusal)])
            return
        self._requests += 1
        self._request_bytes += len(request.body)
        answered = partial(self._send_direct_answer, request, [])
        try:
            taken = self._server.services.answer_directly(request.kind, request.body, answered)
        except Exception as error:  # noqa: BLE001 as in `_serve`
            answered(b"", self._error_to_send(request, error))
        else:
            if not taken:
                self._server.run(self._serve(request))

    def _send_direct_answer(
        self, request: Request, earlier_answers: list[None], body: bytes, error: KafkaError | None
    ) -> None:
        """Send the answer to a request that was taken without a task.

        ``earlier_answers`` is not empty if the request is answered already, which is a bug.
        """
        if earlier_answers:
            _log.error("peer request answered twice kind=%d broker=%d", request.kind, self._from)
            return
        earlier_answers.append(None)
        self._requests -= 1
        self._request_bytes -= len(request.body)
        if error is None:
            self._send([answer_head(request.request_id, len(body)), body])
        else:
            self._send([encode_refusal(request.request_id, error)])

    def _error_to_send(self, request: Request, error: Exception) -> KafkaError:
        """Return the error to send for a request that an exception ended."""
        if isinstance(error, KafkaError):
            return error
        _log.error(
            "peer request failed kind=%d broker=%d", request.kind, self._from, exc_info=error
        )
        return KafkaError(
            ErrorCode.UNKNOWN_SERVER_ERROR,
            f"broker {self._server.broker_id} met {type(error).__name__}",
            outcome=Outcome.UNKNOWN,
        )

    async def _serve(self, request: Request) -> None:
        if self._server.standstills.is_cut(self._transport):
            return  # sent long ago, perhaps, to this process that stood still (rule S12)
        try:
            body = await self._server.services.answer(
                request.kind, request.body, request.timeout_ms
            )
            if answer_frame_bytes(len(body)) > self._server.limits.max_frame_bytes:
                raise KafkaError(
                    ErrorCode.MESSAGE_TOO_LARGE,
                    f"the answer of {len(body)} bytes is over the frame limit",
                    outcome=Outcome.UNKNOWN,
                )
            frames = [answer_head(request.request_id, len(body)), body]
        except Exception as error:  # noqa: BLE001 one request fails, the listener goes on
            frames = [encode_refusal(request.request_id, self._error_to_send(request, error))]
        finally:
            self._requests -= 1
            self._request_bytes -= len(request.body)
        await self._writable.wait()
        self._send(frames)

    def _send(self, frames: list[bytes]) -> None:
        """Write frames with all other answers of this turn; at once, if there is much to write."""
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._write)
        self._outgoing += frames
        self._leaving_bytes += sum(map(len, frames))
        if self._leaving_bytes >= BATCH_TEXT_BYTES_MAX:
            self._write()

    def _write(self) -> None:
        assert self._transport is not None
        if not self._outgoing or not self._writable.is_set():
            return
        frames, self._outgoing, self._leaving_bytes = self._outgoing, [], 0
        if not self._transport.is_closing():
            self._transport.writelines(frames)
