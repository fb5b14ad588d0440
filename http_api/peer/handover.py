"""Giving a live connection to another protocol without losing or reordering a byte."""

from __future__ import annotations

import asyncio
from typing import cast

from typing_extensions import override

from http_api.peer.addresses import tune_socket
from http_api.peer.frames import Hello, ProtocolViolationError, encode_hello, take_hello


def hand_over(
    transport: asyncio.Transport, protocol: asyncio.BaseProtocol, received: bytes
) -> None:
    """Make ``protocol`` the owner of the connection; it first gets what was already received.

    ``set_protocol`` itself changes how both asyncio and uvloop read (data_received or get_buffer).
    The dialling side stopped reading at the answer to its hello; from here on nothing waits.
    """
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
    """The dialling side: says hello, takes the answer, then stops reading for the hand-over.

    Owner: the coroutine that dials and awaits ``answered``. That is the JSON of the answer, or the
    OSError / ProtocolViolationError that ended the connection.
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
        """What came after the answer: it belongs to the next protocol."""
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
