"""A seeded world around the product's own cores: one partition, three brokers, a controller.

The partition is `broker.replication.partition.Partition`, the controller's decisions are
``raft_metadata.controller``, the images `MetadataDelta`'s. Simulated are the network (loss, delay,
replay, reordering), the disks (page cache and platters, the flusher as its own actor), crashes,
power cuts, lost disks, pauses, and clients. Everything random comes from one generator: a seed is a
counterexample. What is checked is said at `World.check_*`.
"""

from __future__ import annotations

import random
from typing import Any

from broker.replication.frames import Ack, Diverging, Open, Push, Refused, Valid
from broker.replication.parked import Fate, Parked
from broker.replication.partition import Following, Partition
from broker.replication.partition_state import LeaderState, Proposal, Settings
from raft_metadata.common.errors import KafkaError
from raft_metadata.common.ids import (
    BrokerEpoch,
    BrokerId,
    ClusterId,
    ControllerEpoch,
    DirectoryId,
    IncarnationId,
    LeaderEpoch,
    MetadataOffset,
    PartitionEpoch,
    PartitionId,
    TopicId,
    TopicIdPartition,
    TopicName,
)
from raft_metadata.controller.cluster_control import (
    decide_fence,
    decide_register_broker,
    decide_settled,
    decide_unfence,
)
from raft_metadata.controller.partition_draft import PartitionDraft
from raft_metadata.controller.replication_control import (
    decide_alter_partition,
    decide_consequences,
)
from raft_metadata.controller.topic_defaults import TopicDefaults
from raft_metadata.image.metadata_delta import MetadataDelta
from raft_metadata.image.metadata_image import MetadataImage, PartitionRegistration
from raft_metadata.records.commands import AlterPartition, IsrMember, RegisterBroker
from raft_metadata.records.records import (
    BrokerState,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionRecord,
    TopicRecord,
)
from tests.support.memory_log import Entry, MemoryLog, encode

REPLICAS = (BrokerId(0), BrokerId(1), BrokerId(2))
MIN_ISR = 2
DEFAULTS = TopicDefaults(default_replication_factor=3, min_insync_replicas=MIN_ISR)
CONTROLLER = -2
CLUSTER = ClusterId("simulated")
TOPIC = TopicId("A" * 22)
HERE = TopicIdPartition(TOPIC, PartitionId(0))
EPOCH = ControllerEpoch(1)
FAR = 10**9
LAG_MS = 0
"""Every check for laggards is eager: a member that holds less than the leader may be removed."""


class Violation(Exception):
    """A named check went red."""

    def __init__(self, check: str, detail: str) -> None:
        super().__init__(f"{check}: {detail}")
        self.check = check


class Controller:
    """Linearizable and lossless itself; what reaches it and what it answers may be lost or late."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.heard: dict[BrokerId, MetadataOffset] = {}
        """What each registration last said of how far it has read (rule G3)."""
        self.images = [MetadataImage()]
        self.commit([FeatureLevelRecord(level=world.feature_level)])
        for b in world.ids:
            self.register(b, f"life{b}", f"disk{b}.0", unclean=False, last_seen=-1)
        partition = PartitionRecord(
            topic_id=TOPIC,
            partition=PartitionId(0),
            replicas=REPLICAS,
            directories=tuple(DirectoryId(f"disk{b}.0") for b in REPLICAS),
            isr=REPLICAS,
            elr=(),
            leader=REPLICAS[0],
            leader_epoch=LeaderEpoch(0),
            partition_epoch=PartitionEpoch(0),
        )
        topic = TopicRecord(name=TopicName("t"), topic_id=TOPIC, partitions_count=1)
        self.commit([topic, partition])
        for b in world.ids:
            self.heartbeat(b, self.image.brokers[b].broker_epoch, self.image.next_offset)
            self.heartbeat(b, self.image.brokers[b].broker_epoch, self.image.next_offset)

    @property
    def image(self) -> MetadataImage:
        return self.images[-1]

    @property
    def partition(self) -> PartitionRegistration:
        found = self.image.partition(*HERE)
        assert found is not None
        return found

    def commit(self, records: list[MetadataRecord]) -> None:
        """One batch; an image for every record in it keeps brokers' positions simple."""
        if not records:
            return
        delta = MetadataDelta(self.image)
        delta.replay_all(records, self.image.next_offset)
        end = MetadataOffset(self.image.next_offset + len(records))
        self.images.append(delta.apply(end, EPOCH))

    def register(
        self, b: BrokerId, incarnation: str, directory: str, *, unclean: bool, last_seen: int
    ) -> None:
        command = RegisterBroker(
            broker_id=b,
            cluster_id=CLUSTER,
            incarnation_id=IncarnationId(incarnation),
            directory_id=DirectoryId(directory),
            http="",
            peer="",
            unclean_partitions=(HERE,) if unclean else (),
            last_broker_epoch=BrokerEpoch(last_seen),
            feature_level_max=self.world.feature_level,
        )
        try:
            records, _ = decide_register_broker(
                self.image,
                command,
                cluster_id=CLUSTER,
                session_is_valid=self.world.rng.random() < 0.5,
            )
        except KafkaError:
            return
        self.heard.pop(b, None)
        self.commit(list(records))

    def heartbeat(self, b: BrokerId, broker_epoch: int, metadata_offset: int) -> None:
        known = self.image.brokers.get(b)
        if known is None or known.broker_epoch != broker_epoch:
            return
        self.heard[b] = max(self.heard.get(b, MetadataOffset(0)), MetadataOffset(metadata_offset))
        self.record_settled(b)
        self.commit(
            list(
                decide_unfence(
                    self.image,
                    b,
                    metadata_offset=MetadataOffset(metadata_offset),
                    defaults=DEFAULTS,
                )
            )
        )

    def alter_partition(self, b: BrokerId, command: AlterPartition, proposal: Proposal) -> None:
        try:
            records, answer = decide_alter_partition(self.image, command, defaults=DEFAULTS)
        except KafkaError:
            self.world.send(b, "on_alter_refused", proposal)
            return
        self.commit(list(records))
        self.world.send(b, "on_alter_accepted", proposal, answer.partition_epoch, answer.isr)

    def fence(self, b: BrokerId) -> None:
        self.commit(list(decide_fence(self.image, b, self.image.brokers[b].broker_epoch)))

    def settle(self, b: BrokerId) -> None:
        """What the image owes, as one bounded batch; then the registration may count as settled."""
        found = decide_consequences(
            self.image, [HERE], defaults=DEFAULTS, changes_max=1, heard=self.heard
        )
        before = self.partition
        self.commit(list(found.records))
        self.world.check_who_went(before)
        self.record_settled(b)

    def record_settled(self, b: BrokerId) -> None:
        """Rule R6: the mark of damage goes once the registration that reported it is settled."""
        records = list(decide_settled(self.image, b, defaults=DEFAULTS))
        self.commit(records)
        if records and self.image.brokers[b].unclean_partitions:
            self.world.brokers[b].damaged = False

    def move(self, to: BrokerId) -> None:
        """Hand leadership to another member of the ISR."""
        p = self.partition
        unfenced = self.image.brokers[to].state is BrokerState.UNFENCED
        if to in p.isr and to != p.leader and unfenced:
            draft = PartitionDraft.of(p)
            draft.lead(to)
            self.commit([draft.record(HERE, self.image.feature_level)])


class Broker:
    """One process on one disk, around the product's `Partition`."""

    def __init__(self, world: World, b: BrokerId) -> None:
        self.world, self.id = world, b
        self.log = MemoryLog(world.note_content)
        self.directory, self.disks, self.damaged = f"disk{b}.0", 0, False
        self.seen = 0
        self.up = self.paused = self.leaving = False
        self.start(f"life{b}")

    def start(self, incarnation: str) -> None:
        self.incarnation = incarnation
        self.up, self.paused, self.leaving = True, False, False
        self.log.synced = list(self.log.entries)  # rule Q1: open means synced
        self.log.durable_end = len(self.log.entries)
        self.log.generation, self.log.flush = 0, None
        self.open_partition()
        self.unclean = self.damaged

    def open_partition(self) -> None:
        self.partition = Partition(
            HERE,
            self.id,
            self.log,
            Settings(min_isr=MIN_ISR, by_durable=True),
            on_high_watermark=lambda partition: self.world.expose(self, partition),
        )

    def stop(self, *, power: bool) -> None:
        """SIGKILL keeps the page cache; a power cut keeps at least what was synced."""
        self.partition.parked.give_up()
        self.world.power_cuts += power
        log, rng = self.log, self.world.rng
        if power:
            same = 0
            while same < min(len(log.entries), len(log.synced)):
                if log.entries[same] != log.synced[same]:
                    break
                same += 1
            if rng.random() < 0.4:
                log.synced = log.entries[: rng.randint(same, len(log.entries))]
            log.recover(log.synced, keep_cache=False)
        else:
            log.recover(log.entries, keep_cache=rng.random() < 0.5)
        self.up = self.paused = False

    def lose_disk(self) -> None:
        self.disks += 1
        self.directory = f"disk{self.id}.{self.disks}"
        self.log = MemoryLog(self.world.note_content)
        self.damaged = False

    def rot(self) -> None:
        """Durable bytes are gone under the same directory id; recovery notices (rules Q5, R6)."""
        kept = self.log.entries[: self.world.rng.randint(0, len(self.log.entries))]
        self.log.recover(kept, keep_cache=False)
        self.log.synced = list(self.log.entries)
        self.damaged = True

    @property
    def image(self) -> MetadataImage:
        return self.world.controller.images[self.seen]

    @property
    def broker_epoch(self) -> BrokerEpoch | None:
        known = self.image.brokers.get(self.id)
        if known is None or known.incarnation_id != self.incarnation:
            return None
        return known.broker_epoch

    def learn(self, steps: int = 1) -> None:
        self.seen = min(self.seen + steps, len(self.world.controller.images) - 1)
        registration = self.image.partition(*HERE)
        if registration is None:
            return
        self.leaving = False
        if self.id not in registration.replicas and self.broker_epoch is not None:
            self.leaving = bool(len(self.partition.parked)) and registration.has_leader
            if not self.leaving:
                self.drop()
                return
        back, self.partition.observes = self.partition.observes and not self.leaving, self.leaving
        before = self.partition.role
        self.partition.apply_image(registration, self.image.brokers, self.broker_epoch, 0)
        role = self.partition.role
        if role is not before and isinstance(role, LeaderState):
            self.world.check_leader(self)
        if (role is not before or back) and isinstance(role, Following):
            self.open_stream()
        for follower, message in list(self.partition.early_opens.items()):
            del self.partition.early_opens[follower]
            self.on_open(follower, message)

    def drop(self) -> None:
        """The replica is other brokers' now: its log is set aside, one that comes back is new."""
        self.leaving = False
        self.partition.retire()
        self.log = MemoryLog(self.world.note_content)
        self.damaged = False
        self.open_partition()

    def register(self) -> None:
        known = self.image.brokers.get(self.id)
        last_seen = known.broker_epoch if known else -1
        self.world.send(
            CONTROLLER, "register", self.id, self.incarnation, self.directory,
            unclean=self.unclean, last_seen=last_seen,
        )  # fmt: skip

    # follower

    def open_stream(self) -> None:
        message = self.partition.open_message(self.world.number(), 0)
        role = self.partition.role
        if message is not None and isinstance(role, Following):
            self.world.send(role.leader, "on_open", self.id, message)

    def on_valid(self, message: Valid) -> None:
        if self.partition.on_valid(message):
            self.acknowledge()

    def on_diverging(self, message: Diverging) -> None:
        try:
            again = self.partition.on_diverging(message)
        except AssertionError as error:
            raise Violation("cut below high watermark", str(error)) from error
        if again:
            self.open_stream()

    def on_refused(self, message: Refused) -> None:
        self.partition.on_refused(message)

    def on_push(self, message: Push) -> None:
        if self.partition.on_push(message) is False:
            self.open_stream()

    def acknowledge(self) -> None:
        message, role = self.partition.ack_message(), self.partition.role
        if message is not None and isinstance(role, Following):
            self.world.send(role.leader, "on_ack", self.id, message)

    # leader

    def on_open(self, follower: BrokerId, message: Open) -> None:
        session = self.world.number()
        answer = self.partition.on_open(follower, message, self.image.brokers, session, 0)
        match answer:
            case Valid():
                self.world.send(follower, "on_valid", answer)
                self.push(follower)
            case Diverging():
                self.world.send(follower, "on_diverging", answer)
            case Refused():
                self.world.send(follower, "on_refused", answer)
            case None:
                pass

    def push(self, follower: BrokerId) -> None:
        role = self.partition.role
        if not isinstance(role, LeaderState):
            return
        state = role.followers.get(follower)
        if state is None or state.session < 0:
            return
        entries = self.log.entries[state.sent : state.sent + 2]  # catch-up in small quanta
        start = state.sent
        state.sent += len(entries)
        message = Push(
            state.session, role.epoch, start, state.sent,
            self.partition.high_watermark, 0, encode(entries),
        )  # fmt: skip
        self.world.send(follower, "on_push", message)

    def on_ack(self, follower: BrokerId, message: Ack) -> None:
        self.partition.on_ack(follower, message, 0)

    def flush_end(self) -> None:
        if self.log.flush_end():
            self.partition.advance()
            self.acknowledge()

    def produce(self, value: int) -> None:
        try:
            role = self.partition.check_may_append(all_replicas=True)
        except KafkaError:
            self.world.answer(value, Fate.NOT_WRITTEN)
            return
        offset = self.log.log_end_offset
        self.log.append((role.epoch, value))

        def done(fate: Fate) -> None:
            self.world.answer(value, fate, offset)

        self.partition.park(Parked(role.epoch, offset, offset, True, FAR, done))
        self.world.parked.append((self, value))
        for follower in list(role.followers):
            self.push(follower)

    def give_up(self) -> None:
        """A client's deadline: some parked produce becomes unknown."""
        self.partition.parked.expire(FAR + 1)

    def propose(self, *, shrink: bool = True) -> None:
        proposal = self.partition.propose_isr(
            self.image.brokers, self.world.number(), 1, LAG_MS if shrink else None
        )
        epoch = self.broker_epoch
        if proposal is None or epoch is None:
            return
        command = AlterPartition(
            broker_id=self.id,
            broker_epoch=epoch,
            topic_id=TOPIC,
            partition=PartitionId(0),
            leader_epoch=proposal.leader_epoch,
            partition_epoch=proposal.partition_epoch,
            new_isr=tuple(IsrMember(broker_id=b, broker_epoch=e) for b, e in proposal.isr),
        )
        self.world.send(CONTROLLER, "alter_partition", self.id, command, proposal)

    def on_alter_accepted(
        self, proposal: Proposal, partition_epoch: PartitionEpoch, isr: tuple[BrokerId, ...]
    ) -> None:
        self.partition.isr_accepted(proposal, partition_epoch, isr)

    def on_alter_refused(self, proposal: Proposal) -> None:
        self.partition.isr_refused(proposal)

    def on_alter_unknown(self, proposal: Proposal) -> None:
        self.partition.isr_unknown(proposal, 0)


Message = tuple[int, str, tuple[Any, ...], dict[str, Any]]


class World:
    """Network, faults, clients and checks."""

    ids: tuple[BrokerId, ...] = REPLICAS
    feature_level = 1
    kinds: tuple[str, ...] = ("kill", "power", "disk", "rot", "pause", "fence", "move", "cut_all")

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        self.numbers = 100
        self.net: list[Message] = []
        self.late: list[Message] = []
        self.contents: dict[tuple[int, int], int] = {}
        self.exposed: list[Entry] = []
        self.exposed_in: list[int] = []
        self.where: dict[int, int] = {}
        self.answers: dict[int, Fate] = {}
        self.parked: list[tuple[Broker, int]] = []
        self.brokers: list[Broker] = []
        self.controller = Controller(self)
        self.power_cuts = 0
        self.brokers = [self.new_broker(b) for b in self.ids]
        for broker in self.brokers:
            broker.learn(FAR)
        # Swarm testing: every seed has its own mix of faults and delays.
        self.p_lost, self.p_late = rng.choice((0, 0.02, 0.08)), rng.choice((0, 0.1, 0.3))
        self.p_unknown = rng.choice((0, 0.2, 0.5))
        self.weights = [rng.choice((0, 1, 1, 3)) for _ in self.kinds]
        self.p_flush = rng.choice((0.1, 0.5, 1))
        self.fault_weight = rng.choice((1, 2, 4, 8))

    def new_broker(self, b: BrokerId) -> Broker:
        return Broker(self, b)

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
        elif self.brokers[to].paused:
            self.late.append(message)
        elif self.brokers[to].up:
            getattr(self.brokers[to], what)(*args, **named)

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

    # checks

    def check_who_went(self, before: PartitionRegistration) -> None:
        """Of a partition, as it was, whose consequences have just been recorded."""

    def note_content(self, entry: Entry, offset: int) -> None:
        """L25: one (epoch, offset) never has two contents."""
        if self.contents.setdefault((entry[0], offset), entry[1]) != entry[1]:
            raise Violation("two contents", f"epoch {entry[0]} offset {offset}: {entry[1]}")

    def expose(self, broker: Broker, partition: Partition) -> None:
        """Consumers may now read below this broker's high watermark: it must never change."""
        log, end = broker.log.entries, partition.high_watermark
        seen = min(end, len(self.exposed))
        if log[:seen] != self.exposed[:seen]:
            raise Violation("exposed changed", f"on broker {broker.id} below {seen}")
        for entry in log[seen:end]:
            if self.answers.get(entry[1]) is Fate.NOT_WRITTEN:
                raise Violation("not_written appeared", f"value {entry[1]}")
            if entry[1] in self.where:
                raise Violation("duplicate", f"value {entry[1]}")
            self.where[entry[1]] = len(self.exposed)
            self.exposed.append(entry)
            self.exposed_in.append(partition.role.epoch)
        for other in self.brokers:
            role = other.partition.role
            if other.up and isinstance(role, LeaderState) and role.epoch > partition.role.epoch:
                self.check_leader(other)

    def check_leader(self, broker: Broker) -> None:
        """L4: the leader of an epoch has all that was exposed in epochs up to its own."""
        epoch = broker.partition.role.epoch
        must = max((n for n, by in enumerate(self.exposed_in, 1) if by <= epoch), default=0)
        if broker.log.entries[:must] != self.exposed[:must]:
            lost = self.exposed[:must][len(broker.log.entries) :]
            raise Violation("exposed lost", f"leader {broker.id} of epoch {epoch} lacks {lost}")

    def answer(self, value: int, fate: Fate, offset: int = -1) -> None:
        self.answers[value] = fate
        if fate is Fate.OK and self.where.get(value) != offset:
            raise Violation("ok lost", f"value {value} is not at {offset} when answered")
        if fate is Fate.NOT_WRITTEN and value in self.where:
            raise Violation("not_written appeared", f"value {value} was exposed before")

    def lost(self, b: BrokerId) -> bool:
        broker, p = self.brokers[b], self.controller.partition
        if b not in p.replicas:
            return False
        return broker.damaged or broker.directory != p.directories[p.replicas.index(b)]

    def intact(self, b: BrokerId) -> bool:
        p = self.controller.partition
        return (b in p.isr or b in p.elr) and not self.lost(b)

    def holds_exposed(self, b: BrokerId) -> bool:
        return self.brokers[b].log.synced[: len(self.exposed)] == self.exposed

    def check_members(self) -> None:
        """L2, L3: what is exposed is durable on every intact member of ISR and ELR."""
        for b in self.ids:
            if self.intact(b) and not self.holds_exposed(b):
                raise Violation("member lacks exposed", f"broker {b}")

    # steps

    def step(self) -> None:
        rng, roll = self.rng, self.rng.random() * 100
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
        self.check_members()

    def is_heartbeat_missed(self, broker: Broker) -> bool:
        """Whether somebody waits for what its next heartbeat says: others are left out."""
        return broker.image.brokers[broker.id].state is not BrokerState.UNFENCED

    def tick(self, broker: Broker) -> None:
        if not broker.up or broker.paused:
            return
        rng, role = self.rng, broker.partition.role
        choices: list[Any] = []
        if rng.random() < self.p_flush:
            choices.append(broker.log.flush_start if broker.log.flush is None else broker.flush_end)
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
        if len(broker.partition.parked) and rng.random() < 0.05:
            choices = [broker.give_up]
        if broker.leaving and not len(broker.partition.parked):
            choices = [broker.drop]
        if choices:
            rng.choice(choices)()

    def client(self) -> None:
        leaders = [
            b
            for b in self.brokers
            if b.up and not b.paused and isinstance(b.partition.role, LeaderState)
        ]
        if leaders:
            self.rng.choice(leaders).produce(self.number())

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
        if not any(self.weights):
            return
        kind, broker = rng.choices(self.kinds, self.weights)[0], rng.choice(self.brokers)
        if rng.random() < 0.3 and self.controller.partition.has_leader:
            broker = self.brokers[self.controller.partition.leader]
        # The promise: min ISR - 1 = 1 lost disk at a time, while another proven copy exists.
        safe = any(self.intact(b) for b in self.ids if b != broker.id) and not any(
            self.lost(b) for b in self.ids
        )
        match kind:
            case "kill" | "power":
                if broker.up:
                    may = self.may_lose_power(broker, safe=safe)
                    broker.stop(power=kind == "power" and may)
            case "cut_all":
                for each in self.brokers:
                    if each.up:
                        power = rng.random() < 0.7
                        each.stop(power=power and self.may_lose_power(each, safe=False))
            case "disk" | "rot":
                if safe:
                    if broker.up:
                        broker.stop(power=True)
                    if kind == "disk":
                        broker.lose_disk()
                    else:
                        broker.rot()
            case "pause":
                broker.paused = broker.up
            case "fence":
                self.controller.fence(broker.id)
            case "move":
                self.controller.move(broker.id)
            case _:
                self.other_fault(kind)

    def may_lose_power(self, broker: Broker, *, safe: bool) -> bool:
        """What is synced survives it. ``safe``: a disk may be lost now."""
        return True

    def other_fault(self, kind: str) -> None:
        """What worlds built on this one add."""
        raise NotImplementedError(kind)

    # the end: heal, drain, elect each in turn

    def calm_round(self, number: int, *, fair: bool = True) -> None:
        """Everything that can happen happens once."""
        for b in self.ids:
            self.controller.settle(b)
        for broker in self.brokers:
            if not broker.up or broker.paused:
                continue
            if broker.leaving and not len(broker.partition.parked):
                broker.drop()
            broker.learn(FAR)
            epoch = broker.broker_epoch
            if epoch is None:
                broker.register()
            elif self.is_heartbeat_missed(broker):
                offset = broker.image.next_offset
                self.send(CONTROLLER, "heartbeat", broker.id, epoch, offset)
            if fair or self.rng.random() < self.p_flush:
                broker.log.flush_start()
                broker.flush_end()
            role = broker.partition.role
            if isinstance(role, LeaderState):
                if fair and role.in_flight is not None:
                    role.unknown(role.in_flight, 0)  # the request's own time-out
                broker.propose(shrink=bool(role.proposals) and fair)
                for f in self.ids:
                    broker.push(f)
            elif isinstance(role, Following) and (role.session is None or number % 8 == 0):
                broker.open_stream()
        for _ in range(100):
            if self.net:
                self.deliver(self.net, 0, fair=fair)
        self.check_members()

    def settled_leader(self) -> Broker | None:
        p = self.controller.partition
        brokers = self.controller.image.brokers
        everybody = frozenset(p.replicas)
        if not p.has_leader or p.is_reassigning or frozenset(p.isr) != everybody:
            return None
        if any(brokers[b].state is not BrokerState.UNFENCED for b in p.replicas):
            return None
        leader = self.brokers[p.leader]
        role = leader.partition.role
        led = isinstance(role, LeaderState) and role.epoch == p.leader_epoch
        if not led or role.isr != everybody:
            return None
        end = leader.log.log_end_offset
        drained = leader.partition.high_watermark == end == len(self.exposed)
        return leader if drained else None

    def until_settled(self, what: str) -> Broker:
        for number in range(80):
            leader = self.settled_leader()
            if leader is not None:
                return leader
            self.calm_round(number)
        raise Violation("stuck", f"{what}: no settled leader; {self.controller.partition}")

    def finish(self) -> None:
        for broker in self.brokers:
            broker.paused = False
            if not broker.up:
                broker.start(f"life{self.number()}")
        self.net += [message for message in self.late if self.rng.random() < 0.5]
        self.late = []
        self.until_settled("heal")
        for target in self.controller.partition.replicas:
            self.controller.move(target)
            leader = self.until_settled(f"elect {target}")
            value = self.number()
            leader.produce(value)
            leader = self.until_settled("progress")
            if self.answers.get(value) is not Fate.OK:
                raise Violation("stuck", f"value {value}: {self.answers.get(value)}")
            self.check_leader(leader)
            self.check_drained(leader)

    def check_drained(self, leader: Broker) -> None:
        """Every ok value is where it was acknowledged; no not_written value; none twice; L11."""
        for broker in self.brokers:
            broker.log.check_epochs()
        values = [value for _, value in leader.log.entries]
        if len(values) != len(set(values)):
            raise Violation("duplicate", f"in the log of {leader.id}")
        place = {value: at for at, value in enumerate(values)}
        for value, fate in self.answers.items():
            if fate is Fate.OK and place.get(value) != self.where[value]:
                raise Violation("ok lost", f"value {value} at the end")
            if fate is Fate.NOT_WRITTEN and value in place:
                raise Violation("not_written appeared", f"value {value} at the end")


def run(seed: int, steps: int = 300, kind: type[World] = World) -> World:
    """One seed: faults for ``steps`` steps, then healing, draining, electing each in turn."""
    world = kind(seed)
    for _ in range(steps):
        world.step()
    world.finish()
    return world
