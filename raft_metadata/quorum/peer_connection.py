"""One connection between two voters: frames in, frames out, each with its limit.

A frame is ``length u32 little-endian | MessagePack``; length 0 says "I am alive". Its length is
looked at before its body is read, and until the peer was introduced a frame has 1 KiB at most.
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
"""A connection that has said nothing for so long says that it is alive."""
MAX_UNSENT_BYTES = 16 * 1024 * 1024
"""To one voter. Appends and parts of a snapshot stop far below it (`MAX_APPENDS_AHEAD_BYTES`), so
whoever reaches it does not read."""
READ_BYTES = 256 * 1024
"""One buffer per introduced voter; larger frames get one of their own size."""

_HEAD = struct.Struct("<I")
_ALIVE = _HEAD.pack(0)
_encoder = msgspec.msgpack.Encoder()


class ConnectionOwner(Protocol):
    """What a connection asks of `peer_links.PeerLinks`, and tells it."""

    def hello(self) -> Message:
        """What this voter says first."""
        ...

    def guarded(self, handle: Callable[[], None]) -> None:
        """Run what an event causes."""
        ...

    def on_frame(self, connection: PeerConnection, message: object) -> None:
        """A decoded frame, from a stranger too."""
        ...

    def on_closed(self, connection: PeerConnection, why: str) -> None:
        """It is no more; told once, and only of what `close` or the peer ended."""
        ...

    def on_drained(self) -> None:
        """A backlog has drained."""
        ...


class PeerConnection(asyncio.BufferedProtocol):
    """One connection, made or accepted. Owned by `PeerLinks`; lives as long as its socket."""

    def __init__(self, links: ConnectionOwner, dialled: NodeId | None) -> None:
        self._links = links
        self.dialled = dialled
        self._loop = asyncio.get_running_loop()
        self.introduced: asyncio.Future[None] = self._loop.create_future()
        """Done once the peer is known, or the connection is over: then `node` stays None."""
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
        """The DNS names of the certificate that the peer has proved to own."""
        made = self._transport
        return frozenset() if made is None else dns_names(made.get_extra_info("peercert"))

    def introduce(self, node: NodeId) -> None:
        """From here on it is this voter's, and may say more than hello."""
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
            # One small message after another: none may wait for the peer's acknowledgement.
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
        """Move what is left of the buffer to its front; `needed` bytes are one whole frame."""
        usual = _HEAD.size + MAX_HELLO_BYTES if self.node is None else READ_BYTES
        size = max(usual, needed)
        if size != len(self._buffer):
            # A new one: the old may still be lent to the loop, and can't be resized.
            fresh = bytearray(size)
            fresh[: len(rest)] = rest
            self._buffer = fresh
        else:
            self._buffer[: len(rest)] = bytes(rest)
        self._filled = len(rest)

    # -- the links' side

    @property
    def unsent_bytes(self) -> int:
        """What the socket has not taken."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def send(self, message: Message) -> bool:
        """Queue one message; what the socket does not take now goes when it can."""
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
        """Say that we live, if nothing else was said; why to let go of the peer, or ""."""
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
        """Close once everything is sent."""
        self._closed = True
        if self._transport is not None:
            self._transport.close()

    def close(self, why: str) -> None:
        """Let go at once; told to the links the first time."""
        first, self._closed = not self._closed, True
        if self._transport is not None:
            self._transport.abort()
        elif not self.lost.done():
            self.lost.set_result(None)
        if not self.introduced.done():
            self.introduced.set_result(None)
        if first:
            self._links.on_closed(self, why)
