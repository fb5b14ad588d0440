"""Records that this broker can't decode: what they hold, and the way on without them. Pure.

A record of an unknown kind or shape, with a sound checksum, was written by another version or by a
defect. Its fact is lost to this broker, so the shard that loads it must not go on as if it were not
there; but it stops as little as possible:

- Its key names a group: that group is *held* (`hold_groups`). It leaves the state as it was folded,
  so nothing changes it: no session ends, no offset expires, no rebalance. Its calls are refused
  with GROUP_HELD until an operator has it `repair`-ed.
- Its key names no group of this partition: the record is left out. It may have changed who owns
  what, so each group with instances starts with no owner and a higher epoch (`forget_owners`).

As in a compacted log, only the newest record of a key counts: one that can be decoded, or a null,
replaces an undecodable one before it. So the same log means the same before and after compaction.
A repair writes the new epoch first and a record for each of these keys last, because a large append
may survive in part: the group is held until ownership is surely gone, and no epoch is given again.
The last ones are the facts that hold without the lost ones, so that the next load, and compaction,
lead to the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from broker.coordinator.group_messages import ForgottenRecord, GroupOffset, GroupRepaired
from broker.coordinator.group_state import Group, GroupsState, HeldGroup, Topics
from broker.coordinator.membership import remove_instance
from broker.coordinator.rebalance import drop_deleted_topics
from broker.coordinator.records import (
    GroupKey,
    GroupValue,
    InstanceKey,
    Key,
    LeftOutKey,
    LeftOutValue,
    MemberKey,
    MemberValue,
    OffsetKey,
    SeekKey,
    ShardRecord,
    SkipKey,
    StartKey,
    StartValue,
    UndecodableRecord,
    Value,
    encode_key,
)
from broker.coordinator.removal import find_group
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import GroupId, PartitionId, TopicPartition

KEY_SHOWN_BYTES_MAX = 200
"""Most bytes of an undecodable record's key that an answer or a log line shows."""


def hold_groups(
    state: GroupsState, found: Iterable[UndecodableRecord], is_here: Callable[[GroupId], bool]
) -> list[UndecodableRecord]:
    """Move the groups that undecodable records name out of the state; return the other records.

    ``is_here``: True for a group that this partition coordinates. Another name is not answered
    here, so no operator could repair it: its record counts as one without a group.
    """
    unnamed = []
    for record in found:
        name = record.key.group
        if not name or not is_here(name):
            unnamed.append(record)
            continue
        if name not in state.held:
            group = state.groups.pop(name, None)
            if group is None:
                group = Group(name, epoch=state.forgotten_epoch)
            state.groups_in_use -= bool(group.instances)
            keys = [InstanceKey(name, instance) for instance in group.instances]
            sessions = {key: state.sessions.pop(key) for key in keys}
            state.held[name] = HeldGroup(group, sessions, [])
        state.held[name].records.append(record)
    return unnamed


def check_not_held(state: GroupsState, name: GroupId, partition: PartitionId) -> None:
    """Raise GROUP_HELD for a group that is held, with the record and the way out."""
    held = state.held.get(name)
    if held is None:
        return
    first = held.records[0]
    more = f" and {len(held.records) - 1} more" if len(held.records) > 1 else ""
    text = (
        f"group {name} is held: this broker can't decode the record at offset {first.offset}{more} "
        f"of partition {partition} of __consumer_offsets ({first.reason}); "
        f"`quorumlog group repair {name} --dry-run` shows how it goes on without"
    )
    raise KafkaError(ErrorCode.GROUP_HELD, text)


# going on


def forget_owners(
    state: GroupsState, unnamed: Iterable[UndecodableRecord]
) -> list[UndecodableRecord]:
    """Leave out records that name no group; return those that no load left out before.

    Each group with instances begins a new epoch in which no partition has an owner; the next
    comparison of topics assigns them. It is above what a record that is left out may have held, for
    the reason in `_next_epoch`. The last record notes what is dealt with, so that the next load
    changes nothing.
    """
    known = -1 if state.left_out is None else state.left_out.offset
    news = [record for record in unnamed if record.offset > known]
    if not news:
        return []
    newest = max(record.offset for record in news)
    for group in list(state.groups.values()):
        if not group.instances:
            continue
        members = [one for one in group.instances.values() if one.member is not None]
        epoch = 1 + max([group.epoch, newest + 1, *(one.member_epoch for one in members)])
        # Before the members' records, which hold the epochs that it is to be above.
        state.apply(ShardRecord(GroupKey(group.name), GroupValue(epoch, group.default_assignor)))
        for one in members:
            for place in sorted(one.seeks.keys() & one.owned):
                state.apply(ShardRecord(SeekKey(group.name, one.name, *place), None))
            state.apply(ShardRecord(MemberKey(group.name, one.name), None))
    state.apply(ShardRecord(LeftOutKey(), LeftOutValue(newest, len(news), state.trusted_ms)))
    return news


def repaired(
    state: GroupsState, name: GroupId, partition: PartitionId, topics: Topics
) -> GroupRepaired:
    """Return how a held group goes on.

    Raises KafkaError: GROUP_ID_NOT_FOUND, or ILLEGAL_STATE if the group is not held.
    """
    held = state.held.get(name)
    if held is None:
        find_group(state, name)
        text = f"group {name} is not held: it needs no repair"
        raise KafkaError(ErrorCode.ILLEGAL_STATE, text)
    group = held.group
    return GroupRepaired(
        forgotten=tuple(
            ForgottenRecord(
                partition=partition,
                offset=record.offset,
                key=encode_key(record.key)[:KEY_SHOWN_BYTES_MAX].decode(errors="replace"),
                reason=record.reason,
            )
            for record in held.records
        ),
        members=tuple(sorted(group.instances)),
        offsets=tuple(
            GroupOffset(*place, found.offset, found.metadata)
            for place in sorted(group.offsets)
            if (found := group.committed(place, topics)) is not None
        ),
    )


def repair(
    state: GroupsState, name: GroupId, partition: PartitionId, topics: Topics
) -> GroupRepaired:
    """Let a held group go on without its undecodable records: offsets as they fold, no members.

    Returns what `repaired` returns. Members join anew, under a higher group epoch.
    """
    answer = repaired(state, name, partition, topics)
    held = state.held.pop(name)
    group = state.groups[name] = held.group
    state.groups_in_use += bool(group.instances)
    state.sessions.update(held.sessions)
    epoch = _next_epoch(state, held)
    empty = GroupValue(epoch, group.default_assignor, empty_since_ms=state.trusted_ms)
    # Before the members' records, which hold the epochs that it is to be above.
    state.apply(ShardRecord(GroupKey(name), empty))
    for instance in sorted(group.instances):
        remove_instance(state, group, instance)
    for key in [key for entries in group.orphans.values() for key in entries]:
        state.apply(ShardRecord(key, None))
    group.orphans.clear()
    drop_deleted_topics(state, group, topics)
    for record in held.records:
        _begin_where_nothing_is_skipped(state, group, record.key, topics)
    for record in held.records:
        state.apply(ShardRecord(record.key, _fact_without(group, record.key, empty)))
    return answer


def _fact_without(group: Group, key: Key, empty: GroupValue) -> Value | None:
    """Return the fact of a key in a repaired group; None if nothing is known of it."""
    match key:
        case GroupKey():
            return empty
        case OffsetKey():
            return group.offsets.get(TopicPartition(key.topic, key.partition))
        case StartKey():
            return group.starts.get(TopicPartition(key.topic, key.partition))
        case SkipKey():
            return group.skips.get(TopicPartition(key.topic, key.partition))
        case _:
            return None


def _next_epoch(state: GroupsState, held: HeldGroup) -> int:
    """Return an epoch above all that the group ever had.

    Each new epoch is one above an epoch in an earlier record of this partition, so a record at
    offset N holds none above N + 1: the bound if the record that can't be decoded is that of the
    group itself, or of a member, which may be ahead of its group.
    """
    group = held.group
    epochs = [group.epoch, *(one.member_epoch for one in group.instances.values())]
    if not group.has_record:
        epochs.append(state.forgotten_epoch)
    for entries in group.orphans.values():
        epochs += [
            one.value.epoch for one in entries.values() if isinstance(one.value, MemberValue)
        ]
    for record in held.records:
        if isinstance(record.key, GroupKey | MemberKey):
            epochs.append(record.offset + 1)
    return max(epochs) + 1


def _begin_where_nothing_is_skipped(
    state: GroupsState, group: Group, key: Key, topics: Topics
) -> None:
    """Start a partition at its beginning if its commit or start is lost with its record.

    Otherwise ``auto.offset.reset`` = latest would skip records there.
    """
    if not isinstance(key, OffsetKey | StartKey):
        return
    place = TopicPartition(key.topic, key.partition)
    if place in group.offsets or place in group.starts or key.topic not in topics:
        return
    value = StartValue(topics[key.topic].topic_id, 0)
    state.apply(ShardRecord(StartKey(group.name, *place), value))
