"""Many seeds of the replicated partition are green; each rule's mutant is caught by one of them.

A mutant switches one guarded line of the product off. It counts as caught when a seed goes red that
is green without it. Second lines of defence that one world of this size rarely needs (sessions,
broker epochs at registration and join) have their own named tests in ``tests/unit``.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import pytest

from broker.log.leader_epoch_cache import LeaderEpochCache
from broker.replication import parked
from broker.replication.frames import Valid
from broker.replication.partition import Following, Partition
from broker.replication.partition_state import LeaderState
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import MetadataOffset
from raft_metadata.controller import (
    broker_views,
    partition_change,
    partition_draft,
    replication_control,
)
from tests.simulation.replication_world import FAR, MIN_ISR, Violation, run

MUTANT_SEEDS = 2_500
"""How many seeds a mutant may take to be caught; most fall within 300."""
GREEN_SEEDS = 1_000
"""Seeds of the unmutated protocol in every test run."""


@pytest.fixture(autouse=True)
def _quiet() -> None:
    logging.getLogger("broker.replication").setLevel(logging.ERROR)


def test_the_unmutated_protocol_is_green_and_does_work() -> None:
    exposed = epochs = 0
    outcomes: dict[parked.Fate, int] = dict.fromkeys(parked.Fate, 0)
    for seed in range(GREEN_SEEDS):
        world = run(seed)
        exposed += len(world.exposed)
        epochs += world.controller.partition.leader_epoch
        for fate in world.answers.values():
            outcomes[fate] += 1
    assert exposed > 5 * GREEN_SEEDS
    assert epochs > 4 * GREEN_SEEDS
    assert all(count > GREEN_SEEDS for count in outcomes.values()), outcomes


Patch = Callable[[pytest.MonkeyPatch], None]
MUTANTS: dict[str, Patch] = {}


def mutant(name: str) -> Callable[[Patch], Patch]:
    def keep(patch: Patch) -> Patch:
        MUTANTS[name] = patch
        return patch

    return keep


def _followers_say_what_they_hold(patch: pytest.MonkeyPatch) -> None:
    """The second line of defence away: a follower says its durable end in place of its log end."""
    real = Partition.ack_message

    def ack_message(self: Partition) -> Any:
        message = real(self)
        return None if message is None else message._replace(log_end=self.log.log_end_offset)

    patch.setattr(Partition, "ack_message", ack_message)


@mutant("R1: the high watermark counts log ends")
def _hw_by_log_end(patch: pytest.MonkeyPatch) -> None:
    _followers_say_what_they_hold(patch)

    def end_of(self: LeaderState, replica: Any) -> int:
        state = self.followers.get(replica)
        return state.log_end if state else 0

    patch.setattr(LeaderState, "end_of", end_of)


@mutant("R1: a follower joins by its log end")
def _join_by_log_end(patch: pytest.MonkeyPatch) -> None:
    _followers_say_what_they_hold(patch)
    real = LeaderState.may_join

    def may_join(self: LeaderState, *args: Any) -> bool:
        self.by_durable = False
        try:
            return real(self, *args)
        finally:
            self.by_durable = True

    patch.setattr(LeaderState, "may_join", may_join)


@mutant("R3: a restarted broker leads in an epoch older than its registration")
def _lead_in_old_epoch(patch: pytest.MonkeyPatch) -> None:
    real = Partition.apply_image

    def apply_image(self: Partition, registration: Any, *args: Any) -> None:
        newer = dataclasses.replace(registration, leader_epoch_offset=MetadataOffset(FAR))
        real(self, newer, *args)

    patch.setattr(Partition, "apply_image", apply_image)
    patch.setattr(partition_change, "_is_deposed", lambda _, draft: draft.leader not in draft.isr)


@mutant("R4: answers to earlier requests count")
def _answer_any_request(patch: pytest.MonkeyPatch) -> None:
    def awaiting(self: Partition, _request: int, _epoch: int) -> Following | None:
        return self.role if isinstance(self.role, Following) else None

    patch.setattr(Partition, "_awaiting", awaiting)


@mutant("2.2: a diverging follower is taken as it is")
def _no_divergence(patch: pytest.MonkeyPatch) -> None:
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


@mutant("2.2: truncate to the high watermark on becoming a follower (before KIP-101)")
def _truncate_to_hw(patch: pytest.MonkeyPatch) -> None:
    real = Partition._become

    def become(self: Partition, role: Any) -> None:
        real(self, role)
        if isinstance(role, Following):
            self.log.truncate_to(self.high_watermark)

    patch.setattr(Partition, "_become", become)


@mutant("2.2: join below the leader epoch's start")
def _join_below_epoch_start(patch: pytest.MonkeyPatch) -> None:
    real = LeaderState.may_join

    def may_join(self: LeaderState, *args: Any) -> bool:
        start, self.epoch_start = self.epoch_start, 0
        try:
            return real(self, *args)
        finally:
            self.epoch_start = start

    patch.setattr(LeaderState, "may_join", may_join)


@mutant("R5: parked work is answered ok by its offset alone")
def _wake_by_offset(patch: pytest.MonkeyPatch) -> None:
    def resolve(self: parked.ParkedProduces, log: Any, high_watermark: int) -> None:
        while self._for_all and self._for_all[0].offset < high_watermark:
            self._for_all.popleft().done(parked.Fate.OK)

    patch.setattr(parked.ParkedProduces, "resolve", resolve)


@mutant("R5: an entry past the log end counts as not written")
def _not_written_on_truncation(patch: pytest.MonkeyPatch) -> None:
    real = parked.ParkedProduces.resolve

    def resolve(self: parked.ParkedProduces, log: Any, high_watermark: int) -> None:
        while self._for_all and self._for_all[0].offset >= log.log_end_offset:
            self._for_all.popleft().done(parked.Fate.NOT_WRITTEN)
        real(self, log, high_watermark)

    patch.setattr(parked.ParkedProduces, "resolve", resolve)


@mutant("L11: a reign without a record stays in the epoch cache")
def _empty_reign_stays(patch: pytest.MonkeyPatch) -> None:
    def assign(self: LeaderEpochCache, epoch: int, start_offset: int) -> None:
        if not self._epochs or epoch > self._epochs[-1]:
            self._epochs.append(epoch)
            self._starts.append(start_offset)

    patch.setattr(LeaderEpochCache, "assign", assign)


@mutant("R6: a replaced or damaged disk keeps its place")
def _ignore_lost(patch: pytest.MonkeyPatch) -> None:
    nothing = partition_change._Lost(frozenset(), frozenset())
    patch.setattr(partition_change, "_lost_replicas", lambda *_: nothing)


@mutant("M3: an unanswered attempt is rolled back")
def _rollback(patch: pytest.MonkeyPatch) -> None:
    def unknown(self: LeaderState, attempt: int, _retry_ms: int) -> None:
        self.refused(attempt)

    patch.setattr(LeaderState, "unknown", unknown)


@mutant("M3: a refusal drops other attempts too")
def _refusal_for_all(patch: pytest.MonkeyPatch) -> None:
    def refused(self: LeaderState, attempt: int) -> None:
        self.proposals = {}
        if self.in_flight == attempt:
            self.in_flight = None

    patch.setattr(LeaderState, "refused", refused)


@mutant("2.2: the high watermark counts only the committed ISR")
def _no_maximal_isr(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaderState, "maximal_isr", lambda self: self.isr)


@mutant("2.2: the high watermark moves below min ISR")
def _hw_below_min_isr(patch: pytest.MonkeyPatch) -> None:
    real = LeaderState.high_watermark

    def high_watermark(self: LeaderState, *args: Any) -> int:
        self.min_isr = 1
        try:
            return real(self, *args)
        finally:
            self.min_isr = MIN_ISR

    patch.setattr(LeaderState, "high_watermark", high_watermark)


@mutant("2.2: AlterPartition without its partition-epoch check")
def _no_partition_epoch_check(patch: pytest.MonkeyPatch) -> None:
    real = replication_control._check_epochs

    def check(command: Any, partition: Any) -> None:
        try:
            real(command, partition)
        except KafkaError as error:
            if error.code is not ErrorCode.INVALID_UPDATE_VERSION:
                raise

    patch.setattr(replication_control, "_check_epochs", check)


@mutant("KIP-966: ELR keeps members while ISR >= min ISR")
def _elr_never_emptied(patch: pytest.MonkeyPatch) -> None:
    def next_elr(partition: Any, isr: Any, lost: Any, _min_isr: int) -> tuple[Any, ...]:
        members = [r for r in partition.replicas if r in partition.isr or r in partition.elr]
        return tuple(r for r in members if r not in isr and r not in lost)

    def keep_eligible(draft: Any, min_isr: int, unclean: Any = (), moved: Any = ()) -> None:
        draft.elr = next_elr(draft.before, draft.isr, {*unclean, *moved}, min_isr)

    patch.setattr(partition_draft.PartitionDraft, "keep_eligible", keep_eligible)


@mutant("unclean election: any unfenced replica may lead")
def _unclean_election(patch: pytest.MonkeyPatch) -> None:
    real = broker_views.first_electable

    def first(brokers: Any, replicas: Any, _among: Any) -> Any:
        return real(brokers, replicas, replicas)

    patch.setattr(partition_change, "first_electable", first)


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_mutant_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    for seed in range(MUTANT_SEEDS):
        try:
            run(seed)
        except (Violation, AssertionError):
            return
    pytest.fail(f"{MUTANT_SEEDS} seeds are green under the mutant: {name}")
