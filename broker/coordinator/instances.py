"""Consumer instances: created, subscribed, assigned, moved, expired. Pure: decides, never waits.

A `Shard` runs these functions as decisions on its `GroupsState`. Each of them checks everything
before it changes anything, so that a function that raises changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from broker.coordinator.commits import (
    check_partition,
    commit_confirmed,
    commit_delivered,
)
from broker.coordinator.group_messages import (
    FORMATS,
    ConsumerSettings,
    CreateInstance,
    Move,
    OffsetReset,
    Subscribe,
)
from broker.coordinator.group_state import (
    Group,
    GroupsState,
    Instance,
    Session,
    Topics,
)
from broker.coordinator.membership import (
    remove_instance,
    seat_holder,
    take_seat,
    vacate_seat,
)
from broker.coordinator.positions import OffsetAndEpoch, ReadPosition, position_at
from broker.coordinator.read_tokens import Held
from broker.coordinator.rebalance import (
    compiled_pattern,
    drop_unused_starts,
    forget_all,
    partitions_in,
    reconcile,
    record_start,
    retarget,
    subscribed_topics,
)
from broker.coordinator.records import (
    InstanceKey,
    InstanceValue,
    Seat,
    SeekKey,
    SeekValue,
    ShardRecord,
    by_topic,
)
from broker.coordinator.removal import forget_groups
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import GroupId, TopicName, TopicPartition

ONE_WAY = (
    "IllegalStateError: You must choose only one way to configure your consumer: (1) subscribe to "
    "specific topics by name, (2) subscribe to topics matching a regex pattern, (3) assign itself "
    "specific topic-partitions."
)
"""Text of Confluent's REST proxy; clients compare it."""
USE_HEARTBEATS = (
    "it fetches from /topics, commits to /v3/clusters/C/consumer-groups/G/offsets, and its calls "
    "end in :heartbeat"
)
SESSION_TIMEOUT_MS = (1_000, 3_600_000)
"""Least and greatest session timeout of an instance."""
REQUEST_TIMEOUT_MS_MAX = 60_000
MAX_POLL_RECORDS = (1, 100_000)
"""Least and greatest number of records to which an instance limits its reads."""
FETCH_MIN_BYTES_MAX = 10_000_000
AUTO_COMMIT_INTERVAL_MS_MAX = 86_400_000
CLIENT_ID_CHARS_MAX = 249
NAMES_PER_SUBSCRIPTION_MAX = 1_000
"""Most topics of one subscription, and most partitions of one manual assignment."""
SESSIONS_PER_TICK = 2_000
"""Sessions checked in one tick, about 2 ms; ten thousand are all checked within half a second."""
GROUPS_FORGOTTEN_AT_ONCE = 100
"""Most groups without instances and offsets that one decision forgets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """Limits of groups and instances of one shard.

    A group takes 1 KB of memory, an instance 2 KB.
    """

    groups_in_use: int = 10_000
    """Groups with instances."""
    groups_with_offsets: int = 100_000
    """Groups that hold only offsets."""
    instances_per_group: int = 1_000
    instances_per_shard: int = 10_000


# ---- creation and removal


def create_instance(state: GroupsState, request: CreateInstance, limits: GroupLimits) -> None:
    """Create an instance without a subscription, or one that takes the seat of its static id.

    Raises KafkaError INVALID_CONSUMER_CONFIG, INSTANCE_ALREADY_EXISTS or GROUP_MAX_SIZE_REACHED.
    """
    assert request.instance is not None, "the door makes up names"
    key = InstanceKey(request.group, request.instance)
    value = InstanceValue(settings=request.settings, client_id=request.client_id)
    check_new_instance(state, key, value, limits)
    add_instance(state, key, value, limits)


def check_new_instance(
    state: GroupsState, key: InstanceKey, value: InstanceValue, limits: GroupLimits
) -> None:
    """Raise the refusal of a new instance, of either kind, if there is one."""
    check_settings(value.settings)
    if len(value.client_id) > CLIENT_ID_CHARS_MAX:
        text = f"client id longer than {CLIENT_ID_CHARS_MAX} characters"
        raise KafkaError(ErrorCode.INVALID_CONSUMER_CONFIG, text)
    check_room(state, key.group, limits)
    group = state.groups.get(key.group)
    if free_seat(group, key, value) is not None:
        return
    if group is not None and key.instance in group.instances:
        raise KafkaError(
            ErrorCode.INSTANCE_ALREADY_EXISTS,
            "Consumer with specified consumer ID already exists in the specified consumer group.",
        )
    if group is not None and len(group.instances) >= limits.instances_per_group:
        text = f"group {key.group} has {limits.instances_per_group} instances"
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, text)
    if len(state.sessions) >= limits.instances_per_shard:
        text = f"the coordinator has {limits.instances_per_shard} instances"
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, text)


def free_seat(group: Group | None, key: InstanceKey, value: InstanceValue) -> Instance | None:
    """Return the holder of the static id's seat, which the new instance may take; else None."""
    holder = seat_holder(group, value.settings.static_id)
    if group is None or holder is None:
        return None
    return holder if group.instances.get(key.instance) in (None, holder) else None


def add_instance(
    state: GroupsState, key: InstanceKey, value: InstanceValue, limits: GroupLimits
) -> None:
    """Add an instance that `check_new_instance` let pass, or seat it in its static id's seat."""
    group = state.groups.get(key.group)
    holder = free_seat(group, key, value)
    if group is not None and holder is not None:
        take_seat(state, group, holder, key.instance, value)
        return
    state.apply(ShardRecord(key, value))
    make_room(state, limits)


def check_room(
    state: GroupsState, name: GroupId, limits: GroupLimits, *, is_in_use: bool = True
) -> None:
    """Refuse a group over the limit: one more with instances, or one more with offsets only.

    Groups that hold nothing do not count: `make_room` forgets them.
    """
    group = state.groups.get(name)
    if is_in_use:
        if state.groups_in_use >= limits.groups_in_use and not (group and group.instances):
            text = f"the coordinator has {limits.groups_in_use} groups with instances"
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, text)
        return
    if group is not None or len(state.groups) - state.groups_in_use < limits.groups_with_offsets:
        return
    if all(one.exists for one in state.groups.values()):
        text = f"the coordinator has {limits.groups_with_offsets} groups that only hold offsets"
        hint = "`quorumlog group delete` removes those that are not needed"
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{text}; {hint}")


def make_room(state: GroupsState, limits: GroupLimits) -> None:
    """Over the limit, forget some groups without instances and offsets.

    The oldest come first, but groups with recorded start offsets last (rule G2).
    """
    if len(state.groups) - state.groups_in_use <= limits.groups_with_offsets:
        return
    over = [group for group in state.groups.values() if not group.exists]
    over.sort(key=lambda group: bool(group.starts))
    forget_groups(state, over[:GROUPS_FORGOTTEN_AT_ONCE])


def check_settings(settings: ConsumerSettings) -> None:
    """Refuse settings that no read could fulfil: INVALID_CONSUMER_CONFIG with value and range."""
    if settings.format not in FORMATS:
        text = f"Invalid format type {settings.format!r}: expected one of {sorted(FORMATS)}"
        raise KafkaError(ErrorCode.INVALID_CONSUMER_CONFIG, text)
    ranges = {
        "session.timeout.ms": (settings.session_timeout_ms, *SESSION_TIMEOUT_MS),
        "consumer.request.timeout.ms": (settings.request_timeout_ms, 0, REQUEST_TIMEOUT_MS_MAX),
        "fetch.min.bytes": (settings.fetch_min_bytes, -1, FETCH_MIN_BYTES_MAX),
        "auto.commit.interval.ms": (
            settings.auto_commit_interval_ms, 1, AUTO_COMMIT_INTERVAL_MS_MAX,
        ),
    }  # fmt: skip
    if settings.max_poll_records is not None:
        ranges["max.poll.records"] = (settings.max_poll_records, *MAX_POLL_RECORDS)
    for name, (value, lowest, highest) in ranges.items():
        if not lowest <= value <= highest:
            text = f"Invalid {name} {value}: expected {lowest} to {highest}"
            raise KafkaError(ErrorCode.INVALID_CONSUMER_CONFIG, text)


def delete_instance(
    state: GroupsState, key: InstanceKey, topics: Topics, *, leave: bool = False
) -> None:
    """Remove an instance; with auto-commit, first commit everything that was delivered.

    A static member keeps its seat, unless it is to ``leave``.
    """
    group, instance, _ = state.find(key)
    if instance.value.settings.auto_commit:
        commit_delivered(state, key, topics)
    if instance.value.settings.static_id is not None and not leave:
        vacate_seat(state, group, instance)
        return
    remove_instance(state, group, key.instance)
    retarget(state, group, topics)
    drop_unused_starts(state, group, topics)


# ---- subscription, assignment and positions


def check_subscription(state: GroupsState, key: InstanceKey, request: Subscribe) -> Instance:
    """Return the instance if it may subscribe like this; else raise ILLEGAL_STATE."""
    group, instance, _ = state.find(key)
    if instance.value.manual is not None or (request.topics is None) == (request.pattern is None):
        raise KafkaError(ErrorCode.ILLEGAL_STATE, ONE_WAY)
    by_name, by_pattern = instance.value.topics is not None, instance.value.pattern is not None
    if (by_name and request.pattern is not None) or (by_pattern and request.topics is not None):
        raise KafkaError(ErrorCode.ILLEGAL_STATE, ONE_WAY)
    if request.topics is not None and len(request.topics) > NAMES_PER_SUBSCRIPTION_MAX:
        text = f"more than {NAMES_PER_SUBSCRIPTION_MAX} topics in one subscription"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    if request.pattern is not None:
        compiled_pattern(request.pattern)
    assert group.name == key.group
    return instance


def unresolved_partitions(
    state: GroupsState,
    key: InstanceKey,
    topics: Topics,
    request: Subscribe | None = None,
    manual: tuple[TopicPartition, ...] = (),
) -> list[TopicPartition]:
    """Return the partitions that the instance would read without a known start (rule G2)."""
    group, instance, _ = state.find(key)
    if instance.value.settings.auto_offset_reset is OffsetReset.NONE:
        return []
    wanted = set(manual)
    if request is not None:
        value = replace(instance.value, topics=request.topics, pattern=request.pattern)
        wanted.update(
            partitions_in(subscribed_topics(Instance(key.instance, value), topics), topics)
        )
    return [
        partition
        for partition in sorted(wanted)
        if partition.topic in topics and group.restart(instance, partition, topics) is None
    ]


def subscribe(
    state: GroupsState,
    request: Subscribe,
    starts: Mapping[TopicPartition, OffsetAndEpoch],
    topics: Topics,
) -> None:
    """Join the group or change the subscription, at once, so that the first read has partitions."""
    key = InstanceKey(request.group, request.instance)
    instance = check_subscription(state, key, request)
    group = state.groups[key.group]
    names = None if request.topics is None else tuple(sorted(set(request.topics)))
    value = replace(instance.value, topics=names, pattern=request.pattern)
    state.apply(ShardRecord(key, value))
    record_starts(state, key, starts, topics)
    retarget(state, group, topics, frozenset({key.instance}))
    drop_unused_starts(state, group, topics)


def unsubscribe(state: GroupsState, key: InstanceKey, topics: Topics) -> None:
    """Remove the subscription and the manual assignment; with auto-commit, commit first."""
    group, instance, _ = state.find(key)
    if instance.value.settings.auto_commit:
        commit_delivered(state, key, topics)
    forget_all(state, group, instance)
    state.apply(ShardRecord(key, replace(instance.value, topics=None, pattern=None, manual=None)))
    retarget(state, group, topics)
    drop_unused_starts(state, group, topics)


def check_assignment(
    state: GroupsState,
    key: InstanceKey,
    partitions: tuple[TopicPartition, ...],
    topics: Topics,
) -> Instance:
    """Return the instance if it may be assigned these partitions; else raise ILLEGAL_STATE."""
    _, instance, _ = state.find(key)
    if instance.value.is_subscribed:
        raise KafkaError(ErrorCode.ILLEGAL_STATE, ONE_WAY)
    if len(partitions) > NAMES_PER_SUBSCRIPTION_MAX:
        text = f"more than {NAMES_PER_SUBSCRIPTION_MAX} partitions in one assignment"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    for partition in partitions:
        check_partition(partition, topics)
    return instance


def assign(
    state: GroupsState,
    key: InstanceKey,
    partitions: tuple[TopicPartition, ...],
    starts: Mapping[TopicPartition, OffsetAndEpoch],
    topics: Topics,
) -> None:
    """Assign exactly these partitions by hand; recorded before the answer (rule G2)."""
    instance = check_assignment(state, key, partitions, topics)
    group, _, session = state.find(key)
    if instance.value.settings.auto_commit:
        commit_delivered(state, key, topics)
    forget_all(state, group, instance)
    session.positions.clear()
    state.apply(ShardRecord(key, replace(instance.value, manual=by_topic(set(partitions)))))
    record_starts(state, key, starts, topics)
    drop_unused_starts(state, group, topics)


def record_starts(
    state: GroupsState,
    key: InstanceKey,
    starts: Mapping[TopicPartition, OffsetAndEpoch],
    topics: Topics,
) -> None:
    """Record resolved starts, before they are used (rule G2)."""
    group, _, _ = state.find(key)
    for partition, place in sorted(starts.items()):
        if partition.topic in topics:
            record_start(state, group, partition, place, topics)


def seek(
    state: GroupsState,
    key: InstanceKey,
    targets: Mapping[TopicPartition, OffsetAndEpoch],
    topics: Topics,
) -> None:
    """Move positions; they are remembered until the next commit (rule G2)."""
    check_seek(state, key, targets, topics)
    _, _, session = state.find(key)
    for partition, place in targets.items():
        topic_id = topics[partition.topic].topic_id
        state.apply(ShardRecord(SeekKey(*key, *partition), SeekValue(topic_id, *place)))
        session.positions[partition] = position_at(place, topic_id)


def follow_move(
    state: GroupsState, key: InstanceKey, move: Move, leader_epoch: int, topics: Topics
) -> None:
    """Go on reading where a move says, record that as a seek, and keep the move to be reported."""
    _, _, session = state.find(key)
    place = OffsetAndEpoch(move.to_offset, leader_epoch)
    seek(state, key, {TopicPartition(move.topic, move.partition): place}, topics)
    state.note_move(key.group, session, move)


def check_seek(
    state: GroupsState,
    key: InstanceKey,
    targets: Mapping[TopicPartition, object],
    topics: Topics,
) -> None:
    """Raise ILLEGAL_STATE for a partition that the instance does not own."""
    _, instance, _ = state.find(key)
    for partition in targets:
        if partition not in instance.assignment:
            text = f"No current assignment for partition {partition.topic}-{partition.partition}"
            raise KafkaError(ErrorCode.ILLEGAL_STATE, text)
        check_partition(partition, topics)


# ---- calls, reads and ticks


def find_instance(state: GroupsState, key: InstanceKey) -> tuple[Instance, Session]:
    """Return an instance for which the coordinator reads, and its session.

    Raises:
        KafkaError: as `GroupsState.find`, and ILLEGAL_STATE for a member that reads for itself.
    """
    _, instance, session = state.find(key)
    if instance.value.reads_itself:
        text = f"member {key.instance} of group {key.group} reads for itself: {USE_HEARTBEATS}"
        raise KafkaError(ErrorCode.ILLEGAL_STATE, text)
    return instance, session


def touch(state: GroupsState, key: InstanceKey) -> Session:
    """Refresh the session of an instance and return it; raise UNKNOWN_MEMBER_ID without one."""
    _, session = find_instance(state, key)
    session.heard_ms = state.judge_ms
    return session


def begin_call(
    state: GroupsState, key: InstanceKey, topics: Topics, *, done: bool = True
) -> Session:
    """Refresh the session; give up partitions that the instance owns beyond its target.

    ``done``: a call that reads on or gives up shows that the client has processed everything
    delivered before, so all of them are given up. A call that commits or describes shows no such
    thing: only partitions without uncommitted records are given up.
    """
    session = touch(state, key)
    group, instance, _ = state.find(key)
    if not instance.owned <= instance.target:
        acknowledged = frozenset({instance.name}) if done else frozenset()
        reconcile(state, group, topics, acknowledged=acknowledged)
    return session


def acknowledge_answer(state: GroupsState, key: InstanceKey, token: str | None) -> Held:
    """Take the client's word for what it holds, before its call does anything else (rule G5).

    The first token makes the instance a token reader, which is recorded. Without a token nothing is
    acknowledged here.

    Raises:
        KafkaError: as `ReadTokens.check`, and ILLEGAL_STATE for a token reader without a token.
    """
    instance, session = find_instance(state, key)
    if token is None:
        if instance.value.is_token_reader:
            text = f"instance {key.instance} reads with tokens: expected after=TOKEN, or after=0"
            raise KafkaError(ErrorCode.ILLEGAL_STATE, text)
        return Held.KNOWN
    held = session.tokens.acknowledge(session.positions, token)
    session.acknowledge_moves(token)
    if not instance.value.is_token_reader:
        state.apply(ShardRecord(key, replace(instance.value, is_token_reader=True)))
    return held


def acknowledge_before(state: GroupsState, key: InstanceKey, token: str | None) -> None:
    """Acknowledge an answer before a commit or a deletion, which moves no other position (rule G5).

    Raises:
        KafkaError: as `ReadTokens.check`, and ILLEGAL_STATE for a token of an earlier coordinator:
            which records it acknowledges is not known here, so nothing may be committed for it.
    """
    if token is None:
        return
    _, _, session = state.find(key)
    held = session.tokens.check(token)
    if held is Held.FOREIGN:
        text = f"after={token} is of an earlier coordinator: commit offsets by name, or read again"
        raise KafkaError(ErrorCode.ILLEGAL_STATE, text)
    if held is Held.KNOWN:
        acknowledge_answer(state, key, token)


def begin_read(state: GroupsState, key: InstanceKey, topics: Topics) -> None:
    """Confirm the positions of earlier reads; with auto-commit, commit them if that is due."""
    _, instance, session = state.find(key)
    if not instance.value.is_token_reader:
        session.tokens.acknowledge_all(session.positions)
    _commit_when_due(state, key, instance, session, topics)


def position_of(
    state: GroupsState, key: InstanceKey, partition: TopicPartition, topics: Topics
) -> ReadPosition | None:
    """Return the position of the next read; None if the start must be resolved first."""
    group, instance, session = state.find(key)
    position = session.position(partition, topics)
    if position is None:
        place = group.restart(instance, partition, topics)
        if place is None:
            return None
        position = position_at(place, topics[partition.topic].topic_id)
        session.positions[partition] = position
    return position


def _commit_when_due(
    state: GroupsState, key: InstanceKey, instance: Instance, session: Session, topics: Topics
) -> None:
    settings = instance.value.settings
    due_ms = session.auto_committed_ms + settings.auto_commit_interval_ms
    if settings.auto_commit and state.judge_ms >= due_ms:
        session.auto_committed_ms = state.judge_ms
        commit_confirmed(state, key, topics)


def tick(state: GroupsState, topics: Topics, rebalance_timeout_ms: int) -> list[InstanceKey]:
    """Expire sessions, commit by the timer, end overdue revocations; return expired instances.

    Nothing that an expired instance did not confirm is committed: it may not have received it. Of
    more than `SESSIONS_PER_TICK` sessions, each tick checks the next ones.
    """
    expired = []
    left: dict[GroupId, Group] = {}
    sessions = list(state.sessions.items())
    if len(sessions) > SESSIONS_PER_TICK:
        first = state.ticked % len(sessions)
        sessions = (sessions[first:] + sessions[:first])[:SESSIONS_PER_TICK]
        state.ticked = first + SESSIONS_PER_TICK
    for key, session in sessions:
        group = state.groups[key.group]
        instance = group.instances[key.instance]
        settings = instance.value.settings
        if session.calls > 0:
            session.heard_ms = state.judge_ms
        if state.judge_ms - session.heard_ms > settings.session_timeout_ms:
            expired.append(key)
            remove_instance(state, group, key.instance)
            left[group.name] = group
            continue
        if instance.value.seat is not Seat.TAKEN:
            continue
        _commit_when_due(state, key, instance, session, topics)
        since_ms = session.revoking_since_ms
        if since_ms is not None:  # an automatic commit may have freed some by now
            late = state.judge_ms - since_ms > (
                instance.value.rebalance_timeout_ms or rebalance_timeout_ms
            )
            overdue = frozenset({key.instance}) if late else frozenset()
            if late or not instance.value.reads_itself:
                reconcile(state, group, topics, overdue=overdue)
    for group in left.values():  # once for all instances that expired together
        retarget(state, group, topics)
    return expired


def topic_names(instance: Instance, topics: Topics) -> tuple[TopicName, ...]:
    """Return the subscribed topics: the names given, or those that match the pattern now."""
    if instance.value.topics is not None:
        return instance.value.topics
    return tuple(sorted(subscribed_topics(instance, topics)))
