"""Groups, instances and offsets as answers. Pure; reads state, changes none."""

from __future__ import annotations

from broker.coordinator.assignor import ASSIGNOR
from broker.coordinator.instances import topic_names
from broker.coordinator.records import InstanceKey
from broker.coordinator.requests import (
    GroupDescription,
    GroupOffset,
    GroupOffsetRow,
    GroupOffsets,
    GroupState,
    InstanceDescription,
    MemberDescription,
)
from broker.coordinator.state import Group, GroupsState, Instance, Topics
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import BrokerId, GroupId, TopicPartition


def describe_group(
    state: GroupsState, name: GroupId, coordinator: BrokerId, topics: Topics
) -> GroupDescription:
    """A group with everybody in it. GROUP_ID_NOT_FOUND where nothing is known of it."""
    group = state.groups.get(name)
    if group is None or not group.exists:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {name} cannot be found.")
    return GroupDescription(
        group=name,
        state=_state_of(group),
        assignor=ASSIGNOR,
        coordinator=coordinator,
        group_epoch=group.epoch,
        members=tuple(
            _describe_member(group.instances[instance], topics)
            for instance in sorted(group.instances)
        ),
    )


def _state_of(group: Group) -> GroupState:
    members = group.members
    if not members:
        return GroupState.EMPTY
    settled = all(one.owned == one.target for one in members.values())
    return GroupState.STABLE if settled else GroupState.RECONCILING


def _describe_member(instance: Instance, topics: Topics) -> MemberDescription:
    return MemberDescription(
        instance=instance.name,
        client_id=instance.value.client_id,
        assignment=tuple(sorted(instance.assignment)),
        is_manual=instance.value.manual is not None,
        member_epoch=instance.member_epoch,
        topics=topic_names(instance, topics),
        target=tuple(sorted(instance.target)),
    )


def describe_instance(state: GroupsState, key: InstanceKey, topics: Topics) -> InstanceDescription:
    """An instance. UNKNOWN_MEMBER_ID where there is none."""
    _, instance, _ = state.find(key)
    return InstanceDescription(
        settings=instance.value.settings,
        topics=topic_names(instance, topics),
        pattern=instance.value.pattern,
        assignment=tuple(sorted(instance.assignment)),
        is_manual=instance.value.manual is not None,
        member_epoch=instance.member_epoch,
    )


def committed_offsets(
    state: GroupsState,
    key: InstanceKey,
    partitions: tuple[TopicPartition, ...] | None,
    topics: Topics,
) -> tuple[GroupOffset, ...]:
    """Committed offsets of these partitions, or of what it owns; what has none is left out."""
    group, instance, _ = state.find(key)
    wanted = tuple(sorted(instance.assignment)) if partitions is None else partitions
    return tuple(
        GroupOffset(*partition, found.offset, found.metadata)
        for partition in wanted
        if (found := group.committed(partition, topics)) is not None
    )


def group_offsets(
    state: GroupsState, request: GroupOffsets, topics: Topics
) -> tuple[GroupOffsetRow, ...]:
    """Everything committed; the ends are put in by the door."""
    group = state.groups.get(request.group)
    if group is None:
        return ()
    return tuple(
        GroupOffsetRow(*partition, found.offset, found.metadata, None)
        for partition in sorted(group.offsets)
        if (found := group.committed(partition, topics)) is not None
        and (request.topics is None or partition.topic in request.topics)
    )
