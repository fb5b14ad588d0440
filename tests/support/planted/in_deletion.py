"""Lines that keep deleted records deleted, each switched off (rule R10)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from broker.replication import partition as replication
from broker.replication.leader_state import LeaderState
from broker.replication.partition import ReplicaLog
from raft_metadata.common.ids import BrokerId
from raft_metadata.image.metadata_image import PartitionRegistration
from tests.support.planted.registry import Patch, deletion_fault

Known = PartitionRegistration | None
Found = frozenset[BrokerId]
_real = replication.replicas_that_may_restore


def _without(role: LeaderState, log: ReplicaLog, who: Iterable[BrokerId], offset: int) -> Found:
    late = {one for one in who if one != role.me and role.start_of(one) < offset}
    return frozenset(late if replication.crash_proof_start(log) >= offset else late | {role.me})


@deletion_fault("R10: only the leader's own start counts", "R10")
def _leader_alone(patch: Patch) -> None:
    def found(role: LeaderState, _: Known, log: ReplicaLog, offset: int) -> Found:
        return _without(role, log, (), offset)

    patch.setattr(replication, "replicas_that_may_restore", found)


@deletion_fault("R10: only the committed ISR counts", "R10")
def _committed_isr(patch: Patch) -> None:
    def found(role: LeaderState, _: Known, log: ReplicaLog, offset: int) -> Found:
        return _without(role, log, role.isr, offset)

    patch.setattr(replication, "replicas_that_may_restore", found)


@deletion_fault("R10: eligible leader replicas don't count", "R10")
def _none_eligible(patch: Patch) -> None:
    def found(role: LeaderState, _: Known, log: ReplicaLog, offset: int) -> Found:
        return _without(role, log, role.maximal_isr(), offset)

    patch.setattr(replication, "replicas_that_may_restore", found)


@deletion_fault("R10: an image of any age tells which replicas are eligible", "R10")
def _any_image(patch: Patch) -> None:
    def found(role: LeaderState, known: Known, log: ReplicaLog, offset: int) -> Found:
        eligible = () if known is None else known.elr
        return _without(role, log, role.maximal_isr().union(eligible), offset)

    patch.setattr(replication, "replicas_that_may_restore", found)


@deletion_fault("R10: the leader's own start counts before it is durable", "R10", first=83)
def _leader_as_it_shows(patch: Patch) -> None:
    def found(role: LeaderState, known: Known, log: ReplicaLog, offset: int) -> Found:
        return _real(role, known, log, offset) - {role.me}

    patch.setattr(replication, "replicas_that_may_restore", found)


@deletion_fault("R10: a replica joins that would show deleted records", "R10")
def _joins_anyway(patch: Patch) -> None:
    patch.setattr(replication, "would_show_deleted", lambda *_: False)


@deletion_fault("R10: a start is reported before it is durable", "R10")
def _reported_before_it_is_durable(patch: Patch) -> None:
    def requested(log: Any) -> int:
        start: int = log.requested_log_start
        return start

    patch.setattr(replication, "crash_proof_start", requested)
