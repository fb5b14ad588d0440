"""Interleavings that lost, skipped or took back something in a group, each once reproduced."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from broker.coordinator import group_messages, instances
from broker.coordinator.group_messages import (
    Assign,
    Commit,
    CommitGroup,
    ConsumerSettings,
    CreateInstance,
    DeleteInstance,
    DescribeInstance,
    GroupOffset,
    GroupOffsetRow,
    GroupOffsets,
    OffsetReset,
    Poll,
    Subscribe,
)
from broker.coordinator.positions import OffsetAndEpoch
from broker.coordinator.rebalance import drop_deleted_topics, retarget
from broker.coordinator.records import OFFSETS_TOPIC, InstanceKey, ShardRecord, StartKey
from broker.record.batch import BatchSlice
from broker.server.fetch import ReadRouting
from http_api.peer.frames import MAX_FRAME_BYTES
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import (
    GroupId,
    InstanceId,
    MetadataOffset,
    PartitionId,
    TopicId,
    TopicName,
)
from raft_metadata.common.ids import TopicPartition as Place
from raft_metadata.records.commands import BrokerHeartbeat
from raft_metadata.records.records import BrokerState
from tests.support.doors.coordinator import (
    instance_reader_of,
    replace_proof,
    sessions_held_by,
    shard_of,
)
from tests.support.doors.server import proves
from tests.support.fake_broker_apis import FakePartition
from tests.support.group_log import SharedLog
from tests.support.group_world import BY_HAND, EARLIEST, GroupWorld, facts, place
from tests.support.waiting import until
from tests.unit.test_controller_active import B1, Cluster
from tests.unit.test_group_door import door
from tests.unit.test_group_reads import JSON, G, T, World, world
from tests.unit.test_group_shard import ManualClock, OneController, coordinating, lifecycle

__all__ = ["world"]
LATEST = replace(JSON, auto_offset_reset=OffsetReset.LATEST)
ONE = InstanceId("a")


def recreate(world: World, name: TopicName, partitions: int, life: str) -> None:
    """The topic's name gets another topic, in one new image: nobody sees it missing."""
    old = world.apis.image.topic(name)
    assert old is not None
    world.apis.set_topics(
        {key: one for key, one in world.apis.image.topics.items() if key != old.topic_id}
    )
    world.apis.add_topic(name, partitions)
    made = world.apis.image.topic(name)
    assert made is not None
    new = replace(made, topic_id=TopicId(life * 22))
    rest = {k: v for k, v in world.apis.image.topics.items() if k != made.topic_id}
    world.apis.set_topics({**rest, new.topic_id: new})
    world.coordinator.on_metadata_update(world.apis.image)


# ---------------------------------------------------------------- another life of a topic's name


@pytest.mark.parametrize("by_hand", [True, False])
@pytest.mark.parametrize("settings", [JSON, LATEST])
async def test_rule_g2_positions_mean_nothing_to_the_next_life_of_a_topic(
    world: World, settings: ConsumerSettings, *, by_hand: bool
) -> None:
    await world.ask(CreateInstance(group=G, instance=ONE, settings=settings))
    if by_hand:
        places = (Place(T, PartitionId(0)), Place(T, PartitionId(1)))
        await world.ask(Assign(group=G, instance=ONE, partitions=places))
    else:
        await world.ask(Subscribe(group=G, instance=ONE, topics=(T,)))
    await world.produce(0, b"1", b"2", b"3")
    assert len(await world.places("a")) == 3
    recreate(world, T, 2, "B")
    await world.produce(0, b"10", b"11", b"12", b"13")
    assert await world.places("a") == [(0, 0), (0, 1), (0, 2), (0, 3)], "skipped"


def test_rule_g4_a_commit_of_the_last_life_of_a_topic_is_refused() -> None:
    world = GroupWorld(partitions=1)
    world.join("a", BY_HAND)
    world.read("a", 50)
    world.topics = {TopicName("t"): facts(1, "B")}
    drop_deleted_topics(world.state, world.group, world.topics)
    retarget(world.state, world.group, world.topics)
    with pytest.raises(KafkaError):
        world.commit("a", 0, 50)
    world.commit_all("a")
    assert world.committed(0) is None
    assert world.position("a", 0) == 0


async def test_rule_g2_after_a_load_a_new_life_starts_at_its_beginning(world: World) -> None:
    """The first read after a fail-over comes before the first tick that follows the topics."""
    await world.join("a", LATEST)
    recreate(world, T, 2, "B")
    await world.produce(0, b"1")
    shard = shard_of(world.coordinator, PartitionId(0))
    state = shard.state()
    for group in state.groups.values():
        for at in list(group.starts):
            state.apply(ShardRecord(StartKey(group.name, *at), None))
    state.take()
    assert await world.places("a") == [(0, 0)]


# ---------------------------------------------------------------- reads of what is not committed


async def test_rule_g3_a_read_shows_nothing_that_may_still_be_lost(world: World) -> None:
    def commit(offset: int) -> CommitGroup:
        return CommitGroup(group=G, offsets=(GroupOffset(T, PartitionId(0), offset),))

    await world.ask(commit(5))
    proving = asyncio.Event()
    go_on = asyncio.Event()

    async def slow(_: object) -> None:
        proving.set()
        await go_on.wait()

    replace_proof(world.coordinator, slow)
    asked = asyncio.ensure_future(world.ask(GroupOffsets(group=G)))
    await proving.wait()
    world.log.commit_at_once = False
    appended = len(world.log.appends)
    waiting = asyncio.ensure_future(world.ask(commit(9)))
    await until(lambda: len(world.log.appends) > appended)
    go_on.set()
    rows = await asked
    assert [row.offset for row in rows] == [5], "offset 9 is acknowledged by nobody"
    waiting.cancel()


# ---------------------------------------------------------------- commits while partitions move


async def test_rule_g4_a_commit_is_taken_from_who_is_to_give_the_partition_up(world: World) -> None:
    await world.join("a")
    await world.produce(0, b"1")
    await world.produce(1, b"2")
    await world.places("a")
    await world.join("b")
    await world.ask(Commit(group=G, instance=ONE))
    rows = await world.ask(GroupOffsets(group=G))
    assert [(row.partition, row.offset) for row in rows] == [(0, 1), (1, 1)]
    assert await world.places("b") == [], "b reads again what a committed"


async def test_a_commit_of_one_partition_gives_up_no_other_that_is_worked_on(
    world: World,
) -> None:
    world.apis.add_topic("wide", 4)
    world.coordinator.on_metadata_update(world.apis.image)
    for name in ("a", "b"):
        instance = InstanceId(name)
        await world.ask(CreateInstance(group=G, instance=instance, settings=JSON))
    await world.ask(Subscribe(group=G, instance=ONE, topics=(TopicName("wide"),)))
    for number in range(4):
        await world.produce(number, b"1", topic=TopicName("wide"))
    assert len(await world.places("a")) == 4
    await world.ask(Subscribe(group=G, instance=InstanceId("b"), topics=(TopicName("wide"),)))
    offset = GroupOffset(TopicName("wide"), PartitionId(2), 0)
    await world.ask(Commit(group=G, instance=ONE, offsets=(offset,)))
    await world.ask(DescribeInstance(group=G, instance=ONE))
    assert await world.places("b") == [], "a is at work on partition 3"
    owned = await world.ask(DescribeInstance(group=G, instance=InstanceId("b")))
    assert [one.partition for one in owned.assignment] == [2]
    await world.places("a")  # reads on: it is done
    assert await world.places("b") == [(3, 0)]


async def test_a_commit_that_is_not_taken_is_not_acknowledged(world: World) -> None:
    """Assigned by hand beside a live member: with an empty body as with offsets."""
    await world.join("b")
    await world.ask(CreateInstance(group=G, instance=ONE, settings=JSON))
    await world.ask(Assign(group=G, instance=ONE, partitions=(Place(T, PartitionId(0)),)))
    await world.produce(0, b"1")
    assert await world.places("a") == [(0, 0)]
    for offsets in (None, (GroupOffset(T, PartitionId(0), 0),)):
        with pytest.raises(KafkaError) as refusal:
            await world.ask(Commit(group=G, instance=ONE, offsets=offsets))
        assert refusal.value.code is ErrorCode.ILLEGAL_STATE


@pytest.mark.parametrize(("late", "committed"), [(5, 8), (10, 10)])
def test_rule_g4_a_late_commit_behind_a_seek_forward_takes_nothing_back(
    late: int, committed: int
) -> None:
    world = GroupWorld(partitions=1)
    world.join("a", BY_HAND)
    world.read("a")
    world.commit("a", 0, 8)
    world.seek("a", 0, 100)
    world.commit("a", 0, late)  # sent before the seek
    assert world.committed(0) == committed
    assert world.position("a", 0) == 100
    world.fail_over()
    assert world.position("a", 0) == 100


# ---------------------------------------------------------------- answers nobody gets


async def test_rule_f2_an_answer_always_fits_into_a_frame_between_brokers(world: World) -> None:
    """Short records of a topic with a long name grow tenfold on their way out."""
    long = TopicName("t" * 249)
    world.apis.add_topic(long, 4)
    world.coordinator.on_metadata_update(world.apis.image)
    await world.ask(CreateInstance(group=G, instance=ONE, settings=replace(JSON, format="json")))
    await world.ask(Subscribe(group=G, instance=ONE, topics=(long,)))
    await world.produce(0, b"1", topic=long)
    many = 110_000
    for number in range(4):
        fill(world.apis.logs[long, number], world.apis.logs[long, 0].slices[0], many)
    seen: list[int] = [0] * 4
    while min(seen) < many:
        answer = await world.poll("a", max_bytes=16_777_216)
        assert len(answer.body) < MAX_FRAME_BYTES
        assert answer.count
        for record in json.loads(answer.body):
            assert record["offset"] == seen[record["partition"]]
            seen[record["partition"]] += 1


def fill(log: FakePartition, one: BatchSlice, many: int) -> None:
    """Short records in batches, as a broker keeps them; the stand-in makes one of each record."""
    log.slices, log.end = [], many
    for begin in range(0, many, many // 5):
        end = begin + many // 5
        lines = b"".join(b'{"offset":%d,"key":null,"value":1}\n' % at for at in range(begin, end))
        head = one.header._replace(
            base_offset=begin, count=end - begin, last_offset_delta=end - begin - 1
        )
        log.slices.append(BatchSlice(head, lines, begin, end, end - begin))


async def test_a_read_behind_another_one_waits_no_longer_than_it_said(world: World) -> None:
    await world.join("a")
    first = asyncio.ensure_future(world.places("a", 700))
    await asyncio.sleep(0.05)
    begun_ms = SystemClock().monotonic_ms()
    assert await world.places("a", 100) == []
    assert SystemClock().monotonic_ms() - begun_ms < 1_000
    await world.produce(0, b"1")
    assert await first == [], "whoever sent it may be gone"
    assert await world.places("a") == [(0, 0)]
    assert sessions_held_by(instance_reader_of(world.coordinator)) == 0


async def test_partitions_nobody_serves_do_not_hold_a_read(world: World) -> None:
    wide = TopicName("wide")
    world.apis.add_topic(wide, 28)
    world.coordinator.on_metadata_update(world.apis.image)
    await world.ask(CreateInstance(group=G, instance=ONE, settings=JSON))
    await world.ask(Subscribe(group=G, instance=ONE, topics=(wide,)))
    await world.produce(25, b"1", topic=wide)
    fetch = world.apis.fetch

    async def mostly_silent(request: Any) -> Any:
        if request.partition < 20:
            await asyncio.sleep(30)
        return await fetch(request)

    world.apis.fetch = mostly_silent  # type: ignore[method-assign]
    begun_ms = SystemClock().monotonic_ms()
    found: list[tuple[int, int]] = []
    for _ in range(8):
        found += await world.places("a", 300)
        assert SystemClock().monotonic_ms() - begun_ms < 1_500, "a client gives up before that"
        begun_ms = SystemClock().monotonic_ms()
    assert found == [(25, 0)]


# ---------------------------------------------------------------- refusals are answers too


async def test_rule_g3_a_deposed_coordinator_does_not_say_that_an_instance_is_gone(
    tmp_path: Any,
) -> None:
    log, clock = SharedLog().elect(), ManualClock()
    async with coordinating(tmp_path, log, proven=True, clock=clock) as (coordinator, group):
        await coordinator.answer(CreateInstance(group=group, instance=ONE, settings=EARLIEST))
        clock.now_ms += 10_000
        log.shared.elect()  # another broker leads; the instance "b" was made there
        with pytest.raises(KafkaError) as refusal:
            await coordinator.answer(DescribeInstance(group=group, instance=InstanceId("b")))
        assert refusal.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        log.epoch = log.shared.epoch  # not even its log knows
        log.next_append = KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        with pytest.raises(KafkaError) as refusal:
            await coordinator.answer(Poll(group=group, instance=InstanceId("b"), timeout_ms=0))
        assert refusal.value.code is ErrorCode.NOT_COORDINATOR


async def test_rule_g3_an_append_proves_nothing_about_the_time_behind_it(tmp_path: Any) -> None:
    """Cut off from the controllers alone: acknowledged at 1,199 ms, fenced at 1,200."""
    log = SharedLog().elect()
    async with coordinating(tmp_path, log, proven=False) as (coordinator, group):
        offsets = (GroupOffset(T, PartitionId(0), 3),)
        await coordinator.answer(CommitGroup(group=group, offsets=offsets))
        log.next_append = KafkaError(ErrorCode.REQUEST_TIMED_OUT)  # its followers left it
        with pytest.raises(KafkaError) as refusal:
            await coordinator.answer(GroupOffsets(group=group))
        assert refusal.value.code is ErrorCode.NOT_COORDINATOR


# ---------------------------------------------------------------- joins


async def test_rule_g2_a_start_that_goes_away_while_one_joins_is_resolved_again(
    world: World,
) -> None:
    """The last reader leaves between the new one's look at the starts and its decision."""
    await world.join("a", LATEST)
    await world.ask(CreateInstance(group=G, instance=InstanceId("b"), settings=LATEST))
    for _ in range(3):
        await world.produce(0, b"1")
    reader, deletions = (
        instance_reader_of(world.coordinator),
        [DeleteInstance(group=G, instance=ONE)],
    )
    resolve = reader.resolve

    async def meanwhile(*args: Any) -> Any:
        found = await resolve(*args)
        if deletions:
            await world.ask(deletions.pop())
        return found

    reader.resolve = meanwhile  # type: ignore[method-assign,assignment]
    await world.ask(Subscribe(group=G, instance=InstanceId("b"), topics=(T,)))
    assert await world.places("b") == [], "latest: everything was there before b joined"


# ---------------------------------------------------------------- room


def test_groups_that_are_over_make_room() -> None:
    world = GroupWorld(partitions=1)
    limits = instances.GroupLimits(groups_with_offsets=3)
    for number in range(50):
        name = GroupId(f"console-{number}")
        made = CreateInstance(group=name, instance=ONE, settings=EARLIEST)
        instances.create_instance(world.state, made, limits)
        key = InstanceKey(name, ONE)
        request = Subscribe(group=name, instance=ONE, topics=(TopicName("t"),))
        instances.subscribe(world.state, request, {place(0): OffsetAndEpoch(0)}, world.topics)
        if number % 2:
            instances.delete_instance(world.state, key, world.topics)
        else:
            world.pass_time(86_400_000)
        world.write()
    assert len(world.state.groups) <= 3
    epochs = {name: group.epoch for name, group in world.state.groups.items()}
    forgotten = world.state.forgotten_epoch
    newest = {entry.key: entry for entry in world.log}
    world.log = [entry for entry in newest.values() if entry.value is not None]
    world.fail_over()
    assert {name: group.epoch for name, group in world.state.groups.items()} == epochs
    assert world.state.forgotten_epoch == forgotten > 0, "compaction kept it"


def test_of_very_many_sessions_a_few_ticks_see_all() -> None:
    world = GroupWorld(partitions=1)
    limits = instances.GroupLimits(instances_per_group=5_000)
    assert instances.SESSIONS_PER_TICK == 2_000
    settings = replace(EARLIEST, session_timeout_ms=1_000)
    for number in range(5_000):
        name = InstanceId(f"i{number}")
        made = CreateInstance(group=GroupId("g"), instance=name, settings=settings)
        instances.create_instance(world.state, made, limits)
    world.write()
    expired = [len(world.pass_time(1_001)) for _ in range(3)]
    assert expired == [2_000, 2_000, 1_000]


def test_members_that_expire_together_cost_one_rebalance() -> None:
    """Each had cost one, in one turn of the loop: 13 s and 626,250 entries for 500 of 1,000."""
    world = GroupWorld(partitions=60)
    for number in range(60):
        world.join(f"i{number:02}", replace(EARLIEST, session_timeout_ms=1_000))
    written, epoch = len(world.log), world.group.epoch
    world.state.judge_ms += 1_001
    for number in range(30):
        world.call(f"i{number:02}")
    assert len(world.pass_time(0)) == 30
    assert world.group.epoch == epoch + 1
    assert len(world.log) - written < 200
    assert sum(len(world.owned(f"i{number:02}")) for number in range(30)) == 60


def test_groups_with_instances_are_kept_at_their_limit() -> None:
    world = GroupWorld(partitions=1)
    limits = instances.GroupLimits(groups_in_use=1)
    world.join("a")
    made = CreateInstance(group=GroupId("other"), instance=ONE, settings=EARLIEST)
    with pytest.raises(KafkaError) as refusal:
        instances.create_instance(world.state, made, limits)
    assert refusal.value.code is ErrorCode.GROUP_MAX_SIZE_REACHED
    world.delete("a")
    instances.create_instance(world.state, made, limits)


def test_groups_that_only_hold_offsets_block_no_group_with_instances() -> None:
    world = GroupWorld(partitions=1)
    limits = instances.GroupLimits(groups_in_use=1, groups_with_offsets=1)
    world.commit_group(0, 7)
    made = CreateInstance(group=GroupId("other"), instance=ONE, settings=EARLIEST)
    instances.create_instance(world.state, made, limits)
    with pytest.raises(KafkaError, match="group delete"):
        instances.check_room(world.state, GroupId("third"), limits, is_in_use=False)
    assert world.committed(0) == 7
    assert OFFSETS_TOPIC not in world.topics


async def test_lags_of_partitions_nobody_leads_do_not_hold_the_offsets(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each end is looked for 5 s: a thousand of them took minutes."""
    rows = tuple(GroupOffsetRow(T, PartitionId(at), 7, "", None) for at in range(1_000))
    clock = ManualClock()
    apis, _, _, _ = door(tmp_path, [group_messages.encode_answer(rows)], clock=clock)
    asked = []

    async def nobody_leads(_: ReadRouting, topic: TopicName, partition: PartitionId) -> Any:
        asked.append(partition)
        if partition == 0:
            clock.now_ms += 5_001
        raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)

    monkeypatch.setattr(ReadRouting, "offsets", nobody_leads)
    found = await apis.group(GroupOffsets(group=GroupId("g")))
    assert [row.offset for row in found] == [7] * 1_000
    assert 0 < len(asked) < 100


# ---------------------------------------------------------------- who proves it


async def test_rule_g3_a_controller_without_its_majority_proves_nobody(tmp_path: Any) -> None:
    """Cut off together, a controller and a broker would believe each other."""
    cluster = await Cluster().start()
    broker = cluster.lead.machine.image.brokers[B1]
    beat = BrokerHeartbeat(
        broker_id=B1, broker_epoch=broker.broker_epoch, metadata_offset=MetadataOffset(0)
    )
    assert cluster.lead.controller.heartbeat(beat).majority_answers
    cluster.lead.leader_contact_age_ms = 400  # it steps down after a second
    answer = cluster.lead.controller.heartbeat(beat)
    assert answer.is_active
    assert not answer.majority_answers

    clock = ManualClock()
    subject = lifecycle(tmp_path, clock, OneController(clock, lambda: None))
    unfenced = replace(answer, state=BrokerState.UNFENCED, committed_offset=MetadataOffset(0))
    assert not proves(subject, unfenced)
    assert proves(subject, replace(unfenced, majority_answers=True))
