"""State and decisions of a partition's leader: followers, ISR proposals, high watermark. Pure.

`Partition` owns one `LeaderState` for each leader epoch and calls it when followers open sessions
or acknowledge, when an image changes the partition, and when time passes.

One quantity decides everything, the counted end of a replica: its durable end for ``flush=ack``,
its log end for ``flush=os`` (rule R1). All follower state belongs to one leader epoch and one
session and is created anew with either (rule R4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

from raft_metadata.common.ids import BrokerEpoch, BrokerId, LeaderEpoch, PartitionEpoch

OBSERVES = -1
"""In place of a durable end: a follower that never joins in this session, whatever it holds. A
broker that lost its replica follows for a while to learn what became of its produces; were it added
again meanwhile, the leader must not count a log that is about to be set aside."""


@dataclass(slots=True)
class FollowerState:
    """One follower, in one session of one leader epoch."""

    session: int
    broker_epoch: BrokerEpoch
    sent: int
    """Next offset to push."""
    log_end: int
    """Its reported log end offset; the durable end of a follower that uses ``flush=ack``."""
    durable_end: int
    caught_up_ms: int
    """Time at which it last held everything that the leader had then."""
    mark_ms: int
    mark_end: int
    """The leader's log end at ``mark_ms``: a follower that reaches it was caught up as of then.

    Kept until it is reached. Acknowledgements of a stream overlap: a mark that moved with each of
    them would never be reached under load, and every healthy follower would count as late.
    """
    log_start: int
    """Its log start offset, durable; -1 until it is reported."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The topic's configs about replication: ``raft_metadata.common.configs``."""

    min_isr: int
    by_durable: bool
    """``flush=ack``: the durable end decides; else the log end (rule R1)."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """An ISR to be sent to the controller, as one attempt (rule M3)."""

    attempt: int
    leader_epoch: LeaderEpoch
    partition_epoch: PartitionEpoch
    isr: tuple[tuple[BrokerId, BrokerEpoch], ...]
    reason: str


@lru_cache(maxsize=4_096)
def _shared_set(isr: tuple[BrokerId, ...]) -> frozenset[BrokerId]:
    """One set for all partitions with this ISR: thousands of them have one of a few."""
    return frozenset(isr)


class LeaderState:
    """The leader's side of one partition in one leader epoch.

    Owned by its `Partition`; never outlives the epoch. Invariants: the high watermark never goes
    back; it moves only while the *committed* ISR has at least ``min_isr`` members (rule R1), and
    only to what every member of the *maximal* ISR is known to hold.
    """

    __slots__ = (
        "by_durable",
        "epoch",
        "epoch_start",
        "followers",
        "in_flight",
        "isr",
        "me",
        "min_isr",
        "partition_epoch",
        "proposals",
        "replicas",
        "retry_ms",
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
        """Replicas that may join; a reassignment changes them. A newer image may have more."""
        self.isr = _shared_set(tuple(isr))
        self.partition_epoch = partition_epoch
        self.min_isr = settings.min_isr
        self.by_durable = settings.by_durable
        self.since_ms = now_ms
        self.retry_ms = 0
        """No attempt before this time: set after one whose outcome stayed unknown."""
        self.followers: dict[BrokerId, FollowerState] = {}
        self.proposals: dict[int, frozenset[BrokerId]] = {}
        """Attempts that may still be committed: each counts until it is refused itself (M3)."""
        self.in_flight: int | None = None

    def configure(self, settings: Settings) -> None:
        """The topic's configs changed: from now on these count.

        Rule R1, from ``os`` to ``ack``: the high watermark may stand where log ends had been. It
        stays, and moves, and answers, only once every durable end has passed it.
        """
        self.min_isr = settings.min_isr
        self.by_durable = settings.by_durable

    def reassign(self, replicas: Iterable[BrokerId]) -> None:
        """Replicas were added or removed (KIP-455)."""
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
        """A validated follower starts a session at its own log end.

        ``ends`` = log end, durable end, log start.
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
        """Take an acknowledgement; False if it is not of the present session (rule R4)."""
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

    def closed(self, follower: BrokerId, session: int) -> None:
        """The session is over. What was acknowledged stays known for the rest of the epoch."""
        state = self.followers.get(follower)
        if state is not None and state.session == session:
            state.session = -1

    def end_of(self, replica: BrokerId) -> int:
        """Rule R1: the end of a follower that counts; 0 where nothing was proven in this epoch."""
        state = self.followers.get(replica)
        if state is None:
            return 0
        return state.durable_end if self.by_durable else state.log_end

    def replicated_to(self, own_end: int) -> int:
        """Rule R7: below this every assigned replica holds the log; 0 while one is not known.

        One that was just assigned, or that did not open a session in this epoch, is not known. Who
        is connected counts too: its image may be ahead of this one, and know that it is assigned.
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
        """The committed ISR and every attempt that may still turn out to be committed."""
        return self.isr.union(*self.proposals.values()) if self.proposals else self.isr

    def high_watermark(self, own_end: int, present: int) -> int:
        """The high watermark, given the leader's own end that counts and the present value."""
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
        """All conditions on one snapshot of the follower's state (KAFKA-15221).

        ``eligible_epoch``: the broker epoch of the follower in the image if it is unfenced and not
        shutting down, else None.
        """
        state = self.followers.get(follower)
        if state is None or state.session < 0 or state.broker_epoch != eligible_epoch:
            return False
        if follower not in self.replicas or state.durable_end == OBSERVES:
            return False
        end = state.durable_end if self.by_durable else state.log_end
        return end >= self.epoch_start and end >= high_watermark

    def laggards(self, leader_end: int, now_ms: int, lag_max_ms: int) -> frozenset[BrokerId]:
        """Members that have not been caught up for ``lag_max_ms``."""
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
        """Shift all times, because this process stood still: no follower is blamed (rule M7)."""
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
    ) -> Proposal | None:
        """The next attempt, if there is reason for one; None while another is in flight.

        With attempts of unknown outcome open and nothing to change, the committed ISR is proposed
        again: the controller bumps the partition epoch, which settles them (rule M3).
        """
        if self.in_flight is not None:
            return None
        joining = frozenset(joiners)
        if joining:
            isr, reason = self.isr | joining, f"joined={sorted(joining)}"
        elif leavers:
            isr, reason = self.isr - leavers, f"lag_time removed={sorted(leavers)}"
        elif self.proposals:
            isr, reason = self.isr, "settle unknown attempts"
        else:
            return None
        members = []
        for replica in sorted(isr):
            state = self.followers.get(replica)
            known = state.broker_epoch if state else epoch_of(replica)
            members.append((replica, known))
        self.proposals[attempt] = isr
        self.in_flight = attempt
        return Proposal(attempt, self.epoch, self.partition_epoch, tuple(members), reason)

    def adopt(self, partition_epoch: PartitionEpoch, isr: Iterable[BrokerId]) -> bool:
        """A committed ISR, from the image or an answer: only a higher epoch settles attempts."""
        if partition_epoch <= self.partition_epoch:
            return False
        self.partition_epoch, self.isr = partition_epoch, _shared_set(tuple(isr))
        self.proposals = {}
        return True

    def refused(self, attempt: int) -> None:
        """Drop this attempt, which surely is not committed; others keep counting (rule M3)."""
        self.proposals.pop(attempt, None)
        if self.in_flight == attempt:
            self.in_flight = None

    def unknown(self, attempt: int, retry_ms: int) -> None:
        """No certain answer: the attempt keeps counting; another may be made at ``retry_ms``."""
        if self.in_flight == attempt:
            self.in_flight = None
        self.retry_ms = retry_ms
