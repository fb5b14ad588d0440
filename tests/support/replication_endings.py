"""How a simulated history ends: all is mended and drained, each replica leads once, all judged."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from broker.log.directory_files import DAMAGED_COPIES_MAX
from broker.replication.delayed_produces import AppendOutcome
from broker.replication.isr_state import COMMITTED, in_flight
from broker.replication.leader_state import LeaderState
from broker.replication.partition import Following, OpenSession
from raft_metadata.common.ids import BrokerId
from raft_metadata.records.records import BrokerState
from tests.support import replication_invariants as check
from tests.support.replica_stores import DiskStore
from tests.support.replication_broker import Broker, Writer
from tests.support.replication_controller import Controller
from tests.support.replication_features import PUSH_BYTES, Features
from tests.support.replication_invariants import Violation
from tests.support.replication_judge import Judge
from tests.support.replication_lives import FAR

REOPENED = (0, 8, 16, 24, 48, 72)
"""Rounds in which a follower opens its stream anew: its session may be one of the past. Later ones
are rarer: who may lack tombstones starts over each time (rule R7), and has to reach the end."""


class Endings:
    """The half of a `World` in which nothing goes wrong any more."""

    rng: random.Random
    ids: tuple[BrokerId, ...]
    features: Features
    brokers: list[Broker]
    controller: Controller
    judge: Judge
    writer: Writer
    net: list[Any]
    late: list[Any]
    p_flush: float
    given_up: bool
    counts: Counter[str]
    push_bytes: tuple[int, ...]
    _is_between: bool
    number: Callable[[], int]
    send: Callable[..., None]
    deliver: Callable[..., None]
    act: Callable[..., None]
    is_heartbeat_missed: Callable[[Broker], bool]
    beat: Callable[[Broker], None]

    def calm_round(self, number: int, *, fair: bool = True) -> None:
        """Everything that can happen happens once."""
        for b in self.ids:
            self.controller.settle(b)
        for broker in self.brokers:
            if broker.up and not broker.paused:
                self.act(broker, self._calm_turn, broker, number, fair)
        for _ in range(100):
            if self.net:
                self.deliver(self.net, 0, fair=fair)
        self.judge.after_event()

    def _calm_turn(self, broker: Broker, number: int, fair: bool) -> None:
        if broker.leaving and broker.partition and not len(broker.partition.delayed_produces):
            broker.drop()
        broker.learn(FAR)
        epoch = broker.broker_epoch
        if epoch is None:
            broker.register()
        elif self.is_heartbeat_missed(broker):
            self.beat(broker)
        if broker.wants_to_leave and fair:
            broker.ask_to_leave()
        if broker.mending.is_due:
            broker.mending.look()
        if fair or self.rng.random() < self.p_flush:
            broker.store.flush_all()
        if broker.upkeep is not None:
            broker.upkeep.hear_controller()
            broker.upkeep.retain()
            if self.features.compacts and not (fair and number % 4):
                broker.upkeep.clean_some(6)
        role = broker.role
        if isinstance(role, LeaderState):
            change = in_flight(role.isr_state)
            if fair and change is not None:
                role.unknown(change.attempt, 0)  # the request's own time-out
            broker.propose(shrink=role.isr_state is not COMMITTED and fair)
            for f in self.ids:
                broker.push(f)
        elif isinstance(role, Following) and (
            not isinstance(role.session, OpenSession) or number in REOPENED
        ):
            broker.open_stream()

    def settled_leader(self) -> Broker | None:
        p = self.controller.partition
        brokers = self.controller.image.brokers
        everybody = frozenset(p.replicas)
        if not p.has_leader or p.is_reassigning or frozenset(p.isr) != everybody:
            return None
        if any(brokers[b].state is not BrokerState.UNFENCED for b in p.replicas):
            return None
        if any(self.brokers[b].mending.is_due for b in p.replicas):
            return None
        if any(broker.wants_to_leave for broker in self.brokers):
            return None  # its writes are unknown when it goes: that is no answer to a sound cluster
        leader = self.brokers[p.leader]
        role, partition = leader.role, leader.partition
        led = isinstance(role, LeaderState) and role.epoch == p.leader_epoch
        if not led or role.isr != everybody or partition is None:
            return None
        end = partition.log.log_end_offset
        drained = partition.high_watermark == end == len(self.judge.exposed)
        return leader if drained else None

    def until_settled(self, what: str) -> Broker:
        for number in range(80):
            leader = self.settled_leader()
            if leader is not None:
                return leader
            self._revive()
            self.calm_round(number)
        facts = self.controller.partition
        check.l27_in_time(self.judge.tally, f"{what}: no settled leader", None, facts=facts)
        raise AssertionError

    def _revive(self) -> None:
        """Whoever died of an old fault is started again; no new ones come."""
        for broker in self.brokers:
            broker.paused = False
            broker.skew_ms = 0
            leaves = self.controller.image.brokers[broker.id].state
            has_registered = broker.broker_epoch is not None  # else another life of it was leaving
            if broker.up and has_registered and leaves is BrokerState.CONTROLLED_SHUTDOWN:
                broker.stop(power=False)
            if isinstance(broker.store, DiskStore):
                broker.store.disk.before = None
                broker.store.relieve()
                if len(broker.store.quarantined()) >= DAMAGED_COPIES_MAX:
                    broker.store.purge()
            if not broker.up:
                broker.start(f"life{self.number()}")

    def finish(self) -> None:
        """Where nobody can prove his end any more the partition waits for an operator: no loss.

        A power cut, a change to os, and a kill before the registration was settled report a disk
        unclean that lost nothing; it is beyond the budget of one lost disk that this world keeps.
        """
        try:
            self._finish()
        except Violation as violation:
            p = self.controller.partition
            nobody = self.features.flush and not (p.isr or p.elr)
            # Elected uncleanly, on a damaged disk: nobody but an operator can depose it.
            store = self.brokers[p.leader].store if p.has_leader else None
            offline = store is not None and (store.unclean or store.damaged)
            if violation.check != "L27" or not (nobody or (self.features.unclean and offline)):
                raise
            self.given_up = True

    def _finish(self) -> None:
        self.push_bytes = PUSH_BYTES
        self._is_between = True  # nothing goes wrong from here on
        self._revive()
        self.net += [message for message in self.late if self.rng.random() < 0.5]
        self.late = []
        self.until_settled("heal")
        for target in self.controller.partition.replicas:
            self.controller.move(target)
            leader = self.until_settled(f"elect {target}")
            value = -1
            for _ in self._tries():
                value = self.number()
                self.act(leader, leader.produce, [value])
                leader = self.until_settled("progress")
            fate = self.judge.answers.get(value)
            settled = fate if fate is AppendOutcome.OK else None
            check.l27_in_time(self.judge.tally, f"value {value}", settled, facts=fate)
            if self.writer.values:
                for _ in self._tries():
                    if self.writer.values:
                        self.act(leader, self._send_the_last, leader)
                        leader = self.until_settled("the numbered writer")
                done = None if self.writer.values else leader
                check.l27_in_time(self.judge.tally, "numbered", done, facts=self.writer.claim)
            self.judge.check_leader(leader)
            self.judge.drained(leader)
        self._read_everywhere()
        for number in range(8):
            if all(broker.broker_epoch is not None for broker in self.brokers):
                break  # who holds no replica is not waited for elsewhere
            self.calm_round(number)
        self.after_all()

    def _tries(self) -> Iterator[None]:
        """One; another where a leader met damage meanwhile: it hands over, and nobody knows."""
        before = -1
        while before != self.counts["found while running"]:
            before = self.counts["found while running"]
            yield

    def _read_everywhere(self) -> None:
        """All of it by every replica; what is found to be damaged meanwhile is mended."""
        replicas = self.controller.partition.replicas * self.features.on_disk
        for _ in range(len(replicas) + 1):
            for broker in (self.brokers[b] for b in replicas):
                if broker.partition is not None:
                    self.act(broker, broker.door().read_everything)
            if not any(self.brokers[b].mending.is_due for b in replicas):
                return
            self.until_settled("mended")
        check.l27_in_time(self.judge.tally, "sound everywhere", None, facts=replicas)

    def _send_the_last(self, leader: Broker) -> None:
        self.writer.asked += 1
        leader.produce(self.writer.values, "all", self.writer)

    def after_all(self) -> None:
        """From the disks: every replica holds it all, and still does after a last power cut."""
        p = self.controller.partition
        for broker in self.brokers:
            store = broker.store
            if broker.id not in p.replicas:
                broker.learn(FAR)
                if broker.partition is not None or store.mirror:
                    raise Violation("L24", f"what left broker {broker.id} is still in use there")
                continue
            if not isinstance(store, DiskStore) or store.log is None:
                continue
            judge = self.judge
            broker.store.flush_all()
            if store.log.stored is not None:
                store.log.stored.settle()
            found = store.read_all(store.log)
            check.l22_served_is_sound(judge.tally, found, judge.exposed, 0, broker.id)
            check.l12_in_order(judge.tally, store.runs(), broker.id)
            if not store.log.log_start_offset:
                check.t4_producers_are_the_replay(judge.tally, *store.producers(), broker.id)
            start_before = store.log.log_start_offset
            cache = clipped(live_epochs(store.log), start_before)
            broker.stop(power=not broker.marked)
            if not store.damaged:
                rebuilt = clipped(store.rebuilt_epochs(), start_before)
                check.l11_cache_is_rebuilt(judge.tally, cache, rebuilt, broker.id)
            broker.start(f"life{self.number()}")
            if not broker.up:
                raise Violation("L23", f"broker {broker.id} does not start on a sound disk")
            if store.damaged:
                continue  # below its log start, where nobody reads: refused now, and reported
            start = store.mirror_start()
            check.l2_strong_isr(judge.tally, store.mirror, judge.exposed, start, broker.id)


def clipped(epochs: list[tuple[int, int]], start: int) -> list[tuple[int, int]]:
    """As far as they speak of records from this offset on."""
    ends = [at for _, at in epochs[1:]] + [FAR]
    kept = [(epoch, at) for (epoch, at), end in zip(epochs, ends, strict=True) if end > start]
    return [(epoch, max(at, start)) for epoch, at in kept]


def live_epochs(log: Any) -> list[tuple[int, int]]:
    """The cache of a log, without a reign that has no record: that does not survive a restart."""
    return [(epoch, at) for epoch, at in log.epoch_entries if at < log.log_end_offset]
