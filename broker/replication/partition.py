"""One replica of one partition on this broker: its role, its log, its high watermark.

This is the replication protocol (decision D5). No I/O of its own, no clock, no task: the log, the
time and the streams come in as arguments, so that the simulation drives this very class. Between
reading partition state and acting on it there is never an ``await``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from broker.replication import log_start, tombstones
from broker.replication.frames import Ack, Diverging, Open, Push, Refused, Valid
from broker.replication.parked import Parked, ParkedProduces
from broker.replication.partition_state import (
    OBSERVES,
    FollowerState,
    LeaderState,
    Proposal,
    Settings,
)
from broker.replication.replica_log import ReplicaLog
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

_log = logging.getLogger("broker.replication")

DEPOSED_WAIT_MS = 1_000
"""A leader that follows another one now learns in this time what survived there. What only it held
has no certain fate until somebody writes behind it (rule R5): its client is told *unknown* then."""
_NOTHING_PARKED = ParkedProduces()
"""Of every partition where nobody ever waited: nothing is ever added to it."""


@dataclass(slots=True)
class Following:
    """This replica follows. ``session`` is None until the leader has validated its position."""

    leader: BrokerId
    epoch: LeaderEpoch
    session: int | None = None
    request: int = 0
    """The open request whose answer is awaited: answers to earlier ones are dropped (rule R4)."""
    asked_ms: int = 0
    refusals: int = 0
    """How often in a row a request was refused or a session given up: the pause doubles."""
    refused: bool = False
    """The open request is among them: to be asked again after that pause."""
    unclean_epoch: int = -1
    """The leader epoch of the partition's last unclean election."""
    replicated_to: int = 0
    """What every assigned replica holds, as the leader of this epoch last said it (rule R7)."""


@dataclass(slots=True)
class Idle:
    """Nobody leads, or this broker may not take part (yet)."""

    epoch: LeaderEpoch


Role = LeaderState | Following | Idle


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
        self.role: Role = Idle(LeaderEpoch(-1))
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
            if not isinstance(self.role, Idle):
                self._become(Idle(epoch))
            return
        if registration.leader_epoch > epoch or isinstance(self.role, Idle):
            if registration.leader == self.broker_id:
                of_this_life = registration.leader_epoch_offset > broker_epoch
                if registration.leader_epoch > epoch and of_this_life:
                    self._lead(registration, now_ms)
            elif registration.leader != NO_LEADER:
                self._follow(registration)
                self.parked.hasten(now_ms + DEPOSED_WAIT_MS)
            else:
                self._become(Idle(registration.leader_epoch))
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
        """This broker is no replica any more: nothing is served, pushed or answered from here."""
        self._become(Idle(self.role.epoch))
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
        diverging = log_start.divergence(self.log, role.epoch, message)
        if diverging is not None:
            return diverging
        behind = tombstones.asked_to_start_over(role, follower, self.log, message)
        if behind is not None:
            return behind
        ends = (message.log_end, message.durable_end, message.log_start)
        leader_end = self.log.log_end_offset
        role.opened(follower, known.broker_epoch, session, ends, leader_end, now_ms)
        # By which rule it goes its first acknowledgement says, which follows at once (rule R1).
        counted = (message.durable_end, message.durable_end, message.log_start)
        role.acknowledged(follower, session, counted, leader_end, now_ms)
        self.advance()
        return log_start.valid(self.log, role.epoch, session, message)

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

    def park(self, parked: Parked) -> None:
        """Wait for an appended entry's fate."""
        if self.parked is _NOTHING_PARKED:
            self.parked = ParkedProduces()
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
            and not log_start.shows_deleted(role, follower, self.log)
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
        """Whether an attempt still means anything: nothing it was judged on has changed."""
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
        """Ask the leader anew; None if this replica follows nobody or is not registered."""
        role = self.role
        if not isinstance(role, Following) or self.broker_epoch is None:
            return None
        role.session, role.request, role.asked_ms = None, request, now_ms
        role.refused = False
        return Open(
            request, role.epoch, self.broker_epoch, self.log.last_epoch,
            self.log.log_end_offset, self._counted_end(), log_start.proven(self.log),
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
        log_start.follow_valid(self, message.log_start)
        tombstones.inherit(self.log, message.dropped_to)
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
        end = log_start.cut_point(self.log, message)
        is_unclean = role.unclean_epoch > self._agreed_epoch()
        if tombstones.has_started_over(self, message, end, is_unclean=is_unclean):
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
            log_start.cut(self, message, end)
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
        """What this session pushes can't be taken; the leader is asked again after a pause."""
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
            skipped = log_start.skips_to(self, message)
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
            log_start.follow_push(self, message.log_start)
        self.parked.resolve(self.log, self.high_watermark)
        return True

    def ack_message(self) -> Ack | None:
        """Where this log is now, for the leader; None without a session."""
        role = self.role
        if not isinstance(role, Following) or role.session is None:
            return None
        # Rule R1: a leader that goes by `os` already may not count what this disk, which goes by
        # `ack`, has neither synced nor noted as unsynced (`server.page_cache_topics`).
        end = self._counted_end() if self.settings.by_durable else self.log.log_end_offset
        return Ack(role.session, role.epoch, end, self._counted_end(), log_start.proven(self.log))

    def _counted_end(self) -> int:
        """The durable end, as the leader may count it; `OBSERVES`: not at all."""
        return OBSERVES if self.observes else self.log.durable_end


def _eligible(registration: BrokerRegistration | None) -> BrokerEpoch | None:
    """The epoch under which a broker may join an ISR now: unfenced and not shutting down."""
    if registration is None or registration.state is not BrokerState.UNFENCED:
        return None
    return registration.broker_epoch
