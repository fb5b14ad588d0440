"""Reads of consumer instances through a coordinator: what they deliver, what moves positions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from broker.coordinator.group_messages import (
    Assign,
    Commit,
    CommitGroup,
    CommittedOffsets,
    CreateInstance,
    DeleteInstance,
    DescribeInstance,
    Edge,
    GroupOffset,
    OffsetReset,
    Seek,
    SeekTarget,
    Subscribe,
)
from broker.coordinator.reader import WATCH_MS, WATCHED_MAX
from broker.server.requests import FetchRequest
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import (
    InstanceId,
    PartitionId,
    TopicName,
    TopicPartition,
)
from tests.support.coordinator_world import JSON, G, T, World, open_world
from tests.support.doors.coordinator import shard_of
from tests.support.waiting import until


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with open_world() as opened:
        yield opened


async def test_reads_go_on_behind_each_other(world: World) -> None:
    await world.join("a")
    await world.produce(0, b"1", b"2")
    assert await world.places("a") == [(0, 0), (0, 1)]
    assert await world.places("a") == []
    await world.produce(1, b"3")
    assert await world.places("a") == [(1, 0)]


async def test_a_read_waits_for_the_first_record(world: World) -> None:
    await world.join("a")
    waiting = asyncio.ensure_future(world.places("a", 5_000))
    await asyncio.sleep(0.02)
    await world.produce(1, b"1")
    assert await waiting == [(1, 0)]


async def test_an_empty_read_takes_its_time_and_no_more(world: World) -> None:
    await world.join("a")
    begun = SystemClock().monotonic_ms()
    assert await world.places("a", 150) == []
    assert 150 <= SystemClock().monotonic_ms() - begun < 1_000


async def test_fetch_min_bytes_waits_for_more(world: World) -> None:
    await world.join("a", replace(JSON, fetch_min_bytes=80))
    await world.produce(0, b"1")
    waiting = asyncio.ensure_future(world.places("a", 5_000))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await world.produce(0, b'"' + b"x" * 80 + b'"')
    assert await waiting == [(0, 0), (0, 1)]


async def test_full_partitions_take_turns(world: World) -> None:
    world.apis.add_topic("wide", 6)
    world.coordinator.on_metadata_update(world.apis.image)
    name, wide = InstanceId("a"), TopicName("wide")
    await world.ask(CreateInstance(group=G, instance=name, settings=JSON))
    await world.ask(Subscribe(group=G, instance=name, topics=(wide,)))
    for number in range(6):
        await world.produce(number, b"1", topic=wide)
    assert [one for one, _ in await world.places("a", max_bytes=1)] == [0, 1, 2, 3]
    await world.produce(0, b"2", topic=wide)
    assert [one for one, _ in await world.places("a", max_bytes=1)] == [4, 5, 0]


async def test_a_waiting_read_lets_go_what_another_is_to_own(world: World) -> None:
    b = DescribeInstance(group=G, instance=InstanceId("b"))
    await world.join("a")
    await world.produce(1, b"1")
    assert await world.places("a") == [(1, 0)]
    waiting = asyncio.ensure_future(world.places("a", 5_000))
    await asyncio.sleep(0.02)
    await world.join("b")
    async with asyncio.timeout(1):  # far less than the read waits
        while not (await world.ask(b)).assignment:  # noqa: ASYNC110 a group has no event for it
            await asyncio.sleep(0)
    assert not waiting.done()
    assert (await world.ask(b)).assignment == (TopicPartition(T, PartitionId(1)),)
    await world.produce(0, b"1")
    assert await waiting == [(0, 0)]
    assert await world.places("b") == [(1, 0)], "not committed, so delivered again"


async def test_reads_of_one_instance_stand_in_line(world: World) -> None:
    await world.join("a")
    reads = [asyncio.ensure_future(world.places("a", 300)) for _ in range(2)]
    await asyncio.sleep(0.02)
    await world.produce(0, b"1")
    assert sorted(await asyncio.gather(*reads)) == [[], [(0, 0)]]


async def test_a_newer_read_is_not_held_up_by_an_older_one_which_delivers_nothing(
    world: World,
) -> None:
    """The client of the older read may be gone: that read must not take records along."""
    await world.join("a")
    older = asyncio.ensure_future(world.places("a", 500))
    await asyncio.sleep(0.02)
    begun = SystemClock().monotonic_ms()
    assert await world.places("a", 50) == []
    assert SystemClock().monotonic_ms() - begun < 400
    newer = asyncio.ensure_future(world.places("a", 5_000))
    await asyncio.sleep(0.02)
    await world.produce(0, b"1")
    assert await newer == [(0, 0)]
    assert not older.done()  # at once, two clients of one instance would chase each other
    assert await older == []


async def test_rule_f2_a_read_that_is_refused_has_moved_nothing(world: World) -> None:
    await world.join("a")
    await world.produce(0, b"1")
    assert await world.places("a") == [(0, 0)]
    await world.produce(0, b"2")
    world.log.next_append = KafkaError(ErrorCode.REQUEST_TIMED_OUT)
    commit = Commit(group=G, instance=InstanceId("a"))
    asked = asyncio.ensure_future(world.ask(commit))
    committed, read = await asyncio.gather(asked, world.places("a"), return_exceptions=True)
    assert isinstance(committed, KafkaError)
    assert committed.outcome is Outcome.UNKNOWN
    assert isinstance(read, KafkaError)
    assert read.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert read.outcome is Outcome.NOT_WRITTEN, "so another attempt skips nothing"
    world.log.shared.commit()
    shard = shard_of(world.coordinator, PartitionId(0))
    await until(lambda: shard.is_ready)
    assert await world.places("a") == [(0, 1)]


async def test_bytes_that_are_no_json_stop_a_json_reader_where_they_stand(world: World) -> None:
    await world.join("a")
    await world.produce(0, b"1")
    await world.produce(0, b'"/w=="', binary=True)
    assert await world.places("a") == [(0, 0)]
    for _ in range(2):
        with pytest.raises(KafkaError) as refusal:
            await world.places("a")
        assert refusal.value.code is ErrorCode.UNREADABLE_RECORD
        assert "offset 1 of partition 0 of topic t" in refusal.value.message
    target = SeekTarget(T, PartitionId(0), 2)
    await world.ask(Seek(group=G, instance=InstanceId("a"), targets=(target,)))
    assert await world.places("a") == []


async def test_text_shows_strings_and_json_and_stops_at_bytes_that_are_no_utf_8(
    world: World,
) -> None:
    await world.join("a", replace(JSON, format="text"))
    await world.produce(0, b'{"a": 1}', b'"x"', b"null")
    await world.produce(0, b'"w6Q="', binary=True)
    answer = await world.poll("a")
    assert [record["value"] for record in json.loads(answer.body)] == ['{"a": 1}', '"x"', None, "ä"]
    assert answer.format == "text"
    await world.produce(0, b'"/w=="', binary=True)
    with pytest.raises(KafkaError) as refusal:
        await world.places("a")
    assert refusal.value.code is ErrorCode.UNREADABLE_RECORD
    assert "value deserialization error for format text at offset 4" in refusal.value.message


async def test_max_poll_records_cuts_a_read_and_skips_nothing(world: World) -> None:
    await world.join("a", replace(JSON, max_poll_records=3))
    await world.produce(0, b"1", b"2")
    await world.produce(0, b"3", b"4", b"5")
    await world.produce(1, b"6", b"7")
    found = []
    for _ in range(3):
        places = await world.places("a")
        assert len(places) <= 3
        found.append(places)
    assert found[0] == [(0, 0), (0, 1), (0, 2)]
    assert sorted(place for places in found for place in places) == (
        [(0, offset) for offset in range(5)] + [(1, 0), (1, 1)]
    )
    assert await world.places("a") == []


async def test_max_poll_records_ends_a_read_that_waits_for_more_bytes(world: World) -> None:
    await world.join("a", replace(JSON, max_poll_records=2, fetch_min_bytes=-1))
    await world.produce(0, b"1", b"2", b"3")
    async with asyncio.timeout(10):
        assert await world.places("a", 60_000) == [(0, 0), (0, 1)]


async def test_a_cut_read_is_acknowledged_up_to_its_cut(world: World) -> None:
    """Rule G5: the token covers what was sent, not what was fetched for it."""
    await world.join("a", replace(JSON, max_poll_records=2))
    await world.produce(0, *[b"1"] * 5)
    first = await world.poll("a", after="0")
    again = await world.poll("a", after="0")
    assert json.loads(again.body) == json.loads(first.body)
    assert await world.places("a", after=again.token) == [(0, 2), (0, 3)]


async def test_formats(world: World) -> None:
    await world.join("a")
    with pytest.raises(KafkaError) as refusal:
        await world.poll("a", accepted=frozenset({"binary"}))
    assert refusal.value.code is ErrorCode.FORMAT_MISMATCH
    await world.join("b", replace(JSON, format="avro"))
    with pytest.raises(KafkaError) as refusal:
        await world.poll("b")
    assert refusal.value.code is ErrorCode.SCHEMAS_NOT_SUPPORTED


async def test_dialects_of_a_commit(world: World) -> None:
    for name, strimzi, expected in (("a", False, 2), ("b", True, 1)):
        await world.join(name, replace(JSON, strimzi=strimzi))
        await world.produce(0, b"1", b"2")
        while not await world.places(name):
            pass
        offsets = (GroupOffset(T, PartitionId(0), 1, "note"),)
        done = await world.ask(Commit(group=G, instance=InstanceId(name), offsets=offsets))
        assert done.strimzi is strimzi
        found = await world.ask(CommittedOffsets(group=G, instance=InstanceId(name)))
        assert [(one.offset, one.metadata) for one in found] == [(expected, "note")]
        await world.ask(DeleteInstance(group=G, instance=InstanceId(name)))
        await world.ask(CommitGroup(group=G, offsets=(GroupOffset(T, PartitionId(0), 0),)))


async def test_by_hand_to_both_ends(world: World) -> None:
    await world.produce(0, b"1", b"2")
    name = InstanceId("a")
    latest = replace(JSON, auto_offset_reset=OffsetReset.LATEST)
    await world.ask(CreateInstance(group=G, instance=name, settings=latest))
    place = TopicPartition(T, PartitionId(0))
    await world.ask(Assign(group=G, instance=name, partitions=(place,)))
    assert await world.places("a") == []
    for edge, expected in ((Edge.BEGINNING, [(0, 0), (0, 1)]), (Edge.END, [])):
        await world.ask(Seek(group=G, instance=name, targets=(SeekTarget(*place, edge),)))
        assert await world.places("a") == expected


async def test_out_of_range_goes_on_at_the_nearer_end(world: World) -> None:
    await world.join("a")
    await world.produce(0, *[b"1"] * 5)
    world.apis.logs[T, 0].start = 3
    world.apis.logs[T, 0].slices = []
    await world.produce(0, b"6")
    target = SeekTarget(T, PartitionId(0), 1)
    await world.ask(Seek(group=G, instance=InstanceId("a"), targets=(target,)))
    assert await world.places("a", 1_000) == [(0, 5)]


async def test_a_deleted_instance_ends_its_waiting_read(world: World) -> None:
    await world.join("a")
    waiting = asyncio.ensure_future(world.places("a", 5_000))
    await asyncio.sleep(0.02)
    await world.ask(DeleteInstance(group=G, instance=InstanceId("a")))
    with pytest.raises(KafkaError) as refusal:
        await waiting
    assert refusal.value.code is ErrorCode.UNKNOWN_MEMBER_ID


async def test_a_coordinator_that_is_deposed_ends_waiting_reads(world: World) -> None:
    await world.join("a")
    waiting = asyncio.ensure_future(world.places("a", 5_000))
    await asyncio.sleep(0.02)
    world.log.shared.elect()
    world.led.clear()
    world.coordinator.on_metadata_update(world.apis.image)
    with pytest.raises(KafkaError) as refusal:
        await waiting
    assert refusal.value.code is ErrorCode.NOT_COORDINATOR


async def test_a_seek_while_records_are_fetched_wins(world: World) -> None:
    await world.join("a")
    await world.produce(0, b"1", b"2", b"3")
    held = world.apis.hold_fetches()
    waiting = asyncio.ensure_future(world.places("a", 5_000))
    await until(lambda: held.waiting > 0)
    target = SeekTarget(T, PartitionId(0), 2)
    await world.ask(Seek(group=G, instance=InstanceId("a"), targets=(target,)))
    held.go.set()
    assert await waiting == [(0, 2)]


async def test_nothing_is_delivered_or_shown_before_what_it_rests_on_is_committed(
    world: World,
) -> None:
    await world.join("a")
    await world.produce(0, b"1")
    await world.places("a")
    await world.produce(0, b"2")
    world.log.commit_at_once = False
    name = InstanceId("a")
    commit = asyncio.ensure_future(world.ask(Commit(group=G, instance=name)))
    await asyncio.sleep(0.02)
    read = asyncio.ensure_future(world.places("a"))
    shown = asyncio.ensure_future(world.ask(CommittedOffsets(group=G, instance=name)))
    await asyncio.sleep(0.05)
    assert not any(asked.done() for asked in (commit, read, shown))
    world.log.shared.commit()
    await commit
    assert await read == [(0, 1)]
    assert [one.offset for one in await shown] == [1]


async def test_rule_f2_a_read_that_rests_on_an_unknown_append_says_that_nothing_moved(
    world: World,
) -> None:
    await world.join("a")
    await world.produce(0, b"1")
    await world.places("a")
    await world.produce(0, b"2")
    world.log.commit_at_once = False
    commit = asyncio.ensure_future(world.ask(Commit(group=G, instance=InstanceId("a"))))
    await asyncio.sleep(0.02)
    read = asyncio.ensure_future(world.places("a"))
    await asyncio.sleep(0.02)
    world.log.shared.elect()  # the append's fate is not known
    for asked, outcome in ((commit, Outcome.UNKNOWN), (read, Outcome.NOT_WRITTEN)):
        with pytest.raises(KafkaError) as refusal:
            await asked
        assert refusal.value.outcome is outcome


async def test_a_waiting_read_is_refused_for_now_when_the_state_is_read_back(world: World) -> None:
    await world.join("a")
    waiting = asyncio.ensure_future(world.places("a", 5_000))
    await asyncio.sleep(0.02)
    world.log.next_append = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    with pytest.raises(KafkaError):
        await world.join("b")
    with pytest.raises(KafkaError) as refusal:
        await waiting
    assert refusal.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


@pytest.mark.parametrize("partitions", [1, WATCHED_MAX + 1])
async def test_what_a_read_leaves_waiting_at_a_leader_ends_in_its_time(
    world: World, partitions: int
) -> None:
    """A fetch that was forwarded goes on though nobody awaits it: it waited for 60 s."""
    wide = TopicName("wide")
    world.apis.add_topic(wide, partitions)
    world.coordinator.on_metadata_update(world.apis.image)
    await world.ask(CreateInstance(group=G, instance=InstanceId("a"), settings=JSON))
    await world.ask(Subscribe(group=G, instance=InstanceId("a"), topics=(wide,)))
    waiting = asyncio.ensure_future(world.poll("a", 1_000))
    await asyncio.sleep(0.05)
    waiting.cancel()
    waits = [one.max_wait_ms for one in world.apis.requests if isinstance(one, FetchRequest)]
    assert 0 < max(waits) <= (1_000 if partitions == 1 else WATCH_MS)


async def test_a_watch_goes_on_for_the_reads_that_joined_it_later(world: World) -> None:
    """The first fetch ends with the first read: the second one waits for the same record."""
    await world.create("a")
    await world.create("b")
    for name in ("a", "b"):
        zero = (TopicPartition(T, PartitionId(0)),)
        await world.ask(Assign(group=G, instance=InstanceId(name), partitions=zero))
    first = asyncio.ensure_future(world.places("a", 200))
    await asyncio.sleep(0.05)
    second = asyncio.ensure_future(world.places("b", 5_000))
    assert await first == []
    await asyncio.sleep(0.02)
    await world.produce(0, b"1")
    async with asyncio.timeout(1):
        assert await second == [(0, 0)]
