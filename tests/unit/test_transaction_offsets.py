"""Group offsets that move with a transaction, at the home that shares the group's partition."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

import pytest

from broker.coordinator.group_messages import ConsumerSettings
from broker.coordinator.group_state import TopicFacts, Topics
from broker.coordinator.home import Home, HomePorts
from broker.coordinator.instances import GroupLimits
from broker.coordinator.records import (
    InstanceKey,
    InstanceValue,
    MemberKey,
    MemberValue,
    OffsetKey,
    ShardRecord,
)
from broker.coordinator.shard import Shard
from broker.coordinator.transaction_offsets import TransactionOffsets
from broker.record.numbering import HomeKind, make_numbering
from broker.transactions.home_messages import CommitPosition
from broker.transactions.home_records import TransactionKey
from broker.transactions.home_state import HomeLimits
from broker.transactions.messages import (
    KeyPosition,
    OffsetMove,
    TransactionalId,
    TransactionState,
)
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import (
    BrokerId,
    GroupId,
    InstanceId,
    LeaderEpoch,
    PartitionId,
    TopicId,
    TopicName,
    TopicPartition,
)
from tests.support.group_log import MemoryShardLog, SharedLog
from tests.unit.test_home_completion import DEBITS, Image, Stages, Targets, rows, until

GROUP = GroupId("billing")
ORDERS = TopicPartition(TopicName("orders"), PartitionId(0))
MEMBER = InstanceId("m1")
TOPICS: Topics = {ORDERS.topic: TopicFacts(TopicId("o"), 1)}
MEMBER_RECORDS = (
    ShardRecord(
        InstanceKey(GROUP, MEMBER),
        InstanceValue(
            settings=ConsumerSettings(auto_commit=False),
            topics=(ORDERS.topic,),
            rebalance_timeout_ms=10_000,
        ),
    ),
    ShardRecord(
        MemberKey(GROUP, MEMBER),
        MemberValue(4, {ORDERS.topic: (PartitionId(0),)}, {ORDERS.topic: (PartitionId(0),)}),
    ),
)


@dataclass
class Group:
    """A group's home, over a log in memory."""

    home: Home
    shard: Shard
    log: MemoryShardLog
    targets: Targets
    unreachable: list[TopicPartition]

    def committed(self) -> int | None:
        group = self.shard.state().groups.get(GROUP)
        found = None if group is None else group.committed(ORDERS, TOPICS)
        return None if found is None else found.offset


@contextlib.asynccontextmanager
async def group(*records: ShardRecord) -> AsyncIterator[Group]:
    shared = SharedLog()
    shared.entries += records
    shared.commit()
    memory = shared.elect()
    shard = Shard(PartitionId(0), LeaderEpoch(memory.epoch), memory, SystemClock())
    targets = Targets()

    async def known(_names: Sequence[TopicName]) -> None:
        """Every topic is."""

    unreachable: list[TopicPartition] = []

    async def ends(*_: object) -> dict[TopicPartition, int]:
        if unreachable:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
        return {ORDERS: 1_000}

    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        ports = HomePorts(
            broker_id=BrokerId(1),
            clock=SystemClock(),
            targets=targets,
            stages=Stages(),
            image=Image(),
            limits=HomeLimits,
            offsets=TransactionOffsets(known, ends, lambda: TOPICS, GroupLimits()),
        )
        numbering = make_numbering(HomeKind.GROUPS, PartitionId(0), LeaderEpoch(-1))
        home = Home(shard, numbering, ports, tasks.create_task)
        run = tasks.create_task(shard.run())
        await until(lambda: shard.is_ready)
        try:
            yield Group(home, shard, memory, targets, unreachable)
        finally:
            home.close()
            shard.close()
            await run


def commit(key: str, offset: int, expected: int | None = None) -> CommitPosition:
    return CommitPosition(
        id=TransactionalId(GROUP, f"key:{key}"),
        timeout_ms=5_000,
        position=KeyPosition(),
        digest=f"{offset}",
        inline=(rows(DEBITS, offset),),
        offsets=(OffsetMove(*ORDERS, offset, expected),),
    )


async def refused(home: Home, request: CommitPosition) -> KafkaError:
    with pytest.raises(KafkaError) as error:
        await home.answer(request)
    return error.value


async def test_rule_s8_offsets_are_in_the_batch_of_the_decision() -> None:
    async with group() as here:
        here.targets.able.clear()
        asking = asyncio.create_task(here.home.answer(commit("a", 100, expected=-1)))
        await until(lambda: here.targets.asked)
        # Decided and committed, while no target has the rows: whoever reads the offset reads on.
        assert here.committed() == 100
        kinds = [{type(entry.key) for entry in append} for append in here.log.appends]
        assert any({OffsetKey, TransactionKey} <= kind for kind in kinds)
        here.targets.able.set()
        await asking


async def test_rule_s8_another_offset_than_the_expected_one_refuses_all() -> None:
    async with group() as here:
        await here.home.answer(commit("a", 100, expected=-1))
        error = await refused(here.home, commit("b", 120, expected=-1))
        assert error.code is ErrorCode.OFFSET_NOT_EXPECTED
        assert "is 100, not -1" in error.message
        assert (here.committed(), len(here.targets.rows[DEBITS])) == (100, 1)
        await here.home.answer(commit("c", 120, expected=100))
        # A repeat of the first hears its fate, although the offset has moved since (rule S7).
        await here.home.answer(commit("a", 100, expected=-1))
        assert (here.committed(), len(here.targets.rows[DEBITS])) == (120, 2)


async def test_rule_s8_only_the_owner_in_its_present_epoch_moves_offsets() -> None:
    async with group(*MEMBER_RECORDS) as here:
        request = commit("a", 100)
        no_member = await refused(here.home, request)
        assert no_member.code is ErrorCode.FENCED_MEMBER_EPOCH
        late = await refused(here.home, replace(request, member_id=MEMBER, member_epoch=3))
        assert late.code is ErrorCode.FENCED_MEMBER_EPOCH
        beyond = replace(commit("a", 2_000), member_id=MEMBER, member_epoch=4)
        assert (await refused(here.home, beyond)).code is ErrorCode.ILLEGAL_STATE
        assert (here.committed(), here.targets.asked) == (None, [])
        await here.home.answer(replace(request, member_id=MEMBER, member_epoch=4))
        assert here.committed() == 100


async def test_rule_s8_an_offset_that_goes_back_refuses_its_rows() -> None:
    async with group(*MEMBER_RECORDS) as here:
        mine = {"member_id": MEMBER, "member_epoch": 4}
        await here.home.answer(replace(commit("a", 100), **mine))
        back = await refused(here.home, replace(commit("b", 50), **mine))
        assert back.code is ErrorCode.ILLEGAL_STATE
        assert "beyond 50 already" in back.message
        assert len(here.targets.rows[DEBITS]) == 1
        # Where a member stands still, the same offset again is no step back.
        await here.home.answer(replace(commit("c", 100), **mine))


async def test_rule_s7_a_repeat_hears_its_fate_though_its_offsets_can_not_be_checked() -> None:
    async with group(*MEMBER_RECORDS) as here:
        request = replace(commit("a", 100), member_id=MEMBER, member_epoch=4)
        await here.home.answer(request)
        here.unreachable.append(ORDERS)
        outcome = await here.home.answer(request)
        assert outcome.state is TransactionState.COMPLETE
        error = await refused(
            here.home, replace(commit("b", 120), member_id=MEMBER, member_epoch=4)
        )
        assert error.code is ErrorCode.LEADER_NOT_AVAILABLE
