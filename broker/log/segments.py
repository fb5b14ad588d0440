"""The files of one partition's log: append, roll, seal, flush, truncate and start over.

`PartitionLog` decides which offsets are valid and durable; this module decides which file holds
which bytes, and which files the next start may trust without a scan. An append writes to the last
segment (`write`), rolling it when it is full or old. A flush collects everything to sync in a token
(`fill`), seals the segments closed since the last flush, and is completed by `end_flush`.

A truncation (`truncate`, or starting over) is refused as a whole or done as a whole. Every step
that can be refused (a small file for which a full disk has no room, a descriptor that the process
may not open) comes first and leaves the log unchanged. From the first removed byte on, no step
needs disk space or a new descriptor: removed names are synced through a directory descriptor that
was opened before. So a truncation that fails for lack of descriptors can be retried later.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple, Self

from broker.log.checkpoints import read_checkpoint
from broker.log.compaction import NEVER_CLEANED, CleanState
from broker.log.log_directory import PARTITION_FILE, make_partition_directory
from broker.log.producer_snapshot import (
    snapshot_name,
    snapshot_offsets,
    snapshots_below,
    unlink_snapshots,
)
from broker.log.recovery import RECOVERY_POINT_FILE, REMOVED_SUFFIX, checkpoint_files, start_file
from broker.log.segment import Segment
from broker.log.swap import write_state
from raft_metadata.common.disk import (
    DISK_FULL,
    OUT_OF_DESCRIPTORS,
    TRANSIENT_ERRNOS,
    place_file,
    replace_file,
)
from raft_metadata.common.errors import CorruptionError, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from broker.log.flusher import FlushToken
    from broker.log.leader_epoch_cache import LeaderEpochCache
    from broker.log.log_directory import LogConfig, LogDirectory
    from broker.log.recovery import RecoveredLog
    from broker.log.swap import StateChange, Swap
    from raft_metadata.common.disk import Disk
    from raft_metadata.common.ids import PartitionId, TopicId, TopicName


class WriteError(Exception):
    """Bytes were not written. ``broken``: the file, and with it the log directory, is in doubt."""

    def __init__(self, cause: OSError, outcome: Outcome, *, broken: bool) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.outcome = outcome
        self.broken = broken


@contextlib.contextmanager
def refuse_if_transient() -> Iterator[None]:
    """Turn a full disk or a lack of descriptors into a WriteError; nothing has been changed yet."""
    try:
        yield
    except OSError as error:
        if error.errno in TRANSIENT_ERRNOS:
            raise WriteError(error, Outcome.NOT_WRITTEN, broken=False) from error
        raise


class _TruncationPoint(NamedTuple):
    """A truncation point: segments before ``keep`` stay, and ``position`` bytes of that one."""

    keep: int
    fd: int
    position: int
    next_offset: int


class LogSegments:
    """The segments of one log, oldest first; the last one is written to.

    Created with the first byte.

    Owned by the PartitionLog, on the event loop. Bytes leave a file only by a truncation that is
    synced before anything is written behind it, so an old tail never reappears as false proof of
    what was durable (ADR 0003). Segments below ``recovery_point`` are synced, and the next start
    restores them from their index files.
    """

    __slots__ = (
        "_new_directory",
        "_new_segment",
        "_old_segments",
        "_sealed_to",
        "_shared",
        "cleaned",
        "directory",
        "pending",
        "recovery_point",
        "segments",
    )

    def __init__(self, shared: LogDirectory, directory: str) -> None:
        self._shared = shared
        self.directory = directory
        self.segments: list[Segment] = []
        self._old_segments: list[Segment] | None = None
        """Closed segments of before the log started over; removed once the new start is durable."""
        self.recovery_point = 0
        """The highest recovery point that may be on the disk: a truncation lowers it first."""
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
        stored.recovery_point = found.stored_recovery_point
        stored._sealed_to = found.recovery_point
        # A full disk may have left names without a byte behind them that were never synced: the
        # first flush after this start syncs them, before anything in these files counts (rule Q6).
        stored._new_directory = any(s.dirty for s in found.segments) or not found.proven_end
        return stored

    @property
    def disk(self) -> Disk:
        """The disk that holds the files."""
        return self._shared.files.disk

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
                segment.pin_index(files)
        except OSError as error:
            raise WriteError(error, Outcome.NOT_WRITTEN, broken=False) from error
        segment.dirty = True
        try:
            files.disk.write(fd, raw, segment.size)
        except OSError as error:
            raise self._undo_partial_write(segment, fd, error) from error
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

    def _undo_partial_write(self, segment: Segment, fd: int, error: OSError) -> WriteError:
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
                segment.note_index_written(self._shared.files)

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
                place_file(files.disk, f"{self.directory}/{name}", [data], sync=False)
        # If a power failure tears these files, a start rebuilds them from the first segment. If the
        # log begins behind 0, each is synced, or deleted records would be readable again (R10): a
        # segment that was removed may be back then, and the log of before it began anew.
        for name, data in checkpoint_files(epochs, self._sealed_to, log_start_offset):
            path = f"{self.directory}/{name}"
            if not log_start_offset or files.disk.read_file(path) != data:
                place_file(files.disk, path, [data], sync=log_start_offset > 0)

    # the log start

    def remove_below(self, log_start_offset: int, most: int) -> list[str]:
        """Rename whole segments below a durable log start; return the paths to be unlinked.

        At most ``most`` segments, each only once the one behind it has its snapshot of producers on
        the disk: no batch names them any more (rule S5). The new names protect files that are
        created later under the old names. A segment that could not be renamed stays in use and is
        tried again: if it were forgotten, a log that starts over below it would write its new
        segments into the old files.

        Raises:
            OSError: no file could be renamed.
        """
        if self.pending is not None:
            return []
        disk, segments = self._shared.files.disk, self.segments
        gone = list(self._old_segments or ())[:most]
        kept = 0
        while len(gone) < most and len(segments) > kept + 1:
            first, end = segments[kept], segments[kept + 1].base_offset
            if end > min(log_start_offset, self._sealed_to) or first.dirty or first.flushing:
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
                if self._old_segments:
                    self._old_segments = self._old_segments[1:] or None
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
        if self._old_segments:
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

    # compaction in progress, truncation, starting over

    def settle(self) -> None:
        """Finish the segment replacement in progress, because names and files are about to change.

        Blocks the event loop for as long as the swap takes; truncations and deletions are rare.

        Raises:
            OSError: the replacement could not be finished.
        """
        if self.pending is not None:
            self.pending.run_once()
            self.pending.finish()
            self.pending = None

    @contextlib.contextmanager
    def _open_settled_directory(self) -> Iterator[int]:
        """Yield an open descriptor of the directory once no replacement is under way.

        The caller is about to change names in that directory.

        Raises:
            WriteError: the disk is full, or no descriptor is free.
        """
        with refuse_if_transient():
            self.settle()
            names = self.disk.open_directory(self.directory)
        try:
            yield names
        finally:
            self.disk.close(names)

    def note_dropped(self, offset: int) -> None:
        """Record, durably, that tombstones below ``offset`` may be missing from this log.

        Raises:
            WriteError: the disk is full.
            OSError: the disk failed.
        """
        if offset > self.cleaned.dropped_to:
            with refuse_if_transient():
                self.settle()
                changed = self.cleaned.dropping(offset)
                write_state(self.disk, self.directory, changed)
                self.cleaned = changed

    def _reset_clean_state(self, end_offset: int, *, all_of_it: bool) -> None:
        """Reset, durably, how far the log is clean: new records may replace old ones.

        They may do so from ``end_offset`` on, or everywhere (``all_of_it``). The bound of dropped
        tombstones stays (rule R7): records below it may stay, or return after a crash.
        """
        known = self.cleaned
        stands = not all_of_it and known.cleaned_to <= end_offset
        changed = CleanState(
            known.marks if stands else (),
            known.epoch if stands else -1,
            min(known.dropped_to, end_offset),
        )
        if changed != known:
            write_state(self.disk, self.directory, changed)
            self.cleaned = changed

    # truncation

    def boundary(self, end_offset: int) -> int:
        """Return the batch boundary at which `truncate` would end the log; nothing is changed.

        Raises:
            WriteError: no free descriptor.
            OSError, CorruptionError: the segment can't be read.
        """
        with refuse_if_transient():
            return self._find(end_offset).next_offset

    def _find(self, end_offset: int) -> _TruncationPoint:
        keep = max(
            number
            for number, segment in enumerate(self.segments)
            if segment.base_offset < end_offset or not number
        )
        last = self.segments[keep]
        fd = self._shared.files.use(last)
        position, next_offset = 0, last.base_offset
        if end_offset >= last.next_offset:
            position, next_offset = last.size, last.next_offset
        elif end_offset > last.base_offset:
            position, header = last.find(self._shared.files, end_offset)
            next_offset = header.base_offset
        return _TruncationPoint(keep, fd, position, next_offset)

    def truncate(
        self,
        end_offset: int,
        epochs: LeaderEpochCache,
        log_start_offset: int,
        *,
        start_anew: bool = False,
    ) -> int:
        """Remove whole batches from ``end_offset`` on; return the new end. Durable on return.

        ``start_anew``: the file may name a log start that is not to take effect.

        Raises:
            WriteError: the disk is full, or no descriptor is free; nothing was removed.
            OSError, CorruptionError: the truncation stopped halfway; the files are in doubt.
        """
        with self._open_settled_directory() as names:
            with refuse_if_transient():
                cut = self._find(end_offset)
                snapshots = snapshot_offsets(self.disk, self.directory)
                self._reset_clean_state(end_offset, all_of_it=False)
                base = self.segments[cut.keep].base_offset
                if start_anew or base < self.recovery_point:
                    # These segments will be written to again: the next start must scan them.
                    point = min(base, self.recovery_point)
                    for name, data in checkpoint_files(epochs, point, log_start_offset):
                        replace_file(self.disk, f"{self.directory}/{name}", [data])
                    self.recovery_point = point
                self.segments[cut.keep].pin_index(self._shared.files)  # its file is removed
            self._sealed_to = min(self._sealed_to, base)
            gone = [offset for offset in snapshots if offset > cut.next_offset]
            unlink_snapshots(self.disk, self.directory, gone, names)
            self._remove_behind(cut, names)
        return cut.next_offset

    def _remove_behind(self, cut: _TruncationPoint, names: int) -> None:
        """Remove the data behind the truncation point, from the end backwards.

        A crash leaves a longer log, never one with a hole. A segment that is removed as a whole
        loses its name at once (ADR 0003); its bytes are unlinked later, off the event loop.
        """
        disk, last = self.disk, self.segments[cut.keep]
        disk.unlink(last.index_path)
        for segment in reversed(self.segments[cut.keep + 1 :]):
            self._shared.files.forget(segment)
            disk.unlink(segment.index_path)
            self._shared.unlink_later(segment.log_path)
            disk.sync_names(names)
            self.segments.pop()
        disk.truncate(cut.fd, cut.position)
        disk.sync_file(cut.fd)
        last.cut(cut.position, cut.next_offset)

    # starting over

    def start_over_behind_end(self, start_offset: int) -> None:
        """Make the log start over empty at ``start_offset``, which is at or behind its end.

        The old segments stay on the disk until a flush has made the new start durable: after a
        crash before that, the next start finds the old log, truncated where the first new segment
        would leave a gap.

        Raises:
            WriteError: the disk is full, or no descriptor is free; nothing has changed.
            OSError: the disk failed.
        """
        with self._open_settled_directory(), refuse_if_transient():
            self._reset_clean_state(start_offset, all_of_it=True)
        kept = [segment for segment in self.segments if segment.base_offset == start_offset]
        for segment in self.segments:
            if segment not in kept:
                self._shared.files.forget(segment)
                segment.dirty = False
        gone = self.segments[: len(self.segments) - len(kept)]
        self._old_segments = [*(self._old_segments or ()), *gone]
        self.segments = kept
        self.recovery_point = self._sealed_to = start_offset

    def empty(
        self,
        start_offset: int,
        epochs: LeaderEpochCache,
        log_start_offset: int,
        producers: tuple[str, bytes] | None = None,
    ) -> None:
        """Make the log start over at an offset below its end. Durable on return.

        Segments are removed from the end backwards: a crash leaves a shorter log, or an empty one.
        Then a snapshot tells that there were producers: a start that finds none of them begins at
        0, so that the replica is told of them (rule S5). ``producers``: name and bytes of the
        snapshot at ``start_offset``; None if the log never had any.

        Raises:
            WriteError: the disk is full, or no descriptor is free; everything in `segments` still
                exists.
            OSError, CorruptionError: the removal stopped halfway; the files are in doubt.
        """
        with self._open_settled_directory() as names:
            with refuse_if_transient():
                snapshots = snapshot_offsets(self.disk, self.directory)
                self._reset_clean_state(start_offset, all_of_it=True)
                first = self.segments[0].base_offset if self.segments else 0
                if producers is not None and not (snapshots and snapshots[0] <= first):
                    marker = snapshot_name(first)
                    replace_file(self.disk, f"{self.directory}/{marker}", [b""])
                    snapshots.append(first)
            if self.segments:
                self.truncate(self.segments[0].base_offset, epochs, log_start_offset)
            self._unlink_all(names, start_offset, producers)
            gone = [offset for offset in sorted(snapshots) if offset != start_offset]
            unlink_snapshots(self.disk, self.directory, gone, names)
        self.recovery_point = self._sealed_to = start_offset

    def _unlink_all(
        self, names: int, start_offset: int, producers: tuple[str, bytes] | None
    ) -> None:
        """Unlink the first segment, empty by now, and those of before the log started over.

        Then write the new start, behind the snapshot of its producers.
        """
        disk = self.disk
        if self.segments:
            self._shared.files.forget(self.segments[0])
            disk.unlink(self.segments[0].log_path)
            self.segments = []
        disk.sync_names(names)  # until then, files removed earlier may come back after a crash
        if self._old_segments:
            with refuse_if_transient():
                self._reset_recovery_point()
        for segment in reversed(self._old_segments or ()):
            disk.unlink(segment.index_path)
            self._shared.unlink_later(segment.log_path)
            disk.sync_names(names)
        self._old_segments = None
        with refuse_if_transient():
            for name, data in (*filter(None, [producers]), start_file(start_offset, start_offset)):
                replace_file(disk, f"{self.directory}/{name}", [data])

    def _reset_recovery_point(self) -> None:
        """Reset the recovery point to 0 while the old segments are removed.

        The log start stays: after a crash during the removal, the next start finds the rest of the
        old log, or nothing. The old segments were not synced before they were replaced; with the
        new recovery point they would count as a log without its first segment (rule Q5).
        """
        try:
            content = read_checkpoint(self.disk, f"{self.directory}/{RECOVERY_POINT_FILE}")
        except CorruptionError:  # then a start relies on no recovery point
            return
        if isinstance(content, dict):
            name, data = start_file(0, content["log_start_offset"])
            replace_file(self.disk, f"{self.directory}/{name}", [data])


def _rename_away(disk: Disk, path: str, renamed: list[str]) -> None:
    if disk.exists(path):
        disk.rename(path, path + REMOVED_SUFFIX)
        renamed.append(path + REMOVED_SUFFIX)
