"""Lines of compaction and retention, each switched off (rules R7 and R10)."""

from __future__ import annotations

from typing import Any

import pytest

from broker.log import cleaner, compaction, partition_log, retention, segments
from broker.log.compaction import CleanState
from broker.log.swap import StateChange, Swap
from broker.replication import log_start_manager, partition
from broker.replication.leader_state import LeaderState
from broker.replication.partition import Following
from broker.server.lifecycle import ControllerClock
from tests.support import simulated_disk
from tests.support.planted.registry import LOST, Patch, replication_fault

# ---- compaction


@replication_fault(
    "rule R7: a tombstone is dropped before every replica has it", "rule R7", compacts=True
)
def _not_everywhere(patch: Patch) -> None:
    patch.setattr(LeaderState, "replicated_to", lambda _self, own_end: own_end)


@replication_fault(
    "rule R7: a tombstone is dropped before delete.retention.ms", "rule R7", compacts=True
)
def _at_once(patch: Patch) -> None:
    def expired(self: CleanState, _now_ms: int, _retention_ms: int) -> int:
        return self.cleaned_to

    patch.setattr(CleanState, "tombstones_expired_to", expired)


@replication_fault(
    "rule R7: a tombstone is dropped by the pass that makes it clean", "rule R7", compacts=True
)
def _not_yet_clean(patch: Patch) -> None:
    def expired(_self: CleanState, _now_ms: int, _retention_ms: int) -> int:
        return 1 << 60

    patch.setattr(CleanState, "tombstones_expired_to", expired)


@replication_fault(
    "rule R7: what is above the high watermark is compacted", "rule R7", compacts=True
)
def _above_high_watermark(patch: Patch) -> None:
    real = compaction.plan

    def plan(segments: Any, state: Any, _high_watermark: int, *args: Any) -> Any:
        return real(segments, state, 1 << 60, *args)

    patch.setattr(cleaner, "plan", plan)


@replication_fault(
    "rule R7: what is not durable is compacted", "rule R7", *LOST, "L23", compacts=True, first=20
)
def _above_durable_end(patch: Patch) -> None:
    def sealed(self: segments.LogSegments, _durable_end: int) -> Any:
        return self.segments[:-1] if self.pending is None else []

    patch.setattr(segments.LogSegments, "sealed", sealed)


@replication_fault(
    "invariant L11: one batch covers offsets of several epochs", "L11", compacts=True, first=5
)
def _across_epochs(patch: Patch) -> None:
    real = compaction._can_grow

    def can_grow(held: Any, gone: Any) -> bool:
        return real(held, gone._replace(leader_epoch=held.leader_epoch))

    patch.setattr(compaction, "_can_grow", can_grow)


@replication_fault(
    "invariant T4: the newest batches of a producer are removed with their records",
    "T4",
    "T1",
    compacts=True,
    numbered=True,
)
def _producers_go(patch: Patch) -> None:
    patch.setattr(compaction.SeenProducers, "needed", lambda _: frozenset())
    patch.setattr(cleaner, "Rewriter", _forgetting)


def _forgetting(retention: Any, needed: Any, _seen_to: int) -> Any:
    return compaction.Rewriter(retention, needed, 1 << 60)


@replication_fault(
    "rule Q6: a compacted segment is not synced before it counts", "L22", *LOST, compacts=True
)
def _segment_unsynced(patch: Patch) -> None:
    real = cleaner.Rewrite._run

    def run(self: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(simulated_disk.SimulatedDisk, "sync_file", lambda *_: None)
            inner.setattr(simulated_disk.SimulatedDisk, "sync_data", lambda *_: None)
            real(self)

    patch.setattr(cleaner.Rewrite, "_run", run)


@replication_fault(
    "rule Q6: the steps of a swap are not synced", "L22", "L23", *LOST, compacts=True, first=8
)
def _swap_unsynced(patch: Patch) -> None:
    real = Swap._run

    def run(self: Swap) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(simulated_disk.SimulatedDisk, "sync_directory", lambda *_: None)
            real(self)

    patch.setattr(Swap, "_run", run)


@replication_fault(
    "rule R7: more of the log is marked clean than is clean", "rule R7", compacts=True
)
def _checkpoint_ahead(patch: Patch) -> None:
    real = StateChange.__init__

    def init(self: StateChange, stored: Any, state: CleanState) -> None:
        if state.marks and state.marks != stored.cleaned.marks:
            end, since_ms = stored.segments[-1].base_offset, state.marks[-1][1]
            state = CleanState((*state.marks[:-1], (end, since_ms)), state.epoch, state.dropped_to)
        real(self, stored, state)

    patch.setattr(StateChange, "__init__", init)
    patch.setattr(cleaner, "clean_state", lambda log: log.stored.cleaned)


@replication_fault(
    "rule R7: a replica without a tombstone is filled further",
    "rule R7",
    compacts=True,
    moves=True,
)
def _not_asked(patch: Patch) -> None:
    patch.setattr(partition, "start_over_answer", lambda *_: None)


@replication_fault("rule R7: START_OVER is ignored", "L27", "rule R7", compacts=True, moves=True)
def _start_over_ignored(patch: Patch) -> None:
    patch.setattr(partition, "start_over", lambda *_: None)


@replication_fault(
    "rule R7: a filled replica does not learn which tombstones are gone",
    "rule R7",
    compacts=True,
    moves=True,
)
def _not_inherited(patch: Patch) -> None:
    patch.setattr(partition, "inherit", lambda *_: None)


@replication_fault(
    "rule R7: a pass goes on although a replica was added that lacks tombstones",
    "rule R7",
    compacts=True,
)
def _pass_goes_on(patch: Patch) -> None:
    real = cleaner.Cleaning._check_unchanged

    def check(self: Any, old: Any) -> None:
        dropping, self._dropping_to = self._dropping_to, 0
        try:
            real(self, old)
        finally:
            self._dropping_to = dropping

    patch.setattr(cleaner.Cleaning, "_check_unchanged", check)


@replication_fault(
    "rule Q3: a pass goes on although the log was cut", "rule R7", "L7", "L22", *LOST, compacts=True
)
def _pass_of_another_log(patch: Patch) -> None:
    def check(self: Any, _old: Any) -> None:
        """Nothing is asked."""

    patch.setattr(cleaner.Cleaning, "_check_unchanged", check)


@replication_fault(
    "rule R10: the cleaner uses a clock that is not trusted", "rule R7", compacts=True
)
def _cleaner_any_clock(patch: Patch) -> None:
    real = cleaner.LogCleaner.__init__

    def init(self: cleaner.LogCleaner, *args: Any) -> None:
        real(self, *args)
        self._may_clean = lambda: True

    patch.setattr(cleaner.LogCleaner, "__init__", init)


# ---- retention


@replication_fault(
    "rule R10: retention uses a clock that is not trusted", "rule R10", retains=True, first=51
)
def _any_clock(patch: Patch) -> None:
    patch.setattr(ControllerClock, "is_trusted", lambda _: True)


@replication_fault(
    "rule R10: a leader stamps with its own clock", "rule R10", retains=True, first=134
)
def _own_clock(patch: Patch) -> None:
    patch.setattr(ControllerClock, "wall_ms", lambda self: self._clock.wall_ms())


@replication_fault(
    "rule R10: a follower decides its own log start", "rule R10", "L24", retains=True, first=7
)
def _follower_decides(patch: Patch) -> None:
    patch.setattr(log_start_manager, "LeaderState", (LeaderState, Following))


@replication_fault("invariant L24: retention passes the high watermark", "L24", "L8", retains=True)
def _past_high_watermark(patch: Patch) -> None:
    real = retention.decide

    def decide(segments: Any, log_start: int, _end: int, *args: Any) -> Any:
        return real(segments, log_start, 1 << 60, *args)

    patch.setattr(retention, "decide", decide)


@replication_fault("rule R10: young records are deleted with old ones", "rule R10", retains=True)
def _first_of_segment(patch: Patch) -> None:
    real = retention.decide

    def decide(segments: Any, log_start: int, end: int, config: Any, now_ms: int, *_: Any) -> Any:
        return real(segments, log_start, end, config, now_ms + 2 * config.retention_ms)

    patch.setattr(retention, "decide", decide)


@replication_fault(
    "rule R10: retention is visible before it is durable", "L24", retains=True, first=14
)
def _shows_at_once(patch: Patch) -> None:
    real = partition_log.PartitionLog.advance_log_start

    def advance(self: Any, offset: int) -> bool:
        moved = real(self, offset)
        if moved:
            self.log_start_offset = offset
        return moved

    patch.setattr(partition_log.PartitionLog, "advance_log_start", advance)


@replication_fault(
    "rule R7: records dropped for newer ones that an unclean election lost are not fetched again",
    "rule R7",
    compacts=True,
    unclean=True,
    first=428,
)
def _stays_without(patch: Patch) -> None:
    real = partition.start_over_if_required

    def start_over_if_required(partition: Any, message: Any, end: int, **_: bool) -> bool:
        return real(partition, message, end, is_unclean=False)

    patch.setattr(partition, "start_over_if_required", start_over_if_required)
