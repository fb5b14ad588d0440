"""Members that read for themselves: their joins and heartbeats as decisions (KIP-848). Pure.

`member_requests.MemberRequests` runs these functions as decisions of a shard. Such a member reads
from partition leaders, and the coordinator only tells it what to own. It is an `Instance` like any
other: in the same group, with the same target computation, limits and seats. Two things differ.

It gives up a partition only by a heartbeat that names what it owns without it, so another member
gets it only then (or once its rebalance time-out or session has passed). And it is granted
partitions only by the answer to its own join or heartbeat. Every such grant has a new member epoch,
and only a heartbeat of the present epoch gives up anything: an older heartbeat that arrives late
can't free what the member was granted since. The epoch before the present one is accepted too, as
the repeat of a heartbeat whose answer was lost; it changes nothing and gets the present state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from broker.coordinator.group_messages import (
    Heartbeat,
    JoinGroup,
    MemberPartition,
    Membership,
    OffsetReset,
)
from broker.coordinator.group_state import Group, GroupsState, Instance, Session, Topics
from broker.coordinator.instances import (
    NAMES_PER_SUBSCRIPTION_MAX,
    ONE_WAY,
    GroupLimits,
    add_instance,
    check_new_instance,
    record_starts,
)
from broker.coordinator.positions import OffsetAndEpoch
from broker.coordinator.rebalance import (
    compiled_pattern,
    drop_unused_starts,
    free_partitions,
    partitions_in,
    record_start,
    release,
    retarget,
    set_member,
    subscribed_topics,
)
from broker.coordinator.records import InstanceKey, InstanceValue, Seat, ShardRecord
from broker.log.leader_epoch_cache import NO_EPOCH
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import GroupId, TopicName, TopicPartition

REBALANCE_TIMEOUT_MS = (1_000, 3_600_000)
"""Least and greatest time in which a member must give up partitions."""
HEARTBEAT_INTERVAL_MS = 5_000
"""Time between heartbeats that do not wait, or a third of the session time-out if that is less."""
SESSION_PARTS = 3
"""A heartbeat waits at most this part of the session time-out, so that it is repeated in time."""
OWNED_MAX = 10_000
"""Most partitions that a heartbeat names: as many as a topic may have."""

Starts = Mapping[TopicPartition, OffsetAndEpoch]


# ---- checks before anything is resolved


def check_join(state: GroupsState, request: JoinGroup, limits: GroupLimits) -> None:
    """Raise the refusal of a join, if there is one.

    Raises:
        KafkaError: INVALID_REQUEST, INVALID_CONSUMER_CONFIG, GROUP_MAX_SIZE_REACHED, or
            INSTANCE_ALREADY_EXISTS for the name of another instance or of another join.
    """
    _check_subscription(request.topics, request.pattern)
    lowest, highest = REBALANCE_TIMEOUT_MS
    if not lowest <= request.rebalance_timeout_ms <= highest:
        text = f"Invalid rebalance_timeout_ms {request.rebalance_timeout_ms}"
        text = f"{text}: expected {lowest} to {highest}"
        raise KafkaError(ErrorCode.INVALID_CONSUMER_CONFIG, text)
    key = InstanceKey(request.group, request.instance)
    group = state.groups.get(request.group)
    found = None if group is None else group.instances.get(request.instance)
    if found is not None and found.value.seat is Seat.LOST:
        state.find(key)  # raises
    if _same_member(state, key, value_of(request)) is None:
        check_new_instance(state, key, value_of(request), limits)


def check_heartbeat(state: GroupsState, request: Heartbeat) -> None:
    """Raise the refusal of a heartbeat, if there is one.

    Raises:
        KafkaError: UNKNOWN_MEMBER_ID without the member, FENCED_INSTANCE_ID if a newer one has its
            seat, FENCED_MEMBER_EPOCH for an epoch that is neither the present nor the previous one,
            ILLEGAL_STATE for an instance for which the coordinator reads, INVALID_REQUEST.
    """
    _, instance, _ = _find(state, request)
    if request.topics is not None or request.pattern is not None:
        _check_subscription(request.topics, request.pattern)
    if len(request.owned) > OWNED_MAX:
        text = f"'owned' names {len(request.owned)} partitions: expected at most {OWNED_MAX}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    longest_ms = instance.value.settings.session_timeout_ms // SESSION_PARTS
    if not 0 <= request.wait_ms <= longest_ms:
        text = f"wait_ms {request.wait_ms}: expected 0 to {longest_ms}, a third of the session"
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{text} time-out")


def _check_subscription(topics: tuple[TopicName, ...] | None, pattern: str | None) -> None:
    if (topics is None) == (pattern is None):
        raise KafkaError(ErrorCode.ILLEGAL_STATE, ONE_WAY)
    if topics is not None and len(topics) > NAMES_PER_SUBSCRIPTION_MAX:
        text = f"more than {NAMES_PER_SUBSCRIPTION_MAX} topics in one subscription"
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)
    if pattern is not None:
        compiled_pattern(pattern)


def unresolved_partitions(
    state: GroupsState, request: JoinGroup | Heartbeat, topics: Topics
) -> list[TopicPartition]:
    """Return the partitions that the request subscribes to without a known start (rule G2)."""
    group = state.groups.get(request.group)
    found = None if group is None else group.instances.get(request.instance)
    if isinstance(request, JoinGroup):
        value = value_of(request)
    elif found is None or (request.topics is None and request.pattern is None):
        return []
    else:
        value = _subscribed(found.value, request.topics, request.pattern)
    if value.settings.auto_offset_reset is OffsetReset.NONE:
        return []
    names = sorted(subscribed_topics(Instance(request.instance, value), topics))
    if group is None:
        return list(partitions_in(names, topics))
    missing = []
    for place in partitions_in(names, topics):
        at = group.offsets.get(place) or group.starts.get(place)
        if at is None or at.topic_id != topics[place.topic].topic_id:
            missing.append(place)
    return missing


def record_resolved(state: GroupsState, group_id: GroupId, starts: Starts, topics: Topics) -> None:
    """Record some resolved starts before the subscription that needs them (rule G2)."""
    group = state.groups.get(group_id) or Group(group_id)
    for place, at in sorted(starts.items()):
        if place.topic in topics:
            record_start(state, group, place, at, topics)


# ---- joining


def value_of(request: JoinGroup) -> InstanceValue:
    """Return the record of the member that a join makes."""
    value = InstanceValue(
        settings=request.settings,
        client_id=request.client_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
    )
    return _subscribed(value, request.topics, request.pattern)


def _subscribed(
    value: InstanceValue, topics: tuple[TopicName, ...] | None, pattern: str | None
) -> InstanceValue:
    names = None if topics is None else tuple(sorted(set(topics)))
    return replace(value, topics=names, pattern=pattern, manual=None)


def _same_member(state: GroupsState, key: InstanceKey, value: InstanceValue) -> Instance | None:
    """Return the member that an equal join made before, or None."""
    group = state.groups.get(key.group)
    found = None if group is None else group.instances.get(key.instance)
    return found if found is not None and found.value == value else None


def join(
    state: GroupsState, request: JoinGroup, starts: Starts, topics: Topics, limits: GroupLimits
) -> None:
    """Join the group, and own at once what is free of the member's target.

    The repeat of a join whose answer may be lost changes nothing. An equal join of a member that
    has received its answer is another process with its name: that one has the name from now on, at
    a higher epoch, so the older one is refused.

    Raises:
        KafkaError: as `check_join`.
    """
    check_join(state, request, limits)
    key, value = InstanceKey(request.group, request.instance), value_of(request)
    found = _same_member(state, key, value)
    if found is not None:
        _join_again(state, key, found)
    else:
        add_instance(state, key, value, limits)
        group = state.groups[key.group]
        taken = group.instances[key.instance]
        is_seated = taken.member is not None and (taken.value.topics, taken.value.pattern) == (
            value.topics,
            value.pattern,
        )
        if taken.value != value:
            state.apply(ShardRecord(key, value))
        record_starts(state, key, starts, topics)
        if not is_seated:
            retarget(state, group, topics)
            drop_unused_starts(state, group, topics)
    group, instance, session = state.find(key)
    session.heard_ms = state.judge_ms
    if instance.member is None:  # a part of an earlier change is all that survived
        retarget(state, group, topics)
    if not session.has_open_join:
        session.has_open_join = True
        owned = instance.owned
        if owned <= instance.target:
            owned |= free_partitions(group, instance)
        epoch = instance.member_epoch
        if owned <= instance.target:
            epoch = max(epoch, group.epoch)
        set_member(state, group, instance, epoch, instance.target, owned, previous_epoch=-1)


def _join_again(state: GroupsState, key: InstanceKey, instance: Instance) -> None:
    """Give the name of a member to the process that joins with it now, unless it is a repeat."""
    group, _, session = state.find(key)
    if not session.has_open_join and instance.member is not None:
        epoch = instance.member.epoch + 1
        set_member(state, group, instance, epoch, instance.target, instance.owned, -1)
        state.concerned.add(key)


# ---- heartbeats


def touch_member(state: GroupsState, request: Heartbeat) -> None:
    """Count the member's session from now, the arrival of a heartbeat."""
    check_heartbeat(state, request)
    _, _, session = _find(state, request)
    session.heard_ms = state.judge_ms
    session.has_open_join = False


def heartbeat(state: GroupsState, request: Heartbeat, starts: Starts, topics: Topics) -> bool:
    """Take what a member owns, and move it towards its target.

    A change of the subscription, and a grant, begin a new member epoch. With nothing to give up,
    the member comes to the group's epoch.

    Return True if the member is to own something else than it names, or has a new epoch.

    Raises:
        KafkaError: as `check_heartbeat`.
    """
    check_heartbeat(state, request)
    group, instance, _ = _find(state, request)
    if request.member_epoch == instance.member_epoch:
        changed = _change_subscription(state, group, instance, request, starts, topics)
        reported = frozenset(request.owned)
        release(state, group, instance, instance.owned - instance.target - reported)
        _advance(state, group, instance, reported, changed=changed)
    assignment = instance.owned & instance.target
    return (
        instance.member_epoch != request.member_epoch
        or assignment != frozenset(request.owned)
        or not instance.owned <= instance.target
    )


def _advance(
    state: GroupsState,
    group: Group,
    instance: Instance,
    reported: frozenset[TopicPartition],
    *,
    changed: bool,
) -> None:
    """Grant what is free, once the member has given up all that it must."""
    owned, epoch = instance.owned, instance.member_epoch
    least = epoch + changed
    if owned <= instance.target and reported <= owned:
        granted = owned | free_partitions(group, instance)
        least = max(group.epoch, epoch + (changed or granted != owned))
        owned = granted
    if least != epoch:
        set_member(state, group, instance, least, instance.target, owned, previous_epoch=epoch)


def _change_subscription(
    state: GroupsState,
    group: Group,
    instance: Instance,
    request: Heartbeat,
    starts: Starts,
    topics: Topics,
) -> bool:
    """Subscribe to something else, if the heartbeat names it; return True if it does."""
    if request.topics is None and request.pattern is None:
        return False
    value = _subscribed(instance.value, request.topics, request.pattern)
    if value == instance.value:
        return False
    key = InstanceKey(request.group, request.instance)
    state.apply(ShardRecord(key, value))
    record_starts(state, key, starts, topics)
    retarget(state, group, topics)
    drop_unused_starts(state, group, topics)
    return True


def _find(state: GroupsState, request: Heartbeat) -> tuple[Group, Instance, Session]:
    """Return the member of a heartbeat, which its present or previous epoch names."""
    group, instance, session = state.find(InstanceKey(request.group, request.instance))
    if not instance.value.reads_itself:
        text = f"instance {instance.name} of group {group.name} sends no heartbeats: it reads from"
        raise KafkaError(ErrorCode.ILLEGAL_STATE, f"{text} /consumers/{group.name}/instances")
    previous = -1 if instance.member is None else instance.member.previous_epoch
    if request.member_epoch not in {instance.member_epoch, previous} or request.member_epoch < 0:
        text = f"member {instance.name} is at epoch {instance.member_epoch}, not at"
        text = f"{text} {request.member_epoch}: join again"
        raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, text)
    return group, instance, session


# ---- answers


def heartbeat_answer(state: GroupsState, request: Heartbeat, topics: Topics) -> Membership:
    """Return the state of the member that sent a heartbeat.

    Raises:
        KafkaError: as `check_heartbeat`: while it waited, another process may have taken its name.
    """
    _find(state, request)
    key = InstanceKey(request.group, request.instance)
    return membership(state, key, topics, frozenset(request.owned))


def membership(
    state: GroupsState,
    key: InstanceKey,
    topics: Topics,
    reported: frozenset[TopicPartition] = frozenset(),
) -> Membership:
    """Return the state of a member that names the ``reported`` partitions as its own."""
    group, instance, _ = state.find(key)
    settings = instance.value.settings
    assignment = sorted(instance.owned & instance.target)
    revoked = (instance.owned - instance.target) | (reported - instance.owned)
    return Membership(
        instance=key.instance,
        static_id=settings.static_id,
        member_epoch=instance.member_epoch,
        group_epoch=group.epoch,
        assignor=group.assignor,
        heartbeat_interval_ms=min(
            HEARTBEAT_INTERVAL_MS, settings.session_timeout_ms // SESSION_PARTS
        ),
        session_timeout_ms=settings.session_timeout_ms,
        assignment=tuple(
            _assigned(group, instance, place, topics)
            for place in assignment
            if place.topic in topics
        ),
        revoked=tuple(sorted(revoked)),
    )


def _assigned(
    group: Group, instance: Instance, place: TopicPartition, topics: Topics
) -> MemberPartition:
    """Return a partition with the offset at which the group stands in it (rule G2)."""
    at = group.restart(instance, place, topics)
    return MemberPartition(
        topic=place.topic,
        topic_id=topics[place.topic].topic_id,
        partition=place.partition,
        offset=None if at is None else at.offset,
        leader_epoch=NO_EPOCH if at is None else at.leader_epoch,
        is_committed=group.committed(place, topics) is not None,
    )


def is_settled(group: Group, member: Instance) -> bool:
    """Return True if a member owns its target, and knows of the group's epoch."""
    if member.value.seat is Seat.TAKEN and member.value.reads_itself:
        return member.owned == member.target and member.member_epoch >= group.epoch
    return member.owned == member.target
