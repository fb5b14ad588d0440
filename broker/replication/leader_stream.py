"""The leader's end of a replication stream: validates a follower's sessions and pushes its log.

One connection from one follower broker carries all partitions that it replicates from here. A
follower opens a session for each; the leader answers diverging, fenced or accepted, and from then
on pushes whatever is appended, within the follower's window (`push_flow`) and the throttle. A
follower whose image is ahead of this broker's is kept until the image catches up (rule R9). Where
the leader's own log can't be read, only the followers that need those bytes wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from typing_extensions import override

from broker.record.batch import walk
from broker.replication import frames
from broker.replication.follower_stream import UNANSWERED_RETRY_MS
from broker.replication.frames import Ack, FrameError, Key, Open, Push, Refused, Valid, partition_of
from broker.replication.leader_state import OBSERVES, FollowerState, LeaderState
from broker.replication.replica import FollowerSession, Replica
from raft_metadata.common.errors import CorruptionError, ErrorCode, KafkaError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from broker.replication.throttle import Throttles
    from raft_metadata.common.ids import BrokerId
    from raft_metadata.image.metadata_image import MetadataImage, PartitionRegistration


TARGET_MS = 100
"""Longest delay of in-sync followers behind those that catch up: connection, append and sync."""
MIN_WINDOW_BYTES = 131_072
"""So much may always be on its way to a follower that catches up: it must make progress."""
RATE_MEMORY_MS = 500
"""Acknowledgements come in bursts, one for a sync: the rate is one over about this time."""
MAX_TRIP_MS = 300
"""A way and a sync that take longer than this are waiting, not distance."""
TRIP_MEMORY_MS = 10_000
"""The shortest round trip of this time, or of the last such time, is what one takes at least."""
MARK_BYTES = 262_144
"""Grain of the count: a session's bytes are remembered in pieces of about this size."""
STUCK_MS = 10_000
"""A session that proved nothing for so long, while others of its connection did, is its own
trouble: it goes on counting for itself, but takes no room from the others."""


class PushWindow:
    """The unproven bytes of one session. Made with its first push, dropped when all is proven."""

    __slots__ = (
        "_marks", "_tail_bytes", "counted", "in_sync", "made_ms", "moved_ms", "sent_end",
        "unproven",
    )  # fmt: skip

    def __init__(self, now_ms: int, *, in_sync: bool = True) -> None:
        self.unproven = 0
        self.sent_end = 0
        self.in_sync = in_sync
        """True if the follower was in sync at its first push."""
        self.made_ms = self.moved_ms = now_ms
        """Time of the last acknowledgement of pushed bytes, or of the first push."""
        self.counted = True
        """True if these bytes are counted for the connection."""
        self._tail_bytes = 0
        self._marks: deque[tuple[int, int]] | None = None

    def pushed(self, end: int, size: int) -> None:
        """So many bytes, up to this offset."""
        self.unproven += size
        self.sent_end = end
        self._tail_bytes += size
        if self._tail_bytes >= MARK_BYTES:
            if self._marks is None:
                self._marks = deque()
            self._marks.append((end, self._tail_bytes))
            self._tail_bytes = 0

    def proven(self, end: int, now_ms: int) -> int:
        """The follower holds everything below ``end``: how many bytes that makes."""
        released = 0
        marks = self._marks
        while marks and marks[0][0] <= end:
            released += marks.popleft()[1]
        if end >= self.sent_end:
            released, self._tail_bytes = released + self._tail_bytes, 0
        if released:
            self.unproven -= released
            self.moved_ms = now_ms
        return released


class ConnectionFlow:
    """The unproven bytes of one connection, and how much more it takes."""

    __slots__ = (
        "_bytes_per_ms", "_proven", "_since_ms", "_trip_before_ms", "_trip_ms", "_trips_since_ms",
        "catch_up_bytes", "catching_up", "limit", "proven_ms", "unproven",
    )  # fmt: skip

    def __init__(self, limit: int, now_ms: int) -> None:
        self.limit = limit
        """Unproven bytes of the connection; those of one session: half of it."""
        self.unproven = 0
        self.catch_up_bytes = MIN_WINDOW_BYTES
        """Unacknowledged bytes up to which a follower that catches up is pushed to."""
        self.catching_up = 0
        """Sessions with something unproven whose followers were not in sync."""
        self.proven_ms = now_ms
        self._proven = 0
        self._bytes_per_ms = 0.0
        self._since_ms = now_ms
        self._trip_ms: int | None = None
        self._trip_before_ms = 0
        self._trips_since_ms = now_ms

    def has_room(self, *, in_sync: bool) -> bool:
        """Return True if a session may be pushed more. One of those that catch up always may."""
        if in_sync:
            return self.unproven < self.limit
        return self.unproven < self.catch_up_bytes or not self.catching_up

    def is_full(self, window: PushWindow | None) -> bool:
        """Return True if this session has as many unacknowledged bytes as one may have."""
        return window is not None and window.unproven >= self.limit // 2

    def opened(self, window: PushWindow) -> None:
        """A session has something unproven."""
        self.catching_up += not window.in_sync

    def _leave(self, window: PushWindow) -> None:
        if window.counted:
            self.catching_up -= not window.in_sync

    def pushed(self, size: int) -> None:
        """Bytes of a session that counts."""
        self.unproven += size

    def released(self, window: PushWindow, size: int, now_ms: int) -> None:
        """A session's bytes were proven."""
        self._proven += size
        self.proven_ms = now_ms
        if window.counted:
            self.unproven -= size

    def emptied(self, window: PushWindow, now_ms: int) -> None:
        """All of a session was proven: how long a round trip took."""
        self._leave(window)
        trip_ms = min(now_ms - window.made_ms, MAX_TRIP_MS)
        self._trip_ms = trip_ms if self._trip_ms is None else min(self._trip_ms, trip_ms)

    def drop(self, window: PushWindow) -> None:
        """Stop counting bytes that will not be acknowledged: their session is over, or stuck."""
        self._leave(window)
        if window.counted:
            self.unproven -= window.unproven
            window.counted = False

    def is_stuck(self, window: PushWindow) -> bool:
        """Others prove, this one has not for `STUCK_MS`."""
        return window.counted and self.proven_ms - window.moved_ms > STUCK_MS

    def quantum(self) -> int:
        """Return the bytes of one push to a follower that catches up: it acknowledges it whole."""
        return max(self.catch_up_bytes // 4, MIN_WINDOW_BYTES // 2)

    def measure(self, now_ms: int) -> None:
        """With every tick: what the follower proves now decides how much may be on its way."""
        passed_ms = now_ms - self._since_ms
        if passed_ms <= 0:
            return
        share = min(passed_ms / RATE_MEMORY_MS, 1.0)
        self._bytes_per_ms += (self._proven / passed_ms - self._bytes_per_ms) * share
        self._proven, self._since_ms = 0, now_ms
        # What is on its way anyway, way and sync being idle, holds up nobody.
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


LOOK_AGAIN_S = 5.0
"""Interval at which such a session checks whether the log begins behind the damage by now."""


class Resting(FollowerSession, Protocol):
    """A ``leader_stream.PushSession``."""

    replica: Replica

    def state(self) -> FollowerState | None: ...
    def drop_pending(self) -> None: ...


S = TypeVar("S", bound=Resting)


def pause_session(session: S, present: Mapping[Key, S], mark: Callable[[S], None]) -> None:
    """Offer this session nothing until then; its connection serves the other partitions.

    ``present``: the connection's sessions; ``mark``: has it ship again.
    """
    session.drop_pending()
    session.replica.detach(session)
    loop = asyncio.get_running_loop()
    loop.call_later(LOOK_AGAIN_S, go_on, session, present, mark)


def go_on(session: S, present: Mapping[Key, S], mark: Callable[[S], None]) -> None:
    """Try again, unless another session took its place, or the connection is gone."""
    if present.get(session.replica.key) is not session:
        return
    if session.state() is None:
        session.forget()
    else:
        session.replica.attach(session)
        mark(session)


MAX_UNKNOWN_OPENS = 20_000
"""Partitions that followers may ask for before this image holds them; then they are refused."""
UNKNOWN_OPEN_MS = 2 * UNANSWERED_RETRY_MS
"""Age at which an open is dropped: a follower that still waits has sent another one by then."""
LOOKED_AT_ONCE = 500
"""Opens that one tick holds against the image: a millisecond."""


@dataclass(slots=True)
class _Waiting:
    """For one partition that this broker does not host."""

    asked_ms: int
    opens: dict[BrokerId, Open] = field(default_factory=dict)
    was_there: bool = False
    """The image held the partition already: once it does not, the partition was deleted."""


class EarlyOpens:
    """Owned by the `ReplicaManager`: which opens wait for the image, by partition and follower."""

    def __init__(self, broker_id: BrokerId) -> None:
        self._broker_id = broker_id
        self._unknown: dict[Key, _Waiting] = {}
        """For partitions that this image does not hold here yet; who was looked at goes last."""
        self._known: dict[Replica, None] = {}
        """Replicas whose `Partition.early_opens` holds some, in order of arrival."""

    def keep_unknown(
        self, image: MetadataImage, key: Key, follower: BrokerId, message: Open, now_ms: int
    ) -> Refused | None:
        """No replica here: it waits for the image, or is told why not.

        The follower's image may be ahead: a new topic shall not wait for a second question.
        """
        registration = image.partition(*partition_of(key))
        code = None
        if registration is not None and self._is_elsewhere(registration, message):
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif key not in self._unknown and len(self._unknown) >= MAX_UNKNOWN_OPENS:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if code is not None:
            return Refused(message.request, message.leader_epoch, code.number)
        waiting = self._unknown.setdefault(key, _Waiting(now_ms))
        waiting.asked_ms = now_ms
        waiting.was_there |= registration is not None
        waiting.opens[follower] = message
        return None

    def _is_elsewhere(self, registration: PartitionRegistration, message: Open) -> bool:
        """The image is at the epoch that the follower meant, or past it, and nothing is here."""
        here = self._broker_id in registration.replicas
        return not here and registration.leader_epoch >= message.leader_epoch

    def forget_some(self, image: MetadataImage, now_ms: int) -> None:
        """Drop what no image will ever answer; with every tick, some in their turn.

        A partition that was deleted, or whose epoch in question came without a replica here. What
        the image can't tell, as a topic deleted before the follower asked, goes with its age.
        """
        for key in list(islice(self._unknown, LOOKED_AT_ONCE)):
            waiting = self._unknown.pop(key)
            registration = image.partition(*partition_of(key))
            if registration is not None:
                waiting.was_there = True
                for follower, message in list(waiting.opens.items()):
                    if self._is_elsewhere(registration, message):
                        del waiting.opens[follower]
            elif waiting.was_there:
                continue
            if waiting.opens and now_ms - waiting.asked_ms < UNKNOWN_OPEN_MS:
                self._unknown[key] = waiting

    def note(self, replica: Replica) -> None:
        """The partition has kept one itself."""
        self._known[replica] = None

    def found(self, replica: Replica) -> None:
        """The partition is there now: it takes what was kept for it."""
        kept = self._unknown.pop(replica.key, None)
        if kept is not None:
            replica.partition.early_opens = kept.opens
            self.note(replica)

    def drop(self, replica: Replica) -> None:
        """No replica here any more."""
        self._known.pop(replica, None)

    def take(self) -> Iterator[tuple[Replica, BrokerId, Open]]:
        """All that wait at partitions that are there: each is to be asked anew, once."""
        known, self._known = self._known, {}
        for replica in known:
            opens, replica.partition.early_opens = replica.partition.early_opens, {}
            for follower, message in opens.items():
                yield replica, follower, message


_log = logging.getLogger("broker.replication")

MAX_CONTROL_FRAME_BYTES = 1024
"""A follower sends only OPEN, ACK and PING: far below this."""
FRAMES_PER_TURN = 256
"""Of one connection, before the loop gets its turn: a follower that opens thousands of sessions
after a reconnect would else hold this leader's heartbeats."""


DRAIN_CHECK_S = 0.002
"""Interval at which a session that catches up checks the connection for room."""


def end_of_batches(raw: bytes) -> int:
    """The offset behind a run of whole batches."""
    end = -1
    for _, header in walk(raw):
        end = header.next_offset
    return end


class LeaderHost(Protocol):
    """The part of the `ReplicaManager` that the stream calls."""

    push_bytes: int
    buffer_bytes: int
    unsynced_bytes: int
    throttles: Throttles

    def now_ms(self) -> int: ...
    def broken(self, what: str, error: Exception) -> None: ...
    def stream_attached(self, stream: LeaderStream) -> None: ...
    def stream_detached(self, stream: LeaderStream) -> None: ...
    def follower_opens(self, stream: LeaderStream, key: Key, message: Open) -> None: ...
    def follower_acks(self, stream: LeaderStream, key: Key, message: Ack) -> None: ...


class PushSession:
    """One validated session: pushes one partition to one follower, in order, without a gap."""

    __slots__ = (
        "_pending", "_pending_bytes", "_pending_from", "marked", "next", "number", "replica",
        "stream", "window",
    )  # fmt: skip

    def __init__(self, replica: Replica, stream: LeaderStream, number: int, start: int) -> None:
        self.replica = replica
        self.stream = stream
        self.number = number
        self.next = start
        """Next offset to take: everything below was written to the connection or is pending."""
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
        """Return True if the next bytes must be read from the log: others are nearer to its end."""
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
        return follower in role.isr or (bool(role.proposals) and follower in role.maximal_isr())

    def offer(self, base_offset: int, next_offset: int, raw: bytes) -> None:
        """Bytes that were just written whole to the log (rule R2)."""
        stream = self.stream
        too_much = self._pending_bytes + len(raw) > stream.host.push_bytes  # goes in quanta
        if self.next == base_offset and not stream.paused and not too_much:
            if self._pending is None:
                self._pending, self._pending_from = [raw], base_offset
            else:
                self._pending.append(raw)
            self._pending_bytes += len(raw)
            self.next = next_offset
        stream.mark(self)

    def forget(self) -> None:
        """The role that gave this session is over."""
        self.stream.sessions.pop(self.replica.key, None)
        self.drop_window()

    def drop_window(self) -> None:
        """Stop waiting for acknowledgements of what this session pushed."""
        self.stream.waits_no_more(self)
        if self.window is not None:
            self.stream.flow.drop(self.window)
            self.window = None

    def drop_pending(self) -> None:
        """The connection is full: what was not written is read from the log later."""
        if self._pending:
            self._pending, self._pending_bytes, self.next = None, 0, self._pending_from

    def ship(self) -> int:
        """Write what is pending, else one catch-up quantum; how many bytes."""
        state, replica = self.state(), self.replica
        if state is None:
            self.drop_window()
            return 0
        size = 0
        log_end = replica.log.log_end_offset
        # What was deleted meanwhile is skipped, by the follower too.
        self.next = max(self.next, replica.log.log_start_offset)
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
        if state.durable_end != OBSERVES:
            self._count(size, in_sync=in_sync)
        if self.next < log_end:
            self.stream.mark(self)
        return size

    def _count(self, size: int, *, in_sync: bool) -> None:
        host, flow, window = self.stream.host, self.stream.flow, self.window
        if window is None:
            window = self.window = PushWindow(host.now_ms(), in_sync=in_sync)
            flow.opened(window)
        window.pushed(self.next, size)
        if window.counted:
            flow.pushed(size)
        if not in_sync and host.throttles.to_followers is not None:
            host.throttles.to_followers.take(size, host.now_ms())

    def announce(self) -> None:
        """Tell an idle follower the high watermark."""
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


class LeaderStream(asyncio.Protocol):
    """Serves one follower connection, for all partitions led here. Owned by its transport."""

    def __init__(self, follower: BrokerId, host: LeaderHost) -> None:
        self.follower = follower
        self.host = host
        self.paused = False
        self.heard_ms = 0
        self.sessions: dict[Key, PushSession] = {}
        self._marked: list[PushSession] = []
        self._members: deque[PushSession] = deque()
        """Marked too, but each takes a quantum in its turn: those in sync first."""
        self._behind: deque[PushSession] = deque()
        self._full: dict[PushSession, None] = {}
        """Sessions that continue with their own next acknowledgement."""
        self.flow = ConnectionFlow(host.unsynced_bytes, host.now_ms())
        self._pause_ends_ms = 0
        """The follower's own throttle: nothing for those not in sync before this time."""
        self._scheduled = False
        self._drain_check: asyncio.TimerHandle | None = None
        self._received = b""
        self._resting = False
        """Whole frames are left for the next turn; nothing more is read meanwhile."""
        self._held: list[bytes] | None = None
        """Control frames written while frames are received: they leave together."""
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self.host.buffer_bytes)
        self.host.stream_attached(self)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
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
    def data_received(self, data: bytes) -> None:
        self.heard_ms = -1  # the host's tick turns this into the present time
        self._received = self._received + data if self._received else data
        if not self._resting:
            self._receive_all()

    def _receive_all(self) -> None:
        self._resting = False
        view, at, size = memoryview(self._received), 0, len(self._received)
        self._held = []
        left = FRAMES_PER_TURN
        try:
            while size - at >= frames.PREFIX.size and left:
                length, kind = frames.PREFIX.unpack_from(view, at)
                if length > MAX_CONTROL_FRAME_BYTES:
                    msg = f"frame of {length} bytes, at most {MAX_CONTROL_FRAME_BYTES} expected"
                    raise FrameError(msg)
                end = at + frames.PREFIX.size + length
                if end > size:
                    break
                if kind == frames.PAUSE:
                    pause_ms = frames.decode_pause(view[at + frames.PREFIX.size : end])
                    self._pause_ends_ms = self.host.now_ms() + pause_ms
                elif kind != frames.PING:
                    self._receive(kind, view[at + frames.PREFIX.size : end])
                at = end
                left -= 1
        except FrameError as error:
            _log.warning("stream closed follower=%d reason=%s", self.follower, error)
            self.close()
            return
        except Exception as error:  # noqa: BLE001 as above: never only a line in the log
            self.host.broken("frame of a follower", error)
        finally:
            held, self._held = self._held, None
            if held and self._transport is not None:
                self._transport.write(b"".join(held))
        self._received = bytes(view[at:]) if at < size else b""
        if not left:
            self._rest()

    def _rest(self) -> None:
        if self._transport is not None:
            self._resting = True
            self._transport.pause_reading()
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._transport is not None:
            self._transport.resume_reading()
            self._receive_all()

    def _receive(self, kind: int, body: memoryview) -> None:
        key, frame = frames.decode(kind, body)
        match frame:
            case Ack():
                self.host.follower_acks(self, key, frame)
            case Open():
                self.host.follower_opens(self, key, frame)
            case _:
                msg = f"a follower does not send {type(frame).__name__}"
                raise FrameError(msg)

    def begin(self, replica: Replica, valid: Valid, start: int) -> None:
        """Announce the session and start pushing from ``start``."""
        session = PushSession(replica, self, valid.session, start)
        before = self.sessions.get(replica.key)
        if before is not None:
            before.drop_window()
        self.sessions[replica.key] = session
        replica.attach(session)
        self.answer(replica.key, valid)
        self.mark(session)
        session.announce()

    def answer(self, key: Key, frame: Valid | frames.Diverging | frames.Refused) -> None:
        """Write a control frame."""
        self.write(frames.encode(key, frame), [])

    def ping(self) -> None:
        """Show that this end lives (rule R9)."""
        self.write(frames.PING_FRAME, [])

    def mark(self, session: PushSession) -> None:
        """Mark this session: it has something to push in the next turn of the event loop."""
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
        finally:  # the connection is full: what waits keeps its place
            self._marked = waiting[::-1] + self._marked
        self._catch_up()

    def _catch_up(self) -> None:
        """A quantum for those that have waited longest, where the connection takes it (rule R9)."""
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
        """Push to the sessions that catch up, with the rest of the budget.

        Without room they continue at an acknowledgement or a tick.
        """
        while queue and budget > 0 and not self.paused and self._transport is not None:
            if self._transport.get_write_buffer_size() >= self.host.push_bytes:
                if self._drain_check is None:
                    self._drain_check = self._loop.call_later(DRAIN_CHECK_S, self._look_again)
                break
            if not (self.flow.has_room(in_sync=True) if in_sync else self._has_room_for_others()):
                break
            session = queue.popleft()
            session.marked = False
            budget -= self._ship_one(session)  # it marks itself again, behind the others
        return budget

    def _has_room_for_others(self) -> bool:
        """Return True if a replica that is not in sync may be pushed to now."""
        if not self.flow.has_room(in_sync=False):
            return False
        bucket, now_ms = self.host.throttles.to_followers, self.host.now_ms()
        return now_ms >= self._pause_ends_ms and (bucket is None or not bucket.pause_ms(now_ms))

    def quantum(self, session: PushSession, *, in_sync: bool) -> int:
        """Return the bytes that a session may push now; 0 if it was queued until its time."""
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

    def waits_no_more(self, session: PushSession) -> None:
        """For an acknowledgement of its own: it is over."""
        self._full.pop(session, None)

    def acknowledged(self, key: Key, number: int, end: int) -> None:
        """A follower proved to hold everything below ``end``; there may be room again."""
        session = self.sessions.get(key)
        if session is None or session.number != number or session.window is None:
            return
        window, now_ms = session.window, self.host.now_ms()
        released = window.proven(end, now_ms)
        if not released:
            return
        self.flow.released(window, released, now_ms)
        if not window.unproven:
            self.flow.emptied(window, now_ms)
            session.window = None
        if session in self._full:
            del self._full[session]
            self.mark(session)
        self._schedule()

    def tick(self, now_ms: int) -> None:
        """Measure, and let those go on that wait for a rate."""
        flow = self.flow
        flow.measure(now_ms)
        if not flow.has_room(in_sync=True):
            for session in self.sessions.values():
                if session.window is not None and flow.is_stuck(session.window):
                    flow.drop(session.window)
        self._schedule()

    def _look_again(self) -> None:
        self._drain_check = None
        self._schedule()

    def _ship_one(self, session: PushSession) -> int:
        """One log that can't be read does not keep the others from their turn."""
        try:
            return session.ship()
        except (KafkaError, StorageError, OSError) as error:
            # A log that failed is its owner's business (see `ReplicaManager`). One that could not
            # be read just now (no descriptor was free) is asked for again by a new connection.
            log = session.replica.log
            _log.error("push failed log=%s error=%s", log.name, error)
            if isinstance(error, CorruptionError):
                pause_session(session, self.sessions, self.mark)
            elif log.failed is None:
                self.close()
        except Exception as error:  # noqa: BLE001 a bug in a callback would else be a silent hang
            self.host.broken("push", error)
        return 0

    def write(self, head: bytes, pieces: list[bytes]) -> None:
        """Hand bytes to the connection; gone connections swallow them."""
        if self._transport is None:
            return
        if self._held is not None:
            self._held += [head, *pieces]
        elif pieces:
            self._transport.writelines([head, *pieces])
        else:
            self._transport.write(head)

    def close(self) -> None:
        """End the connection now."""
        if self._transport is not None:
            self._transport.abort()
