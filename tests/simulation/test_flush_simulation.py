"""A partition whose `flush` is changed at any moment, while brokers die and lose power (rule R1).

The world is `replication_world`'s, with the config in the metadata log, learned by each broker in
its own time, and with what `broker.server` adds: the durable mark of a topic that was `os` (rule
R6), and the report of a disk that lost its power under it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from typing_extensions import override

from broker.replication.partition import Partition
from broker.replication.partition_state import Settings
from raft_metadata.common.ids import BrokerId
from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.records.records import ConfigRecord, ResourceType
from tests.simulation.replication_world import MIN_ISR, TOPIC, Broker, Violation, World, run

GREEN_SEEDS = 200
MUTANT_SEEDS = 600


@pytest.fixture(autouse=True)
def _quiet() -> None:
    logging.getLogger("broker.replication").setLevel(logging.ERROR)


def is_os(image: MetadataImage) -> bool:
    return image.topic_configs(TOPIC).get("flush") == "os"


class MarkingBroker(Broker):
    """Goes by the `flush` of its own image; marks durably that it did, until all is synced."""

    def __init__(self, world: World, b: BrokerId) -> None:
        self.marked = self.at_start = self.lost_power = False
        self.clear_at: int | None = None
        super().__init__(world, b)

    @override
    def start(self, incarnation: str) -> None:
        self.at_start = self.marked
        super().start(incarnation)

    @override
    def stop(self, *, power: bool) -> None:
        super().stop(power=power)
        self.clear_at = None
        self.lost_power |= power

    @override
    def learn(self, steps: int = 1) -> None:
        newest = len(self.world.controller.images) - 1
        image = self.world.controller.images[min(self.seen + steps, newest)]
        self.note(image)
        self.partition.configure(Settings(min_isr=MIN_ISR, by_durable=not is_os(image)))
        super().learn(steps)
        mine = self.image.brokers.get(self.id)
        if mine is not None and mine.incarnation_id == self.incarnation and mine.settled:
            self.lost_power = False
            if not is_os(self.image) and self.marked and self.clear_at is None:
                self.clear_at = self.log.log_end_offset
        self.clear()

    def note(self, image: MetadataImage) -> None:
        """Durable before a role is taken from this image (`PageCacheTopics.note`)."""
        if is_os(image):
            self.marked, self.clear_at = True, None

    def clear(self) -> None:
        end = self.clear_at
        if end is not None and self.log.durable_end >= min(end, self.log.log_end_offset):
            self.marked, self.clear_at = False, None

    @override
    def flush_end(self) -> None:
        super().flush_end()
        self.clear()

    @override
    def on_push(self, message: Any) -> None:
        super().on_push(message)
        if not self.partition.settings.by_durable:
            self.acknowledge()

    @override
    def register(self) -> None:
        self.unclean = self.damaged or (self.lost_power and self.at_start)
        super().register()

    @override
    def lose_disk(self) -> None:
        super().lose_disk()
        self.marked = self.at_start = self.lost_power = False


class FlushWorld(World):
    """Three brokers. A power cut under `os` is a lost disk, and counts against the same budget."""

    kinds = (*World.kinds, "flush")

    def __init__(self, seed: int) -> None:
        self.changes = self.given_up = 0
        super().__init__(seed)
        self.weights[-1] = 4

    @override
    def new_broker(self, b: BrokerId) -> Broker:
        return MarkingBroker(self, b)

    def of(self, b: BrokerId) -> MarkingBroker:
        found = self.brokers[b]
        assert isinstance(found, MarkingBroker)
        return found

    @override
    def lost(self, b: BrokerId) -> bool:
        broker = self.of(b)
        lay = broker.at_start if broker.up else broker.marked
        return super().lost(b) or (broker.lost_power and lay)

    @override
    def holds_exposed(self, b: BrokerId) -> bool:
        log = self.of(b).log
        held = log.entries if self.of(b).marked else log.synced
        return held[: len(self.exposed)] == self.exposed

    @override
    def may_lose_power(self, broker: Broker, *, safe: bool) -> bool:
        return safe or not self.of(broker.id).marked

    @override
    def finish(self) -> None:
        """Where nobody can prove his end any more the partition waits for an operator: no loss.

        A power cut, a change to os, and a kill before the registration was settled report a disk
        unclean that lost nothing; it is beyond the budget of one lost disk that this world keeps.
        """
        try:
            super().finish()
        except Violation as violation:
            p = self.controller.partition
            if violation.check != "stuck" or p.isr or p.elr:
                raise
            self.given_up = 1

    @override
    def other_fault(self, kind: str) -> None:
        value = "ack" if is_os(self.controller.image) else "os"
        record = ConfigRecord(
            resource_type=ResourceType.TOPIC, resource_name=TOPIC, name="flush", value=value
        )
        self.controller.commit([record])
        self.changes += 1


def test_rule_r1_flush_changes_through_any_trouble_and_nothing_is_lost() -> None:
    changes = exposed = cuts = given_up = 0
    for seed in range(GREEN_SEEDS):
        world = run(seed, kind=FlushWorld)
        assert isinstance(world, FlushWorld)
        changes += world.changes
        exposed += len(world.exposed)
        cuts += world.power_cuts
        given_up += world.given_up
    assert given_up < GREEN_SEEDS // 20, given_up
    assert changes > GREEN_SEEDS, changes
    assert exposed > 5 * GREEN_SEEDS, exposed
    assert cuts > GREEN_SEEDS, cuts


Patch = Callable[[pytest.MonkeyPatch], None]


def _no_mark(patch: pytest.MonkeyPatch) -> None:
    """What was acknowledged under os is forgotten once the image says ack."""

    def register(self: MarkingBroker) -> None:
        self.unclean = self.damaged or (self.lost_power and is_os(self.image))
        Broker.register(self)

    patch.setattr(MarkingBroker, "register", register)


def _log_end_of_an_ack_follower(patch: pytest.MonkeyPatch) -> None:
    """A follower that does not know of os yet says what it holds, and is counted by it."""
    real = Partition.ack_message

    def ack_message(self: Partition) -> Any:
        message = real(self)
        return None if message is None else message._replace(log_end=self.log.log_end_offset)

    patch.setattr(Partition, "ack_message", ack_message)


@pytest.mark.parametrize("mutate", [_no_mark, _log_end_of_an_ack_follower])
def test_mutant_is_caught(mutate: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    for seed in range(MUTANT_SEEDS):
        try:
            run(seed, kind=FlushWorld)
        except (Violation, AssertionError):
            return
    pytest.fail(f"{MUTANT_SEEDS} seeds are green")
