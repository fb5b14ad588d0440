"""State and decisions of a partition's leader: followers, ISR, high watermark. Pure.

`Partition` owns one `LeaderState` for each leader epoch and calls it when followers open sessions
or acknowledge, when an image changes the partition, and when time passes. The `IsrManager` sends
the ISR changes that it returns.

All decisions use one quantity, the *counted end* of a replica: its durable end for ``flush=ack``,
its log end for ``flush=os`` (rule R1). All follower state belongs to one leader epoch and one
session and is created anew with either (rule R4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

from broker.replication import isr_state
from broker.replication.isr_state import COMMITTED, IsrChange, IsrChangeKind, IsrState
from raft_metadata.common.ids import BrokerEpoch, BrokerId, LeaderEpoch, PartitionEpoch

NOT_COUNTED = -1
"""In place of a durable end: a follower that can't join the ISR in this session, whatever it holds.
A broker whose replica was reassigned elsewhere follows for a while, to learn the outcomes of its
delayed produces. If the replica is assigned to it again meanwhile, the leader must not count a log
that is about to be quarantined."""


@dataclass(slots=True)
class FollowerState:
    """The state of a follower in one session of one leader epoch."""

    session: int
    broker_epoch: BrokerEpoch
    sent: int
    """Next offset to push."""
    log_end: int
    """Log end that it reported. While it uses ``flush=ack`` it reports its durable end here."""
    durable_end: int
    caught_up_ms: int
    """Latest time at which it is known to have held everything that the leader held then."""
    mark_ms: int
    mark_end: int
    """The leader's log end at ``mark_ms``; a follower that reaches it was caught up at ``mark_ms``.

    It is kept until it is reached. Acknowledgements of a stream overlap: under load a mark that
    moved with each of them would never be reached, and every healthy follower would count as late.
    """
    log_start: int
    """Its durable log start offset."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The configs of a topic that concern replication."""

    min_isr: int
    by_durable: bool
    """True for ``flush=ack``: the counted end is the durable end; else the log end (rule R1)."""


@lru_cache(maxsize=4_096)
def _shared_set(isr: tuple[BrokerId, ...]) -> frozenset[BrokerId]:
    """Return the set of an ISR, shared by all partitions with the same ISR to save memory."""
    return frozenset(isr)


class LeaderState:
    """The leader's state of one partition in one leader epoch.

    Owned by its `Partition`; never outlives the epoch. Invariants: the high watermark never moves
    back. It moves only while the *committed* ISR has at least ``min_isr`` members, and only up to
    the smallest counted end in the *maximal* ISR (rule R1).
    """

    __slots__ = (
        "by_durable",
        "epoch",
        "epoch_start",
        "followers",
        "isr",
        "isr_state",
        "me",
        "min_isr",
        "partition_epoch",
        "replicas",
        "since_ms",
    )  # fmt: skip

    def __init__(
        self,
        *,
        me: BrokerId,
        epoch: LeaderEpoch,
        epoch_start: int,
        replicas: Iterable[BrokerId],
        isr: Iterable[BrokerId],
        partition_epoch: PartitionEpoch,
        settings: Settings,
        now_ms: int,
    ) -> None:
        self.me = me
        self.epoch = epoch
        self.epoch_start = epoch_start
        self.replicas = _shared_set(tuple(replicas))
        """Assigned replicas, which may join the ISR; a reassignment changes them."""
        self.isr = _shared_set(tuple(isr))
        self.partition_epoch = partition_epoch
        self.min_isr = settings.min_isr
        self.by_durable = settings.by_durable
        self.since_ms = now_ms
        self.followers: dict[BrokerId, FollowerState] = {}
        self.isr_state: IsrState = COMMITTED
        """The changes of the ISR that may be committed."""

    def configure(self, settings: Settings) -> None:
        """Apply changed configs of the topic.

        From ``os`` to ``ack`` the high watermark may be above the durable ends. It stays, and moves
        on only when every durable end has passed it (rule R1).
        """
        self.min_isr = settings.min_isr
        self.by_durable = settings.by_durable

    def reassign(self, replicas: Iterable[BrokerId]) -> None:
        """Apply added or removed replicas (KIP-455)."""
        self.replicas = _shared_set(tuple(replicas))

    # followers

    def opened(
        self,
        follower: BrokerId,
        broker_epoch: BrokerEpoch,
        session: int,
        ends: tuple[int, int, int],
        leader_end: int,
        now_ms: int,
    ) -> FollowerState:
        """Begin the session of a validated follower, at its own log end.

        ``ends``: its log end, durable end and log start.
        """
        log_end, durable_end, log_start = ends
        old = self.followers.get(follower)
        caught_up_ms = old.caught_up_ms if old else self.since_ms
        state = FollowerState(
            session, broker_epoch, log_end, durable_end, durable_end, caught_up_ms, now_ms,
            leader_end, log_start,
        )  # fmt: skip
        self.followers[follower] = state
        return state

    def acknowledged(
        self,
        follower: BrokerId,
        session: int,
        ends: tuple[int, int, int],
        leader_end: int,
        now_ms: int,
    ) -> bool:
        """Apply an acknowledgement; return False if it is not of the present session (rule R4).

        ``ends``: the follower's log end, durable end and log start. None of them moves back.
        """
        state = self.followers.get(follower)
        if state is None or state.session != session:
            return False
        state.log_end = max(state.log_end, ends[0])
        state.durable_end = max(state.durable_end, ends[1])
        state.log_start = max(state.log_start, ends[2])
        end = state.durable_end if self.by_durable else state.log_end
        if end >= leader_end:
            state.caught_up_ms = now_ms
        elif end >= state.mark_end:
            state.caught_up_ms = max(state.caught_up_ms, state.mark_ms)
        else:
            return True
        state.mark_ms, state.mark_end = now_ms, leader_end
        return True

    def appended(self, base_offset: int, now_ms: int) -> None:
        """Note that followers which hold everything below ``base_offset`` were caught up until now.

        Their lag begins with this append (rule R1). Counted from their last acknowledgement, it
        would contain the idle time before, in which there was nothing to acknowledge.
        """
        for state in self.followers.values():
            if (state.durable_end if self.by_durable else state.log_end) >= base_offset:
                state.caught_up_ms = now_ms

    def closed(self, follower: BrokerId, session: int) -> None:
        """End a session. The acknowledged ends remain known for the rest of the leader epoch."""
        state = self.followers.get(follower)
        if state is not None and state.session == session:
            state.session = -1

    def end_of(self, replica: BrokerId) -> int:
        """Return the counted end of a follower; 0 if none was reported in this epoch (rule R1)."""
        state = self.followers.get(replica)
        if state is None:
            return 0
        return state.durable_end if self.by_durable else state.log_end

    def replicated_to(self, own_end: int) -> int:
        """Return the offset that every assigned replica has reached; 0 if one is unknown (rule R7).

        A replica that was just assigned, or opened no session in this epoch, is unknown. Connected
        followers count as well: their image may be newer, and contain their assignment.
        """
        connected = (state.log_end for state in self.followers.values() if state.session >= 0)
        end = min([own_end, *connected])
        for replica in self.replicas:
            if replica != self.me:
                state = self.followers.get(replica)
                end = min(end, 0 if state is None else state.log_end)
        return max(end, 0)

    def start_of(self, replica: BrokerId) -> int:
        """Return the log start offset that a follower reported in this epoch; -1 if none."""
        state = self.followers.get(replica)
        return -1 if state is None else state.log_start

    # high watermark

    def maximal_isr(self) -> frozenset[BrokerId]:
        """Return the committed ISR with all members of attempts that may still be committed."""
        if self.isr_state is COMMITTED:
            return self.isr
        return self.isr.union(*isr_state.open_attempts(self.isr_state).values())

    def high_watermark(self, own_end: int, present: int) -> int:
        """Return the high watermark for the leader's own counted end; at least ``present``."""
        if len(self.isr) < self.min_isr:
            return present
        end = own_end
        for replica in self.maximal_isr():
            if replica != self.me:
                end = min(end, self.end_of(replica))
        return max(end, present)

    # ISR

    def may_join(
        self, follower: BrokerId, high_watermark: int, eligible_epoch: BrokerEpoch | None
    ) -> bool:
        """Return True if a follower meets all conditions to join the ISR (KAFKA-15221).

        All conditions are checked on one snapshot of its state. ``eligible_epoch``: its broker
        epoch in the image if it is unfenced and not shutting down, else None.
        """
        state = self.followers.get(follower)
        if state is None or state.session < 0 or state.broker_epoch != eligible_epoch:
            return False
        if follower not in self.replicas or state.durable_end == NOT_COUNTED:
            return False
        end = state.durable_end if self.by_durable else state.log_end
        return end >= self.epoch_start and end >= high_watermark

    def laggards(self, leader_end: int, now_ms: int, lag_max_ms: int) -> frozenset[BrokerId]:
        """Return the members of the ISR that were not caught up for ``lag_max_ms``."""
        late = set()
        for replica in self.isr:
            if replica == self.me or self.end_of(replica) >= leader_end:
                continue
            state = self.followers.get(replica)
            caught_up_ms = state.caught_up_ms if state else self.since_ms
            if now_ms - caught_up_ms > lag_max_ms:
                late.add(replica)
        return frozenset(late)

    def forgive(self, stalled_ms: int) -> None:
        """Shift all times by a stall of this process, so that no follower is late by it (M7)."""
        self.since_ms += stalled_ms
        for state in self.followers.values():
            state.caught_up_ms += stalled_ms
            state.mark_ms += stalled_ms

    def propose(
        self,
        attempt: int,
        joiners: Iterable[BrokerId],
        leavers: frozenset[BrokerId],
        epoch_of: Callable[[BrokerId], BrokerEpoch],
    ) -> IsrChange | None:
        """Return the next ISR change, which is in flight then; None if nothing is to change.

        No other change may be in flight. If attempts of unknown outcome remain and nothing is to
        change, the committed ISR is proposed again: the controller increases the partition epoch,
        which settles them (rule M3).
        """
        joining = frozenset(joiners)
        if joining:
            kind, isr = IsrChangeKind.EXPAND, self.isr | joining
        elif leavers:
            kind, isr = IsrChangeKind.SHRINK, self.isr - leavers
        elif self.isr_state is not COMMITTED:
            kind, isr = IsrChangeKind.CONFIRM, self.isr
        else:
            return None
        members = []
        for replica in sorted(isr):
            state = self.followers.get(replica)
            known = state.broker_epoch if state else epoch_of(replica)
            members.append((replica, known))
        change = IsrChange(
            attempt, self.epoch, self.partition_epoch, tuple(members), kind,
            tuple(sorted(isr ^ self.isr)),
        )  # fmt: skip
        self.isr_state = isr_state.proposed(self.isr_state, change)
        return change

    def adopt(self, partition_epoch: PartitionEpoch, isr: Iterable[BrokerId]) -> bool:
        """Apply a committed ISR from the image or an answer; return False if it is not newer.

        Only a higher partition epoch settles the attempts that may still be committed.
        """
        if partition_epoch <= self.partition_epoch:
            return False
        self.partition_epoch, self.isr = partition_epoch, _shared_set(tuple(isr))
        self.isr_state = isr_state.superseded(self.isr_state)
        return True

    def refused(self, attempt: int) -> None:
        """Drop an attempt that is surely not committed; others keep counting (rule M3)."""
        self.isr_state = isr_state.refused(self.isr_state, attempt)

    def unknown(self, attempt: int, retry_ms: int) -> None:
        """Keep counting an attempt without a certain answer; allow another at ``retry_ms``."""
        self.isr_state = isr_state.released(self.isr_state, attempt, retry_ms)
