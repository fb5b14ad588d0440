"""Three controllers over an unkind Raft, brokers that come and go, and commands across all that.

Checked on every step: all controllers have the same image at the same offset, every batch keeps the
invariants, no two controllers are active in one term, an ok is in the log, a "not written" never
is. In the end all heals and comes back. tests/support/seeds.py describes which seeds run and how to
replay one.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import BrokerId, MetadataOffset, TopicId, TopicName
from raft_metadata.image.metadata_delta import MetadataDelta
from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.records.commands import (
    AlterPartition,
    BrokerHeartbeat,
    CreateTopic,
    DeleteTopic,
    FetchMetadata,
    IsrMember,
)
from raft_metadata.records.records import BrokerState
from tests.support.controller_invariants import Invariants
from tests.support.isr_proposals import propose
from tests.support.metadata_world import CLUSTER, config, registration, topic_id
from tests.support.seeds import Seeds
from tests.support.unkind_quorum import ManualClock, UnkindRaft, Voter, turn

STEPS = 250
BROKERS = tuple(map(BrokerId, (1, 2, 3, 4)))
STEP_MS = 40


@dataclass
class Broker:
    """A broker process: an image that follows some controller, and its registration."""

    broker_id: BrokerId
    life: int = 0
    disk: int = 0
    epoch: int | None = None
    image_offset: int = 0
    is_up: bool = True
    is_paused: bool = False
    is_registering: bool = False


class Simulation:
    """One seed. Owns the cluster, the chance, and the record of what was asked and answered."""

    def __init__(self, seed: int, group: asyncio.TaskGroup) -> None:
        self.rng = random.Random(seed)
        self.group = group
        self.clock = ManualClock()
        self.invariants = Invariants(config().defaults)
        self.images: dict[int, MetadataImage] = {}
        self.ever: set[TopicId] = set()
        self.raft = UnkindRaft(
            config(per_batch=3), self.clock, self.rng.randbytes, 3, self.on_change
        )
        self.brokers = [Broker(broker_id) for broker_id in BROKERS]
        self.topics = 0
        self.not_written: list[TopicId] = []
        self.counts: Counter[str] = Counter()
        self.pending = 0
        self.loss = 0.1
        self.trouble = True

    # ---- checks

    def on_change(self, delta: MetadataDelta, image: MetadataImage) -> None:
        known = self.images.setdefault(image.next_offset, image)
        assert known == image, f"two images at {image.next_offset}"
        if known is image and image.next_offset > delta.image.next_offset:
            before = self.images[delta.image.next_offset]
            if not any(
                delta.image.next_offset < offset < image.next_offset for offset in self.images
            ):
                self.invariants.check(before, image, joins=True)
        self.ever |= delta.created_topics

    def check(self) -> None:
        reigns = [v.term for v in self.raft.voters if v.controller.is_active]
        assert len(reigns) == len(set(reigns)), "two active controllers in one term"

    # ---- commands

    def spawn(self, command: Coroutine[Any, Any, None]) -> None:
        self.pending += 1

        async def run() -> None:
            try:
                await command
            finally:
                self.pending -= 1

        self.group.create_task(run())

    def target(self) -> Voter:
        """Whoever believes to be active, mostly."""
        active = [v for v in self.raft.voters if v.controller.is_active]
        if active and self.rng.random() < 0.9:
            return self.rng.choice(active)
        return self.rng.choice(self.raft.voters)

    async def create(self, voter: Voter) -> None:
        self.topics += 1
        new = topic_id(self.topics)
        command = CreateTopic(
            name=TopicName(f"t{self.rng.randrange(4)}"),
            topic_id=new,
            partitions_count=self.rng.choice([1, 2, 7]),
            replication_factor=self.rng.choice([1, 3, 3]),
        )
        try:
            answer = await voter.controller.execute(command)
        except KafkaError as error:
            self.note("create", error)
            if error.outcome is Outcome.NOT_WRITTEN and (
                error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            ):
                self.not_written.append(new)
            return
        self.counts["create ok"] += 1
        assert answer.topic_id == new
        assert new in self.ever, "an ok that is in no log"

    async def delete(self, voter: Voter) -> None:
        name = TopicName(f"t{self.rng.randrange(4)}")
        try:
            answer = await voter.controller.execute(DeleteTopic(name=name))
        except KafkaError as error:
            self.note("delete", error)
            return
        self.counts["delete ok"] += 1
        assert answer.topic_id not in voter.machine.image.topics

    async def alter(self, voter: Voter) -> None:
        image = voter.machine.image
        choices = [
            (topic, index)
            for topic in image.topics.values()
            for index, partition in enumerate(topic.partitions)
            if partition.has_leader
        ]
        if not choices:
            return
        topic, index = self.rng.choice(choices)
        partition = topic.partitions[index]
        isr = {b for b in partition.replicas if self.rng.random() < 0.7} | {partition.leader}
        command = AlterPartition(
            broker_id=partition.leader,
            broker_epoch=image.brokers[partition.leader].broker_epoch,
            topic_id=topic.topic_id,
            partition=index,  # type: ignore[arg-type]
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            new_isr=tuple(
                IsrMember(broker_id=b, broker_epoch=image.brokers[b].broker_epoch) for b in isr
            ),
        )
        try:
            answer = await propose(voter.controller, command)
        except KafkaError as error:
            self.note("alter", error)
            return
        self.counts["alter ok"] += 1
        assert answer.partition_epoch == partition.partition_epoch + 1
        recorded = [
            later.partitions[index]
            for image in self.images.values()
            if (later := image.topics.get(topic.topic_id)) is not None
            and index < len(later.partitions)
            and later.partitions[index].partition_epoch == answer.partition_epoch
        ]
        assert recorded, "an ok that is in no log"
        assert {p.isr for p in recorded} == {answer.isr}

    async def register(self, broker: Broker, voter: Voter) -> None:
        known = voter.machine.image.brokers.get(broker.broker_id)
        life = broker.life
        command = registration(
            broker.broker_id,
            life=str(life),
            disk=f"disk-{broker.broker_id}-{broker.disk}",
            last=-1 if known is None else known.broker_epoch,
        )
        broker.is_registering = True
        try:
            answer = await voter.controller.execute(command)
        except KafkaError as error:
            self.note("register", error)
        else:
            self.counts["register ok"] += 1
            if broker.life == life:
                broker.epoch = answer.broker_epoch
        finally:
            broker.is_registering = False

    async def follow(self, broker: Broker, voter: Voter) -> None:
        request = FetchMetadata(
            cluster_id=CLUSTER,
            broker_id=broker.broker_id,
            from_offset=MetadataOffset(broker.image_offset),
            max_wait_ms=0,
        )
        try:
            answer = await voter.controller.fetch_metadata(request)
        except KafkaError as error:
            self.note("fetch", error)
            return
        offset = broker.image_offset
        if answer.snapshot is not None:
            assert answer.snapshot.next_offset >= request.from_offset, "M5"
            broker.image_offset = max(offset, answer.snapshot.next_offset)
        elif offset == request.from_offset:
            for batch in answer.batches:
                assert batch.base_offset == broker.image_offset, "a gap"
                broker.image_offset += len(batch.records)

    def note(self, what: str, error: KafkaError) -> None:
        self.counts[f"{what} {error.code.name}"] += 1

    # ---- steps

    def heartbeats(self) -> None:
        for broker in self.brokers:
            if not broker.is_up or broker.is_paused:
                continue
            if broker.epoch is None:
                if not broker.is_registering and self.rng.random() < 0.3:
                    self.spawn(self.register(broker, self.target()))
                continue
            if self.rng.random() < 0.5:
                self.spawn(self.follow(broker, self.rng.choice(self.raft.voters)))
            for voter in self.raft.voters:
                if self.rng.random() >= self.loss:
                    self.beat(broker, voter)

    def beat(self, broker: Broker, voter: Voter) -> None:
        assert broker.epoch is not None
        command = BrokerHeartbeat(
            broker_id=broker.broker_id,
            broker_epoch=broker.epoch,  # type: ignore[arg-type]
            metadata_offset=MetadataOffset(broker.image_offset),
            want_shutdown=self.trouble and self.rng.random() < 0.01,
        )
        try:
            voter.controller.heartbeat(command)
        except KafkaError as error:
            self.note("heartbeat", error)

    def step(self) -> None:
        rng, raft = self.rng, self.raft
        self.clock.now_ms += STEP_MS
        self.heartbeats()
        if rng.random() < 0.5:
            act = rng.choice([self.create, self.create, self.delete, self.alter, self.alter])
            self.spawn(act(self.target()))
        for voter in raft.voters:
            voter.refuse = rng.random() < 0.02
            if rng.random() < 0.9:
                voter.controller.tick()
            if rng.random() < 0.8:
                raft.append(voter, rng.choice([None, None, 1, 2]))
        if rng.random() < 0.8:
            raft.commit(rng.choice([None, None, 1, 3]))
        for voter in raft.voters:
            if rng.random() < 0.8:
                raft.apply(voter, rng.choice([None, None, 1, 5]))
        roll = rng.random()
        if raft.leader is None or roll < 0.05:
            survivors = 0 if raft.leader is None else rng.randint(0, len(raft.leader.tail))
            raft.elect(rng.choice(raft.voters), survivors)
            self.counts["elections"] += 1
        elif roll < 0.1:
            believers = [v for v in raft.voters if v.is_leader and v is not raft.leader]
            for voter in believers:
                raft.notice(voter)
        elif roll < 0.12:
            voter, source = rng.sample(raft.voters, 2)
            raft.jump(voter, source)
        elif roll < 0.2:
            self.fault(rng.choice(self.brokers))

    def fault(self, broker: Broker) -> None:
        kind = self.rng.choice(["kill", "kill", "pause", "disk"])
        self.counts[kind] += 1
        if broker.is_paused or not broker.is_up:
            broker.is_up, broker.is_paused = True, False
        elif kind == "pause":
            broker.is_paused = True
        else:
            broker.is_up = self.rng.random() < 0.5
            broker.life, broker.epoch, broker.image_offset = broker.life + 1, None, 0
            broker.disk += kind == "disk"

    async def heal(self) -> None:
        """No loss, everyone up, one leader: everything must come back."""
        self.loss, self.trouble = 0.0, False
        for broker in self.brokers:
            broker.is_up, broker.is_paused = True, False
        for voter in self.raft.voters:
            voter.refuse = False
        leader = self.raft.leader
        assert leader is not None
        self.raft.elect(leader, len(leader.tail))
        for _ in range(200):
            self.clock.now_ms += STEP_MS
            self.heartbeats()
            await self.raft.settle(1)
            self.check()
        assert self.pending == 0, "a command that is never answered"
        image = leader.machine.image
        assert all(voter.machine.image == image for voter in self.raft.voters)
        assert leader.controller.status()["batches_in_flight"] == 0
        self.invariants.check_settled(image)
        allowed = (BrokerState.UNFENCED, BrokerState.CONTROLLED_SHUTDOWN)
        assert all(broker.state in allowed for broker in image.brokers.values())
        for refused in self.not_written:
            assert refused not in self.ever, "not written, and yet there"


async def simulate(seed: int, steps: int = STEPS) -> Counter[str]:
    """Run one seed; raises at the first broken promise."""
    failures: list[BaseException] = []

    def failed(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        failures.append(context.get("exception") or AssertionError(context["message"]))

    asyncio.get_running_loop().set_exception_handler(failed)
    async with asyncio.TaskGroup() as group:
        simulation = Simulation(seed, group)
        for _ in range(steps):
            simulation.step()
            await turn()
            simulation.check()
            assert not failures, failures
        await simulation.heal()
    assert simulation.invariants.checked > 20
    return simulation.counts


seeds_run = Seeds(
    module=__name__,
    simulate_one=lambda seed: asyncio.run(simulate(seed)),
    counts=lambda happened: ({}, happened),
    everyday=24,
    per_test=4,
    one_in=20,
)
pytest_generate_tests = seeds_run.parametrize


@pytest.mark.simulate
def test_whatever_raft_and_brokers_do_the_metadata_stays_true(seeds: list[int]) -> None:
    seeds_run.run_all(seeds)


def test_the_seeds_did_work() -> None:
    """All unknown would prove nothing: every kind of answer and fault was met."""
    number, total = seeds_run.number(), seeds_run.happened
    assert total["elections"] >= number
    for what in ("create ok", "delete ok", "alter ok", "register ok", "kill", "pause", "disk"):
        assert total[what] >= number / 4, (what, total)
    for code in ("OUTCOME_UNKNOWN", "NOT_CONTROLLER", "QUEUE_FULL"):
        assert sum(n for what, n in total.items() if what.endswith(code)) > 0, (code, total)
