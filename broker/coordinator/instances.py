"""Consumer instances: made, subscribed, assigned, moved, expired. Pure: decides, never waits.

Each function checks everything before it decides anything, so that what raises changes nothing.
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
    OffsetReset,
    Subscribe,
)
from broker.coordinator.group_state import (
    EVERY_GROUP,
    Group,
    GroupsState,
    Instance,
    ReadPosition,
    Session,
    Topics,
)
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
    GroupKey,
    GroupRecord,
    GroupValue,
    InstanceKey,
    InstanceValue,
    MemberKey,
    SeekKey,
    SeekValue,
    StartKey,
    by_topic,
)
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import GroupId, TopicName, TopicPartition

ONE_WAY = (
    "IllegalStateError: You must choose only one way to configure your consumer: (1) subscribe to "
    "specific topics by name, (2) subscribe to topics matching a regex pattern, (3) assign itself "
    "specific topic-partitions."
)
"""Confluent's words: clients compare them."""
SESSION_TIMEOUT_MS = (1_000, 3_600_000)
REQUEST_TIMEOUT_MS_MAX = 60_000
FETCH_MIN_BYTES_MAX = 10_000_000
AUTO_COMMIT_INTERVAL_MS_MAX = 86_400_000
CLIENT_ID_CHARS_MAX = 249
NAMES_PER_SUBSCRIPTION_MAX = 1_000
"""Topics of one subscription, and partitions of one manual assignment."""
SESSIONS_PER_TICK = 2_000
"""About 2 ms of the loop; ten thousand instances are all seen within half a second."""
GROUPS_FORGOTTEN_AT_ONCE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """Live instances; beyond: GROUP_MAX_SIZE_REACHED. A group takes 1 KB, an instance 2 KB."""

    groups_per_shard: int = 10_000
    instances_per_group: int = 1_000
    instances_per_shard: int = 10_000


# ---- made and ended


def create_instance(state: GroupsState, request: CreateInstance, limits: GroupLimits) -> None:
    """A new instance, without a subscription."""
    assert request.instance is not None, "the door makes up names"
    check_settings(request.settings)
    if len(request.client_id) > CLIENT_ID_CHARS_MAX:
        text = f"client id longer than {CLIENT_ID_CHARS_MAX} characters"
        raise KafkaError(ErrorCode.INVALID_CONSUMER_CONFIG, text)
    check_room(state, request.group, limits)
    group = state.groups.get(request.group)
    if group is not None and request.instance in group.instances:
        raise KafkaError(
            ErrorCode.INSTANCE_ALREADY_EXISTS,
            "Consumer with specified consumer ID already exists in the specified consumer group.",
        )
    if group is not None and len(group.instances) >= limits.instances_per_group:
        text = f"group {request.group} has {limits.instances_per_group} instances"
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, text)
    if len(state.sessions) >= limits.instances_per_shard:
        text = f"the coordinator has {limits.instances_per_shard} instances"
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, text)
    value = InstanceValue(settings=request.settings, client_id=request.client_id)
    state.apply(GroupRecord(InstanceKey(request.group, request.instance), value))
    make_room(state, limits)


def check_room(state: GroupsState, group: GroupId, limits: GroupLimits) -> None:
    """Refuse one group more than there may be, unless `make_room` will find some that are over."""
    if group in state.groups or len(state.groups) < limits.groups_per_shard:
        return
    if all(one.exists for one in state.groups.values()):
        text = f"the coordinator has {limits.groups_per_shard} groups"
        raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED, text)


def make_room(state: GroupsState, limits: GroupLimits) -> None:
    """Over the limit, forget some groups without instances and offsets.

    The oldest first, but those that remember where they started (rule G2) last.
    """
    if len(state.groups) <= limits.groups_per_shard:
        return
    over = [group for group in state.groups.values() if not group.exists]
    over.sort(key=lambda group: bool(group.starts))
    over = over[:GROUPS_FORGOTTEN_AT_ONCE]
    forgotten = max(state.forgotten_epoch, *(group.epoch for group in over))
    if forgotten > state.forgotten_epoch:
        state.apply(GroupRecord(EVERY_GROUP, GroupValue(forgotten)))
    for group in over:
        # Each fact for itself: of the group's end nothing may be left when the log is compacted.
        for partition in sorted(group.starts):
            state.apply(GroupRecord(StartKey(group.name, *partition), None))
        state.apply(GroupRecord(GroupKey(group.name), None))


def check_settings(settings: ConsumerSettings) -> None:
    """Refuse what no read could keep. INVALID_CONSUMER_CONFIG names value and range."""
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
    for name, (value, lowest, highest) in ranges.items():
        if not lowest <= value <= highest:
            text = f"Invalid {name} {value}: expected {lowest} to {highest}"
            raise KafkaError(ErrorCode.INVALID_CONSUMER_CONFIG, text)


def delete_instance(state: GroupsState, key: InstanceKey, topics: Topics) -> None:
    """Close it: with auto-commit, everything that was returned is committed first."""
    group, instance, _ = state.find(key)
    if instance.value.settings.auto_commit:
        commit_delivered(state, key, topics)
    _remove(state, group, instance)
    retarget(state, group, topics)
    drop_unused_starts(state, group, topics)


def _remove(state: GroupsState, group: Group, instance: Instance) -> None:
    """Remove an instance and free what it owned; the caller assigns that to other members."""
    forget_all(state, group, instance)
    if instance.member is not None:
        state.apply(GroupRecord(MemberKey(group.name, instance.name), None))
    state.apply(GroupRecord(InstanceKey(group.name, instance.name), None))


# ---- what it reads


def check_subscription(state: GroupsState, key: InstanceKey, request: Subscribe) -> Instance:
    """The instance, if it may subscribe to this."""
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
    starts: Mapping[TopicPartition, int],
    topics: Topics,
) -> None:
    """Join, or change the subscription: at once, so that the first read is not empty."""
    key = InstanceKey(request.group, request.instance)
    instance = check_subscription(state, key, request)
    group = state.groups[key.group]
    names = None if request.topics is None else tuple(sorted(set(request.topics)))
    value = replace(instance.value, topics=names, pattern=request.pattern)
    state.apply(GroupRecord(key, value))
    record_starts(state, key, starts, topics)
    retarget(state, group, topics, frozenset({key.instance}))
    drop_unused_starts(state, group, topics)


def unsubscribe(state: GroupsState, key: InstanceKey, topics: Topics) -> None:
    """Give up subscription and manual assignment, committing first as when it is closed."""
    group, instance, _ = state.find(key)
    if instance.value.settings.auto_commit:
        commit_delivered(state, key, topics)
    forget_all(state, group, instance)
    state.apply(GroupRecord(key, replace(instance.value, topics=None, pattern=None, manual=None)))
    retarget(state, group, topics)
    drop_unused_starts(state, group, topics)


def check_assignment(
    state: GroupsState,
    key: InstanceKey,
    partitions: tuple[TopicPartition, ...],
    topics: Topics,
) -> Instance:
    """The instance, if it may assign itself this."""
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
    starts: Mapping[TopicPartition, int],
    topics: Topics,
) -> None:
    """Assign exactly these partitions by hand; a record is written before the reply (rule G2)."""
    instance = check_assignment(state, key, partitions, topics)
    group, _, session = state.find(key)
    if instance.value.settings.auto_commit:
        commit_delivered(state, key, topics)
    forget_all(state, group, instance)
    session.positions.clear()
    state.apply(GroupRecord(key, replace(instance.value, manual=by_topic(set(partitions)))))
    record_starts(state, key, starts, topics)
    drop_unused_starts(state, group, topics)


def record_starts(
    state: GroupsState, key: InstanceKey, starts: Mapping[TopicPartition, int], topics: Topics
) -> None:
    """Resolved start positions, before they are used (rule G2)."""
    group, _, _ = state.find(key)
    for partition, offset in sorted(starts.items()):
        if partition.topic in topics:
            record_start(state, group, partition, offset, topics)


def seek(
    state: GroupsState,
    key: InstanceKey,
    targets: Mapping[TopicPartition, int],
    topics: Topics,
) -> None:
    """Read on there; remembered until the next commit (rule G2)."""
    check_seek(state, key, targets, topics)
    _, _, session = state.find(key)
    for partition, offset in targets.items():
        topic_id = topics[partition.topic].topic_id
        state.apply(GroupRecord(SeekKey(*key, *partition), SeekValue(topic_id, offset)))
        session.positions[partition] = ReadPosition(offset, topic_id)


def check_seek(
    state: GroupsState,
    key: InstanceKey,
    targets: Mapping[TopicPartition, object],
    topics: Topics,
) -> None:
    """ILLEGAL_STATE for a partition it does not own."""
    _, instance, _ = state.find(key)
    for partition in targets:
        if partition not in instance.assignment:
            text = f"No current assignment for partition {partition.topic}-{partition.partition}"
            raise KafkaError(ErrorCode.ILLEGAL_STATE, text)
        check_partition(partition, topics)


# ---- calls, reads and time


def touch(state: GroupsState, key: InstanceKey) -> Session:
    """Any call refreshes the session. UNKNOWN_MEMBER_ID where there is no such instance."""
    _, _, session = state.find(key)
    session.heard_ms = state.judge_ms
    return session


def begin_call(
    state: GroupsState, key: InstanceKey, topics: Topics, *, done: bool = True
) -> Session:
    """A call of the instance, which lets go what it is to give up.

    ``done``: one that reads on, or gives up, says that the client is done with everything that was
    delivered before. One that commits or looks does not: only what is committed goes.
    """
    session = touch(state, key)
    group, instance, _ = state.find(key)
    if not instance.owned <= instance.target:
        acknowledged = frozenset({instance.name}) if done else frozenset()
        reconcile(state, group, topics, acknowledged=acknowledged)
    return session


def begin_read(state: GroupsState, key: InstanceKey, topics: Topics) -> None:
    """A read confirms all earlier ones; with auto-commit they are committed when it is time."""
    _, instance, session = state.find(key)
    for position in session.positions.values():
        if position.delivered:
            position.confirmed = position.next
    _commit_when_due(state, key, instance, session, topics)


def position_of(
    state: GroupsState, key: InstanceKey, partition: TopicPartition, topics: Topics
) -> ReadPosition | None:
    """Return the next offset to read; None if it must be resolved first."""
    group, instance, session = state.find(key)
    position = session.position(partition, topics)
    if position is None:
        offset = group.restart(instance, partition, topics)
        if offset is None:
            return None
        position = ReadPosition(offset, topics[partition.topic].topic_id)
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
    """Expire sessions, commit by the clock, end overdue revocations; the instances that expired.

    Nothing that an expired instance did not confirm is committed: it may never have arrived.
    Of very many sessions each tick looks at the next ones only.
    """
    expired = []
    left: dict[GroupId, Group] = {}
    sessions = list(state.sessions.items())
    if len(sessions) > SESSIONS_PER_TICK:
        first = state.ticked % len(sessions)
        sessions = (sessions[first:] + sessions[:first])[:SESSIONS_PER_TICK]
        state.ticked = first + SESSIONS_PER_TICK
    for key, session in sessions:
        group, instance, _ = state.find(key)
        settings = instance.value.settings
        if session.calls > 0:
            session.heard_ms = state.judge_ms
        if state.judge_ms - session.heard_ms > settings.session_timeout_ms:
            expired.append(key)
            _remove(state, group, instance)
            left[group.name] = group
            continue
        _commit_when_due(state, key, instance, session, topics)
        since_ms = session.revoking_since_ms
        if since_ms is not None:  # an automatic commit may have covered it by now
            late = state.judge_ms - since_ms > rebalance_timeout_ms
            overdue = frozenset({key.instance}) if late else frozenset()
            reconcile(state, group, topics, overdue=overdue)
    for group in left.values():  # once, however many went together
        retarget(state, group, topics)
    return expired


def topic_names(instance: Instance, topics: Topics) -> tuple[TopicName, ...]:
    """Return the subscribed topics: the names given, or those that match the pattern now."""
    if instance.value.topics is not None:
        return instance.value.topics
    return tuple(sorted(subscribed_topics(instance, topics)))
