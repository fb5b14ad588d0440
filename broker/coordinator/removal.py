"""Removal of groups and committed offsets, by request and by age. Pure.

The `GroupCoordinator` calls these functions as decisions of a shard; `expire` runs with its ticks.
An offset expires as in Kafka (KIP-211): the retention time after the later of its commit and the
moment at which its group lost its last instance; in a group with instances only offsets of topics
that no instance reads expire, that long after their commit. A group without instances, offsets and
starts is removed with its last offset. Nothing expires while this broker's clock is not trusted
(rule R10), and an offset that was committed in such a time counts from when it is next looked at.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from broker.coordinator.group_state import EVERY_GROUP, Group, GroupsState, Topics
from broker.coordinator.rebalance import subscribed_topics
from broker.coordinator.records import (
    GroupKey,
    GroupValue,
    OffsetKey,
    ShardRecord,
    SkipKey,
    StartKey,
)
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import GroupId, PartitionId, TopicName, TopicPartition

NAMED_MAX = 10
"""Most instances that a refusal names."""
GROUPS_PER_TICK = 500
"""Most groups that one tick looks through for expired offsets."""


# groups and offsets


def find_group(state: GroupsState, name: GroupId) -> Group:
    """Return a group that has instances or offsets; raise GROUP_ID_NOT_FOUND if it has none."""
    group = state.groups.get(name)
    if group is None or not group.exists:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {name} cannot be found.")
    return group


def delete_group(state: GroupsState, name: GroupId) -> None:
    """Delete a group with its offsets; raise ILLEGAL_STATE if it has live instances."""
    group = find_group(state, name)
    if group.instances:
        names = sorted(group.instances)
        more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
        text = f"group {name} has live members: {', '.join(names[:NAMED_MAX])}{more}"
        raise KafkaError(ErrorCode.ILLEGAL_STATE, f"{text}; close or evict them first")
    forget_groups(state, [group])


def delete_offsets(
    state: GroupsState,
    name: GroupId,
    topic: TopicName | None,
    partition: PartitionId | None,
    topics: Topics,
) -> None:
    """Delete committed offsets and starts: of one partition, of a topic, or all of the group.

    Raises ILLEGAL_STATE if a live instance reads one of their topics.
    """
    group = find_group(state, name)
    wanted = [
        place
        for place in sorted(group.offsets.keys() | group.starts.keys() | group.skips.keys())
        if topic in {None, place.topic} and partition in {None, place.partition}
    ]
    used = sorted(topics_in_use(group, topics) & ({topic} if topic else {p.topic for p in wanted}))
    if used:
        text = f"group {name} has live members that read topic {used[0]}: close or evict them first"
        raise KafkaError(ErrorCode.ILLEGAL_STATE, text)
    _drop(state, group, wanted)


def topics_in_use(group: Group, topics: Topics) -> frozenset[TopicName]:
    """Return the topics that live instances of a group subscribe to, or are assigned by hand."""
    used: set[TopicName] = set()
    for one in group.instances.values():
        used |= subscribed_topics(one, topics)
        used |= {partition.topic for partition in one.assignment}
    return frozenset(used)


def forget_groups(state: GroupsState, groups: Iterable[Group]) -> None:
    """Remove groups without instances, and keep their epochs for later groups of their names.

    A record for each key: compaction must leave nothing of them in the log.
    """
    groups = list(groups)
    if not groups:
        return
    forgotten = max(state.forgotten_epoch, *(group.epoch for group in groups))
    if forgotten > state.forgotten_epoch:
        state.apply(ShardRecord(EVERY_GROUP, GroupValue(forgotten)))
    for group in groups:
        places = group.offsets.keys() | group.starts.keys() | group.skips.keys()
        _drop(state, group, sorted(places))
        state.apply(ShardRecord(GroupKey(group.name), None))


def _drop(state: GroupsState, group: Group, places: Iterable[TopicPartition]) -> None:
    """Drop all that is recorded of these partitions.

    What is left after a part of the records is a smaller group.
    """
    for place in places:
        if place in group.offsets:
            state.apply(ShardRecord(OffsetKey(group.name, *place), None))
        if place in group.starts:
            state.apply(ShardRecord(StartKey(group.name, *place), None))
        if place in group.skips:
            state.apply(ShardRecord(SkipKey(group.name, *place), None))


# retention


def expire(state: GroupsState, topics: Topics, retention_ms: int) -> list[GroupId]:
    """Drop expired offsets of the next `GROUPS_PER_TICK` groups to check; return removed groups.

    ``state.to_check`` holds the groups that are still to be checked in this round.
    """
    now_ms = state.trusted_ms
    if now_ms is None:
        return []
    removed: list[Group] = []
    for _ in range(min(GROUPS_PER_TICK, len(state.to_check))):
        group = state.groups.get(state.to_check.pop())
        if group is not None and _expire_in(state, group, topics, now_ms, retention_ms):
            removed.append(group)
    forget_groups(state, removed)
    return [group.name for group in removed]


def _expire_in(
    state: GroupsState, group: Group, topics: Topics, now_ms: int, retention_ms: int
) -> bool:
    """Drop the expired offsets of one group; return True if nothing is left of it."""
    used = topics_in_use(group, topics)
    if not group.instances and group.has_record and group.empty_since_ms is None:
        dated = GroupValue(group.epoch, group.default_assignor, empty_since_ms=now_ms)
        state.apply(ShardRecord(GroupKey(group.name), dated))
    since_ms = 0 if group.instances else (group.empty_since_ms or 0)
    late: list[TopicPartition] = []
    for place, value in sorted(group.offsets.items(), key=lambda item: item[0]):
        if place.topic in used:
            continue
        if value.committed_ms is None:
            seen = replace(value, committed_ms=now_ms)
            state.apply(ShardRecord(OffsetKey(group.name, *place), seen))
        elif now_ms - max(value.committed_ms, since_ms) > retention_ms:
            late.append(place)
    if group.instances:
        _drop_offsets(state, group, late)
        return False
    if len(late) < len(group.offsets):
        _drop_offsets(state, group, late)
        return False
    if group.offsets:
        return True
    return bool(group.starts) and now_ms - since_ms > retention_ms


def _drop_offsets(state: GroupsState, group: Group, places: Iterable[TopicPartition]) -> None:
    for place in places:
        state.apply(ShardRecord(OffsetKey(group.name, *place), None))
        if place in group.skips:
            state.apply(ShardRecord(SkipKey(group.name, *place), None))
