"""Random commands in random order, one decision at a time: invariants after every step.

`World` checks P1 to P5, P8, P11 and C1 to C4 on every fold; here P6 (what must be refused is, and
changes nothing), P9, P12 and the ground truth of disks are added. Shrinks to the shortest story
that breaks one.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from typing_extensions import override

from raft_metadata.common.errors import KafkaError
from raft_metadata.common.ids import NO_LEADER, BrokerEpoch, BrokerId, PartitionId, TopicIdPartition
from raft_metadata.image.metadata_delta import delta_between
from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.image.snapshot import image_from_records, snapshot_of
from raft_metadata.records.commands import Election, IsrMember
from raft_metadata.records.records import BrokerState, DrainScope
from tests.support.doors.controller import hurry_leader_balance
from tests.support.metadata_world import World, config, registration, topic_id

BROKERS = tuple(map(BrokerId, (1, 2, 3, 4)))
CONFIGS: tuple[dict[str, str], ...] = (
    {},
    {"flush": "os"},
    {"unclean.leader.election.enable": "true"},
)
brokers = st.sampled_from(BROKERS)
topics = st.integers(1, 3)
partitions = st.integers(0, 2)


class Deciders(RuleBasedStateMachine):
    """One controller, four brokers that come and go, three topic names."""

    world: World
    lives: int
    checked: MetadataImage

    @initialize(min_isr=st.integers(1, 3), per_batch=st.sampled_from([1, 2, 1_000]))
    def begin(self, min_isr: int, per_batch: int) -> None:
        self.world = World(config=config(min_isr=min_isr, per_batch=per_batch))
        self.world.decide_all()
        self.lives = 0
        self.checked = self.world.image
        self.world.join(*BROKERS[:3])
        self.world.create("t1", 1, partitions_count=3)

    # ---- brokers

    @rule(
        broker=brokers,
        new_disk=st.booleans(),
        unclean=st.lists(st.tuples(topics, partitions), max_size=2),
        session_over=st.booleans(),
        late=st.booleans(),
    )
    def a_process_registers(
        self,
        broker: BrokerId,
        *,
        new_disk: bool,
        unclean: list[tuple[int, int]],
        session_over: bool,
        late: bool,
    ) -> None:
        self.lives += 1
        known = self.world.image.brokers.get(broker)
        last = -1 if known is None else known.broker_epoch
        disk = "" if known is None else known.directory_id
        if session_over and known is not None:
            self.world.alive.pop(broker, None)
            self.world.core.sessions.connection_closed(broker, known.broker_epoch, 0)
            self.silence(400)
        command = registration(
            broker,
            life=str(self.lives),
            disk=f"disk-{broker}-{self.lives}" if new_disk else disk,
            last=last - int(late),
            unclean=[TopicIdPartition(topic_id(t), PartitionId(p)) for t, p in unclean],
        )
        self.attempt(lambda: self.world.register(command), must_fail=late)

    @rule(ms=st.sampled_from([100, 400, 1_300]))
    def silence(self, ms: int) -> None:
        """Time passes: who does not heartbeat expires. Decides nothing."""
        for _ in range(0, ms, 100):
            self.world.now_ms += 100
            for broker, epoch in self.world.alive.items():
                if self.world.image.brokers[broker].broker_epoch == epoch:
                    self.world.beat(broker)
            self.world.judge()

    @rule(broker=brokers)
    def a_process_dies(self, broker: BrokerId) -> None:
        self.world.alive.pop(broker, None)

    @rule(broker=brokers)
    def a_paused_process_goes_on(self, broker: BrokerId) -> None:
        known = self.world.image.brokers.get(broker)
        if known is not None:
            self.world.alive[broker] = known.broker_epoch

    @rule(broker=brokers)
    def a_broker_wants_to_leave(self, broker: BrokerId) -> None:
        if broker in self.world.alive:
            answer = self.world.beat(broker, want_shutdown=True)
            if answer.should_shut_down:
                topics_now = self.world.image.topics.values()
                led = [p for topic in topics_now for p in topic.partitions if p.leader == broker]
                assert not led, "C8"
                del self.world.alive[broker]

    # ---- decisions

    @rule(count=st.integers(1, 4))
    def the_controller_decides(self, count: int) -> None:
        for _ in range(count):
            self.world.decide_one()

    @rule()
    def the_controller_comes_to_rest(self) -> None:
        self.world.decide_all()

    @rule()
    def another_controller_takes_over(self) -> None:
        """Sessions are every controller's; what was on its mind is found again in the image."""
        self.world.core.activate(self.world.image)

    # ---- topics and ISRs

    @rule(
        number=topics,
        count=st.integers(1, 3),
        factor=st.integers(1, 4),
        configs=st.sampled_from(CONFIGS),
    )
    def a_topic_is_created(
        self, number: int, count: int, factor: int, configs: dict[str, str]
    ) -> None:
        def create() -> None:
            self.world.create(
                f"t{number}",
                number,
                partitions_count=count,
                replication_factor=factor,
                configs=configs,
            )

        live = [
            broker
            for broker in self.world.image.brokers.values()
            if broker.state is BrokerState.UNFENCED and broker.drain is not DrainScope.REPLICAS
        ]
        new = topic_id(number) not in self.world.image.topics
        self.attempt(create, must_fail=new and factor > len(live))

    @rule(number=topics)
    def a_topic_is_deleted(self, number: int) -> None:
        self.attempt(lambda: self.world.delete(f"t{number}"))

    # ---- operators

    @rule(number=topics, index=partitions, to=st.permutations(BROKERS), size=st.integers(1, 4))
    def replicas_are_to_move(self, number: int, index: int, to: list[BrokerId], size: int) -> None:
        self.attempt(lambda: self.world.reassign(to[:size], f"t{number}", index))

    @rule(number=topics, index=partitions)
    def a_move_is_cancelled(self, number: int, index: int) -> None:
        before = self.world.image.partition(topic_id(number), PartitionId(index))
        self.attempt(lambda: self.world.reassign(None, f"t{number}", index))
        after = self.world.image.partition(topic_id(number), PartitionId(index))
        if before is not None and after is not None and after != before:
            original = [replica for replica in before.replicas if replica not in before.adding]
            unwanted = {replica for replica in before.isr if replica not in original}
            assert after.target == tuple(original), "P8"
            assert set(after.replicas) == {*original, *unwanted}, "G3: who may lead goes later"
            assert set(after.isr) == set(before.isr), "P8"

    @rule(number=topics, index=partitions)
    def new_replicas_catch_up(self, number: int, index: int) -> None:
        partition = self.world.image.partition(topic_id(number), PartitionId(index))
        if partition is None or not partition.has_leader:
            return
        if any(self.world.state(each) is not BrokerState.UNFENCED for each in partition.adding):
            return
        self.attempt(lambda: self.world.catch_up(*partition.adding, number=number, index=index))

    @rule(election=st.sampled_from(Election))
    def leaders_are_elected(self, election: Election) -> None:
        before = self.world.image
        for result in self.world.elect(election):
            where = before.topic_ids[result.topic], result.partition
            partition, was = self.world.image.partition(*where), before.partition(*where)
            assert partition is not None
            assert was is not None
            if result.error is not None:
                assert partition == was
                continue
            assert partition.leader == result.leader != NO_LEADER
            if election is Election.PREFERRED:
                assert result.leader == was.target[0], "P9"
                assert result.leader in was.isr, "P9"

    @rule(broker=brokers, scope=st.sampled_from(DrainScope))
    def a_broker_is_drained(self, broker: BrokerId, scope: DrainScope) -> None:
        self.attempt(lambda: self.world.drain(broker, scope))

    @rule()
    def a_minute_passes(self) -> None:
        """With a check for preferred leaders in it."""
        for broker in tuple(self.world.alive):
            if self.world.image.brokers[broker].broker_epoch != self.world.alive[broker]:
                del self.world.alive[broker]
        hurry_leader_balance(self.world.core, returned_ms=100, by_ms=20_000)
        self.world.pass_time(300)

    @precondition(lambda self: self.world.image.topics)
    @rule(
        data=st.data(),
        isr=st.sets(brokers, max_size=4),
        stale=st.sampled_from(["", "", "leader_epoch", "partition_epoch", "sender", "joiner"]),
    )
    def a_leader_proposes(self, data: st.DataObject, isr: set[BrokerId], stale: str) -> None:
        topic = self.world.image.topics[data.draw(st.sampled_from(sorted(self.world.image.topics)))]
        if not topic.partitions:
            return
        index = data.draw(st.integers(0, len(topic.partitions) - 1))
        partition = topic.partitions[index]
        members = tuple(self.world.member(broker) for broker in sorted(isr))
        other: dict[str, Any] = {"topic_id": topic.topic_id, "partition": PartitionId(index)}
        must_fail = bool(stale) or not self.is_legal(partition.leader, partition, isr)
        if stale == "leader_epoch":
            other["leader_epoch"] = partition.leader_epoch - 1
        elif stale == "partition_epoch":
            other["partition_epoch"] = partition.partition_epoch - 1
        elif stale == "sender":
            other["broker_epoch"] = BrokerEpoch(0)
        elif stale == "joiner":
            members = tuple(
                IsrMember(broker_id=m.broker_id, broker_epoch=BrokerEpoch(0)) for m in members
            )
            must_fail = not isr <= set(partition.isr) or (must_fail and stale != "joiner")
            must_fail = must_fail or not self.is_legal(partition.leader, partition, isr)
        number = next(n for n in (1, 2, 3) if topic_id(n) == topic.topic_id)
        other["new_isr"] = members
        self.attempt(lambda: self.world.alter((), number, index, **other), must_fail=must_fail)

    def is_legal(self, leader: BrokerId, partition: Any, isr: set[BrokerId]) -> bool:
        """P6, written down a second time."""
        known = self.world.image.brokers
        if leader not in isr or not isr <= set(partition.replicas):
            return False
        if known[leader].state not in (BrokerState.UNFENCED, BrokerState.CONTROLLED_SHUTDOWN):
            return False
        joiners = isr - set(partition.isr)
        return all(known[joiner].state is BrokerState.UNFENCED for joiner in joiners)

    def attempt(self, step: Any, *, must_fail: bool = False) -> None:
        """A refusal changes nothing; what must be refused is."""
        before = self.world.image
        try:
            step()
        except KafkaError:
            assert self.world.image is before
        else:
            assert not must_fail, "P6"

    # ---- always

    @invariant()
    def snapshots_and_deltas_lead_to_the_same_image(self) -> None:
        image = self.world.image
        if image is self.checked:
            return
        snapshot = snapshot_of(image)
        assert image_from_records(snapshot.records, image.next_offset, image.epoch) == image
        delta = delta_between(self.checked, image)
        assert delta.apply(image.next_offset, image.epoch) == image
        self.checked = image

    @override
    def teardown(self) -> None:
        """C14, and that the controller always comes to rest: everyone is back."""
        if not hasattr(self, "world"):
            return
        for broker_id, known in self.world.image.brokers.items():
            self.world.alive[broker_id] = known.broker_epoch
        self.world.pass_time(300)
        self.moves_go_through()
        for broker in self.world.image.brokers.values():
            allowed = (BrokerState.UNFENCED, BrokerState.CONTROLLED_SHUTDOWN)
            assert broker.state in allowed, f"C14 {broker}"
        assert self.world.invariants.checked > 3

    def moves_go_through(self) -> None:
        """P12: with everybody alive and every replica in sync no reassignment is left."""
        for number in (1, 2, 3):
            topic = self.world.image.topics.get(topic_id(number))
            for index in range(0 if topic is None else len(topic.partitions)):
                partition = self.world.partition(number, index)
                states = {self.world.state(replica) for replica in partition.replicas}
                if states == {BrokerState.UNFENCED} and partition.has_leader:
                    self.world.catch_up(*partition.replicas, number=number, index=index)
        self.world.decide_all()
        for topic in self.world.image.topics.values():
            for partition in topic.partitions:
                states = {self.world.state(replica) for replica in partition.replicas}
                if states == {BrokerState.UNFENCED} and partition.has_leader:
                    new = set(partition.adding) - set(partition.isr)
                    assert not partition.is_reassigning or new, f"P12 {partition}"


TestDeciders = Deciders.TestCase
TestDeciders.settings = settings(max_examples=300, stateful_step_count=40)
