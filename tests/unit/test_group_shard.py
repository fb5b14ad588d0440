"""A shard between its log and whoever asks: loading, group commit, failure, proof."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from typing_extensions import override

from broker.config import BrokerConfig, BrokerTimeouts
from broker.coordinator import commits, instances
from broker.coordinator.group_coordinator import GroupCoordinator
from broker.coordinator.group_messages import (
    CommitGroup,
    CreateInstance,
    DescribeGroup,
    GroupOffset,
    GroupOffsets,
)
from broker.coordinator.records import OFFSETS_TOPIC, partition_of_group
from broker.coordinator.shard import JUDGE_STALL_MS, Shard
from broker.server.coordinator_ports import BrokerDataReader
from broker.server.lifecycle import Lifecycle
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import (
    BrokerEpoch,
    BrokerId,
    ClusterId,
    DirectoryId,
    GroupId,
    IncarnationId,
    InstanceId,
    LeaderEpoch,
    MetadataOffset,
    PartitionId,
)
from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.records.commands import HeartbeatAnswer
from raft_metadata.records.records import BrokerState
from tests.support.doors.server import heartbeat_in
from tests.support.fake_broker_apis import FakeBrokerApis
from tests.support.group_log import MemoryShardLog, SharedLog
from tests.support.group_world import EARLIEST, G, T, facts
from tests.support.waiting import until

TOPICS = {T: facts(4)}
ZERO = PartitionId(0)


def group_commit(offset: int) -> CommitGroup:
    return CommitGroup(group=G, offsets=(GroupOffset(T, ZERO, offset),))


def commit(shard: Shard, offset: int) -> None:
    shard.decide(lambda s: commits.commit_without_instance(s, group_commit(offset), TOPICS))


def committed(shard: Shard) -> int | None:
    group = shard.state().groups.get(G)
    found = None if group is None else next(iter(group.offsets.values()), None)
    return None if found is None else found.offset


@asynccontextmanager
async def running(log: MemoryShardLog) -> AsyncIterator[Shard]:
    shard = Shard(ZERO, LeaderEpoch(log.epoch), log, SystemClock())
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(shard.run())
        try:
            yield shard
        finally:
            task.cancel()


async def test_committed_offsets_are_there_for_the_next_coordinator() -> None:
    shared = SharedLog()
    async with running(shared.elect()) as shard:
        await until(lambda: shard.is_ready)
        commit(shard, 7)
        await shard.settled()
    async with running(shared.elect()) as shard:
        await until(lambda: shard.is_ready)
        assert committed(shard) == 7


async def test_rule_g1_nothing_is_answered_before_the_high_watermark_proves_the_log() -> None:
    shared = SharedLog()
    async with running(shared.elect()) as shard:
        await until(lambda: shard.is_ready)
        commit(shard, 7)
        await shard.settled()
    shared.high_watermark = 0  # the new leader has not learnt it yet
    async with running(shared.elect()) as shard:
        for _ in range(20):
            await asyncio.sleep(0)
        with pytest.raises(KafkaError) as refusal:
            shard.state()
        assert refusal.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        shared.commit()
        await until(lambda: shard.is_ready)
        assert committed(shard) == 7


async def test_decisions_made_during_an_append_are_written_together() -> None:
    log = SharedLog().elect()
    log.commit_at_once = False
    async with running(log) as shard:
        await until(lambda: shard.is_ready)
        commit(shard, 1)
        await until(lambda: len(log.appends) == 1)
        for offset in (2, 3, 4):
            commit(shard, offset)
        log.shared.commit()
        await until(lambda: len(log.appends) == 2)
        assert len(log.appends[1]) == 3
        log.shared.commit()
        await shard.settled()


async def test_no_request_is_answered_before_the_append_is_committed() -> None:
    log = SharedLog().elect()
    log.commit_at_once = False
    async with running(log) as shard:
        await until(lambda: shard.is_ready)
        commit(shard, 1)
        waiting = asyncio.ensure_future(shard.settled())
        await until(lambda: len(log.appends) == 1)
        await asyncio.sleep(0.01)
        assert not waiting.done()
        log.shared.commit()
        await waiting


@pytest.mark.parametrize("written", [True, False])
async def test_rule_g1_an_append_of_unknown_outcome_is_read_back(*, written: bool) -> None:
    log = SharedLog().elect()
    async with running(log) as shard:
        await until(lambda: shard.is_ready)
        commit(shard, 5)
        await shard.settled()
        outcome = Outcome.UNKNOWN if written else Outcome.NOT_WRITTEN
        log.next_append = KafkaError(ErrorCode.REQUEST_TIMED_OUT, outcome=outcome)
        commit(shard, 9)
        with pytest.raises(KafkaError) as failure:
            await shard.settled()
        assert failure.value.outcome is outcome
        generation = shard.generation
        with pytest.raises(KafkaError):
            shard.state(generation - 1)
        if written:  # it may still come to be: until then nobody is told anything
            for _ in range(20):
                await asyncio.sleep(0)
            assert not shard.is_ready
            log.shared.commit()
        await until(lambda: shard.is_ready)
        assert committed(shard) == (9 if written else 5)


async def test_a_decision_based_on_a_failed_append_is_not_written() -> None:
    log = SharedLog().elect()
    log.commit_at_once = False
    async with running(log) as shard:
        await until(lambda: shard.is_ready)
        commit(shard, 1)
        await until(lambda: len(log.appends) == 1)
        log.next_append = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
        commit(shard, 2)
        log.shared.commit()
        with pytest.raises(KafkaError):
            await shard.settled()
        await until(lambda: shard.is_ready)
        assert committed(shard) == 1
        assert len(log.shared.entries) == 1


async def test_a_decision_that_fails_half_way_is_dropped() -> None:
    log = SharedLog().elect()

    def broken(state: Any) -> None:
        commits.commit_without_instance(state, group_commit(3), TOPICS)
        raise RuntimeError

    async with running(log) as shard:
        await until(lambda: shard.is_ready)
        with pytest.raises(RuntimeError):
            shard.decide(broken)
        await until(lambda: shard.is_ready)
        assert committed(shard) is None


async def test_nothing_is_decided_below_the_minimum_of_replicas() -> None:
    log = SharedLog().elect()
    async with running(log) as shard:
        await until(lambda: shard.is_ready)
        log.may_append = False
        with pytest.raises(KafkaError) as refusal:
            commit(shard, 1)
        assert refusal.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
        assert shard.is_ready


async def test_rule_m7_a_stall_of_the_coordinator_expires_nobody() -> None:
    log = SharedLog().elect()
    async with running(log) as shard:
        await until(lambda: shard.is_ready)
        request = CreateInstance(group=G, instance=InstanceId("a"), settings=EARLIEST)
        shard.decide(lambda s: instances.create_instance(s, request, instances.GroupLimits()))
        now_ms = SystemClock().monotonic_ms()
        shard.tick(now_ms + 86_400_000, TOPICS, 30_000)
        assert shard.state().judge_ms <= 2 * JUDGE_STALL_MS
        assert shard.state().groups[G].instances


async def test_a_shard_that_is_closed_refuses_and_resolves() -> None:
    log = SharedLog().elect()
    async with running(log) as shard:
        await until(lambda: shard.is_ready)
        changed = shard.watch(G)
        shard.close()
        assert changed.is_set()
        with pytest.raises(KafkaError) as refusal:
            shard.state()
        assert refusal.value.code is ErrorCode.NOT_COORDINATOR


# ---------------------------------------------------------------- rule G3


class ManualClock(SystemClock):
    """Monotonic time as the test says."""

    def __init__(self) -> None:
        self.now_ms = 1_000

    @override
    def monotonic_ms(self) -> int:
        return self.now_ms


def config(tmp_path: Path) -> BrokerConfig:
    return BrokerConfig(
        broker_id=BrokerId(1),
        cluster_id=ClusterId("c"),
        directory_id=DirectoryId("d" * 22),
        data_dir=tmp_path,
        advertised_http="127.0.0.1:1",
        advertised_peer="127.0.0.1:2",
        timeouts=BrokerTimeouts(),
    )


@dataclass
class FakeLoader:
    """An image that is up to date."""

    image: MetadataImage

    def note_committed(self, offset: MetadataOffset) -> None: ...


class OneController:
    """Acknowledges a heartbeat that is asked for; ``on_beat`` runs while it is on its way."""

    def __init__(self, clock: ManualClock, on_beat: Callable[[], None]) -> None:
        self.clock = clock
        self.on_beat = on_beat
        self.beats = 0
        self.reachable = True
        self.on_answer: Callable[[HeartbeatAnswer, int], None] | None = None

    @contextmanager
    def heartbeats(
        self, on_answer: Callable[[HeartbeatAnswer, int], None]
    ) -> Iterator[OneController]:
        self.on_answer = on_answer
        yield self

    def set_content(self, command: object, *, at_once: bool) -> None:
        if not at_once:
            return
        self.beats += 1
        sent_ms = self.clock.monotonic_ms()
        self.on_beat()
        if not self.reachable:
            return
        answer = HeartbeatAnswer(
            is_active=True,
            state=BrokerState.UNFENCED,
            should_shut_down=False,
            committed_offset=MetadataOffset(0),
        )
        assert self.on_answer is not None
        asyncio.get_running_loop().call_soon(self.on_answer, answer, sent_ms)


def lifecycle(tmp_path: Path, clock: ManualClock, controllers: OneController) -> Lifecycle:
    loader = FakeLoader(MetadataImage())
    return Lifecycle(
        config(tmp_path),
        IncarnationId("i" * 22),
        cast("Any", controllers),
        cast("Any", loader),
        lambda: (),
        clock,
    )


async def test_rule_g3_a_proof_counts_from_when_the_heartbeat_was_sent(tmp_path: Path) -> None:
    clock = ManualClock()

    def slow() -> None:
        clock.now_ms += 150

    controllers = OneController(clock, slow)
    subject = lifecycle(tmp_path, clock, controllers)
    async with asyncio.TaskGroup() as tasks:
        beating = tasks.create_task(heartbeat_in(subject, BrokerEpoch(1)))
        await until(lambda: subject.proven_ms is not None)
        clock.now_ms += 49
        assert subject.check_proof()
        clock.now_ms += 1  # 200 ms since it was sent: the margin of the session is used up
        beats = controllers.beats
        assert not subject.check_proof()
        await until(lambda: controllers.beats > beats)  # asked for out of turn
        controllers.reachable = False
        clock.now_ms += 1_000
        assert not await subject.prove(20)
        beating.cancel()


def led_group(image: MetadataImage) -> GroupId:
    """A group in partition 0."""
    topic = image.topic(OFFSETS_TOPIC)
    assert topic is not None
    names = (GroupId(f"g{number}") for number in range(1_000))
    return next(n for n in names if partition_of_group(n, topic.partitions_count) == 0)


@asynccontextmanager
async def coordinating(
    tmp_path: Path, log: MemoryShardLog, *, proven: bool, clock: ManualClock | None = None
) -> AsyncIterator[tuple[GroupCoordinator, GroupId]]:
    clock = clock or ManualClock()
    subject = lifecycle(tmp_path, clock, OneController(clock, lambda: None))
    subject.proven_ms = clock.now_ms if proven else None
    apis = FakeBrokerApis()
    apis.add_topic(OFFSETS_TOPIC, 12)
    apis.add_topic(T, 4)
    coordinator = GroupCoordinator(
        BrokerId(1),
        clock,
        subject,
        lambda where: LeaderEpoch(log.epoch) if where.partition == 0 else None,
        lambda where, epoch: log,
        BrokerDataReader(apis),
        poll_wait_ms_max=60_000,
        rebalance_timeout_ms=30_000,
    )
    coordinator.on_metadata_update(apis.image)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(coordinator.run())
        group = led_group(apis.image)
        async with asyncio.timeout(5):
            while True:
                with suppress(KafkaError):
                    await coordinator.list_groups(ZERO)
                    break
                if not proven and log.appends:
                    break
                await asyncio.sleep(0.01)
        yield coordinator, group
        task.cancel()


async def test_rule_g3_a_read_without_a_controller_is_proven_by_an_append(tmp_path: Path) -> None:
    log = SharedLog().elect()
    async with coordinating(tmp_path, log, proven=False) as (coordinator, group):
        before = len(log.appends)
        assert await coordinator.answer(GroupOffsets(group=group)) == ()
        assert len(log.appends) >= before
        assert log.appends[0][0].key.group == ""


async def test_rule_g3_a_coordinator_that_is_cut_off_answers_no_read(tmp_path: Path) -> None:
    log, clock = SharedLog().elect(), ManualClock()
    async with coordinating(tmp_path, log, proven=True, clock=clock) as (coordinator, group):
        offsets = (GroupOffset(T, ZERO, 3),)
        await coordinator.answer(CommitGroup(group=group, offsets=offsets))
        await coordinator.answer(DescribeGroup(group=group))
        clock.now_ms += 10_000  # no heartbeat was acknowledged since
        log.next_append = KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        with pytest.raises(KafkaError) as refusal:
            await coordinator.answer(GroupOffsets(group=group))
        assert refusal.value.code is ErrorCode.NOT_COORDINATOR
        assert refusal.value.outcome is Outcome.NOT_WRITTEN


async def test_rule_g3_no_read_once_the_replica_has_another_role_though_the_shard_is_open(
    tmp_path: Path,
) -> None:
    """An image of many changes is followed in steps: it helps a new leader to commit already."""
    log = SharedLog().elect()
    async with coordinating(tmp_path, log, proven=True) as (coordinator, group):
        offsets = (GroupOffset(T, ZERO, 3),)
        await coordinator.answer(CommitGroup(group=group, offsets=offsets))
        assert await coordinator.answer(GroupOffsets(group=group))
        log.has_role = False
        with pytest.raises(KafkaError) as refusal:
            await coordinator.answer(GroupOffsets(group=group))
        assert refusal.value.code is ErrorCode.NOT_COORDINATOR
