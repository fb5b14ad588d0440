"""The end of an instance, and the seat that a static member keeps. Pure.

`instances` and the `GroupCoordinator` call these functions as part of their decisions. An instance
that closes or expires is removed, with everything that it owns. A static member, which has a
``group.instance.id``, keeps its seat when it closes: the instance stays a member with its
partitions, but no call reaches it, until its session ends or a new instance with the same static id
takes the seat, under any name. The new instance gets subscription, target and partitions at once,
with a higher member epoch and without a new group epoch, so no other member notices (KIP-345). An
older instance that is still alive is fenced: each of its calls is refused, until its session ends.
"""

from __future__ import annotations

from dataclasses import replace

from broker.coordinator.group_state import Group, GroupsState, Instance, Topics
from broker.coordinator.rebalance import forget_all, note_revocation, reconcile, retarget
from broker.coordinator.records import (
    GroupKey,
    GroupValue,
    InstanceKey,
    InstanceValue,
    MemberKey,
    MemberValue,
    Seat,
    ShardRecord,
)
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import GroupId, InstanceId


def seat_holder(group: Group | None, static_id: str | None) -> Instance | None:
    """Return the instance that has the seat of a static id, or None."""
    if group is None or static_id is None:
        return None
    for one in group.instances.values():
        if one.value.settings.static_id == static_id and one.value.seat is not Seat.LOST:
            return one
    return None


def vacate_seat(state: GroupsState, group: Group, instance: Instance) -> None:
    """Close a static member: it keeps its partitions, and gives up its positions and seeks."""
    forget_all(state, group, instance)
    key = InstanceKey(group.name, instance.name)
    state.sessions[key].heard_ms = state.judge_ms
    state.apply(ShardRecord(key, replace(instance.value, seat=Seat.VACANT)))


def take_seat(
    state: GroupsState, group: Group, holder: Instance, name: InstanceId, value: InstanceValue
) -> None:
    """Replace the holder of a seat by a new instance, which owns the same at once.

    What shrinks is recorded first: after a part of these records the partitions have no owner, and
    the next comparison of topics assigns them again. The record with the holder's member epoch goes
    last, when a higher one is recorded: an epoch that no record holds would be given again.
    """
    old, member = holder.value, holder.member
    owned = holder.owned
    forget_all(state, group, holder)
    old_key, new_key = InstanceKey(group.name, holder.name), InstanceKey(group.name, name)
    old_member, new_member = MemberKey(group.name, holder.name), MemberKey(group.name, name)
    is_renamed = holder.name != name
    if is_renamed:
        if member is not None:
            state.apply(ShardRecord(old_member, replace(member, target={}, owned={})))
        lost = replace(old, seat=Seat.LOST, topics=None, pattern=None, manual=None)
        state.apply(ShardRecord(old_key, lost))
    taken = replace(value, topics=old.topics, pattern=old.pattern, manual=old.manual)
    state.apply(ShardRecord(new_key, taken))
    if member is not None:
        # The name may have been a member's before: none has an epoch above its group's at its end.
        least = max(member.epoch, group.epoch) if is_renamed else member.epoch
        kept = MemberValue(least + 1, member.target, member.owned)
        state.apply(ShardRecord(new_member, kept))
    if is_renamed:
        if member is not None:
            state.apply(ShardRecord(old_member, None))
        if old.seat is Seat.VACANT:
            state.apply(ShardRecord(old_key, None))
    else:
        state.begin_session(new_key)
    seated = group.instances[name]
    assert seated.owned == owned, "a seat keeps its partitions"
    note_revocation(state, group, seated)  # what the holder was to give up, too


def remove_instance(state: GroupsState, group: Group, name: InstanceId) -> None:
    """Remove an instance and free its partitions; the caller assigns them to other members."""
    instance = group.instances[name]
    forget_all(state, group, instance)
    if instance.member_epoch > group.epoch:  # no later member of its name has its epochs again
        raised = GroupValue(instance.member_epoch, group.default_assignor)
        state.apply(ShardRecord(GroupKey(group.name), raised))
    if instance.member is not None:
        state.apply(ShardRecord(MemberKey(group.name, name), None))
    state.apply(ShardRecord(InstanceKey(group.name, name), None))
    if not group.instances:
        empty = GroupValue(group.epoch, group.default_assignor, empty_since_ms=state.trusted_ms)
        state.apply(ShardRecord(GroupKey(group.name), empty))


def evict(
    state: GroupsState,
    key: InstanceKey,
    topics: Topics,
    *,
    keep_seat: bool = False,
) -> None:
    """Remove an instance, or a kept seat, without a commit: the rest is delivered again.

    ``keep_seat``: the call of a static member that will come back, so its seat stays.

    Raises:
        KafkaError: UNKNOWN_MEMBER_ID if there is none; with ``keep_seat`` as `GroupsState.find`.
    """
    group = state.groups.get(key.group)
    if group is None or key.instance not in group.instances:
        text = f"Consumer instance {key.instance} of group {key.group} not found."
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, text)
    if keep_seat:
        _, instance, _ = state.find(key)
        if instance.value.settings.static_id is not None:
            vacate_seat(state, group, instance)
            reconcile(state, group, topics)
            return
    remove_instance(state, group, key.instance)
    retarget(state, group, topics)


def static_member(state: GroupsState, group_id: GroupId, static_id: str) -> InstanceId:
    """Return the name of the instance that has a static id; raise UNKNOWN_MEMBER_ID if none."""
    holder = seat_holder(state.groups.get(group_id), static_id)
    if holder is None:
        text = f"group {group_id} has no member with group.instance.id {static_id!r}"
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, text)
    return holder.name
