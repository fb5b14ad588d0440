"""Sessions of brokers: soft state, kept by every controller, judged by the active one.

Soft state is in no log. Brokers send heartbeats to every controller, so a new active controller has
ages of its own, and a change of the controller neither restarts the session of a dead broker nor
fences a live one (rule M7). `Controller` feeds heartbeats in; the node's loop reports connections
and calls `judge` on every tick.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from raft_metadata.common.ids import BrokerEpoch, BrokerId, MetadataOffset
from raft_metadata.controller.damage_reports import NO_NEWS, DamageReports, News
from raft_metadata.records.commands import BrokerHeartbeat


@dataclass(slots=True)
class BrokerSession:
    """The newest report of one registration of a broker. Ages are in judge time."""

    broker_epoch: BrokerEpoch
    contact_ms: int
    metadata_offset: MetadataOffset = MetadataOffset(0)
    want_shutdown: bool = False
    damage: DamageReports = field(default_factory=DamageReports)
    connections: int = 0
    disconnected_ms: int | None = None
    """Judge time when its last connection closed; None while one is open, or if it had none."""
    was_heard: bool = False
    """True once a heartbeat arrived here; before, the age counts from the session's creation."""


class HeartbeatTracker:
    """The sessions of all brokers.

    Owned by the loop of one controller; time comes in as an argument.

    Ages are counted in *judge time*, which advances by at most ``stall_ms`` between two calls of
    `judge`. So after a stall of the controller or the machine, the heartbeats that waited meanwhile
    are read before any session expires (rule M7).
    """

    def __init__(self, *, session_timeout_ms: int, disconnect_grace_ms: int, now_ms: int) -> None:
        self._session_timeout_ms = session_timeout_ms
        self._disconnect_grace_ms = disconnect_grace_ms
        self._stall_ms = max(1, session_timeout_ms // 8)
        self._sessions: dict[BrokerId, BrokerSession] = {}
        self._judge_ms = 0
        self._ran_ms = now_ms
        self._drained_ms = 0
        """Judge time up to which all input was surely read; sessions are judged by this time."""
        self._drains_until_ms = now_ms

    # ---- input

    def expect(self, registered: Iterable[tuple[BrokerId, BrokerEpoch]], now_ms: int) -> None:
        """Start a session, aged from now, for each of these registrations that has none."""
        for broker_id, broker_epoch in registered:
            self._session(broker_id, broker_epoch, now_ms)

    def heard(
        self,
        broker_id: BrokerId,
        broker_epoch: BrokerEpoch,
        metadata_offset: MetadataOffset,
        now_ms: int,
        *,
        want_shutdown: bool = False,
    ) -> None:
        """Record a heartbeat; one of an older registration changes nothing."""
        session = self._session(broker_id, broker_epoch, now_ms)
        if session is None:
            return
        self._note_return(session)
        session.contact_ms = self._at(now_ms)
        session.metadata_offset = max(session.metadata_offset, metadata_offset)
        session.want_shutdown = want_shutdown
        session.disconnected_ms = None
        session.was_heard = True

    def told(self, beat: BrokerHeartbeat) -> News:
        """Apply a heartbeat's report of damaged replicas, after `heard`; return the changes."""
        session = self._sessions.get(beat.broker_id)
        if session is None or session.broker_epoch != beat.broker_epoch:
            return NO_NEWS
        return session.damage.take(beat)

    def connection_opened(
        self, broker_id: BrokerId, broker_epoch: BrokerEpoch, now_ms: int
    ) -> None:
        """Record a new connection that carries the broker's heartbeats."""
        session = self._session(broker_id, broker_epoch, now_ms)
        if session is not None:
            self._note_return(session)
            session.connections += 1
            session.disconnected_ms = None

    def connection_closed(
        self, broker_id: BrokerId, broker_epoch: BrokerEpoch, now_ms: int
    ) -> None:
        """Record the loss of a connection.

        A process that dies closes its connections at once; a slow one does not.
        """
        session = self._session(broker_id, broker_epoch, now_ms)
        if session is None:
            return
        session.connections = max(0, session.connections - 1)
        if session.connections == 0:
            session.disconnected_ms = self._at(now_ms)

    def _session(
        self, broker_id: BrokerId, broker_epoch: BrokerEpoch, now_ms: int
    ) -> BrokerSession | None:
        """Return the session of this registration, created if it is newer; None if outdated."""
        session = self._sessions.get(broker_id)
        if session is None or session.broker_epoch < broker_epoch:
            session = self._sessions[broker_id] = BrokerSession(broker_epoch, self._at(now_ms))
        return session if session.broker_epoch == broker_epoch else None

    # ---- judgement

    def judge(self, now_ms: int) -> None:
        """Advance judge time; call it on every tick.

        A late tick may run before the heartbeats that arrived meanwhile are read, so sessions are
        judged by the old time for another quarter of ``stall_ms``.
        """
        if now_ms - self._ran_ms > self._stall_ms:
            self._drained_ms = self._judge_ms
            self._drains_until_ms = now_ms + self._stall_ms // 4
        self._judge_ms = self._at(now_ms)
        self._ran_ms = now_ms
        if now_ms >= self._drains_until_ms:
            self._drained_ms = self._judge_ms

    def _at(self, now_ms: int) -> int:
        """Return the judge time of ``now_ms``: within ``stall_ms`` of the last tick (rule M7)."""
        return self._judge_ms + min(max(0, now_ms - self._ran_ms), self._stall_ms)

    @property
    def judge_ms(self) -> int:
        """Judge time at the last tick."""
        return self._judge_ms

    def has_expired(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> bool:
        """Return True if this registration's session was over at the last tick."""
        session = self._sessions.get(broker_id)
        if session is None or session.broker_epoch != broker_epoch:
            return False
        return self._is_over(session)

    def _note_return(self, session: BrokerSession) -> None:
        """Require a complete damage report again if the session was over without a fence."""
        if self._is_over(session):
            session.damage.is_back()

    def _is_over(self, session: BrokerSession) -> bool:
        """Return True if the session timeout, or the grace after a lost connection, has passed."""
        if self._drained_ms - session.contact_ms > self._session_timeout_ms:
            return True
        closed = session.disconnected_ms
        return closed is not None and self._drained_ms - closed >= self._disconnect_grace_ms

    def is_valid(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> bool:
        """Return True if this registration has a session that has not expired."""
        session = self._sessions.get(broker_id)
        if session is None or session.broker_epoch != broker_epoch:
            return False
        return not self.has_expired(broker_id, broker_epoch)

    def session(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> BrokerSession | None:
        """Return the registration's session; None if it had no heartbeat or has expired."""
        session = self._sessions.get(broker_id)
        if session is None or session.broker_epoch != broker_epoch or not session.was_heard:
            return None
        return None if self.has_expired(broker_id, broker_epoch) else session

    def age_ms(self, broker_id: BrokerId) -> int | None:
        """Return the judge time since the broker's last contact, or None without a session."""
        session = self._sessions.get(broker_id)
        return None if session is None else self._judge_ms - session.contact_ms
