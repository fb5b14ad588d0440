"""Member epochs behind any prefix of a group's log: none goes back, and none is given again."""

from __future__ import annotations

from broker.coordinator.rebalance import retarget
from broker.coordinator.records import MemberKey, MemberValue
from raft_metadata.common.ids import InstanceId
from tests.support.group_world import G, GroupWorld


def no_epoch_is_given_again(world: GroupWorld) -> None:
    """Check invariant G3 on a world that was just loaded; every member leaves and joins again."""
    given: dict[InstanceId, int] = {}
    for entry in world.log:
        if isinstance(entry.key, MemberKey) and isinstance(entry.value, MemberValue):
            name = entry.key.instance
            given[name] = max(entry.value.epoch, given.get(name, -1))
    if not given:
        return
    retarget(world.state, world.group, world.topics)
    world.write()
    for name, epoch in given.items():
        group = world.state.groups.get(G)
        known = None if group is None else group.instances.get(name)
        if known is not None:
            assert known.member is None or known.member_epoch >= epoch, "G3: it went back"
            world.leave(name)
        assert world.join_directly(name).member_epoch > epoch, "G3: it is given again"
