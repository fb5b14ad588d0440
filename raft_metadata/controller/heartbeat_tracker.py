"""Sessions of brokers: soft state, kept by every controller, judged by the active one.

Soft state stands in no log: a new active controller has its own ages, because brokers heartbeat
every controller, so a leader change neither restarts the session of a dead broker nor fences a
live one (rule M7).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from raft_metadata.common.ids import BrokerEpoch, BrokerId, MetadataOffset
from raft_metadata.controller.damage_reports import NO_NEWS, DamageReports, News
from raft_metadata.records.commands import BrokerHeartbeat


@dataclass(slots=True)
class BrokerSession:
    """What one registration of a broker last said. Ages are in judge time."""

    broker_epoch: BrokerEpoch
    contact_ms: int
    metadata_offset: MetadataOffset = MetadataOffset(0)
    want_shutdown: bool = False
    damage: DamageReports = field(default_factory=DamageReports)
    connections: int = 0
    disconnected_ms: int | None = None
    """When its last connection closed; None while one is open, or none was ever seen."""
    was_heard: bool = False
    """Whether it ever spoke to this controller; if not, the age counts from its first mention."""


class HeartbeatTracker:
    """Who was heard of when. Owned by the loop of one controller; time comes in as an argument.

    Ages are counted in *judge time*, which stands still while the judge does: it goes on by at
    most ``stall_ms`` between two runs of `judge`, so that after a stall of its own, or of the
    machine, the input that waited is drained before anybody is blamed (rule M7).
    """

    def __init__(self, *, session_timeout_ms: int, disconnect_grace_ms: int, now_ms: int) -> None:
        self._session_timeout_ms = session_timeout_ms
        self._disconnect_grace_ms = disconnect_grace_ms
        self._stall_ms = max(1, session_timeout_ms // 8)
        self._sessions: dict[BrokerId, BrokerSession] = {}
        self._judge_ms = 0
        self._ran_ms = now_ms
        self._drained_ms = 0
        """Judge time up to which all input was surely taken in: nobody is blamed for more."""
        self._drains_until_ms = now_ms

    # ---- input

    def expect(self, registered: Iterable[tuple[BrokerId, BrokerEpoch]], now_ms: int) -> None:
        """These are registered: who was never heard of starts to age now."""
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
        """A heartbeat. One of an older registration changes nothing."""
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
        """What this heartbeat, which was `heard`, says of damaged replicas."""
        session = self._sessions.get(beat.broker_id)
        if session is None or session.broker_epoch != beat.broker_epoch:
            return NO_NEWS
        return session.damage.take(beat)

    def connection_opened(
        self, broker_id: BrokerId, broker_epoch: BrokerEpoch, now_ms: int
    ) -> None:
        """A connection that carries the broker's heartbeats came up."""
        session = self._session(broker_id, broker_epoch, now_ms)
        if session is not None:
            self._note_return(session)
            session.connections += 1
            session.disconnected_ms = None

    def connection_closed(
        self, broker_id: BrokerId, broker_epoch: BrokerEpoch, now_ms: int
    ) -> None:
        """It broke: a process that died closes its connections at once, a slow one does not."""
        session = self._session(broker_id, broker_epoch, now_ms)
        if session is None:
            return
        session.connections = max(0, session.connections - 1)
        if session.connections == 0:
            session.disconnected_ms = self._at(now_ms)

    def _session(
        self, broker_id: BrokerId, broker_epoch: BrokerEpoch, now_ms: int
    ) -> BrokerSession | None:
        """The session of this registration, a new one if it is newer; None if it is over."""
        session = self._sessions.get(broker_id)
        if session is None or session.broker_epoch < broker_epoch:
            session = self._sessions[broker_id] = BrokerSession(broker_epoch, self._at(now_ms))
        return session if session.broker_epoch == broker_epoch else None

    # ---- judgement

    def judge(self, now_ms: int) -> None:
        """The judge runs; to be called on every tick.

        A tick that comes late may come before the heartbeats that waited with it: these have a
        moment to be read first.
        """
        if now_ms - self._ran_ms > self._stall_ms:
            self._drained_ms = self._judge_ms
            self._drains_until_ms = now_ms + self._stall_ms // 4
        self._judge_ms = self._at(now_ms)
        self._ran_ms = now_ms
        if now_ms >= self._drains_until_ms:
            self._drained_ms = self._judge_ms

    def _at(self, now_ms: int) -> int:
        """Judge time: see the class. Keeps rule M7."""
        return self._judge_ms + min(max(0, now_ms - self._ran_ms), self._stall_ms)

    @property
    def judge_ms(self) -> int:
        """Judge time when the judge last ran."""
        return self._judge_ms

    def has_expired(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> bool:
        """Whether, when the judge last ran, the registration's session was over."""
        session = self._sessions.get(broker_id)
        if session is None or session.broker_epoch != broker_epoch:
            return False
        return self._is_over(session)

    def _note_return(self, session: BrokerSession) -> None:
        """Nobody fenced it in time: partitions that waited for what it says are looked at again."""
        if self._is_over(session):
            session.damage.is_back()

    def _is_over(self, session: BrokerSession) -> bool:
        if self._drained_ms - session.contact_ms > self._session_timeout_ms:
            return True
        closed = session.disconnected_ms
        return closed is not None and self._drained_ms - closed >= self._disconnect_grace_ms

    def is_valid(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> bool:
        """Whether the registration was heard of and has not expired."""
        session = self._sessions.get(broker_id)
        if session is None or session.broker_epoch != broker_epoch:
            return False
        return not self.has_expired(broker_id, broker_epoch)

    def session(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> BrokerSession | None:
        """What this registration last said, if it ever spoke here and has not expired."""
        session = self._sessions.get(broker_id)
        if session is None or session.broker_epoch != broker_epoch or not session.was_heard:
            return None
        return None if self.has_expired(broker_id, broker_epoch) else session

    def age_ms(self, broker_id: BrokerId) -> int | None:
        """Judge time since the broker was last heard of."""
        session = self._sessions.get(broker_id)
        return None if session is None else self._judge_ms - session.contact_ms
