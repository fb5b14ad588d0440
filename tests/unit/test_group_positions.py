"""Positions of an instance, and lags of partitions that nothing was committed for."""

from __future__ import annotations

from broker.coordinator.group_coordinator import group_offsets, positions
from broker.coordinator.group_messages import GroupOffsets
from tests.support.group_world import BY_HAND, G, GroupWorld


def places(world: GroupWorld) -> list[tuple[int, int]]:
    found = positions(world.state, world.key("a"), world.topics)
    return [(one.partition, one.offset) for one in found]


def rows(world: GroupWorld, *, with_starts: bool) -> list[tuple[int, int, bool]]:
    request = GroupOffsets(group=G, with_starts=with_starts)
    found = group_offsets(world.state, request, world.topics)
    return [(one.partition, one.offset, one.is_committed) for one in found]


def test_positions_are_behind_what_was_delivered_or_where_the_group_goes_on() -> None:
    world = GroupWorld(partitions=2, start=4)
    world.join("a", BY_HAND)
    assert places(world) == [(0, 4), (1, 4)]
    world.read("a", 10, 0)
    assert places(world) == [(0, 14), (1, 4)]
    world.seek("a", 1, 2)
    assert places(world) == [(0, 14), (1, 2)]
    world.fail_over()
    assert places(world) == [(0, 4), (1, 2)]


def test_lags_show_partitions_that_are_owned_and_never_committed() -> None:
    world = GroupWorld(partitions=2, start=4)
    world.join("a", BY_HAND)
    assert rows(world, with_starts=False) == []
    assert rows(world, with_starts=True) == [(0, 4, False), (1, 4, False)]
    world.read("a", 10, 0)
    world.commit_all("a")
    assert rows(world, with_starts=True) == [(0, 14, True), (1, 4, False)]
    world.delete("a")
    assert rows(world, with_starts=True) == [(0, 14, True)]
