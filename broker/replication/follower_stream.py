"""The follower's end of a replication stream: one connection to one leader broker.

Received bytes land in one buffer that is reused; a push is appended to the log straight from it.
Acknowledgements are coalesced once per loop turn.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol, cast

from typing_extensions import override

from broker.replication import frames
from broker.replication.frames import FrameError, Key

if TYPE_CHECKING:
    from broker.replication.replica import Replica
    from raft_metadata.common.ids import BrokerId

_log = logging.getLogger("broker.replication")

INITIAL_BUFFER_BYTES = 1 << 20
KEPT_BUFFER_BYTES = 8 << 20
"""A larger one was made for a batch of unusual size, and is given back once that is taken."""
MAX_PUSH_FRAME_BYTES = 72 << 20
"""Refused before it is read: a push holds one quantum (at most 64 MiB), or one batch that is larger
(`BATCH_LINES_MAX`, and what its header adds). A stream that is refused is refused for ever."""
FRAMES_PER_TURN = 64
"""Taken before the loop gets its turn. The first push to a partition makes its files: 300 of those
at once held a follower for 0.4 s."""


PAUSE_STEP_MS = 10
"""A pause is asked for again only if it grows by more than this."""


class FollowerHost(Protocol):
    """What the stream asks of the `ReplicaManager`."""

    def broken(self, what: str, error: Exception) -> None: ...
    def leader_sent(self, stream: FollowerStream, key: Key, frame: frames.Frame) -> None: ...


class FollowerStream(asyncio.BufferedProtocol):
    """Receives pushes of every partition that ``leader`` leads and this broker follows."""

    def __init__(self, leader: BrokerId, host: FollowerHost) -> None:
        self.leader = leader
        self.host = host
        self.heard_ms = -1
        self.closed = asyncio.get_running_loop().create_future()
        self._buffer = bytearray(INITIAL_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._filled = 0
        self._resting = False
        """Frames are left for the next turn; nothing more is read meanwhile."""
        self._acks: dict[Key, Replica] = {}
        self._opens: list[bytes] = []
        self._pause_ends_ms = 0
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self.closed.done():
            self.closed.set_result(None)

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        if self._filled == len(self._buffer):
            self._grow(len(self._buffer) * 2)
        return self._view[self._filled :]

    @override
    def buffer_updated(self, nbytes: int) -> None:
        self.heard_ms = -1  # the host's tick turns this into the present time
        self._filled += nbytes
        if not self._resting:
            self._take_turn()

    def _take_turn(self) -> None:
        try:
            used, rest_now = self._receive_some()
        except FrameError as error:
            _log.warning("stream closed leader=%d reason=%s", self.leader, error)
            self.close()
            return
        except Exception as error:  # noqa: BLE001 a bug in a callback would else be a silent hang
            self.host.broken("frame of a leader", error)
            return
        rest = self._filled - used
        if used and rest:
            self._buffer[:rest] = self._buffer[used : self._filled]
        self._filled = rest
        if not rest and len(self._buffer) > KEPT_BUFFER_BYTES:
            self._buffer = bytearray(INITIAL_BUFFER_BYTES)
            self._view = memoryview(self._buffer)
        if rest_now and self._transport is not None:
            self._resting = True
            self._transport.pause_reading()
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._resting = False
        if self._transport is not None:
            self._transport.resume_reading()
            self._take_turn()

    def _receive_some(self) -> tuple[int, bool]:
        """(bytes that are done with, whether this turn's share of frames was used up)."""
        view, at, size, left = self._view, 0, self._filled, FRAMES_PER_TURN
        while left and size - at >= frames.PREFIX.size:
            length, kind = frames.PREFIX.unpack_from(view, at)
            if length > MAX_PUSH_FRAME_BYTES:
                msg = f"frame of {length} bytes, at most {MAX_PUSH_FRAME_BYTES} allowed"
                raise FrameError(msg)
            body = at + frames.PREFIX.size
            if body + length > size:
                break
            if kind != frames.PING:
                key, frame = frames.decode(kind, view[body : body + length])
                self.host.leader_sent(self, key, frame)
            at = body + length
            left -= 1
        return at, not left

    def _grow(self, size: int) -> None:
        larger = bytearray(size)
        larger[: self._filled] = self._buffer[: self._filled]
        self._buffer, self._view = larger, memoryview(larger)

    def send_open(self, key: Key, message: frames.Open) -> None:
        """Ask the leader to validate a position, in this loop turn."""
        if not self._opens:
            self._loop.call_soon(self._send_opens)
        self._opens.append(frames.encode(key, message))

    def _send_opens(self) -> None:
        opens, self._opens = self._opens, []
        self._write(b"".join(opens))

    def queue_ack(self, replica: Replica) -> None:
        """Acknowledge this replica's ends in this loop turn."""
        if not self._acks:
            self._loop.call_soon(self._send_acks)
        self._acks[replica.key] = replica

    def _send_acks(self) -> None:
        acks, self._acks = self._acks, {}
        encoded = []
        for key, replica in acks.items():
            message = replica.partition.ack_message()
            if message is not None:
                encoded.append(frames.encode(key, message))
        if encoded:
            self._write(b"".join(encoded))

    def ping(self) -> None:
        """Show that this end lives (rule R9)."""
        self._write(frames.PING_FRAME)

    def ask_pause(self, pause_ms: int, now_ms: int) -> None:
        """Ask the leader to push nothing to replicas that are not in sync for so long."""
        if now_ms + pause_ms > self._pause_ends_ms + PAUSE_STEP_MS:
            self._pause_ends_ms = now_ms + pause_ms
            self._write(frames.pause_frame(pause_ms))

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """End the connection now."""
        if self._transport is not None:
            self._transport.abort()
