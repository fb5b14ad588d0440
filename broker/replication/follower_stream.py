"""The follower's end of a replication stream: dials a leader broker and takes its frames.

The `ReplicaManager` owns one `LeaderLink` for each leader broker. The link keeps one connection for
all partitions that are followed there, dials again after a break, and requests a session for each
replica. `FollowerStream` is that connection: it decodes frames and sends acknowledgements, those of
one turn of the event loop together. `take_frame` applies a frame to the replica's `Partition`; a
frame that is not of its present leader epoch and session is dropped (rule R4).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from typing_extensions import override

from broker.replication import frames
from broker.replication.events import PartitionSnapshot, note_truncation
from broker.replication.frames import (
    Ack,
    Diverging,
    Frame,
    FrameKind,
    Key,
    Open,
    Push,
    Refused,
    Skip,
    Valid,
)
from broker.replication.partition import (
    NO_SESSION,
    Following,
    OpenSession,
    PushResult,
    RefusedSession,
)
from broker.replication.stream import ReplicationStream, StreamHost
from raft_metadata.common.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.ports import PeerChannel
    from broker.replication.events import EventSink
    from broker.replication.replica import Replica
    from raft_metadata.common.clock import Clock
    from raft_metadata.common.faults import FaultHandler
    from raft_metadata.common.ids import BrokerId


_log = logging.getLogger("broker.replication")

USUAL_BUFFER_BYTES = 1 << 20
"""Size of the receive buffer of a new connection; it doubles when a frame does not fit."""
KEPT_BUFFER_BYTES = 8 << 20
"""A larger buffer, which one batch of unusual size required, is released when it is empty."""
MAX_PUSH_FRAME_BYTES = 72 << 20
"""Longest frame that is accepted; a longer one is refused before it is read. A push holds one
quantum (at most 64 MiB) or one larger batch (`BATCH_LINES_MAX` and its header). It must not be too
small: the leader would send a refused frame again, for ever."""
FRAMES_PER_TURN = 64
"""Frames taken before other tasks have a turn. The first push to a partition creates its files: 300
of those in one turn held the event loop for 0.4 s."""


PAUSE_STEP_MS = 10
"""A longer pause is requested only if it extends the present one by more than this."""


class FollowerHost(StreamHost, Protocol):
    """The part of the `ReplicaManager` that the stream calls."""

    def leader_sent(self, stream: FollowerStream, key: Key, frame: frames.Frame) -> None: ...


class FollowerStream(ReplicationStream):
    """A connection to ``leader``: receives its pushes for all partitions that follow it here.

    Made by a `LeaderLink` for each connection, on the event loop.
    """

    def __init__(self, leader: BrokerId, host: FollowerHost) -> None:
        super().__init__(
            f"leader={leader}",
            host,
            max_frame_bytes=MAX_PUSH_FRAME_BYTES,
            frames_per_turn=FRAMES_PER_TURN,
            usual_buffer_bytes=USUAL_BUFFER_BYTES,
            kept_buffer_bytes=KEPT_BUFFER_BYTES,
        )
        self.leader = leader
        self.host = host
        self.closed = self._loop.create_future()
        self._acks: dict[Key, Replica] = {}
        self._opens: list[bytes] = []
        self._pause_ends_ms = 0

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if not self.closed.done():
            self.closed.set_result(None)

    @override
    def receive(self, prefix: tuple[int, ...], body: memoryview) -> None:
        _, kind = prefix
        if kind != FrameKind.PING:
            key, frame = frames.decode(kind, body)
            self.host.leader_sent(self, key, frame)

    def send_open(self, key: Key, message: frames.Open) -> None:
        """Request a session for a replica's position, at the end of this turn of the event loop."""
        if not self._opens:
            self._loop.call_soon(self._send_opens)
        self._opens.append(frames.encode(key, message))

    def _send_opens(self) -> None:
        opens, self._opens = self._opens, []
        self.write(b"".join(opens), [])

    def queue_ack(self, replica: Replica) -> None:
        """Acknowledge this replica's log ends at the end of this turn of the event loop."""
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
            self.write(b"".join(encoded), [])

    def ask_pause(self, pause_ms: int, now_ms: int) -> None:
        """Request that the leader pushes nothing to out-of-sync replicas for ``pause_ms``."""
        if now_ms + pause_ms > self._pause_ends_ms + PAUSE_STEP_MS:
            self._pause_ends_ms = now_ms + pause_ms
            self.write(frames.pause_frame(pause_ms), [])


OPENS_PER_TURN = 128
"""Session requests sent in one turn after a connect: thousands would hold both event loops for
longer than a heartbeat interval."""
REFUSED_RETRY_MS = 500
"""Pause before a refused OPEN is sent again, by the image of that time; it doubles each time."""
UNANSWERED_RETRY_MS = 5_000
"""Pause before an unanswered OPEN is sent again. It is longer, because the answer may still arrive,
and a newer request would make it stale (rule R4)."""


class LeaderLink:
    """The connection to one leader broker, and the replicas that are followed there.

    Owned by the `ReplicaManager`, which runs `run` as a task for the rest of the process.
    """

    def __init__(
        self,
        leader: BrokerId,
        peer_of: Callable[[BrokerId], str | None],
        peers: PeerChannel,
        host: FollowerHost,
        clock: Clock,
        *,
        backoff_ms: int,
        number: Callable[[], int],
    ) -> None:
        self.leader = leader
        self.replicas: set[Replica] = set()
        self.stream: FollowerStream | None = None
        self._unanswered: dict[Replica, None] = {}
        """Replicas that have no session as far as this end knows; checked with every tick."""
        self._peer_of = peer_of
        self._peers = peers
        self._host = host
        self._clock = clock
        self._backoff_ms = backoff_ms
        self._number = number

    async def run(self) -> None:
        """Keep a connection while any replica follows that leader; reconnect. Endless."""
        while True:
            peer = self._peer_of(self.leader)
            if peer is not None and self.replicas:
                try:
                    await self._connect(peer)
                except (OSError, KafkaError, TimeoutError) as error:
                    _log.debug("leader unreachable leader=%d error=%s", self.leader, error)
            await asyncio.sleep(self._backoff_ms / 1000)

    async def _connect(self, peer: str) -> None:
        def factory() -> FollowerStream:
            return FollowerStream(self.leader, self._host)

        _, stream = await self._peers.open_stream(self.leader, peer, factory)
        self.stream = stream
        _log.info("stream open leader=%d partitions=%d", self.leader, len(self.replicas))
        try:
            for number, replica in enumerate(list(self.replicas)):
                if replica.link is self:
                    self.open(replica)
                if number % OPENS_PER_TURN == OPENS_PER_TURN - 1:
                    await asyncio.sleep(0)
            await stream.closed
        finally:
            self.stream = None
            stream.close()
            for replica in self.replicas:
                self.forget_session(replica)
        _log.info("stream closed leader=%d", self.leader)

    def start_replicating(self, replica: Replica) -> None:
        """Start replicating this replica from this leader: request a session."""
        self.replicas.add(replica)
        replica.link = self
        self.open(replica)

    def stop_replicating(self, replica: Replica) -> None:
        """Stop replicating this replica from this leader."""
        self.replicas.discard(replica)
        self._unanswered.pop(replica, None)
        replica.link = None

    def watch(self, replica: Replica) -> None:
        """Have the tick request a session for this replica after a pause."""
        self._unanswered[replica] = None

    def open(self, replica: Replica) -> None:
        """Request a session for this replica now, if there is a connection; else the tick does."""
        self.watch(replica)
        if self.stream is None:
            return
        message = replica.partition.open_message(self._number(), self._clock.monotonic_ms())
        if message is not None:
            self.stream.send_open(replica.key, message)

    def open_again(self, now_ms: int) -> None:
        """Request sessions again that were refused or not answered; called with every tick."""
        if self.stream is None:
            return
        for replica in list(self._unanswered):
            role = replica.partition.role
            if not isinstance(role, Following) or isinstance(role.session, OpenSession):
                del self._unanswered[replica]
                continue
            pause_ms = UNANSWERED_RETRY_MS
            if isinstance(role.session, RefusedSession):
                pause_ms = min(pause_ms, REFUSED_RETRY_MS << min(role.refusals - 1, 10))
            if now_ms - role.asked_ms >= pause_ms:
                self.open(replica)
        if not self._unanswered:
            self._unanswered = {}  # an emptied dict would keep its memory

    def acknowledge(self, replica: Replica) -> None:
        """Send this replica's log ends to the leader, if it has a session."""
        role = replica.partition.role
        if (
            self.stream is not None
            and isinstance(role, Following)
            and isinstance(role.session, OpenSession)
        ):
            self.stream.queue_ack(replica)

    def forget_session(self, replica: Replica) -> None:
        """Drop the session of a replica, because its connection ended."""
        role = replica.partition.role
        if isinstance(role, Following) and role.leader == self.leader:
            role.session = NO_SESSION
            self.watch(replica)


def take_frame(
    replica: Replica,
    link: LeaderLink,
    stream: FollowerStream,
    frame: Frame,
    faults: FaultHandler,
    events: EventSink,
) -> None:
    """Apply a frame of ``stream``'s leader if this replica follows that leader now (rule R4)."""
    partition, role = replica.partition, replica.partition.role
    if not isinstance(role, Following) or role.leader != stream.leader:
        return
    match frame:
        case Push():
            _take_push(replica, link, stream, frame)
        case Valid():
            if _tried(replica, link, lambda: partition.on_valid(frame)):
                replica.log.request_flush()
                stream.queue_ack(replica)
        case Diverging():
            before = PartitionSnapshot(partition)
            again = False
            try:
                again = _tried(replica, link, lambda: partition.on_diverging(frame))
            except AssertionError as error:
                faults.fatal("truncation below the high watermark", error)
            note_truncation(events, partition, before)
            if again:
                link.open(replica)
        case Skip():
            _tried(replica, link, lambda: partition.on_skip(frame))
        case Refused():
            partition.on_refused(frame)  # the tick requests a session again
        case Open() | Ack():
            pass  # a leader sends neither


def _tried(replica: Replica, link: LeaderLink, step: Callable[[], bool]) -> bool:
    """Run a step that truncates or restarts a log; end the session on an error.

    Such a step fails on a full disk, for example; the tick requests a session again.
    """
    try:
        return step()
    except KafkaError as error:
        _end_session(replica, link, "answer", error)
        return False


def _take_push(replica: Replica, link: LeaderLink, stream: FollowerStream, push: Push) -> None:
    """Append a push. An error ends the session of this partition, not the stream of the others."""
    try:
        result = replica.partition.on_push(push)
    except (KafkaError, ValueError) as error:
        _end_session(replica, link, "push", error)
        return
    match result:
        case PushResult.APPENDED:
            if len(push.batches) and not replica.partition.settings.by_durable:
                stream.queue_ack(replica)
        case PushResult.GAP:
            link.open(replica)
        case PushResult.STALE:
            pass


def _end_session(replica: Replica, link: LeaderLink, what: str, error: Exception) -> None:
    """End the session of one partition because of an error; the tick requests another one."""
    name = replica.log.name
    _log.warning("%s refused log=%s leader=%d error=%s", what, name, link.leader, error)
    replica.partition.drop_session()
    link.watch(replica)
