"""One partition whose replicas' logs are found damaged, under controllers that take over from each
other: the deciding cores are the product's, brokers and logs are models of a few lines.

What is checked at every step, one name each:

counts     a member of ISR or ELR holds everything that was acknowledged (readable or not)
given-up   nobody whose log is sound leaves ISR and ELR as the last one
in-place   every acknowledged record is readable in a log that lies in its place; where two were
           damaged at once, one perhaps without anybody's knowing, also in a copy that is kept
healed     in the end somebody leads, everybody is in sync, and nothing is damaged
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from raft_metadata.common.errors import KafkaError
from raft_metadata.common.ids import (
    BrokerId,
    LeaderEpoch,
    PartitionEpoch,
    PartitionId,
    TopicIdPartition,
)
from raft_metadata.controller.controller import Controller
from raft_metadata.image.metadata_image import MetadataImage, PartitionRegistration
from raft_metadata.records.commands import (
    AlterPartition,
    BrokerHeartbeat,
    DamagedReplica,
    IsrMember,
)
from raft_metadata.records.records import MetadataRecord
from tests.support.metadata_world import BROKERS, World, config, registration, topic_id

STEP_MS = 50
WHERE = TopicIdPartition(topic_id(1), PartitionId(0))
STEPS, PLOT_STEPS, CALM_STEPS = 300, 90, 150
LAGS_STEPS = 6
SESSION_MS = 3_000
"""Long, so that a controller may take over with much that is of the past."""
Entry = tuple[int, int]
"""(leader epoch, number)."""


class BrokenError(AssertionError):
    """A promise that was not kept, by its name."""

    def __init__(self, promise: str, *facts: object) -> None:
        super().__init__(f"{promise}: " + " | ".join(map(str, facts)))
        self.promise = promise


@dataclass(eq=False)
class Log:
    """A log in its place."""

    entries: list[Entry] = field(default_factory=list)
    bad: set[Entry] = field(default_factory=set)
    """What rotted."""
    is_known: bool = False
    """Whether its broker has found that."""
    opens: bool = True
    refused: bool = False
    """A start did not open it: it takes part in nothing."""

    def readable(self) -> set[Entry]:
        return set(self.entries) - self.bad if self.opens else set()


class Broker:
    """A process with one replica; `settle` is `Repairs._settle`."""

    def __init__(self, broker_id: BrokerId) -> None:
        self.id, self.life = broker_id, 0
        self.log = Log()
        self.image = MetadataImage()
        self.is_alive = True
        self.leads = False
        self.follows: BrokerId | None = None
        self.epoch = -1
        self.lags: Counter[BrokerId] = Counter()
        self.proposed: tuple[int, int] | None = None
        """The state of the partition that an attempt is on its way for."""
        self.proposes: set[BrokerId] = set()
        self.copies: list[Log] = []
        self.idle_steps = 0
        """So long it takes nothing from its leader."""

    def restart(self) -> None:
        self.life += 1
        self.leads, self.follows, self.epoch = False, None, -1
        self.proposed = None
        self.lags.clear()
        self.log.refused = self.log.is_known

    def apply(self, broker_epoch: int) -> None:
        """Take the role that the image gives."""
        partition = self.image.partition(*WHERE)
        mine = self.image.brokers.get(self.id)
        if partition is None or mine is None or mine.broker_epoch != broker_epoch:
            return
        if self.log.is_known and self._stays_as_it_is(partition, settled=mine.settled):
            return
        if partition.leader_epoch <= self.epoch:
            return
        if partition.leader != self.id:
            self.epoch, self.leads = partition.leader_epoch, False
            self.follows = partition.leader if partition.has_leader else None
        elif partition.leader_epoch_offset > broker_epoch:
            self.epoch, self.leads, self.follows = partition.leader_epoch, True, None

    def _stays_as_it_is(self, partition: PartitionRegistration, *, settled: bool) -> bool:
        if partition.leader == self.id:
            if self.log.refused and partition.isr == (self.id,) and self.log.opens:
                self.log.refused = False
            return self.log.refused or not self.log.opens
        if partition.leader_epoch > self.epoch:
            self.leads = False
        self.follows = None
        counts = self.id in partition.isr or self.id in partition.elr
        if self.log.refused:
            counts = not settled
        if counts or not partition.has_leader or partition.leader_epoch <= self.epoch:
            return True
        self.copies.append(self.log)
        self.log = Log()
        self.epoch = -1
        return False

    def report(self) -> tuple[DamagedReplica, ...]:
        if not self.log.is_known:
            return ()
        partition = self.image.partition(*WHERE)
        epoch = -1 if partition is None else partition.partition_epoch
        return (
            DamagedReplica(
                topic_id=WHERE.topic_id,
                partition=WHERE.partition,
                leader_epoch=LeaderEpoch(self.epoch),
                can_lead=self.log.opens,
                partition_epoch=PartitionEpoch(epoch),
            ),
        )


class DamageWorld(World):
    """One seed. ``self.core`` is the active one of three controllers."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.is_plot = seed % 2 == 0
        """Every other seed: little goes wrong, but at the worst moments."""
        self.min_isr = 1 if self.is_plot else self.rng.choice((1, 2))
        settings = replace(config(min_isr=self.min_isr), broker_session_timeout_ms=SESSION_MS)
        super().__init__(settings, seed=seed)
        self.cores = [self.core, *(self._new_core() for _ in range(2))]
        self.brokers = {broker_id: Broker(broker_id) for broker_id in BROKERS}
        self.due: list[tuple[int, int, Callable[[], None]]] = []
        self.deaf = [0, 0, 0]
        """So many steps each controller hears nobody."""
        self.acked: set[Entry] = set()
        self.written = self.posted = 0
        self.calm = False
        self.counts: Counter[str] = Counter()
        self.decide_all()
        self.join(*BROKERS)
        self.create(assignments={0: (1, 2, 3)})

    def _new_core(self) -> Controller:
        return Controller(self.config, self.rng.randbytes, self.now_ms)

    # ---- time

    def tell(self) -> Counter[str]:
        """Trouble, then calm."""
        for _ in range(PLOT_STEPS if self.is_plot else STEPS):
            self.step()
            if not self.is_plot:
                self.fault()
            elif not self.counts["found"]:
                self.rot(self.rng.choice(list(self.brokers.values())))
            self.check()
        self.calm = True
        for broker in self.brokers.values():
            if not broker.is_alive:
                self.come_back(broker)
        for _ in range(CALM_STEPS):
            self.step()
            self.check()
        self.check_healed()
        return self.counts

    def step(self) -> None:
        self.now_ms += STEP_MS
        self.deaf = [max(0, left - 1) for left in self.deaf]
        for broker in self.brokers.values():
            if broker.is_alive:
                self.turn_of(broker)
        now_due = sorted(each for each in self.due if each[0] <= self.now_ms)
        self.due = [each for each in self.due if each[0] > self.now_ms]
        for _, _, call in now_due:
            call()
        registered = [(each.broker_id, each.broker_epoch) for each in self.image.brokers.values()]
        for core in self.cores:
            core.sessions.expect_brokers(registered, self.now_ms)
            core.sessions.judge(self.now_ms)
        for _ in range(self.rng.choice((1, 3, 10))):
            if not self.decide_one():
                break

    def later(self, call: Callable[[], None], most_ms: int) -> None:
        self.after(0 if self.calm else self.rng.randrange(0, most_ms, 10), call)

    def turn_of(self, broker: Broker) -> None:
        if broker.id not in self.alive:
            self.register_again(broker)
            return
        if self.calm or self.rng.random() < 0.7:
            broker.image = self.image
        broker.apply(self.alive[broker.id])
        if broker.log.bad and not broker.log.is_known and self.rng.random() < 0.3:
            self.found(broker)
        if self.calm or self.rng.random() < 0.5:
            self.say(broker)
        if broker.leads:
            self.lead(broker)

    def say(self, broker: Broker) -> None:
        self.beats += 1
        beat = BrokerHeartbeat(
            broker_id=broker.id,
            broker_epoch=self.alive[broker.id],
            metadata_offset=broker.image.next_offset,
            failed=broker.report(),
            number=self.beats,
        )
        if beat.failed:
            self.invariants.damaged.setdefault(WHERE, set()).add(broker.id)
        for number in range(len(self.cores)):
            if self.calm or (self.rng.random() < 0.8 and not self.deaf[number]):
                self.later(lambda number=number: self.hear(number, beat), 600)  # type: ignore[misc]

    def hear(self, number: int, beat: BrokerHeartbeat) -> None:
        core = self.cores[number]
        try:
            core.heartbeat(self.image, beat, self.now_ms, is_active=core is self.core)
        except KafkaError:
            self.counts["late beats of an earlier life"] += 1

    def append(self, records: Iterable[MetadataRecord], *, joins: bool = False) -> None:
        before = self.image.partition(*WHERE)
        super().append(records, joins=joins)
        after = self.image.partition(*WHERE)
        if before is None or after is None or after.isr or after.elr:
            return
        for member in (*before.isr, *before.elr):
            log = self.brokers[member].log
            if not (log.bad or log.refused):
                raise BrokenError("given-up", member, before, after)

    # ---- the partition

    def lead(self, leader: Broker) -> None:
        partition = leader.image.partition(*WHERE)
        if partition is None or partition.leader_epoch != leader.epoch:
            return
        alone = partition.isr == (leader.id,) and not partition.elr
        if self.rng.random() < 0.4 and (alone or not leader.log.is_known):
            self.written += 1
            leader.log.entries.append((leader.epoch, self.written))
        in_step = {leader.id}
        for other in self.brokers.values():
            follows = other.is_alive and other.follows == leader.id and other.epoch == leader.epoch
            if other.idle_steps and not self.calm:
                other.idle_steps -= 1
            elif follows and not other.log.is_known and self.fill(leader, other.log):
                in_step.add(other.id)
            leader.lags[other.id] = 0 if other.id in in_step else leader.lags[other.id] + 1
        counting = {*partition.isr} | (leader.proposes if leader.proposed else set())
        if counting <= in_step and len(partition.isr) >= self.min_isr:
            self.acked.update(leader.log.entries)
        self.propose(leader, partition, in_step)

    def fill(self, leader: Broker, log: Log) -> bool:
        """Cut what the leader does not have, copy what it can read; whether that was all."""
        same = 0
        for mine, theirs in zip(log.entries, leader.log.entries, strict=False):
            if mine != theirs:
                break
            same += 1
        log.bad -= set(log.entries[same:])
        del log.entries[same:]
        for entry in leader.log.entries[same:]:
            if entry in leader.log.bad:
                self.found(leader)
                return False
            log.entries.append(entry)
        return True

    def propose(
        self, leader: Broker, partition: PartitionRegistration, in_step: set[BrokerId]
    ) -> None:
        state = (partition.leader_epoch, partition.partition_epoch)
        if leader.proposed == state:
            return
        leader.proposed = None
        stays = {each for each in partition.isr if leader.lags[each] < LAGS_STEPS}
        isr = sorted(stays | in_step)
        if set(isr) == set(partition.isr):
            return
        leader.proposed, leader.proposes = state, set(isr)
        brokers = leader.image.brokers
        members = tuple(
            IsrMember(broker_id=each, broker_epoch=brokers[each].broker_epoch) for each in isr
        )
        command = AlterPartition(
            broker_id=leader.id,
            broker_epoch=brokers[leader.id].broker_epoch,
            topic_id=WHERE.topic_id,
            partition=WHERE.partition,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            new_isr=members,
        )
        self.later(lambda: self.alters(leader, command), 400)

    def alters(self, leader: Broker, command: AlterPartition) -> None:
        try:
            records, _ = self.core.alter_partition(self.image, command)
        except KafkaError as error:
            self.counts[f"alter {error.code.name}"] += 1
            if leader.proposed == (command.leader_epoch, command.partition_epoch):
                leader.proposed = None
            return
        self.counts["alter ok"] += 1
        self.append(records, joins=True)

    def found(self, broker: Broker) -> None:
        if not broker.log.is_known:
            self.counts["found"] += 1
            broker.log.is_known = True
            broker.follows = None
            if not broker.log.opens:
                broker.leads = False

    # ---- faults

    def fault(self) -> None:
        roll = self.rng.random()
        broker = self.rng.choice(list(self.brokers.values()))
        if roll < 0.06:
            self.rot(broker)
        elif roll < 0.08 and broker.is_alive:
            self.kill(broker.id)
        elif roll < 0.14 and not broker.is_alive:
            self.come_back(broker)
        elif roll < 0.17:
            broker.idle_steps = self.rng.randrange(40)
        elif roll < 0.19:
            self.deaf[self.rng.randrange(len(self.cores))] = self.rng.randrange(40)
        elif roll < 0.24:
            self.take_over(self.rng.choice(self.cores))
        elif roll < 0.25:
            number = self.rng.randrange(len(self.cores))
            was_active = self.cores[number] is self.core
            self.cores[number] = self._new_core()
            if was_active:
                self.take_over(self.cores[number])
            self.counts["controllers begun"] += 1

    def rot(self, broker: Broker) -> None:
        """Within what can be survived: all else is readable in another log in its place."""
        partition = self.image.partition(*WHERE)
        assert partition is not None
        others = [each for each in self.brokers.values() if each is not broker]
        if broker.log.bad or broker.log.is_known:
            return
        known = set(broker.log.entries) & self.acked
        second = any(each.log.bad or each.log.is_known for each in others)
        if second:
            elsewhere = [entry for each in others for entry in each.log.readable()]
            known &= set(elsewhere)
            if known and self.rng.random() < 0.2:
                self.counts["a second one"] += 1
                broker.log.bad = {self.rng.choice(sorted(known))}
            return
        safe = [each for each in others if each.is_alive and each.id in partition.isr]
        if not known or not any(self.acked <= set(each.log.entries) for each in safe):
            return
        broker.log.bad = {self.rng.choice(sorted(known))}
        broker.log.opens = not self.is_plot and self.rng.random() < 0.7
        self.counts["rot" if broker.log.opens else "can't be opened"] += 1
        if not broker.log.opens:
            self.found(broker)
            if self.is_plot:
                self.plot(broker)

    def plot(self, broker: Broker) -> None:
        """Filled again it is soon left alone, and who takes over then has not heard of that."""
        number = self.rng.choice([i for i, core in enumerate(self.cores) if core is not self.core])

        def go_deaf() -> None:
            self.deaf[number] = 60
            for other in self.brokers.values():
                if other.id not in (broker.id, self.led_by()):
                    other.idle_steps = 40

        def kill_leader() -> None:
            leader = self.brokers.get(self.led_by() or broker.id)
            if leader is not None and leader is not broker and leader.is_alive and not self.calm:
                self.kill(leader.id)

        self.after(700, go_deaf)
        self.after(1_500, kill_leader)
        self.after(self.rng.randrange(2_000, 2_900), lambda: self.take_over(self.cores[number]))
        self.counts["plots"] += 1

    def led_by(self) -> BrokerId | None:
        partition = self.image.partition(*WHERE)
        return partition.leader if partition is not None and partition.has_leader else None

    def after(self, ms: int, call: Callable[[], None]) -> None:
        self.posted += 1
        self.due.append((self.now_ms + ms, self.posted, call))

    def take_over(self, core: Controller) -> None:
        self.core = core
        core.activate(self.image)
        self.counts["take-overs"] += 1

    def kill(self, *brokers: BrokerId) -> None:
        """A process that dies closes its connections: it is fenced when the grace is over."""
        for broker_id in brokers:
            self.brokers[broker_id].is_alive = False
            epoch = self.image.brokers[broker_id].broker_epoch
            for core in self.cores:
                core.sessions.connection_opened(broker_id, epoch, self.now_ms)
                core.sessions.connection_closed(broker_id, epoch, self.now_ms)
            self.counts["kills"] += 1

    def come_back(self, broker: Broker) -> None:
        broker.is_alive = True
        broker.restart()
        self.alive.pop(broker.id, None)

    def register_again(self, broker: Broker) -> None:
        known = self.image.brokers[broker.id]
        command = registration(
            broker.id,
            life=f"{broker.life}-{known.broker_epoch}",
            last=known.broker_epoch,
            unclean=(WHERE,) if broker.log.refused else (),
        )
        try:
            self.register(command)
        except KafkaError:
            self.counts["registrations refused"] += 1

    # ---- promises

    def check(self) -> None:
        partition = self.image.partition(*WHERE)
        assert partition is not None
        for member in (*partition.isr, *partition.elr):
            missing = self.acked - set(self.brokers[member].log.entries)
            if missing:
                raise BrokenError("counts", member, sorted(missing)[:3], partition)
        readable: set[Entry] = set()
        for broker in self.brokers.values():
            readable |= broker.log.readable()
            for copy in broker.copies if self.counts["a second one"] else ():
                readable |= copy.readable()
        if not self.acked <= readable:
            raise BrokenError("in-place", sorted(self.acked - readable)[:3], partition)

    def check_healed(self) -> None:
        partition = self.image.partition(*WHERE)
        assert partition is not None
        damaged = [each.id for each in self.brokers.values() if each.log.is_known]
        if not partition.isr and not partition.elr:
            self.counts["needs an operator"] += 1
            return
        if set(partition.isr) <= set(damaged):
            self.counts["nobody sound"] += 1
            return
        if not partition.has_leader or len(partition.isr) < len(BROKERS) or damaged:
            raise BrokenError("healed", partition, damaged)
