"""Where a replica's log begins, as the leader's does: pure steps of the `Partition`.

The leader decides it (rule R10); VALID and PUSH carry it, and a follower takes it over. A follower
whose log ends below it has nothing that anybody still holds: it starts over there, empty, and its
high watermark, log start and epochs move together (invariant L8; KAFKA-9491, KAFKA-16374).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from broker.replication.frames import UNTOLD, Diverging, Open, Push, Valid
from raft_metadata.common.errors import KafkaError

if TYPE_CHECKING:
    from broker.replication.partition_state import LeaderState
    from broker.replication.replica_log import ReplicaLog
    from raft_metadata.common.ids import BrokerId, LeaderEpoch, TopicIdPartition
    from raft_metadata.image.metadata_image import PartitionRegistration

_log = logging.getLogger("broker.replication")


class Followed(Protocol):
    """What is asked of a `Partition` here."""

    id: TopicIdPartition
    log: ReplicaLog
    high_watermark: int


def divergence(log: ReplicaLog, epoch: LeaderEpoch, message: Open) -> Diverging | None:
    """The leader's answer to a log that is no prefix of its own; None where it is one.

    A log that ends below this one's start is to be started over, whatever it holds. An empty one
    agrees with every log that reaches as far. Of epochs that are trimmed away here it is only known
    that they ended at or below the log start.
    """
    if message.log_end < log.log_start_offset:
        return None
    if message.last_epoch < 0:
        if message.log_end <= log.log_end_offset:
            return None
        return Diverging(message.request, epoch, -1, log.log_end_offset)
    at_epoch, end = log.end_of_epoch(message.last_epoch)
    if at_epoch < 0 and message.log_end == log.log_start_offset:
        return None
    if at_epoch < message.last_epoch or end < message.log_end:
        return Diverging(message.request, epoch, at_epoch, end)
    return None


def proven(log: ReplicaLog) -> int:
    """Where this log begins after any crash: one that has just started over may yet come back."""
    return log.log_start_offset if log.durable_end >= log.log_start_offset else 0


def shows_deleted(role: LeaderState, follower: BrokerId, log: ReplicaLog) -> bool:
    """Whether a follower would, as leader, show what is deleted here: it may not join (rule R10).

    One whose version does not tell its log start joins as it always did.
    """
    return UNTOLD < role.start_of(follower) < log.log_start_offset


def lacking(
    role: LeaderState, registration: PartitionRegistration | None, log: ReplicaLog, offset: int
) -> frozenset[BrokerId]:
    """Who may lead next, of the replicas that are not known to begin at or behind an offset.

    Only when there is nobody is it certain that a clean election brings no deleted record back.
    Those are the maximal ISR and the eligible ones (KIP-966). What the image says of these may be
    older than an ISR that the leader knows already: then every assigned replica may be one. The
    leader, whose ``log`` this is, may lead again after a crash: what it shows is not enough either.
    """
    candidates = role.maximal_isr() | {role.me}
    if registration is None or registration.partition_epoch < role.partition_epoch:
        candidates |= role.replicas
    else:
        candidates = candidates.union(registration.elr)

    def begins(broker: BrokerId) -> int:
        return proven(log) if broker == role.me else role.start_of(broker)

    return frozenset(broker for broker in candidates if begins(broker) < offset)


def valid(log: ReplicaLog, epoch: LeaderEpoch, session: int, message: Open) -> Valid:
    """The leader's answer to a log that is a prefix of its own: what of that is gone here."""
    return Valid(message.request, epoch, session, log.log_start_offset, log.dropped_to)


def cut_point(log: ReplicaLog, message: Diverging) -> int:
    """Where a follower cuts: the end of the last epoch both know.

    Where the leader knows none of its epochs, all it may keep lies below the leader's start.
    """
    if message.at_epoch < 0:
        return message.end
    return min(message.end, log.end_of_epoch(message.at_epoch)[1])


def cut(partition: Followed, message: Diverging, end: int) -> None:
    """Remove what the leader does not have."""
    log = partition.log
    _log.info(
        "truncated log=%s topic_id=%s from=%d to=%d leader_epoch=%d",
        log.name, partition.id.topic_id, log.log_end_offset, end, message.leader_epoch,
    )  # fmt: skip
    if message.at_epoch < 0 and end > log.log_start_offset:
        log.start_over(end)  # what is left of it is below the leader's log start
    else:
        log.truncate_to(end)
    partition.high_watermark = max(partition.high_watermark, log.log_start_offset)


def follow_valid(partition: Followed, leader_start: int) -> None:
    """The leader's log begins there: a log that ends at or below that holds nothing any more."""
    log = partition.log
    if leader_start <= log.log_start_offset:
        return
    if leader_start >= log.log_end_offset:
        _start_over(partition, leader_start)
    else:
        log.advance_log_start(leader_start)
        # Not shown before it is durable, but nothing below it is asked for any more (L8).
        partition.high_watermark = max(partition.high_watermark, leader_start)


def skips_to(partition: Followed, message: Push) -> bool:
    """Whether what lies between this log's end and the push was deleted; then it is skipped."""
    if not partition.log.log_end_offset < message.from_offset <= message.log_start:
        return False
    _start_over(partition, message.from_offset)
    return True


def follow_push(partition: Followed, leader_start: int) -> None:
    """The leader's log start moved, to where this log reaches: it moves here too."""
    if leader_start <= partition.log.log_end_offset:
        try:
            partition.log.advance_log_start(leader_start)
        except KafkaError as error:  # the log has failed; the push was taken all the same
            _log.warning("log start not followed error=%s", error)


def _start_over(partition: Followed, offset: int) -> None:
    log = partition.log
    _log.info(
        "starts over at the leader's log start log=%s topic_id=%s log_end=%d start=%d",
        log.name, partition.id.topic_id, log.log_end_offset, offset,
    )  # fmt: skip
    log.start_over(offset)
    partition.high_watermark = offset
