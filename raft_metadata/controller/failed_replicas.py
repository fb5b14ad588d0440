"""Decisions about replicas whose logs are damaged, as their brokers report with each heartbeat.

A damaged replica leaves ISR and ELR, and never leads while a healthy one can (rules Q5, R6); its
broker empties its log once it sees that committed, and fills it again. Four rules hold here.

- A removed replica is fenced by a new leader epoch if its log took part in the present one: no
  earlier proposal can add it again, and its leader counts it again only in a session that the new
  log has requested (rule R4).
- A replica is removed only where a healthy one could take over at once. Until then the remaining
  records of a damaged leader are served, and of two damaged replicas neither is emptied: each may
  hold records that the other lacks. A healthy replica that is offline may never return, or may
  return damaged.
- No replica is removed because of an outdated report (`damage_reports`); elections alone avoid it.
- A damaged leader first gives up its leadership, and stays in the ISR until it has applied that:
  meanwhile its successor commits nothing without it, so its answers to readers stay true (rule G3).
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
"""The damaged replicas of one partition, by broker."""
NOBODY_DAMAGED: Damaged = MappingProxyType({})


def damaged_replicas(views: BrokerViews, where: TopicIdPartition) -> Damaged:
    """Return the reported damaged replicas of this partition."""
    return views.failed.get(where, NOBODY_DAMAGED)


def believed(damaged: Damaged, partition: PartitionRegistration) -> Damaged:
    """Return the reports that are about the present logs; others may be about logs refilled since.

    An emptied log is counted, or leads, only after a later change of the partition. So a report
    that knows the present partition epoch is about the present log, or about one that counts
    nowhere; then elections risk nothing but a moment without a leader.
    """
    return {
        replica: one
        for replica, one in damaged.items()
        if one.partition_epoch >= partition.partition_epoch
    }


def unsure_replicas(
    brokers: Brokers, draft: PartitionDraft, damaged: Damaged
) -> tuple[BrokerId, ...]:
    """Return the live members of ISR and ELR with an outdated report; the next is due soon."""
    believable = believed(damaged, draft.before)
    return tuple(
        replica
        for replica in (*draft.isr, *draft.elr)
        if replica in damaged and replica not in believable and is_electable(brokers, replica)
    )


def unable_replicas(damaged: Damaged) -> frozenset[BrokerId]:
    """Return the damaged replicas that can't even serve the readable part of their log."""
    return frozenset(replica for replica, failed in damaged.items() if not failed.can_lead)


def leaving_replicas(
    views: BrokerViews,
    where: TopicIdPartition,
    partition: PartitionRegistration,
    lost: Collection[BrokerId],
) -> frozenset[BrokerId]:
    """Return the replicas to remove from ISR and ELR now.

    Includes replicas that are in neither but took part in the present leader epoch: their leader
    may be about to propose them. ``lost``: replicas that lose their places for another reason.
    """
    wanted = _unwanted(views, where, partition, lost)
    if not wanted:
        return NOBODY
    return wanted.difference(_unaware(views, where, partition, wanted, lost))


def unaware_failed(
    views: BrokerViews, where: TopicIdPartition, partition: PartitionRegistration
) -> frozenset[BrokerId]:
    """Return the replicas to remove once they have applied the present leader epoch (rule G3)."""
    return _unaware(views, where, partition, _unwanted(views, where, partition, ()), ())


def took_part(
    views: BrokerViews,
    where: TopicIdPartition,
    partition: PartitionRegistration,
    replicas: Collection[BrokerId],
) -> bool:
    """Return True if the log of any of these replicas took part in the present leader epoch."""
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
    """Return the damaged replicas to remove, whether or not they know the present leader.

    All of them if a healthy replica can take over at once; else those that can't serve anything.
    """
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
    """Return the members of ISR and ELR that are known not to be damaged."""
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
    """Return those of ``leaving`` that may have led until now and still answer reads as the leader.

    Empty where no healthy replica could lead now: then nothing new is committed, and their answers
    stay true. Their successor may die before they have applied its election: then the next leader
    has to wait for them.
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
    """Return True if the replica could lead now; a leader that is shutting down still leads."""
    registration = brokers.get(replica)
    leads_on = (
        replica == partition.leader
        and registration is not None
        and registration.state is BrokerState.CONTROLLED_SHUTDOWN
    )
    return leads_on or is_electable(brokers, replica)
