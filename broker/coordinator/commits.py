"""Committed offsets: by request, with delivery, by the timer, and without an instance. Pure.

The `GroupCoordinator` and `instances` call these functions as decisions of a shard. A member
commits only partitions that it owns in its present epoch, and never past what was delivered to it.
Where that is not known, because another coordinator delivered it, the limit is the partition's
high watermark, which the caller has asked for (`undelivered_here`). A late commit never moves a
newer one back; only a recorded seek does (rule G4).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from broker.coordinator.blocked import drop_passed
from broker.coordinator.group_messages import CommitGroup, GroupOffset
from broker.coordinator.group_state import (
    Group,
    GroupsState,
    Instance,
    Session,
    Topics,
    ends_seek,
    is_present,
)
from broker.coordinator.records import InstanceKey, OffsetKey, OffsetValue, SeekKey, ShardRecord
from broker.log.leader_epoch_cache import NO_EPOCH
from broker.transactions.home_messages import CommitPosition
from broker.transactions.messages import EXPECTED_NONE, OffsetMove
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import GroupId, InstanceId, TopicPartition

OFFSET_METADATA_BYTES_MAX = 4_096
"""Kafka's ``offset.metadata.max.bytes``."""
OFFSETS_PER_COMMIT_MAX = 10_000
"""Most offsets of one commit; INVALID_REQUEST beyond."""


HighWatermarks = Mapping[TopicPartition, int]
NO_HIGH_WATERMARKS: HighWatermarks = MappingProxyType({})


def undelivered_here(
    state: GroupsState,
    group_id: GroupId,
    member_id: InstanceId | None,
    offsets: Iterable[GroupOffset],
    topics: Topics,
) -> list[TopicPartition]:
    """Return the partitions of a commit of which this coordinator delivered nothing to the member.

    Only those that the member owns, and whose offset is behind where it would begin to read and
    behind every high watermark that was seen for it.
    """
    group = state.groups.get(group_id)
    member = None if group is None or member_id is None else group.members.get(member_id)
    if group is None or member is None:
        return []
    session = state.sessions[InstanceKey(group_id, member.name)]
    found = []
    for one in offsets:
        partition = TopicPartition(one.topic, one.partition)
        if partition in member.owned and session.position(partition, topics) is None:
            start = group.restart(member, partition, topics)
            seen = session.high_watermark(partition, topics)
            if (start is None or one.offset >= start.offset) and (
                seen is None or one.offset > seen
            ):
                found.append(partition)
    return found


def _note_high_watermarks(
    session: Session, instance: Instance, found: HighWatermarks, topics: Topics
) -> None:
    """Remember high watermarks, each good for every offset below it, of what a member owns."""
    for partition, offset in found.items():
        facts = topics.get(partition.topic)
        seen = session.high_watermark(partition, topics)
        if facts is not None and (seen is None or offset > seen):
            session.high_watermarks[partition] = (facts.topic_id, offset)
    if len(session.high_watermarks) > len(instance.owned):
        for partition in session.high_watermarks.keys() - instance.owned:
            del session.high_watermarks[partition]


def commit_offsets(
    state: GroupsState,
    key: InstanceKey,
    offsets: tuple[GroupOffset, ...],
    topics: Topics,
    high_watermarks: HighWatermarks = NO_HIGH_WATERMARKS,
) -> None:
    """Record the offsets that an instance commits; all or none.

    The instance's dialect decides whether an offset is that of the last record read or the next
    one. An instance without a subscription may commit any offset, as in Kafka, while the group has
    no live members.
    """
    group, instance, session = state.find(key)
    plus = 0 if instance.value.settings.strimzi else 1
    stored = [
        _with_epoch(replace(one, offset=one.offset + plus), session, topics) for one in offsets
    ]
    _check(stored, topics, lowest=plus)
    check_may_commit(state, key)
    if instance.value.is_subscribed:
        for one in stored:
            _check_member(group, instance, session, one, topics, high_watermarks)
        stored = [one for one in stored if _is_newer(group, instance, one, topics)]
    _record(state, group, stored, instance.name, topics)


def check_may_commit(state: GroupsState, key: InstanceKey) -> None:
    """Raise ILLEGAL_STATE for an instance without a subscription beside live members.

    The members own the offsets then.
    """
    group, instance, _ = state.find(key)
    if not instance.value.is_subscribed and group.members:
        text = f"group {key.group} has live members: an instance without a subscription"
        raise KafkaError(ErrorCode.ILLEGAL_STATE, f"{text} can't commit")


def commit_without_instance(
    state: GroupsState,
    request: CommitGroup,
    topics: Topics,
    high_watermarks: HighWatermarks = NO_HIGH_WATERMARKS,
) -> None:
    """Record any offsets, as in Kafka; beside live members only those of one of them.

    Raises:
        KafkaError: UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID for a member that is gone or fenced;
            FENCED_MEMBER_EPOCH for another epoch than its present one, or without a member while
            there are some; ILLEGAL_STATE for a partition that it does not own, or too far an
            offset.
    """
    _check(request.offsets, topics, lowest=0)
    if _needs_no_member(state, request.group, request.member_id, request.member_epoch):
        group = state.groups.get(request.group) or Group(request.group)
        _record(state, group, request.offsets, None, topics)
        return
    group, member, session = _find_member(
        state, request.group, request.member_id, request.member_epoch
    )
    session.has_open_join = False
    _note_high_watermarks(session, member, high_watermarks, topics)
    for one in request.offsets:
        _check_member(group, member, session, one, topics, high_watermarks)
    news = [
        _with_epoch(one, session, topics)
        for one in request.offsets
        if _is_newer(group, member, one, topics)
    ]
    _record(state, group, news, member.name, topics)


def _needs_no_member(
    state: GroupsState, name: GroupId, member_id: InstanceId | None, member_epoch: int | None
) -> bool:
    """Return True for a commit without a member, in a group that has none.

    Raises:
        KafkaError: FENCED_MEMBER_EPOCH for one without a member's id beside live members.
    """
    if member_id is not None:
        return False
    group = state.groups.get(name)
    members = {} if group is None else group.members
    if member_epoch is None and not members:
        return True
    text = f"group {name} has live members: commit with a member's id and its epoch"
    if not members:
        text = f"group {name} has no live members: commit without member id and epoch"
    raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, text)


def _find_member(
    state: GroupsState, name: GroupId, member_id: InstanceId | None, member_epoch: int | None
) -> tuple[Group, Instance, Session]:
    assert member_id is not None
    group, member, session = state.find(InstanceKey(name, member_id))
    if member.member is None or member.member_epoch != member_epoch:
        text = f"member {member.name} is at epoch {member.member_epoch}, not {member_epoch}"
        raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, text)
    return group, member, session


def check_in_transaction(
    state: GroupsState,
    request: CommitPosition,
    topics: Topics,
    high_watermarks: HighWatermarks = NO_HIGH_WATERMARKS,
) -> Callable[[], None]:
    """Check offsets that move with a transaction (rule S8); return the function that records them.

    An offset that would go back refuses all of it, where a plain commit just changes nothing: else
    its rows would stand there without it. An instance for which the coordinator reads may leave its
    member epoch out, because a partition that it lost meanwhile begins anew, undelivered.

    Raises:
        KafkaError: those of `commit_without_instance`; OFFSET_NOT_EXPECTED; ILLEGAL_STATE also for
            an offset that goes back, and for an instance with automatic commits.
    """
    name, moves = request.id.group, request.offsets
    offsets = [
        GroupOffset(one.topic, one.partition, one.offset, one.metadata, one.leader_epoch)
        for one in moves
    ]
    _check(offsets, topics, lowest=0)
    group, instance = state.groups.get(name) or Group(name), None
    if not _needs_no_member(state, name, request.member_id, request.member_epoch):
        group, member, session = _transacting_member(state, request)
        instance = member.name
        _note_high_watermarks(session, member, high_watermarks, topics)
        for one in offsets:
            _check_member(group, member, session, one, topics, high_watermarks)
        offsets = [_with_epoch(one, session, topics) for one in offsets]
        for one in offsets:
            if not _is_newer(group, member, one, topics):
                text = f"{one.topic}-{one.partition} is committed beyond {one.offset} already"
                raise KafkaError(ErrorCode.ILLEGAL_STATE, text)
    _check_expected(group, moves, topics)
    return lambda: _record(state, group, offsets, instance, topics)


def _transacting_member(
    state: GroupsState, request: CommitPosition
) -> tuple[Group, Instance, Session]:
    name, member_id = request.id.group, request.member_id
    assert member_id is not None
    _, member, _ = state.find(InstanceKey(name, member_id))
    epoch = request.member_epoch
    if epoch is None and not member.value.reads_itself:
        epoch = member.member_epoch
    found = _find_member(state, name, member_id, epoch)
    if not member.value.reads_itself and member.value.settings.auto_commit:
        text = f"instance {member_id} commits automatically, beside its transactions"
        raise KafkaError(ErrorCode.ILLEGAL_STATE, text)
    return found


def _check_expected(group: Group, moves: Iterable[OffsetMove], topics: Topics) -> None:
    """Compare the committed offsets with the ones that the client expects (rule S8)."""
    for one in moves:
        committed = group.committed(TopicPartition(one.topic, one.partition), topics)
        present = EXPECTED_NONE if committed is None else committed.offset
        if one.expected is not None and one.expected != present:
            text = (
                f"the committed offset of {one.topic}-{one.partition} is {present}, "
                f"not {one.expected}"
            )
            raise KafkaError(ErrorCode.OFFSET_NOT_EXPECTED, text)


def commit_delivered(
    state: GroupsState,
    key: InstanceKey,
    topics: Topics,
    partitions: Iterable[TopicPartition] | None = None,
) -> None:
    """Commit what the instance received, of these partitions or of all it may read.

    That is everything delivered, or for a token reader everything acknowledged (rule G5).
    """
    _, instance, session = state.find(key)
    wanted = instance.assignment if partitions is None else partitions
    ends: dict[TopicPartition, int] = {}
    for partition in sorted(wanted):
        position = session.position(partition, topics)
        if position is None:
            continue
        if not instance.value.is_token_reader and position.delivered:
            ends[partition] = position.next
        elif instance.value.is_token_reader and position.confirmed is not None:
            ends[partition] = position.confirmed
    _commit_ends(state, key, ends, topics)


def commit_confirmed(state: GroupsState, key: InstanceKey, topics: Topics) -> None:
    """Commit the positions returned by reads before the last one: all that a timer may commit."""
    _, instance, session = state.find(key)
    ends = {
        partition: position.confirmed
        for partition in sorted(instance.assignment)
        if (position := session.position(partition, topics)) is not None
        and position.confirmed is not None
    }
    _commit_ends(state, key, ends, topics)


def has_uncommitted(
    group: Group, session: Session, partition: TopicPartition, topics: Topics
) -> bool:
    """Return True if delivered records are not committed: the client may be processing them."""
    position = session.position(partition, topics)
    if position is None or not position.delivered:
        return False
    committed = group.committed(partition, topics)
    return committed is None or committed.offset < position.reached


def _commit_ends(
    state: GroupsState, key: InstanceKey, ends: dict[TopicPartition, int], topics: Topics
) -> None:
    group, instance, session = state.find(key)
    if not instance.value.is_subscribed and group.members:
        return  # as `check_may_commit`, but without a request to refuse
    rows = [
        _with_epoch(GroupOffset(*partition, offset), session, topics)
        for partition, offset in ends.items()
    ]
    news = [
        one
        for one in rows
        if one.topic in topics and _is_newer(group, instance, one, topics, same=False)
    ]
    _record(state, group, news, instance.name, topics)


def _check(offsets: Iterable[GroupOffset], topics: Topics, *, lowest: int) -> None:
    for count, one in enumerate(offsets, 1):
        if count > OFFSETS_PER_COMMIT_MAX:
            text = f"more than {OFFSETS_PER_COMMIT_MAX} offsets in one commit"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
        check_partition(TopicPartition(one.topic, one.partition), topics)
        if one.offset < lowest:
            text = f"offset {one.offset - lowest} of {one.topic}-{one.partition} is negative"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
        if len(one.metadata.encode()) > OFFSET_METADATA_BYTES_MAX:
            text = f"metadata of {one.topic}-{one.partition}: more than {OFFSET_METADATA_BYTES_MAX}"
            raise KafkaError(ErrorCode.OFFSET_METADATA_TOO_LARGE, f"{text} bytes")


def check_partition(partition: TopicPartition, topics: Topics) -> None:
    """Raise UNKNOWN_TOPIC_OR_PARTITION for a partition that does not exist."""
    facts = topics.get(partition.topic)
    if facts is None or not 0 <= partition.partition < facts.partitions_count:
        text = f"Partition {partition.partition} of topic {partition.topic} not found"
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)


def _check_member(
    group: Group,
    instance: Instance,
    session: Session,
    one: GroupOffset,
    topics: Topics,
    high_watermarks: HighWatermarks,
) -> None:
    """Refuse a partition that the member does not own, or an offset not delivered to it (G4)."""
    partition = TopicPartition(one.topic, one.partition)
    where = f"{one.topic}-{one.partition}"
    if partition not in instance.owned:
        text = f"No current assignment for partition {where}"
        raise KafkaError(ErrorCode.ILLEGAL_STATE, text)
    position = session.position(partition, topics)
    seen = session.high_watermark(partition, topics)
    if position is not None:
        reached: int | None = position.reached
    elif partition in high_watermarks:
        reached = max(high_watermarks[partition], seen or 0)
    else:
        start = group.restart(instance, partition, topics)
        known = [one for one in (seen, None if start is None else start.offset) if one is not None]
        reached = max(known, default=None)
    if reached is None or one.offset > reached:
        text = f"commit past what was delivered: {where} was delivered up to {reached}"
        if position is None:
            text = f"commit past the high watermark: that of {where} is {reached}"
        text = f"{text}, not up to {one.offset}"
        raise KafkaError(ErrorCode.ILLEGAL_STATE, text)


def _is_newer(
    group: Group, instance: Instance, one: GroupOffset, topics: Topics, *, same: bool = True
) -> bool:
    """Return True if an offset is newer than the committed one, or follows a seek (rule G4).

    In one log a lower offset never has a higher epoch. So one of a member that reads for itself is
    newer, if both epochs are known: the log was cut below the committed offset. ``same``: a repeat
    of the committed offset counts too, since it may have new metadata.
    """
    partition = TopicPartition(one.topic, one.partition)
    committed = group.committed(partition, topics)
    if committed is None:
        return True
    seek = instance.seeks.get(partition)
    if seek is not None and is_present(partition, seek, topics) and one.offset >= seek.offset:
        return True
    if one.offset < committed.offset:
        # It has read on in a log that was cut (KIP-320). An instance's move back is a seek instead.
        return instance.value.reads_itself and one.leader_epoch > committed.leader_epoch >= 0
    return one.offset > committed.offset or same


def _with_epoch(one: GroupOffset, session: Session, topics: Topics) -> GroupOffset:
    """Return an offset to commit with its epoch: the client's, else as it was delivered."""
    if one.leader_epoch != NO_EPOCH:
        return one
    position = session.position(TopicPartition(one.topic, one.partition), topics)
    epoch = NO_EPOCH if position is None else position.epoch_of(one.offset)
    return replace(one, leader_epoch=epoch)


def _record(
    state: GroupsState,
    group: Group,
    offsets: Iterable[GroupOffset],
    instance: InstanceId | None,
    topics: Topics,
) -> None:
    for one in offsets:
        value = OffsetValue(
            topic_id=topics[one.topic].topic_id,
            offset=one.offset,
            metadata=one.metadata,
            instance=instance,
            committed_ms=state.trusted_ms,
            leader_epoch=one.leader_epoch,
        )
        reader = None if instance is None else group.instances.get(instance)
        seek = (
            None if reader is None else reader.seeks.get(TopicPartition(one.topic, one.partition))
        )
        state.apply(ShardRecord(OffsetKey(group.name, one.topic, one.partition), value))
        if instance is not None and seek is not None and ends_seek(value, seek):
            # A record of its own: a later commit may replace this one in the compacted log.
            state.apply(ShardRecord(SeekKey(group.name, instance, one.topic, one.partition), None))
        drop_passed(state, group, TopicPartition(one.topic, one.partition), one.offset)
