"""One replica of one partition on this broker: its role, its log, its high watermark. Pure.

The `ReplicaManager` gives the replica its role from the image (leader, follower or idle); the
streams hand it frames. It validates each of them by leader epoch and session (rule R4), appends to
the log, moves the high watermark, and completes delayed produces. No I/O but through the port to
its log; the clock is an argument.

Followers take the log start from their leader, and drop tombstones only below the offset that every
assigned replica has passed (rules R7, R10).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from broker.replication.delayed_produces import DelayedProduce, DelayedProduces
from broker.replication.frames import START_OVER, UNTOLD, Ack, Diverging, Open, Push, Refused, Valid
from broker.replication.leader_state import OBSERVES, FollowerState, LeaderState, Proposal, Settings
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
    """The part of ``broker.log.partition_log`` that decides; a memory log in the simulation."""

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
    def start_over(self, offset: int) -> None: ...
    def advance_log_start(self, offset: int) -> bool: ...
    def request_flush(self) -> None: ...


_log = logging.getLogger("broker.replication")


class Followed(Protocol):
    """The part of a `Partition` that these functions use."""

    id: TopicIdPartition
    log: ReplicaLog
    high_watermark: int


def divergence(log: ReplicaLog, epoch: LeaderEpoch, message: Open) -> Diverging | None:
    """The leader's answer to a log that is no prefix of its own; None where it is one.

    A log that ends below this one's start is to be started over, whatever it holds. An empty one
    agrees with every log that reaches as far. Of epochs that are trimmed away here it is only known
    that they ended at or below the log start.
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


def proven(log: ReplicaLog) -> int:
    """Return the log start offset that holds after any crash.

    A log that has just started over may have its old start again after a crash.
    """
    return log.log_start_offset if log.durable_end >= log.log_start_offset else 0


def shows_deleted(role: LeaderState, follower: BrokerId, log: ReplicaLog) -> bool:
    """Return True if a follower would, as leader, show records deleted here: it may not join (R10).

    A follower that does not report its log start may join.
    """
    return UNTOLD < role.start_of(follower) < log.log_start_offset


def lacking(
    role: LeaderState, registration: PartitionRegistration | None, log: ReplicaLog, offset: int
) -> frozenset[BrokerId]:
    """Return the replicas that may lead next and are not known to begin at or behind ``offset``.

    Only if there are none is it certain that a clean election brings no deleted record back. The
    candidates are the maximal ISR and the eligible replicas (KIP-966). The image's eligible
    replicas may be older than an ISR that the leader knows already: then every assigned replica
    is a candidate. The leader, whose ``log`` this is, may lead again after a crash, so that its
    present log start is not proof either.
    """
    candidates = role.maximal_isr() | {role.me}
    if registration is None or registration.partition_epoch < role.partition_epoch:
        candidates |= role.replicas
    else:
        candidates = candidates.union(registration.elr)

    def begins(broker: BrokerId) -> int:
        return proven(log) if broker == role.me else role.start_of(broker)

    return frozenset(broker for broker in candidates if begins(broker) < offset)


def valid(log: ReplicaLog, epoch: LeaderEpoch, session: int, message: Open) -> Valid:
    """The leader's answer to a log that is a prefix of its own: what of that is gone here."""
    return Valid(message.request, epoch, session, log.log_start_offset, log.dropped_to)


def truncation_point(log: ReplicaLog, message: Diverging) -> int:
    """Return the truncation point of a follower: the end of the last epoch that both replicas know.

    If the leader knows none of its epochs, everything it may keep lies below the leader's start.
    """
    if message.at_epoch < 0:
        return message.end
    return min(message.end, log.end_of_epoch(message.at_epoch)[1])


def cut(partition: Followed, message: Diverging, end: int) -> None:
    """Remove what the leader does not have."""
    log = partition.log
    _log.info(
        "truncated log=%s topic_id=%s from=%d to=%d leader_epoch=%d",
        log.name, partition.id.topic_id, log.log_end_offset, end, message.leader_epoch,
    )  # fmt: skip
    if message.at_epoch < 0 and end > log.log_start_offset:
        log.start_over(end)  # what is left of it is below the leader's log start
    else:
        log.truncate_to(end)
    partition.high_watermark = max(partition.high_watermark, log.log_start_offset)


def follow_valid(partition: Followed, leader_start: int) -> None:
    """The leader's log begins there: a log that ends at or below that holds nothing any more."""
    log = partition.log
    if leader_start <= log.log_start_offset:
        return
    if leader_start >= log.log_end_offset:
        _start_over(partition, leader_start)
    else:
        log.advance_log_start(leader_start)
        # Not shown before it is durable, but nothing below it is asked for any more (L8).
        partition.high_watermark = max(partition.high_watermark, leader_start)


def skip_deleted(partition: Followed, message: Push) -> bool:
    """Start the log over at the push if all in between was deleted; return True then."""
    if not partition.log.log_end_offset < message.from_offset <= message.log_start:
        return False
    _start_over(partition, message.from_offset)
    return True


def follow_push(partition: Followed, leader_start: int) -> None:
    """The leader's log start moved, to where this log reaches: it moves here too."""
    if leader_start <= partition.log.log_end_offset:
        try:
            partition.log.advance_log_start(leader_start)
        except KafkaError as error:  # the log has failed; the push was taken all the same
            _log.warning("log start not followed error=%s", error)


def _start_over(partition: Followed, offset: int) -> None:
    log = partition.log
    _log.info(
        "starts over at the leader's log start log=%s topic_id=%s log_end=%d start=%d",
        log.name, partition.id.topic_id, log.log_end_offset, offset,
    )  # fmt: skip
    log.start_over(offset)
    partition.high_watermark = offset


def asked_to_start_over(
    role: LeaderState, follower: BrokerId, log: ReplicaLog, message: Open
) -> Diverging | None:
    """The answer to a follower that may hold values whose tombstones are gone here.

    Never to a member of the ISR: its log ends at or behind the high watermark, and nothing is
    dropped above that.
    """
    empty = message.last_epoch < 0
    if empty or message.log_end >= log.dropped_to or follower in role.maximal_isr():
        return None
    return Diverging(message.request, role.epoch, START_OVER, log.log_start_offset)


def inherit(log: ReplicaLog, dropped_to: int) -> None:
    """Before a session begins: of what this log is filled with now, tombstones are gone.

    KafkaError: it can't be written now; the leader is asked again.
    """
    if log.log_end_offset < dropped_to:
        log.note_dropped(dropped_to)


def start_over(partition: Followed, message: Diverging) -> None:
    """Be empty from the leader's log start on. The one time a high watermark goes back cleanly."""
    _log.info(
        "starts over topic_id=%s partition=%d from=%d to=%d leader_epoch=%d",
        partition.id.topic_id, partition.id.partition, partition.log.log_end_offset, message.end,
        message.leader_epoch,
    )  # fmt: skip
    partition.log.start_over(message.end)
    partition.high_watermark = message.end


def start_over_if_required(
    partition: Followed, message: Diverging, end: int, *, is_unclean: bool
) -> bool:
    """Start the log over if nothing of it stays; return True then.

    That is so if the leader says so, or after an unclean election (``is_unclean``) that truncates
    to ``end``: compaction removed records below that because of newer ones, which the new leader
    does not have. It may still hold the older ones: this replica lacks both.
    """
    if message.at_epoch != START_OVER:
        if not (is_unclean and end < min(partition.log.compacted_to, partition.log.log_end_offset)):
            return False
        message = message._replace(end=0)
    start_over(partition, message)
    return True


DEPOSED_WAIT_MS = 1_000
"""Time in which a former leader learns what the new leader holds. Records that only it held have no
certain outcome until another record follows them (rule R5): their client gets *unknown* then."""
_NOTHING_PARKED = DelayedProduces()
"""Shared by every partition without a delayed produce so far: nothing is ever added to it."""


@dataclass(slots=True)
class Following:
    """The role of a follower. ``session`` is None until the leader has validated its position."""

    leader: BrokerId
    epoch: LeaderEpoch
    session: int | None = None
    request: int = 0
    """The open request whose answer is awaited: answers to earlier ones are dropped (rule R4)."""
    asked_ms: int = 0
    refusals: int = 0
    """Refused requests and ended sessions in a row; the pause doubles with each."""
    refused: bool = False
    """The open request is among them: to be asked again after that pause."""
    unclean_epoch: int = -1
    """The leader epoch of the partition's last unclean election."""
    replicated_to: int = 0
    """The offset that every assigned replica has reached, as the leader last sent it (rule R7)."""


@dataclass(slots=True)
class Unassigned:
    """The role without a leader, or of a broker that may not take part (yet)."""

    epoch: LeaderEpoch


Role = LeaderState | Following | Unassigned


class Partition:
    """Single-threaded, owned by the `ReplicaManager` for as long as this broker is a replica.

    Invariants: the high watermark never goes back and never passes the log end; a follower never
    truncates below it; role changes and writes never interleave.
    """

    __slots__ = (
        "_early_opens", "agreed_epoch", "broker_epoch", "broker_id", "high_watermark", "id", "log",
        "observes", "on_high_watermark", "parked", "role", "settings",
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
        self.observes = False
        """No replica any more: it follows without counting, until its produces are answered."""
        self.agreed_epoch = -1
        """The newest leader epoch in which this log was led, or validated by the leader."""
        self.parked = _NOTHING_PARKED
        self._early_opens: dict[BrokerId, Open] | None = None

    @property
    def early_opens(self) -> dict[BrokerId, Open]:
        """Opens of an epoch or broker epoch that this image does not know yet (rule R9)."""
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
        """Take the role the image gives. ``broker_epoch`` is this incarnation's, None if not in it.

        Rule R3: this broker leads only in epochs that were set after its own registration record;
        an epoch that is not newer than the present one changes no role.
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
                self.parked.hasten(now_ms + DEPOSED_WAIT_MS)
            else:
                self._become(Unassigned(registration.leader_epoch))
        role = self.role
        if isinstance(role, LeaderState) and role.epoch == registration.leader_epoch:
            role.reassign(registration.replicas)
            self.adopt_isr(registration.partition_epoch, registration.isr)
            for follower, state in list(role.followers.items()):
                known = brokers.get(follower)
                if known is not None and known.broker_epoch > state.broker_epoch:
                    del role.followers[follower]  # rule R4: a new life closes older streams

    def configure(self, settings: Settings) -> None:
        """The topic's configs changed: they are in force from here on, in every role.

        What is not durable yet is asked to be, where that decides now (rule R1); what may be
        answered under the new settings is answered.
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
        """Stop serving, pushing and answering: this broker is no longer a replica."""
        self._become(Unassigned(self.role.epoch))
        self.parked.give_up()

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
        """Validate a follower's position (KIP-101, KIP-279). None: parked until the image arrives.

        On divergence nothing of the follower is recorded (KAFKA-13141).
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
        if diverging is not None:
            return diverging
        behind = asked_to_start_over(role, follower, self.log, message)
        if behind is not None:
            return behind
        ends = (message.log_end, message.durable_end, message.log_start)
        leader_end = self.log.log_end_offset
        role.opened(follower, known.broker_epoch, session, ends, leader_end, now_ms)
        # By which rule it goes its first acknowledgement says, which follows at once (rule R1).
        counted = (message.durable_end, message.durable_end, message.log_start)
        role.acknowledged(follower, session, counted, leader_end, now_ms)
        self.advance()
        return valid(self.log, role.epoch, session, message)

    def _refuse(self, message: Open, code: ErrorCode) -> Refused:
        return Refused(message.request, message.leader_epoch, code.number)

    def on_ack(self, follower: BrokerId, message: Ack, now_ms: int) -> FollowerState | None:
        """Take a follower's ends; None if the frame is not of the present (rule R4)."""
        role = self.role
        if not isinstance(role, LeaderState) or message.leader_epoch != role.epoch:
            return None
        ends = (message.log_end, message.durable_end, message.log_start)
        if not role.acknowledged(follower, message.session, ends, self.log.log_end_offset, now_ms):
            return None
        self.advance()
        return role.followers[follower]

    def stream_closed(self, follower: BrokerId, session: int) -> None:
        """The connection of a session is gone."""
        if isinstance(self.role, LeaderState):
            self.role.closed(follower, session)

    # leader: high watermark and ISR

    def own_end(self) -> int:
        """Rule R1, the leader's own share: what of its log counts."""
        return self.log.durable_end if self.settings.by_durable else self.log.log_end_offset

    def advance(self) -> None:
        """Move the high watermark as far as is proven, and answer what became certain."""
        role = self.role
        if isinstance(role, LeaderState):
            self._raise_to(role.high_watermark(self.own_end(), self.high_watermark))
        self.parked.resolve(self.log, self.high_watermark)

    def _raise_to(self, high_watermark: int) -> None:
        if high_watermark > self.high_watermark:
            self.high_watermark = high_watermark
            self.on_high_watermark(self)

    def check_may_append(self, *, all_replicas: bool) -> LeaderState:
        """The role to append under, or the error that says why nothing is appended."""
        role = self.role
        if not isinstance(role, LeaderState):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if all_replicas and len(role.isr) < role.min_isr:
            text = f"{len(role.isr)} in-sync replicas, min.insync.replicas is {role.min_isr}"
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, text)
        return role

    def park(self, parked: DelayedProduce) -> None:
        """Wait for an appended entry's fate."""
        if self.parked is _NOTHING_PARKED:
            self.parked = DelayedProduces()
        self.parked.add(parked)
        self.parked.resolve(self.log, self.high_watermark)

    def propose_isr(
        self,
        brokers: Mapping[BrokerId, BrokerRegistration],
        attempt: int,
        now_ms: int,
        lag_max_ms: int | None,
    ) -> Proposal | None:
        """The ISR change there is reason for; ``lag_max_ms`` None: joins only."""
        role = self.role
        if not isinstance(role, LeaderState) or role.in_flight is not None:
            return None
        if now_ms < role.retry_ms:
            return None
        joiners = [
            follower
            for follower in role.followers
            if follower not in role.isr
            and role.may_join(follower, self.high_watermark, _eligible(brokers.get(follower)))
            and not shows_deleted(role, follower, self.log)
        ]
        if lag_max_ms is None and not joiners:
            return None
        leavers: frozenset[BrokerId] = frozenset()
        if lag_max_ms is not None and not joiners:
            leavers = role.laggards(self.log.log_end_offset, now_ms, lag_max_ms)

        def epoch_of(replica: BrokerId) -> BrokerEpoch:
            known = brokers.get(replica)
            return known.broker_epoch if known else BrokerEpoch(-1)

        return role.propose(attempt, joiners, leavers, epoch_of)

    def adopt_isr(self, partition_epoch: PartitionEpoch, isr: tuple[BrokerId, ...]) -> None:
        """A committed ISR is known; the high watermark is tried again (KAFKA-13091)."""
        role = self.role
        if isinstance(role, LeaderState) and role.adopt(partition_epoch, isr):
            self.advance()

    def is_open(self, proposal: Proposal) -> bool:
        """Return True if the attempt is still valid: nothing it was judged on has changed."""
        role = self.role
        return (
            isinstance(role, LeaderState)
            and role.epoch == proposal.leader_epoch
            and role.partition_epoch == proposal.partition_epoch
            and role.in_flight == proposal.attempt
        )

    def isr_refused(self, proposal: Proposal) -> None:
        """The controller refused this very attempt (rule M3)."""
        role = self.role
        if isinstance(role, LeaderState) and role.epoch == proposal.leader_epoch:
            role.refused(proposal.attempt)
            self.advance()

    def isr_unknown(self, proposal: Proposal, retry_ms: int) -> None:
        """No certain answer to an attempt: nothing is rolled back (rule M3)."""
        role = self.role
        if isinstance(role, LeaderState) and role.epoch == proposal.leader_epoch:
            role.unknown(proposal.attempt, retry_ms)

    def isr_accepted(
        self, proposal: Proposal, partition_epoch: PartitionEpoch, isr: tuple[BrokerId, ...]
    ) -> None:
        """The controller committed this attempt."""
        role = self.role
        if isinstance(role, LeaderState) and role.epoch == proposal.leader_epoch:
            if role.in_flight == proposal.attempt:
                role.in_flight = None
            self.adopt_isr(partition_epoch, isr)

    # follower

    def open_message(self, request: int, now_ms: int) -> Open | None:
        """Return a request for a session; None if it follows no leader or is not registered."""
        role = self.role
        if not isinstance(role, Following) or self.broker_epoch is None:
            return None
        role.session, role.request, role.asked_ms = None, request, now_ms
        role.refused = False
        return Open(
            request, role.epoch, self.broker_epoch, self.log.last_epoch,
            self.log.log_end_offset, self._counted_end(), proven(self.log),
        )  # fmt: skip

    def _awaiting(self, request: int, epoch: int) -> Following | None:
        """Rule R4: only the answer to the newest request of the present epoch counts."""
        role = self.role
        if isinstance(role, Following) and role.epoch == epoch and role.request == request:
            return role if role.session is None else None
        return None

    def on_valid(self, message: Valid) -> bool:
        """The leader holds this log as a prefix: pushes of this session may be appended."""
        role = self._awaiting(message.request, message.leader_epoch)
        if role is None:
            return False
        follow_valid(self, message.log_start)
        inherit(self.log, message.dropped_to)
        role.session = message.session
        self.agreed_epoch = role.epoch
        return True

    def on_diverging(self, message: Diverging) -> bool:
        """Cut what the leader does not have; True: ask again (KIP-101).

        The high watermark is never taken from such an answer (KAFKA-14704). It is cut through only
        where an operator let a leader be elected uncleanly since this log followed one.
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
                f"{self.id}: the leader of epoch {role.epoch} asks to cut to {end}, below the "
                f"high watermark {self.high_watermark}"
            )
            raise AssertionError(msg)
        if end < self.log.log_end_offset:
            cut(self, message, end)
        return True

    def _agreed_epoch(self) -> int:
        """Up to which leader epoch this log is known to be a prefix of a leader's."""
        return max(self.agreed_epoch, self.log.last_epoch)

    def on_refused(self, message: Refused) -> None:
        """The leader can't serve this position now; it is asked again after a pause."""
        role = self._awaiting(message.request, message.leader_epoch)
        if role is not None:
            role.refused = True
            role.refusals += 1

    def drop_session(self) -> None:
        """End the session: its pushes can't be taken. It is requested again after a pause."""
        role = self.role
        if isinstance(role, Following):
            role.session, role.refused = None, True
            role.refusals += 1

    def on_push(self, message: Push) -> bool | None:
        """Append. None: not of the present, dropped (R4). False: a gap, ask again."""
        role = self.role
        if not isinstance(role, Following) or role.session != message.session:
            return None
        if role.epoch != message.leader_epoch:
            return None
        if message.from_offset != self.log.log_end_offset:
            skipped = skip_deleted(self, message)
            if len(message.batches) and not skipped:
                return False
        if len(message.batches):
            self.log.append_as_follower(message.batches)
            role.refusals = 0
            if self.settings.by_durable:
                self.log.request_flush()
        role.replicated_to = message.replicated_to
        self._raise_to(min(message.high_watermark, self.log.log_end_offset))
        if message.log_start > self.log.log_start_offset:
            follow_push(self, message.log_start)
        self.parked.resolve(self.log, self.high_watermark)
        return True

    def ack_message(self) -> Ack | None:
        """Return the ends of this log for the leader; None without a session."""
        role = self.role
        if not isinstance(role, Following) or role.session is None:
            return None
        # Rule R1: a leader that goes by `os` already may not count what this disk, which goes by
        # `ack`, has neither synced nor noted as unsynced (`server.page_cache_topics`).
        end = self._counted_end() if self.settings.by_durable else self.log.log_end_offset
        return Ack(role.session, role.epoch, end, self._counted_end(), proven(self.log))

    def _counted_end(self) -> int:
        """The durable end, as the leader may count it; `OBSERVES`: not at all."""
        return OBSERVES if self.observes else self.log.durable_end


def _eligible(registration: BrokerRegistration | None) -> BrokerEpoch | None:
    """The epoch under which a broker may join an ISR now: unfenced and not shutting down."""
    if registration is None or registration.state is not BrokerState.UNFENCED:
        return None
    return registration.broker_epoch
