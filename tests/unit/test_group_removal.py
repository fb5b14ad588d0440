"""Removal of groups, offsets and members: by request, and of offsets by age (KIP-211)."""

from __future__ import annotations

import pytest

from broker.coordinator import membership, removal
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import InstanceId, PartitionId, TopicName
from tests.support.group_world import BY_HAND, G, GroupWorld, T, facts

DAY_MS = 86_400_000


def refused(code: ErrorCode) -> pytest.RaisesExc[KafkaError]:
    return pytest.RaisesExc(KafkaError, check=lambda error: error.code is code)


def world_at(ms: int | None = DAY_MS) -> GroupWorld:
    world = GroupWorld(partitions=2)
    world.state.trusted_ms = ms
    return world


def expire(world: GroupWorld, at_ms: int | None, retention_ms: int = DAY_MS) -> list[str]:
    world.state.trusted_ms = at_ms
    world.state.to_check = list(world.state.groups)
    removed = removal.expire(world.state, world.topics, retention_ms)
    world.write()
    return list(removed)


def committed(world: GroupWorld) -> list[int | None]:
    if G not in world.state.groups:
        return []
    return [world.committed(number) for number in range(2)]


# ---------------------------------------------------------------- by request


def test_a_group_with_live_members_is_not_deleted_and_they_are_named() -> None:
    world = world_at()
    world.join("a")
    with pytest.raises(KafkaError, match="live members: a; close or evict them first"):
        removal.delete_group(world.state, G)


def test_a_deleted_group_leaves_nothing_and_its_epoch_never_goes_back() -> None:
    world = world_at()
    world.join("a")
    world.read("a")
    epoch = world.group.epoch
    world.delete("a")
    removal.delete_group(world.state, G)
    world.write()
    newest = {entry.key: entry.value for entry in world.log}
    assert {type(key).__name__ for key, value in newest.items() if value is not None} == {
        "GroupKey"
    }, "only the epoch of all forgotten groups"
    with refused(ErrorCode.GROUP_ID_NOT_FOUND):
        removal.delete_group(world.state, G)
    world.fail_over()
    world.join("a")
    assert world.group.epoch > epoch
    assert world.position("a", 0) == 0


def test_offsets_of_a_topic_in_use_are_not_deleted() -> None:
    world = world_at()
    world.join("a", BY_HAND)
    world.read("a")
    world.commit_all("a")
    with pytest.raises(KafkaError, match="read topic t: close or evict them first"):
        removal.delete_offsets(world.state, G, T, None, world.topics)
    with refused(ErrorCode.ILLEGAL_STATE):
        removal.delete_offsets(world.state, G, None, None, world.topics)
    world.delete("a")
    removal.delete_offsets(world.state, G, T, PartitionId(0), world.topics)
    assert committed(world) == [None, 10]
    removal.delete_offsets(world.state, G, T, PartitionId(0), world.topics)
    removal.delete_offsets(world.state, G, None, None, world.topics)
    assert committed(world) == [None, None]


def test_offsets_of_another_topic_are_deleted_beside_live_members() -> None:
    world = world_at()
    world.topics = {**world.topics, TopicName("u"): facts(1, "B")}
    world.commit_group(0, 7)
    world.create("a")
    world.subscribe("a", "u")
    removal.delete_offsets(world.state, G, T, None, world.topics)
    assert committed(world) == [None, None]


def test_an_evicted_member_commits_nothing_and_the_others_take_over() -> None:
    world = world_at()
    world.join("a")
    world.join("b")
    world.read("a")
    membership.evict(world.state, world.key("a"), world.topics)
    assert committed(world) == [None, None]
    assert world.owned("b") == {0, 1}
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        membership.evict(world.state, world.key("a"), world.topics)


# ---------------------------------------------------------------- by age


def test_an_offset_expires_after_its_commit_and_the_end_of_its_group() -> None:
    world = world_at()
    world.commit_group(0, 7)
    assert expire(world, 2 * DAY_MS) == []
    assert committed(world) == [7, None]
    assert expire(world, 2 * DAY_MS + 1) == [G]
    assert committed(world) == []


def test_an_offset_of_a_group_counts_from_when_the_last_member_left() -> None:
    world = world_at()
    world.join("a", BY_HAND)
    world.read("a")
    world.commit_all("a")
    assert expire(world, 10 * DAY_MS) == []
    assert committed(world) == [10, 10]
    world.delete("a")
    world.fail_over()
    assert expire(world, 11 * DAY_MS) == []
    assert expire(world, 11 * DAY_MS + 1) == [G]


def test_in_a_group_with_members_only_topics_nobody_reads_expire() -> None:
    world = world_at()
    world.topics = {**world.topics, TopicName("u"): facts(1, "B")}
    world.commit_group(0, 7)
    world.create("a")
    world.subscribe("a", "u")
    assert expire(world, 3 * DAY_MS) == []
    assert committed(world) == [None, None]
    assert InstanceId("a") in world.group.instances


def test_rule_r10_nothing_expires_while_the_clock_is_not_trusted() -> None:
    world = world_at()
    world.commit_group(0, 7)
    assert expire(world, None) == []
    assert committed(world) == [7, None]


def test_rule_r10_a_commit_of_such_a_time_counts_from_when_it_is_seen() -> None:
    world = world_at(None)
    world.join("a", BY_HAND)
    world.read("a")
    world.commit_all("a")
    world.delete("a")
    assert expire(world, 10 * DAY_MS) == []
    assert committed(world) == [10, 10]
    world.fail_over()
    assert expire(world, 11 * DAY_MS) == []
    assert expire(world, 11 * DAY_MS + 1) == [G]


def test_a_group_with_starts_only_expires_too() -> None:
    world = world_at()
    world.join("a")
    world.pass_time(10**7)
    assert world.group.starts
    assert expire(world, 2 * DAY_MS) == []
    assert expire(world, 2 * DAY_MS + 1) == [G]


def test_many_groups_are_checked_in_several_ticks() -> None:
    world = world_at()
    world.commit_group(0, 7)
    world.state.trusted_ms = 3 * DAY_MS
    world.state.to_check = [G] * (removal.GROUPS_PER_TICK + 1)
    removal.expire(world.state, world.topics, 5 * DAY_MS)
    assert len(world.state.to_check) == 1
