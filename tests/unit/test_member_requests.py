"""Heartbeats that wait, and targets computed off the loop, through a coordinator."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from broker.coordinator import member_requests, targets
from broker.coordinator.group_messages import (
    ConsumerSettings,
    DeleteInstance,
    EvictInstance,
    Heartbeat,
    JoinGroup,
    Membership,
    decode_answer,
    decode_request,
    encode_answer,
    encode_request,
)
from broker.coordinator.group_state import GroupsState
from broker.coordinator.rebalance import apply_targets, target_input
from broker.coordinator.records import (
    InstanceKey,
    InstanceValue,
    MemberKey,
    MemberValue,
    ShardRecord,
)
from broker.coordinator.targets import TargetInput
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import InstanceId, PartitionId, TopicName
from tests.support.doors.coordinator import shard_of
from tests.support.group_world import facts
from tests.unit.test_group_reads import JSON, G, World, world

__all__ = ["world"]
ZERO = PartitionId(0)
LOOP_HELD_MS_MAX = 50


def join_request(name: str, topic: str = "t", **settings: Any) -> JoinGroup:
    chosen = ConsumerSettings(auto_commit=False, **settings)
    return JoinGroup(
        group=G,
        instance=InstanceId(name),
        settings=chosen,
        rebalance_timeout_ms=30_000,
        topics=(TopicName(topic),),
    )


def beat_request(found: Membership, wait_ms: int = 10_000, **changes: Any) -> Heartbeat:
    owned = tuple((one.topic, one.partition) for one in found.assignment)
    fields = {"member_epoch": found.member_epoch, "owned": owned} | changes
    return Heartbeat(group=G, instance=found.instance, wait_ms=wait_ms, **fields)


def test_requests_and_answers_pass_between_brokers() -> None:
    request = beat_request(
        Membership(
            instance=InstanceId("a"),
            static_id=None,
            member_epoch=1,
            group_epoch=1,
            assignor="uniform",
            heartbeat_interval_ms=1,
            session_timeout_ms=2,
            assignment=(),
            revoked=(),
        )
    )
    for sent in (request, join_request("a")):
        assert decode_request(encode_request(sent)) == sent
    answer = Membership(
        instance=InstanceId("a"),
        static_id="s",
        member_epoch=1,
        group_epoch=1,
        assignor="uniform",
        heartbeat_interval_ms=1,
        session_timeout_ms=2,
        assignment=(),
        revoked=(),
    )
    assert decode_answer(request, encode_answer(answer)) == answer


async def test_a_heartbeat_waits_until_the_member_is_to_own_something_else(world: World) -> None:
    first = await world.ask(join_request("a"))
    assert len(first.assignment) == 2
    waiting = asyncio.create_task(world.ask(beat_request(first)))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    second = await world.ask(join_request("b"))
    assert second.assignment == ()
    told = await asyncio.wait_for(waiting, 1)
    assert (len(told.assignment), len(told.revoked)) == (1, 1)
    granted = asyncio.create_task(world.ask(beat_request(second)))
    await asyncio.sleep(0.05)
    assert not granted.done()
    await world.ask(beat_request(told, 0))
    assert len((await asyncio.wait_for(granted, 1)).assignment) == 1


async def test_a_heartbeat_without_a_change_waits_its_time_and_no_longer(world: World) -> None:
    found = await world.ask(join_request("a"))
    began = time.monotonic()
    assert await world.ask(beat_request(found, 120)) == found
    assert time.monotonic() - began >= 0.119  # the broker counts whole milliseconds
    longest = found.session_timeout_ms // 3
    with pytest.raises(KafkaError) as refused:
        await world.ask(beat_request(found, longest + 1))
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert str(longest) in refused.value.message


async def test_a_member_of_another_kind_wakes_a_heartbeat(world: World) -> None:
    await world.join("v2", JSON)
    found = await world.ask(join_request("a"))
    missing = 2 - len(found.assignment)
    waiting = asyncio.create_task(world.ask(beat_request(found)))
    await asyncio.sleep(0.05)
    await world.ask(DeleteInstance(group=G, instance=InstanceId("v2")))
    assert len((await asyncio.wait_for(waiting, 1)).assignment) == len(found.assignment) + missing


async def test_the_session_counts_from_the_arrival_of_a_heartbeat_that_waits(world: World) -> None:
    found = await world.ask(join_request("a", session_timeout_ms=1_000))
    state = shard_of(world.coordinator, ZERO).state()
    session = next(iter(state.sessions.values()))
    waiting = asyncio.create_task(world.ask(beat_request(found, 300)))
    await asyncio.sleep(0.05)
    arrived = session.heard_ms
    await waiting
    assert (session.heard_ms, session.calls) == (arrived, 0)


async def test_a_member_that_is_removed_is_told_at_once(world: World) -> None:
    found = await world.ask(join_request("a"))
    waiting = asyncio.create_task(world.ask(beat_request(found)))
    await asyncio.sleep(0.05)
    await world.ask(EvictInstance(group=G, instance=InstanceId("a")))
    with pytest.raises(KafkaError) as refused:
        await asyncio.wait_for(waiting, 1)
    assert refused.value.code is ErrorCode.UNKNOWN_MEMBER_ID


async def test_two_processes_with_one_name(world: World) -> None:
    older = await world.ask(join_request("a"))
    waiting = asyncio.create_task(world.ask(beat_request(older)))
    await asyncio.sleep(0.05)
    newer = await world.ask(join_request("a"))
    assert newer.member_epoch > older.member_epoch
    with pytest.raises(KafkaError) as refused:
        await asyncio.wait_for(waiting, 1)
    assert refused.value.code is ErrorCode.FENCED_MEMBER_EPOCH


async def test_of_two_heartbeats_of_a_member_the_newer_one_is_answered(world: World) -> None:
    found = await world.ask(join_request("a"))
    older = asyncio.create_task(world.ask(beat_request(found, 400)))
    await asyncio.sleep(0.05)
    newer = asyncio.create_task(world.ask(beat_request(found, 5_000)))
    await asyncio.sleep(0.05)
    await world.ask(join_request("b"))
    told = await asyncio.wait_for(newer, 1)
    assert len(told.revoked) == 1
    assert not older.done(), "two clients of one name would repeat without a pause"
    assert await older == told


async def test_heartbeats_that_wait_have_a_limit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(member_requests, "WAITING_HEARTBEATS_MAX", 1)
    first = await world.ask(join_request("a"))
    waiting = asyncio.create_task(world.ask(beat_request(first, 500)))
    await asyncio.sleep(0.05)
    other = await world.ask(join_request("o", topic="none"))
    began = time.monotonic()
    assert await world.ask(beat_request(other, 5_000)) == other
    assert time.monotonic() - began < 1
    assert (await waiting).assignment == first.assignment


async def test_a_coordinator_that_loads_again_ends_the_wait(world: World) -> None:
    """The broker that forwarded it repeats it (rule F2)."""
    found = await world.ask(join_request("a"))
    waiting = asyncio.create_task(world.ask(beat_request(found)))
    await asyncio.sleep(0.05)
    world.led.clear()
    world.coordinator.on_metadata_update(world.apis.image)
    with pytest.raises(KafkaError) as refused:
        await asyncio.wait_for(waiting, 1)
    assert refused.value.code is ErrorCode.NOT_COORDINATOR


# targets of large groups


async def test_targets_of_a_large_group_are_computed_in_another_thread(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.apis.add_topic("big", 3_000)
    world.coordinator.on_metadata_update(world.apis.image)
    threads = watch_computations(monkeypatch, lambda: None)
    joined = await world.ask(join_request("a", topic="big"))
    assert joined.assignment == ()
    told = await asyncio.wait_for(world.ask(beat_request(joined)), 5)
    assert len(told.assignment) == 3_000
    assert threads
    assert threading.get_ident() not in threads


async def test_targets_whose_input_changed_meanwhile_are_computed_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.apis.add_topic("big", 3_000)
    world.coordinator.on_metadata_update(world.apis.image)
    began, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        began.set()
        assert go_on.wait(5)

    threads = watch_computations(monkeypatch, hold)
    first = await world.ask(join_request("a", topic="big"))
    await asyncio.to_thread(began.wait, 5)
    second = await world.ask(join_request("b", topic="big"))
    go_on.set()
    told = await until_assigned(world, first)
    assert len(told.assignment) == 1_500, "the targets were of a group of one member"
    assert len(threads) >= 2
    assert len((await until_assigned(world, second)).assignment) == 1_500


async def test_constant_change_delays_targets_but_does_not_prevent_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.apis.add_topic("big", 3_000)
    world.coordinator.on_metadata_update(world.apis.image)
    loop = asyncio.get_running_loop()
    names = (f"m{number}" for number in range(100))

    def one_more() -> None:
        asyncio.run_coroutine_threadsafe(
            world.ask(join_request(next(names), topic="big")), loop
        ).result(5)

    watch_computations(monkeypatch, one_more)
    first = await world.ask(join_request("a", topic="big"))
    assert (await until_assigned(world, first)).assignment


async def until_assigned(world: World, found: Membership) -> Membership:
    """Send heartbeats until the member owns something."""
    async with asyncio.timeout(20):
        while not found.assignment:
            found = await world.ask(beat_request(found))
    return found


def watch_computations(monkeypatch: pytest.MonkeyPatch, during: Callable[[], None]) -> list[int]:
    """Run ``during`` in each computation; return the list of threads that grows with them."""
    threads: list[int] = []
    real = TargetInput.compute

    def compute(taken: TargetInput) -> targets.Targets:
        if taken.is_large:
            threads.append(threading.get_ident())
            during()
        return real(taken)

    monkeypatch.setattr(TargetInput, "compute", compute)
    return threads


def test_a_thousand_members_of_ten_thousand_partitions_hold_the_loop_briefly() -> None:
    """CPU time of the decision that checks and applies targets; other processes do not count."""
    held_ms = []
    for _ in range(3):
        shared = LargeGroup()
        taken = target_input(shared.state, shared.group, shared.topics)
        computed = taken.compute()
        gc.collect()
        gc.disable()  # what other tests left is not collected in this time
        try:
            began = time.thread_time()
            assert target_input(shared.state, shared.group, shared.topics) == taken
            apply_targets(shared.state, shared.group, computed, shared.topics)
            held_ms.append((time.thread_time() - began) * 1000)
        finally:
            gc.enable()
        assert sum(len(one.target) for one in shared.group.instances.values()) == 10_000
    assert min(held_ms) <= LOOP_HELD_MS_MAX, held_ms


class LargeGroup:
    """A thousand members that read for themselves, of ten topics with a thousand partitions."""

    def __init__(self) -> None:
        names = tuple(TopicName(f"t{number}") for number in range(10))
        self.topics = {
            name: facts(1_000, letter) for name, letter in zip(names, "ABCDEFGHIJ", strict=True)
        }
        self.state = GroupsState()
        for number in range(1_000):
            key = InstanceKey(G, InstanceId(f"m{number:03d}"))
            value = InstanceValue(
                settings=ConsumerSettings(), topics=names, rebalance_timeout_ms=30_000
            )
            self.state.fold(ShardRecord(key, value))
            self.state.fold(ShardRecord(MemberKey(*key), MemberValue(1, {}, {})))
        self.group = self.state.groups[G]


async def test_a_topic_of_which_no_controller_tells_may_be_subscribed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic may be made later, and a topic that exists is read meanwhile."""

    async def no_controller_answers(*_: object) -> None:
        raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "no controller answers")

    monkeypatch.setattr(world.apis, "catch_up_with_topic", no_controller_answers)
    found = await world.ask(replace(join_request("a"), topics=(TopicName("t"), TopicName("later"))))
    assert {one.topic for one in found.assignment} == {"t"}
