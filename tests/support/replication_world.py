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
import struct
from collections import Counter
from dataclasses import replace
from typing import Any

from broker.replication.leader_state import LeaderState
from broker.replication.partition import Following, OpenSession
from raft_metadata.common.errors import KafkaError
from raft_metadata.common.ids import BrokerEpoch, BrokerId
from raft_metadata.records.commands import BrokerHeartbeat
from raft_metadata.records.records import BrokerState
from tests.support.replica_files import PowerCut
from tests.support.replica_stores import SEGMENT_BYTES
from tests.support.replication_broker import HOME, Broker, Writer
from tests.support.replication_controller import HERE, Controller
from tests.support.replication_endings import Endings
from tests.support.replication_faults import DISK_KINDS, KINDS, Faults
from tests.support.replication_features import PUSH_BYTES, SLOWLY, draw_features
from tests.support.replication_invariants import Violation
from tests.support.replication_judge import Judge
from tests.support.replication_lives import CONTROLLER, FAR
from tests.support.replication_topics import Records, Topic, draw_topic

Message = tuple[int, str, tuple[Any, ...], dict[str, Any]]


class World(Faults, Endings):
    """Network, schedule and faults."""

    def __init__(self, seed: int, **forced: bool) -> None:
        rng = self.rng = random.Random(seed)
        topics = random.Random(f"topic {seed}")
        rots = random.Random(f"rot {seed}")
        self.features = replace(draw_features(rng, topics, rots), **forced)
        if self.features.compacts or self.features.retains:
            self.features = replace(self.features, on_disk=True)
        if self.features.rots:
            self.features = replace(self.features, on_disk=True)
        moves, unclean = self.features.moves, self.features.unclean
        if not (moves or unclean):
            rng.random()  # the draws behind it stay those that the kept seeds were found with
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
        self.writer = Writer(HOME if seed % 2 else 7)
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
            kinds |= {"rot_live": 4 * self.features.rots, "takeover": 2 * self.features.rots}
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
        except struct.error as error:
            raise Violation("L22", f"broker {broker.id} met damage and fell: {error}") from error
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
        if self.features.rots:
            self.rot_now_and_then()
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
        reports = broker.mending.report()
        return not unfenced or broker.id in removing or self.controller.misses(broker, reports)

    def beat(self, broker: Broker) -> None:
        """A heartbeat, which every controller is sent."""
        broker.beats += 1
        command = BrokerHeartbeat(
            broker_id=broker.id,
            broker_epoch=broker.broker_epoch or BrokerEpoch(-1),
            metadata_offset=broker.image.next_offset,
            failed=broker.mending.report(),
            number=broker.beats,
        )
        for mind in range(len(self.controller.minds)):
            self.send(CONTROLLER, "heartbeat", command, mind)

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
            choices += [lambda: self.beat(broker)] * 2
        if isinstance(role, LeaderState):
            choices += [lambda: broker.push(rng.choice(self.ids)), broker.propose]
        elif isinstance(role, Following):
            choices.append(broker.acknowledge)
            if not isinstance(role.session, OpenSession) or rng.random() < 0.1:
                choices.append(broker.open_stream)
        if broker.wants_to_leave:
            choices.append(broker.ask_to_leave)
        if broker.mending.is_due:
            choices += [broker.mending.look] * 3
        if rng.random() < 0.1:
            choices.append(broker.store.idle)
        if broker.upkeep is not None:
            if not broker.upkeep.is_clock_trusted() and rng.random() < 0.3:
                choices.append(broker.upkeep.hear_controller)
            if rng.random() < 0.2:
                choices.append(broker.upkeep.retain)
            choices += [broker.upkeep.clean] * 2 * self.features.compacts
        parked = partition is not None and len(partition.delayed_produces)
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


def run(seed: int, steps: int = 300, **forced: bool) -> World:
    """One seed: faults for ``steps`` steps, then healing, draining, electing each in turn."""
    world = World(seed, **forced)
    world.begin()
    for _ in range(steps):
        world.step()
    world.finish()
    return world
