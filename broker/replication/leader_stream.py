"""The leader's end of a replication stream: validates a follower's sessions and pushes its log.

One connection from a follower broker carries all partitions that it replicates from here. A
follower opens a session for each of them; the `ReplicaManager` answers diverging, refused or valid,
and `LeaderStream.begin` makes a `PushSession`. From then on the session pushes what is appended, at
once if the follower is at the end of the log, else read from the log in quanta. Three limits apply:

- `ConnectionFlow`: unacknowledged bytes of the connection. Followers that catch up get a window
  measured so that in-sync followers wait at most `TARGET_MS` behind them.
- Turns: those in sync first, then the others, a quantum for each in turn (rule R9).
- `Throttles`: a rate for followers that are not in sync.

`EarlyOpens` keeps the requests of followers whose image is newer than this broker's until the image
arrives (rule R9). If the leader's own log can't be read, only sessions that need those bytes pause.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Protocol, cast

from typing_extensions import override

from broker.record.batch import walk
from broker.replication import frames
from broker.replication.follower_stream import UNANSWERED_RETRY_MS
from broker.replication.frames import (
    Ack,
    FrameError,
    FrameKind,
    Key,
    Open,
    Push,
    Refused,
    Valid,
    partition_of,
)
from broker.replication.leader_state import NOT_COUNTED, FollowerState, LeaderState
from broker.replication.replica import Replica
from broker.replication.stream import ReplicationStream, StreamHost
from raft_metadata.common.errors import CorruptionError, ErrorCode, KafkaError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from broker.replication.throttle import Throttles
    from raft_metadata.common.ids import BrokerId
    from raft_metadata.image.metadata_image import MetadataImage, PartitionRegistration


TARGET_MS = 100
"""Longest time that pushes to an in-sync follower may wait for bytes of those that catch up:
transfer, append and sync."""
MIN_WINDOW_BYTES = 131_072
"""Unacknowledged bytes that a follower which catches up may always have, so that it progresses."""
RATE_MEMORY_MS = 500
"""Time over which the rate of acknowledged bytes is averaged; they come in bursts, one a sync."""
MAX_TRIP_MS = 300
"""Longest round trip that is counted; a longer one contains time in queues."""
TRIP_MEMORY_MS = 10_000
"""The least round trip is the shortest one of this period and the period before."""
MARK_BYTES = 262_144
"""Size of the pieces in which the unacknowledged bytes of a session are counted."""
STUCK_MS = 10_000
"""Time without an acknowledgement, while other sessions of the connection had some, after which a
session is stuck: its bytes still count for itself, but take no room from the others."""


@dataclass(slots=True, eq=False)
class PushWindow:
    """The unacknowledged bytes of one session, counted by the `ConnectionFlow`.

    Created with the first push after everything was acknowledged, dropped when all is acknowledged.
    """

    in_sync: bool
    """True if the follower was in sync at its first push."""
    made_ms: int
    """Time of the first push."""
    moved_ms: int
    """Time of the last acknowledgement of pushed bytes, or of the first push."""
    unproven: int = 0
    """Pushed bytes that no acknowledgement has released."""
    sent_end: int = 0
    """Offset behind the last pushed record."""
    counted: bool = True
    """True if these bytes count for the connection."""
    tail_bytes: int = 0
    """Bytes pushed behind the last one of ``marks``."""
    marks: deque[tuple[int, int]] | None = None
    """(end offset, bytes) of each piece of `MARK_BYTES`; None until there is one."""


class ConnectionFlow:
    """The unacknowledged bytes of one connection, and the limits to them.

    Owned by a `LeaderStream`, on the event loop.
    """

    __slots__ = (
        "_bytes_per_ms", "_proven", "_since_ms", "_trip_before_ms", "_trip_ms", "_trips_since_ms",
        "catch_up_bytes", "catching_up", "limit", "proven_ms", "unproven",
    )  # fmt: skip

    def __init__(self, limit: int, now_ms: int) -> None:
        self.limit = limit
        """Most unacknowledged bytes of the connection; a session may have half of it."""
        self.unproven = 0
        self.catch_up_bytes = MIN_WINDOW_BYTES
        """Unacknowledged bytes of the connection up to which followers that catch up are pushed
        to."""
        self.catching_up = 0
        """Number of windows whose followers were not in sync at their first push."""
        self.proven_ms = now_ms
        self._proven = 0
        self._bytes_per_ms = 0.0
        self._since_ms = now_ms
        self._trip_ms: int | None = None
        self._trip_before_ms = 0
        self._trips_since_ms = now_ms

    def has_room(self, *, in_sync: bool) -> bool:
        """Return True if a session may push more. A single one that catches up always may."""
        if in_sync:
            return self.unproven < self.limit
        return self.unproven < self.catch_up_bytes or not self.catching_up

    def is_full(self, window: PushWindow | None) -> bool:
        """Return True if this session has as many unacknowledged bytes as one session may have."""
        return window is not None and window.unproven >= self.limit // 2

    def pushed(
        self, window: PushWindow | None, end: int, size: int, now_ms: int, *, in_sync: bool
    ) -> PushWindow:
        """Count ``size`` bytes pushed in a session, whose last record is below offset ``end``.

        Return the session's window: a new one if it had no unacknowledged bytes.
        """
        if window is None:
            window = PushWindow(in_sync, now_ms, now_ms)
            self.catching_up += not in_sync
        window.unproven += size
        window.sent_end = end
        window.tail_bytes += size
        if window.tail_bytes >= MARK_BYTES:
            if window.marks is None:
                window.marks = deque()
            window.marks.append((end, window.tail_bytes))
            window.tail_bytes = 0
        if window.counted:
            self.unproven += size
        return window

    def acknowledged(self, window: PushWindow, end: int, now_ms: int) -> bool:
        """Release the bytes below ``end``; return False if there are none.

        If all are acknowledged, the window counts no more, and its round trip is measured.
        """
        released = 0
        marks = window.marks
        while marks and marks[0][0] <= end:
            released += marks.popleft()[1]
        if end >= window.sent_end:
            released, window.tail_bytes = released + window.tail_bytes, 0
        if not released:
            return False
        window.unproven -= released
        window.moved_ms = self.proven_ms = now_ms
        self._proven += released
        if window.counted:
            self.unproven -= released
        if not window.unproven:
            if window.counted:
                self.catching_up -= not window.in_sync
            trip_ms = min(now_ms - window.made_ms, MAX_TRIP_MS)
            self._trip_ms = trip_ms if self._trip_ms is None else min(self._trip_ms, trip_ms)
        return True

    def drop(self, window: PushWindow) -> None:
        """Stop counting bytes that will not be acknowledged: their session ended or is stuck."""
        if window.counted:
            self.catching_up -= not window.in_sync
            self.unproven -= window.unproven
            window.counted = False

    def is_stuck(self, window: PushWindow) -> bool:
        """Return True if others had acknowledgements and this session had none for `STUCK_MS`."""
        return window.counted and self.proven_ms - window.moved_ms > STUCK_MS

    def quantum(self) -> int:
        """Return the bytes of one push to a follower that catches up: a quarter of its window.

        The follower acknowledges a push as a whole.
        """
        return max(self.catch_up_bytes // 4, MIN_WINDOW_BYTES // 2)

    def measure(self, now_ms: int) -> None:
        """Recompute the window of followers that catch up; called with every tick."""
        passed_ms = now_ms - self._since_ms
        if passed_ms <= 0:
            return
        share = min(passed_ms / RATE_MEMORY_MS, 1.0)
        self._bytes_per_ms += (self._proven / passed_ms - self._bytes_per_ms) * share
        self._proven, self._since_ms = 0, now_ms
        # Bytes of one round trip on an idle connection and disk delay no other push.
        window = int(self._bytes_per_ms * (TARGET_MS + self._least_trip_ms(now_ms)))
        self.catch_up_bytes = min(max(window, MIN_WINDOW_BYTES), self.limit // 2)

    def _least_trip_ms(self, now_ms: int) -> int:
        least = self._trip_before_ms
        if self._trip_ms is not None:
            least = min(least, self._trip_ms) if least else self._trip_ms
            if now_ms - self._trips_since_ms >= TRIP_MEMORY_MS:
                self._trip_before_ms, self._trip_ms = self._trip_ms, None
                self._trips_since_ms = now_ms
        return least


DAMAGE_RETRY_S = 5.0
"""Pause of a session that met damage in the leader's log. Later the log may begin behind it."""
SKIP_RETRY_S = 0.1
"""Pause of a session whose follower can't be told of the producers yet, which are being read."""
MAX_UNKNOWN_OPENS = 20_000
"""Most partitions with requests that wait for the image; requests for further ones are refused."""
UNKNOWN_OPEN_MS = 2 * UNANSWERED_RETRY_MS
"""Age at which a request is dropped. A follower that still waits has sent another one by then."""
LOOKED_AT_ONCE = 500
"""Partitions with waiting requests that one tick compares with the image: a millisecond."""


@dataclass(slots=True)
class WaitingOpens:
    """The requests of followers for one partition that this broker does not host."""

    asked_ms: int
    opens: dict[BrokerId, Open] = field(default_factory=dict)
    was_in_image: bool = False
    """True if an image contained the partition; once the image does not, it was deleted."""


class EarlyOpens:
    """Requests for sessions (OPEN) that wait for a newer image, by partition and follower.

    Owned by the `ReplicaManager`, on its event loop.
    """

    def __init__(self, broker_id: BrokerId) -> None:
        self._broker_id = broker_id
        self.unknown: dict[Key, WaitingOpens] = {}
        """Requests for partitions that have no replica here yet, the least recently checked
        first."""
        self._known: dict[Replica, None] = {}
        """Replicas with requests in `Partition.early_opens`, in order of arrival."""

    def keep_unknown(
        self, image: MetadataImage, key: Key, follower: BrokerId, message: Open, now_ms: int
    ) -> Refused | None:
        """Keep a request for a partition without a replica here; return a refusal if it can't wait.

        The follower's image may be newer. A follower of a new topic need not send its request
        twice.
        """
        registration = image.partition(*partition_of(key))
        code = None
        if registration is not None and self._is_elsewhere(registration, message):
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif key not in self.unknown and len(self.unknown) >= MAX_UNKNOWN_OPENS:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if code is not None:
            return Refused(message.request, message.leader_epoch, code.number)
        waiting = self.unknown.setdefault(key, WaitingOpens(now_ms))
        waiting.asked_ms = now_ms
        waiting.was_in_image |= registration is not None
        waiting.opens[follower] = message
        return None

    def _is_elsewhere(self, registration: PartitionRegistration, message: Open) -> bool:
        """Return True if the image is at the follower's leader epoch without a replica here."""
        here = self._broker_id in registration.replicas
        return not here and registration.leader_epoch >= message.leader_epoch

    def forget_some(self, image: MetadataImage, now_ms: int) -> None:
        """Drop some of the requests that no image will satisfy; called with every tick.

        Their partitions were deleted, or reached the requested leader epoch without a replica here.
        Requests that the image can't judge, as for a topic deleted before the request came, are
        dropped by age.
        """
        for key in list(islice(self.unknown, LOOKED_AT_ONCE)):
            waiting = self.unknown.pop(key)
            registration = image.partition(*partition_of(key))
            if registration is not None:
                waiting.was_in_image = True
                for follower, message in list(waiting.opens.items()):
                    if self._is_elsewhere(registration, message):
                        del waiting.opens[follower]
            elif waiting.was_in_image:
                continue
            if waiting.opens and now_ms - waiting.asked_ms < UNKNOWN_OPEN_MS:
                self.unknown[key] = waiting

    def note(self, replica: Replica) -> None:
        """Remember that the replica's partition keeps a request itself."""
        self._known[replica] = None

    def found(self, replica: Replica) -> None:
        """Hand the kept requests to the partition, which has a replica here now."""
        kept = self.unknown.pop(replica.key, None)
        if kept is not None:
            replica.partition.early_opens = kept.opens
            self.note(replica)

    def drop(self, replica: Replica) -> None:
        """Forget a replica that is no longer hosted here."""
        self._known.pop(replica, None)

    def take(self) -> Iterator[tuple[Replica, BrokerId, Open]]:
        """Yield and forget all requests for hosted partitions, to answer each of them again."""
        known, self._known = self._known, {}
        for replica in known:
            opens, replica.partition.early_opens = replica.partition.early_opens, {}
            for follower, message in opens.items():
                yield replica, follower, message


_log = logging.getLogger("broker.replication")

MAX_CONTROL_FRAME_BYTES = 1024
"""Longest frame that a follower may send: OPEN, ACK, PING and PAUSE are far shorter."""
RECEIVE_BUFFER_BYTES = 65_536
"""Size of the receive buffer of a connection."""
FRAMES_PER_TURN = 256
"""Frames of a connection taken before other tasks have a turn. A follower opens thousands of
sessions after a reconnect, which in one turn would delay this leader's heartbeats."""


DRAIN_CHECK_S = 0.002
"""Interval at which a session that catches up checks the connection for room."""


def end_of_batches(raw: bytes) -> int:
    """Return the offset behind a run of whole batches; -1 if it is empty."""
    end = -1
    for _, header in walk(raw):
        end = header.next_offset
    return end


class LeaderHost(StreamHost, Protocol):
    """The part of the `ReplicaManager` that the stream calls."""

    push_bytes: int
    buffer_bytes: int
    unsynced_bytes: int
    throttles: Throttles

    @property
    def now_ms(self) -> Callable[[], int]: ...
    def stream_attached(self, stream: LeaderStream) -> None: ...
    def stream_detached(self, stream: LeaderStream) -> None: ...
    def follower_opens(self, stream: LeaderStream, key: Key, message: Open) -> None: ...
    def follower_acks(self, stream: LeaderStream, key: Key, message: Ack) -> None: ...


class PushSession:
    """A validated session: pushes one partition to one follower, in order and without a gap.

    Made by `LeaderStream.begin`, on the event loop. It ends when its role, its replica, its
    connection or a newer session of the same follower ends it.
    """

    __slots__ = (
        "_pending", "_pending_bytes", "_pending_from", "marked", "next", "number", "replica",
        "stream", "window",
    )  # fmt: skip

    def __init__(self, replica: Replica, stream: LeaderStream, number: int, start: int) -> None:
        self.replica = replica
        self.stream = stream
        self.number = number
        self.next = start
        """Next offset to push: everything below was written to the connection or is pending."""
        self.marked = False
        self.window: PushWindow | None = None
        """The bytes pushed and not yet acknowledged; None if all are."""
        self._pending: list[bytes] | None = None
        self._pending_bytes = 0
        self._pending_from = start

    @property
    def follower(self) -> BrokerId:
        """The broker that is pushed to."""
        return self.stream.follower

    @property
    def is_behind(self) -> bool:
        """Return True if the next bytes must be read from the log, because none are pending."""
        return not self._pending and self.next < self.replica.log.log_end_offset

    def state(self) -> FollowerState | None:
        """Return this session's follower state while it is the present one (rule R4)."""
        role = self.replica.partition.role
        if not isinstance(role, LeaderState):
            return None
        state = role.followers.get(self.stream.follower)
        return state if state is not None and state.session == self.number else None

    @property
    def is_in_sync(self) -> bool:
        """Return True if the follower is in the maximal ISR: the high watermark waits for it."""
        role = self.replica.partition.role
        if not isinstance(role, LeaderState):
            return False
        follower = self.stream.follower
        return follower in role.isr or follower in role.maximal_isr()

    def offer(self, base_offset: int, next_offset: int, raw: bytes) -> None:
        """Take bytes that were just written whole to the log (rule R2); push them next turn."""
        stream = self.stream
        too_much = self._pending_bytes + len(raw) > stream.host.push_bytes  # read in quanta
        if self.next == base_offset and not stream.paused and not too_much:
            if self._pending is None:
                self._pending, self._pending_from = [raw], base_offset
            else:
                self._pending.append(raw)
            self._pending_bytes += len(raw)
            self.next = next_offset
        stream.mark(self)

    def forget(self) -> None:
        """End this session, because the role that validated it ended."""
        self.stream.sessions.pop(self.replica.key, None)
        self.drop_window()

    def drop_window(self) -> None:
        """Stop waiting for acknowledgements of the bytes that this session pushed."""
        self.stream.stop_waiting(self)
        if self.window is not None:
            self.stream.flow.drop(self.window)
            self.window = None

    def drop_pending(self) -> None:
        """Drop pending bytes, because the connection is full; they are read from the log later."""
        if self._pending:
            self._pending, self._pending_bytes, self.next = None, 0, self._pending_from

    def ship(self) -> int:
        """Push what is pending, or else one quantum from the log; return the number of bytes."""
        state, replica = self.state(), self.replica
        if state is None:
            self.drop_window()
            return 0
        size = 0
        log_end = replica.log.log_end_offset
        if self.next < replica.log.log_start_offset and not self._skip(state):
            return 0
        if not self._pending and self.next >= log_end:
            return 0
        in_sync = self.is_in_sync
        quantum = self.stream.quantum(self, in_sync=in_sync)
        if not quantum:
            self.drop_pending()
            return 0
        if self._pending:
            pieces, self._pending, size = self._pending, None, self._pending_bytes
            self._pending_bytes = 0
            self._write(state, self._pending_from, self.next, pieces, size)
        elif self.next < log_end:
            raw = replica.log.read_raw(self.next, quantum, log_end)
            start, self.next = self.next, end_of_batches(raw)
            size = len(raw)
            self._write(state, start, self.next, [raw], size)
        if state.durable_end != NOT_COUNTED:
            stream = self.stream
            now_ms, bucket = stream.host.now_ms(), stream.host.throttles.to_followers
            self.window = stream.flow.pushed(self.window, self.next, size, now_ms, in_sync=in_sync)
            if bucket is not None and not in_sync:
                bucket.take(size, now_ms)
        if self.next < log_end:
            self.stream.mark(self)
        return size

    def _skip(self, state: FollowerState) -> bool:
        """Have the follower skip records that were deleted meanwhile; return False to do it later.

        What it is told of the producers may have to be read from the log first.
        """
        skip = self.replica.partition.skip_message(self.number)
        if skip is None:
            self.stream.pause_session(self, SKIP_RETRY_S)
            return False
        self.drop_pending()
        self.next = skip.start
        self.stream.answer(self.replica.key, skip)
        self._write(state, self.next, self.next, [], 0)
        return True

    def announce(self) -> None:
        """Send the high watermark to a follower that has nothing to receive."""
        state = self.state()
        if state is not None and not self._pending and not self.stream.paused:
            self._write(state, self.next, self.next, [], 0)

    def _write(
        self, state: FollowerState, start: int, end: int, pieces: list[bytes], size: int
    ) -> None:
        partition, log = self.replica.partition, self.replica.log
        role = partition.role
        everywhere = 0
        if log.config.compaction is not None and isinstance(role, LeaderState):
            everywhere = role.replicated_to(log.log_end_offset)
        push = Push(
            self.number, role.epoch, start, end,
            partition.high_watermark, log.log_start_offset, b"", everywhere,
        )  # fmt: skip
        state.sent = end
        self.stream.write(frames.encode_push_head(self.replica.key, push, size), pieces)


class LeaderStream(ReplicationStream):
    """A connection from one follower broker, for all partitions that it follows here.

    Owned by its transport, on the event loop; holds a `PushSession` for each partition.
    """

    def __init__(self, follower: BrokerId, host: LeaderHost) -> None:
        super().__init__(
            f"follower={follower}",
            host,
            max_frame_bytes=MAX_CONTROL_FRAME_BYTES,
            frames_per_turn=FRAMES_PER_TURN,
            usual_buffer_bytes=RECEIVE_BUFFER_BYTES,
            kept_buffer_bytes=RECEIVE_BUFFER_BYTES,
        )
        self.follower = follower
        self.host = host
        self.paused = False
        self.sessions: dict[Key, PushSession] = {}
        self._marked: list[PushSession] = []
        self._members: deque[PushSession] = deque()
        """In-sync sessions that read from the log; each pushes a quantum in its turn."""
        self._behind: deque[PushSession] = deque()
        """The same of followers that are not in sync; their turns come after all `_members`."""
        self._full: dict[PushSession, None] = {}
        """Sessions whose window is full; each continues with its own next acknowledgement."""
        self.flow = ConnectionFlow(host.unsynced_bytes, host.now_ms())
        self._pause_ends_ms = 0
        """End of the pause that the follower requested for its out-of-sync replicas."""
        self._scheduled = False
        self._drain_check: asyncio.TimerHandle | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        cast("asyncio.Transport", transport).set_write_buffer_limits(high=self.host.buffer_bytes)
        self.host.stream_attached(self)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._marked.clear()
        self._members.clear()
        self._behind.clear()
        self._full.clear()
        if self._drain_check is not None:
            self._drain_check.cancel()
        self.host.stream_detached(self)

    @override
    def pause_writing(self) -> None:
        self.paused = True
        for session in self.sessions.values():
            session.drop_pending()

    @override
    def resume_writing(self) -> None:
        self.paused = False
        for session in self.sessions.values():
            self.mark(session)
        self._schedule()

    @override
    def receive(self, prefix: tuple[int, ...], body: memoryview) -> None:
        _, kind = prefix
        if kind == FrameKind.PING:
            return
        if kind == FrameKind.PAUSE:
            self._pause_ends_ms = self.host.now_ms() + frames.decode_pause(body)
            return
        key, frame = frames.decode(kind, body)
        match frame:
            case Ack():
                self.host.follower_acks(self, key, frame)
            case Open():
                self.host.follower_opens(self, key, frame)
            case _:
                msg = f"a follower does not send {type(frame).__name__}"
                raise FrameError(msg)

    def pause_session(self, session: PushSession, pause_s: float) -> None:
        """Stop pushing in a session for a while; the connection's others go on."""
        session.drop_pending()
        session.replica.detach(session)
        self._loop.call_later(pause_s, self.resume_session, session)

    def resume_session(self, session: PushSession) -> None:
        """Resume a paused session, unless another one replaced it or the connection ended."""
        if self.sessions.get(session.replica.key) is not session:
            return
        if session.state() is None:
            session.forget()
        else:
            session.replica.attach(session)
            self.mark(session)

    def begin(self, replica: Replica, valid: Valid, start: int) -> None:
        """Send the answer that opens the session and start pushing from offset ``start``."""
        session = PushSession(replica, self, valid.session, start)
        before = self.sessions.get(replica.key)
        if before is not None:
            before.drop_window()
        self.sessions[replica.key] = session
        replica.attach(session)
        self.answer(replica.key, valid)
        self.mark(session)
        session.announce()

    def answer(
        self, key: Key, frame: Valid | frames.Diverging | frames.Refused | frames.Skip
    ) -> None:
        """Send a control frame."""
        self.write(frames.encode(key, frame), [])

    def mark(self, session: PushSession) -> None:
        """Schedule this session to push in the next turn of the event loop."""
        if not session.marked:
            session.marked = True
            self._marked.append(session)
            self._schedule()

    def _schedule(self) -> None:
        waits = self._marked or self._members or self._behind
        if waits and not self._scheduled and not self.paused:
            self._scheduled = True
            self._loop.call_soon(self._ship)

    def _ship(self) -> None:
        self._scheduled = False
        waiting, self._marked = self._marked[::-1], []
        try:
            while waiting and not self.paused:
                session = waiting.pop()
                if session.is_behind:
                    (self._members if session.is_in_sync else self._behind).append(session)
                else:
                    session.marked = False
                    self._ship_one(session)
        finally:  # if the connection is full, the remaining sessions keep their places
            self._marked = waiting[::-1] + self._marked
        if self._members or self._behind:
            self._catch_up()
        elif self._marked:
            self._schedule()

    def _catch_up(self) -> None:
        """Push quanta for the sessions that waited longest, as there is room (rule R9)."""
        left = self._take_turns(self._members, self.host.push_bytes, in_sync=True)
        self._take_turns(self._behind, left, in_sync=False)
        if (
            self._drain_check is None
            and (
                (self._members and self.flow.has_room(in_sync=True))
                or (self._behind and self._has_room_for_others())
            )
        ) or self._marked:
            self._schedule()

    def _take_turns(self, queue: deque[PushSession], budget: int, *, in_sync: bool) -> int:
        """Push for the sessions of a queue in turn; return the unused part of the budget in bytes.

        Sessions for which there is no room continue at an acknowledgement or a tick.
        """
        while queue and budget > 0 and not self.paused and self._transport is not None:
            if self._transport.get_write_buffer_size() >= self.host.push_bytes:
                if self._drain_check is None:
                    self._drain_check = self._loop.call_later(DRAIN_CHECK_S, self._check_drained)
                break
            if not (self.flow.has_room(in_sync=True) if in_sync else self._has_room_for_others()):
                break
            session = queue.popleft()
            session.marked = False
            budget -= self._ship_one(session)  # marks itself again, behind the others
        return budget

    def _has_room_for_others(self) -> bool:
        """Return True if an out-of-sync replica may be pushed to now."""
        if not self.flow.has_room(in_sync=False):
            return False
        bucket, now_ms = self.host.throttles.to_followers, self.host.now_ms()
        return now_ms >= self._pause_ends_ms and (bucket is None or not bucket.pause_ms(now_ms))

    def quantum(self, session: PushSession, *, in_sync: bool) -> int:
        """Return the bytes that a session may push now; 0 if it was queued to wait for room."""
        if self.flow.is_full(session.window):
            self._full[session] = None
            return 0
        if in_sync:
            if self.flow.has_room(in_sync=True):
                return self.host.push_bytes
        elif self._has_room_for_others():
            bucket = self.host.throttles.to_followers
            most = min(self.host.push_bytes, self.flow.quantum())
            return most if bucket is None else min(most, bucket.quantum())
        self.mark(session)
        return 0

    def stop_waiting(self, session: PushSession) -> None:
        """Forget a session that waited for an acknowledgement of its own bytes."""
        self._full.pop(session, None)

    def acknowledged(self, key: Key, number: int, end: int, now_ms: int) -> None:
        """Release the bytes below ``end``, which a follower acknowledged; sessions may continue."""
        session = self.sessions.get(key)
        if session is None or session.number != number or session.window is None:
            return
        if not self.flow.acknowledged(session.window, end, now_ms):
            return
        if not session.window.unproven:
            session.window = None
        if session in self._full:
            del self._full[session]
            self.mark(session)
        self._schedule()

    def tick(self, now_ms: int) -> None:
        """Measure the window, release stuck sessions, and continue those that wait for a rate."""
        flow = self.flow
        flow.measure(now_ms)
        if not flow.has_room(in_sync=True):
            for session in self.sessions.values():
                if session.window is not None and flow.is_stuck(session.window):
                    flow.drop(session.window)
        self._schedule()

    def _check_drained(self) -> None:
        self._drain_check = None
        self._schedule()

    def _ship_one(self, session: PushSession) -> int:
        """Push for one session; return the bytes. An unreadable log stops no other session."""
        try:
            return session.ship()
        except (KafkaError, StorageError, OSError) as error:
            # The log manager reports a damaged log. A log that could not be read just now (no
            # descriptor was free) is tried again by the follower with a new connection.
            log = session.replica.log
            _log.error("push failed log=%s error=%s", log.name, error)
            if isinstance(error, CorruptionError):
                self.pause_session(session, DAMAGE_RETRY_S)
            elif log.failed is None:
                self.close()
        except Exception as error:  # noqa: BLE001 asyncio only logs it: the stream would hang
            self.host.broken("push", error)
        return 0
