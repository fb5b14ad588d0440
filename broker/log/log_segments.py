"""The files of one partition's log: append, roll, seal and flush.

`PartitionLog` decides which offsets are valid and durable; this module decides which file holds
which bytes, and which files the next start may trust without a scan. An append writes to the last
segment (`write`), rolling it when it is full or old. A flush collects everything to sync in a
token (`fill`), seals the segments closed since the last flush, and is completed by `end_flush`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Self

from broker.log.checkpoints import place_file
from broker.log.compaction import NEVER_CLEANED
from broker.log.cut_segments import CutSegments, WriteError
from broker.log.disk import DISK_FULL, OUT_OF_DESCRIPTORS
from broker.log.log_directory import PARTITION_FILE, make_partition_directory
from broker.log.producer_snapshot import snapshots_below
from broker.log.recovery import REMOVED_SUFFIX, checkpoint_files, start_file
from broker.log.segment import Segment
from raft_metadata.common.errors import CorruptionError, Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.log.disk import Disk
    from broker.log.flusher import FlushToken
    from broker.log.leader_epoch_cache import LeaderEpochCache
    from broker.log.log_directory import LogConfig, LogDirectory
    from broker.log.recovery import RecoveredLog
    from broker.log.swap import StateChange, Swap
    from raft_metadata.common.ids import PartitionId, TopicId, TopicName


class LogSegments(CutSegments):
    """The segments of one log, oldest first; the last one is written to.

    Created with the first byte.

    Owned by the PartitionLog, on the event loop. Bytes leave a file only by a truncation that is
    synced before anything is written behind it, so an old tail never reappears as false proof of
    what was durable (ADR 0003). Segments below ``recovery_point`` are synced, and the next start
    restores them from their index files.
    """

    __slots__ = ("_new_directory", "_new_segment")

    def __init__(self, shared: LogDirectory, directory: str) -> None:
        self._shared = shared
        self.directory = directory
        self.segments: list[Segment] = []
        self._aside: list[Segment] | None = None
        """Closed segments of before the log started over; removed once the new start is durable."""
        self.recovery_point = 0
        self._sealed_to = 0
        self._new_directory = False
        self._new_segment = False
        self.cleaned = NEVER_CLEANED
        """The extent to which this replica has compacted the log.

        Durable in the file ``cleaned``.
        """
        self.pending: Swap | StateChange | None = None
        """A step of compaction that runs on another thread; None: none (`settle`)."""

    @classmethod
    def create(
        cls,
        shared: LogDirectory,
        directory: str,
        topic: TopicName,
        partition: PartitionId,
        topic_id: TopicId,
    ) -> Self:
        """Create the directory; the log's first flush makes it durable.

        Raises:
            OSError: the directory could not be created completely; the call may be repeated.
        """
        files = shared.files
        try:
            make_partition_directory(files.disk, directory, topic, partition, topic_id)
        except OSError as error:
            if error.errno not in OUT_OF_DESCRIPTORS or not files.make_room():
                raise
            make_partition_directory(files.disk, directory, topic, partition, topic_id)
        created = cls(shared, directory)
        created._new_directory = True
        return created

    @classmethod
    def restored(cls, shared: LogDirectory, directory: str, found: RecoveredLog) -> Self:
        """Return the segments that recovery found.

        They are durable only after the caller's sync (Q1).
        """
        stored = cls(shared, directory)
        stored.segments = found.segments
        stored.cleaned = found.cleaned
        stored.recovery_point = stored._sealed_to = found.recovery_point
        # A full disk may have left names without a byte behind them that were never synced: the
        # first flush after this start syncs them, before anything in these files counts (rule Q6).
        stored._new_directory = any(s.dirty for s in found.segments) or not found.proven_end
        return stored

    @property
    def is_new(self) -> bool:
        """Return True while not even the directory is durable."""
        return self._new_directory

    # writing

    def write(
        self, raw: bytes | bytearray | memoryview, end_offset: int, now_ms: int, config: LogConfig
    ) -> Segment:
        """Write ``raw`` at the end of the log, completely or not at all (rule R2).

        Returns the segment; the caller must account for the batches with `Segment.note`.

        Raises:
            WriteError: the file is unchanged, unless the outcome is unknown.
        """
        files = self._shared.files
        try:
            segment = self._active(len(raw), end_offset, now_ms, config)
            fd = files.use(segment)
            if segment.is_index_written:  # by a clean shutdown; now the segment grows again
                segment.take_index(files)
        except OSError as error:
            raise WriteError(error, Outcome.NOT_WRITTEN, broken=False) from error
        segment.dirty = True
        try:
            files.disk.write(fd, raw, segment.size)
        except OSError as error:
            raise self._cut_back(segment, fd, error) from error
        return segment

    def _active(self, length: int, end_offset: int, now_ms: int, config: LogConfig) -> Segment:
        """Return the segment to write to: the last one, or a new one if that is full or old."""
        if self.segments:
            active = self.segments[-1]
            full = active.size + length > config.segment_bytes
            old = now_ms - active.first_append_ms > config.segment_ms
            if not active.size or not (full or old):
                return active
        return self.roll(end_offset)

    def roll(self, end_offset: int) -> Segment:
        """Add a new, empty segment at ``end_offset``; writes go there from now on.

        Raises:
            OSError: the file could not be created; the log is unchanged.
        """
        segment = Segment(self.directory, end_offset)
        self._shared.files.use(segment)
        self.segments = [*self.segments, segment]
        self._new_segment = True
        return segment

    def _cut_back(self, segment: Segment, fd: int, error: OSError) -> WriteError:
        """Restore the file after a failed write; if that fails too, report it as broken (rule R2).

        The truncation is synced: otherwise these bytes could reappear behind later ones.
        """
        disk = self._shared.files.disk
        try:
            disk.truncate(fd, segment.size)
            disk.sync_file(fd)
        except OSError as second:
            return WriteError(second, Outcome.UNKNOWN, broken=True)
        return WriteError(error, Outcome.NOT_WRITTEN, broken=error.errno not in DISK_FULL)

    # syncing

    def fill(self, token: FlushToken, epochs: LeaderEpochCache, log_start_offset: int) -> None:
        """Name in the token every file that all records written so far depend on (rule Q6).

        If the token carries a new log start, that is made durable after the data.
        """
        files = self._shared.files
        token.segments = [segment for segment in self.segments if segment.dirty]
        token.descriptors = [files.use(segment) for segment in token.segments]
        for segment in token.segments:
            segment.dirty = False
            segment.flushing += 1
        if self._new_directory:
            token.paths = [f"{self.directory}/{PARTITION_FILE}"]
            token.directories = [self.directory, self._shared.root]
        elif self._new_segment:
            token.directories = [self.directory]
        self._new_directory = self._new_segment = False
        log_start_offset = max(log_start_offset, token.log_start)
        active_base = self.segments[-1].base_offset if self.segments else 0
        if active_base > self._sealed_to and self._seal(token, active_base):
            epochs_file, start = checkpoint_files(epochs, active_base, log_start_offset)
            # An index without the epochs file would also exempt its segment from the scan.
            token.checkpoints = [epochs_file, *token.checkpoints, start]
        elif token.log_start >= 0:
            point = min(self.recovery_point, self._sealed_to)
            token.checkpoints.append(start_file(point, log_start_offset))

    def _seal(self, token: FlushToken, active_base: int) -> bool:
        """Add the index files of segments closed by a roll to the token: no start scans them then.

        Returns False if the segments could not be opened now: a later flush seals them. Also False
        if a segment without an index is damaged: then none is sealed, and only this log goes
        offline.
        """
        files, sealed = self._shared.files, list[Segment]()
        try:
            for segment in self.segments[:-1]:
                if segment.base_offset >= self._sealed_to:
                    if segment.is_index_written:  # by a clean shutdown; unchanged since
                        continue
                    name = segment.index_path.rpartition("/")[2]
                    data = segment.index_bytes(files.disk, files.use(segment))
                    token.checkpoints.append((name, data))
                    sealed.append(segment)
                    if segment not in token.segments:  # kept open until its index is written
                        token.segments.append(segment)
                        segment.flushing += 1
        except OSError as error:
            if error.errno not in OUT_OF_DESCRIPTORS:
                raise
            return False
        except CorruptionError as error:
            self._sealed_to = active_base
            self._shared.on_failed(self.directory.rpartition("/")[2], error)
            return False
        # From now on this point may be on the disk, even if the flush fails: see `truncate`.
        self.recovery_point = active_base
        token.sealed = sealed
        token.unsealed_from, self._sealed_to = self._sealed_to, active_base
        return True

    def end_flush(self, token: FlushToken, *, synced: bool, cut: bool) -> None:
        """Complete the sync of a token; ``cut``: the log was truncated or closed since it began."""
        for segment in token.segments:
            segment.flushing -= 1
            if not synced:
                segment.dirty = True
        if token.checkpoints_failed:
            self._sealed_to = min(self._sealed_to, token.unsealed_from)
        elif synced and not cut:  # after a truncation these files may be removed
            for segment in token.sealed:
                segment.index_is_written(self._shared.files)

    def checkpoint_for_close(self, epochs: LeaderEpochCache, log_start_offset: int) -> None:
        """Write the index and the checkpoints of synced segments, so that the next start is quick.

        Raises:
            OSError: a file could not be written; then the shutdown is not clean.
        """
        files = self._shared.files
        if self.segments:
            active = self.segments[-1]
            if not active.is_index_written:
                name = active.index_path.rpartition("/")[2]
                data = active.index_bytes(files.disk, files.use(active))
                place_file(files.disk, self.directory, name, data, sync=False)
        # If a power failure tears these files, a start rebuilds them from the first segment. If the
        # log begins behind that, each is synced, or deleted records would be readable again (R10).
        first = self.segments[0].base_offset if self.segments else -1
        for name, data in checkpoint_files(epochs, self._sealed_to, log_start_offset):
            place_file(files.disk, self.directory, name, data, sync=first < log_start_offset)

    # the log start

    def remove_below(self, log_start_offset: int, most: int) -> list[str]:
        """Rename whole segments below a durable log start; return the paths to be unlinked.

        At most ``most`` segments. The new names protect files that are created later under the old
        names. A segment that could not be renamed stays in use and is tried again: if it were
        forgotten, a log that starts over below it would write its new segments into the old files.

        Raises:
            OSError: no file could be renamed.
        """
        if self.pending is not None:
            return []
        disk, segments = self._shared.files.disk, self.segments
        gone = list(self._aside or ())[:most]
        kept = 0
        while len(gone) < most and len(segments) > kept + 1:
            first = segments[kept]
            if segments[kept + 1].base_offset > log_start_offset or first.dirty or first.flushing:
                break
            gone.append(first)
            kept += 1
        snapshots = list[str]()
        if gone and segments:
            snapshots = snapshots_below(disk, self.directory, segments[kept].base_offset)
        renamed = list[str]()
        try:
            for segment in gone:
                self._shared.files.forget(segment)
                for path in (segment.index_path, segment.log_path):
                    _rename_away(disk, path, renamed)
                if self._aside:
                    self._aside = self._aside[1:] or None
                else:
                    self.segments = self.segments[1:]
            for path in snapshots:
                _rename_away(disk, path, renamed)
        except OSError:
            if not renamed:
                raise
        return renamed

    def holds_below(self, log_start_offset: int) -> bool:
        """Return True if `remove_below` has segments left to remove."""
        if self._aside:
            return True
        return len(self.segments) > 1 and self.segments[1].base_offset <= log_start_offset

    # compaction

    def sealed(self, durable_end: int) -> list[Segment]:
        """Return the closed segments, oldest first, that are synced and have written indexes.

        ``durable_end``: once it lies inside the last segment, the sync behind the seal has
        completed.
        """
        if self.pending is not None or self._new_directory or not self.segments:
            return []
        active = self.segments[-1]
        if durable_end <= active.base_offset and active.size:
            return []
        found = []
        for segment in self.segments[:-1]:
            if segment.base_offset >= self._sealed_to or segment.dirty or segment.flushing:
                break
            found.append(segment)
        return found

    def broken(self, error: BaseException) -> None:
        """Report a disk failure during compaction: the whole directory is in doubt (rule Q2)."""
        self._shared.on_failed(None, error)

    def replace(self, old: Sequence[Segment], swap: Swap, new: Segment, fd: int) -> None:
        """Put the new segment in the place of ``old``; the swap renames the files later."""
        first = self.segments.index(old[0])
        self._shared.files.adopt(new, fd)
        for segment in old:
            self._shared.files.forget(segment)
        self.segments = [*self.segments[:first], new, *self.segments[first + len(old) :]]
        self.pending = swap

    # closing

    def close(self) -> None:
        """Release descriptors. A replacement that fails now is finished at the next start."""
        with contextlib.suppress(OSError):
            self.settle()
        for segment in self.segments:
            self._shared.files.forget(segment)


def _rename_away(disk: Disk, path: str, renamed: list[str]) -> None:
    if disk.exists(path):
        disk.rename(path, path + REMOVED_SUFFIX)
        renamed.append(path + REMOVED_SUFFIX)
