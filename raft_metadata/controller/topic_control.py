"""Topics: creation, placement of replicas, added partitions, deletion. Pure deciders (decision D1).

A topic too large for one batch is created by several: the first one records the number of its
partitions, the others add them, and whichever controller is active continues (`decide_growth`).

`place` is the scheme of Kafka's StripedReplicaPlacer: leaders rotate over all brokers, racks
alternating; the distance of the followers from their leader grows with every round, so that the
partitions led by a dead broker are spread equally over all others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest

from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import (
    BrokerId,
    LeaderEpoch,
    PartitionEpoch,
    PartitionId,
    TopicId,
)
from raft_metadata.common.internal_topics import INTERNAL_TOPICS
from raft_metadata.controller.configuration_control import (
    topic_config_records,
    validated_topic_configs,
)
from raft_metadata.controller.topic_rules import TopicDefaults
from raft_metadata.image.metadata_image import MetadataImage, TopicImage, find_topic
from raft_metadata.records.commands import (
    AddPartitions,
    CreateTopic,
    DeleteTopic,
    PartitionsAdded,
    TopicCreated,
    TopicDeleted,
)
from raft_metadata.records.records import (
    BrokerState,
    DrainScope,
    MetadataRecord,
    PartitionRecord,
    PartitionsCountRecord,
    RemoveTopicRecord,
    TopicRecord,
)


def place(
    racks: Mapping[BrokerId, str | None],
    *,
    partitions: Iterable[int],
    replication_factor: int,
    start: int,
) -> list[tuple[BrokerId, ...]]:
    """Return the replicas of each partition index, the preferred leader first.

    Args:
        racks: the brokers to place on, and the rack of each; None is one rack of its own.
        partitions: indexes; those of one topic continue the same stripe with the same ``start``.
        replication_factor: distinct brokers per partition, at most ``len(racks)``.
        start: a random number >= 0 that decides where the stripe begins.
    """
    assert 1 <= replication_factor <= len(racks), (replication_factor, len(racks))
    named = {broker_id: rack or "" for broker_id, rack in racks.items()}
    brokers = _alternating(named)
    rack_count = len(set(named.values()))
    first, shift = start % len(brokers), start // len(brokers)
    return [
        _stripe(
            brokers,
            named,
            replication_factor,
            leader=(index + first) % len(brokers),
            shift=(shift + index // len(brokers)) * rack_count,
        )
        for index in partitions
    ]


def _alternating(racks: Mapping[BrokerId, str]) -> list[BrokerId]:
    """Return the brokers in an order where neighbours are in different racks as far as possible."""
    by_rack: dict[str, list[BrokerId]] = {}
    for broker_id in sorted(racks):
        by_rack.setdefault(racks[broker_id], []).append(broker_id)
    rounds = zip_longest(*(by_rack[rack] for rack in sorted(by_rack)))
    return [broker_id for round_ in rounds for broker_id in round_ if broker_id is not None]


def _stripe(
    brokers: list[BrokerId],
    racks: Mapping[BrokerId, str],
    replication_factor: int,
    *,
    leader: int,
    shift: int,
) -> tuple[BrokerId, ...]:
    """Return the replicas of one partition, each in a rack without a replica while there is one."""
    replicas = [brokers[leader]]
    used = {racks[brokers[leader]]}
    rack_count = len(set(racks.values()))
    step = 0
    while len(replicas) < replication_factor:
        distance = 1 + (shift + step) % (len(brokers) - 1)
        step += 1
        candidate = brokers[(leader + distance) % len(brokers)]
        rack = racks[candidate]
        if candidate in replicas or (rack in used and len(used) < rack_count):
            continue
        replicas.append(candidate)
        used.add(rack)
    return tuple(replicas)


_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{22}")


def live_brokers(image: MetadataImage, wanted: int | None = None) -> dict[BrokerId, str | None]:
    """Return the rack of every broker that takes replicas: unfenced, and not drained of them.

    ``wanted``: the number of replicas of a partition; brokers that are drained of leaderships are
    left out if there are as many others.
    """
    live = [
        broker
        for _, broker in sorted(image.brokers.items())
        if broker.state is BrokerState.UNFENCED and broker.drain is not DrainScope.REPLICAS
    ]
    undrained = [broker for broker in live if broker.drain is DrainScope.NONE]
    if wanted is not None and len(undrained) >= wanted:
        live = undrained
    return {broker.broker_id: broker.rack for broker in live}


def decide_create_topic(
    image: MetadataImage, command: CreateTopic, *, defaults: TopicDefaults, start: int
) -> tuple[tuple[MetadataRecord, ...], TopicCreated]:
    """Create the topic, its configs and its first partitions; `decide_growth` adds the others.

    A repeat (same name and proposed id) is answered alike (rule F1). ``start`` is the random start
    of the placement. ``next_offset`` of the answer is the offset after these records.
    """
    _check_name(command)
    defaults = defaults.in_force(image)
    present = image.topic(command.name)
    if present is not None:
        return (), _answer_repeat(image, command, present)
    if command.topic_id in image.topics:
        message = f"topic id {command.topic_id} belongs to another topic"
        raise KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID, message)
    if command.replicas_assignments is None:
        count, factor = _counts(image, command, defaults)
        first = range(min(count, defaults.partitions_per_batch_max))
        racks = live_brokers(image, factor)
        placed = place(racks, partitions=first, replication_factor=factor, start=start)
    else:
        placed = _assignments(image, command, command.replicas_assignments, defaults)
        count, factor = len(placed), len(placed[0])
    _check_total(image, count, defaults)
    configs = validated_topic_configs(command.configs, factor)
    records: tuple[MetadataRecord, ...] = (
        TopicRecord(name=command.name, topic_id=command.topic_id, partitions_count=count),
        *topic_config_records(command.topic_id, configs),
        *_partition_records(image, command.topic_id, 0, placed),
    )
    if command.validate_only:
        records = ()
    answer = TopicCreated(
        topic_id=command.topic_id,
        partitions_count=count,
        replication_factor=factor,
        next_offset=image.offset_after(len(records)),
    )
    return records, answer


def decide_growth(
    image: MetadataImage, topic_id: TopicId, *, defaults: TopicDefaults, start: int
) -> tuple[PartitionRecord, ...]:
    """Return the next partitions of a topic that is still being created or extended.

    Empty while too few brokers are alive: call it again later. The same ``start`` continues the
    same stripe; another one, after a change of controller, is as good.
    """
    topic = image.topics.get(topic_id)
    if topic is None or topic.is_complete:
        return ()
    done = len(topic.partitions)
    factor = defaults.in_force(image).default_replication_factor
    if topic.partitions:
        factor = topic.replication_factor
    racks = live_brokers(image, factor)
    if len(racks) < factor:
        return ()
    more = range(done, min(topic.partitions_count, done + defaults.partitions_per_batch_max))
    placed = place(racks, partitions=more, replication_factor=factor, start=start)
    return _partition_records(image, topic_id, done, placed)


def decide_add_partitions(
    image: MetadataImage, command: AddPartitions, *, defaults: TopicDefaults, start: int
) -> tuple[tuple[MetadataRecord, ...], PartitionsAdded]:
    """Record the new number of partitions and the first new ones; `decide_growth` adds the others.

    Internal topics keep their number: it determines the partition that holds a group.

    Raises:
        KafkaError: UNKNOWN_TOPIC_OR_PARTITION, INVALID_PARTITIONS (as many or fewer, too many,
            still growing), INVALID_REPLICATION_FACTOR, INVALID_REPLICA_ASSIGNMENT,
            POLICY_VIOLATION (an internal topic, the cluster's total).
    """
    topic = find_topic(image, command.topic)
    if topic.name in INTERNAL_TOPICS:
        message = f"{topic.name} is the cluster's own: its number of partitions never changes"
        raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
    done, count = topic.partitions_count, command.partitions_count
    _check_growth(topic, count, defaults)
    _check_total(image, count - done, defaults)
    if command.replicas_assignments is None:
        racks = live_brokers(image, topic.replication_factor)
        _check_factor(racks, topic.replication_factor)
        first = range(done, min(count, done + defaults.partitions_per_batch_max))
        factor = topic.replication_factor
        placed = place(racks, partitions=first, replication_factor=factor, start=start)
    else:
        assigned = command.replicas_assignments
        if sorted(assigned) != list(range(done, count)):
            message = f"replicas_assignments must name the new partitions {done} to {count - 1}"
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
        _check_assignments(image, assigned, topic.replication_factor, defaults)
        placed = [assigned[partition] for partition in range(done, count)]
    records: tuple[MetadataRecord, ...] = (
        PartitionsCountRecord(topic_id=topic.topic_id, partitions_count=count),
        *_partition_records(image, topic.topic_id, done, placed),
    )
    answer = PartitionsAdded(
        topic_id=topic.topic_id,
        partitions_count=count,
        next_offset=image.offset_after(len(records)),
    )
    return records, answer


def decide_delete_topic(
    image: MetadataImage, command: DeleteTopic
) -> tuple[tuple[RemoveTopicRecord, ...], TopicDeleted]:
    """Delete a topic by one record, whatever its size; applying it drops partitions and configs."""
    topic = find_topic(image, command.name)
    answer = TopicDeleted(topic_id=topic.topic_id, next_offset=image.offset_after(1))
    return (RemoveTopicRecord(topic_id=topic.topic_id),), answer


# ---- checks of a creation


def _check_name(command: CreateTopic) -> None:
    name = command.name
    if not _NAME.fullmatch(name) or name in (".", ".."):
        message = (
            f"topic name {name[:260]!r} is invalid: "
            "1 to 249 of letters, digits, '.', '_' and '-', and not '.' or '..'"
        )
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
    if not _TOPIC_ID.fullmatch(command.topic_id):
        message = f"topic id {command.topic_id[:40]!r} is not 22 characters of base64"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def _answer_repeat(image: MetadataImage, command: CreateTopic, present: TopicImage) -> TopicCreated:
    """Return the answer to a repeated creation; raise TOPIC_ALREADY_EXISTS for any other."""
    if present.topic_id != command.topic_id or command.validate_only:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {command.name} already exists")
    return TopicCreated(
        topic_id=present.topic_id,
        partitions_count=present.partitions_count,
        replication_factor=present.replication_factor if present.partitions else 0,
        next_offset=image.next_offset,
    )


def _counts(image: MetadataImage, command: CreateTopic, defaults: TopicDefaults) -> tuple[int, int]:
    """Return (partitions, replication factor), requested or configured, never reduced."""
    count, factor = command.partitions_count, command.replication_factor
    count = defaults.num_partitions if count is None else count
    factor = defaults.default_replication_factor if factor is None else factor
    _check_count(count, defaults)
    _check_factor(live_brokers(image, factor), factor)
    return count, factor


def _check_count(count: int, defaults: TopicDefaults) -> None:
    most = defaults.partitions_per_topic_max
    if not 1 <= count <= most:
        message = f"{count} partitions: a topic has 1 to {most} of them"
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, message)


def _check_factor(live: Mapping[BrokerId, str | None], factor: int) -> None:
    if factor < 1 or factor > len(live):
        names = f" ({', '.join(map(str, live))})" if live else ""
        number = f"the number of live brokers {len(live)}{names}, without drained ones"
        message = f"replication factor {factor} must be at least 1 and at most {number}"
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, message)


def _check_growth(topic: TopicImage, count: int, defaults: TopicDefaults) -> None:
    present = topic.partitions_count
    if not topic.is_complete:
        message = (
            f"topic {topic.name} is still being given its {present} partitions: "
            f"{len(topic.partitions)} are there"
        )
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, message)
    if count <= present:
        message = f"topic {topic.name} has {present} partitions, {count} are not more"
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, message)
    _check_count(count, defaults)


def _assignments(
    image: MetadataImage,
    command: CreateTopic,
    assignments: dict[int, tuple[BrokerId, ...]],
    defaults: TopicDefaults,
) -> list[tuple[BrokerId, ...]]:
    """Return explicit replicas: of every partition, distinct, live, the same number everywhere."""
    if command.partitions_count is not None or command.replication_factor is not None:
        message = "replicas_assignments excludes partitions_count and replication_factor"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    if not assignments or sorted(assignments) != list(range(len(assignments))):
        message = "replicas_assignments must name the partitions 0, 1, 2, … without a gap"
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    _check_assignments(image, assignments, len(assignments[0]), defaults)
    return [assignments[partition] for partition in range(len(assignments))]


def _check_assignments(
    image: MetadataImage,
    assignments: Mapping[int, tuple[BrokerId, ...]],
    factor: int,
    defaults: TopicDefaults,
) -> None:
    limit = min(defaults.partitions_per_batch_max, defaults.partitions_per_topic_max)
    if len(assignments) > limit:
        # All must fit into one batch: another controller could not know the remaining ones.
        message = f"{len(assignments)} assignments, at most {limit} fit into one request"
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, message)
    live = live_brokers(image)
    for partition, replicas in sorted(assignments.items()):
        if not replicas or len(replicas) != factor or len(set(replicas)) != factor:
            expected = f"{factor or 'at least one'} distinct broker ids"
            message = f"partition {partition}: replicas {list(replicas)}, expected {expected}"
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
        missing = [replica for replica in replicas if replica not in live]
        if missing:
            message = f"partition {partition}: brokers {missing} are not live, or drained"
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def _check_total(image: MetadataImage, count: int, defaults: TopicDefaults) -> None:
    present = sum(topic.partitions_count for topic in image.topics.values())
    if present + count > defaults.partitions_max:
        message = f"{present} partitions exist, {count} more would exceed {defaults.partitions_max}"
        raise KafkaError(ErrorCode.POLICY_VIOLATION, message)


def _partition_records(
    image: MetadataImage, topic_id: TopicId, first: int, placed: Sequence[tuple[BrokerId, ...]]
) -> tuple[PartitionRecord, ...]:
    """Return records of new partitions: all replicas are empty, so in sync; the first leads."""
    return tuple(
        PartitionRecord(
            topic_id=topic_id,
            partition=PartitionId(index),
            replicas=replicas,
            directories=tuple(image.brokers[replica].directory_id for replica in replicas),
            isr=replicas,
            elr=(),
            leader=replicas[0],
            leader_epoch=LeaderEpoch(0),
            partition_epoch=PartitionEpoch(0),
        )
        for index, replicas in enumerate(placed, first)
    )
