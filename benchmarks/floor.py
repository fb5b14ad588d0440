"""The floor: the least that a replicated, durable append behind HTTP and JSON can cost in Python.

One partition, one leader, followers on a push stream: parse, append, group fdatasync, push,
acknowledge by the least durable end. No epochs, no limits, no recovery, no partitions, one short
answer per request. It shares no code with the product, so a ratio to it is the cost of the
product's guarantees.

    python -m benchmarks.floor leader FILE [--fsync] [--followers N]    prints: ready HTTP STREAM
    python -m benchmarks.floor follower FILE STREAM_PORT [--fsync]      prints: ready

POST any path with ``{"records":[{"key":..,"value":..}]}`` → ``{"base_offset":N,"count":M}``.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import os
import queue
import struct
import threading
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable

try:
    from isal.isal_zlib import crc32
except ImportError:
    from zlib import crc32

HEADER = struct.Struct("<IIqI")
"""Header of a batch: crc of the lines, their length, base offset, count."""
DURABLE_END = struct.Struct("<q")
CATCH_UP_BYTES = 1 << 20
STREAM_BUFFER_BYTES = 4 << 20
MALLOC_KEEP_BYTES = 1 << 30
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"


class Incoming(msgspec.Struct, gc=False, omit_defaults=True, kw_only=True):
    """A record of a request; its offset is set when it is appended."""

    offset: int = -1
    key: str | None = None
    value: msgspec.Raw


class Request(msgspec.Struct):
    """A produce request."""

    records: list[Incoming]


_decode = msgspec.json.Decoder(Request).decode
_encode_lines = msgspec.json.Encoder().encode_lines


class LogFlusher:
    """Group commit: one thread, one fdatasync at a time; requests meanwhile share the next one."""

    def __init__(self, fd: int, done: Callable[[int], None]) -> None:
        self._fd = fd
        self._done = done
        self._wanted = self._running = 0
        self._work: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._event = os.eventfd(0, os.EFD_NONBLOCK)
        asyncio.get_running_loop().add_reader(self._event, self._finished)
        threading.Thread(target=self._run, daemon=True).start()

    def flush(self, end: int) -> None:
        """Make everything below this offset durable; `done` gets an offset ≥ it."""
        self._wanted = end
        if not self._running:
            self._start()

    def _start(self) -> None:
        self._running = self._wanted
        self._work.put(self._wanted)

    def _run(self) -> None:
        while True:
            self._work.get()
            try:
                os.fdatasync(self._fd)
            except OSError:
                os._exit(74)
            os.eventfd_write(self._event, 1)

    def _finished(self) -> None:
        os.eventfd_read(self._event)
        end, self._running = self._running, 0
        if self._wanted > end:
            self._start()
        self._done(end)


class Log:
    """The file, its ends, and on the leader the requests that wait for the high watermark."""

    def __init__(self, path: Path, *, fsync: bool, followers: int) -> None:
        self.fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o644)
        self.position = self.end = self.durable_end = self.high_watermark = 0
        self._flusher = LogFlusher(self.fd, self._set_durable) if fsync else None
        self._needed = followers
        self._follower_ends: dict[int, int] = {}
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self._unsent: list[bytes] = []
        self._push_due = False
        self.streams: list[LeaderStream] = []
        self.on_durable: Callable[[int], None] = self._leader_durable
        self._loop = asyncio.get_running_loop()

    def produce(self, body: bytes, answered: Callable[[int, int], None]) -> None:
        """Append a request's records; call `answered(base, count)` once they are replicated."""
        if not body.isascii():
            body.decode()
        records = _decode(body).records
        base = self.end
        for offset, record in enumerate(records, start=base):
            record.offset = offset
        lines = _encode_lines(records)
        header = HEADER.pack(crc32(lines), len(lines), base, len(records))
        self.position += os.pwritev(self.fd, (header, lines), self.position)
        self.end = base + len(records)
        self._waiting.append((self.end, lambda: answered(base, len(records))))
        self._unsent += (header, lines)
        if not self._push_due:
            self._push_due = True
            self._loop.call_soon(self._push)
        self.flush()

    def append_pushed(self, batches: memoryview) -> None:
        """Append a follower's whole batches, checked and written as they arrived."""
        at, size = 0, len(batches)
        while at < size:
            crc, length, base, count = HEADER.unpack_from(batches, at)
            start = at + HEADER.size
            if base != self.end or crc32(batches[start : start + length]) != crc:
                msg = f"batch at {base} where {self.end} was due, or its crc is wrong"
                raise ValueError(msg)
            self.end = base + count
            at = start + length
        self.position += os.pwrite(self.fd, batches, self.position)
        self.flush()

    def flush(self) -> None:
        """Request durability up to the present end (immediate without fsync)."""
        if self._flusher is None:
            self._set_durable(self.end)
        else:
            self._flusher.flush(self.end)

    def acknowledge(self, follower: int, durable_end: int) -> None:
        """Note a follower's new durable end."""
        self._follower_ends[follower] = durable_end
        self._advance()

    def _set_durable(self, end: int) -> None:
        self.durable_end = end
        self.on_durable(end)

    def _leader_durable(self, _: int) -> None:
        self._advance()

    def _advance(self) -> None:
        if len(self._follower_ends) < self._needed:
            return
        end = min(self.durable_end, *self._follower_ends.values())
        if end > self.high_watermark:
            self.high_watermark = end
            waiting = self._waiting
            while waiting and waiting[0][0] <= end:
                waiting.popleft()[1]()

    def _push(self) -> None:
        self._push_due = False
        pieces, self._unsent = self._unsent, []
        blob = b"".join(pieces)
        for stream in self.streams:
            stream.push(blob)


class HttpConnection(asyncio.Protocol):
    """A client's connection; one request at a time, just enough HTTP for the load generator."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._chunks: list[bytes] = []
        self._have = self._need = 0

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    @override
    def data_received(self, data: bytes) -> None:
        if self._chunks:
            self._chunks.append(data)
            self._have += len(data)
            if self._have < self._need:
                return
            data = b"".join(self._chunks)
            self._chunks = []
        head = data.find(b"\r\n\r\n") + 4
        at = data.find(b"Content-Length: ", 0, head)
        total = head + int(data[at + 16 : data.find(b"\r\n", at)]) if head > 3 and at > 0 else 0
        if not total or len(data) < total:
            self._chunks, self._have, self._need = [data], len(data), total
            return
        self._log.produce(data[head:total], self._answer)

    def _answer(self, base: int, count: int) -> None:
        body = b'{"base_offset":%d,"count":%d}' % (base, count)
        if not self._transport.is_closing():  # the load generator may have disconnected
            self._transport.write(ANSWER % (len(body), body))


class LeaderStream(asyncio.Protocol):
    """The leader's side of one follower: pushes batches unchanged, reads durable ends."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._sent = -1
        self._paused = False
        self._tail = b""

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(2 * STREAM_BUFFER_BYTES)

    @override
    def data_received(self, data: bytes) -> None:
        data = self._tail + data
        whole = len(data) - len(data) % DURABLE_END.size
        self._tail = data[whole:]
        if not whole:
            return
        if self._sent < 0:
            self._sent = 0
            self._log.streams.append(self)
            self._catch_up()
        (end,) = DURABLE_END.unpack_from(data, whole - DURABLE_END.size)
        self._log.acknowledge(id(self), end)

    def push(self, blob: bytes) -> None:
        if self._paused or self._sent != self._log.position - len(blob):
            self._catch_up()
        else:
            self._sent += len(blob)
            self._transport.write(blob)

    def _catch_up(self) -> None:
        while not self._paused and self._sent < self._log.position:
            size = min(CATCH_UP_BYTES, self._log.position - self._sent)
            self._transport.write(os.pread(self._log.fd, size, self._sent))
            self._sent += size

    @override
    def pause_writing(self) -> None:
        self._paused = True

    @override
    def resume_writing(self) -> None:
        self._paused = False
        self._catch_up()


class FollowerStream(asyncio.BufferedProtocol):
    """The follower's side: appends pushed batches, acknowledges its durable end."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._buffer = bytearray(STREAM_BUFFER_BYTES)
        self._filled = 0

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._log.on_durable = self._acknowledge
        self._acknowledge(0)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        os._exit(0)

    def _acknowledge(self, end: int) -> None:
        self._transport.write(DURABLE_END.pack(end))

    @override
    def get_buffer(self, _: int) -> memoryview:
        if self._filled == len(self._buffer):
            self._buffer = self._buffer + bytearray(len(self._buffer))
        return memoryview(self._buffer)[self._filled :]

    @override
    def buffer_updated(self, size: int) -> None:
        self._filled += size
        view = memoryview(self._buffer)
        whole = 0
        while self._filled - whole >= HEADER.size:
            following = whole + HEADER.size + HEADER.unpack_from(view, whole)[1]
            if following > self._filled:
                break
            whole = following
        if whole:
            self._log.append_pushed(view[:whole])
            rest = self._filled - whole
            self._buffer[:rest] = self._buffer[whole : self._filled]
            self._filled = rest


async def lead(path: Path, *, fsync: bool, followers: int) -> None:
    """Serve until killed."""
    log = Log(path, fsync=fsync, followers=followers)
    loop = asyncio.get_running_loop()
    http = await loop.create_server(lambda: HttpConnection(log), "127.0.0.1", 0, backlog=1024)
    stream = await loop.create_server(lambda: LeaderStream(log), "127.0.0.1", 0)
    ports = [server.sockets[0].getsockname()[1] for server in (http, stream)]
    print("ready", *ports, flush=True)
    await asyncio.Event().wait()


async def follow(path: Path, leader_port: int, *, fsync: bool) -> None:
    """Follow until the leader ends."""
    log = Log(path, fsync=fsync, followers=0)
    loop = asyncio.get_running_loop()
    await loop.create_connection(lambda: FollowerStream(log), "127.0.0.1", leader_port)
    print("ready", flush=True)
    await asyncio.Event().wait()


def main() -> None:
    """Run one process of the floor."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=["leader", "follower"])
    parser.add_argument("file", type=Path)
    parser.add_argument("stream_port", type=int, nargs="?", default=0)
    parser.add_argument("--fsync", action="store_true")
    parser.add_argument("--followers", type=int, default=2)
    options = parser.parse_args()
    tune_process()
    if options.role == "leader":
        run = lead(options.file, fsync=options.fsync, followers=options.followers)
    else:
        run = follow(options.file, options.stream_port, fsync=options.fsync)
    try:
        import uvloop
    except ImportError:
        asyncio.run(run)
    else:
        uvloop.run(run)


def tune_process() -> None:
    """Keep freed memory instead of returning it per request, and collect garbage less often."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return  # not glibc
    m_trim_threshold, m_top_pad, m_mmap_threshold = -1, -2, -3
    mallopt(m_mmap_threshold, MALLOC_KEEP_BYTES)
    mallopt(m_trim_threshold, MALLOC_KEEP_BYTES)
    mallopt(m_top_pad, 64 << 20)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


if __name__ == "__main__":
    main()
