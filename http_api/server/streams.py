"""Requests that have no end of their own: how many there may be, and their end with the listener.

A streamed request lives as long as its client likes, a day at most. `StreamRegistry` counts those
of a listener and ends the waits of all of them when it stops; `StreamWriter` sends one's answer
piece by piece, to a client that may read slowly or not at all.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from aiohttp import hdrs, web

from http_api.contract.errors import RETRY_LATER, RestCode, RestError
from http_api.server.access_log import ASKED_WAIT_MS, STREAM_WAIT_MS
from raft_metadata.common.stoppable_waits import StoppableWaits

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

STREAM_S_MAX: Final = 86_400.0
"""Longest life of a stream, as in Confluent's REST Proxy."""
UNSENT_BYTES_MAX: Final = 4 << 20
"""Bytes of an answer that wait for the client; then nothing more is done for it until it reads."""
PROGRESS_S_MAX: Final = 60.0
"""A client that takes no byte for so long, while that many wait, is disconnected."""


class StreamRegistry:
    """The streams of one listener. Owner: the app, on its loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open = 0
        self.waits = StoppableWaits()
        """Every wait of a stream for its client, or for something to happen."""

    @property
    def is_stopping(self) -> bool:
        """True once the listener stops: each stream then ends as soon as it can."""
        return self.waits.is_stopping

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Count one stream while it is served.

        Raises:
            RestError: 503/50302, there are ``max_streams`` already.
        """
        if self._open >= self._most:
            text = f"{self._open} streams are open, max_streams is {self._most}: try again later"
            raise RestError(503, RestCode.BROKER_NOT_AVAILABLE, text, headers=RETRY_LATER)
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1

    def stop(self) -> None:
        """End the waits of all streams."""
        self.waits.stop()


class StreamWriter:
    """The answer of one streamed request. Owned by its handler.

    The answer begins with the first piece, so that a request can still be refused before it.
    """

    def __init__(
        self,
        request: web.Request,
        content_type: str,
        headers: Mapping[str, str] | None = None,
        *,
        unsent_bytes_max: int = UNSENT_BYTES_MAX,
    ) -> None:
        self._request = request
        request[ASKED_WAIT_MS] = STREAM_WAIT_MS
        self._unsent_bytes_max = unsent_bytes_max
        self._response = web.StreamResponse(
            headers={hdrs.CONTENT_TYPE: content_type, **(headers or {})}
        )
        self._written_bytes = self._taken_bytes = 0
        """Bytes given to the connection, and those of them that it had sent at the last write."""
        self._progress_at_s = 0.0
        """Time at which the client had last taken something, or nothing waited for it."""

    @property
    def has_begun(self) -> bool:
        """True once the answer's head is sent: it can't be another one any more."""
        return self._response.prepared

    async def write(self, piece: bytes) -> None:
        """Send a piece; wait while ``unsent_bytes_max`` or more are waiting for the client.

        Raises:
            ConnectionError: the client has disconnected, or took nothing for `PROGRESS_S_MAX`.
        """
        if not self._response.prepared:
            await self._begin()
        transport = self._request.transport
        self._check_progress(transport)
        self._written_bytes += len(piece)
        waiting_bytes = _unsent_bytes(transport) + len(piece)
        sending = self._response.write(piece)
        while True:
            try:
                async with asyncio.timeout(PROGRESS_S_MAX):
                    return await sending
            except TimeoutError:
                left_bytes = _unsent_bytes(transport)
                if transport is None or left_bytes >= waiting_bytes:
                    raise _without_progress(transport) from None
                waiting_bytes = left_bytes
                sending = self._request.writer.drain()

    async def end(self, *, unread: bool = False) -> web.StreamResponse:
        """End the answer; ``unread``: the rest of the body is not read, the connection closes."""
        if not self._response.prepared:
            await self._begin()
        if unread:
            self._response.force_close()
        await self._response.write_eof()
        if self._request.transport is not None:
            self._request.transport.set_write_buffer_limits()  # the default, for what follows
        return self._response

    async def _begin(self) -> None:
        transport = self._request.transport
        if transport is None:
            raise ConnectionResetError
        transport.set_write_buffer_limits(high=self._unsent_bytes_max)
        if self._request.version >= (1, 1):
            self._response.enable_chunked_encoding()
        await self._response.prepare(self._request)

    def _check_progress(self, transport: asyncio.WriteTransport | None) -> None:
        """Disconnect a client that has taken nothing for long, though little waits for it."""
        now_s = asyncio.get_running_loop().time()
        unsent = _unsent_bytes(transport)
        taken = self._written_bytes - unsent
        if not unsent or taken > self._taken_bytes:
            self._taken_bytes, self._progress_at_s = taken, now_s
        elif now_s - self._progress_at_s > PROGRESS_S_MAX:
            raise _without_progress(transport)


def _without_progress(transport: asyncio.WriteTransport | None) -> ConnectionResetError:
    """Disconnect a client that does not read, and return the error that says so."""
    if transport is not None:
        transport.abort()
    return ConnectionResetError(f"the client took nothing for {PROGRESS_S_MAX:g} s")


def _unsent_bytes(transport: asyncio.WriteTransport | None) -> int:
    return 0 if transport is None else transport.get_write_buffer_size()
