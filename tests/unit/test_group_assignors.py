"""The assignor of a group: who chooses it, when it changes, and racks from the image."""

from __future__ import annotations

from dataclasses import replace

from broker.coordinator.assignors import RANGE, UNIFORM
from broker.coordinator.group_state import GroupEnvironment
from raft_metadata.common.ids import TopicName
from tests.support.group_world import EARLIEST, GroupWorld, facts

WISHES_RANGE = replace(EARLIEST, assignors=(RANGE,))


def test_the_cluster_default_counts_where_no_member_names_an_assignor() -> None:
    world = GroupWorld()
    world.state.environment.default_assignor = RANGE
    world.join("a")
    assert world.group.assignor == RANGE


def test_a_group_with_members_keeps_its_default_until_it_is_empty() -> None:
    world = GroupWorld()
    world.join("a")
    world.state.environment.default_assignor = RANGE
    world.join("b")
    assert world.group.assignor == UNIFORM
    world.fail_over()
    assert world.group.assignor == UNIFORM
    world.delete("a")
    world.delete("b")
    world.state.environment.default_assignor = RANGE
    world.join("c")
    assert world.group.assignor == RANGE


def test_the_assignor_that_most_members_name_is_used() -> None:
    world = GroupWorld()
    world.topics = {TopicName(name): facts(1, name) for name in ("t", "u", "v")}
    world.create("a", WISHES_RANGE)
    world.create("b", EARLIEST)
    for name in ("a", "b"):
        world.subscribe(name, "t", "u", "v")
    assert world.group.assignor == RANGE
    world.read("a")
    world.call("a")
    assert [len(world.instance(name).assignment) for name in ("a", "b")] == [3, 0]


def test_partitions_go_to_members_in_a_rack_of_a_replica() -> None:
    world = GroupWorld()
    racks = [frozenset({"x"}), frozenset({"y"}), frozenset({"x"}), frozenset({"y"})]
    world.state.environment = GroupEnvironment(racks=lambda _: racks)
    world.create("a", replace(EARLIEST, rack="x"))
    world.create("b", replace(EARLIEST, rack="y"))
    world.subscribe("a")
    world.subscribe("b")
    assert (world.owned("a"), world.owned("b")) == ({0, 2}, {1, 3})
