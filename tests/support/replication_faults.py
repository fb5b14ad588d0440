"""What goes wrong around a simulated partition, within the budget of what may be lost at once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from raft_metadata.common.ids import BrokerId
from tests.support.replica_stores import DiskStore
from tests.support.replication_broker import Broker
from tests.support.replication_controller import MIN_ISR, Controller, is_os
from tests.support.replication_features import Features
from tests.support.replication_judge import Judge
from tests.support.replication_topics import (
    CLOCK_DIFFERENCE_MS,
    POLICIES,
    YEAR_MS,
    Topic,
)

KINDS = ("kill", "power", "disk", "rot", "pause", "fence", "move", "cut_all", "shutdown")
DISK_KINDS = ("eio", "full", "cut_at")
OFTEN_ROTS, OFTEN_CALM = 0.02, 0.03


class Faults:
    """The half of a `World` that breaks it."""

    rng: random.Random
    ids: tuple[BrokerId, ...]
    features: Features
    topic: Topic | None
    brokers: list[Broker]
    controller: Controller
    judge: Judge
    kinds: dict[str, int]
    counts: Counter[str]
    number: Callable[[], int]
    act: Callable[..., None]
    calm_round: Callable[..., None]

    # the loss budget

    def lost(self, b: BrokerId) -> bool:
        """Ground truth: it lacks what it promised, and the controller has not recorded it."""
        broker, p = self.brokers[b], self.controller.partition
        if b not in p.replicas:
            return False
        if broker.directory != p.directories[p.replicas.index(b)]:
            return True
        if broker.store.damaged:
            is_out = b not in p.isr and b not in p.elr and p.leader_epoch > broker.newest_epoch
            return not (is_out and broker.store.is_marked)
        lay = broker.at_start if broker.up else broker.marked
        return broker.lost_power and lay

    def intact(self, b: BrokerId) -> bool:
        p = self.controller.partition
        return (b in p.isr or b in p.elr) and not self.lost(b)

    def is_safe(self, broker: Broker) -> bool:
        """The promise: min ISR - 1 = 1 lost disk at a time, while another proven copy exists.

        Where unclean elections are allowed nothing is promised: more may be lost.
        """
        if self.features.unclean and not self.judge.unclean_pending:
            return not any(self.lost(b) for b in self.ids) or self.rng.random() < 0.3
        return any(self.intact(b) for b in self.ids if b != broker.id) and not any(
            self.lost(b) for b in self.ids
        )

    # faults

    def fault(self) -> None:
        rng = self.rng
        down = [b for b in self.brokers if not b.up or b.paused]
        if down and rng.random() < 0.6:
            broker = rng.choice(down)
            if broker.paused:
                broker.paused = False
            else:
                broker.start(f"life{self.number()}")
            return
        if not any(self.kinds.values()):
            return
        kind = rng.choices(list(self.kinds), list(self.kinds.values()))[0]
        broker = rng.choice(self.brokers)
        if rng.random() < 0.3 and self.controller.partition.has_leader:
            broker = self.brokers[self.controller.partition.leader]
        self.counts[kind] += 1
        getattr(self, "_fault_" + kind)(broker)

    def may_lose_power(self, broker: Broker, *, safe: bool) -> bool:
        """What is synced survives it; under `os` it is a lost disk, and counts as one."""
        return safe or not broker.marked

    def _fault_kill(self, broker: Broker) -> None:
        if broker.up:
            broker.stop(power=False)

    def _fault_power(self, broker: Broker) -> None:
        if broker.up:
            broker.stop(power=self.may_lose_power(broker, safe=self.is_safe(broker)))

    def _fault_cut_all(self, _: Broker) -> None:
        for each in self.brokers:
            if each.up:
                power = self.rng.random() < 0.7
                each.stop(power=power and self.may_lose_power(each, safe=False))

    def _fault_disk(self, broker: Broker) -> None:
        if self.is_safe(broker):
            if broker.up:
                broker.stop(power=True)
            broker.lose_disk()

    def _fault_rot(self, broker: Broker) -> None:
        if self.is_safe(broker):
            if broker.up:
                broker.stop(power=self.may_lose_power(broker, safe=False))
            self._note_rot(broker.store.rot(everywhere=self.features.rots), "rotted")

    def _note_rot(self, kind: str, where: str) -> None:
        if kind:
            self.counts[where] += 1
            self.counts[f"rotted: {kind}"] += 1

    def _fault_rot_live(self, broker: Broker) -> None:
        """A running broker finds it when somebody reads there; now and then that is at once."""
        if not (broker.up and self.is_safe(broker)) or broker.store.damaged:
            return
        kind = broker.store.rot(everywhere=True)
        if not kind:
            return
        self._note_rot(kind, "rotted live")
        assert isinstance(broker.store, DiskStore)
        rot = broker.store.rotted
        assert rot is not None
        if self.rng.random() < 0.6:
            if rot.last < 0:
                broker.stop(power=False)  # it is read by a start alone
            elif not broker.paused:
                self.act(broker, broker.consume, rot.last)

    def _fault_rot_helper(self, broker: Broker) -> None:
        """Of files that can be made again: the budget of what may be lost is not touched."""
        if isinstance(broker.store, DiskStore):
            self._note_rot(broker.store.rot_helper(), "rotted helpers")

    def rot_now_and_then(self) -> None:
        """One replica after the other, each with some time to be mended."""
        chance = self.rng.random()
        if chance < OFTEN_ROTS:
            self._fault_rot_live(self.rng.choice(self.brokers))
            self._fault_rot_helper(self.rng.choice(self.brokers))
        elif chance < OFTEN_ROTS + OFTEN_CALM:
            self.calm_round(self.rng.randrange(8), fair=False)

    def _fault_takeover(self, _: Broker) -> None:
        self.controller.take_over()

    def _fault_pause(self, broker: Broker) -> None:
        broker.paused = broker.up

    def _fault_fence(self, broker: Broker) -> None:
        self.controller.fence(broker.id)

    def _fault_move(self, broker: Broker) -> None:
        self.controller.move(broker.id)

    def _fault_shutdown(self, broker: Broker) -> None:
        if broker.up and not broker.paused:
            broker.ask_to_leave()

    def _fault_eio(self, broker: Broker) -> None:
        """Fail a sync. Under `os` the lost pages may be acknowledged: it counts as a lost disk."""
        if isinstance(broker.store, DiskStore):
            broker.store.fail_sync(lambda: not broker.marked or self.is_safe(broker))

    def _fault_full(self, broker: Broker) -> None:
        if isinstance(broker.store, DiskStore):
            if broker.store.disk.room is None:
                broker.store.fill()
            else:
                broker.store.relieve()

    def _fault_cut_at(self, broker: Broker) -> None:
        if broker.up and isinstance(broker.store, DiskStore):
            broker.store.cut_at(self.rng.randint(0, 20))

    def _fault_trim(self, broker: Broker) -> None:
        if self.controller.partition.has_leader:
            broker = self.brokers[self.controller.partition.leader]
        if broker.up and not broker.paused:
            self.act(broker, broker.trim, self.rng.randint(0, len(self.judge.exposed)))

    def _fault_flush(self, _: Broker) -> None:
        self.controller.configure("flush", "ack" if is_os(self.controller.image) else "os")

    def _fault_clock(self, broker: Broker) -> None:
        """Set wrong by a year, or by as little as nobody minds, or right again."""
        near = CLOCK_DIFFERENCE_MS
        choices = (0, near, -near, YEAR_MS, YEAR_MS, -YEAR_MS)
        broker.skew_ms = self.rng.choice(choices)

    def _fault_policy(self, _: Broker) -> None:
        assert self.topic is not None
        policies = [p for p in POLICIES if self.features.compacts or "compact" not in p]
        self.controller.configure("cleanup.policy", self.rng.choice(policies))

    def _fault_reassign(self, _: Broker) -> None:
        size = self.rng.randint(MIN_ISR, len(self.ids))
        self.counts["reassigned"] += self.controller.reassign(
            tuple(self.rng.sample(self.ids, size))
        )

    def _fault_cancel(self, _: Broker) -> None:
        self.controller.reassign(None)
