"""A home between a decision and its completion: what is sent, what is told, what waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from broker.coordinator.home import Home, HomePorts, Missing
from broker.coordinator.records import UndecodableRecord
from broker.coordinator.transaction_shard import TransactionShard
from broker.transactions.home_decisions import StagedParts
from broker.transactions.home_messages import (
    AbortPosition,
    ApplyAnswer,
    ApplyUnits,
    CommitPosition,
    InitId,
    UnitsApplied,
)
from broker.transactions.home_records import Target, TransactionKey
from broker.transactions.home_state import HomeLimits
from broker.transactions.messages import (
    LastPosition,
    ProducerPosition,
    TransactionOutcome,
    TransactionState,
)
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import BrokerId, LeaderEpoch, PartitionId
from tests.support.group_log import MemoryShardLog, SharedLog
from tests.support.group_simulation import LoopClock, VirtualLoop
from tests.support.home_turns import NUMBERING, inline_rows, named, target

P = named("p")


@dataclass
class World:
    """One home over a log in memory, and targets that answer when the test lets them."""

    shared: SharedLog = field(default_factory=SharedLog)
    applied: list[ApplyUnits] = field(default_factory=list)
    open_targets: set[Target] = field(default_factory=set)
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    metadata_offset: int = 1
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.lead()

    def lead(self) -> None:
        """Begin a leader's life."""
        self.log: MemoryShardLog = self.shared.elect()
        clock = LoopClock()
        self.shard = TransactionShard(
            PartitionId(0), LeaderEpoch(self.log.epoch), self.log, clock, lambda: True
        )
        ports = HomePorts(
            broker_id=BrokerId(1), clock=clock, targets=self, stages=self, image=self,
            limits=HomeLimits,
        )  # fmt: skip
        self.home = Home(self.shard, NUMBERING, ports, self.start)
        self.start(self.shard.run())

    def start(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.append(task)
        return task

    def end(self) -> None:
        """Hear of a newer leader, as a coordinator tells its shards."""
        self.home.close()
        self.shard.close()

    # ports

    async def apply(self, request: ApplyUnits) -> ApplyAnswer:
        self.applied.append(request)
        while request.target not in self.open_targets:
            await self.opened.wait()
        return UnitsApplied((None,) * len(request.units))

    def is_deleted(self, target: Target, metadata_offset: int) -> bool:
        return False

    async def parts(self, *_: object) -> StagedParts | Missing:
        raise AssertionError("nothing is staged here")

    def check_able(self, target: Target) -> None:
        pass

    async def know(self, targets: Sequence[Target]) -> None:
        pass

    # requests

    def open_for(self, *letters: str) -> None:
        self.open_targets |= set(map(target, letters))
        self.opened.set()
        self.opened = asyncio.Event()

    def commit(
        self, number: int, letters: str, timeout_ms: int = 5_000
    ) -> asyncio.Task[TransactionOutcome]:
        request = CommitPosition(
            id=P,
            timeout_ms=timeout_ms,
            position=ProducerPosition(1, number),
            digest=f"{number}",
            inline=tuple(inline_rows(target(letter), 2) for letter in letters),
        )
        return asyncio.create_task(self.home.answer(request))

    def numbers(self) -> list[tuple[str, int, list[int]]]:
        """Topic, `after`, and the numbers of the units of each request to a target."""
        return [
            (one.target.topic_id, one.after, [unit.number for unit in one.units])
            for one in self.applied
        ]


def in_virtual_time(test: Callable[[World], Awaitable[None]]) -> None:
    async def live() -> None:
        world = World()
        await asyncio.sleep(0.01)
        await world.home.answer(InitId(id=P, timeout_ms=1_000))
        try:
            await test(world)
        finally:
            world.end()
            for task in world.tasks:
                task.cancel()
            await asyncio.gather(*world.tasks, return_exceptions=True)

    loop = VirtualLoop()
    try:
        loop.run_until_complete(live())
    finally:
        loop.close()


def test_rule_s1_a_decision_behind_a_committed_record_of_its_id_waits_for_its_own_commit() -> None:
    async def test(world: World) -> None:
        world.log.commit_at_once = False
        world.open_for("a")
        abort = AbortPosition(id=P, timeout_ms=5_000, position=ProducerPosition(1, 0))
        aborted = asyncio.create_task(world.home.answer(abort))
        await asyncio.sleep(0.01)
        committed = world.commit(1, "a")  # in the state at once, in the log later
        await asyncio.sleep(0.01)
        world.shared.commit()
        assert await aborted == LastPosition(1, 0, TransactionState.ABORTED)
        await asyncio.sleep(0.01)
        assert world.applied == [], "the rows of what may still be lost"
        world.shared.commit()
        assert (await committed).state is TransactionState.COMPLETE
        assert world.numbers() == [("id-a", 0, [0])]

    in_virtual_time(test)


def test_rule_s3_what_is_decided_is_committing_though_its_home_is_deposed() -> None:
    async def test(world: World) -> None:
        told = world.commit(0, "a")
        await asyncio.sleep(0.01)
        assert len(world.applied) == 1
        world.end()
        assert (await told).state is TransactionState.COMMITTING

    in_virtual_time(test)


def test_rule_s4_units_that_do_not_follow_each_other_travel_apart() -> None:
    """Behind a load: the decision in between is complete, the first waits for another target."""

    async def test(world: World) -> None:
        world.open_for("a")
        other = named("q")
        await world.home.answer(InitId(id=other, timeout_ms=1_000))
        first = world.commit(0, "ab", 100)
        await asyncio.sleep(0.01)
        request = CommitPosition(
            id=other, timeout_ms=100, position=ProducerPosition(1, 0), digest="q",
            inline=(inline_rows(target("a"), 2),),
        )  # fmt: skip
        between = await world.home.answer(request)
        assert between.state is TransactionState.COMPLETE
        third = named("r")
        await world.home.answer(InitId(id=third, timeout_ms=1_000))
        request = CommitPosition(
            id=third, timeout_ms=100, position=ProducerPosition(1, 0), digest="r",
            inline=(inline_rows(target("a"), 2), inline_rows(target("b"), 2)),
        )  # fmt: skip
        last = await world.home.answer(request)
        assert (await first).state is last.state is TransactionState.COMMITTING
        world.end()
        world.applied.clear()
        world.lead()
        await asyncio.sleep(0.1)
        assert sorted(world.numbers()) == [
            ("id-a", 0, [0]), ("id-a", 4, [4]), ("id-b", 0, [0, 2]),
        ]  # fmt: skip

    in_virtual_time(test)


def test_rule_s2_who_waits_for_a_completion_that_is_not_recorded_does_not_turn_the_loop() -> None:
    async def test(world: World) -> None:
        told = world.commit(0, "a")
        await asyncio.sleep(0.01)
        world.log.may_append = False
        world.open_for("a")
        assert (await told).state is TransactionState.COMPLETE
        world.log.may_append = True
        begun = asyncio.get_running_loop().time()
        assert (await world.commit(1, "a")).state is TransactionState.COMPLETE
        assert asyncio.get_running_loop().time() - begun < 0.5, "it need not wait for a tick"

    in_virtual_time(test)


def test_a_home_with_a_record_that_it_cannot_decode_answers_nothing() -> None:
    async def test(world: World) -> None:
        world.end()
        bad = UndecodableRecord(offset=1, key=TransactionKey(*P), reason="of a newer version")
        world.shared.entries.append(bad)
        world.shared.commit()
        world.lead()
        await asyncio.sleep(1)
        assert not world.shard.is_ready
        with pytest.raises(KafkaError) as raised:
            await world.home.answer(InitId(id=P, timeout_ms=100))
        assert raised.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    in_virtual_time(test)
