"""A client of a tail that hides nothing: it sees each piece, and how the answer ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import orjson

from tests.support.event_stream import EventReader

DEADLINE_S = 10.0
NDJSON = "application/x-ndjson"
EVENTS = "text/event-stream"


class TailStream:
    """An answer that is still being sent. `line` and `event` wait for the next of theirs."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self._reader = reader
        self._pieces = self._read_pieces()
        self._text = b""
        self._events: list[tuple[str, bytes]] = []
        self._event_reader = EventReader()
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        """All that has come."""
        self.ended_whole: bool | None = None
        """True once the answer's end has come, False once the connection broke before it."""

    @property
    def last_id(self) -> str:
        return self._event_reader.last_id

    @property
    def retry_ms(self) -> int | None:
        return self._event_reader.retry_ms

    async def read_head(self) -> None:
        text = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = text.rstrip().split("\r\n")
        self.status = int(first.split(" ")[1])
        pairs = (line.partition(":") for line in lines)
        self.headers = {name.lower(): value.strip() for name, _, value in pairs}
        if self.headers.get("transfer-encoding") != "chunked":
            length = int(self.headers.get("content-length", "0"))
            self.body = await self._reader.readexactly(length)
            self.ended_whole = True

    async def line(self) -> bytes | None:
        """Return the next line without its end, or None at the end of the answer."""
        while b"\n" not in self._text:
            piece = await self._next_piece()
            if piece is None:
                assert not self._text, f"the answer ends inside of a line: {self._text!r}"
                return None
            self._text += piece
        line, _, self._text = self._text.partition(b"\n")
        return line

    async def json(self) -> Any:
        line = await self.line()
        return None if line is None else orjson.loads(line)

    async def event(self) -> tuple[str, bytes] | None:
        """Return the next event as (name, data), or None at the end."""
        while not self._events:
            piece = await self._next_piece()
            if piece is None:
                return None
            self._events += self._event_reader.feed(piece)
        return self._events.pop(0)

    async def opening_id(self) -> str:
        """Wait for a piece without an event, as the opening and a heartbeat are; return its id."""
        piece = await self._next_piece()
        assert piece is not None, "the answer has ended"
        assert self._event_reader.feed(piece) == []
        return self.last_id

    async def take(self, size: int) -> bytes:
        """Take some bytes of the body as they come over the wire; for slow readers only."""
        return await self._reader.read(size)

    async def rest(self) -> bytes:
        """Read to the end, and return all that has come from the beginning."""
        while await self._next_piece() is not None:
            pass
        return self.body

    async def _next_piece(self) -> bytes | None:
        if self.ended_whole is not None:
            return None
        async with asyncio.timeout(DEADLINE_S):
            piece = await anext(self._pieces, None)
        self.body += piece or b""
        return piece

    async def _read_pieces(self) -> AsyncIterator[bytes]:
        try:
            while size := int(await self._reader.readline() or b"?", 16):
                yield await self._reader.readexactly(size)
                await self._reader.readline()
            self.ended_whole = True
        except (asyncio.IncompleteReadError, ConnectionError, ValueError):
            self.ended_whole = False


@asynccontextmanager
async def open_tail(
    address: str,
    path: str,
    accept: str | None = None,
    headers: Mapping[str, str] | None = None,
    receive_bytes: int | None = None,
) -> AsyncIterator[TailStream]:
    """Request a tail at ``host:port``; ``receive_bytes``: a small buffer of the client's kernel."""
    host, _, port = address.removeprefix("http://").rpartition(":")
    sock = socket.create_connection((host, int(port)))
    if receive_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 16)
    sent = {"Host": f"{host}:{port}", **({"Accept": accept} if accept else {}), **(headers or {})}
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())]
    writer.write("\r\n".join([*lines, "", ""]).encode())
    stream = TailStream(reader, writer)
    try:
        async with asyncio.timeout(DEADLINE_S):
            await stream.read_head()
        yield stream
    finally:
        writer.close()
