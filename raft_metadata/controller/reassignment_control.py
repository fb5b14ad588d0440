"""Reassignment of partitions (KIP-455): grow, wait for the ISR, shrink; or cancel. Pure deciders.

`reassign` adds the new replicas beside the old ones; they catch up and join the ISR when their
leader proposes it: nothing here ever adds to an ISR (invariant P8). Once all of them are in it,
``heal`` calls `complete_reassignment`, on whichever controller is active by then.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from raft_metadata.common.configs.table import MIN_INSYNC_REPLICAS
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import BrokerId, MetadataOffset, TopicIdPartition
from raft_metadata.controller.broker_views import (
    BrokerViews,
    first_electable,
    has_complete_report,
    is_electable,
)
from raft_metadata.controller.partition_draft import NO_BROKERS, PartitionDraft, partition_at
from raft_metadata.controller.topic_rules import TopicDefaults, TopicRules
from raft_metadata.image.metadata_image import MetadataImage, PartitionRegistration
from raft_metadata.records.commands import AlterAnswer, AlterReassignments, Reassignment
from raft_metadata.records.records import DrainScope, PartitionChangeRecord

REASSIGNMENTS_MAX = 1_000
"""Partitions in one command: 300 KB of records, all or none of which are appended."""


# ---- commands


def decide_alter_reassignments(
    image: MetadataImage, command: AlterReassignments, *, defaults: TopicDefaults
) -> tuple[tuple[PartitionChangeRecord, ...], AlterAnswer]:
    """Start, change or cancel reassignments: all of them, or none where one is refused.

    An unchanged target adds no record, so a repeat is answered alike. A target is refused while a
    broker that it adds is not live or is drained of its replicas. A cancellation, or a target that
    drops a replica that was being added, is refused while that replica is needed: it may hold the
    only copy of records.
    """
    _check_count(command.changes)
    records = []
    for change in command.changes:
        record = _decide_one(image, change, defaults)
        if record is not None:
            records.append(record)
    answer = AlterAnswer(next_offset=image.offset_after(len(records)))
    return tuple(records), answer


def _check_count(changes: Sequence[Reassignment]) -> None:
    if not 1 <= len(changes) <= REASSIGNMENTS_MAX:
        message = f"{len(changes)} reassignments: a request has 1 to {REASSIGNMENTS_MAX} of them"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    seen = set()
    for change in changes:
        place = (change.topic, change.partition)
        if place in seen:
            message = f"{change.topic}-{change.partition} is named twice"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        seen.add(place)


def _decide_one(
    image: MetadataImage, change: Reassignment, defaults: TopicDefaults
) -> PartitionChangeRecord | None:
    name = f"{change.topic}-{change.partition}"
    topic = image.topic(change.topic)
    partition = None if topic is None else image.partition(topic.topic_id, change.partition)
    if topic is None or partition is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name} does not exist")
    if not topic.is_complete:
        message = f"partitions of topic {topic.name} are still being created; try again then"
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    if change.replicas is None and not partition.is_reassigning:
        message = f"{name} is not being reassigned"
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, message)
    target = original_replicas(partition) if change.replicas is None else change.replicas
    rules = TopicRules(image, topic, defaults)
    if change.replicas is not None:
        _check_target(image, name, partition, target, rules)
    where = partition_at(topic.topic_id, change.partition)
    return reassign(image, where, name, partition, target, rules)


def _check_target(
    image: MetadataImage,
    name: str,
    partition: PartitionRegistration,
    target: tuple[BrokerId, ...],
    rules: TopicRules,
) -> None:
    """Raise unless the target's brokers are distinct and registered, and new ones live (rule M8).

    A replica that stays may be down: with one broker dead the others can still be rearranged.
    """
    if not target or len(set(target)) != len(target):
        message = f"{name}: {list(target)} are not distinct replicas, at least one"
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    coming = [broker_id for broker_id in target if broker_id not in partition.replicas]
    unknown = [broker_id for broker_id in target if broker_id not in image.brokers]
    down = [broker_id for broker_id in coming if not is_electable(image.brokers, broker_id)]
    emptied = [
        broker_id
        for broker_id in coming
        if broker_id in image.brokers and image.brokers[broker_id].drain is DrainScope.REPLICAS
    ]
    for brokers, problem in (
        (unknown, "not registered"),
        (down, "not live"),
        (emptied, "being drained of their replicas"),
    ):
        if brokers:
            message = f"{name}: brokers {brokers} are {problem}"
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    if rules.min_isr(len(target)) > len(target):
        message = (
            f"{name}: {len(target)} replicas could never reach "
            f"{MIN_INSYNC_REPLICAS} {rules.min_isr(len(target))}"
        )
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


# ---- steps


def reassign(
    image: MetadataImage,
    where: TopicIdPartition,
    name: str,
    partition: PartitionRegistration,
    target: tuple[BrokerId, ...],
    rules: TopicRules,
) -> PartitionChangeRecord | None:
    """Return the change to this target, or None if there is none. ``name`` is for messages.

    The old replicas stay until the new ones are in sync. Replicas that an earlier target was adding
    are removed, but only if they are not needed; else NOT_ENOUGH_REPLICAS. Those of them in the ISR
    may lead: they are in ``adding`` *and* in ``removing`` until `complete_reassignment` removes
    them.
    """
    original = original_replicas(partition)
    wanted = {*original, *target}
    unwanted = [replica for replica in partition.isr if replica not in wanted]
    draft = PartitionDraft.of(partition)
    draft.keep_replicas({*wanted, *unwanted})
    directories = dict(zip(draft.replicas, draft.directories, strict=True))
    draft.replicas = (*merge_replica_lists(original, target), *unwanted)
    draft.directories = tuple(
        directories.get(broker_id) or image.brokers[broker_id].directory_id
        for broker_id in draft.replicas
    )
    coming = [broker_id for broker_id in target if broker_id not in original]
    going = [broker_id for broker_id in original if broker_id not in target]
    draft.adding = (*coming, *unwanted)
    draft.removing = (*going, *unwanted)
    min_isr = rules.min_isr(draft.replication_factor)
    _check_not_needed(name, partition, wanted, min_isr)
    draft.remember_last_leader(())
    draft.keep_eligible(min_isr)
    if draft.new_leader_epoch and partition.has_leader and not _may_lead_on(image, draft):
        staying = [replica for replica in draft.isr if replica in wanted]
        leader = first_electable(image.brokers, draft.replicas, staying)
        if leader is None:
            message = f"{name}: no replica of the ISR {staying} that stays could lead now"
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, message)
        draft.lead(leader)
    return draft.changed_record(where)


def _may_lead_on(image: MetadataImage, draft: PartitionDraft) -> bool:
    """Return True if the leader may also lead in the new leader epoch.

    A broker that has registered again has not led yet since then (rule R3), and may have an empty
    disk (rule R6); a new epoch after its registration would make it the leader.
    """
    return draft.leader in draft.isr and is_electable(image.brokers, draft.leader)


def _check_not_needed(
    name: str, partition: PartitionRegistration, wanted: Collection[BrokerId], min_isr: int
) -> None:
    """Raise NOT_ENOUGH_REPLICAS if removed replicas may be needed (invariant P8).

    They are needed while too few in-sync replicas would remain to keep all acknowledged records.
    While no replica is eligible, only the last known ones may hold acknowledged records, which an
    unclean election can still save.
    """
    needed = (*partition.isr, *partition.elr) or partition.last_known_elr
    going = [replica for replica in needed if replica not in wanted]
    stay = [replica for replica in partition.isr if replica in wanted]
    if going and len(stay) < min_isr:
        message = (
            f"{name}: replicas {going}, which may be needed, would go and only {stay} stay in "
            f"sync, {MIN_INSYNC_REPLICAS} is {min_isr}; wait until others have caught up"
        )
        raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, message)


def complete_reassignment(
    views: BrokerViews,
    draft: PartitionDraft,
    rules: TopicRules,
    damaged: Collection[BrokerId] = NO_BROKERS,
) -> None:
    """Remove the replicas that are to leave once all new ones are in the ISR.

    Does nothing unless enough stay in sync and one of them can lead (invariant P8). A new leader
    epoch fences the removed replicas. Replicas with ``damaged`` logs don't count: a replica that is
    to leave may hold the records they lack. A leader that is to leave first gives up its
    leadership, and is removed once it has applied that (`unaware_removed_replicas`).
    """
    coming = [replica for replica in draft.adding if replica not in draft.removing]
    sound = [
        replica
        for replica in draft.isr
        if replica not in damaged and has_complete_report(views.complete_reporters, replica)
    ]
    if not all(replica in sound for replica in coming):
        return
    stay = [replica for replica in sound if replica not in draft.removing]
    target = [replica for replica in draft.replicas if replica not in draft.removing]
    if not stay or len(stay) < rules.min_isr(len(target)):
        return
    leader = first_electable(views.brokers, target, stay)
    if leader is None:
        return
    draft.leaving = draft.removing
    if draft.leader in draft.removing and draft.leader in draft.isr:
        draft.lead(leader)
    elif not unaware_removed_replicas(views, draft.before):
        draft.keep_replicas(target)
        draft.adding = draft.removing = ()


def unaware_removed_replicas(
    views: BrokerViews, partition: PartitionRegistration
) -> tuple[BrokerId, ...]:
    """Return the replicas to remove that may not have applied the leader epoch yet (rule G3).

    A live leader that was deposed considers itself the leader until it has applied that, and
    answers reads, for which its heartbeats are the proof. While it is in the ISR, its successor
    commits nothing without it, so its answers stay true. A broker that is not unfenced has no such
    proof (rule R8 for its answers about ends) and is not waited for.
    """
    return tuple(
        replica
        for replica in partition.removing
        if is_electable(views.brokers, replica)
        and views.reported_offsets.get(replica, MetadataOffset(0)) <= partition.leader_epoch_offset
    )


def original_replicas(partition: PartitionRegistration) -> tuple[BrokerId, ...]:
    """Return the replicas before the reassignment in progress; without one, the replicas."""
    return tuple(replica for replica in partition.replicas if replica not in partition.adding)


def merge_replica_lists(
    original: Sequence[BrokerId], target: Sequence[BrokerId]
) -> tuple[BrokerId, ...]:
    """Return both lists as one, in the order of ``target`` and, if possible, of ``original``.

    A cancellation restores the original order. Where the target reorders replicas that stay, its
    own order comes first, and the replicas to remove follow.
    """
    stay = [broker_id for broker_id in target if broker_id in original]
    leaving = [broker_id for broker_id in original if broker_id not in target]
    if stay != [broker_id for broker_id in original if broker_id in target]:
        return (*target, *leaving)
    both: list[BrokerId] = []
    rest = list(original)
    for broker_id in target:
        if broker_id in original:
            at_original = rest.index(broker_id)
            both += rest[:at_original]
            rest = rest[at_original + 1 :]
        both.append(broker_id)
    return (*both, *rest)
