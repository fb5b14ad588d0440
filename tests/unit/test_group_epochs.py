"""Groups and the epochs of their offsets (KIP-320): stored, checked by reads, moved and told."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from broker.coordinator.group_messages import (
    Assign,
    Commit,
    CommitGroup,
    ConsumerSettings,
    DeleteInstance,
    DescribeGroup,
    GroupOffset,
    GroupOffsets,
    Move,
    OffsetReset,
    PolledRecords,
    Positions,
    Seek,
    SeekTarget,
)
from broker.coordinator.positions import (
    SPANS_MAX,
    EpochSpan,
    OffsetAndEpoch,
    joined,
    position_at,
    spans_before,
)
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import InstanceId, PartitionId, TopicId, TopicPartition
from tests.support.coordinator_world import G, T, World, open_world
from tests.support.fake_broker_apis import FakePartition

ZERO = TopicPartition(T, PartitionId(0))
ONE = InstanceId("one")
BY_HAND = ConsumerSettings(format="json", auto_offset_reset=OffsetReset.EARLIEST, auto_commit=False)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with open_world() as opened:
        yield opened


def log_of(world: World) -> FakePartition:
    return world.apis.logs[T, PartitionId(0)]


async def write(world: World, count: int, epoch: int) -> None:
    log_of(world).leader_epoch = epoch
    await world.produce(0, *(b"%d" % number for number in range(count)))


async def elect_uncleanly(world: World, *epochs: tuple[int, int]) -> None:
    """Let another replica lead, whose log holds these (records, epoch) one after the other."""
    log = log_of(world)
    log.slices.clear()
    log.end = log.start
    for count, epoch in epochs:
        await write(world, count, epoch)


async def read(world: World, name: str = "one") -> tuple[list[int], PolledRecords]:
    answer = await world.poll(name)
    return [record["offset"] for record in json.loads(answer.body)], answer


async def stored(world: World) -> tuple[int, int]:
    (row,) = await world.ask(GroupOffsets(group=G))
    return row.offset, row.leader_epoch


async def at(world: World, name: str = "one") -> tuple[int, int]:
    rows = await world.ask(Positions(group=G, instance=InstanceId(name)))
    (row,) = (row for row in rows if row.partition == 0)
    return row.offset, row.leader_epoch


async def commit(world: World, *offsets: GroupOffset) -> None:
    await world.ask(Commit(group=G, instance=ONE, offsets=offsets or None))


def moves(answer: PolledRecords) -> list[tuple[int, int, str]]:
    return [(move.from_offset, move.to_offset, move.cause) for move in answer.moved]


async def test_commits_store_the_epoch_of_their_offset(world: World) -> None:
    await write(world, 5, 2)
    await write(world, 5, 4)
    await world.join("one", BY_HAND)
    await read(world)
    assert await at(world) == (10, 4)
    await commit(world, GroupOffset(*ZERO, 3))
    assert await stored(world) == (4, 2), "Confluent's dialect stores one more"
    await commit(world, GroupOffset(*ZERO, 4))
    assert await stored(world) == (5, 2), "the record before 5 is of epoch 2"
    await commit(world)
    assert await stored(world) == (10, 4)


async def test_a_commit_keeps_the_epoch_that_its_client_names(world: World) -> None:
    await write(world, 5, 2)
    await world.ask(CommitGroup(group=G, offsets=(GroupOffset(*ZERO, 3, leader_epoch=1),)))
    assert await stored(world) == (3, 1)
    await world.ask(CommitGroup(group=G, offsets=(GroupOffset(*ZERO, 3),)))
    assert await stored(world) == (3, -1)


async def test_the_latest_start_is_recorded_with_its_epoch(world: World) -> None:
    await write(world, 5, 2)
    await world.join("one", replace(BY_HAND, auto_offset_reset=OffsetReset.LATEST))
    assert await at(world) == (5, 2)
    await elect_uncleanly(world, (3, 2), (9, 5))
    offsets, answer = await read(world)
    assert offsets == list(range(3, 12))
    assert moves(answer) == [(5, 3, "truncated")]


@pytest.mark.parametrize("commits", [False, True])
async def test_invariant_g16_an_instance_goes_on_where_the_log_was_cut_and_is_told(
    world: World, commits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """At 100; the log is cut to 80 and grows to 120."""
    await write(world, 100, 2)
    await world.join("one", BY_HAND)
    await read(world)
    if commits:
        await commit(world)
    await elect_uncleanly(world, (80, 2), (40, 5))
    with caplog.at_level(logging.WARNING, "broker.coordinator"):
        offsets, answer = await read(world)
    assert offsets == list(range(80, 120))
    assert moves(answer) == [(100, 80, "truncated")]
    assert "position moved group=" in caplog.text
    assert "from=100 to=80 cause=truncated" in caplog.text
    described = (await world.ask(DescribeGroup(group=G))).moved
    assert [(one.instance, *one[1:6]) for one in described] == [(ONE, T, 0, 100, 80, "truncated")]
    assert (await world.poll("one")).moved == (), "it is told once"
    await commit(world)
    assert await stored(world) == (120, 5), "a commit behind a move back is taken"


async def test_invariant_g16_where_another_log_stands_the_instance_stays_and_is_told(
    world: World,
) -> None:
    await write(world, 60, 2)
    await write(world, 10, 3)
    await world.join("one", BY_HAND)
    await read(world)
    await elect_uncleanly(world, (90, 2))
    offsets, answer = await read(world)
    assert moves(answer) == [(70, 70, "diverged")]
    assert offsets == list(range(70, 90))
    assert await at(world) == (90, 2)


async def test_invariant_g16_a_new_member_is_told_of_a_commit_that_was_cut_off(
    world: World,
) -> None:
    """The position is the commit of an instance that is gone, read by another one."""
    await write(world, 100, 2)
    await world.join("one", BY_HAND)
    await read(world)
    await commit(world)
    await world.ask(DeleteInstance(group=G, instance=ONE))
    await elect_uncleanly(world, (80, 2), (40, 5))
    await world.join("two", BY_HAND)
    offsets, answer = await read(world, "two")
    assert offsets == list(range(80, 120))
    assert moves(answer) == [(100, 80, "truncated")]


async def test_invariant_g16_without_a_reset_policy_a_cut_log_is_an_error_until_a_seek(
    world: World,
) -> None:
    await write(world, 100, 2)
    await world.ask(CommitGroup(group=G, offsets=(GroupOffset(*ZERO, 100, leader_epoch=2),)))
    none = replace(BY_HAND, auto_offset_reset=OffsetReset.NONE)
    await world.create("one", none)
    await world.ask(Assign(group=G, instance=ONE, partitions=(ZERO,)))
    await elect_uncleanly(world, (80, 2), (40, 5))
    for _ in range(2):
        with pytest.raises(KafkaError) as caught:
            await world.poll("one")
        assert caught.value.code is ErrorCode.LOG_TRUNCATED
        assert "ends here at offset 80" in caught.value.message
    await world.ask(Seek(group=G, instance=ONE, targets=(SeekTarget(*ZERO, 80, 2),)))
    assert await at(world) == (80, 2)
    offsets, answer = await read(world)
    assert (offsets, moves(answer)) == (list(range(80, 120)), [])


async def test_invariant_g16_a_token_reader_is_told_and_its_older_tokens_move_nothing(
    world: World,
) -> None:
    await write(world, 100, 2)
    await world.join("one", BY_HAND)
    first = await world.poll("one", after="0")
    await elect_uncleanly(world, (80, 2), (40, 5))
    second = await world.poll("one", after=first.token)
    assert moves(second) == [(100, 80, "truncated")]
    assert [row["offset"] for row in json.loads(second.body)] == list(range(80, 120))
    repeated = await world.poll("one", after=first.token)
    assert [row["offset"] for row in json.loads(repeated.body)] == list(range(80, 120))


async def test_a_position_out_of_range_is_told_too(world: World) -> None:
    await write(world, 100, 2)
    await world.ask(CommitGroup(group=G, offsets=(GroupOffset(*ZERO, 5),)))
    await world.join("one", BY_HAND)
    log_of(world).start = 12
    offsets, answer = await read(world)
    assert moves(answer) == [(5, 12, "out_of_range")]
    assert offsets == list(range(12, 100))


async def test_moves_of_one_partition_are_told_once_with_the_newest(world: World) -> None:
    shard = world.shard()
    state = shard.state()
    await world.join("one", BY_HAND)
    session = next(iter(state.sessions.values()))
    for number in range(20):
        move = Move(ONE, T, PartitionId(0), number, number + 1, "out_of_range", 7)
        state.note_move(G, session, move)
    assert [one.from_offset for one in session.unreported_moves] == [19]
    described = (await world.ask(DescribeGroup(group=G))).moved
    assert [one.from_offset for one in described] == list(range(10, 20))


async def test_invariant_g16_a_shorter_repeat_keeps_the_epochs_of_the_first_answer(
    world: World,
) -> None:
    """The answer was not lost after all: what it held behind the repeat's end is committed."""
    await write(world, 2, 2)
    await world.join("one", BY_HAND)
    first = await world.poll("one", after="0")
    await write(world, 3, 2)
    await write(world, 5, 3)
    assert (await world.poll("one", after=first.token)).count == 8
    assert (await world.poll("one", after=first.token, max_bytes=1)).count < 8
    await commit(world, GroupOffset(*ZERO, 7))
    assert await stored(world) == (8, 3)


def test_spans_know_the_epochs_of_what_was_delivered_only() -> None:
    position = position_at(OffsetAndEpoch(10, 3), TopicId("x" * 22))
    assert [position.epoch_of(at) for at in (9, 10, 11)] == [-1, 3, -1]
    position.next = 20
    position.spans = joined(position.spans, (EpochSpan(10, 3), EpochSpan(15, 4)))
    assert [position.epoch_of(at) for at in (10, 15, 16, 20, 21)] == [3, 3, 4, 4, -1]
    position.spans = joined(position.spans, (EpochSpan(12, 6),))
    assert [position.epoch_of(at) for at in (12, 13, 20)] == [3, 6, 6], "read again, another log"
    assert spans_before(OffsetAndEpoch(0, 3)) == ()
    assert spans_before(OffsetAndEpoch(5)) == ()


def test_spans_are_bounded() -> None:
    spans = joined((), (EpochSpan(number, number) for number in range(100)))
    assert len(spans) == SPANS_MAX
    assert spans[-1] == EpochSpan(99, 99)
