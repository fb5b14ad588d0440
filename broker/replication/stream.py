"""The common part of both ends of a replication stream: frames in turns, writes, heartbeats.

`FollowerStream` and `LeaderStream` extend `ReplicationStream` with what they do with a frame.
`StreamHeartbeats` serves all streams of a broker with the tick of the `ReplicaManager`.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from typing import TYPE_CHECKING, Protocol, cast

from typing_extensions import override

from broker.replication.frames import PING_FRAME, PREFIX, FrameError
from raft_metadata.common.frame_buffer import FrameBuffer, FrameTooLargeError

if TYPE_CHECKING:
    from collections.abc import Iterable

_log = logging.getLogger("broker.replication")


class StreamHost(Protocol):
    """The part of the `ReplicaManager` that both ends call."""

    def broken(self, what: str, error: Exception) -> None: ...


class ReplicationStream(asyncio.BufferedProtocol):
    """One end of a stream, on the event loop. Any malformed frame closes it."""

    def __init__(
        self,
        peer: str,
        host: StreamHost,
        *,
        max_frame_bytes: int,
        frames_per_turn: int,
        usual_buffer_bytes: int,
        kept_buffer_bytes: int,
    ) -> None:
        """Create the end for one connection; ``peer`` names the other end in logs."""
        self.peer = peer
        self.frames_since_tick = True
        """True if bytes arrived since the last tick of `StreamHeartbeats`."""
        self.silent_since_ms = 0
        self._host = host
        self._received = FrameBuffer(
            PREFIX,
            max_frame_bytes=max_frame_bytes,
            usual_bytes=usual_buffer_bytes,
            kept_bytes=kept_buffer_bytes,
        )
        self._frames_per_turn = frames_per_turn
        self._is_reading_paused = False
        """True while received frames wait for the next turn; nothing more is read meanwhile."""
        self._held: list[bytes] | None = None
        """Frames written while frames are received; sent in one write. None at other times."""
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()

    @abstractmethod
    def receive(self, prefix: tuple[int, ...], body: memoryview) -> None:
        """Apply a frame with this length and kind; ``body`` is valid during the call only."""

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        return self._received.room()

    @override
    def buffer_updated(self, nbytes: int) -> None:
        self.frames_since_tick = True
        self._received.filled += nbytes
        if not self._is_reading_paused:
            self._take_turn()

    def _take_turn(self) -> None:
        """Apply whole frames; let other tasks have a turn if there are many."""
        self._held = []
        try:
            is_limited = self._received.take(self.receive, self._frames_per_turn)
        except (FrameError, FrameTooLargeError) as error:
            _log.warning("stream closed %s reason=%s", self.peer, error)
            self.close()
            return
        except Exception as error:  # noqa: BLE001 asyncio only logs it: the stream would hang
            self._host.broken(f"frame of {self.peer}", error)
            return
        finally:
            held, self._held = self._held, None
            if held and self._transport is not None:
                self._transport.write(b"".join(held))
        if is_limited and self._transport is not None:
            self._is_reading_paused = True
            self._transport.pause_reading()
            self._loop.call_soon(self._continue_reading)

    def _continue_reading(self) -> None:
        self._is_reading_paused = False
        if self._transport is not None:
            self._transport.resume_reading()
            self._take_turn()

    def write(self, head: bytes, pieces: list[bytes]) -> None:
        """Write bytes to the connection; do nothing if it has ended."""
        if self._transport is None:
            return
        if self._held is not None:
            self._held += [head, *pieces]
        elif pieces:
            self._transport.writelines([head, *pieces])
        else:
            self._transport.write(head)

    def ping(self) -> None:
        """Send a ping, so that the other end knows that this connection lives (rule R9)."""
        self.write(PING_FRAME, [])

    def close(self) -> None:
        """Abort the connection."""
        if self._transport is not None:
            self._transport.abort()


class StreamHeartbeats:
    """Heartbeats on all streams, and the end of streams silent for three of them (rule R9)."""

    def __init__(self, heartbeat_ms: int, slack_ms: int, now_ms: int) -> None:
        """Begin at ``now_ms``; ``slack_ms`` is the time by which this process may be late."""
        self._heartbeat_ms = heartbeat_ms
        self._silence_max_ms = 3 * heartbeat_ms + slack_ms
        self._pinged_ms = now_ms

    def keep(self, streams: Iterable[ReplicationStream], now_ms: int, *, stalled: bool) -> None:
        """Send pings and close silent streams; called with every tick.

        ``stalled``: this process stood still, so no peer is blamed (rule M7).
        """
        ping = now_ms - self._pinged_ms >= self._heartbeat_ms
        if ping:
            self._pinged_ms = now_ms
        for stream in streams:
            if stream.frames_since_tick or stalled:
                stream.frames_since_tick, stream.silent_since_ms = False, now_ms
            elif now_ms - stream.silent_since_ms > self._silence_max_ms:
                silent_ms = now_ms - stream.silent_since_ms
                _log.warning("stream silent, closed %s ms=%d", stream.peer, silent_ms)
                stream.close()
                continue
            if ping:
                stream.ping()
