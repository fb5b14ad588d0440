"""Coordinators that come and go over one log, in virtual time, from a seed.

Faults: a new leader with part of the unacknowledged tail, a high watermark it has to learn, an old
one that goes on for a while, appends of unknown outcome, answers that are lost. Clients read,
commit, leave and come back. Checked: nothing is skipped, no acknowledged commit is lost or read
stale, no partition is read by two, an older coordinator never serves after a newer one has.
tests/support/seeds.py describes which seeds run and how to replay one.
"""

from __future__ import annotations

import asyncio
import json
import random
import selectors
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest
from typing_extensions import override

from broker.coordinator.group_coordinator import GroupCoordinator
from broker.coordinator.group_messages import (
    A,
    Commit,
    ConsumerSettings,
    CreateInstance,
    DeleteInstance,
    DescribeGroup,
    GroupOffsets,
    GroupRequest,
    OffsetReset,
    Poll,
    Subscribe,
)
from broker.coordinator.records import OFFSETS_TOPIC
from broker.record.batch import RecordFormat
from broker.record.lines import ProduceRecord, make_raw
from broker.server.coordinator_ports import BrokerDataReader
from broker.server.requests import ProduceRequest
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import (
    BrokerId,
    InstanceId,
    LeaderEpoch,
    PartitionId,
    TopicIdPartition,
    TopicName,
)
from tests.support.fake_broker_apis import FakeBrokerApis
from tests.support.group_log import MemoryShardLog, SharedLog
from tests.support.seeds import Seeds
from tests.unit.test_group_reads import G

T = TopicName("t")
PARTITIONS = 3
STEPS = 120


class VirtualSelector(selectors.SelectSelector):
    """Never waits: time passes instead."""

    now_s = 0.0

    @override
    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(0)
        if not found:
            assert timeout is not None, "everybody waits for nothing"
            self.now_s += max(timeout, 0)
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """Deterministic: one thread, one queue, no real time."""

    def __init__(self) -> None:
        self.selector = VirtualSelector()
        super().__init__(self.selector)

    @override
    def time(self) -> float:
        return self.selector.now_s


class LoopClock:
    def monotonic_ms(self) -> int:
        return round(asyncio.get_running_loop().time() * 1000)

    def wall_ms(self) -> int:
        return self.monotonic_ms()


@dataclass
class Node:
    """A broker that may lead the partition; ``log`` None where it does not think so."""

    world: World
    number: int
    log: MemoryShardLog | None = None
    proof_age_max_ms: int = 0

    def check_proof(self) -> bool:
        return self.log is not None and self.log.epoch == self.world.shared.epoch

    async def prove(self, timeout_ms: int) -> bool:
        await asyncio.sleep(timeout_ms / 1000)
        return self.check_proof()

    def leading(self, where: TopicIdPartition) -> LeaderEpoch | None:
        if where.partition or self.log is None:
            return None
        return LeaderEpoch(self.log.epoch)

    def make_log(self, where: TopicIdPartition, epoch: LeaderEpoch) -> MemoryShardLog:
        assert self.log is not None
        return self.log


@dataclass
class World:
    seed: int
    chance: random.Random
    apis: FakeBrokerApis = field(default_factory=FakeBrokerApis)
    shared: SharedLog = field(default_factory=SharedLog)
    nodes: list[Node] = field(default_factory=list)
    coordinators: list[GroupCoordinator] = field(default_factory=list)
    leader: int = 0
    exposed: int = 0
    """The highest high watermark there ever was: nothing below it is lost."""
    calm: bool = False
    produced: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    reached: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Partition → how far anything was delivered without a gap."""
    acknowledged: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    served_epoch: int = 0
    figures: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    # ---- faults

    def elect(self, number: int) -> None:
        """Another leader. What was acknowledged is in its log; of the rest, some."""
        self.exposed = max(self.exposed, self.shared.high_watermark)
        kept = self.chance.randint(self.exposed, len(self.shared.entries))
        del self.shared.entries[kept:]
        old = self.nodes[self.leader]
        log = self.shared.elect()
        self.leader = number
        self.figures["elections"] += 1
        self.shared.high_watermark = self.chance.randint(0, self.exposed)
        node = self.nodes[number]
        node.log = log
        self.coordinators[number].on_metadata_update(self.apis.image)
        asyncio.get_running_loop().call_later(self.chance.random() * 0.5, self._learn, log)
        if old is not node:
            delay_s = self.chance.random() * 2
            asyncio.get_running_loop().call_later(delay_s, self._depose, old, old.log)

    def _learn(self, log: MemoryShardLog) -> None:
        if log.epoch == self.shared.epoch:
            self.shared.commit()

    def _depose(self, node: Node, log: MemoryShardLog | None) -> None:
        if node.log is log and log is not None and log.epoch != self.shared.epoch:
            node.log = None
            self.coordinators[node.number].on_metadata_update(self.apis.image)

    def fail_an_append(self) -> None:
        log = self.nodes[self.leader].log
        assert log is not None
        log.next_append = KafkaError(
            self.chance.choice([ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS])
        )
        asyncio.get_running_loop().call_later(self.chance.random() * 0.5, self._learn, log)

    async def produce(self) -> None:
        number = self.chance.randrange(PARTITIONS)
        count = self.chance.randint(1, 4)
        await self.apis.produce(
            ProduceRequest(
                topic=T,
                records=[ProduceRecord(value=make_raw(b"1")) for _ in range(count)],
                key_format=RecordFormat.JSON,
                value_format=RecordFormat.JSON,
                partition=PartitionId(number),
            )
        )
        self.produced[number] += count

    # ---- requests

    async def ask(self, request: GroupRequest[A]) -> A:
        """Ask somebody; most often the leader. Some answers are lost on the way."""
        asked = self.leader
        if not self.calm and self.chance.random() < 0.2:
            asked = self.chance.randrange(len(self.nodes))
        log = self.nodes[asked].log
        answer = await self.coordinators[asked].answer(request)
        assert log is not None
        if isinstance(request, Poll | DescribeGroup | GroupOffsets):
            assert log.epoch >= self.served_epoch, "an older coordinator serves (rule G3)"
        self.served_epoch = max(self.served_epoch, log.epoch)
        self.observe(request, answer)
        if not self.calm and self.chance.random() < 0.1:
            self.figures["lost answers"] += 1
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION)
        return answer

    def observe(self, request: GroupRequest[Any], answer: Any) -> None:
        match request:
            case Poll():
                for record in json.loads(answer.body):
                    number, offset = record["partition"], record["offset"]
                    assert offset <= self.reached[number], f"skipped {self.reached[number]}"
                    self.reached[number] = max(self.reached[number], offset + 1)
                    self.figures["records"] += 1
            case DescribeGroup():
                owned = [one for member in answer.members for one in member.assignment]
                assert len(owned) == len(set(owned)), "two owners"
            case _:
                pass

    async def check_commits(self) -> None:
        """A read that began behind an acknowledged commit shows it, or a newer one."""
        least = dict(self.acknowledged)
        rows = await self.ask(GroupOffsets(group=G))
        found = {row.partition: row.offset for row in rows}
        for number, offset in least.items():
            assert found.get(PartitionId(number), 0) >= offset, "an acknowledged commit is gone"
        for partition, offset in found.items():
            assert offset <= self.reached[partition]
            self.acknowledged[partition] = max(self.acknowledged[partition], offset)
        self.figures["commits checked"] += 1


class Client:
    """One instance: reads, commits what it read, sometimes leaves."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = InstanceId(name)
        self.joined = False

    async def step(self) -> None:
        chance = self.world.chance.random()
        try:
            if not self.joined:
                await self.join()
            elif chance < 0.5:
                await self.world.ask(Poll(group=G, instance=self.name, timeout_ms=200))
            elif chance < 0.8:
                await self.world.ask(Commit(group=G, instance=self.name))
            elif chance < 0.9:
                await self.world.ask(DescribeGroup(group=G))
            elif chance < 0.95:
                await self.world.check_commits()
            elif not self.world.calm:
                self.joined = False
                if self.world.chance.random() < 0.5:
                    await self.world.ask(DeleteInstance(group=G, instance=self.name))
        except KafkaError as error:
            self.world.figures[error.code.name] += 1
            if error.code is ErrorCode.UNKNOWN_MEMBER_ID:
                self.joined = False
            await asyncio.sleep(0.05)

    async def join(self) -> None:
        settings = ConsumerSettings(
            format="json",
            auto_offset_reset=OffsetReset.EARLIEST,
            auto_commit=self.world.chance.random() < 0.5,
            auto_commit_interval_ms=300,
            session_timeout_ms=3_000,
        )
        try:
            await self.world.ask(CreateInstance(group=G, instance=self.name, settings=settings))
        except KafkaError as error:
            if error.code is not ErrorCode.INSTANCE_ALREADY_EXISTS:
                raise
        await self.world.ask(Subscribe(group=G, instance=self.name, topics=(T,)))
        self.joined = True


async def live(seed: int) -> World:
    world = World(seed, random.Random(seed))
    world.apis.add_topic(OFFSETS_TOPIC, 12)
    world.apis.add_topic(T, PARTITIONS)
    for number in range(3):
        node = Node(world, number)
        world.nodes.append(node)
        coordinator = GroupCoordinator(
            BrokerId(number + 1), LoopClock(), node, node.leading, node.make_log,
            BrokerDataReader(world.apis), poll_wait_ms_max=60_000, rebalance_timeout_ms=2_000,
        )  # fmt: skip
        coordinator.on_metadata_update(world.apis.image)
        world.coordinators.append(coordinator)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(one.run()) for one in world.coordinators]
        world.elect(0)
        clients = [Client(world, name) for name in "abcd"]

        async def act(client: Client) -> None:
            for _ in range(STEPS):
                await client.step()
                await asyncio.sleep(world.chance.random() * 0.1)

        async def trouble() -> None:
            while not world.calm:
                await asyncio.sleep(world.chance.random())
                if world.chance.random() < 0.5:
                    world.elect(world.chance.randrange(3))
                else:
                    world.fail_an_append()
                await world.produce()

        troubled = tasks.create_task(trouble())
        async with asyncio.TaskGroup() as acting:
            for client in clients:
                acting.create_task(act(client))
        world.calm = True
        await troubled
        await drain(world, clients)
        for task in running:
            task.cancel()
    return world


async def drain(world: World, clients: list[Client]) -> None:
    """With no more faults everything is delivered, and every acknowledged commit is there."""
    for node in world.nodes:
        if node.log is not None:
            node.log.next_append = None
    await asyncio.sleep(2)
    world.shared.commit()
    async with asyncio.timeout(120):
        while any(world.reached[number] < end for number, end in world.produced.items()):
            for client in clients:
                await client.step()
                await asyncio.sleep(0.05)
        while True:
            try:
                await world.check_commits()
                break
            except KafkaError:
                await asyncio.sleep(0.05)


def run(seed: int) -> World:
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(live(seed))
    finally:
        loop.close()


def simulate(seed: int) -> World:
    world = run(seed)
    assert world.figures["elections"] > 3
    assert world.figures["records"] > 10
    assert world.figures["commits checked"] > 0
    return world


seeds_run = Seeds(module=__name__, simulate_one=simulate, everyday=24, per_test=4, one_in=20)
pytest_generate_tests = seeds_run.parametrize


@pytest.mark.simulate
def test_rule_g1_and_its_kin_hold_through_coordinator_changes(seeds: list[int]) -> None:
    seeds_run.run_all(seeds)


def test_a_seed_gives_the_same_run_again() -> None:
    assert run(7).figures == run(7).figures
