"""Static members (KIP-345): a seat outlives its client, and only one client has it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from broker.coordinator import instances, membership
from broker.coordinator.records import MemberKey, MemberValue, Seat
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import InstanceId
from tests.support.group_epochs import no_epoch_is_given_again
from tests.support.group_world import BY_HAND, EARLIEST, G, GroupWorld

STATIC = replace(BY_HAND, static_id="s1", session_timeout_ms=10_000)


def two_members() -> GroupWorld:
    world = GroupWorld(partitions=4)
    world.join("a", STATIC)
    world.join("b", BY_HAND)
    world.call("a")
    world.call("b")
    return world


def epochs_of(world: GroupWorld, name: str) -> list[int]:
    """All epochs that the name had, in the order of the log."""
    found = [entry.value for entry in world.log if entry.key == MemberKey(G, InstanceId(name))]
    return [value.epoch for value in found if isinstance(value, MemberValue)]


def epochs(world: GroupWorld) -> tuple[int, int]:
    return world.group.epoch, world.instance("b").member_epoch


@pytest.mark.parametrize("name", ["a", "a2"])
@pytest.mark.parametrize("fails_over", [False, True])
def test_a_static_member_that_comes_back_owns_the_same_without_a_rebalance(
    name: str, fails_over: bool
) -> None:
    world = two_members()
    owned, epoch, before = world.owned("a"), world.instance("a").member_epoch, epochs(world)
    assert len(owned) == 2
    world.delete("a")
    if fails_over:
        world.fail_over()
    world.pass_time(9_000)
    world.create(name, STATIC)
    assert world.owned(name) == owned
    assert world.instance(name).member_epoch > epoch
    world.subscribe(name)
    world.call("b")
    assert epochs(world) == before
    assert world.owned(name) == owned


def test_a_seat_is_given_up_after_the_session() -> None:
    world = two_members()
    world.delete("a")
    world.pass_time(10_001)
    world.call("b")
    assert world.owned("b") == {0, 1, 2, 3}


def test_a_static_member_that_leaves_gives_up_its_seat() -> None:
    world = two_members()
    instances.delete_instance(world.state, world.key("a"), world.topics, leave=True)
    world.call("b")
    assert world.owned("b") == {0, 1, 2, 3}


def test_an_older_client_with_the_same_static_id_is_fenced() -> None:
    world = two_members()
    owned = world.owned("a")
    world.read("a")
    world.create("a2", STATIC)
    for _ in range(2):
        with pytest.raises(KafkaError, match="newer consumer of group g"):
            world.commit("a", min(owned), 5)
        world.fail_over()
    with pytest.raises(KafkaError) as refusal:
        world.call("a")
    assert refusal.value.code is ErrorCode.FENCED_INSTANCE_ID
    assert world.owned("a2") == owned
    world.pass_time(10_001)
    assert [name for name in world.group.instances if name == "a"] == []


def test_a_closed_instance_can_not_be_called() -> None:
    world = two_members()
    world.delete("a")
    with pytest.raises(KafkaError) as refusal:
        world.call("a")
    assert refusal.value.code is ErrorCode.UNKNOWN_MEMBER_ID


def test_positions_of_the_older_client_are_not_taken_over() -> None:
    world = two_members()
    owned = min(world.owned("a"))
    world.read("a")
    world.commit("a", owned, 4)
    world.create("a2", STATIC)
    assert world.position("a2", owned) == 4


def test_a_vacant_seat_can_be_evicted() -> None:
    world = two_members()
    world.delete("a")
    membership.evict(world.state, world.key("a"), world.topics)
    world.call("b")
    assert world.owned("b") == {0, 1, 2, 3}


def test_a_name_in_use_is_refused_even_with_a_static_id() -> None:
    world = two_members()
    with pytest.raises(KafkaError) as refusal:
        world.create("b", STATIC)
    assert refusal.value.code is ErrorCode.INSTANCE_ALREADY_EXISTS
    world.create("c", replace(EARLIEST, static_id="s2"))


@pytest.mark.parametrize("name", ["a", "a2"])
@pytest.mark.parametrize("has_closed", [False, True])
def test_invariant_g3_a_seat_that_is_taken_in_part_loses_no_member_epoch(
    name: str, *, has_closed: bool
) -> None:
    """A large append may survive in part. The holder's epoch was in none of the records left."""
    world = two_members()
    for number in range(3):  # so that the member is far ahead of its group
        world.join_directly("a", STATIC, timeout_ms=10_000 + number)
    if has_closed:
        world.leave("a", keep_seat=True)
    epoch, before = world.instance("a").member_epoch, len(world.log)
    assert epoch > world.group.epoch + 1
    world.join_directly(name, STATIC, timeout_ms=40_000)
    for length in range(before, len(world.log) + 1):
        part = GroupWorld(partitions=4)
        part.log = world.log[:length]
        part.fail_over()
        owned = [one for member in part.group.members.values() for one in member.owned]
        assert len(owned) == len(set(owned)), "two owners"
        seats = [one for one in part.group.instances.values() if one.value.seat is not Seat.LOST]
        holders = [one for one in seats if one.value.settings.static_id == STATIC.static_id]
        assert len(holders) <= 1, "two seats"
        no_epoch_is_given_again(part)


def test_invariant_g3_a_name_that_takes_a_seat_has_no_epoch_again_that_it_had_before() -> None:
    """The holder had not followed its group; a late commit of the first "c" was good again."""
    world = GroupWorld(partitions=4)
    holder = world.join_directly("a", STATIC)
    for name in ("b", "c"):
        given = world.join_directly(name).member_epoch
    world.leave("c")
    assert holder.member_epoch + 1 < given
    taken = world.join_directly("c", STATIC)
    assert taken.member_epoch > given
    assert epochs_of(world, "c") == [given, taken.member_epoch]


def test_no_member_epoch_goes_back() -> None:
    world = two_members()
    seen = 0
    for number in range(3):
        world.create(f"x{number}", STATIC)
        assert world.instance(f"x{number}").member_epoch > seen
        seen = world.instance(f"x{number}").member_epoch
    world.join("c", BY_HAND)
    for name in ("b", "x2", "c", "b", "x2"):
        world.call(name)
    assert world.group.epoch > seen
    assert world.instance("x2").member_epoch >= seen
