"""What follows from replicas whose logs are damaged, as their brokers say with each heartbeat.

A damaged replica leaves ISR and ELR, and never leads while a sound one can (rules Q5, R6); its
broker empties it once it sees that committed, and fills it again. Four things hold here.

- Who is taken out is fenced off by a new leader epoch, if its log took part in the present one:
  nothing that was proposed before can put it back, and its leader counts it again only in a
  session that the new log has asked for (rule R4).
- Nobody is taken out where nobody sound could take over at once: what a damaged leader still holds
  is served until then, and of two damaged ones neither is emptied: each may hold what the other
  lacks. Somebody sound who is away may never come back, or not as sound as he went.
- Nobody is taken out on a report of the past (`damage_reports`): elections alone avoid him then.
- A damaged leader gives up its leadership first and stays in the ISR until it has heard of that: so
  long its successor commits nothing without it, and what it answers to readers is so (rule G3).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from raft_metadata.common.ids import BrokerId, MetadataOffset, TopicIdPartition
from raft_metadata.controller.broker_views import (
    Brokers,
    BrokerViews,
    is_electable,
    is_told_of,
)
from raft_metadata.controller.partition_draft import NOBODY, PartitionDraft
from raft_metadata.image.metadata_image import PartitionRegistration
from raft_metadata.records.commands import FailedReplica
from raft_metadata.records.records import BrokerState

Damaged = Mapping[BrokerId, FailedReplica]
"""Who says that its log of one partition is damaged."""
NOBODY_DAMAGED: Damaged = MappingProxyType({})


def damaged_replicas(views: BrokerViews, where: TopicIdPartition) -> Damaged:
    """Of this partition."""
    return views.failed.get(where, NOBODY_DAMAGED)


def believed(damaged: Damaged, partition: PartitionRegistration) -> Damaged:
    """The reports of the logs that lie there now: the others may have been filled again since.

    An emptied log is counted, or leads, only by a change of the partition that came later. So a
    report that knows the present state of the partition is of that log, or of one that counts
    nowhere, and elections have nothing more to fear from it than a moment without a leader.
    """
    return {
        replica: one
        for replica, one in damaged.items()
        if one.partition_epoch >= partition.partition_epoch
    }


def unsure_replicas(
    brokers: Brokers, draft: PartitionDraft, damaged: Damaged
) -> tuple[BrokerId, ...]:
    """Those that count, live, and are about to say whether they are damaged still."""
    believable = believed(damaged, draft.before)
    return tuple(
        replica
        for replica in (*draft.isr, *draft.elr)
        if replica in damaged and replica not in believable and is_electable(brokers, replica)
    )


def unable_replicas(damaged: Damaged) -> frozenset[BrokerId]:
    """Those of them that can't even serve what is left."""
    return frozenset(replica for replica, failed in damaged.items() if not failed.can_lead)


def leaving_replicas(
    views: BrokerViews,
    where: TopicIdPartition,
    partition: PartitionRegistration,
    lost: Collection[BrokerId],
) -> frozenset[BrokerId]:
    """Who is to be taken out of ISR and ELR now.

    Those too that are in neither, but took part in the present leader epoch: their leader may be
    about to propose them. ``lost``: replicas that lose their places for another reason.
    """
    wanted = _unwanted(views, where, partition, lost)
    if not wanted:
        return NOBODY
    return wanted.difference(_unaware(views, where, partition, wanted, lost))


def unaware_failed(
    views: BrokerViews, where: TopicIdPartition, partition: PartitionRegistration
) -> frozenset[BrokerId]:
    """Who is to be taken out as soon as it has heard who leads (rule G3)."""
    return _unaware(views, where, partition, _unwanted(views, where, partition, ()), ())


def took_part(
    views: BrokerViews,
    where: TopicIdPartition,
    partition: PartitionRegistration,
    replicas: Collection[BrokerId],
) -> bool:
    """Whether the log of any of these took part in the present leader epoch."""
    said = views.failed.get(where, NOBODY_DAMAGED)
    return any(
        replica in said and said[replica].leader_epoch >= partition.leader_epoch
        for replica in replicas
    )


def _unwanted(
    views: BrokerViews,
    where: TopicIdPartition,
    partition: PartitionRegistration,
    lost: Collection[BrokerId],
) -> frozenset[BrokerId]:
    reported = views.failed.get(where)
    said = believed(reported, partition) if reported else NOBODY_DAMAGED
    if not said:
        return NOBODY
    counting = {*partition.isr, *partition.elr, partition.leader}
    concerned = frozenset(
        replica
        for replica, failed in said.items()
        if replica in partition.replicas
        and (replica in counting or failed.leader_epoch >= partition.leader_epoch)
    )
    unable = frozenset(replica for replica in concerned if not said[replica].can_lead)
    leader = said.get(partition.leader)
    if leader is not None and leader.can_lead:
        return unable
    sound = _sound(views, where, partition, lost)
    at_once = any(_may_commit(views.brokers, partition, replica) for replica in sound)
    return concerned if at_once else unable


def _sound(
    views: BrokerViews,
    where: TopicIdPartition,
    partition: PartitionRegistration,
    lost: Collection[BrokerId],
) -> list[BrokerId]:
    """Who counts, and is known not to be damaged."""
    said = views.failed.get(where, NOBODY_DAMAGED)
    return [
        replica
        for replica in (*partition.isr, *partition.elr)
        if replica not in said and replica not in lost and is_told_of(views.told, replica)
    ]


def _unaware(
    views: BrokerViews,
    where: TopicIdPartition,
    partition: PartitionRegistration,
    leaving: Collection[BrokerId],
    lost: Collection[BrokerId],
) -> frozenset[BrokerId]:
    """Those that may have led until now, and answer reads as if they still did.

    Where nobody sound could lead now nothing is committed, and what they say stays so. Their
    successor may die before they have heard of it: then the next one has to wait for them.
    """
    said = views.failed.get(where, NOBODY_DAMAGED)
    sound = _sound(views, where, partition, lost)
    if not any(_may_commit(views.brokers, partition, replica) for replica in sound):
        return NOBODY
    return frozenset(
        replica
        for replica in leaving
        if replica in partition.isr
        and said[replica].can_lead
        and is_electable(views.brokers, replica)
        and views.heard.get(replica, MetadataOffset(0)) <= partition.leader_epoch_offset
    )


def _may_commit(brokers: Brokers, partition: PartitionRegistration, replica: BrokerId) -> bool:
    """Whether it could lead now. A leader that is leaving leads on until it is relieved."""
    registration = brokers.get(replica)
    leads_on = (
        replica == partition.leader
        and registration is not None
        and registration.state is BrokerState.CONTROLLED_SHUTDOWN
    )
    return leads_on or is_electable(brokers, replica)
