"""Records that stop a consumer instance, and the way past one of them. Pure.

A record that an instance's format can't show stops its partition for that instance and no other.
The `reader` notes it in the instance's session (`note_read`), where it holds as long as the
instance reads there: a seek, a lost partition or a record that was deleted meanwhile ends it. So it
is soft state: after a coordinator's death the next read finds the record again.

An operator steps over exactly one record (`step_over`), named by its offset and its leader epoch,
because after an unclean election another record may have the offset. That is a fact in the log, and
no seek: what is in front of the record may be delivered and not committed, or not be received by a
token reader (rule G5), so no position moves. It counts for all instances of the group, because the
partition may get another owner, until a commit passes the record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from broker.coordinator.group_messages import BlockedPartition, SkippedRecord
from broker.coordinator.group_state import (
    BlockedRecord,
    Group,
    GroupsState,
    Instance,
    Session,
    Topics,
    is_present,
)
from broker.coordinator.positions import ReadPosition
from broker.coordinator.records import InstanceKey, ShardRecord, SkipKey, SkipValue, StoredRecord
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import TopicPartition

STEPPED_OVER_MAX = 1_000
"""Most records of one partition that are stepped over and not committed."""


def note_read(
    session: Session,
    partition: TopicPartition,
    position: ReadPosition,
    passed: int,
    found: tuple[StoredRecord, str] | None = None,
    now_ms: int = 0,
) -> None:
    """Remember what a read found in a partition.

    ``passed``: all records below it can be shown, are stepped over, or do not exist. ``found``:
    the record there and the message, if that can't be shown.
    """
    known = session.blocked.get(partition)
    if session.positions.get(partition) is not position:
        return
    if found is None:
        if known is not None and (known.position is not position or known.offset < passed):
            del session.blocked[partition]
    elif known is None or known.position is not position or known.record != found[0]:
        session.blocked[partition] = BlockedRecord(position, *found, now_ms)


def blocked_records(
    group: Group, instance: Instance, session: Session, topics: Topics
) -> Iterator[tuple[TopicPartition, BlockedRecord]]:
    """Yield the records that stop an instance now, sorted by partition."""
    for partition in sorted(session.blocked):
        found = session.blocked[partition]
        if (
            partition in instance.assignment
            and session.position(partition, topics) is found.position
            and found.position.next <= found.offset
            and found.record not in stepped_over(group, partition, topics)
        ):
            yield partition, found


def blocked_partitions(
    state: GroupsState, group: Group, topics: Topics
) -> tuple[BlockedPartition, ...]:
    """Return everything that stops an instance of a group."""
    return tuple(
        BlockedPartition(
            topic=partition.topic,
            partition=partition.partition,
            offset=found.offset,
            instance=name,
            message=found.message,
            since_ms=found.since_ms,
        )
        for name in sorted(group.instances)
        if state.sessions[InstanceKey(group.name, name)].blocked
        for partition, found in blocked_records(
            group, group.instances[name], state.sessions[InstanceKey(group.name, name)], topics
        )
    )


def blocked_offsets(blocked: Iterable[BlockedPartition]) -> Mapping[TopicPartition, int]:
    """Return the first blocked offset of each partition."""
    found: dict[TopicPartition, int] = {}
    for one in blocked:
        place = TopicPartition(one.topic, one.partition)
        found[place] = min(one.offset, found.get(place, one.offset))
    return found


# stepping over


def stepped_over(
    group: Group, partition: TopicPartition, topics: Topics
) -> frozenset[StoredRecord]:
    """Return the records of a partition that the group's readers step over."""
    found = group.skips.get(partition)
    if found is None or not is_present(partition, found, topics):
        return frozenset()
    return frozenset(found.records)


def step_over(
    state: GroupsState, group: Group, records: Iterable[SkippedRecord], topics: Topics
) -> None:
    """Have the group step over these records: all of them or none. A repeat changes nothing.

    Raises:
        KafkaError: ILLEGAL_STATE for a record that stops no instance of the group;
            INVALID_REQUEST for more than `STEPPED_OVER_MAX` in one partition.
    """
    blocking = {
        (place, found.offset): found.record
        for name, instance in group.instances.items()
        for place, found in blocked_records(
            group, instance, state.sessions[InstanceKey(group.name, name)], topics
        )
    }
    chosen: dict[TopicPartition, set[StoredRecord]] = {}
    for record in records:
        place = TopicPartition(record.topic, record.partition)
        before = stepped_over(group, place, topics)
        blocker = blocking.get((place, record.offset))
        if blocker is None and all(one.offset != record.offset for one in before):
            text = f"offset {record.offset} of {place.topic}-{place.partition} stops no member of "
            raise KafkaError(ErrorCode.ILLEGAL_STATE, f"{text}group {group.name}")
        chosen.setdefault(place, set(before)).update({blocker} if blocker else ())
        if len(chosen[place]) > STEPPED_OVER_MAX:
            text = f"more than {STEPPED_OVER_MAX} records of {place.topic}-{place.partition}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{text} are stepped over: commit first")
    for place, records_of in sorted(chosen.items()):
        if records_of != stepped_over(group, place, topics):
            value = SkipValue(topics[place.topic].topic_id, tuple(sorted(records_of)))
            state.apply(ShardRecord(SkipKey(group.name, *place), value))


def drop_passed(state: GroupsState, group: Group, partition: TopicPartition, offset: int) -> None:
    """Forget records that were stepped over and are behind a commit."""
    found = group.skips.get(partition)
    if found is None:
        return
    kept = tuple(one for one in found.records if one.offset >= offset)
    if kept != found.records:
        value = SkipValue(found.topic_id, kept) if kept else None
        state.apply(ShardRecord(SkipKey(group.name, *partition), value))
