"""Group epoch, target assignment, and the steps of members towards their targets. Pure (KIP-848).

The coordinator's `Shard` and `instances` call `retarget` when membership, subscriptions or topics
change, and `reconcile` when a member may give up partitions. Targets are computed here, on the
server, by one of `assignors`. A partition is granted to its new owner only after its old owner has
given it up, so no two members own it at once.

A subscription by pattern is a regular expression over whole topic names, limited so that matching
can't hold the event loop.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Set

from broker.coordinator.assignors import AssignmentMember, choose_assignor
from broker.coordinator.commits import commit_delivered, has_uncommitted
from broker.coordinator.group_messages import OffsetReset
from broker.coordinator.group_state import Group, GroupsState, Instance, Topics, is_present
from broker.coordinator.positions import OffsetAndEpoch
from broker.coordinator.records import (
    GroupKey,
    GroupValue,
    InstanceKey,
    MemberKey,
    MemberValue,
    OffsetKey,
    Seat,
    SeekKey,
    ShardRecord,
    SkipKey,
    StartKey,
    StartValue,
    by_topic,
)
from broker.coordinator.targets import TargetInput, Targets
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import InstanceId, PartitionId, TopicName, TopicPartition

PATTERN_CHARS_MAX = 256
PATTERN_REPEATS_MAX = 3
"""Most repetitions in a pattern. Topic names have at most 249 characters, so three repetitions try
at most 249^3 / 6 = 2.6 million ways to match."""
INTERNAL_PREFIX = "__"
"""Beginning of the names of internal topics, which no pattern matches."""

_REPEAT = re.compile(r"[*+{]")
_CLASS = re.compile(r"\[\^?\]?[^\]]*\]")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_REPEATED_GROUP = re.compile(r"\)\s*[*+{?]")


@functools.lru_cache(maxsize=1_024)
def compiled_pattern(pattern: str) -> re.Pattern[str]:
    """Return the compiled expression; raise INVALID_REQUEST with the reason if it is refused."""
    if len(pattern) > PATTERN_CHARS_MAX:
        raise _refusal(pattern, f"longer than {PATTERN_CHARS_MAX} characters")
    if re.search(r"\\[1-9]|\(\?P=", pattern):
        raise _refusal(pattern, "references back are not supported")
    plain = _CLASS.sub("c", _ESCAPE.sub("e", pattern))
    if _REPEATED_GROUP.search(plain):
        raise _refusal(pattern, "a group can't be repeated")
    if len(_REPEAT.findall(plain)) > PATTERN_REPEATS_MAX:
        raise _refusal(pattern, f"more than {PATTERN_REPEATS_MAX} of * + {{")
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise _refusal(pattern, str(error)) from None


@functools.lru_cache(maxsize=65_536)
def _matches(pattern: str, name: str) -> bool:
    return compiled_pattern(pattern).fullmatch(name) is not None


def matched_topics(pattern: str, names: Iterable[TopicName]) -> frozenset[TopicName]:
    """Return the topics that a pattern matches; internal topics never match."""
    return frozenset(
        name for name in names if not name.startswith(INTERNAL_PREFIX) and _matches(pattern, name)
    )


def _refusal(pattern: str, reason: str) -> KafkaError:
    text = f"invalid topic pattern {pattern[:PATTERN_CHARS_MAX]!r}: {reason}"
    return KafkaError(ErrorCode.INVALID_REQUEST, text)


def subscribed_topics(instance: Instance, topics: Topics) -> frozenset[TopicName]:
    """Return the existing topics to which a member subscribes."""
    if instance.value.pattern is not None:
        return matched_topics(instance.value.pattern, topics)
    return frozenset(instance.value.topics or ()) & topics.keys()


def partitions_in(names: Iterable[TopicName], topics: Topics) -> Iterable[TopicPartition]:
    """Yield every partition of these topics."""
    for name in names:
        for number in range(topics[name].partitions_count):
            yield TopicPartition(name, PartitionId(number))


def retarget(
    state: GroupsState,
    group: Group,
    topics: Topics,
    acknowledged: Set[InstanceId] = frozenset(),
) -> None:
    """Record new targets under a new group epoch, if members or partitions changed.

    Targets of a large group are computed off the loop, so it only waits for them on return. A
    partition that appears while the group subscribes to its topic starts at offset 0: all its
    records were written after the subscription, so ``latest`` must not skip them (rule G2).
    """
    members = group.members
    taken = target_input(state, group, topics)
    if group.started_with is not topics:
        started: set[TopicName] = set()
        for name, one in members.items():
            if one.value.settings.auto_offset_reset is not OffsetReset.NONE:
                started |= taken.members[name].topics
        for partition in partitions_in(sorted(started), topics):
            record_start(state, group, partition, OffsetAndEpoch(0), topics)
        group.started_with = topics
    if taken.is_large:
        _record_targets(state, group, {name: one.target for name, one in members.items()})
        state.awaiting_targets.add(group.name)
    else:
        state.awaiting_targets.discard(group.name)
        _record_targets(state, group, taken.compute())
    reconcile(state, group, topics, acknowledged)


def apply_targets(state: GroupsState, group: Group, targets: Targets, topics: Topics) -> None:
    """Record targets that were computed off the loop, and let members move towards them."""
    _record_targets(state, group, targets)
    reconcile(state, group, topics)


def target_input(state: GroupsState, group: Group, topics: Topics) -> TargetInput:
    """Return everything on which the targets of a group depend."""
    members = group.members
    subscriptions = {name: subscribed_topics(one, topics) for name, one in members.items()}
    wishes = [one.value.settings.assignors for one in members.values()]
    wanted: set[TopicName] = set().union(*subscriptions.values())
    return TargetInput(
        choose_assignor(wishes, _default_assignor(state, group)),
        {
            name: AssignmentMember(subscriptions[name], one.value.settings.rack, one.target)
            for name, one in members.items()
        },
        {name: (topics[name].topic_id, topics[name].partitions_count) for name in wanted},
        state.environment.racks,
    )


def _record_targets(state: GroupsState, group: Group, targets: Targets) -> None:
    """Record the target of each member under a new group epoch, if one changes."""
    members, default = group.members, _default_assignor(state, group)
    former = [one for one in _all(group) if one.member and not one.value.is_subscribed]
    if not former and all(
        one.member is not None and one.target == targets[name] for name, one in members.items()
    ):
        return
    epochs = [group.epoch, *(one.member_epoch for one in _all(group))]
    state.apply(ShardRecord(GroupKey(group.name), GroupValue(max(epochs) + 1, default)))
    for one in former:
        state.apply(ShardRecord(MemberKey(group.name, one.name), None))
    for name, one in members.items():
        epoch = group.epoch if one.member is None else one.member.epoch
        set_member(state, group, one, epoch, targets[name], one.owned)


def _default_assignor(state: GroupsState, group: Group) -> str:
    """Return the group's default assignor; a group without members takes the cluster's."""
    if any(one.member is not None for one in group.instances.values()):
        return group.default_assignor
    return state.environment.default_assignor


def record_start(
    state: GroupsState,
    group: Group,
    partition: TopicPartition,
    place: OffsetAndEpoch,
    topics: Topics,
) -> None:
    """Record a resolved start, unless the group has a commit or start there (rule G2)."""
    topic_id = topics[partition.topic].topic_id
    known = group.offsets.get(partition) or group.starts.get(partition)
    if known is None or not is_present(partition, known, topics):
        state.apply(ShardRecord(StartKey(group.name, *partition), StartValue(topic_id, *place)))


def reconcile(
    state: GroupsState,
    group: Group,
    topics: Topics,
    acknowledged: Set[InstanceId] = frozenset(),
    overdue: Set[InstanceId] = frozenset(),
) -> None:
    """Have members give up partitions beyond their targets where they may; then grant free ones.

    ``acknowledged``: members whose call shows that the client has processed what was delivered;
    with auto-commit that is committed first. ``overdue``: members whose deadline has passed. What
    they did not commit is delivered again, to the next owner.
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
            and (_reads_now(one) or has_uncommitted(group, session, partition, topics))
        }
        if kept != extra:
            _forget(state, group, one, extra - kept)
            owned = one.target & one.owned | kept
            set_member(state, group, one, one.member_epoch, one.target, owned)
    for one in members.values():
        if not _reads_now(one):
            _grant(state, group, one)
        note_revocation(state, group, one)


def _reads_now(member: Instance) -> bool:
    """Return True for a member that reads by itself until its next heartbeat gives up."""
    return member.value.reads_itself and member.value.seat is Seat.TAKEN


def _grant(state: GroupsState, group: Group, member: Instance) -> None:
    """Give a member the free partitions of its target; without others, it is at its target."""
    owned = member.owned | free_partitions(group, member)
    # A static member that came back is ahead of the group: no member epoch goes back.
    settled = max(group.epoch, member.member_epoch)
    epoch = settled if owned <= member.target else member.member_epoch
    set_member(state, group, member, epoch, member.target, owned)


def free_partitions(group: Group, member: Instance) -> frozenset[TopicPartition]:
    """Return the partitions of a member's target that no member owns."""
    return frozenset(one for one in member.target - member.owned if one not in group.owners)


def release(
    state: GroupsState, group: Group, member: Instance, partitions: frozenset[TopicPartition]
) -> None:
    """Take partitions from a member that gave them up, and grant them to waiting instances.

    A member that reads for itself is granted them with its own next heartbeat.
    """
    if not partitions:
        return
    _forget(state, group, member, partitions)
    kept = member.owned - partitions
    set_member(state, group, member, member.member_epoch, member.target, kept)
    waiting = {group.assignees[one] for one in partitions if one in group.assignees}
    for name in sorted(waiting):
        if not _reads_now(group.instances[name]):
            _grant(state, group, group.instances[name])
    note_revocation(state, group, member)


def note_revocation(state: GroupsState, group: Group, member: Instance) -> None:
    """Note since when a member owns partitions that it must give up; it has a limited time."""
    session = state.sessions[InstanceKey(group.name, member.name)]
    if member.owned <= member.target:
        session.revoking_since_ms = None
    elif session.revoking_since_ms is None:
        session.revoking_since_ms = state.judge_ms


def _forget(
    state: GroupsState, group: Group, instance: Instance, partitions: Iterable[TopicPartition]
) -> None:
    """Drop positions and seeks of a former owner; the next one starts from the last commit."""
    session = state.sessions[InstanceKey(group.name, instance.name)]
    for partition in sorted(partitions):
        session.positions.pop(partition, None)
        if partition in instance.seeks:
            state.apply(ShardRecord(SeekKey(group.name, instance.name, *partition), None))


def forget_all(state: GroupsState, group: Group, instance: Instance) -> None:
    """Drop the positions and seeks of everything that the instance reads."""
    known = instance.assignment | instance.seeks.keys()
    _forget(state, group, instance, known)


def set_member(
    state: GroupsState,
    group: Group,
    member: Instance,
    epoch: int,
    target: frozenset[TopicPartition],
    owned: frozenset[TopicPartition],
    previous_epoch: int | None = None,
) -> None:
    """Record the state of a member, if it changes; ``previous_epoch`` None: that stays."""
    found = member.member
    before = -1 if found is None else found.previous_epoch
    previous = before if previous_epoch is None else previous_epoch
    present = None if found is None else (found.epoch, before, member.target, member.owned)
    if present == (epoch, previous, target, owned):
        return
    # A large group has a new epoch for each member: forms that stay are not made again.
    if found is None:
        value = MemberValue(epoch, by_topic(target), by_topic(owned), previous)
    else:
        stored_target = found.target if target == member.target else by_topic(target)
        stored_owned = found.owned if owned == member.owned else by_topic(owned)
        value = MemberValue(epoch, stored_target, stored_owned, previous)
    state.apply(ShardRecord(MemberKey(group.name, member.name), value))


def drop_unused_starts(state: GroupsState, group: Group, topics: Topics) -> None:
    """Drop start offsets of partitions that no instance reads; a later reader resolves new ones."""
    by_hand: set[TopicPartition] = set()
    subscribed: set[TopicName] = set()
    for one in group.instances.values():
        by_hand |= one.manual
        subscribed |= subscribed_topics(one, topics)
    unused = [
        place
        for place in group.starts
        if place not in by_hand
        and (
            place.topic not in subscribed or place.partition >= topics[place.topic].partitions_count
        )
    ]
    for partition in sorted(unused):
        state.apply(ShardRecord(StartKey(group.name, *partition), None))
    for partition in sorted(group.skips.keys() - group.offsets.keys() - group.starts.keys()):
        if partition not in by_hand and partition.topic not in subscribed:
            state.apply(ShardRecord(SkipKey(group.name, *partition), None))


def is_concerned(group: Group, names: Set[TopicName]) -> bool:
    """Return True if a change of these topics may change anything in the group."""
    places = (*group.offsets, *group.starts, *group.skips)
    return any(place.topic in names for place in places) or any(
        one.value.pattern is not None or not names.isdisjoint(one.value.topics or ())
        for one in group.instances.values()
    )


def drop_deleted_topics(
    state: GroupsState, group: Group, topics: Topics, deleted: Set[TopicName] = frozenset()
) -> None:
    """Drop what is recorded of deleted topics, even if another topic has the name now.

    A member that reads for itself gives up such a topic: its positions there have no meaning, and
    it gets the partitions of the new topic under a newer epoch. ``deleted``: names of deleted
    topics, of which the group may hold no offset and no start that tells.
    """
    gone = {
        place.topic
        for places in (group.starts, group.offsets)
        for place, at in places.items()
        if not is_present(place, at, topics)
    } | deleted
    for one in group.members.values() if gone else ():
        if one.value.reads_itself:
            owned = frozenset(place for place in one.owned if place.topic in gone)
            release(state, group, one, owned)
    for partition, offset in sorted(group.offsets.items(), key=lambda item: item[0]):
        if not is_present(partition, offset, topics):
            state.apply(ShardRecord(OffsetKey(group.name, *partition), None))
    for partition, start in sorted(group.starts.items(), key=lambda item: item[0]):
        if not is_present(partition, start, topics):
            state.apply(ShardRecord(StartKey(group.name, *partition), None))
    for partition, skip in sorted(group.skips.items(), key=lambda item: item[0]):
        if not is_present(partition, skip, topics):
            state.apply(ShardRecord(SkipKey(group.name, *partition), None))


def _all(group: Group) -> list[Instance]:
    return [group.instances[name] for name in sorted(group.instances)]
