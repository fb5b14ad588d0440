"""Lines of the partition, each switched off (faults M3 to M18 of docs/claims.md)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from broker.log import (
    log_manager,
)
from broker.log.leader_epoch_cache import LeaderEpochCache
from broker.replication import delayed_produces
from broker.replication.frames import Diverging, Valid
from broker.replication.isr_state import COMMITTED
from broker.replication.leader_state import LeaderState
from broker.replication.partition import Following, OpenSession, Partition
from broker.server.fetch import FollowerReads
from broker.server.local_partitions import LocalPartitions
from broker.server.requests import OffsetsResult
from tests.support.planted.registry import LOST, Patch, replication_fault
from tests.support.replication_broker import Broker
from tests.support.replication_controller import MIN_ISR


def _followers_say_what_they_hold(patch: Patch) -> None:
    """The second line of defence away: a follower says its log end, whatever its own configs."""
    real = Partition.ack_message

    def ack_message(self: Partition) -> Any:
        message = real(self)
        return None if message is None else message._replace(log_end=self.log.log_end_offset)

    patch.setattr(Partition, "ack_message", ack_message)


# ---- M3 to M18


@replication_fault(
    "M3 a follower's state outlives the leader epoch", "L17", "L18", *LOST, first=127
)
def _keep_follower_state(patch: Patch) -> None:
    real = Partition._lead

    def lead(self: Partition, *args: Any) -> None:
        before = self.role
        real(self, *args)
        if isinstance(before, LeaderState) and isinstance(self.role, LeaderState):
            self.role.followers = before.followers
            self.advance()

    patch.setattr(Partition, "_lead", lead)
    patch.setattr(Partition, "on_ack", _ack_of_any_epoch)


def _ends_of(message: Any) -> tuple[int, int, int]:
    return message.log_end, message.durable_end, message.log_start


def _ack_of_any_epoch(self: Partition, follower: Any, message: Any, now_ms: int) -> Any:
    role = self.role
    if not isinstance(role, LeaderState):
        return None
    ends, end = _ends_of(message), self.log.log_end_offset
    if role.acknowledged(follower, message.session, ends, end, now_ms):
        self.advance()
    return None


@replication_fault("M4 a replica joins without a message in this epoch", "L18", *LOST, first=7)
def _join_without_fetch(patch: Patch) -> None:
    real = LeaderState.__init__

    def init(self: LeaderState, **named: Any) -> None:
        real(self, **named)
        for replica in self.replicas - {self.me}:
            end = self.epoch_start
            self.opened(replica, -1, 10**9, (end, end, end), end, named["now_ms"])  # type: ignore[arg-type]

    def may_join(self: LeaderState, follower: Any, hw: int, epoch: Any) -> bool:
        state = self.followers.get(follower)
        if state is None or epoch is None:
            return False
        state.broker_epoch = epoch
        return min(state.durable_end, state.log_end) >= max(hw, self.epoch_start)

    patch.setattr(LeaderState, "__init__", init)
    patch.setattr(LeaderState, "may_join", may_join)


@replication_fault("M5 a replica joins below the high watermark", "L18", *LOST, first=3)
def _join_below_high_watermark(patch: Patch) -> None:
    real = LeaderState.may_join

    def may_join(self: LeaderState, follower: Any, hw: int, epoch: Any) -> bool:
        return real(self, follower, 0, epoch)

    patch.setattr(LeaderState, "may_join", may_join)


@replication_fault("M6 a replica joins below the leader epoch's start", "L18", *LOST, first=1)
def _join_below_epoch_start(patch: Patch) -> None:
    real = LeaderState.may_join

    def may_join(self: LeaderState, *args: Any) -> bool:
        start, self.epoch_start = self.epoch_start, 0
        try:
            return real(self, *args)
        finally:
            self.epoch_start = start

    patch.setattr(LeaderState, "may_join", may_join)


@replication_fault(
    "M7 a push is appended at any offset", "L14", "L25", "L7", on_disk=False, first=3
)
def _push_at_any_offset(patch: Patch) -> None:
    real = Partition.on_push

    def on_push(self: Partition, message: Any) -> Any:
        if len(message.batches):
            message = message._replace(from_offset=self.log.log_end_offset)
        return real(self, message)

    patch.setattr(Partition, "on_push", on_push)


@replication_fault(
    "M8 a push of another epoch or session is appended", "L14", "L25", "L7", on_disk=False, first=13
)
def _push_of_any_epoch(patch: Patch) -> None:
    real = Partition.on_push

    def on_push(self: Partition, message: Any) -> Any:
        role = self.role
        if isinstance(role, Following):
            before, session = role.session, role.session
            if not isinstance(session, OpenSession):
                session = OpenSession(-5)
            message = message._replace(session=session.number, leader_epoch=role.epoch)
            role.session = session
            try:
                return real(self, message)
            finally:
                if role.session == OpenSession(-5):
                    role.session = before
        return real(self, message)

    patch.setattr(Partition, "on_push", on_push)


@replication_fault("M11 the high watermark counts only the committed ISR", "L5", *LOST, first=1)
def _no_maximal_isr(patch: Patch) -> None:
    patch.setattr(LeaderState, "maximal_isr", lambda self: self.isr)


@replication_fault("M12 a new follower truncates to its high watermark (before KIP-101)", *LOST)
def _truncate_to_hw(patch: Patch) -> None:
    real = Partition._become

    def become(self: Partition, role: Any) -> None:
        real(self, role)
        if isinstance(role, Following):
            self.log.truncate_to(self.high_watermark)

    patch.setattr(Partition, "_become", become)


@replication_fault(
    "M13 the high watermark is taken before the truncation", "L16", "L20", "L13", "L7", first=1
)
def _hw_from_divergence(patch: Patch) -> None:
    real = Partition.on_diverging

    def on_diverging(self: Partition, message: Any) -> bool:
        if self._awaiting(message.request, message.leader_epoch) is not None:
            self._raise_to(min(message.end, self.log.log_end_offset))
        return real(self, message)

    patch.setattr(Partition, "on_diverging", on_diverging)


@replication_fault(
    "M14 what a diverging follower reports to hold is recorded", "L16", *LOST, first=1
)
def _record_on_divergence(patch: Patch) -> None:
    real = Partition.on_open

    def on_open(
        self: Partition, follower: Any, message: Any, brokers: Any, session: int, now_ms: int
    ) -> Any:
        answer = real(self, follower, message, brokers, session, now_ms)
        if isinstance(answer, Diverging) and isinstance(self.role, LeaderState):
            ends, end = _ends_of(message), self.log.log_end_offset
            self.role.opened(follower, message.broker_epoch, session, ends, end, now_ms)
            self.advance()
        return answer

    patch.setattr(Partition, "on_open", on_open)


@replication_fault("M16 the high watermark moves below min ISR", "L9", *LOST)
def _hw_below_min_isr(patch: Patch) -> None:
    real = LeaderState.high_watermark

    def high_watermark(self: LeaderState, *args: Any) -> int:
        self.min_isr = 1
        try:
            return real(self, *args)
        finally:
            self.min_isr = MIN_ISR

    patch.setattr(LeaderState, "high_watermark", high_watermark)


@replication_fault("M17 a write is acknowledged before the high watermark", "L10")
def _ack_before_hw(patch: Patch) -> None:
    def resolve(self: Any, log: Any, high_watermark: int) -> None:
        while self._for_all and self._for_all[0].offset < log.durable_end:
            self._for_all.popleft().done(delayed_produces.AppendOutcome.OK)

    patch.setattr(delayed_produces.DelayedProduces, "resolve", resolve)


@replication_fault("rule R1: the high watermark counts log ends", *LOST, first=4)
def _hw_by_log_end(patch: Patch) -> None:
    _followers_say_what_they_hold(patch)

    def end_of(self: LeaderState, replica: Any) -> int:
        state = self.followers.get(replica)
        return state.log_end if state else 0

    patch.setattr(LeaderState, "end_of", end_of)


@replication_fault("rule R1: a follower joins by its log end", "L18", *LOST, first=1)
def _join_by_log_end(patch: Patch) -> None:
    _followers_say_what_they_hold(patch)
    real = LeaderState.may_join

    def may_join(self: LeaderState, *args: Any) -> bool:
        by_durable, self.by_durable = self.by_durable, False
        try:
            return real(self, *args)
        finally:
            self.by_durable = by_durable

    patch.setattr(LeaderState, "may_join", may_join)


@replication_fault("rule R1: a follower under ack is counted by its log end", *LOST, flush=True)
def _log_end_of_an_ack_follower(patch: Patch) -> None:
    _followers_say_what_they_hold(patch)


@replication_fault(
    "rule R1: what was acknowledged under os is forgotten when os ends", *LOST, flush=True, first=70
)
def _no_mark(patch: Patch) -> None:
    real = Broker.register

    def register(self: Broker) -> None:
        lost, self.lost_power = self.lost_power, False
        real(self)
        self.lost_power = lost

    patch.setattr(Broker, "register", register)


@replication_fault("rule R4: answers to earlier requests count", "L14", "L13", *LOST, first=104)
def _answer_any_request(patch: Patch) -> None:
    def awaiting(self: Partition, _request: int, _epoch: int) -> Following | None:
        return self.role if isinstance(self.role, Following) else None

    patch.setattr(Partition, "_awaiting", awaiting)


@replication_fault("rule R4: acknowledgements of any session count", *LOST, "L18")
def _ack_any_session(patch: Patch) -> None:
    real = LeaderState.acknowledged

    def acknowledged(self: LeaderState, follower: Any, _session: int, *args: Any) -> bool:
        state = self.followers.get(follower)
        return state is not None and real(self, follower, state.session, *args)

    patch.setattr(LeaderState, "acknowledged", acknowledged)
    patch.setattr(Partition, "on_ack", _ack_of_any_epoch)


@replication_fault(
    "rule R4 and invariant L14: a diverging follower is accepted as it is", "L14", "L7", first=1
)
def _no_divergence(patch: Patch) -> None:
    real = Partition.on_open

    def on_open(self: Partition, follower: Any, message: Any, brokers: Any, *args: Any) -> Any:
        known = brokers.get(follower)
        role = self.role
        same = isinstance(role, LeaderState) and role.epoch == message.leader_epoch
        if same and known is not None and known.broker_epoch == message.broker_epoch:
            log_end, *others = _ends_of(message)
            ends: Any = (min(log_end, self.log.log_end_offset), *others)
            assert isinstance(role, LeaderState)
            role.opened(follower, known.broker_epoch, args[0], ends, 0, 0)
            return Valid(message.request, role.epoch, args[0], 0)
        return real(self, follower, message, brokers, *args)

    patch.setattr(Partition, "on_open", on_open)


@replication_fault(
    "rule R5: waiting requests are answered OK by their offset alone", "L10", first=1
)
def _wake_by_offset(patch: Patch) -> None:
    def resolve(self: delayed_produces.DelayedProduces, log: Any, high_watermark: int) -> None:
        while self._for_all and self._for_all[0].offset < high_watermark:
            self._for_all.popleft().done(delayed_produces.AppendOutcome.OK)

    patch.setattr(delayed_produces.DelayedProduces, "resolve", resolve)


@replication_fault("rule R5: an entry past the log end counts as not written", "rule R5", first=1)
def _not_written_on_truncation(patch: Patch) -> None:
    real = delayed_produces.DelayedProduces.resolve

    def resolve(self: delayed_produces.DelayedProduces, log: Any, high_watermark: int) -> None:
        while self._for_all and self._for_all[0].offset >= log.log_end_offset:
            self._for_all.popleft().done(delayed_produces.AppendOutcome.NOT_WRITTEN)
        real(self, log, high_watermark)

    patch.setattr(delayed_produces.DelayedProduces, "resolve", resolve)


@replication_fault(
    "rule R11: a clean shutdown is claimed before the last sync",
    "L22",
    "L23",
    on_disk=True,
    first=750,
)
def _clean_before_sync(patch: Patch) -> None:
    real = log_manager.LogManager._close_cleanly

    def close(self: Any, flushing: Any, broker_epoch: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            disk = type(self._disk)
            inner.setattr(disk, "sync_filesystem", lambda *_: None)
            inner.setattr(disk, "sync_data", lambda *_: None)
            real(self, flushing, broker_epoch)

    patch.setattr(log_manager.LogManager, "_close_cleanly", close)


@replication_fault("rule M3: an unanswered attempt is rolled back", "L5", *LOST, first=4)
def _rollback(patch: Patch) -> None:
    def unknown(self: LeaderState, attempt: int, _retry_ms: int) -> None:
        self.refused(attempt)

    patch.setattr(LeaderState, "unknown", unknown)


@replication_fault("rule M3: a refusal drops other attempts too", "L5", *LOST, first=362)
def _refusal_for_all(patch: Patch) -> None:
    def refused(self: LeaderState, _attempt: int) -> None:
        self.isr_state = COMMITTED

    patch.setattr(LeaderState, "refused", refused)


@replication_fault("invariant L6: an attempt never ends", "L6", "L27")
def _attempts_stay(patch: Patch) -> None:
    real = LeaderState.maximal_isr

    def maximal_isr(self: LeaderState) -> frozenset[Any]:
        return real(self) | {self.me, *self.replicas}

    patch.setattr(LeaderState, "maximal_isr", maximal_isr)


@replication_fault(
    "invariant L11: a leader epoch without a record stays in the epoch cache", "L11", first=15
)
def _empty_reign_stays(patch: Patch) -> None:
    def assign(self: LeaderEpochCache, epoch: int, start_offset: int) -> None:
        if not self._epochs or epoch > self._epochs[-1]:
            self._epochs.append(epoch)
            self._starts.append(start_offset)

    patch.setattr(LeaderEpochCache, "assign", assign)


@replication_fault(
    "P8: a removed replica counts while it waits for its produces",
    *LOST,
    "L18",
    moves=True,
)
def _leaver_counts(patch: Patch) -> None:
    real = Partition._counted_end

    def counted_end(self: Partition) -> int:
        return max(0, self.log.durable_end if self.is_observer else real(self))

    patch.setattr(Partition, "_counted_end", counted_end)


# ---- readers


@replication_fault(
    "rule R8: the latest offset is reported before it has reached the epoch's start",
    "L21",
    first=16,
)
def _latest_at_once(patch: Patch) -> None:
    def offsets(self: LocalPartitions, place: Any, _seen_epoch: int = -1) -> OffsetsResult:
        replica, _ = self.leading(place)
        return OffsetsResult(
            beginning_offset=replica.log.log_start_offset,
            end_offset=replica.partition.high_watermark,
        )

    patch.setattr(LocalPartitions, "offsets", offsets)


@replication_fault(
    "invariant L20: a follower serves what it holds, committed or not", "L20", on_disk=True, first=4
)
def _serves_all_it_holds(patch: Patch) -> None:
    real = FollowerReads.in_sync

    def in_sync(self: FollowerReads, place: Any) -> Any:
        replica, role = real(self, place)
        end = replica.log.log_end_offset
        ahead = SimpleNamespace(partition=SimpleNamespace(high_watermark=end), log=replica.log)
        return ahead, role

    patch.setattr(FollowerReads, "in_sync", in_sync)
