"""Lines of the log, its disk, its start and its producers, each switched off (rules Q, R2, R10)."""

from __future__ import annotations

from typing import Any

import pytest

from broker.log import flusher, log_producers, log_reader, partition_log, recovery, segments
from broker.log.producer_snapshot import encode_told
from broker.log.producer_state import ProducerStates
from broker.record import batch
from broker.replication import partition
from tests.support import simulated_disk
from tests.support.planted.registry import LOST, Patch, replication_fault

# ---- rules Q and R2: the log on its disk


@replication_fault(
    "rule Q1: what is found at the start counts before it is synced", "L2", "L3", "L23", first=51
)
def _open_without_sync(patch: Patch) -> None:
    patch.setattr(recovery, "_rewrite_unproven", lambda *_: None)
    real = partition_log.PartitionLog.restore

    def restore(self: Any, found: Any) -> None:
        real(self, found)
        self.durable_end = self.log_end_offset

    patch.setattr(partition_log.PartitionLog, "restore", restore)


@replication_fault(
    "rule Q2: a failed sync counts as a successful one", "L2", "L3", on_disk=True, first=130
)
def _sync_errors_are_swallowed(patch: Patch) -> None:
    real = flusher.LogFlusher._work

    def work(self: Any, tokens: Any) -> Any:
        error = real(self, tokens)
        return None if isinstance(error, OSError) else error

    patch.setattr(flusher.LogFlusher, "_work", work)


@replication_fault(
    "rule Q3: a flush begun before a cut proves what follows the cut", "L2", "L18", "L8", first=30
)
def _no_generation(patch: Patch) -> None:
    real = partition_log.PartitionLog.end_flush

    def end_flush(self: Any, token: Any, *, synced: bool) -> None:
        token.generation = self.generation
        real(self, token, synced=synced)

    patch.setattr(partition_log.PartitionLog, "end_flush", end_flush)


@replication_fault(
    "rule Q5: damage is cut off like a torn tail", *LOST, "L23", on_disk=True, first=218
)
def _damage_is_cut(patch: Patch) -> None:
    patch.setattr(recovery, "_refuse_if_durable", lambda *_, **__: None)


@replication_fault(
    "rule Q5 and invariant L22: readers ignore checksums", "L22", on_disk=True, first=1
)
def _no_checksums(patch: Patch) -> None:
    def verify(buffer: Any, at: int = 0) -> Any:
        return batch.parse_header(buffer, at)

    patch.setattr(log_reader, "verify", verify)


@replication_fault("rule Q6: directory entries are not synced", "L2", "L3", "L23", on_disk=True)
def _names_unsynced(patch: Patch) -> None:
    def sync_each(self: Any, token: Any) -> None:
        for fd in token.descriptors:
            self._disk.sync_data(fd)

    patch.setattr(flusher.LogFlusher, "_sync_each", sync_each)
    patch.setattr(flusher, "SYNC_FILES_MAX", 10**9)


@replication_fault(
    "rule R2: a write that failed half way counts as written",
    "L22",
    "L14",
    "L2",
    "L3",
    "L12",
    first=75,
)
def _half_written(patch: Patch) -> None:
    real = simulated_disk.SimulatedDisk.write

    def write(self: Any, fd: int, data: Any, position: int) -> None:
        try:
            real(self, fd, data, position)
        except OSError:
            if not self.descriptors[fd][0].endswith(".log"):
                raise

    patch.setattr(simulated_disk.SimulatedDisk, "write", write)


@replication_fault(
    "rule R2: a part of a failed write is left in the file", "L26", on_disk=True, first=1
)
def _not_cut_back(patch: Patch) -> None:
    def truncate(self: Any, fd: int, size: int) -> None:
        """Nothing."""

    real = segments.LogSegments._undo_partial_write

    def cut_back(self: Any, segment: Any, fd: int, error: OSError) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(type(self._shared.files.disk), "truncate", truncate)
            return real(self, segment, fd, error)

    patch.setattr(segments.LogSegments, "_undo_partial_write", cut_back)


# ---- log start and producers


@replication_fault(
    "rule R10: the log start is visible before it is durable",
    "L24",
    on_disk=True,
    trims=True,
    first=40,
)
def _start_shows_at_once(patch: Patch) -> None:
    real = partition_log.PartitionLog.advance_log_start

    def advance(self: Any, offset: int) -> bool:
        moved = real(self, offset)
        if moved:
            self.log_start_offset = offset
        return moved

    patch.setattr(partition_log.PartitionLog, "advance_log_start", advance)


@replication_fault(
    "rule R10: a follower behind the log start keeps its high watermark",
    "L8",
    trims=True,
    first=1268,
)
def _high_watermark_stays(patch: Patch) -> None:
    def start_over(self: Any, offset: int, producers: bytes | None) -> None:
        self.log.start_over(offset, producers)

    patch.setattr(partition, "_start_over", start_over)


@replication_fault(
    "T1: there is no check whether a batch is already stored", "T1", on_disk=True, numbered=True
)
def _no_repeats(patch: Patch) -> None:
    patch.setattr(partition_log.PartitionLog, "repeated", lambda *_args, **_named: None)


@replication_fault(
    "M22: a new process does not know its producers", "T1", "T4", on_disk=True, numbered=True
)
def _producers_forgotten(patch: Patch) -> None:
    real = partition_log.PartitionLog.restore

    def restore(self: Any, found: Any) -> None:
        found.producers = None
        real(self, found)

    patch.setattr(partition_log.PartitionLog, "restore", restore)


@replication_fault(
    "T4: producers of truncated batches are still remembered",
    "T4",
    "L10",
    on_disk=True,
    numbered=True,
    first=10,
)
def _cut_is_remembered(patch: Patch) -> None:
    patch.setattr(log_producers.LogProducers, "truncated", lambda *_: None)


@replication_fault(
    "T4: a follower does not record producers", "T1", "T4", on_disk=True, numbered=True
)
def _followers_note_nobody(patch: Patch) -> None:
    patch.setattr(ProducerStates, "applied", lambda *_: None)


@replication_fault(
    "S5 start_over_empty: a log that begins anew is told of no producers",
    "rule S5",
    on_disk=True,
    numbered=True,
    trims=True,
    first=171,
)
def _nothing_is_told(patch: Patch) -> None:
    def told(replica: Any) -> bytes:
        return encode_told(ProducerStates(), replica.log.log_start_offset)

    patch.setattr(partition, "producers_told", told)
