"""Records that a member's format can't show: they stop their partition, everybody sees it, and
there is a way past exactly them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from broker.coordinator import blocked as blocked_module
from broker.coordinator import removal
from broker.coordinator.answer_parts import Part, fill_part
from broker.coordinator.group_messages import (
    BlockedPlace,
    Commit,
    CommittedOffsets,
    ConsumerSettings,
    CreateInstance,
    DeleteGroup,
    DeleteInstance,
    DescribeGroup,
    GroupOffset,
    GroupOffsets,
    OffsetReset,
    Seek,
    SeekTarget,
    SkippedRecord,
    SkipRecords,
    Subscribe,
    UnreadableRecords,
)
from broker.coordinator.positions import ReadPosition
from broker.coordinator.records import ShardRecord, SkipKey, SkipValue, StoredRecord
from broker.record.batch import RecordFormat
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import GroupId, InstanceId, PartitionId, TopicId, TopicPartition
from tests.support.coordinator_world import JSON, G, T, World, open_world
from tests.support.group_world import GroupWorld
from tests.unit.test_record_values import piece as stored

ZERO, ONE = PartitionId(0), PartitionId(1)
BAD = b'"/w=="'
AUTO = replace(JSON, auto_commit=True, auto_commit_interval_ms=1)
BINARY = replace(JSON, format="binary")


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with open_world() as opened:
        yield opened


async def block(world: World, partition: int = 0) -> None:
    """A record that is JSON, one that is not, and two that are: offsets 0 to 3."""
    await world.produce(partition, b"1")
    await world.produce(partition, BAD, binary=True)
    await world.produce(partition, b"3", b"4")


async def refused(world: World, name: str, timeout_ms: int = 0, **options: Any) -> str:
    with pytest.raises(KafkaError) as refusal:
        await world.poll(name, timeout_ms, **options)
    assert refusal.value.code is ErrorCode.UNREADABLE_RECORD
    return refusal.value.message


async def blocked(world: World) -> list[tuple[str, int, int]]:
    found = await world.ask(DescribeGroup(group=G))
    return [(one.instance, one.partition, one.offset) for one in found.blocked]


async def skip(world: World, *places: tuple[int, int]) -> None:
    records = tuple(SkippedRecord(T, PartitionId(number), offset) for number, offset in places)
    await world.ask(SkipRecords(group=G, records=records))


async def committed(world: World, name: str) -> dict[int, int]:
    found = await world.ask(CommittedOffsets(group=G, instance=InstanceId(name)))
    return {one.partition: one.offset for one in found}


# ---------------------------------------------------------------- reads


async def test_the_other_partitions_are_delivered_and_the_answer_names_the_record(
    world: World,
) -> None:
    await world.join("a")
    await block(world)
    await world.produce(1, b"1", b"2")
    answer = await world.poll("a")
    places = [(one["partition"], one["offset"]) for one in json.loads(answer.body)]
    assert places == [(0, 0), (1, 0), (1, 1)]
    assert answer.blocked == (BlockedPlace(T, ZERO, 1),)
    await world.produce(1, b"3")
    answer = await world.poll("a")
    assert (answer.count, answer.blocked) == (1, (BlockedPlace(T, ZERO, 1),))
    message = await refused(world, "a")
    assert "offset 1 of partition 0 of topic t" in message
    assert f"`quorumlog group skip {G} t:0:1`" in message


async def test_a_read_waits_for_the_other_partitions_and_is_refused_only_in_the_end(
    world: World,
) -> None:
    await world.join("a")
    await block(world)
    assert await world.places("a") == [(0, 0)]
    waiting = asyncio.ensure_future(world.places("a", 5_000))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await world.produce(1, b"1")
    assert await waiting == [(1, 0)]
    begun, fetches = SystemClock().monotonic_ms(), len(world.apis.requests)
    await refused(world, "a", 200)
    assert 200 <= SystemClock().monotonic_ms() - begun < 1_000
    assert len(world.apis.requests) - fetches < 10, "it waits, and does not look again and again"


async def test_a_read_that_has_nothing_to_wait_for_is_refused_at_once(world: World) -> None:
    await world.join("a")
    await block(world, 0)
    await block(world, 1)
    assert await world.places("a") == [(0, 0), (1, 0)]
    begun = SystemClock().monotonic_ms()
    await refused(world, "a", 5_000)
    assert SystemClock().monotonic_ms() - begun < 1_000
    assert await blocked(world) == [("a", 0, 1), ("a", 1, 1)]


async def test_fewer_bytes_than_wanted_are_delivered_where_nothing_more_can_come(
    world: World,
) -> None:
    await world.join("a", replace(JSON, fetch_min_bytes=10_000))
    await block(world, 0)
    await block(world, 1)
    assert await world.places("a", 5_000) == [(0, 0), (1, 0)]


async def test_a_number_that_no_decoder_holds_stops_its_partition(world: World) -> None:
    await world.join("a")
    await world.produce(0, b"1", b"1e400", b"3")
    assert await world.places("a") == [(0, 0)]
    await refused(world, "a")


async def test_marked_records_come_in_base64_and_stop_nothing(world: World) -> None:
    await world.join("a", replace(JSON, unreadable_records=UnreadableRecords.MARK))
    await block(world)
    records = json.loads((await world.poll("a")).body)
    assert [(one["value"], one.get("unreadable")) for one in records] == [
        (1, None), ("/w==", ["value"]), (3, None), (4, None),
    ]  # fmt: skip
    assert await blocked(world) == []


async def test_a_seek_or_a_record_that_is_gone_ends_the_block(world: World) -> None:
    await world.join("a")
    await block(world)
    await world.places("a")
    assert await blocked(world) == [("a", 0, 1)]
    target = SeekTarget(T, ZERO, 2)
    await world.ask(Seek(group=G, instance=InstanceId("a"), targets=(target,)))
    assert await blocked(world) == []
    assert await world.places("a") == [(0, 2), (0, 3)]
    await world.ask(Seek(group=G, instance=InstanceId("a"), targets=(SeekTarget(T, ZERO, 1),)))
    await refused(world, "a")
    assert await blocked(world) == [("a", 0, 1)]
    log = world.apis.logs[T, 0]
    log.slices = [one for one in log.slices if one.first_offset != 1]  # compacted
    assert await world.places("a") == [(0, 2)]
    assert await world.places("a") == [(0, 3)]
    assert await blocked(world) == []


async def test_max_poll_records_cuts_a_read_and_the_next_goes_on(world: World) -> None:
    await world.join("a", replace(JSON, max_poll_records=3, fetch_min_bytes=10_000))
    await world.produce(0, b"1", b"2")
    await world.produce(1, b"1", b"2")
    assert await world.places("a", 5_000) == [(0, 0), (0, 1), (1, 0)]
    assert await world.places("a") == [(1, 1)]
    await world.produce(0, b"3", b"4", b"5", b"6", b"7")
    assert await world.places("a", 5_000) == [(0, 2), (0, 3), (0, 4)]
    assert await world.places("a", 0) == [(0, 5), (0, 6)]


# ---------------------------------------------------------------- who is told


async def test_group_and_lag_name_the_record_since_when_it_was_found(world: World) -> None:
    await world.join("a")
    await block(world)
    await world.places("a")
    [found] = (await world.ask(DescribeGroup(group=G))).blocked
    assert found.message == "value deserialization error for format json at offset 1"
    await asyncio.sleep(0.01)
    await refused(world, "a")
    [again] = (await world.ask(DescribeGroup(group=G))).blocked
    assert again == found, "since when it stands, not when it was last read"
    rows = await world.ask(GroupOffsets(group=G, with_starts=True))
    assert [(one.partition, one.blocked_offset) for one in rows] == [(0, 1), (1, None)]


async def test_the_coordinator_reports_groups_that_are_blocked(world: World) -> None:
    await world.join("a")
    await block(world)
    assert world.coordinator.troubles() == ()
    await world.places("a")
    [report] = world.coordinator.troubles()
    assert (report.partition, report.blocked) == (0, 1)
    assert report.blocked_examples == (f"{G} at t:0:1",)
    await world.ask(DeleteInstance(group=G, instance=InstanceId("a")))
    assert world.coordinator.troubles() == ()


# ---------------------------------------------------------------- commits and owners


async def test_no_commit_passes_the_record(world: World) -> None:
    await world.join("a", AUTO)
    await block(world)
    assert await world.places("a") == [(0, 0)]
    for _ in range(2):
        await refused(world, "a")
        await asyncio.sleep(0.12)
    assert await committed(world, "a") == {0: 1}
    over = (GroupOffset(T, ZERO, 1),)  # of Confluent's dialect: stored as 2
    with pytest.raises(KafkaError) as refusal:
        await world.ask(Commit(group=G, instance=InstanceId("a"), offsets=over))
    assert refusal.value.code is ErrorCode.ILLEGAL_STATE
    await world.ask(DeleteInstance(group=G, instance=InstanceId("a")))
    rows = await world.ask(GroupOffsets(group=G))
    assert [(one.partition, one.offset) for one in rows] == [(0, 1)]


async def test_the_next_owner_whose_format_can_show_it_reads_on(world: World) -> None:
    await world.join("a", AUTO)
    await block(world)
    await block(world, 1)
    await world.places("a")
    await world.join("b", BINARY)
    await refused(world, "a")  # a call, which gives up what it owns beyond its target
    answer = await world.poll("b")
    [number] = {one["partition"] for one in json.loads(answer.body)}
    assert [one["offset"] for one in json.loads(answer.body)] == [1, 2, 3]
    assert await blocked(world) == [("a", 1 - number, 1)]


# ---------------------------------------------------------------- stepping over


async def test_exactly_the_record_is_stepped_over(world: World) -> None:
    await world.join("a")
    await block(world)
    await world.produce(0, BAD, binary=True)
    await world.places("a")
    waiting = asyncio.ensure_future(world.places("a", 5_000))
    await asyncio.sleep(0.02)
    await skip(world, (0, 1))
    assert await waiting == [(0, 2), (0, 3)], "a read that waits goes on at once"
    assert await blocked(world) == [("a", 0, 4)]
    await refused(world, "a")


@pytest.mark.parametrize("place", [(0, 0), (0, 2), (1, 1), (7, 1)])
async def test_a_record_that_stops_nobody_is_refused_and_nothing_is_done(
    world: World, place: tuple[int, int]
) -> None:
    await world.join("a")
    await block(world)
    await world.places("a")
    with pytest.raises(KafkaError) as refusal:
        await skip(world, (0, 1), place)
    assert refusal.value.code is ErrorCode.ILLEGAL_STATE
    assert f"offset {place[1]} of t-{place[0]}" in refusal.value.message
    await refused(world, "a")
    with pytest.raises(KafkaError) as refusal:
        await world.ask(SkipRecords(group=GroupId(f"{G}x"), records=()))
    assert refusal.value.code in {ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.NOT_COORDINATOR}


async def test_rule_g5_what_a_token_reader_did_not_receive_comes_again_before_the_gap(
    world: World,
) -> None:
    """A skip that moved the position would lose the records of the answer that was lost."""
    await world.join("a", AUTO)
    await world.produce(0, b"1", b"2")
    await world.produce(0, BAD, binary=True)
    await world.produce(0, b"4")
    assert await world.places("a", after="0") == [(0, 0), (0, 1)]  # this answer is lost
    await skip(world, (0, 2))
    assert await world.places("a", after="0") == [(0, 0), (0, 1), (0, 3)]
    assert await committed(world, "a") == {}


async def test_rule_g5_a_refusal_leaves_the_token_good(world: World) -> None:
    await world.join("a")
    await block(world)
    token = (await world.poll("a", after="0")).token
    await refused(world, "a", after=token)
    await refused(world, "a", after=token)
    await skip(world, (0, 1))
    assert await world.places("a", after=token) == [(0, 2), (0, 3)]
    await world.ask(Commit(group=G, instance=InstanceId("a"), after=token))
    assert await committed(world, "a") == {0: 1}


async def test_the_step_holds_for_the_next_coordinator_and_the_next_owner(world: World) -> None:
    await world.join("a")
    await block(world)
    await world.places("a")
    await skip(world, (0, 1))
    await world.fail_over()
    assert await world.places("a") == [(0, 0), (0, 2), (0, 3)], "nothing was committed"
    await world.ask(DeleteInstance(group=G, instance=InstanceId("a")))


async def test_a_block_is_found_again_by_the_next_coordinator(world: World) -> None:
    await world.join("a")
    await block(world)
    await world.places("a")
    await world.fail_over()
    assert await blocked(world) == []
    await world.places("a")
    assert await blocked(world) == [("a", 0, 1)]


async def test_a_commit_ends_the_step_and_a_seek_back_meets_the_record_again(
    world: World,
) -> None:
    await world.join("a")
    await block(world)
    await world.places("a")
    await skip(world, (0, 1))
    await skip(world, (0, 1))  # a repeat changes nothing
    assert await world.places("a") == [(0, 2), (0, 3)]
    await world.ask(Commit(group=G, instance=InstanceId("a")))
    written = [one for one in world.log.shared.entries if isinstance(one.key, SkipKey)]
    assert [one.value is None for one in written] == [False, True]
    await world.ask(Seek(group=G, instance=InstanceId("a"), targets=(SeekTarget(T, ZERO, 1),)))
    await refused(world, "a")


async def test_a_step_at_the_end_of_the_log_leaves_no_lag(world: World) -> None:
    await world.join("a", AUTO)
    await world.produce(0, b"1")
    await world.produce(0, BAD, binary=True)
    await world.places("a")
    await skip(world, (0, 1))
    assert await world.places("a") == []
    await world.ask(Commit(group=G, instance=InstanceId("a")))
    assert await committed(world, "a") == {0: 2}


def test_the_record_of_another_epoch_at_that_offset_is_another_record() -> None:
    """After an unclean election: nobody chose to step over what is there now."""
    place = TopicPartition(T, ZERO)
    position = ReadPosition(5, TopicId("A" * 22))
    piece = stored(b'{"offset":5,"key":null,"value":"/w=="}', value_format=RecordFormat.BINARY)
    for epoch, expected in ((1, 6), (2, 5)):
        part = Part(place, position, 5)
        fill_part(
            part,
            [piece],
            6,
            RecordFormat.JSON,
            mark=False,
            passed_over={StoredRecord(5, epoch)},
        )
        assert part.next == expected
        assert (part.stopped_by is None) == (expected == 6)
    assert part.stopped_by is not None
    assert part.stopped_by[0] == StoredRecord(5, 1)


async def test_a_step_over_the_first_record_of_all_is_committed_too(world: World) -> None:
    await world.join("a", AUTO)
    await world.produce(0, BAD, binary=True)
    await refused(world, "a")
    await skip(world, (0, 0))
    assert await world.places("a") == []
    await world.ask(Commit(group=G, instance=InstanceId("a")))
    assert await committed(world, "a") == {0: 1}


async def test_a_binary_member_still_reads_a_record_that_is_stepped_over(world: World) -> None:
    await world.join("a")
    await block(world)
    await world.places("a")
    await skip(world, (0, 1))
    await world.join("b", BINARY)
    await world.ask(DeleteInstance(group=G, instance=InstanceId("a")))
    assert await world.places("b") == [(0, 0), (0, 1), (0, 2), (0, 3)]


async def test_nothing_is_left_of_a_step_when_its_group_goes(world: World) -> None:
    await world.join("a")
    await block(world)
    await world.places("a")
    await world.ask(Commit(group=G, instance=InstanceId("a")))
    await skip(world, (0, 1))
    await world.ask(DeleteInstance(group=G, instance=InstanceId("a")))
    await world.ask(DeleteGroup(group=G))
    facts = {}
    for one in world.log.shared.entries:
        facts[type(one.key), one.key] = one.value
    assert facts[SkipKey, SkipKey(G, T, ZERO)] is None


async def test_a_step_without_a_commit_goes_with_the_last_reader(world: World) -> None:
    await world.join("a")
    await block(world)
    await world.places("a")
    await skip(world, (0, 1))
    await world.ask(DeleteInstance(group=G, instance=InstanceId("a")))
    assert world.shard().state().groups[G].skips == {}


def test_a_group_that_is_forgotten_leaves_no_step_behind() -> None:
    world = GroupWorld()
    world.create("a")
    key = SkipKey(G, T, ZERO)
    value = SkipValue(world.topics[T].topic_id, (StoredRecord(1, 1),))
    world.state.apply(ShardRecord(SkipKey(world.group.name, *key[1:]), value))
    world.write()
    removal.forget_groups(world.state, [world.group])
    assert [one.value for one in world.write() if isinstance(one.key, SkipKey)] == [None]


async def test_steps_of_one_partition_are_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocked_module, "STEPPED_OVER_MAX", 2)
    await world.join("a")
    for offset in range(3):
        await world.produce(0, BAD, binary=True)
        await refused(world, "a", 5)
        if offset < 2:
            await skip(world, (0, offset))
    with pytest.raises(KafkaError) as refusal:
        await skip(world, (0, 2))
    assert refusal.value.code is ErrorCode.INVALID_REQUEST


# ---------------------------------------------------------------- lags that are not known


async def test_an_owned_partition_without_a_start_has_a_lag_that_is_not_known(
    world: World,
) -> None:
    """With auto.offset.reset none nothing says where the group would begin."""
    settings = ConsumerSettings(format="json", auto_offset_reset=OffsetReset.NONE)
    await world.ask(CreateInstance(group=G, instance=InstanceId("a"), settings=settings))
    await world.ask(Subscribe(group=G, instance=InstanceId("a"), topics=(T,)))
    rows = await world.ask(GroupOffsets(group=G, with_starts=True))
    assert [(one.partition, one.offset, one.is_committed) for one in rows] == [
        (0, None, False), (1, None, False),
    ]  # fmt: skip
    assert [replace(one, end_offset=9).lag for one in rows] == [None, None]
