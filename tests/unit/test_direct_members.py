"""Members that read for themselves, as decisions: joins, heartbeats, grants and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from broker.coordinator import instances
from broker.coordinator.assignors import AssignmentMember
from broker.coordinator.group_coordinator import describe_group
from broker.coordinator.group_messages import GroupState, Membership, OffsetReset
from broker.coordinator.rebalance import drop_deleted_topics, retarget, target_input
from broker.coordinator.targets import TARGETS_INLINE_MAX
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import BrokerId, InstanceId
from tests.support.group_world import BY_HAND, EARLIEST, G, GroupWorld, T, facts, place

STATIC = replace(BY_HAND, static_id="s1", session_timeout_ms=10_000)
HIGH = 100


@contextmanager
def refused(code: ErrorCode) -> Iterator[None]:
    with pytest.raises(KafkaError) as caught:
        yield
    assert caught.value.code is code, caught.value


def numbers(found: Membership) -> list[int]:
    return [one.partition for one in found.assignment]


def revoked(found: Membership) -> list[int]:
    return [one.partition for one in found.revoked]


def state_of(world: GroupWorld) -> GroupState:
    return describe_group(world.state, G, BrokerId(1), world.topics).state


def test_the_first_member_owns_everything_at_once() -> None:
    world = GroupWorld(partitions=3, start=7)
    found = world.join_directly("a")
    assert numbers(found) == [0, 1, 2]
    assert {(one.offset, one.is_committed) for one in found.assignment} == {(7, False)}
    assert (found.member_epoch, found.group_epoch, found.assignor) == (1, 1, "uniform")
    assert (found.heartbeat_interval_ms, found.session_timeout_ms) == (5_000, 300_000)
    assert state_of(world) is GroupState.STABLE


def test_an_equal_join_gets_the_same_answer_while_its_first_may_be_lost() -> None:
    world = GroupWorld()
    first = world.join_directly("a")
    assert world.join_directly("a") == first
    with refused(ErrorCode.INSTANCE_ALREADY_EXISTS):
        world.join_directly("a", EARLIEST)


def test_of_two_processes_with_one_name_the_older_is_refused() -> None:
    world = GroupWorld()
    first = world.join_directly("a")
    world.beat("a", first.member_epoch, 0, 1, 2, 3)
    second = world.join_directly("a")
    assert second.member_epoch > first.member_epoch
    assert numbers(second) == [0, 1, 2, 3]
    with refused(ErrorCode.FENCED_MEMBER_EPOCH):
        world.beat("a", first.member_epoch, 0, 1, 2, 3)
    with refused(ErrorCode.FENCED_MEMBER_EPOCH):
        world.commit_group(0, 1, "a", first.member_epoch, HIGH)
    world.commit_group(0, 1, "a", second.member_epoch, HIGH)


@pytest.mark.parametrize("other", ["direct", "instance"])
def test_invariant_g13_revoke_comes_before_assign_between_both_kinds(other: str) -> None:
    """G13, G2: a partition is granted only once its owner has named what it owns without it."""
    world = GroupWorld()
    epoch = world.join_directly("a").member_epoch
    if other == "direct":
        second = world.join_directly("b")
        assert (numbers(second), revoked(second)) == ([], [])
    else:
        world.join("b", BY_HAND)
        assert world.owned("b") == set()
    found = world.beat("a", epoch, 0, 1, 2, 3)
    assert (len(numbers(found)), len(revoked(found)), found.member_epoch) == (2, 2, epoch)
    again = world.beat("a", epoch, 0, 1, 2, 3)
    assert again == found
    assert world.owned("b") == set()
    freed = set(revoked(found))
    done = world.beat("a", epoch, *numbers(found))
    assert (numbers(done), revoked(done)) == (numbers(found), [])
    assert done.member_epoch > epoch
    if other == "direct":
        assert set(numbers(world.beat("b", second.member_epoch))) == freed
    assert world.owned("b") == freed


def test_an_instance_gives_up_to_a_member_that_reads_for_itself() -> None:
    world = GroupWorld()
    world.join("a", BY_HAND)
    world.read("a", 10)
    joined = world.join_directly("b")
    assert numbers(joined) == []
    assert numbers(world.beat("b", joined.member_epoch)) == []
    world.call("a")  # it reads on
    assert len(numbers(world.beat("b", joined.member_epoch))) == 2


def test_a_late_heartbeat_of_an_older_epoch_frees_nothing() -> None:
    """Invariant G2: what was granted after it was sent stays with its owner."""
    world = GroupWorld(partitions=1)
    by_range = replace(BY_HAND, assignors=("range",))
    world.join_directly("a", by_range)
    older = world.join_directly("b", by_range)
    world.leave("a")
    granted = world.beat("b", older.member_epoch)
    assert numbers(granted) == [0]
    c = world.join_directly(
        "a", by_range
    )  # the first in order of names, it is to own the partition
    late = world.beat("b", older.member_epoch)
    assert (late.member_epoch, revoked(late)) == (granted.member_epoch, [0])
    assert numbers(world.beat("a", c.member_epoch)) == []
    assert world.owned("b") == {0}
    world.beat("b", granted.member_epoch)
    assert numbers(world.beat("a", c.member_epoch)) == [0]


@pytest.mark.parametrize("fails_over", [False, True])
def test_a_heartbeat_whose_answer_was_lost_may_be_repeated(fails_over: bool) -> None:
    world = GroupWorld()
    world.join_directly("o")
    joined = world.join_directly("a")
    world.leave("o")
    granted = world.beat("a", joined.member_epoch)
    assert numbers(granted) == [0, 1, 2, 3]
    if fails_over:
        world.fail_over()
    assert world.beat("a", joined.member_epoch) == granted
    world.beat("a", granted.member_epoch, 0, 1, 2, 3)


def test_invariant_g7_a_heartbeat_of_another_epoch_is_refused_and_changes_nothing() -> None:
    world = GroupWorld()
    joined = world.join_directly("a")
    written = len(world.log)
    for epoch in (joined.member_epoch + 1, joined.member_epoch - 1, -1, 2**31 - 1):
        with refused(ErrorCode.FENCED_MEMBER_EPOCH):
            world.beat("a", epoch)
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        world.beat("b", joined.member_epoch)
    assert len(world.log) == written
    assert world.owned("a") == {0, 1, 2, 3}


def test_invariant_g3_a_later_member_of_a_name_has_a_higher_epoch() -> None:
    """A zombie's epoch never becomes present again, though its grants took it past the group's."""
    world = GroupWorld()
    world.join_directly("o")
    joined = world.join_directly("a")
    world.leave("o")
    zombie = world.beat("a", joined.member_epoch).member_epoch
    assert zombie > joined.member_epoch
    world.leave("a")
    assert world.join_directly("a").member_epoch > zombie


def test_a_claim_to_what_is_not_owned_is_revoked_before_anything_is_granted() -> None:
    world = GroupWorld(partitions=2)
    world.join_directly("o")
    joined = world.join_directly("a")
    world.leave("o")
    for owned in ((1,), (0, 1)):
        found = world.beat("a", joined.member_epoch, *owned)
        assert (numbers(found), revoked(found)) == ([], list(owned))
    assert numbers(world.beat("a", joined.member_epoch)) == [0, 1]


def test_a_partition_that_was_taken_late_starts_from_its_commit() -> None:
    """Invariant G14: a paused member delays nobody longer than its rebalance time-out."""
    world = GroupWorld(partitions=2)
    a = world.join_directly("a", timeout_ms=5_000)
    b = world.join_directly("b")
    world.pass_time(5_001)
    assert len(numbers(world.beat("b", b.member_epoch))) == 1
    mine = next(iter(world.owned("b")))
    found = world.beat("a", a.member_epoch, 0, 1)
    assert revoked(found) == [mine]
    with refused(ErrorCode.ILLEGAL_STATE):
        world.commit_group(mine, 9, "a", found.member_epoch, HIGH)
    assert world.committed(mine) is None


def test_the_session_counts_from_a_heartbeats_arrival() -> None:
    world = GroupWorld()
    joined = world.join_directly("a", STATIC)
    world.pass_time(9_000)
    world.beat("a", joined.member_epoch, 0, 1, 2, 3)
    assert world.pass_time(9_000) == []
    assert world.pass_time(1_001) == [world.key("a")]
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        world.beat("a", joined.member_epoch, 0, 1, 2, 3)


@pytest.mark.parametrize("name", ["a", "a2"])
def test_invariant_g12_a_static_member_comes_back_without_a_rebalance(name: str) -> None:
    world = GroupWorld()
    a, b = world.join_directly("a", STATIC), world.join_directly("b")
    keeps = numbers(world.beat("a", a.member_epoch, 0, 1, 2, 3))
    a = world.beat("a", a.member_epoch, *keeps)
    b = world.beat("b", b.member_epoch)
    world.leave("a", keep_seat=True)
    group_epoch = world.group.epoch
    back = world.join_directly(name, STATIC)
    assert (numbers(back), back.group_epoch) == (keeps, group_epoch)
    assert back.member_epoch > a.member_epoch
    assert world.beat("b", b.member_epoch, *numbers(b)).group_epoch == group_epoch


def test_invariant_g12_of_two_members_with_one_static_id_the_older_is_fenced() -> None:
    world = GroupWorld()
    older = world.join_directly("a", STATIC)
    world.join_directly("b", STATIC)
    for call in (
        lambda: world.beat("a", older.member_epoch, 0, 1, 2, 3),
        lambda: world.commit_group(0, 1, "a", older.member_epoch, HIGH),
        lambda: world.leave("a", keep_seat=True),
        lambda: world.join_directly("a", STATIC),
    ):
        with refused(ErrorCode.FENCED_INSTANCE_ID):
            call()
    assert world.owned("b") == {0, 1, 2, 3}


@pytest.mark.parametrize("first", ["direct", "instance"])
def test_a_static_id_has_one_seat_for_both_kinds(first: str) -> None:
    world = GroupWorld()
    if first == "direct":
        older = world.join_directly("a", STATIC)
        world.join("b", STATIC)
        with refused(ErrorCode.FENCED_INSTANCE_ID):
            world.beat("a", older.member_epoch)
    else:
        world.join("a", STATIC)
        assert numbers(world.join_directly("b", STATIC)) == [0, 1, 2, 3]
        with refused(ErrorCode.FENCED_INSTANCE_ID):
            world.call("a")
    assert world.owned("b") == {0, 1, 2, 3}


def test_a_seat_may_be_taken_with_another_subscription() -> None:
    world = GroupWorld()
    world.topics |= {place(0, "u").topic: facts(2, "B")}
    world.join_directly("a", STATIC)
    world.leave("a", keep_seat=True)
    back = world.join_directly("a", STATIC, "u")
    assert (numbers(back), revoked(back)) == ([], [0, 1, 2, 3])
    assert {one.topic for one in world.beat("a", back.member_epoch).assignment} == {"u"}


def test_a_heartbeat_changes_the_subscription_under_a_new_epoch() -> None:
    world = GroupWorld(partitions=2, start=5)
    world.topics |= {place(0, "u").topic: facts(1, "B")}
    joined = world.join_directly("a")
    found = world.beat("a", joined.member_epoch, 0, 1, topics=("u",))
    assert found.member_epoch > joined.member_epoch
    assert [one.topic for one in found.revoked] == ["t", "t"]
    done = world.beat("a", found.member_epoch, topics=("u",))
    assert [(one.topic, one.offset) for one in done.assignment] == [("u", 5)]
    late = world.beat("a", found.member_epoch, topics=("t",))  # it was sent before that answer
    assert late == done


def test_rule_g4_a_member_commits_what_it_owns_up_to_the_high_watermark() -> None:
    world = GroupWorld(partitions=2)
    joined = world.join_directly("a")
    epoch = joined.member_epoch
    with refused(ErrorCode.ILLEGAL_STATE):
        world.commit_group(0, HIGH + 1, "a", epoch, HIGH)
    world.commit_group(0, 60, "a", epoch, HIGH)
    world.commit_group(0, HIGH, "a", epoch)  # the high watermark seen is good for all below it
    world.commit_group(0, 70, "a", epoch)
    assert world.committed(0) == HIGH, "a late commit moves nothing back"
    with refused(ErrorCode.ILLEGAL_STATE):
        world.commit_group(1, 1, "a", epoch)
    with refused(ErrorCode.UNKNOWN_MEMBER_ID):
        world.commit_group(0, 1, "b", epoch, HIGH)
    with refused(ErrorCode.FENCED_MEMBER_EPOCH):
        world.commit_group(0, 1, "a", epoch + 1, HIGH)
    found = world.beat("a", epoch, 0, 1).assignment[0]
    assert (found.offset, found.is_committed) == (HIGH, True)


def test_rule_g4_a_commit_of_a_newer_epoch_goes_back_behind_a_cut() -> None:
    """At 100 in epoch 2; the log is cut to 80 and grows again in epoch 5."""
    world = GroupWorld(partitions=1)
    epoch = world.join_directly("a").member_epoch
    world.commit_group(0, 100, "a", epoch, HIGH, leader_epoch=2)
    world.commit_group(0, 85, "a", epoch, HIGH, leader_epoch=2)
    assert world.committed(0) == 100, "a late commit of the same log"
    world.commit_group(0, 85, "a", epoch, HIGH)
    assert world.committed(0) == 100, "its log is not known"
    world.commit_group(0, 85, "a", epoch, HIGH, leader_epoch=5)
    assert world.committed(0) == 85
    world.commit_group(0, 84, "a", epoch, HIGH, leader_epoch=5)
    assert world.committed(0) == 85


def test_an_instance_and_a_member_of_one_name_are_not_mixed_up() -> None:
    world = GroupWorld()
    world.join("i", BY_HAND)
    joined = world.join_directly("d")
    with refused(ErrorCode.ILLEGAL_STATE):
        world.beat("i", joined.member_epoch)
    for call in (lambda: world.call("d"), lambda: world.read("d"), lambda: world.delete("d")):
        with refused(ErrorCode.ILLEGAL_STATE):
            call()
    with refused(ErrorCode.ILLEGAL_STATE):
        instances.acknowledge_answer(world.state, world.key("d"), "0")
    with refused(ErrorCode.INSTANCE_ALREADY_EXISTS):
        world.join_directly("i")
    with refused(ErrorCode.INSTANCE_ALREADY_EXISTS):
        world.create("d", BY_HAND)


def test_rule_g2_a_start_is_resolved_once_and_survives_the_coordinator() -> None:
    world = GroupWorld(partitions=1, start=5)
    world.join_directly("a")
    world.start = 9
    world.fail_over()
    world.leave("a")
    assert world.join_directly("b").assignment[0].offset == 5


def test_a_topic_that_is_made_anew_is_granted_under_a_newer_epoch() -> None:
    world = GroupWorld(partitions=2)
    joined = world.join_directly("a")
    world.commit_group(0, 50, "a", joined.member_epoch, HIGH)
    world.topics = {T: facts(2, "B")}
    drop_deleted_topics(world.state, world.group, world.topics)
    retarget(world.state, world.group, world.topics)
    world.write()
    with refused(ErrorCode.ILLEGAL_STATE):
        world.commit_group(0, 60, "a", joined.member_epoch, HIGH)
    assert revoked(world.beat("a", joined.member_epoch, 0, 1)) == [0, 1]
    found = world.beat("a", joined.member_epoch)
    assert {(one.offset, one.topic_id[0]) for one in found.assignment} == {(0, "B")}
    with refused(ErrorCode.FENCED_MEMBER_EPOCH):
        world.commit_group(0, 60, "a", joined.member_epoch, HIGH)


def test_invariant_g5_a_stable_group_has_every_member_at_its_epoch() -> None:
    world = GroupWorld()
    a = world.join_directly("a")
    b = world.join_directly("b")
    assert state_of(world) is GroupState.RECONCILING
    keeps = numbers(world.beat("a", a.member_epoch, 0, 1, 2, 3))
    a = world.beat("a", a.member_epoch, *keeps)
    assert state_of(world) is GroupState.RECONCILING
    b = world.beat("b", b.member_epoch)
    assert state_of(world) is GroupState.STABLE
    world.topics |= {place(0, "u").topic: facts(1, "B")}
    world.join_directly("c", BY_HAND, "u")
    assert state_of(world) is GroupState.RECONCILING, "a and b do not know the group's epoch yet"
    world.beat("a", a.member_epoch, *keeps)
    world.beat("b", b.member_epoch, *numbers(b))
    assert state_of(world) is GroupState.STABLE


def test_a_member_that_has_read_everything_causes_no_rebalance() -> None:
    world = GroupWorld(partitions=2)
    a = world.join_directly("a")
    world.join("v2", BY_HAND)
    keeps = numbers(world.beat("a", a.member_epoch, 0, 1))
    a = world.beat("a", a.member_epoch, *keeps)
    written, epoch = len(world.log), world.group.epoch
    for _ in range(20):
        assert world.pass_time(10_000) == []
        assert world.beat("a", a.member_epoch, *keeps) == a
        world.call("v2")
    assert (len(world.log), world.group.epoch) == (written, epoch)


def test_without_a_reset_policy_a_start_is_not_made_up() -> None:
    world = GroupWorld(partitions=1)
    none = replace(BY_HAND, auto_offset_reset=OffsetReset.NONE)
    assert world.join_directly("a", none).assignment[0].offset is None


def test_targets_of_a_large_group_wait_for_their_computation() -> None:
    world = GroupWorld(partitions=TARGETS_INLINE_MAX)
    joined = world.join_directly("a")
    assert (numbers(joined), state_of(world)) == ([], GroupState.RECONCILING)
    assert world.state.awaiting_targets == {G}
    taken = target_input(world.state, world.group, world.topics)
    assert taken.members == {InstanceId("a"): AssignmentMember(frozenset({T}))}
    assert taken == target_input(world.state, world.group, world.topics)
    world.join_directly("b")
    assert taken != target_input(world.state, world.group, world.topics)
