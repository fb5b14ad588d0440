"""Lines of what controllers decide about damaged replicas, each switched off (decision 0009)."""

from __future__ import annotations

from raft_metadata.controller import partition_change
from tests.support.planted.registry import Patch, damage_fault


@damage_fault("outdated reports are believed", "given-up", first=280)
def _every_report_is_believed(patch: Patch) -> None:
    patch.setattr(partition_change, "current_reports", lambda damaged, _: damaged)


@damage_fault("no new leader epoch after a repair", "healed")
def _no_new_leader_epoch(patch: Patch) -> None:
    patch.setattr(partition_change, "has_log_of_epoch", lambda *_: False)


@damage_fault("a damaged leader stays", "healed")
def _a_damaged_leader_stays(patch: Patch) -> None:
    patch.setattr(partition_change, "_relieve", lambda *_: None)


@damage_fault("no damaged replica leaves the ISR", "healed")
def _none_is_taken_out(patch: Patch) -> None:
    patch.setattr(partition_change, "leaving_replicas", lambda *_: frozenset())
