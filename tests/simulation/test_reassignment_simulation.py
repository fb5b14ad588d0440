"""A partition whose replicas move between four brokers while all else goes wrong, seed by seed.

The world is `replication_world`'s: the product's own partition and the controllers' own decisions,
here with reassignments started, changed and cancelled at any moment (KIP-455, invariant P8).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from broker.replication.partition import Partition
from broker.replication.partition_state import LeaderState
from raft_metadata.common.errors import KafkaError
from raft_metadata.common.ids import BrokerId, PartitionId, TopicName
from raft_metadata.controller import reassignment_control
from raft_metadata.controller.partition_draft import PartitionDraft
from raft_metadata.controller.reassignment_control import decide_alter_reassignments
from raft_metadata.image.metadata_image import PartitionRegistration
from raft_metadata.records.admin import AlterReassignments, Reassignment
from raft_metadata.records.feature_levels import SUPPORTED_FEATURE_LEVEL
from raft_metadata.records.records import BrokerState
from tests.simulation.replication_world import DEFAULTS, MIN_ISR, Broker, Violation, World, run

GREEN_SEEDS = 200
MUTANT_SEEDS = 600


@pytest.fixture(autouse=True)
def _quiet() -> None:
    logging.getLogger("broker.replication").setLevel(logging.ERROR)


class MovingWorld(World):
    """Four brokers; replicas are reassigned to any two to four of them."""

    ids = tuple(BrokerId(number) for number in range(4))
    feature_level = SUPPORTED_FEATURE_LEVEL
    kinds = (*World.kinds, "reassign", "cancel")

    def __init__(self, seed: int) -> None:
        self.asked = self.begun = self.finished = 0
        super().__init__(seed)
        self.weights[-2:] = [4, 1]  # what this world is about happens in every seed

    def other_fault(self, kind: str) -> None:
        size = self.rng.randint(MIN_ISR, len(self.ids))
        target = tuple(self.rng.sample(self.ids, size)) if kind == "reassign" else None
        change = Reassignment(topic=TopicName("t"), partition=PartitionId(0), replicas=target)
        self.asked += 1
        try:
            records, _ = decide_alter_reassignments(
                self.controller.image, AlterReassignments(changes=(change,)), defaults=DEFAULTS
            )
        except KafkaError:
            return
        self.begun += bool(records)
        self.controller.commit(list(records))

    def step(self) -> None:
        before = self.controller.partition.is_reassigning
        super().step()
        self.finished += before and not self.controller.partition.is_reassigning

    def is_heartbeat_missed(self, broker: Broker) -> bool:
        removing = self.controller.partition.removing
        return super().is_heartbeat_missed(broker) or broker.id in removing

    def check_who_went(self, before: PartitionRegistration) -> None:
        """G3: nobody who lives is taken out of the ISR while it takes itself for the leader.

        A fence is behind the last proof of its broker, so is a registration (``Lifecycle``).
        """
        now = self.controller.partition
        for b in set(before.isr) - set(now.isr):
            alive = self.controller.image.brokers[b].state is BrokerState.UNFENCED
            role = self.brokers[b].partition.role
            if alive and self.brokers[b].up and isinstance(role, LeaderState):
                raise Violation("deposed unawares", f"{b} leads in {role.epoch}, {before}, {now}")

    def finish(self) -> None:
        super().finish()
        p = self.controller.partition
        for broker in self.brokers:
            if broker.id not in p.replicas:
                broker.learn(10**9)
                assert broker.log.log_end_offset == 0, "what left a broker is set aside there"


def test_invariant_p8_replicas_move_through_any_trouble_and_nothing_is_lost() -> None:
    begun = finished = exposed = 0
    for seed in range(GREEN_SEEDS):
        world = run(seed, kind=MovingWorld)
        assert isinstance(world, MovingWorld)
        begun += world.begun
        finished += world.finished
        exposed += len(world.exposed)
    assert begun > 2 * GREEN_SEEDS, begun
    assert finished > GREEN_SEEDS // 2, f"while everything went wrong only {finished} were through"
    assert exposed > 5 * GREEN_SEEDS, exposed


Patch = Callable[[pytest.MonkeyPatch], None]


def _shrink_at_once(patch: pytest.MonkeyPatch) -> None:
    """The old replicas go though the new ones are not in sync."""

    def complete(brokers: Any, draft: Any, rules: Any) -> None:
        draft.keep_replicas([r for r in draft.replicas if r not in draft.removing])
        draft.adding = draft.removing = ()

    patch.setattr("raft_metadata.controller.partition_change.complete_reassignment", complete)


def _adding_counts_at_once(patch: pytest.MonkeyPatch) -> None:
    """A reassignment adds to the ISR itself."""
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


def _leaver_counts(patch: pytest.MonkeyPatch) -> None:
    """A broker that follows only until its produces are answered can be added again unawares."""
    real = Partition._counted_end

    def counted_end(self: Partition) -> int:
        return max(0, self.log.durable_end if self.observes else real(self))

    patch.setattr(Partition, "_counted_end", counted_end)


def _no_new_epoch(patch: pytest.MonkeyPatch) -> None:
    """Who was taken out is not fenced off: its old session may bring it back empty."""
    real = PartitionDraft.keep_replicas

    def keep_replicas(self: PartitionDraft, keep: Any) -> None:
        before = self.new_leader_epoch
        real(self, keep)
        if self.leader in self.isr:
            self.new_leader_epoch = before

    patch.setattr(PartitionDraft, "keep_replicas", keep_replicas)


def _out_unawares(patch: pytest.MonkeyPatch) -> None:
    """Rule G3: a leader is taken out though it has not heard that it leads no more."""
    patch.setattr(reassignment_control, "unaware", lambda *_: ())


MUTANTS: dict[Patch, int] = {
    _shrink_at_once: 0,
    _adding_counts_at_once: 0,
    _leaver_counts: 600,
    _no_new_epoch: 0,
    _out_unawares: 0,
}
"""From which seed on each is looked for: the first of some come late."""


@pytest.mark.parametrize("mutate", MUTANTS)
def test_mutant_is_caught(mutate: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    for seed in range(MUTANTS[mutate], MUTANTS[mutate] + MUTANT_SEEDS):
        try:
            run(seed, kind=MovingWorld)
        except (Violation, AssertionError):
            return
    pytest.fail(f"{MUTANT_SEEDS} seeds are green")
