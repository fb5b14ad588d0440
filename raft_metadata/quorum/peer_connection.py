"""A connection between two voters: frames in both directions, each with a size limit.

A frame is ``length u32 little-endian | MessagePack``; length 0 is a keep-alive. The length is
checked before the body is read, and until the peer's hello is accepted a frame has at most 1 KiB.
`PeerLinks` creates the connections and receives their events as `ConnectionOwner`.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from functools import partial
from typing import Protocol, cast

import msgspec
from typing_extensions import override

from raft_metadata.common.ids import NodeId
from raft_metadata.common.tls import dns_names
from raft_metadata.quorum.wire import (
    MAX_FRAME_BYTES,
    MAX_HELLO_BYTES,
    Codec,
    MalformedMessageError,
    Message,
)

KEEPALIVE_S = 0.5
"""Seconds without a sent frame after which a keep-alive is sent."""
MAX_UNSENT_BYTES = 16 * 1024 * 1024
"""Unsent bytes to one voter that close its connection. Appends and parts of a snapshot stop far
below it (`MAX_APPENDS_AHEAD_BYTES`), so a peer that reaches it does not read."""
READ_BYTES = 256 * 1024
"""Size of the read buffer of an introduced voter; a larger frame gets a buffer of its own size."""

_HEAD = struct.Struct("<I")
_ALIVE = _HEAD.pack(0)
_encoder = msgspec.msgpack.Encoder()


class ConnectionOwner(Protocol):
    """The port of `peer_links.PeerLinks` towards its connections."""

    def hello(self) -> Message:
        """Return the first message that this voter sends on a connection."""
        ...

    def guarded(self, handle: Callable[[], None]) -> None:
        """Run the handler of an event and deal with its exceptions."""
        ...

    def on_frame(self, connection: PeerConnection, message: object) -> None:
        """Handle a decoded frame, also one from a peer that is not introduced yet."""
        ...

    def on_closed(self, connection: PeerConnection, why: str) -> None:
        """Handle the end of a connection. Called once, when `close` or the peer ended it."""
        ...

    def on_drained(self) -> None:
        """Handle a send buffer that has drained."""
        ...


class PeerConnection(asyncio.BufferedProtocol):
    """A connection, dialled or accepted. Owned by `PeerLinks`; lives as long as its socket."""

    def __init__(self, links: ConnectionOwner, dialled: NodeId | None) -> None:
        self._links = links
        self.dialled = dialled
        self._loop = asyncio.get_running_loop()
        self.introduced: asyncio.Future[None] = self._loop.create_future()
        """Done once the peer's hello is accepted, or the connection has ended with `node` None."""
        self.lost: asyncio.Future[None] = self._loop.create_future()
        self.node: NodeId | None = None
        self._transport: asyncio.Transport | None = None
        self._closed = False
        self._max_frame_bytes = MAX_HELLO_BYTES
        self._buffer = bytearray(_HEAD.size + MAX_HELLO_BYTES)
        self._filled = 0
        self._heard_at = self._said_at = self._drained_at = 0.0
        self._said_bytes = self._drained_bytes = 0

    def certificate_names(self) -> frozenset[str]:
        """Return the DNS names of the peer's verified certificate.

        Empty before the connection is made.
        """
        made = self._transport
        return frozenset() if made is None else dns_names(made.get_extra_info("peercert"))

    def introduce(self, node: NodeId) -> None:
        """Bind the connection to voter `node` and allow frames of full size."""
        self.node = node
        self._max_frame_bytes = MAX_FRAME_BYTES
        if not self.introduced.done():
            self.introduced.set_result(None)

    # -- asyncio's side

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._closed:
            self._transport.abort()
            return
        sock: socket.socket | None = transport.get_extra_info("socket")
        if sock is not None:
            # Messages are small and frequent; none may wait for the peer's TCP acknowledgement.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._heard_at = self._said_at = self._drained_at = self._loop.time()
        if self.dialled is not None:
            self.send(self._links.hello())

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)[self._filled :]

    @override
    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        self._heard_at = self._loop.time()
        self._links.guarded(self._read_frames)

    @override
    def connection_lost(self, error: Exception | None) -> None:
        if not self._closed:
            why = repr(error) if error else "closed by the peer"
            self._links.guarded(partial(self.close, why))
        if not self.lost.done():
            self.lost.set_result(None)

    @override
    def resume_writing(self) -> None:
        self._links.on_drained()

    # -- frames

    def _read_frames(self) -> None:
        buffer, end, offset, needed = self._buffer, self._filled, 0, 0
        view = memoryview(buffer)
        while end - offset >= _HEAD.size and not self._closed:
            (length,) = _HEAD.unpack_from(buffer, offset)
            if length > self._max_frame_bytes:
                self.close(f"a frame of {length} bytes, limit {self._max_frame_bytes}")
                return
            start = offset + _HEAD.size
            if end - start < length:
                needed = _HEAD.size + length
                break
            offset = start + length
            if length or self.node is None:
                self._on_frame(view[start:offset])
        self._keep(view[offset:end], needed)

    def _on_frame(self, frame: memoryview) -> None:
        try:
            message = Codec.loads(frame)
        except MalformedMessageError as error:
            self.close(f"a frame of {len(frame)} bytes that is no message: {error}")
            return
        self._links.on_frame(self, message)

    def _keep(self, rest: memoryview, needed: int) -> None:
        """Move the unread rest of the buffer to its front.

        `needed` is the size in bytes of the next whole frame, 0 if unknown.
        """
        usual = _HEAD.size + MAX_HELLO_BYTES if self.node is None else READ_BYTES
        size = max(usual, needed)
        if size != len(self._buffer):
            # The loop may still hold a view of the old buffer, which therefore cannot be resized.
            fresh = bytearray(size)
            fresh[: len(rest)] = rest
            self._buffer = fresh
        else:
            self._buffer[: len(rest)] = bytes(rest)
        self._filled = len(rest)

    # -- the links' side

    @property
    def unsent_bytes(self) -> int:
        """Number of bytes that the socket has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def send(self, message: Message) -> bool:
        """Queue a message and return whether the connection is still open."""
        frame = bytearray(_HEAD.size)
        _encoder.encode_into(message, frame, _HEAD.size)
        _HEAD.pack_into(frame, 0, len(frame) - _HEAD.size)
        return self._write(frame)

    def _write(self, frame: bytes | bytearray) -> bool:
        if self._closed or self._transport is None:
            return False
        self._transport.write(frame)
        self._said_at = self._loop.time()
        self._said_bytes += len(frame)
        if self.unsent_bytes > MAX_UNSENT_BYTES:
            self.close(f"does not read: {self.unsent_bytes} bytes unsent, limit {MAX_UNSENT_BYTES}")
        return not self._closed

    def judge(self, now: float, silence_s: float, *, stalled: bool) -> str:
        """Send a keep-alive if due; return the reason to close the connection, or "".

        `stalled`: this process was stalled, so the peer's silence proves nothing (rule M7).
        """
        if now - self._said_at >= KEEPALIVE_S:
            self._write(_ALIVE)
        drained = self._said_bytes - self.unsent_bytes
        if stalled or drained != self._drained_bytes or not self.unsent_bytes:
            self._drained_bytes, self._drained_at = drained, now
        if stalled:
            self._heard_at = now
        if now - self._heard_at > silence_s:
            return f"silent for {now - self._heard_at:.1f} s"
        if now - self._drained_at > silence_s:
            return f"has read nothing for {now - self._drained_at:.1f} s"
        return ""

    def finish(self) -> None:
        """Close the connection once everything queued is sent."""
        self._closed = True
        if self._transport is not None:
            self._transport.close()

    def close(self, why: str) -> None:
        """Close the connection at once; the first call notifies the owner."""
        first, self._closed = not self._closed, True
        if self._transport is not None:
            self._transport.abort()
        elif not self.lost.done():
            self.lost.set_result(None)
        if not self.introduced.done():
            self.introduced.set_result(None)
        if first:
            self._links.on_closed(self, why)
