"""A seeded world around the product's own cores: one partition, its brokers, a controller.

The partition is `broker.replication.partition.Partition`, the controller's decisions are
``raft_metadata.controller``, the images `MetadataDelta`'s, and in most seeds the log is
`PartitionLog` with its flusher, recovery and manager on a disk that loses pages and names.
Simulated are the network (loss, delay, replay, reordering), the disks, crashes, power cuts, pauses,
operators and clients. Everything random comes from one generator: a seed is a counterexample.
What is judged stands in ``replication_judge``.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from broker.replication.parked import Fate
from broker.replication.partition import Following
from broker.replication.partition_state import LeaderState
from raft_metadata.common.errors import KafkaError
from raft_metadata.common.ids import BrokerId
from raft_metadata.records.feature_levels import SUPPORTED_FEATURE_LEVEL
from raft_metadata.records.records import BrokerState
from tests.support import replication_invariants as check
from tests.support.replica_flusher import PowerCut
from tests.support.replica_stores import SEGMENT_BYTES, DiskStore
from tests.support.replication_broker import CONTROLLER, FAR, Broker, Writer
from tests.support.replication_controller import HERE, MIN_ISR, Controller, is_os
from tests.support.replication_invariants import Violation
from tests.support.replication_judge import Judge
from tests.support.replication_topics import (
    CLOCK_DIFFERENCE_MS,
    POLICIES,
    YEAR_MS,
    Records,
    Topic,
    draw_topic,
)

KINDS = ("kill", "power", "disk", "rot", "pause", "fence", "move", "cut_all", "shutdown")
PUSH_BYTES, SLOWLY = (1, 500, 8_000), (1, 1, 500)
DISK_KINDS = ("eio", "full", "cut_at")


@dataclass(frozen=True, slots=True)
class Features:
    """What a seed is about: each its own mix."""

    on_disk: bool = True
    moves: bool = False
    """Replicas are reassigned between four brokers."""
    flush: bool = False
    """`flush` is switched between ack and os."""
    unclean: bool = False
    """The topic allows unclean elections."""
    numbered: bool = False
    """A client numbers its batches and sends each until it is there (invariants T1, T4)."""
    trims: bool = False
    """Records are deleted from the beginning."""
    compacts: bool = False
    """The topic is compacted (rule R7)."""
    retains: bool = False
    """Its records are deleted as they grow old, or many (rule R10)."""


def draw_features(rng: random.Random, topics: random.Random) -> Features:
    roll = rng.random()
    on_disk, unclean = rng.random() < 0.7, roll > 0.95
    keyed = on_disk and not unclean
    return Features(
        on_disk=on_disk,
        moves=roll < 0.2,
        flush=0.15 < roll < 0.35,
        unclean=unclean,
        trims=rng.random() < 0.4,
        numbered=rng.random() < 0.6,
        compacts=topics.random() < 0.2 and keyed,
        retains=topics.random() < 0.15 and keyed,
    )


Message = tuple[int, str, tuple[Any, ...], dict[str, Any]]


class World:
    """Network, schedule and faults."""

    def __init__(self, seed: int, **forced: bool) -> None:
        rng = self.rng = random.Random(seed)
        topics = random.Random(f"topic {seed}")
        self.features = replace(draw_features(rng, topics), **forced)
        if self.features.compacts or self.features.retains:
            self.features = replace(self.features, on_disk=True, unclean=False)
        moves, unclean = self.features.moves, self.features.unclean
        old = not (moves or unclean) and rng.random() < 0.3
        self.feature_level = 1 if old else SUPPORTED_FEATURE_LEVEL
        self.ids = tuple(BrokerId(number) for number in range(4 if moves else 3))
        self.counts: Counter[str] = Counter()
        self.topic: Topic | None = None
        if self.features.compacts or self.features.retains:
            compacts, retains = self.features.compacts, self.features.retains
            self.topic = draw_topic(topics, compacts=compacts, retains=retains)
        self.records = Records(topics)
        self.here = HERE
        self._is_between = False
        self.push_bytes = SLOWLY if self.features.compacts else PUSH_BYTES
        self.judge = Judge(self)
        self.numbers = 100
        self.now_ms = 1_000_000
        self.writer = Writer(7)
        self.net: list[Message] = []
        self.late: list[Message] = []
        self.power_cuts = self.departures = 0
        self.given_up = False
        self.brokers: list[Broker] = []
        self.controller = Controller(self, self.ids[:3])
        if unclean:
            self.controller.configure("unclean.leader.election.enable", "true")
        if self.topic is not None:
            for name, value in self.topic.configs().items():
                self.controller.configure(name, value)
        size = rng.choice(SEGMENT_BYTES)
        on_disk = self.features.on_disk
        self.brokers = [Broker(self, b, on_disk=on_disk, segment_bytes=size) for b in self.ids]
        for broker in self.brokers:
            broker.learn(FAR)
        # Swarm testing: every seed has its own mix of faults and delays.
        kinds = {kind: rng.choice((0, 1, 1, 3)) for kind in KINDS}
        if on_disk:
            kinds |= {kind: rng.choice((0, 1, 3)) for kind in DISK_KINDS}
            kinds["trim"] = 3 * self.features.trims
        if moves:
            kinds |= {"reassign": 4, "cancel": 1}
        if unclean:
            kinds |= {"disk": 4, "fence": 3, "pause": 2}  # else somebody clean is always there
        if self.features.flush:
            kinds |= {"flush": 4, "cut_at": 0}  # such a cut can't be weighed against the budget
        if self.topic is not None:
            kinds |= {"clock": 3, "policy": self.topic.may_change}
        if self.features.compacts:
            kinds |= {"disk": 3, "move": 3}  # a replica is filled by one leader, then by another
        self.kinds = kinds
        self.p_lost, self.p_late = rng.choice((0, 0.02, 0.08)), rng.choice((0, 0.1, 0.3))
        self.p_unknown = rng.choice((0, 0.2, 0.5))
        self.p_flush = rng.choice((0.1, 0.5, 1))
        self.fault_weight = rng.choice((1, 2, 4, 8))

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    # network

    def send(self, to: int, what: str, *args: Any, **named: Any) -> None:
        self.net.append((to, what, args, named))

    def deliver(self, queue: list[Message], index: int, *, fair: bool = False) -> None:
        message = to, what, args, named = queue.pop(index)
        if not fair and self._mishap(message):
            return
        if to == CONTROLLER:
            getattr(self.controller, what)(*args, **named)
            return
        broker = self.brokers[to]
        if broker.paused:
            self.late.append(message)
        elif broker.up:
            self.act(broker, getattr(broker, what), *args, **named)

    def act(self, broker: Broker, action: Any, *args: Any, **named: Any) -> None:
        """One turn of a broker's process; it ends where the power goes or a disk fails."""
        try:
            action(*args, **named)
        except PowerCut:
            broker.stop(power=True)
            return
        except OSError:
            self.counts["ended by OSError"] += 1
            broker.stop(power=False)
            return
        except KafkaError as error:
            if broker.store.failed is None:
                raise Violation("L26", f"broker {broker.id} raised {error}") from error
        failed = broker.store.failed
        if failed is None or not broker.up:
            return
        if not isinstance(failed, (OSError, PowerCut)) and not broker.store.damaged:
            raise Violation("L26", f"broker {broker.id} failed by itself: {failed!r}") from failed
        self.counts["ended by " + type(failed).__name__] += 1
        broker.stop(power=isinstance(failed, PowerCut))

    def _mishap(self, message: Message) -> bool:
        """Whether this delivery does not happen now."""
        rng, (_, what, args, _) = self.rng, message
        chance = rng.random()
        if chance < self.p_lost:
            if what == "alter_partition":
                self.send(args[0], "on_alter_unknown", args[2])
            return True
        if chance < self.p_lost + self.p_late:
            self.late.append(message)  # delayed; or, but for AlterPartition, replayed later
            if what == "alter_partition":
                self.send(args[0], "on_alter_unknown", args[2])
                return True
            return rng.random() < 0.5
        if what == "alter_partition" and rng.random() < self.p_unknown:
            self.late.append(message)  # OUTCOME_UNKNOWN: it may still commit, much later (M3)
            self.send(args[0], "on_alter_unknown", args[2])
            return True
        return False

    def begin(self) -> None:
        """A compacted topic is one already when things begin to go wrong."""
        for number in range(6 * self.features.compacts):
            self.now_ms += 100
            self.client()
            self.client()
            self.calm_round(number, fair=False)

    # the loss budget

    def lost(self, b: BrokerId) -> bool:
        """Ground truth: it lacks what it promised, and the controller has not recorded it."""
        broker, p = self.brokers[b], self.controller.partition
        if b not in p.replicas:
            return False
        if broker.store.damaged or broker.directory != p.directories[p.replicas.index(b)]:
            return True
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

    # steps

    def step(self) -> None:
        rng, roll = self.rng, self.rng.random() * 100
        moving = self.controller.partition.is_reassigning
        self.now_ms += rng.randrange(50)
        if roll < 40:
            for _ in range(min(rng.randint(1, 4), len(self.net))):
                self.deliver(self.net, rng.randrange(len(self.net)) if rng.random() < 0.2 else 0)
        elif roll < 46:
            if self.late:
                self.deliver(self.late, rng.randrange(len(self.late)), fair=True)
        elif roll < 49:
            self.calm_round(rng.randrange(8), fair=False)
        elif roll < 76:
            for broker in rng.sample(self.brokers, 2):
                self.tick(broker)
        elif roll < 84:
            self.client()
        elif roll < 92:
            self.controller.settle(rng.choice(self.ids))
        elif roll < 92 + self.fault_weight:
            self.fault()
        self.counts["reassignments finished"] += (
            moving and not self.controller.partition.is_reassigning
        )
        self.judge.after_event()

    def meanwhile(self) -> None:
        """Somebody's thread is amid its work: now and then others have a turn."""
        if not self._is_between and self.rng.random() < 0.1:
            self._is_between = True
            try:
                for _ in range(self.rng.randint(1, 3)):
                    self.step()
            finally:
                self._is_between = False

    def is_heartbeat_missed(self, broker: Broker) -> bool:
        """Whether somebody waits for what its next heartbeat says: others are left out."""
        removing = self.controller.partition.removing
        unfenced = broker.image.brokers[broker.id].state is BrokerState.UNFENCED
        return not unfenced or broker.id in removing

    def tick(self, broker: Broker) -> None:
        if not broker.up or broker.paused:
            return
        rng, role, partition = self.rng, broker.role, broker.partition
        choices: list[Any] = []
        if rng.random() < self.p_flush:
            choices.append(broker.store.flush_step)
        if broker.seen < len(self.controller.images) - 1:
            choices += [broker.learn, lambda: broker.learn(rng.randint(1, 5))]
        epoch = broker.broker_epoch
        if epoch is None:
            choices += [broker.register] * 2
        elif self.is_heartbeat_missed(broker):
            offset = broker.image.next_offset
            choices += [lambda: self.send(CONTROLLER, "heartbeat", broker.id, epoch, offset)] * 2
        if isinstance(role, LeaderState):
            choices += [lambda: broker.push(rng.choice(self.ids)), broker.propose]
        elif isinstance(role, Following):
            choices.append(broker.acknowledge)
            if role.session is None or rng.random() < 0.1:
                choices.append(broker.open_stream)
        if broker.wants_to_leave:
            choices.append(broker.ask_to_leave)
        if rng.random() < 0.1:
            choices.append(broker.store.idle)
        if broker.upkeep is not None:
            if not broker.upkeep.is_clock_trusted() and rng.random() < 0.3:
                choices.append(broker.upkeep.hear_controller)
            if rng.random() < 0.2:
                choices.append(broker.upkeep.retain)
            choices += [broker.upkeep.clean] * 2 * self.features.compacts
        parked = partition is not None and len(partition.parked)
        if parked and rng.random() < 0.05:
            choices = [broker.give_up]
        if broker.leaving and not parked:
            choices = [broker.drop]
        if choices:
            self.act(broker, rng.choice(choices))

    def client(self) -> None:
        rng = self.rng
        awake = [b for b in self.brokers if b.up and not b.paused]
        leaders = [b for b in awake if isinstance(b.role, LeaderState)]
        if awake and rng.random() < 0.2:
            reader = rng.choice(awake)
            self.act(reader, reader.consume, rng.randint(0, len(self.judge.exposed)))
        numbered = self.features.numbered and self.features.on_disk and not self.features.unclean
        if leaders and numbered and rng.random() < 0.5:
            leader = rng.choice(leaders)
            self.act(leader, self.send_numbered, leader)
        elif leaders:
            many = (1, 1, 2, 3) if self.topic is None else (1, 2, 4, 8)
            values = [self.number() for _ in range(rng.choice(many))]
            acks = "leader" if rng.random() < 0.1 else "all"
            leader = rng.choice(leaders)
            self.act(leader, leader.produce, values, acks)

    def send_numbered(self, leader: Broker) -> None:
        """The next batch, or the one under way once more, through whoever thinks that it leads."""
        writer, rng = self.writer, self.rng
        if not writer.values:
            writer.values = [self.number() for _ in range(rng.choice((1, 2, 3)))]
        elif writer.asked and rng.random() < 0.8:
            return  # it waits; now and then its answer is taken for lost
        writer.asked += 1
        leader.produce(writer.values, "all", writer)

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
            self.counts["rotted"] += broker.store.rot()

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
        if isinstance(broker.store, DiskStore):
            broker.store.fail_sync()

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

    # the end: heal, drain, elect each in turn

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
        if broker.leaving and broker.partition and not len(broker.partition.parked):
            broker.drop()
        broker.learn(FAR)
        epoch = broker.broker_epoch
        if epoch is None:
            broker.register()
        elif self.is_heartbeat_missed(broker):
            offset = broker.image.next_offset
            self.send(CONTROLLER, "heartbeat", broker.id, epoch, offset)
        if fair or self.rng.random() < self.p_flush:
            broker.store.flush_all()
        if broker.upkeep is not None:
            broker.upkeep.hear_controller()
            broker.upkeep.retain()
            if self.features.compacts and not (fair and number % 4):
                broker.upkeep.clean_some(6)
        role = broker.role
        if isinstance(role, LeaderState):
            if fair and role.in_flight is not None:
                role.unknown(role.in_flight, 0)  # the request's own time-out
            broker.propose(shrink=bool(role.proposals) and fair)
            for f in self.ids:
                broker.push(f)
        elif isinstance(role, Following) and (role.session is None or number % 8 == 0):
            broker.open_stream()

    def settled_leader(self) -> Broker | None:
        p = self.controller.partition
        brokers = self.controller.image.brokers
        everybody = frozenset(p.replicas)
        if not p.has_leader or p.is_reassigning or frozenset(p.isr) != everybody:
            return None
        if any(brokers[b].state is not BrokerState.UNFENCED for b in p.replicas):
            return None
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
            if broker.up and leaves is BrokerState.CONTROLLED_SHUTDOWN:
                broker.stop(power=False)
            if isinstance(broker.store, DiskStore):
                broker.store.disk.before = None
                broker.store.relieve()
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
            offline = p.has_leader and self.brokers[p.leader].store.unclean
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
            value = self.number()
            self.act(leader, leader.produce, [value])
            leader = self.until_settled("progress")
            fate = self.judge.answers.get(value)
            settled = fate if fate is Fate.OK else None
            check.l27_in_time(self.judge.tally, f"value {value}", settled, facts=fate)
            if self.writer.values:
                self.act(leader, self._send_the_last, leader)
                leader = self.until_settled("the numbered writer")
                done = None if self.writer.values else leader
                check.l27_in_time(self.judge.tally, "numbered", done, facts=self.writer.claim)
            self.judge.check_leader(leader)
            self.judge.drained(leader)
        for b in self.controller.partition.replicas * self.features.on_disk:
            self.act(self.brokers[b], self.brokers[b].door().read_everything)
        self.after_all()

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
            start = store.mirror_start()
            check.l2_strong_isr(judge.tally, store.mirror, judge.exposed, start, broker.id)

    def happened(self) -> Counter[str]:
        """What this seed was about, in numbers."""
        judge, counts = self.judge, Counter(self.counts)
        counts["exposed"] = len(judge.exposed)
        counts["leader epochs"] = self.controller.partition.leader_epoch
        counts["unclean elections"] = judge.unclean_elections
        counts["departures"] = self.departures
        counts["power cuts"] = self.power_cuts
        counts["given up"] = self.given_up
        counts["on disk"] = self.features.on_disk
        counts["found rotten"] = sum(getattr(b.store, "found_rotten", 0) for b in self.brokers)
        counts.update(f"answered {fate.value}" for fate in judge.answers.values())
        return counts


def clipped(epochs: list[tuple[int, int]], start: int) -> list[tuple[int, int]]:
    """As far as they speak of records from this offset on."""
    ends = [at for _, at in epochs[1:]] + [FAR]
    kept = [(epoch, at) for (epoch, at), end in zip(epochs, ends, strict=True) if end > start]
    return [(epoch, max(at, start)) for epoch, at in kept]


def live_epochs(log: Any) -> list[tuple[int, int]]:
    """The cache of a log, without a reign that has no record: that does not survive a restart."""
    return [(epoch, at) for epoch, at in log._epochs.entries if at < log.log_end_offset]


def run(seed: int, steps: int = 300, **forced: bool) -> World:
    """One seed: faults for ``steps`` steps, then healing, draining, electing each in turn."""
    world = World(seed, **forced)
    world.begin()
    for _ in range(steps):
        world.step()
    world.finish()
    return world
