"""Group epoch, target assignment, and how members come to own their targets. Pure (KIP-848).

A partition is revoked before it is assigned: its owner keeps it until nothing it delivered is
uncommitted, until the owner reads on, which says that it is done, or until a deadline has passed.
What is free is granted at once: the server reads for its members, so nobody needs to be told.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from broker.coordinator.assignor import assign_ranges
from broker.coordinator.commits import commit_delivered, has_uncommitted
from broker.coordinator.patterns import matched_topics
from broker.coordinator.records import (
    Entry,
    GroupKey,
    GroupValue,
    InstanceKey,
    MemberKey,
    MemberValue,
    OffsetKey,
    SeekKey,
    StartKey,
    StartValue,
    by_topic,
)
from broker.coordinator.requests import OffsetReset
from broker.coordinator.state import Group, GroupsState, Instance, Topics, is_present
from raft_metadata.common.ids import InstanceId, PartitionId, TopicName, TopicPartition


def subscribed_topics(instance: Instance, topics: Topics) -> frozenset[TopicName]:
    """What a member subscribes to, of the topics that exist."""
    if instance.value.pattern is not None:
        return matched_topics(instance.value.pattern, topics)
    return frozenset(instance.value.topics or ()) & topics.keys()


def partitions_in(names: Iterable[TopicName], topics: Topics) -> Iterable[TopicPartition]:
    """Every partition of these topics."""
    for name in names:
        for number in range(topics[name].partitions_count):
            yield TopicPartition(name, PartitionId(number))


def retarget(
    state: GroupsState,
    group: Group,
    topics: Topics,
    acknowledged: Set[InstanceId] = frozenset(),
) -> None:
    """A new target, under a new group epoch, if members or partitions are not what they were.

    A partition that appears while the group subscribes to its topic starts at 0 for it: whatever
    is in there was written after the subscription, so ``latest`` must not skip it (rule G2).
    """
    members = group.members
    subscriptions = {name: subscribed_topics(one, topics) for name, one in members.items()}
    wanted: set[TopicName] = set().union(*subscriptions.values())
    counts = {name: topics[name].partitions_count for name in wanted}
    targets = assign_ranges(subscriptions, counts)
    started: set[TopicName] = set()
    for name, one in members.items():
        if one.value.settings.auto_offset_reset is not OffsetReset.NONE:
            started |= subscriptions[name]
    for partition in partitions_in(sorted(started), topics):
        record_start(state, group, partition, 0, topics)
    changed = any(
        one.member is None or one.target != targets[name] for name, one in members.items()
    )
    if changed or any(one.member and not one.value.is_subscribed for one in _all(group)):
        state.apply(Entry(GroupKey(group.name), GroupValue(group.epoch + 1)))
        for one in _all(group):
            if one.member is not None and not one.value.is_subscribed:
                state.apply(Entry(MemberKey(group.name, one.name), None))
        for name, one in members.items():
            epoch = group.epoch if one.member is None else one.member.epoch
            _set_member(state, group, one, epoch, targets[name], one.owned)
    reconcile(state, group, topics, acknowledged)


def record_start(
    state: GroupsState, group: Group, partition: TopicPartition, offset: int, topics: Topics
) -> None:
    """A resolved start, unless the group has a place to start from already (rule G2)."""
    topic_id = topics[partition.topic].topic_id
    known = group.offsets.get(partition) or group.starts.get(partition)
    if known is None or not is_present(partition, known, topics):
        state.apply(Entry(StartKey(group.name, *partition), StartValue(topic_id, offset)))


def reconcile(
    state: GroupsState,
    group: Group,
    topics: Topics,
    acknowledged: Set[InstanceId] = frozenset(),
    overdue: Set[InstanceId] = frozenset(),
) -> None:
    """Let go what may be let go, then grant what is free.

    ``acknowledged``: members whose call says that they are done with what was delivered; with
    auto-commit that is committed first. ``overdue``: members whose deadline has passed: what they
    did not commit is delivered again, to the next owner.
    """
    members = group.members
    for name, one in members.items():
        extra = one.owned - one.target
        if not extra:
            continue
        key = InstanceKey(group.name, name)
        session = state.sessions[key]
        if name in acknowledged and one.value.settings.auto_commit:
            commit_delivered(state, key, topics, extra)
        kept = {
            partition
            for partition in extra
            if partition.topic in topics
            and name not in acknowledged
            and name not in overdue
            and has_uncommitted(group, session, partition, topics)
        }
        if kept != extra:
            _forget(state, group, one, extra - kept)
            owned = one.target & one.owned | kept
            _set_member(state, group, one, one.member_epoch, one.target, owned)
    taken = {partition for one in members.values() for partition in one.owned}
    for one in members.values():
        owned = one.owned | (one.target - taken)
        epoch = group.epoch if owned <= one.target else one.member_epoch
        _set_member(state, group, one, epoch, one.target, owned)
    _note_revocations(state, group)


def _note_revocations(state: GroupsState, group: Group) -> None:
    for name, one in group.members.items():
        session = state.sessions[InstanceKey(group.name, name)]
        if one.owned <= one.target:
            session.revoking_since_ms = None
        elif session.revoking_since_ms is None:
            session.revoking_since_ms = state.judge_ms


def _forget(
    state: GroupsState, group: Group, instance: Instance, partitions: Iterable[TopicPartition]
) -> None:
    """Positions and seeks are the owner's: the next one starts from the last commit."""
    session = state.sessions[InstanceKey(group.name, instance.name)]
    for partition in sorted(partitions):
        session.positions.pop(partition, None)
        if partition in instance.seeks:
            state.apply(Entry(SeekKey(group.name, instance.name, *partition), None))


def forget_all(state: GroupsState, group: Group, instance: Instance) -> None:
    """It gives up whatever it reads."""
    known = instance.assignment | instance.seeks.keys()
    _forget(state, group, instance, known)


def _set_member(
    state: GroupsState,
    group: Group,
    instance: Instance,
    epoch: int,
    target: frozenset[TopicPartition],
    owned: frozenset[TopicPartition],
) -> None:
    value = MemberValue(epoch, by_topic(target), by_topic(owned))
    if instance.member != value:
        state.apply(Entry(MemberKey(group.name, instance.name), value))


def drop_unused_starts(state: GroupsState, group: Group, topics: Topics) -> None:
    """Starts of what nobody reads any more: whoever comes later resolves anew."""
    used: set[TopicPartition] = set()
    for one in _all(group):
        used |= one.manual
        used.update(partitions_in(subscribed_topics(one, topics), topics))
    for partition in sorted(group.starts.keys() - used):
        state.apply(Entry(StartKey(group.name, *partition), None))


def is_concerned(group: Group, names: Set[TopicName]) -> bool:
    """Whether a change of these topics may change anything in the group."""
    places = (*group.offsets, *group.starts)
    return any(place.topic in names for place in places) or any(
        one.value.pattern is not None or not names.isdisjoint(one.value.topics or ())
        for one in group.instances.values()
    )


def drop_deleted_topics(state: GroupsState, group: Group, topics: Topics) -> None:
    """Offsets and starts of another life of a topic's name."""
    for partition, offset in sorted(group.offsets.items(), key=lambda item: item[0]):
        if not is_present(partition, offset, topics):
            state.apply(Entry(OffsetKey(group.name, *partition), None))
    for partition, start in sorted(group.starts.items(), key=lambda item: item[0]):
        if not is_present(partition, start, topics):
            state.apply(Entry(StartKey(group.name, *partition), None))


def _all(group: Group) -> list[Instance]:
    return [group.instances[name] for name in sorted(group.instances)]
