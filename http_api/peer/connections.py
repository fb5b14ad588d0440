"""Addresses of nodes, and the hand-over of a live connection to another protocol.

The peer channel and the peer server use it. A node is dialled at its advertised ``host:port``,
unless this node has its own address for it (``[dial]`` in its config). A hand-over loses and
reorders no byte.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, cast

from typing_extensions import override

from http_api.peer.frames import Hello, ProtocolViolationError, encode_hello, take_hello
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome

KEEPALIVE_IDLE_S = 30
KEEPALIVE_INTERVAL_S = 10
KEEPALIVE_PROBES = 3
"""A peer that vanished without closing (power, cable) is given up after about a minute."""
UNDELIVERED_MS_MAX = 15_000
"""Time after which the kernel gives a connection up, also a closed one, if the other end's kernel
does not take what was sent. Else a request could arrive minutes after its time-out (rule S12)."""


def split_address(address: str) -> tuple[str, int]:
    """Split ``host:port`` or ``[v6]:port``; INVALID_CONFIG names an address that is neither."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"expected host:port, got {address!r}",
            outcome=Outcome.NOT_WRITTEN,
        )
    return host.removeprefix("[").removesuffix("]"), int(port)


def bound_address(sockname: tuple[Any, ...]) -> str:
    """Return the ``host:port`` that a socket is bound to, with the port that stands for 0."""
    host, port = sockname[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def tune_socket(sock: socket.socket | None) -> None:
    """Switch off Nagle's delay of small frames; switch on keep-alive probes of dead peers."""
    if sock is None or sock.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNDELIVERED_MS_MAX)


def hand_over(
    transport: asyncio.Transport, protocol: asyncio.BaseProtocol, received: bytes
) -> None:
    """Make ``protocol`` the owner of the connection; it first gets the bytes already received.

    ``set_protocol`` changes how the transport reads (data_received or get_buffer); uvloop reads in
    the new way only once reading was paused and resumed.
    """
    transport.pause_reading()
    transport.set_protocol(protocol)
    transport.resume_reading()
    protocol.connection_made(transport)
    if not received or transport.is_closing():
        return
    if isinstance(protocol, asyncio.BufferedProtocol):
        _feed_buffered(transport, protocol, received)
    elif isinstance(protocol, asyncio.Protocol):
        protocol.data_received(received)


def _feed_buffered(
    transport: asyncio.Transport, protocol: asyncio.BufferedProtocol, received: bytes
) -> None:
    start = 0
    while start < len(received) and not transport.is_closing():
        room = memoryview(protocol.get_buffer(len(received) - start))
        count = min(len(room), len(received) - start)
        if count == 0:
            msg = "get_buffer() returned no room"
            raise RuntimeError(msg)
        room[:count] = received[start : start + count]
        protocol.buffer_updated(count)
        start += count


class DialledGreeting(asyncio.Protocol):
    """Dialling side of a new connection: sends the hello, takes the answer, then stops reading.

    Owner: the coroutine that dials and awaits ``answered``. The result is the JSON of the answer,
    or the OSError / ProtocolViolationError that ended the connection.
    """

    def __init__(self, hello: Hello) -> None:
        self._hello = hello
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self.answered: asyncio.Future[dict[str, object]] = (
            asyncio.get_running_loop().create_future()
        )

    @property
    def leftover(self) -> bytes:
        """Bytes received behind the answer; they belong to the next protocol."""
        return bytes(self._received)

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop has classes of its own
        tune_socket(transport.get_extra_info("socket"))
        self._transport.write(encode_hello(self._hello))

    @override
    def data_received(self, data: bytes) -> None:
        self._received += data
        if self.answered.done():
            return
        try:
            answer = take_hello(self._received)
        except ProtocolViolationError as error:
            self._fail(error)
            return
        if answer is not None:
            assert self._transport is not None
            self._transport.pause_reading()
            self.answered.set_result(answer)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc or ConnectionResetError("closed before it answered the hello"))

    def _fail(self, error: Exception) -> None:
        if not self.answered.done():
            self.answered.set_exception(error)
        if self._transport is not None:
            self._transport.abort()
