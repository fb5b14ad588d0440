"""Damaged replicas of a simulated broker, mended by the product's own `Repairs` (decision 0009).

One life of a broker has one. What the `ReplicaManager` does for it, an image at hand and a replica
that stands down or is let go, is done here. Whatever sets a log aside is held against what the
controllers have committed at that moment.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from broker.replication.frames import key_of
from broker.replication.repair import LOOK_AGAIN_MS, Repairs
from broker.replication.replica import Replica
from raft_metadata.common.ids import TopicName
from tests.support.replica_bytes import NAME, TOPIC, ZERO
from tests.support.replication_controller import HERE
from tests.support.replication_invariants import Violation

if TYPE_CHECKING:
    from collections.abc import Callable

    from raft_metadata.common.ids import BrokerEpoch
    from raft_metadata.image.metadata_image import MetadataImage, PartitionRegistration
    from raft_metadata.records.commands import DamagedReplica
    from tests.support.replica_stores import DiskStore
    from tests.support.replication_lives import BrokerLife

KEY = key_of(TOPIC, ZERO)


class Mending:
    """The `RepairHost` and the sink of events of one life, in one."""

    def __init__(self, broker: BrokerLife, store: DiskStore) -> None:
        assert store.manager is not None
        self._broker, self._store = broker, store
        self._now_ms = 0
        self._replica: Replica | None = None
        here: Any = self
        self._manager = store.manager
        self._really_reset = store.manager.reset_damaged
        store.manager.reset_damaged = self._reset  # type: ignore[method-assign]
        for name in ("use_damaged", "open_offline"):
            setattr(store.manager, name, self._unmarking(getattr(store.manager, name)))
        unopenable = store.keeper.unopenable
        self.repairs = Repairs(broker.id, store.manager, here, unopenable, here)

    # the host

    @property
    def image(self) -> MetadataImage:
        return self._broker.image

    @property
    def broker_epoch(self) -> BrokerEpoch | None:
        return self._broker.broker_epoch

    def replica(self, _where: object) -> Replica | None:
        partition, log = self._broker.partition, self._store.log
        if partition is None or log is None:
            return None
        if self._replica is None or self._replica.partition is not partition:
            nobody: Any = None
            self._replica = Replica(TopicName(NAME), partition, log, KEY, nobody)
        return self._replica

    def stand_down(self, replica: Replica) -> None:
        replica.partition.retire()

    def release(self, replica: Replica) -> None:
        self._broker.let_go(replica.partition)
        self.repairs.forget(replica.key)

    def apply_partition(self, _topic: object, _key: object) -> None:
        self._broker.take_role(self.image)

    # events

    def note(self, *_args: object, **_facts: object) -> None:
        """What they say is judged where it happens."""

    # turns

    @property
    def is_due(self) -> bool:
        manager = self._manager
        return bool(manager.found_damage or self.repairs.damaged or manager.offline)

    def look(self) -> None:
        """A tick of the broker; all that waits is looked at again."""
        counts = self._broker.world.counts
        for _, error in self._manager.found_damage:
            if not self._store.damaged:
                raise Violation("L22", f"broker {self._broker.id}: {error}", "nothing had rotted")
            counts["found while running"] += 1
        self._now_ms += LOOK_AGAIN_MS
        self.repairs.look(self._now_ms)
        counts["damaged logs in use"] += any(log.is_served_damaged for log in self._manager.logs())

    def report(self) -> tuple[DamagedReplica, ...]:
        return self.repairs.report()

    def apply_to_damaged(self, registration: PartitionRegistration) -> bool:
        return bool(self.repairs.damaged) and self.repairs.apply_to_damaged(KEY, registration)

    def forget(self) -> None:
        self.repairs.forget(KEY)

    def _cut_now_and_then(self) -> None:
        """The power goes amid it."""
        world = self._broker.world
        if world.features.rots and not world.features.flush and world.rng.random() < 0.1:
            self._store.cut_at(world.rng.randint(0, 10))

    def _unmarking(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Nobody has more: the log is used as it is, and its mark goes."""

        def unmark(*where: Any) -> Any:
            self._store.marked = False
            return real(*where)

        return unmark

    # what is set aside

    def _reset(self, *where: Any) -> bool:
        store = self._store
        copies = store.copies()
        was_there = store.has_directory()
        took_part = -1
        if self._manager.was_open(HERE) and self._broker.partition is not None:
            took_part = self._broker.partition.role.epoch
        store.marked = store.marked or store.is_marked
        self._cut_now_and_then()
        try:
            return self._really_reset(*where)
        finally:
            store.check_copies(copies)
            if was_there and not store.has_directory():
                self._broker.world.counts["set aside"] += 1
                self._broker.world.judge.emptied(self._broker, took_part)


def idle_mending() -> Any:
    """Of a broker whose log is in memory: nothing of it rots while it runs."""
    return SimpleNamespace(
        is_due=False, report=tuple, apply_to_damaged=lambda _: False, forget=lambda: None
    )
