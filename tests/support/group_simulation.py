"""A world of group coordinators that come and go over one log, in virtual time, from a seed.

``tests/simulation/test_group_simulation.py`` runs its seeds, and ``tests/support/planted`` breaks
it on purpose. Members of all kinds are in one group: instances with and without read tokens, and
members that read for themselves, two of them with one static id. A `GroupViolation` names the
invariant (G1 to G16 of docs/claims.md) that does not hold.
"""

from __future__ import annotations

import asyncio
import json
import random
import selectors
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from typing_extensions import override

from broker.coordinator.group_coordinator import GroupConfigs, GroupCoordinator
from broker.coordinator.group_messages import (
    A,
    Commit,
    CommitGroup,
    ConsumerSettings,
    CreateInstance,
    DeleteInstance,
    DescribeGroup,
    EvictInstance,
    GroupOffset,
    GroupOffsets,
    GroupRequest,
    Heartbeat,
    JoinGroup,
    Membership,
    OffsetReset,
    Poll,
    Subscribe,
)
from broker.coordinator.records import OFFSETS_TOPIC
from broker.coordinator.shard import OffsetsRetention
from broker.record.batch import RecordFormat
from broker.record.lines import ProduceRecord, make_raw
from broker.server.coordinator_ports import BrokerDataReader
from broker.server.requests import FetchRequest, ProduceRequest
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import (
    BrokerId,
    InstanceId,
    LeaderEpoch,
    PartitionId,
    TopicIdPartition,
    TopicName,
    TopicPartition,
)
from tests.support.fake_broker_apis import FakeBrokerApis
from tests.support.group_log import MemoryShardLog, SharedLog
from tests.unit.test_group_reads import G

T = TopicName("t")
PARTITIONS = 3
STEPS = 120
SESSION_MS = 3_000
RETENTION = OffsetsRetention(retention_ms=4_000, check_interval_ms=500)


class GroupViolation(AssertionError):
    """An invariant that does not hold."""

    def __init__(self, check: str, text: str) -> None:
        super().__init__(f"{check}: {text}")
        self.check = check


def hold(check: str, is_true: bool, text: str) -> None:
    """Raise the violation of a check unless it holds."""
    if not is_true:
        raise GroupViolation(check, text)


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
    direct: list[DirectClient] = field(default_factory=list)

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
        if isinstance(request, Poll | DescribeGroup | GroupOffsets | JoinGroup | Heartbeat):
            hold("G8", log.epoch >= self.served_epoch, "an older coordinator serves (rule G3)")
        self.served_epoch = max(self.served_epoch, log.epoch)
        is_lost = not self.calm and self.chance.random() < 0.1
        self.observe(request, answer, is_lost=is_lost)
        if is_lost:
            self.figures["lost answers"] += 1
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION)
        return answer

    def observe(self, request: GroupRequest[Any], answer: Any, *, is_lost: bool) -> None:
        match request:
            case Poll():
                records = json.loads(answer.body)
                for record in records:
                    self.check_owner(record["partition"], request.instance)
                if request.after is None or not is_lost:  # a token reader did not receive it
                    for record in records:
                        self.deliver(record["partition"], record["offset"])
            case DescribeGroup():
                owned = [one for member in answer.members for one in member.assignment]
                hold("G2", len(owned) == len(set(owned)), "two owners")
            case _:
                pass

    def deliver(self, number: int, offset: int) -> None:
        """Note that a member received a record; nothing before it may be missing."""
        hold("G10", offset <= self.reached[number], f"skipped {self.reached[number]}")
        self.reached[number] = max(self.reached[number], offset + 1)
        self.figures["records"] += 1

    def check_owner(self, number: int, name: InstanceId) -> None:
        """Fail if a member that reads for itself still has the partition, within its session."""
        for other in self.direct:
            if other.name != name and number in other.positions and other.is_within_session:
                raise GroupViolation("G2", f"partition {number} of {other.name} is {name}'s, too")
        self.figures["owners checked"] += 1

    async def check_commits(self) -> None:
        """A read that began behind an acknowledged commit shows it, or a newer one."""
        least = dict(self.acknowledged)
        rows = await self.ask(GroupOffsets(group=G))
        found = {row.partition: row.offset for row in rows}
        for number, offset in least.items():
            place = PartitionId(number)
            hold("G15", place in found, "an offset expired in a group that uses it")
            hold("G8", found[place] >= offset, "an acknowledged commit is gone")
        for partition, offset in found.items():
            hold("G11", offset <= self.reached[partition], "committed past what was received")
            self.acknowledged[partition] = max(self.acknowledged[partition], offset)
        self.figures["commits checked"] += 1


class Client:
    """One instance: reads, commits what it read, sometimes leaves. With tokens or without."""

    def __init__(self, world: World, name: str, *, tokens: bool = False) -> None:
        self.world = world
        self.name = InstanceId(name)
        self.joined = False
        self.tokens = tokens
        self.token = "0"

    async def read(self) -> None:
        after = self.token if self.tokens else None
        request = Poll(group=G, instance=self.name, timeout_ms=200, after=after)
        self.token = (await self.world.ask(request)).token

    async def step(self) -> None:
        chance = self.world.chance.random()
        try:
            if not self.joined:
                await self.join()
            elif chance < 0.5:
                await self.read()
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
            session_timeout_ms=SESSION_MS,
        )
        try:
            self.token = "0"
            await self.world.ask(CreateInstance(group=G, instance=self.name, settings=settings))
        except KafkaError as error:
            if error.code is not ErrorCode.INSTANCE_ALREADY_EXISTS:
                raise
        await self.world.ask(Subscribe(group=G, instance=self.name, topics=(T,)))
        self.joined = True


class DirectClient:
    """A member that reads for itself, and sometimes crashes, leaves or sends what is overdue."""

    def __init__(self, world: World, name: str, static_id: str | None = None) -> None:
        self.world = world
        self.name = InstanceId(name)
        self.static_id = static_id
        self.epoch = -1
        self.positions: dict[int, int] = {}
        """Next offset of each partition that it has."""
        self.answered_s = 0.0
        """Time at which it sent its last heartbeat that was answered."""
        self.late: CommitGroup | None = None
        """A commit of an older epoch, still on its way."""
        self.late_beat: Heartbeat | None = None
        """A copy of a heartbeat of an older epoch, still on its way."""
        self.is_fenced = False
        world.direct.append(self)

    @property
    def is_within_session(self) -> bool:
        return now_s() < self.answered_s + SESSION_MS / 1000

    async def step(self) -> None:
        chance = self.world.chance.random()
        try:
            if self.is_fenced and self.world.calm:
                self.end()  # shut down at last: two that both come back take the seat for ever
            elif self.epoch < 0:
                await self.join()
            elif not self.is_within_session:
                self.end()  # its partitions may be another's by now
            elif chance < 0.4:
                await self.beat()
            elif chance < 0.65:
                await self.read()
            elif chance < 0.85:
                await self.commit()
            elif chance < 0.9:
                await self.send_late()
            elif not self.world.calm and chance < 0.93:
                self.end()  # it crashes, and comes back with its name
            elif not self.world.calm and chance < 0.96:
                self.end()
                await self.world.ask(EvictInstance(group=G, instance=self.name))
        except KafkaError as error:
            self.world.figures[error.code.name] += 1
            if error.code in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}:
                self.end()
            await asyncio.sleep(0.05)

    def end(self) -> None:
        self.epoch, self.positions, self.late, self.late_beat = -1, {}, None, None

    async def join(self) -> None:
        began_s = now_s()
        request = JoinGroup(
            group=G,
            instance=self.name,
            settings=ConsumerSettings(
                auto_commit=False,
                auto_offset_reset=OffsetReset.EARLIEST,
                session_timeout_ms=SESSION_MS,
                static_id=self.static_id,
            ),
            rebalance_timeout_ms=30_000,
            topics=(T,),
        )
        found = await self.world.ask(request)
        for other in self.world.direct:
            if self.static_id is not None and other.static_id == self.static_id:
                other.is_fenced = other is not self
                if other is not self:
                    other.positions = {}  # it has lost its seat, and learns of it by its next call
        self.take(found, began_s)

    async def beat(self) -> None:
        began_s = now_s()
        owned = tuple(TopicPartition(T, PartitionId(number)) for number in sorted(self.positions))
        wait_ms = self.world.chance.choice([0, 0, 200, 900])
        request = Heartbeat(
            group=G, instance=self.name, member_epoch=self.epoch, owned=owned, wait_ms=wait_ms
        )
        was_fenced = self.is_fenced
        try:
            found = await self.world.ask(request)
        except KafkaError as error:
            if error.code is ErrorCode.FENCED_MEMBER_EPOCH:
                self.end()
            raise
        hold("G12", not was_fenced, f"{self.name} is served, though its seat is another's")
        if found.member_epoch > self.epoch:
            self.late_beat = request
        self.take(found, began_s)

    def take(self, found: Membership, began_s: float) -> None:
        """Own what an answer assigns, and give up the rest."""
        hold("G3", found.member_epoch >= self.epoch, "a member epoch went back")
        if found.member_epoch > self.epoch >= 0 and self.positions:
            self.late = self.commit_request()
        self.epoch, self.answered_s = found.member_epoch, began_s
        if self.is_fenced:
            return
        assigned = {int(one.partition): one.offset for one in found.assignment}
        for number in assigned.keys() - self.positions.keys():
            self.world.check_owner(number, self.name)
        self.positions = {
            number: self.positions.get(number, offset or 0) for number, offset in assigned.items()
        }
        self.world.figures["memberships"] += 1

    async def read(self) -> None:
        for number in sorted(self.positions):
            place, begin = PartitionId(number), self.positions[number]
            fetched = await self.world.apis.fetch(
                FetchRequest(topic=T, partition=place, offset=begin, max_bytes=200, max_wait_ms=0)
            )
            for offset in range(begin, fetched.next_offset):
                self.world.deliver(number, offset)
            self.positions[number] = fetched.next_offset

    def commit_request(self) -> CommitGroup:
        rows = sorted(self.positions.items())
        offsets = tuple(GroupOffset(T, PartitionId(number), offset) for number, offset in rows)
        return CommitGroup(group=G, offsets=offsets, member_id=self.name, member_epoch=self.epoch)

    async def commit(self) -> None:
        was_fenced = self.is_fenced
        await self.world.ask(self.commit_request())
        hold("G12", not was_fenced, f"{self.name} commits, though its seat is another's")

    async def send_late(self) -> None:
        """Deliver a commit that was on its way while the member came to a newer epoch."""
        beat, self.late_beat = self.late_beat, None
        if beat is not None:
            with suppress(KafkaError):
                await self.world.ask(beat)  # its answer reaches no client
        late, self.late = self.late, None
        if late is None:
            return
        try:
            await self.world.ask(late)
        except KafkaError as error:
            self.world.figures["late commits"] += error.code is ErrorCode.FENCED_MEMBER_EPOCH
            raise
        raise GroupViolation(
            "G7", f"a commit of epoch {late.member_epoch} is taken at {self.epoch}"
        )


def now_s() -> float:
    return asyncio.get_running_loop().time()


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
            configs=lambda _: GroupConfigs(retention=RETENTION),
        )  # fmt: skip
        coordinator.on_metadata_update(world.apis.image)
        world.coordinators.append(coordinator)
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(one.run()) for one in world.coordinators]
        world.elect(0)
        clients: list[Client | DirectClient] = [Client(world, name) for name in "ab"]
        clients.append(Client(world, "token", tokens=True))
        clients += [DirectClient(world, "x"), DirectClient(world, "y")]
        clients += [DirectClient(world, "s", "seat"), DirectClient(world, "s2", "seat")]

        async def act(client: Client | DirectClient) -> None:
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


async def drain(world: World, clients: list[Client | DirectClient]) -> None:
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
