"""Lines of the controllers' decisions on a partition, each switched off (KIP-966, P6, P8, R6)."""

from __future__ import annotations

import dataclasses
from typing import Any

from broker.replication import partition
from broker.replication.partition import Partition
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import MetadataOffset
from raft_metadata.controller import (
    cluster_control,
    partition_change,
    partition_draft,
    reassignment_control,
    replication_control,
)
from raft_metadata.controller.partition_draft import PartitionDraft
from tests.support.planted.registry import LOST, Patch, replication_fault
from tests.support.replication_lives import FAR


@replication_fault("M9 a replica joins without a check of its broker epoch", "P6", *LOST, first=70)
def _no_broker_epoch_check(patch: Patch) -> None:
    real = replication_control._check_may_join

    def check(image: Any, before: Any, joiner: Any, _epoch: int) -> None:
        real(image, before, joiner, image.brokers[joiner].broker_epoch)

    patch.setattr(replication_control, "_check_may_join", check)


@replication_fault("M10 AlterPartition without its partition-epoch check", "L5", *LOST, first=49)
def _no_partition_epoch_check(patch: Patch) -> None:
    real = replication_control._check_epochs

    def check(command: Any, before: Any) -> None:
        try:
            real(command, before)
        except KafkaError as error:
            if error.code is not ErrorCode.INVALID_UPDATE_VERSION:
                raise

    patch.setattr(replication_control, "_check_epochs", check)


@replication_fault("M15 a fenced or leaving broker joins the ISR", "P6", first=15)
def _fenced_may_join(patch: Patch) -> None:
    def eligible(registration: Any) -> Any:
        return None if registration is None else registration.broker_epoch

    patch.setattr(partition, "_eligible", eligible)
    patch.setattr(replication_control, "is_electable", lambda *_: True)


@replication_fault(
    "M18 and rule R6: a replaced or damaged disk keeps its place", "L23", *LOST, first=5
)
def _ignore_lost(patch: Patch) -> None:
    nothing = partition_change._Lost(frozenset(), frozenset())
    patch.setattr(partition_change, "_lost_replicas", lambda *_: nothing)


@replication_fault(
    "rule R3: a restarted broker leads in an epoch older than its registration", "P14", "L15"
)
def _lead_in_old_epoch(patch: Patch) -> None:
    real = Partition.apply_image

    def apply_image(self: Partition, registration: Any, *args: Any) -> None:
        newer = dataclasses.replace(registration, leader_epoch_offset=MetadataOffset(FAR))
        real(self, newer, *args)

    patch.setattr(Partition, "apply_image", apply_image)
    patch.setattr(partition_change, "_is_deposed", lambda _, draft: draft.leader not in draft.isr)


@replication_fault("rule R6: an outdated registration still counts", *LOST, "L23", "L27", "L22")
def _late_registration(patch: Patch) -> None:
    patch.setattr(cluster_control, "_check_not_overtaken", lambda *_: None)


@replication_fault("KIP-966: ELR keeps members while ISR >= min ISR", "L5", *LOST, first=1)
def _elr_never_emptied(patch: Patch) -> None:
    def next_elr(before: Any, isr: Any, lost: Any, _min_isr: int) -> tuple[Any, ...]:
        members = [r for r in before.replicas if r in before.isr or r in before.elr]
        return tuple(r for r in members if r not in isr and r not in lost)

    def keep_eligible(draft: Any, min_isr: int, unclean: Any = (), **lost: Any) -> None:
        gone = {*unclean, *lost.get("moved", ())}
        draft.elr = next_elr(draft.before, draft.isr, gone, min_isr)

    patch.setattr(partition_draft.PartitionDraft, "keep_eligible", keep_eligible)


@replication_fault("unclean election: any unfenced replica may lead", *LOST, "L5", first=5)
def _unclean_election(patch: Patch) -> None:
    real = partition_change._elect

    def elect(views: Any, draft: Any, *args: Any) -> None:
        draft.elr = tuple(replica for replica in draft.replicas if replica not in draft.isr)
        real(views, draft, *args)

    patch.setattr(partition_change, "_elect", elect)


@replication_fault(
    "P8: the old replicas are removed although the new ones are not in sync",
    *LOST,
    "L27",
    moves=True,
    first=24,
)
def _shrink_at_once(patch: Patch) -> None:
    def complete(views: Any, draft: Any, rules: Any, damaged: Any) -> None:
        draft.keep_replicas([r for r in draft.replicas if r not in draft.removing])
        draft.adding = draft.removing = ()

    patch.setattr(partition_change, "complete_reassignment", complete)


@replication_fault("P8: a reassignment adds to the ISR itself", *LOST, moves=True, first=11)
def _adding_counts_at_once(patch: Patch) -> None:
    real = reassignment_control.reassign

    def reassign(*args: Any) -> Any:
        record = real(*args)
        if record is None:
            return None
        isr = tuple(dict.fromkeys((*record.isr, *record.adding)))
        return type(record)(
            **{name: getattr(record, name) for name in record.__slots__} | {"isr": isr}
        )

    patch.setattr(reassignment_control, "reassign", reassign)


@replication_fault(
    "P8: a removed replica is not fenced off by an epoch", *LOST, "L17", "L18", moves=True, first=28
)
def _no_new_epoch(patch: Patch) -> None:
    real = PartitionDraft.keep_replicas

    def keep_replicas(self: PartitionDraft, keep: Any) -> None:
        before = self.new_leader_epoch
        real(self, keep)
        if self.leader in self.isr:
            self.new_leader_epoch = before

    patch.setattr(PartitionDraft, "keep_replicas", keep_replicas)


@replication_fault(
    "rule G3: a leader is removed before it has applied that", "rule G3", moves=True, first=5
)
def _out_unawares(patch: Patch) -> None:
    patch.setattr(reassignment_control, "unaware_removed_replicas", lambda *_: ())
