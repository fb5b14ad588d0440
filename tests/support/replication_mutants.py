"""Faults planted in the running code: each switches one line off that keeps a rule or an invariant.

`turns_red` names the checks that may see it (``replication_judge``); ``first`` is a seed known to
be near one that shows it, so that the test of it is quick.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from broker.log import (
    flusher,
    log_manager,
    log_producers,
    log_reader,
    log_segments,
    partition_log,
    recovery,
)
from broker.log.leader_epoch_cache import LeaderEpochCache
from broker.log.producer_state import ProducerStates
from broker.record import batch
from broker.replication import log_start, parked, partition
from broker.replication.frames import Diverging, Valid
from broker.replication.partition import Following, Partition
from broker.replication.partition_state import LeaderState
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import MetadataOffset
from raft_metadata.controller import (
    cluster_control,
    partition_change,
    partition_draft,
    reassignment_control,
    replication_control,
)
from raft_metadata.controller.partition_draft import PartitionDraft
from tests.support import simulated_disk
from tests.support.replication_broker import FAR, Broker
from tests.support.replication_controller import MIN_ISR

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]
LOST = ("L2", "L3", "L4", "L7", "L10")
"""Something that was seen or acknowledged is not there, on one replica or another."""


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    turns_red: tuple[str, ...]
    plant: Plant
    first: int = 0
    features: dict[str, bool] = field(default_factory=dict)


MUTANTS: list[Mutant] = []
SECOND_LINES = {
    "rule R4: acknowledgements of any session count": "sessions end with the epoch that counts",
    "rule R6: a registration that was overtaken still counts": "the settling of the newer one",
    "P8: who only waits for its produces counts as a replica": "the epoch of the reassignment",
}
"""Faults that a second line of defence hides in worlds of this size, and which: each line has its
own test in ``tests/unit``, named in docs/claims.md."""


def mutant(
    name: str, *turns_red: str, first: int = 0, **features: bool
) -> Callable[[Plant], Plant]:
    def keep(plant: Plant) -> Plant:
        MUTANTS.append(Mutant(name, turns_red, plant, first, features))
        return plant

    return keep


def _followers_say_what_they_hold(patch: Patch) -> None:
    """The second line of defence away: a follower says its log end, whatever its own configs."""
    real = Partition.ack_message

    def ack_message(self: Partition) -> Any:
        message = real(self)
        return None if message is None else message._replace(log_end=self.log.log_end_offset)

    patch.setattr(Partition, "ack_message", ack_message)


# ---- guarantees §3.7, M3 to M18


@mutant("M3 follower state outlives the leader epoch", "L17", "L18", *LOST, first=127)
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


def _ack_of_any_epoch(self: Partition, follower: Any, message: Any, now_ms: int) -> Any:
    role = self.role
    if not isinstance(role, LeaderState):
        return None
    ends, end = (message.log_end, message.durable_end), self.log.log_end_offset
    if role.acknowledged(follower, message.session, ends, end, now_ms):
        self.advance()
    return None


@mutant("M4 joins without having been heard of in this epoch", "L18", *LOST, first=7)
def _join_without_fetch(patch: Patch) -> None:
    real = LeaderState.__init__

    def init(self: LeaderState, **named: Any) -> None:
        real(self, **named)
        for replica in self.replicas - {self.me}:
            end = self.epoch_start
            self.opened(replica, -1, 10**9, (end, end), end, named["now_ms"])  # type: ignore[arg-type]

    def may_join(self: LeaderState, follower: Any, hw: int, epoch: Any) -> bool:
        state = self.followers.get(follower)
        if state is None or epoch is None:
            return False
        state.broker_epoch = epoch
        return min(state.durable_end, state.log_end) >= max(hw, self.epoch_start)

    patch.setattr(LeaderState, "__init__", init)
    patch.setattr(LeaderState, "may_join", may_join)


@mutant("M5 joins below the high watermark", "L18", *LOST, first=3)
def _join_below_high_watermark(patch: Patch) -> None:
    real = LeaderState.may_join

    def may_join(self: LeaderState, follower: Any, hw: int, epoch: Any) -> bool:
        return real(self, follower, 0, epoch)

    patch.setattr(LeaderState, "may_join", may_join)


@mutant("M6 joins below the leader epoch's start", "L18", *LOST, first=1)
def _join_below_epoch_start(patch: Patch) -> None:
    real = LeaderState.may_join

    def may_join(self: LeaderState, *args: Any) -> bool:
        start, self.epoch_start = self.epoch_start, 0
        try:
            return real(self, *args)
        finally:
            self.epoch_start = start

    patch.setattr(LeaderState, "may_join", may_join)


@mutant("M7 a push is appended wherever it belongs", "L14", "L25", "L7", on_disk=False, first=3)
def _push_at_any_offset(patch: Patch) -> None:
    real = Partition.on_push

    def on_push(self: Partition, message: Any) -> Any:
        if len(message.batches):
            message = message._replace(from_offset=self.log.log_end_offset)
        return real(self, message)

    patch.setattr(Partition, "on_push", on_push)


@mutant(
    "M8 a push of another epoch or session is appended", "L14", "L25", "L7", on_disk=False, first=13
)
def _push_of_any_epoch(patch: Patch) -> None:
    real = Partition.on_push

    def on_push(self: Partition, message: Any) -> Any:
        role = self.role
        if isinstance(role, Following):
            session = -5 if role.session is None else role.session
            message = message._replace(session=session, leader_epoch=role.epoch)
            before, role.session = role.session, session
            try:
                return real(self, message)
            finally:
                if role.session == -5:
                    role.session = before
        return real(self, message)

    patch.setattr(Partition, "on_push", on_push)


@mutant("M9 whoever joins is not asked for its broker epoch", "P6", *LOST, first=70)
def _no_broker_epoch_check(patch: Patch) -> None:
    real = replication_control._check_may_join

    def check(image: Any, before: Any, joiner: Any, _epoch: int) -> None:
        real(image, before, joiner, image.brokers[joiner].broker_epoch)

    patch.setattr(replication_control, "_check_may_join", check)


@mutant("M10 AlterPartition without its partition-epoch check", "L5", *LOST, first=49)
def _no_partition_epoch_check(patch: Patch) -> None:
    real = replication_control._check_epochs

    def check(command: Any, before: Any) -> None:
        try:
            real(command, before)
        except KafkaError as error:
            if error.code is not ErrorCode.INVALID_UPDATE_VERSION:
                raise

    patch.setattr(replication_control, "_check_epochs", check)


@mutant("M11 the high watermark counts only the committed ISR", "L5", *LOST, first=1)
def _no_maximal_isr(patch: Patch) -> None:
    patch.setattr(LeaderState, "maximal_isr", lambda self: self.isr)


@mutant("M12 a new follower truncates to its high watermark (before KIP-101)", *LOST)
def _truncate_to_hw(patch: Patch) -> None:
    real = Partition._become

    def become(self: Partition, role: Any) -> None:
        real(self, role)
        if isinstance(role, Following):
            self.log.truncate_to(self.high_watermark)

    patch.setattr(Partition, "_become", become)


@mutant("M13 the high watermark is taken before the truncation", "L16", "L20", "L13", "L7", first=1)
def _hw_from_divergence(patch: Patch) -> None:
    real = Partition.on_diverging

    def on_diverging(self: Partition, message: Any) -> bool:
        if self._awaiting(message.request, message.leader_epoch) is not None:
            self._raise_to(min(message.end, self.log.log_end_offset))
        return real(self, message)

    patch.setattr(Partition, "on_diverging", on_diverging)


@mutant("M14 what a diverging follower says it holds is recorded", "L16", *LOST, first=1)
def _record_on_divergence(patch: Patch) -> None:
    real = Partition.on_open

    def on_open(
        self: Partition, follower: Any, message: Any, brokers: Any, session: int, now_ms: int
    ) -> Any:
        answer = real(self, follower, message, brokers, session, now_ms)
        if isinstance(answer, Diverging) and isinstance(self.role, LeaderState):
            ends, end = (message.log_end, message.durable_end), self.log.log_end_offset
            self.role.opened(follower, message.broker_epoch, session, ends, end, now_ms)
            self.advance()
        return answer

    patch.setattr(Partition, "on_open", on_open)


@mutant("M15 a fenced or leaving broker joins the ISR", "P6", first=15)
def _fenced_may_join(patch: Patch) -> None:
    def eligible(registration: Any) -> Any:
        return None if registration is None else registration.broker_epoch

    patch.setattr(partition, "_eligible", eligible)
    patch.setattr(replication_control, "is_electable", lambda *_: True)


@mutant("M16 the high watermark moves below min ISR", "L9", *LOST)
def _hw_below_min_isr(patch: Patch) -> None:
    real = LeaderState.high_watermark

    def high_watermark(self: LeaderState, *args: Any) -> int:
        self.min_isr = 1
        try:
            return real(self, *args)
        finally:
            self.min_isr = MIN_ISR

    patch.setattr(LeaderState, "high_watermark", high_watermark)


@mutant("M17 acknowledged before the high watermark", "L10")
def _ack_before_hw(patch: Patch) -> None:
    def resolve(self: Any, log: Any, high_watermark: int) -> None:
        while self._for_all and self._for_all[0].offset < log.durable_end:
            self._for_all.popleft().done(parked.Fate.OK)

    patch.setattr(parked.ParkedProduces, "resolve", resolve)


@mutant("M18 and rule R6: a replaced or damaged disk keeps its place", "L23", *LOST, first=5)
def _ignore_lost(patch: Patch) -> None:
    nothing = partition_change._Lost(frozenset(), frozenset())
    patch.setattr(partition_change, "_lost_replicas", lambda *_: nothing)


# ---- rules R, M and KIP-966 on the partition


@mutant("rule R1: the high watermark counts log ends", *LOST, first=4)
def _hw_by_log_end(patch: Patch) -> None:
    _followers_say_what_they_hold(patch)

    def end_of(self: LeaderState, replica: Any) -> int:
        state = self.followers.get(replica)
        return state.log_end if state else 0

    patch.setattr(LeaderState, "end_of", end_of)


@mutant("rule R1: a follower joins by its log end", "L18", *LOST, first=1)
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


@mutant("rule R1: a follower that goes by ack is counted by its log end", *LOST, flush=True)
def _log_end_of_an_ack_follower(patch: Patch) -> None:
    _followers_say_what_they_hold(patch)


@mutant("rule R1: what was acknowledged under os is forgotten with os", *LOST, flush=True, first=70)
def _no_mark(patch: Patch) -> None:
    real = Broker.register

    def register(self: Broker) -> None:
        lost, self.lost_power = self.lost_power, False
        real(self)
        self.lost_power = lost

    patch.setattr(Broker, "register", register)


@mutant("rule R3: a restarted broker leads in an epoch older than its registration", "P14", "L15")
def _lead_in_old_epoch(patch: Patch) -> None:
    real = Partition.apply_image

    def apply_image(self: Partition, registration: Any, *args: Any) -> None:
        newer = dataclasses.replace(registration, leader_epoch_offset=MetadataOffset(FAR))
        real(self, newer, *args)

    patch.setattr(Partition, "apply_image", apply_image)
    patch.setattr(partition_change, "_is_deposed", lambda _, draft: draft.leader not in draft.isr)


@mutant("rule R4: answers to earlier requests count", "L14", "L13", *LOST, first=104)
def _answer_any_request(patch: Patch) -> None:
    def awaiting(self: Partition, _request: int, _epoch: int) -> Following | None:
        return self.role if isinstance(self.role, Following) else None

    patch.setattr(Partition, "_awaiting", awaiting)


@mutant("rule R4: acknowledgements of any session count", *LOST, "L18")
def _ack_any_session(patch: Patch) -> None:
    real = LeaderState.acknowledged

    def acknowledged(self: LeaderState, follower: Any, _session: int, *args: Any) -> bool:
        state = self.followers.get(follower)
        return state is not None and real(self, follower, state.session, *args)

    patch.setattr(LeaderState, "acknowledged", acknowledged)
    patch.setattr(Partition, "on_ack", _ack_of_any_epoch)


@mutant("rule R4 and invariant L14: a diverging follower is taken as it is", "L14", "L7", first=1)
def _no_divergence(patch: Patch) -> None:
    real = Partition.on_open

    def on_open(self: Partition, follower: Any, message: Any, brokers: Any, *args: Any) -> Any:
        known = brokers.get(follower)
        role = self.role
        same = isinstance(role, LeaderState) and role.epoch == message.leader_epoch
        if same and known is not None and known.broker_epoch == message.broker_epoch:
            ends = (min(message.log_end, self.log.log_end_offset), message.durable_end)
            assert isinstance(role, LeaderState)
            role.opened(follower, known.broker_epoch, args[0], ends, 0, 0)
            return Valid(message.request, role.epoch, args[0], 0)
        return real(self, follower, message, brokers, *args)

    patch.setattr(Partition, "on_open", on_open)


@mutant("rule R5: parked work is answered ok by its offset alone", "L10", first=1)
def _wake_by_offset(patch: Patch) -> None:
    def resolve(self: parked.ParkedProduces, log: Any, high_watermark: int) -> None:
        while self._for_all and self._for_all[0].offset < high_watermark:
            self._for_all.popleft().done(parked.Fate.OK)

    patch.setattr(parked.ParkedProduces, "resolve", resolve)


@mutant("rule R5: an entry past the log end counts as not written", "rule R5", first=1)
def _not_written_on_truncation(patch: Patch) -> None:
    real = parked.ParkedProduces.resolve

    def resolve(self: parked.ParkedProduces, log: Any, high_watermark: int) -> None:
        while self._for_all and self._for_all[0].offset >= log.log_end_offset:
            self._for_all.popleft().done(parked.Fate.NOT_WRITTEN)
        real(self, log, high_watermark)

    patch.setattr(parked.ParkedProduces, "resolve", resolve)


@mutant("rule R6: a registration that was overtaken still counts", *LOST, "L23", "L27", "L22")
def _late_registration(patch: Patch) -> None:
    patch.setattr(cluster_control, "_check_not_overtaken", lambda *_: None)


@mutant(
    "rule R11: a clean shutdown is claimed before the last sync",
    "L22",
    "L23",
    on_disk=True,
    first=218,
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


@mutant("rule M3: an unanswered attempt is rolled back", "L5", *LOST, first=4)
def _rollback(patch: Patch) -> None:
    def unknown(self: LeaderState, attempt: int, _retry_ms: int) -> None:
        self.refused(attempt)

    patch.setattr(LeaderState, "unknown", unknown)


@mutant("rule M3: a refusal drops other attempts too", "L5", *LOST, first=362)
def _refusal_for_all(patch: Patch) -> None:
    def refused(self: LeaderState, attempt: int) -> None:
        self.proposals = {}
        if self.in_flight == attempt:
            self.in_flight = None

    patch.setattr(LeaderState, "refused", refused)


@mutant("invariant L6: an attempt is never over", "L6", "L27")
def _attempts_stay(patch: Patch) -> None:
    real = LeaderState.maximal_isr

    def maximal_isr(self: LeaderState) -> frozenset[Any]:
        return real(self) | {self.me, *self.replicas}

    patch.setattr(LeaderState, "maximal_isr", maximal_isr)


@mutant("invariant L11: a reign without a record stays in the epoch cache", "L11", first=15)
def _empty_reign_stays(patch: Patch) -> None:
    def assign(self: LeaderEpochCache, epoch: int, start_offset: int) -> None:
        if not self._epochs or epoch > self._epochs[-1]:
            self._epochs.append(epoch)
            self._starts.append(start_offset)

    patch.setattr(LeaderEpochCache, "assign", assign)


@mutant("KIP-966: ELR keeps members while ISR >= min ISR", "L5", *LOST, first=1)
def _elr_never_emptied(patch: Patch) -> None:
    def next_elr(before: Any, isr: Any, lost: Any, _min_isr: int) -> tuple[Any, ...]:
        members = [r for r in before.replicas if r in before.isr or r in before.elr]
        return tuple(r for r in members if r not in isr and r not in lost)

    def keep_eligible(draft: Any, min_isr: int, unclean: Any = (), moved: Any = ()) -> None:
        draft.elr = next_elr(draft.before, draft.isr, {*unclean, *moved}, min_isr)

    patch.setattr(partition_draft.PartitionDraft, "keep_eligible", keep_eligible)


@mutant("unclean election: any unfenced replica may lead", *LOST, "L5", first=5)
def _unclean_election(patch: Patch) -> None:
    real = partition_change._elect

    def elect(views: Any, draft: Any, rules: Any) -> None:
        draft.elr = tuple(replica for replica in draft.replicas if replica not in draft.isr)
        real(views, draft, rules)

    patch.setattr(partition_change, "_elect", elect)


# ---- reassignment


@mutant(
    "P8: the old replicas go though the new ones are not in sync",
    *LOST,
    "L27",
    moves=True,
    first=24,
)
def _shrink_at_once(patch: Patch) -> None:
    def complete(brokers: Any, draft: Any, rules: Any) -> None:
        draft.keep_replicas([r for r in draft.replicas if r not in draft.removing])
        draft.adding = draft.removing = ()

    patch.setattr(partition_change, "complete_reassignment", complete)


@mutant("P8: a reassignment adds to the ISR itself", *LOST, moves=True, first=11)
def _adding_counts_at_once(patch: Patch) -> None:
    real = reassignment_control.reassign

    def reassign(*args: Any) -> Any:
        record = real(*args)
        if record is None:
            return None
        isr = tuple(dict.fromkeys((*record.isr, *record.adding)))
        return type(record)(
            **{name: getattr(record, name) for name in record.__slots__} | {"isr": isr}
        )

    patch.setattr(reassignment_control, "reassign", reassign)


@mutant("P8: who only waits for its produces counts as a replica", *LOST, "L18", moves=True)
def _leaver_counts(patch: Patch) -> None:
    real = Partition._counted_end

    def counted_end(self: Partition) -> int:
        return max(0, self.log.durable_end if self.observes else real(self))

    patch.setattr(Partition, "_counted_end", counted_end)


@mutant(
    "P8: who was taken out is not fenced off by an epoch", *LOST, "L17", "L18", moves=True, first=28
)
def _no_new_epoch(patch: Patch) -> None:
    real = PartitionDraft.keep_replicas

    def keep_replicas(self: PartitionDraft, keep: Any) -> None:
        before = self.new_leader_epoch
        real(self, keep)
        if self.leader in self.isr:
            self.new_leader_epoch = before

    patch.setattr(PartitionDraft, "keep_replicas", keep_replicas)


@mutant("rule G3: a leader is taken out that has not heard of it", "rule G3", moves=True, first=5)
def _out_unawares(patch: Patch) -> None:
    patch.setattr(reassignment_control, "unaware", lambda *_: ())


# ---- rules Q and R2: the log on its disk


@mutant(
    "rule Q1: what is found at the start counts before it is synced", "L2", "L3", "L23", first=51
)
def _open_without_sync(patch: Patch) -> None:
    patch.setattr(recovery, "_rewrite_unproven", lambda *_: None)
    real = partition_log.PartitionLog.restore

    def restore(self: Any, found: Any) -> None:
        real(self, found)
        self.durable_end = self.log_end_offset

    patch.setattr(partition_log.PartitionLog, "restore", restore)


@mutant("rule Q2: a failed sync is not believed to have failed", "L2", "L3", on_disk=True, first=56)
def _sync_errors_are_swallowed(patch: Patch) -> None:
    real = flusher.Flusher._work

    def work(self: Any, tokens: Any) -> Any:
        error = real(self, tokens)
        return None if isinstance(error, OSError) else error

    patch.setattr(flusher.Flusher, "_work", work)


@mutant(
    "rule Q3: a flush begun before a cut proves what stands behind it", "L2", "L18", "L8", first=30
)
def _no_generation(patch: Patch) -> None:
    real = partition_log.PartitionLog.end_flush

    def end_flush(self: Any, token: Any, *, synced: bool) -> None:
        token.generation = self.generation
        real(self, token, synced=synced)

    patch.setattr(partition_log.PartitionLog, "end_flush", end_flush)


@mutant("rule Q5: damage is cut off like a torn tail", *LOST, "L23", on_disk=True, first=218)
def _damage_is_cut(patch: Patch) -> None:
    patch.setattr(recovery, "_refuse_if_durable", lambda *_: None)


@mutant("rule Q5 and invariant L22: readers don't look at checksums", "L22", on_disk=True, first=1)
def _no_checksums(patch: Patch) -> None:
    def verify(buffer: Any, at: int = 0) -> Any:
        return batch.parse_header(buffer, at)

    patch.setattr(log_reader, "verify", verify)


@mutant("rule Q6: names are not synced", "L2", "L3", "L23", on_disk=True)
def _names_unsynced(patch: Patch) -> None:
    def sync_each(self: Any, token: Any) -> None:
        for fd in token.descriptors:
            self._disk.sync_data(fd)

    patch.setattr(flusher.Flusher, "_sync_each", sync_each)
    patch.setattr(flusher, "SYNC_FILES_MAX", 10**9)


@mutant(
    "rule R2: a write that failed half way counts as written",
    "L22",
    "L14",
    "L2",
    "L3",
    "L12",
    first=75,
)
def _half_written(patch: Patch) -> None:
    real = simulated_disk.SimulatedDisk.write

    def write(self: Any, fd: int, data: Any, position: int) -> None:
        try:
            real(self, fd, data, position)
        except OSError:
            if not self.descriptors[fd][0].endswith(".log"):
                raise

    patch.setattr(simulated_disk.SimulatedDisk, "write", write)


@mutant("rule R2: what failed half way is left where it stands", "L26", on_disk=True, first=1)
def _not_cut_back(patch: Patch) -> None:
    def truncate(self: Any, fd: int, size: int) -> None:
        """Nothing."""

    real = log_segments.LogSegments._cut_back

    def cut_back(self: Any, segment: Any, fd: int, error: OSError) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(type(self._shared.files.disk), "truncate", truncate)
            return real(self, segment, fd, error)

    patch.setattr(log_segments.LogSegments, "_cut_back", cut_back)


# ---- log start and producers


@mutant(
    "rule R10: the log start shows before it is durable", "L24", on_disk=True, trims=True, first=40
)
def _start_shows_at_once(patch: Patch) -> None:
    real = partition_log.PartitionLog.advance_log_start

    def advance(self: Any, offset: int) -> bool:
        moved = real(self, offset)
        if moved:
            self.log_start_offset = offset
        return moved

    patch.setattr(partition_log.PartitionLog, "advance_log_start", advance)


@mutant(
    "rule R10: a follower behind the log start keeps its high watermark",
    "L8",
    trims=True,
    first=956,
)
def _high_watermark_stays(patch: Patch) -> None:
    def start_over(self: Any, offset: int) -> None:
        self.log.start_over(offset)

    patch.setattr(log_start, "_start_over", start_over)


@mutant("T1: nobody asks whether a batch is there already", "T1", on_disk=True, numbered=True)
def _no_repeats(patch: Patch) -> None:
    patch.setattr(partition_log.PartitionLog, "repeated", lambda *_args, **_named: None)


@mutant("M22: a new process does not know its producers", "T1", "T4", on_disk=True, numbered=True)
def _producers_forgotten(patch: Patch) -> None:
    real = partition_log.PartitionLog.restore

    def restore(self: Any, found: Any) -> None:
        found.producers = None
        real(self, found)

    patch.setattr(partition_log.PartitionLog, "restore", restore)


@mutant(
    "T4: what was cut off is still remembered", "T4", "L10", on_disk=True, numbered=True, first=10
)
def _cut_is_remembered(patch: Patch) -> None:
    patch.setattr(log_producers.LogProducers, "truncated", lambda *_: None)


@mutant("T4: a follower does not note producers", "T1", "T4", on_disk=True, numbered=True)
def _followers_note_nobody(patch: Patch) -> None:
    patch.setattr(ProducerStates, "applied", lambda *_: None)
