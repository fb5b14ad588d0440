"""Sessions of brokers and their reports of damaged replicas: soft state, kept by every controller.

Soft state is in no log. Brokers send heartbeats to every controller, so a new active controller has
ages of its own, and a change of the controller neither restarts the session of a dead broker nor
fences a live one (rule M7). `Controller` feeds heartbeats in; the node's loop reports connections
and calls `judge` on every tick.

A report of damaged replicas describes the logs that existed when it was made. Such a log may have
been emptied and filled again since, and the new one may be the only complete copy. So a report
names the partition epoch that its broker had seen, and is *believed* only while the partition still
has that epoch: an emptied log counts again only after a change of the partition, which makes the
report outdated. An outdated report removes no replica from ISR and ELR. Elections avoid the replica
nevertheless, until its broker's next heartbeat reports its present state a moment later (rules R6,
M7).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from raft_metadata.common.ids import BrokerEpoch, BrokerId, MetadataOffset, TopicIdPartition
from raft_metadata.controller.broker_views import NO_DAMAGED_REPLICAS, DamagedReplicas
from raft_metadata.image.metadata_image import BrokerRegistration
from raft_metadata.records.commands import BrokerHeartbeat, DamagedReplica, replica_partition

BrokerDamage = Mapping[TopicIdPartition, DamagedReplica]
"""The damaged replicas of one broker, by partition."""
NO_BROKER_DAMAGE: BrokerDamage = MappingProxyType({})


class DamageChanges(NamedTuple):
    """The changes that a heartbeat made to the known damaged replicas of its broker."""

    places: tuple[TopicIdPartition, ...]
    """Partitions whose report is new, changed or withdrawn."""
    is_report_complete: bool
    """True if the heartbeat completes the report: before, no replica of that broker was known to be
    healthy."""


NO_DAMAGE_CHANGES = DamageChanges((), is_report_complete=False)


@dataclass(slots=True)
class DamageReports:
    """The reported damaged replicas of one registration of a broker."""

    failed: BrokerDamage = field(default_factory=lambda: NO_BROKER_DAMAGE)
    is_report_complete: bool = False
    """True if it has reported all its damaged replicas to this controller in this session."""
    number: int = 0
    """The number of the newest heartbeat; an older one that arrives later is ignored."""
    covered: TopicIdPartition | None = None
    """The last partition up to which it has reported everything, page by page from the first."""

    def apply_heartbeat(self, beat: BrokerHeartbeat) -> DamageChanges:
        """Apply a heartbeat of this registration and return what it changed."""
        if beat.number < self.number:
            return NO_DAMAGE_CHANGES
        self.number = beat.number
        first, last = beat.failed_after, beat.failed_up_to
        places = self._replace(beat) if beat.failed or self.failed else ()
        was_complete = self.is_report_complete
        if first is None or (self.covered is not None and first <= self.covered):
            self.is_report_complete = self.is_report_complete or last is None
            self.covered = last
        return DamageChanges(
            places, is_report_complete=self.is_report_complete and not was_complete
        )

    def require_complete_report(self) -> None:
        """Require a complete report again, because the broker's session had expired for a while.

        Decisions made meanwhile treated it as a broker without a report. The known damage stays;
        the next complete round is news.
        """
        self.is_report_complete, self.covered = False, None

    def _replace(self, beat: BrokerHeartbeat) -> tuple[TopicIdPartition, ...]:
        """Replace the known damage in the range of this page; return the changed partitions."""
        first, last = beat.failed_after, beat.failed_up_to
        reported = {replica_partition(replica): replica for replica in beat.failed}
        known = {
            where: one
            for where, one in self.failed.items()
            if (first is None or where > first) and (last is None or where <= last)
        }
        if reported == known:
            return ()
        others = {where: one for where, one in self.failed.items() if where not in known}
        self.failed = MappingProxyType(others | reported)
        return tuple(
            where for where in {**known, **reported} if known.get(where) != reported.get(where)
        )


class DamageByPartition:
    """The reports of all brokers by partition, rebuilt only when one of them has changed."""

    def __init__(self) -> None:
        self._of: dict[BrokerId, BrokerDamage] = {}
        self._failed: DamagedReplicas = NO_DAMAGED_REPLICAS

    def of(self, reported: dict[BrokerId, BrokerDamage]) -> DamagedReplicas:
        """Return the damaged replicas by partition.

        ``reported``: the reports of the live brokers that have damaged replicas.
        """
        same = reported.keys() == self._of.keys() and all(
            self._of[broker_id] is failed for broker_id, failed in reported.items()
        )
        if not same:
            found: dict[TopicIdPartition, dict[BrokerId, DamagedReplica]] = {}
            for broker_id, failed in reported.items():
                for where, one in failed.items():
                    found.setdefault(where, {})[broker_id] = one
            self._of, self._failed = reported, found
        return self._failed


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
    had_heartbeat: bool = False
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
        self._read_ms = self._stall_ms // 4
        """Time in which the loop surely reads what had arrived before it."""
        self._judge_ms = 0
        self._ran_ms = now_ms
        self._drained_ms = 0
        """Judge time up to which all input was surely read; sessions are judged by this time."""
        self._next_drained_ms = 0
        """Judge time of the tick at `_reading_since_ms`, whose input is being read."""
        self._reading_since_ms = now_ms

    # ---- input

    def expect_brokers(
        self, registered: Iterable[tuple[BrokerId, BrokerEpoch]], now_ms: int
    ) -> None:
        """Start a session, aged from now, for each of these registrations that has none."""
        for broker_id, broker_epoch in registered:
            self._session(broker_id, broker_epoch, now_ms)

    def record_heartbeat(
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
        session.had_heartbeat = True

    def record_damage(self, beat: BrokerHeartbeat) -> DamageChanges:
        """Apply the report of damaged replicas, after `record_heartbeat`; return the changes."""
        session = self._find(beat.broker_id, beat.broker_epoch)
        return NO_DAMAGE_CHANGES if session is None else session.damage.apply_heartbeat(beat)

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

    def _find(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> BrokerSession | None:
        """Return the session of this registration, or None if it has none."""
        session = self._sessions.get(broker_id)
        return session if session is not None and session.broker_epoch == broker_epoch else None

    # ---- judgement

    def judge(self, now_ms: int) -> None:
        """Advance judge time; call it on every tick.

        A tick may run before the heartbeats that arrived since the one before are read, and the
        more of them the later it is. So sessions are judged by the time of an earlier tick, long
        enough ago for all its input to be read.
        """
        self._judge_ms = self._at(now_ms)
        self._ran_ms = now_ms
        if now_ms - self._reading_since_ms >= self._read_ms:
            self._drained_ms = self._next_drained_ms
            self._next_drained_ms, self._reading_since_ms = self._judge_ms, now_ms

    def _at(self, now_ms: int) -> int:
        """Return the judge time of ``now_ms``: within ``stall_ms`` of the last tick (rule M7)."""
        return self._judge_ms + min(max(0, now_ms - self._ran_ms), self._stall_ms)

    @property
    def judge_ms(self) -> int:
        """Judge time at the last tick."""
        return self._judge_ms

    def has_expired(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> bool:
        """Return True if this registration's session was over at the last tick."""
        session = self._find(broker_id, broker_epoch)
        return session is not None and self._is_over(session)

    def _note_return(self, session: BrokerSession) -> None:
        """Require a complete damage report again if the session was over without a fence."""
        if self._is_over(session):
            session.damage.require_complete_report()

    def _is_over(self, session: BrokerSession) -> bool:
        """Return True if the session timeout, or the grace after a lost connection, has passed."""
        if self._drained_ms - session.contact_ms > self._session_timeout_ms:
            return True
        closed = session.disconnected_ms
        return closed is not None and self._drained_ms - closed >= self._disconnect_grace_ms

    def is_valid(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> bool:
        """Return True if this registration has a session that has not expired."""
        session = self._find(broker_id, broker_epoch)
        return session is not None and not self._is_over(session)

    def session(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> BrokerSession | None:
        """Return the registration's session; None if it had no heartbeat or has expired."""
        session = self._find(broker_id, broker_epoch)
        if session is None or not session.had_heartbeat or self._is_over(session):
            return None
        return session

    def live_sessions(
        self, brokers: Mapping[BrokerId, BrokerRegistration]
    ) -> Iterator[tuple[BrokerRegistration, BrokerSession]]:
        """Yield each registration that has a live session, and the session (see `session`)."""
        for broker in brokers.values():
            session = self.session(broker.broker_id, broker.broker_epoch)
            if session is not None:
                yield broker, session

    def age_ms(self, broker_id: BrokerId) -> int | None:
        """Return the judge time since the broker's last contact, or None without a session."""
        session = self._sessions.get(broker_id)
        return None if session is None else self._judge_ms - session.contact_ms
