"""A replica of one partition on this broker: its role, its log, its high watermark. Pure.

The `ReplicaManager` gives the replica its role from the image (leader, follower or unassigned) and
passes the frames of the streams to it. `Partition` validates each frame by leader epoch and session
(rule R4), appends to the log, moves the high watermark, and completes delayed produces. It does I/O
only through the port to its log, and receives the time as an argument.

The functions before it decide truncation (`divergence`, `truncation_point`), log starts that
followers take from their leader (rule R10), and tombstones, which compaction drops only below the
offset that every assigned replica has passed (rule R7).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from broker.replication.delayed_produces import DelayedProduce, DelayedProduces
from broker.replication.frames import START_OVER, Ack, Diverging, Open, Push, Refused, Skip, Valid
from broker.replication.isr_state import IsrChange, in_flight, may_propose
from broker.replication.leader_state import (
    NOT_COUNTED,
    FollowerState,
    LeaderState,
    Settings,
)
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import (
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    PartitionEpoch,
    TopicIdPartition,
)
from raft_metadata.image.metadata_image import BrokerRegistration, PartitionRegistration
from raft_metadata.records.records import BrokerState


class ReplicaLog(Protocol):
    """Port to a log: ``broker.log.partition_log``, or a log in memory in simulations."""

    @property
    def name(self) -> str: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def durable_end(self) -> int: ...
    @property
    def last_epoch(self) -> int: ...
    @property
    def dropped_to(self) -> int: ...
    @property
    def compacted_to(self) -> int: ...
    def note_dropped(self, offset: int) -> None: ...
    def epoch_at(self, offset: int) -> int: ...
    def end_of_epoch(self, epoch: int) -> tuple[int, int]: ...
    def start_epoch(self, epoch: int) -> None: ...
    def append_as_follower(self, batches: memoryview | bytes) -> None: ...
    def truncate_to(self, end_offset: int) -> None: ...
    def producers_told(self, as_of: int) -> bytes | None: ...
    def start_over(self, offset: int, producers: bytes | None = None) -> None: ...
    def advance_log_start(self, offset: int) -> bool: ...
    def request_flush(self) -> None: ...


_log = logging.getLogger("broker.replication")


def divergence(log: ReplicaLog, epoch: LeaderEpoch, message: Open) -> Diverging | None:
    """Return the leader's answer to a log that is no prefix of its own; None if it is one.

    A log that ends below this log's start also gets None: the follower starts over at that start,
    whatever it holds. An empty log is a prefix of every log that reaches as far. Of epochs whose
    entries were deleted here it is only known that they ended at or below the log start.
    """
    if message.log_end < log.log_start_offset:
        return None
    if message.last_epoch < 0:
        if message.log_end <= log.log_end_offset:
            return None
        return Diverging(message.request, epoch, -1, log.log_end_offset)
    at_epoch, end = log.end_of_epoch(message.last_epoch)
    if at_epoch < 0 and message.log_end == log.log_start_offset:
        return None
    if at_epoch < message.last_epoch or end < message.log_end:
        return Diverging(message.request, epoch, at_epoch, end)
    return None


def crash_proof_start(log: ReplicaLog) -> int:
    """Return the log start offset that remains after any crash.

    A log that has just started over may have its old start again after a crash.
    """
    return log.log_start_offset if log.durable_end >= log.log_start_offset else 0


def would_show_deleted(role: LeaderState, follower: BrokerId, log: ReplicaLog) -> bool:
    """Return True if a follower would show records, as leader, that are deleted here (rule R10).

    Such a follower may not join the ISR.
    """
    return role.start_of(follower) < log.log_start_offset


def replicas_that_may_restore(
    role: LeaderState, registration: PartitionRegistration | None, log: ReplicaLog, offset: int
) -> frozenset[BrokerId]:
    """Return the replicas that may lead next and are not known to begin at or above ``offset``.

    Only if there are none is it certain that no clean election brings deleted records back. The
    candidates are the maximal ISR and the eligible replicas (KIP-966). If the image is older than
    the ISR that the leader knows, its eligible replicas may be outdated: then every assigned
    replica is a candidate. The leader, whose ``log`` this is, may lead again after a crash, so its
    own start counts only once it is durable.
    """
    candidates = role.maximal_isr() | {role.me}
    if registration is None or registration.partition_epoch < role.partition_epoch:
        candidates |= role.replicas
    else:
        candidates = candidates.union(registration.elr)

    def begins(broker: BrokerId) -> int:
        return crash_proof_start(log) if broker == role.me else role.start_of(broker)

    return frozenset(broker for broker in candidates if begins(broker) < offset)


def truncation_point(log: ReplicaLog, message: Diverging) -> int:
    """Return the end of the last epoch that leader and follower share, where to truncate.

    If the leader knows none of the follower's epochs, everything that the follower may keep lies
    below the leader's log start.
    """
    if message.at_epoch < 0:
        return message.end
    return min(message.end, log.end_of_epoch(message.at_epoch)[1])


def truncate_to_leader(partition: Partition, message: Diverging, end: int) -> None:
    """Truncate the log to ``end``, because the leader does not have what follows."""
    log = partition.log
    _log.info(
        "truncated log=%s topic_id=%s from=%d to=%d leader_epoch=%d",
        log.name, partition.id.topic_id, log.log_end_offset, end, message.leader_epoch,
    )  # fmt: skip
    if message.at_epoch < 0 and end > log.log_start_offset:
        # The rest of it lies below the leader's log start.
        log.start_over(end, message.producers)
    else:
        log.truncate_to(end)
    partition.high_watermark = max(partition.high_watermark, log.log_start_offset)


def follow_valid(partition: Partition, message: Valid) -> None:
    """Move the log start to the leader's; start over if the log ends at or below that.

    Raises KafkaError if the leader did not tell of its producers.
    """
    log, leader_start = partition.log, message.log_start
    if leader_start <= log.log_start_offset:
        return
    if leader_start >= log.log_end_offset:
        _start_over(partition, leader_start, message.producers)
    else:
        log.advance_log_start(leader_start)
        # Readers see the new start once it is durable; nothing below it is needed (invariant L8).
        partition.high_watermark = max(partition.high_watermark, leader_start)


def follow_push(partition: Partition, leader_start: int) -> None:
    """Move the log start to the leader's, which a push carried, if this log reaches it."""
    if leader_start <= partition.log.log_end_offset:
        try:
            partition.log.advance_log_start(leader_start)
        except KafkaError as error:  # the log is offline; the push itself was appended
            _log.warning("log start of the leader not applied error=%s", error)


def _start_over(partition: Partition, offset: int, producers: bytes | None) -> None:
    log = partition.log
    if producers is None:  # it would forget homes for ever (rule S5)
        text = f"the leader of {log.name} did not tell of the producers below {offset}"
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, text)
    _log.info(
        "starts over at the leader's log start log=%s topic_id=%s log_end=%d start=%d",
        log.name, partition.id.topic_id, log.log_end_offset, offset,
    )  # fmt: skip
    log.start_over(offset, producers)
    partition.high_watermark = offset


def producers_told(partition: Partition) -> bytes | None:
    """Return what a replica whose log begins anew at this leader's log start is told (rule S5).

    That is, of the producers, what is committed: another leader may lack the rest. None: not now.
    """
    log = partition.log
    return log.producers_told(max(partition.high_watermark, log.log_start_offset))


def start_over_answer(
    role: LeaderState, follower: BrokerId, log: ReplicaLog, message: Open
) -> Diverging | None:
    """Return the answer to a follower that may lack tombstones which are dropped here; else None.

    It may hold values that those tombstones deleted, so it must start over. A member of the ISR is
    never asked to: its log ends at or above the high watermark, and nothing above that is dropped.
    """
    empty = message.last_epoch < 0
    if empty or message.log_end >= log.dropped_to or follower in role.maximal_isr():
        return None
    return Diverging(message.request, role.epoch, START_OVER, log.log_start_offset)


def note_missing_tombstones(log: ReplicaLog, dropped_to: int) -> None:
    """Record the offset below which tombstones may be missing in this log once it is filled.

    Called before a session begins. Raises KafkaError if it can't be written now; the session is
    then requested again.
    """
    if log.log_end_offset < dropped_to:
        log.note_dropped(dropped_to)


def start_over(partition: Partition, message: Diverging) -> None:
    """Empty the log; it begins again at the leader's log start.

    Apart from an unclean election, only here does a high watermark go back.
    """
    _log.info(
        "starts over topic_id=%s partition=%d from=%d to=%d leader_epoch=%d",
        partition.id.topic_id, partition.id.partition, partition.log.log_end_offset, message.end,
        message.leader_epoch,
    )  # fmt: skip
    partition.log.start_over(message.end, message.producers)
    partition.high_watermark = message.end


def start_over_if_required(
    partition: Partition, message: Diverging, end: int, *, is_unclean: bool
) -> bool:
    """Start the log over if nothing of it may stay; return True then.

    That is so if the leader requires it, or after an unclean election (``is_unclean``) that
    truncates into a compacted part: compaction removed records because of newer ones, which the new
    leader does not have. It may still hold the older ones, while this replica has neither. Likewise
    if it truncates below this log's start: the leader may hold what is deleted here, whose homes
    this replica would forget (rule S5).
    """
    log = partition.log
    if message.at_epoch != START_OVER:
        lacking = max(min(log.compacted_to, log.log_end_offset), log.log_start_offset)
        if not (is_unclean and end < lacking):
            return False
        message = message._replace(end=0, producers=None)
    start_over(partition, message)
    return True


DEPOSED_WAIT_MS = 1_000
"""Time in which a former leader can learn what the new leader holds. Afterwards its delayed
produces are *unknown*: records that only it held have no certain outcome until the new leader
appends another record (rule R5)."""
_NO_DELAYED_PRODUCES = DelayedProduces()
"""Shared by all partitions that never had a delayed produce; nothing is ever added to it."""


@dataclass(frozen=True, slots=True)
class NoSession:
    """No session was requested yet, or its connection ended."""


@dataclass(frozen=True, slots=True)
class RequestedSession:
    """The leader has not answered the newest request; earlier ones no longer count (rule R4)."""

    request: int


@dataclass(frozen=True, slots=True)
class OpenSession:
    """The leader has validated this log as a prefix of its own, and pushes what follows."""

    number: int


@dataclass(frozen=True, slots=True)
class RefusedSession:
    """The newest request was refused, or an error ended its session; repeated after a pause."""


SessionState = NoSession | RequestedSession | OpenSession | RefusedSession

NO_SESSION = NoSession()
REFUSED_SESSION = RefusedSession()


class PushResult(Enum):
    """Result of a push."""

    APPENDED = auto()
    GAP = auto()
    """Records before it are missing here: a session must be requested again."""
    STALE = auto()
    """Not of the open session, hence dropped (rule R4)."""


@dataclass(slots=True)
class Following:
    """The role of a follower."""

    leader: BrokerId
    epoch: LeaderEpoch
    session: SessionState = NO_SESSION
    asked_ms: int = 0
    """Time of the newest request for a session."""
    refusals: int = 0
    """Refused requests and ended sessions in a row; the pause doubles with each."""
    unclean_epoch: int = -1
    """The leader epoch of the partition's last unclean election."""
    replicated_to: int = 0
    """The offset that every assigned replica has reached, as last sent by the leader (rule R7)."""


@dataclass(slots=True)
class Unassigned:
    """The role without a leader, or of a broker that may not take part yet."""

    epoch: LeaderEpoch


Role = LeaderState | Following | Unassigned


class Partition:
    """The role, log and high watermark of one replica on this broker.

    Single-threaded; owned by the `ReplicaManager` for as long as this broker is a replica.
    Invariants: the high watermark never passes the log end, and goes back only where an unclean
    election or a log that starts over requires it; a follower truncates below it only then; role
    changes and appends never interleave.
    """

    __slots__ = (
        "_early_opens",
        "agreed_epoch",
        "broker_epoch",
        "broker_id",
        "delayed_produces",
        "high_watermark",
        "id",
        "is_observer",
        "log",
        "on_high_watermark",
        "role",
        "settings",
    )  # fmt: skip

    def __init__(
        self,
        partition_id: TopicIdPartition,
        broker_id: BrokerId,
        log: ReplicaLog,
        settings: Settings,
        *,
        high_watermark: int = 0,
        on_high_watermark: Callable[[Partition], None] = lambda _: None,
    ) -> None:
        self.id = partition_id
        self.broker_id = broker_id
        self.log = log
        self.settings = settings
        self.high_watermark = max(min(high_watermark, log.log_end_offset), log.log_start_offset)
        self.on_high_watermark = on_high_watermark
        self.role: Role = Unassigned(LeaderEpoch(-1))
        self.broker_epoch: BrokerEpoch | None = None
        self.is_observer = False
        """True once this broker is no assigned replica: it follows without counting for the ISR,
        until its delayed produces are completed."""
        self.agreed_epoch = -1
        """Newest leader epoch in which this replica led, or in which the leader validated its
        log."""
        self.delayed_produces = _NO_DELAYED_PRODUCES
        self._early_opens: dict[BrokerId, Open] | None = None

    @property
    def early_opens(self) -> dict[BrokerId, Open]:
        """Requests whose leader epoch or broker epoch is newer than this broker's image (R9)."""
        if self._early_opens is None:
            self._early_opens = {}
        return self._early_opens

    @early_opens.setter
    def early_opens(self, opens: dict[BrokerId, Open]) -> None:
        self._early_opens = opens or None  # most partitions have none: 64 bytes each

    # metadata

    def apply_image(
        self,
        registration: PartitionRegistration,
        brokers: Mapping[BrokerId, BrokerRegistration],
        broker_epoch: BrokerEpoch | None,
        now_ms: int,
    ) -> None:
        """Take the role that the image gives to this replica.

        ``broker_epoch``: this incarnation's epoch in the image, or None. This broker leads only in
        epochs that were set after its own registration record; an epoch that is not newer than the
        present one changes no role (rule R3).
        """
        self.broker_epoch = broker_epoch
        epoch = self.role.epoch
        if broker_epoch is None:
            if not isinstance(self.role, Unassigned):
                self._become(Unassigned(epoch))
            return
        if registration.leader_epoch > epoch or isinstance(self.role, Unassigned):
            if registration.leader == self.broker_id:
                of_this_life = registration.leader_epoch_offset > broker_epoch
                if registration.leader_epoch > epoch and of_this_life:
                    self._lead(registration, now_ms)
            elif registration.leader != NO_LEADER:
                self._follow(registration)
                self.delayed_produces.hasten(now_ms + DEPOSED_WAIT_MS)
            else:
                self._become(Unassigned(registration.leader_epoch))
        role = self.role
        if isinstance(role, LeaderState) and role.epoch == registration.leader_epoch:
            role.reassign(registration.replicas)
            self.adopt_isr(registration.partition_epoch, registration.isr)
            for follower, state in list(role.followers.items()):
                known = brokers.get(follower)
                if known is not None and known.broker_epoch > state.broker_epoch:
                    del role.followers[follower]  # a new incarnation ends older sessions (rule R4)

    def configure(self, settings: Settings) -> None:
        """Apply changed configs of the topic, in every role.

        If the durable end decides now, a sync is requested (rule R1). Produces whose outcome is
        certain under the new settings are completed.
        """
        if settings == self.settings:
            return
        self.settings = settings
        if isinstance(self.role, LeaderState):
            self.role.configure(settings)
        if settings.by_durable:
            self.log.request_flush()
        self.advance()

    def retire(self) -> None:
        """Stop leading or following; complete delayed produces as unknown."""
        self._become(Unassigned(self.role.epoch))
        self.delayed_produces.give_up()

    def _lead(self, registration: PartitionRegistration, now_ms: int) -> None:
        self.log.start_epoch(registration.leader_epoch)
        role = LeaderState(
            me=self.broker_id,
            epoch=registration.leader_epoch,
            epoch_start=self.log.log_end_offset,
            replicas=registration.replicas,
            isr=registration.isr,
            partition_epoch=registration.partition_epoch,
            settings=self.settings,
            now_ms=now_ms,
        )
        self._become(role)
        self.agreed_epoch = role.epoch
        self.log.request_flush()
        self.advance()

    def _follow(self, registration: PartitionRegistration) -> None:
        role = Following(registration.leader, registration.leader_epoch)
        role.unclean_epoch = registration.unclean_epoch
        self._become(role)

    def _become(self, role: Role) -> None:
        self.role = role

    # the followers, as leader

    def on_open(
        self,
        follower: BrokerId,
        message: Open,
        brokers: Mapping[BrokerId, BrokerRegistration],
        session: int,
        now_ms: int,
    ) -> Valid | Diverging | Refused | None:
        """Return the answer to a follower's position; None if it waits for a newer image.

        Validation follows KIP-101 and KIP-279. On divergence nothing of the follower is recorded
        (KAFKA-13141).
        """
        role = self.role
        if message.leader_epoch > role.epoch:
            self.early_opens[follower] = message
            return None
        if not isinstance(role, LeaderState):
            return self._refuse(message, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if message.leader_epoch < role.epoch:
            return self._refuse(message, ErrorCode.FENCED_LEADER_EPOCH)
        known = brokers.get(follower)
        if known is None or message.broker_epoch > known.broker_epoch:
            self.early_opens[follower] = message
            return None
        if message.broker_epoch < known.broker_epoch:
            return self._refuse(message, ErrorCode.STALE_BROKER_EPOCH)
        if self._early_opens is not None:
            self._early_opens.pop(follower, None)
        diverging = divergence(self.log, role.epoch, message)
        diverging = diverging or start_over_answer(role, follower, self.log, message)
        start, told = self.log.log_start_offset, None
        if diverging is not None:
            may_begin_anew = diverging.at_epoch < 0 and diverging.end == start > 0
        else:
            may_begin_anew = message.log_end <= start and message.log_start < start
        if may_begin_anew:
            told = producers_told(self)
            if told is None:
                return self._refuse(message, ErrorCode.OFFSET_NOT_AVAILABLE)
        if diverging is not None:
            return diverging._replace(producers=told)
        ends = (message.log_end, message.durable_end, message.log_start)
        leader_end = self.log.log_end_offset
        role.opened(follower, known.broker_epoch, session, ends, leader_end, now_ms)
        # Until its first acknowledgement, which follows at once, only its durable end counts (R1).
        counted = (message.durable_end, message.durable_end, message.log_start)
        role.acknowledged(follower, session, counted, leader_end, now_ms)
        self.advance()
        return Valid(message.request, role.epoch, session, start, self.log.dropped_to, told)

    def _refuse(self, message: Open, code: ErrorCode) -> Refused:
        return Refused(message.request, message.leader_epoch, code.number)

    def on_ack(self, follower: BrokerId, message: Ack, now_ms: int) -> FollowerState | None:
        """Apply a follower's ends; return None if the frame is not of this session (rule R4)."""
        role = self.role
        if not isinstance(role, LeaderState) or message.leader_epoch != role.epoch:
            return None
        ends = (message.log_end, message.durable_end, message.log_start)
        if not role.acknowledged(follower, message.session, ends, self.log.log_end_offset, now_ms):
            return None
        self.advance()
        return role.followers[follower]

    def stream_closed(self, follower: BrokerId, session: int) -> None:
        """End the session of a follower whose connection ended."""
        if isinstance(self.role, LeaderState):
            self.role.closed(follower, session)

    # leader: high watermark and ISR

    def advance(self) -> None:
        """Move the high watermark as far as is proven; complete produces that are certain."""
        role = self.role
        if isinstance(role, LeaderState):
            log = self.log
            own_end = log.durable_end if self.settings.by_durable else log.log_end_offset  # rule R1
            self._raise_to(role.high_watermark(own_end, self.high_watermark))
        self.delayed_produces.resolve(self.log, self.high_watermark)

    def _raise_to(self, high_watermark: int) -> None:
        if high_watermark > self.high_watermark:
            self.high_watermark = high_watermark
            self.on_high_watermark(self)

    def check_may_append(self, *, all_replicas: bool) -> LeaderState:
        """Return the leader state to append under.

        Raises KafkaError NOT_LEADER_OR_FOLLOWER or NOT_ENOUGH_REPLICAS.
        """
        role = self.role
        if not isinstance(role, LeaderState):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if all_replicas and len(role.isr) < role.min_isr:
            text = f"{len(role.isr)} in-sync replicas, min.insync.replicas is {role.min_isr}"
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, text)
        return role

    def add_delayed_produce(self, delayed: DelayedProduce) -> None:
        """Add a delayed produce; it is completed at once if its outcome is certain."""
        if self.delayed_produces is _NO_DELAYED_PRODUCES:
            self.delayed_produces = DelayedProduces()
        self.delayed_produces.add(delayed)
        self.delayed_produces.resolve(self.log, self.high_watermark)

    def propose_isr(
        self,
        brokers: Mapping[BrokerId, BrokerRegistration],
        attempt: int,
        now_ms: int,
        lag_max_ms: int | None,
    ) -> IsrChange | None:
        """Return a change of the ISR to propose; None if there is none.

        ``lag_max_ms`` None: only joins.
        """
        role = self.role
        if not isinstance(role, LeaderState) or not may_propose(role.isr_state, now_ms):
            return None
        joiners = [
            follower
            for follower in role.followers
            if follower not in role.isr
            and role.may_join(follower, self.high_watermark, _eligible(brokers.get(follower)))
            and not would_show_deleted(role, follower, self.log)
        ]
        leavers: frozenset[BrokerId] = frozenset()
        if not joiners:
            if lag_max_ms is None:
                return None
            leavers = role.laggards(self.log.log_end_offset, now_ms, lag_max_ms)

        def epoch_of(replica: BrokerId) -> BrokerEpoch:
            known = brokers.get(replica)
            return known.broker_epoch if known else BrokerEpoch(-1)

        return role.propose(attempt, joiners, leavers, epoch_of)

    def adopt_isr(self, partition_epoch: PartitionEpoch, isr: tuple[BrokerId, ...]) -> None:
        """Apply a committed ISR and then advance the high watermark (KAFKA-13091)."""
        role = self.role
        if isinstance(role, LeaderState) and role.adopt(partition_epoch, isr):
            self.advance()

    def is_open(self, change: IsrChange) -> bool:
        """Return True if an ISR change is still in flight in unchanged epochs."""
        role = self._leads_in_epoch_of(change)
        return (
            role is not None
            and role.partition_epoch == change.partition_epoch
            and in_flight(role.isr_state) is change
        )

    def isr_refused(self, change: IsrChange) -> None:
        """Drop an ISR change that the controller refused (rule M3)."""
        role = self._leads_in_epoch_of(change)
        if role is not None:
            role.refused(change.attempt)
            self.advance()

    def isr_unknown(self, change: IsrChange, retry_ms: int) -> None:
        """Keep an ISR change without a certain answer: it may be committed (rule M3)."""
        role = self._leads_in_epoch_of(change)
        if role is not None:
            role.unknown(change.attempt, retry_ms)

    def isr_accepted(
        self, change: IsrChange, partition_epoch: PartitionEpoch, isr: tuple[BrokerId, ...]
    ) -> None:
        """Apply an ISR change that the controller committed."""
        role = self._leads_in_epoch_of(change)
        if role is not None:
            self.adopt_isr(partition_epoch, isr)
            role.unknown(change.attempt, 0)

    def _leads_in_epoch_of(self, change: IsrChange) -> LeaderState | None:
        """Return the leader state of the epoch in which ``change`` was proposed; else None."""
        role = self.role
        return role if isinstance(role, LeaderState) and role.epoch == change.leader_epoch else None

    # follower

    def open_message(self, request: int, now_ms: int) -> Open | None:
        """Return a request for a session; None if it follows no leader or is not registered."""
        role = self.role
        if not isinstance(role, Following) or self.broker_epoch is None:
            return None
        role.session, role.asked_ms = RequestedSession(request), now_ms
        return Open(
            request, role.epoch, self.broker_epoch, self.log.last_epoch,
            self.log.log_end_offset, self._counted_end(), crash_proof_start(self.log),
        )  # fmt: skip

    def _awaiting(self, request: int, epoch: int) -> Following | None:
        """Return the role if this is the answer to its newest request; else None (rule R4)."""
        role = self.role
        if isinstance(role, Following) and role.epoch == epoch:
            return role if role.session == RequestedSession(request) else None
        return None

    def on_valid(self, message: Valid) -> bool:
        """Open the session: the leader holds this log as a prefix. Return False if it is stale."""
        role = self._awaiting(message.request, message.leader_epoch)
        if role is None:
            return False
        follow_valid(self, message)
        note_missing_tombstones(self.log, message.dropped_to)
        role.session = OpenSession(message.session)
        self.agreed_epoch = role.epoch
        return True

    def on_diverging(self, message: Diverging) -> bool:
        """Truncate what the leader does not have; return True if a session must be requested again.

        Truncation follows KIP-101. The high watermark is never taken from such an answer
        (KAFKA-14704). The log is truncated below it only if there was an unclean election since
        this log last agreed with a leader's.

        Raises AssertionError if a leader of a clean election requires a truncation below it.
        """
        role = self._awaiting(message.request, message.leader_epoch)
        if role is None:
            return False
        end = truncation_point(self.log, message)
        is_unclean = role.unclean_epoch > self._agreed_epoch()
        if start_over_if_required(self, message, end, is_unclean=is_unclean):
            return True
        if end < self.high_watermark and is_unclean:
            _log.warning(
                "unclean leader: cut below the high watermark log=%s topic_id=%s to=%d "
                "high_watermark=%d leader_epoch=%d",
                self.log.name, self.id.topic_id, end, self.high_watermark, role.epoch,
            )  # fmt: skip
            self.high_watermark = end
        if end < self.high_watermark:
            msg = (
                f"{self.id}: the leader of epoch {role.epoch} asks to truncate to {end}, below the "
                f"high watermark {self.high_watermark}"
            )
            raise AssertionError(msg)
        if end < self.log.log_end_offset:
            truncate_to_leader(self, message, end)
        return True

    def _agreed_epoch(self) -> int:
        """Return the newest leader epoch in which this log is known as a prefix of a leader's."""
        return max(self.agreed_epoch, self.log.last_epoch)

    def on_refused(self, message: Refused) -> None:
        """Note a refusal; the session is requested again after a pause."""
        if self._awaiting(message.request, message.leader_epoch) is not None:
            self.drop_session()

    def drop_session(self) -> None:
        """End the session, whose pushes can't be appended. It is requested again after a pause."""
        role = self.role
        if isinstance(role, Following):
            role.session = REFUSED_SESSION
            role.refusals += 1

    def on_push(self, message: Push) -> PushResult:
        """Append a push if it is of the open session and leaves no gap."""
        role = self.role
        if not isinstance(role, Following) or role.epoch != message.leader_epoch:
            return PushResult.STALE
        session = role.session
        if not isinstance(session, OpenSession) or session.number != message.session:
            return PushResult.STALE
        if message.from_offset != self.log.log_end_offset and len(message.batches):
            return PushResult.GAP
        if len(message.batches):
            self.log.append_as_follower(message.batches)
            role.refusals = 0
            if self.settings.by_durable:
                self.log.request_flush()
        role.replicated_to = message.replicated_to
        self._raise_to(min(message.high_watermark, self.log.log_end_offset))
        if message.log_start > self.log.log_start_offset:
            follow_push(self, message.log_start)
        self.delayed_produces.resolve(self.log, self.high_watermark)
        return PushResult.APPENDED

    def skip_message(self, session: int) -> Skip | None:
        """Return what is sent to a follower that lacks records which are deleted here by now.

        None: try again later.
        """
        told = producers_told(self)
        if told is None:
            return None
        return Skip(session, self.role.epoch, self.log.log_start_offset, told)

    def on_skip(self, message: Skip) -> bool:
        """Begin the log anew where the leader's begins; return False if the frame is stale (R4)."""
        role = self.role
        if not isinstance(role, Following) or role.epoch != message.leader_epoch:
            return False
        if role.session != OpenSession(message.session) or message.start <= self.log.log_end_offset:
            return False
        _start_over(self, message.start, message.producers)
        return True

    def ack_message(self) -> Ack | None:
        """Return an acknowledgement with the ends of this log; None without a session."""
        role = self.role
        if not isinstance(role, Following) or not isinstance(role.session, OpenSession):
            return None
        # While this broker still uses `flush=ack`, a leader that already uses `os` must not count
        # bytes that are neither synced nor recorded as possibly unsynced (rule R1).
        counted = self._counted_end()
        end = counted if self.settings.by_durable else self.log.log_end_offset
        start = crash_proof_start(self.log)
        return Ack(role.session.number, role.epoch, end, counted, start)

    def _counted_end(self) -> int:
        """Return the durable end that the leader may count, or `NOT_COUNTED`."""
        return NOT_COUNTED if self.is_observer else self.log.durable_end


def _eligible(registration: BrokerRegistration | None) -> BrokerEpoch | None:
    """Return the broker epoch with which a broker may join an ISR: unfenced, not shutting down."""
    if registration is None or registration.state is not BrokerState.UNFENCED:
        return None
    return registration.broker_epoch
