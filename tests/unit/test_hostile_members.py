"""Interleavings around members, seats, tokens and lives of topics, each once reproduced."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from broker.coordinator.group_messages import (
    Commit,
    CommitGroup,
    CreateInstance,
    Edge,
    GroupOffset,
    GroupOffsets,
    OffsetReset,
    Positions,
    Seek,
    SeekTarget,
    Subscribe,
)
from broker.coordinator.records import MemberKey
from broker.coordinator.target_worker import OVERTAKEN_MAX
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import InstanceId, PartitionId, TopicName
from tests.support.doors.coordinator import shard_of
from tests.support.fake_broker_apis import FakePartition
from tests.support.group_world import BY_HAND, GroupWorld, place
from tests.support.waiting import until
from tests.unit.test_direct_members import numbers, refused, revoked
from tests.unit.test_group_reads import JSON, G, T, World, world
from tests.unit.test_hostile_groups import recreate
from tests.unit.test_member_requests import beat_request, join_request, watch_computations

__all__ = ["world"]
LATEST = replace(JSON, auto_offset_reset=OffsetReset.LATEST)
ONE = InstanceId("a")
ZERO = PartitionId(0)
STATIC = replace(BY_HAND, static_id="s1", session_timeout_ms=60_000)


def between(world: World, *steps: Any) -> None:
    """Let a step happen behind each of the next questions for the ends of a partition."""
    ends, left = world.apis.offsets, list(steps)

    async def offsets(*args: Any) -> Any:
        found = await ends(*args)
        if left:
            await left.pop(0)()
        return found

    world.apis.offsets = offsets  # type: ignore[method-assign]


def empty_life(world: World, name: TopicName = T) -> None:
    """The topic is deleted, and made anew without a record."""
    recreate(world, name, 2, "B")
    for number in range(2):
        world.apis.logs[name, number] = FakePartition()


# lives of a topic's name


@pytest.mark.parametrize("direct", [False, True])
async def test_rule_g2_a_start_of_the_last_life_of_a_topic_is_resolved_again(
    world: World, *, direct: bool
) -> None:
    """The topic ends between the answer for its end and the decision that subscribes."""
    await world.produce(0, b"1", b"2", b"3")

    async def ends() -> None:
        empty_life(world)

    between(world, ends)
    if direct:
        joined = await world.ask(join_request("a", auto_offset_reset=OffsetReset.LATEST))
        assert {one.offset for one in joined.assignment} == {0}
        return
    await world.ask(CreateInstance(group=G, instance=ONE, settings=LATEST))
    await world.ask(Subscribe(group=G, instance=ONE, topics=(T,)))
    await world.produce(0, *(b"%d" % number for number in range(10)))
    assert await world.places("a") == [(0, number) for number in range(10)], "skipped"


async def test_rule_g2_a_seek_to_the_end_means_the_present_life_of_a_topic(world: World) -> None:
    await world.produce(0, b"1", b"2", b"3")
    await world.join("a")

    async def ends() -> None:
        empty_life(world)

    between(world, ends)
    target = SeekTarget(T, ZERO, Edge.END)
    await world.ask(Seek(group=G, instance=ONE, targets=(target,)))
    await world.produce(0, *(b"%d" % number for number in range(10)))
    assert await world.places("a") == [(0, number) for number in range(10)], "skipped"


async def test_invariant_g8_a_commit_of_the_last_life_takes_none_of_the_present_one(
    world: World,
) -> None:
    """The commit waits for a high watermark; the topic is made anew meanwhile."""
    await world.produce(0, b"1", b"2", b"3")
    await world.join("a")

    async def ends_and_goes_on() -> None:
        empty_life(world)
        await world.produce(0, b"1", b"2")
        await world.places("a")
        await world.ask(Commit(group=G, instance=ONE, offsets=None))

    between(world, ends_and_goes_on)
    late = Commit(group=G, instance=ONE, offsets=(GroupOffset(T, ZERO, 2),))
    with pytest.raises(KafkaError):
        await world.ask(late)
    (row,) = await world.ask(GroupOffsets(group=G))
    assert row.offset == 2, "an acknowledged commit is gone"


async def test_rule_g4_a_shard_follows_the_topics_before_it_decides(world: World) -> None:
    """A topic is made anew while nothing can be recorded, and its member commits before a tick."""
    await world.produce(0, *(b"%d" % number for number in range(10)))
    joined = await world.ask(join_request("a", auto_offset_reset=OffsetReset.EARLIEST))
    world.log.may_append = False
    recreate(world, T, 2, "B")
    await world.produce(0, *(b"%d" % number for number in range(10)))
    world.log.may_append = True
    late = CommitGroup(
        group=G,
        offsets=(GroupOffset(T, ZERO, 7),),
        member_id=ONE,
        member_epoch=joined.member_epoch,
    )
    with refused(ErrorCode.ILLEGAL_STATE):
        await world.ask(late)


async def test_rule_g4_a_new_life_is_granted_anew_though_the_group_never_stood_anywhere(
    world: World,
) -> None:
    """No start and no commit tells that the topic is another one ."""
    joined = await world.ask(join_request("a", auto_offset_reset=OffsetReset.NONE))
    recreate(world, T, 2, "B")
    await world.produce(0, *(b"%d" % number for number in range(10)))
    late = CommitGroup(
        group=G,
        offsets=(GroupOffset(T, ZERO, 7),),
        member_id=ONE,
        member_epoch=joined.member_epoch,
    )
    with refused(ErrorCode.ILLEGAL_STATE):
        await world.ask(late)
    given = await world.ask(beat_request(joined, 0, owned=()))
    assert given.member_epoch > joined.member_epoch
    assert len(given.assignment) == 2


# seats, targets and time


def test_invariant_g14_a_taken_seat_gives_up_in_the_rebalance_time() -> None:
    """The seat was to give partitions up when its client came back, and never does."""
    world = GroupWorld(partitions=4)
    world.join_directly("a", STATIC, timeout_ms=5_000)
    b = world.join_directly("b", timeout_ms=5_000)
    again = world.join_directly("a2", STATIC, timeout_ms=5_000)
    held = [*numbers(again), *revoked(again)]
    assert sorted(held) == [0, 1, 2, 3]
    for _ in range(4):
        world.pass_time(2_000)
        world.beat("a2", again.member_epoch, *held)
        b = world.beat("b", b.member_epoch, *numbers(b))
    assert len(numbers(b)) == 2, "the group stands still"


async def test_invariant_g1_targets_that_were_overtaken_take_nothing_of_newer_ones(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of three computations is overtaken by a change that makes the group small."""
    world.apis.add_topic("big", 3_000)
    world.coordinator.on_metadata_update(world.apis.image)
    loop = asyncio.get_running_loop()
    seen: list[int] = []

    def change() -> None:
        seen.append(len(seen))
        asyncio.run_coroutine_threadsafe(step(len(seen)), loop).result(5)

    async def step(number: int) -> None:
        if number < OVERTAKEN_MAX:
            await world.ask(join_request(f"m{number}", topic="big"))
        else:
            recreate(world, TopicName("big"), 4, "B")

    watch_computations(monkeypatch, change)
    await world.ask(join_request("a", topic="big"))
    shard = shard_of(world.coordinator, ZERO)
    await until(lambda: len(seen) >= OVERTAKEN_MAX and not is_computing())
    members = shard.state().groups[G].members.values()
    targets = sorted(one for member in members for one in member.target)
    assert targets == [place(number, "big") for number in range(4)]


def is_computing() -> bool:
    return any(task.get_name().startswith("group-targets") for task in asyncio.all_tasks())


# records that were read in an order that cleaning makes


def test_invariant_g9_a_load_beside_the_cleaner_gives_no_partition_two_owners() -> None:
    """The cleaner replaced the first segment, and not the second: both hold what it knows."""
    world = GroupWorld(partitions=2)
    world.join("a", BY_HAND)
    first = len(world.log)
    world.join("b", BY_HAND)
    world.call("a")
    world.read_after("a", "0")
    found = world.owned("a"), world.owned("b"), dict(world.group.owners)
    clean_up_to(world, first)
    world.fail_over()
    assert (world.owned("a"), world.owned("b"), dict(world.group.owners)) == found


def test_invariant_g9_a_load_beside_the_cleaner_brings_no_seek_back() -> None:
    world = GroupWorld(partitions=1)
    world.join("a", BY_HAND)
    first = len(world.log)
    world.seek("a", 0, 50)
    world.read("a", 10)
    world.commit_all("a")
    world.read_after("a", "0")
    clean_up_to(world, first)
    world.fail_over()
    assert world.position("a", 0) == 60


def test_invariant_g2_a_load_beside_the_cleaner_gives_no_seat_twice() -> None:
    world = GroupWorld(partitions=2)
    world.join("a", STATIC)
    first = next(at for at, one in enumerate(world.log) if isinstance(one.key, MemberKey))
    world.create("a2", STATIC)
    clean_up_to(world, first)
    world.fail_over()
    assert world.owned("a2") == {0, 1}
    assert world.owned("a") == set(), "two owners"


def clean_up_to(world: GroupWorld, end: int) -> None:
    """Take from the first entries those that any later entry replaces."""
    newest = {(type(entry.key), entry.key): at for at, entry in enumerate(world.log)}
    kept = [e for at, e in enumerate(world.log[:end]) if newest[type(e.key), e.key] == at]
    world.log = kept + world.log[end:]


# tokens


async def test_a_refused_commit_with_a_token_leaves_every_groups_positions(world: World) -> None:
    """The token makes a token reader, which is a record, and then the body is refused."""
    await world.join("a")
    await world.produce(0, b"1", b"2", b"3")
    found = await world.poll("a")
    shard = shard_of(world.coordinator, ZERO)
    generation = shard.generation
    far = Commit(group=G, instance=ONE, offsets=(GroupOffset(T, ZERO, 99),), after=found.token)
    with refused(ErrorCode.ILLEGAL_STATE):
        await world.ask(far)
    assert shard.generation == generation, "the state of all groups was dropped"
    rows = await world.ask(Positions(group=G, instance=ONE))
    assert [row.offset for row in rows if row.partition == 0] == [3]


async def test_rule_g5_a_move_is_reported_again_while_its_answer_may_be_lost(world: World) -> None:
    """For a token reader, an answer that nothing acknowledged told nobody."""
    await world.produce(0, *(b"%d" % number for number in range(20)))
    await world.ask(CommitGroup(group=G, offsets=(GroupOffset(T, ZERO, 5),)))
    await world.join("a")
    log = world.apis.logs[T, 0]
    log.start = 12
    lost = await world.poll("a", after="0")
    assert [(one.from_offset, one.to_offset) for one in lost.moved] == [(5, 12)]
    again = await world.poll("a", after="0")
    assert again.moved == lost.moved
    told = await world.poll("a", after=again.token)
    assert not told.moved
