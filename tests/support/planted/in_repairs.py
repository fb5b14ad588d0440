"""Lines of decision 0009, each switched off: damaged replicas are mended while brokers run."""

from __future__ import annotations

import dataclasses
from typing import Any

from broker.log import log_manager
from broker.log.directory_files import Quarantine, text_of
from broker.replication import repair
from raft_metadata.common.ids import LeaderEpoch, TopicIdPartition
from raft_metadata.controller import partition_change, replication_control
from raft_metadata.controller.broker_views import first_electable
from raft_metadata.controller.partition_draft import NO_BROKERS
from tests.support.planted.registry import LOST, Patch, replication_fault

EMPTIED = ("rule Q5", "rule R4", *LOST)


def _never_counts(self: Any, registration: Any) -> Any:
    """The image, as one would like it to be."""
    others = {
        name: tuple(b for b in getattr(registration, name) if b != self._me)
        for name in ("isr", "elr")
    }
    return dataclasses.replace(registration, **others)


@replication_fault(
    "0009: a log is quarantined before it is committed that it counts nowhere",
    *EMPTIED,
    rots=True,
    first=3,
)
def _before_it_is_out(patch: Patch) -> None:
    real = repair.Repairs._settle

    def settle(self: Any, replica: Any, registration: Any) -> bool:
        if registration.leader != self._me:
            registration = _never_counts(self, registration)
        return real(self, replica, registration)

    patch.setattr(repair.Repairs, "_settle", settle)


@replication_fault(
    "0009: a log is quarantined in the leader epoch in which it took part", "rule R4", rots=True
)
def _in_its_own_epoch(patch: Patch) -> None:
    real = repair.Repairs._settle

    def settle(self: Any, replica: Any, registration: Any) -> bool:
        if registration.leader != self._me:
            epoch = LeaderEpoch(registration.leader_epoch + 1)
            registration = dataclasses.replace(registration, leader_epoch=epoch)
        return real(self, replica, registration)

    patch.setattr(repair.Repairs, "_settle", settle)
    _no_new_epoch(patch)


@replication_fault(
    "0009: a removed replica is not fenced off by a new leader epoch", "L27", rots=True
)
def _no_new_epoch(patch: Patch) -> None:
    patch.setattr(partition_change, "has_log_of_epoch", lambda *_: False)


@replication_fault(
    "0009: an ISR proposed before a log was emptied is accepted",
    *EMPTIED,
    rots=True,
    first=107,
)
def _old_proposals(patch: Patch) -> None:
    def check(_command: Any, _before: Any) -> None:
        """Whatever has changed since."""

    patch.setattr(replication_control, "_check_epochs", check)


@replication_fault(
    "0009: a damaged replica goes on as if it were in sync", *EMPTIED, "rule G3", rots=True
)
def _goes_on(patch: Patch) -> None:
    def stand_down(_self: Any, _replica: Any) -> None:
        """It keeps its session, or its leadership."""

    from tests.support.replication_repairs import Mending

    patch.setattr(Mending, "stand_down", stand_down)


@replication_fault(
    "0009: elections treat damaged replicas like others", "L27", "rule Q5", rots=True
)
def _elected_like_others(patch: Patch) -> None:
    def first(brokers: Any, replicas: Any, among: Any, _damaged: Any = ()) -> Any:
        return first_electable(brokers, replicas, among)

    patch.setattr(partition_change, "first_electable", first)


@replication_fault(
    "0009: a damaged leader is removed before it has applied that", "rule G3", rots=True
)
def _out_unawares(patch: Patch) -> None:
    patch.setattr(partition_change, "_unaware_replicas", lambda *_: NO_BROKERS)
    # The second line of defence: reports of the past.
    patch.setattr(partition_change, "current_reports", lambda damaged, _partition: damaged)


@replication_fault("0009: a copy is overwritten by the next one", "rule Q5", rots=True, first=67)
def _overwritten(patch: Patch) -> None:
    def place(_self: Quarantine, key: TopicIdPartition) -> str:
        return text_of(key)

    patch.setattr(Quarantine, "place_for_damaged", place)


@replication_fault(
    "0009: the mark is removed before the move is durable", "rule R6", rots=True, first=130
)
def _mark_goes_first(patch: Patch) -> None:
    real = log_manager.LogManager.reset_damaged

    def reset(self: Any, *where: Any) -> bool:
        self.forget_unclean(*where)
        return real(self, *where)

    patch.setattr(log_manager.LogManager, "reset_damaged", reset)


@replication_fault(
    "0009: a start opens a log that is marked as damaged", "rule R6", rots=True, first=10
)
def _mark_is_ignored(patch: Patch) -> None:
    from broker.log.directory_files import DirectoryFiles

    patch.setattr(DirectoryFiles, "read_damaged", lambda _: {})


@replication_fault(
    "0009: a damaged leader stays leader although others are healthy", "L27", rots=True
)
def _stays_leader(patch: Patch) -> None:
    def relieve(*_: Any) -> None:
        """Whoever leads leads on."""

    patch.setattr(partition_change, "_relieve", relieve)
