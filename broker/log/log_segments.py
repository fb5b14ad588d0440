"""The files of one partition's log: written at the end, rolled, cut, sealed, synced.

Which offsets count, and for whom, is the PartitionLog's; here is what stands in which file, and
which of it the next start may take without a scan.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Self

from broker.log.checkpoints import place_file, write_atomically
from broker.log.compaction import NEVER_CLEANED, CleanState
from broker.log.disk import DISK_FULL, OUT_OF_DESCRIPTORS, PASSING
from broker.log.log_directory import PARTITION_FILE, make_partition_directory
from broker.log.producer_snapshot import remove_snapshots, snapshots_below
from broker.log.recovery import REMOVED_SUFFIX, checkpoint_files, start_file
from broker.log.segment import Segment
from broker.log.swap import write_state
from raft_metadata.common.errors import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from broker.log.disk import Disk
    from broker.log.flusher import FlushToken
    from broker.log.leader_epoch_cache import LeaderEpochCache
    from broker.log.log_directory import LogConfig, LogDirectory
    from broker.log.recovery import RecoveredLog
    from broker.log.swap import StateChange, Swap
    from raft_metadata.common.ids import PartitionId, TopicId, TopicName


class WriteError(Exception):
    """Bytes were not written. ``broken``: the file is in doubt, and so is the log directory."""

    def __init__(self, cause: OSError, outcome: Outcome, *, broken: bool) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.outcome = outcome
        self.broken = broken


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Nothing has been changed yet: a full disk, or no free descriptor, is no reason to end."""
    try:
        yield
    except OSError as error:
        if error.errno in PASSING:
            raise WriteError(error, Outcome.NOT_WRITTEN, broken=False) from error
        raise


class LogSegments:
    """The segments of one log, the last one being written. Made with the log's first byte.

    Bytes leave a file only by a cut that is synced before anything is written behind it, so an old
    tail never comes back to prove what is not there (ADR 0003). Segments below
    ``recovery_point`` are synced, and their index files speak for them at the next start.
    """

    __slots__ = (
        "_aside", "_new_directory", "_new_segment", "_sealed_to", "_shared", "cleaned", "directory",
        "pending", "recovery_point", "segments",
    )  # fmt: skip

    def __init__(self, shared: LogDirectory, directory: str) -> None:
        self._shared = shared
        self.directory = directory
        self.segments: list[Segment] = []
        self._aside: list[Segment] | None = None
        """Closed segments of before the log started over; they go once that is durable."""
        self.recovery_point = 0
        self._sealed_to = 0
        self._new_directory = False
        self._new_segment = False
        self.cleaned = NEVER_CLEANED
        """How far this replica has compacted the log."""
        self.pending: Swap | StateChange | None = None
        """A step of compaction that is under way on another thread (`settle`)."""

    @classmethod
    def create(
        cls,
        shared: LogDirectory,
        directory: str,
        topic: TopicName,
        partition: PartitionId,
        topic_id: TopicId,
    ) -> Self:
        """Make the directory; the log's first flush makes it durable.

        Raises:
            OSError: it could not be made whole; to be tried again.
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
        """What recovery found; the caller syncs before it counts as durable (rule Q1)."""
        stored = cls(shared, directory)
        stored.segments = found.segments
        stored.cleaned = found.cleaned
        stored.recovery_point = stored._sealed_to = found.recovery_point
        # A full disk may have left names without a byte behind them, which nobody ever synced: the
        # first flush of this life does, before anything in these files counts (rule Q6).
        stored._new_directory = any(s.dirty for s in found.segments) or not found.proven_end
        return stored

    @property
    def is_new(self) -> bool:
        """Whether not even the directory is durable."""
        return self._new_directory

    # writing

    def write(
        self, raw: bytes | bytearray | memoryview, end_offset: int, now_ms: int, config: LogConfig
    ) -> Segment:
        """Write at the log's end, whole or not at all (rule R2); the caller notes it.

        Raises:
            WriteError: the file is as before, unless the outcome is unknown.
        """
        files = self._shared.files
        try:
            segment = self._active(len(raw), end_offset, now_ms, config)
            fd = files.use(segment)
        except OSError as error:
            raise WriteError(error, Outcome.NOT_WRITTEN, broken=False) from error
        segment.dirty = True
        try:
            files.disk.write(fd, raw, segment.size)
        except OSError as error:
            raise self._cut_back(segment, fd, error) from error
        return segment

    def _active(self, length: int, end_offset: int, now_ms: int, config: LogConfig) -> Segment:
        """The segment to write to: the last one, unless it is full or old."""
        if self.segments:
            active = self.segments[-1]
            full = active.size + length > config.segment_bytes
            old = now_ms - active.first_append_ms > config.segment_ms
            if not active.size or not (full or old):
                return active
        return self.roll(end_offset)

    def roll(self, end_offset: int) -> Segment:
        """Write to a new segment from here on.

        Raises:
            OSError: it could not be made; the log is as before.
        """
        segment = Segment(self.directory, end_offset)
        self._shared.files.use(segment)
        self.segments = [*self.segments, segment]
        self._new_segment = True
        return segment

    def _cut_back(self, segment: Segment, fd: int, error: OSError) -> WriteError:
        """A write failed at some byte: put the file back as it was, or give up on it (rule R2).

        The cut is synced: else these bytes could come back behind the next ones.
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
        """Name in the token all that everything written by now depends on (rule Q6).

        Where the token is about a log start, that is made durable behind the data.
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
            # An index without its epochs would hide its segment from the scan, too.
            token.checkpoints = [epochs_file, *token.checkpoints, start]
        elif token.log_start >= 0:
            point = min(self.recovery_point, self._sealed_to)
            token.checkpoints.append(start_file(point, log_start_offset))

    def _seal(self, token: FlushToken, active_base: int) -> bool:
        """Segments were closed by a roll: once synced, they need no scan at the next start.

        False where they could not be opened just now: a later flush seals them.
        """
        files = self._shared.files
        try:
            for segment in self.segments[:-1]:
                if segment.base_offset >= self._sealed_to:
                    name = segment.index_path.rpartition("/")[2]
                    data = segment.index_bytes(files.disk, files.use(segment))
                    token.checkpoints.append((name, data))
                    if segment not in token.segments:  # to stay until its index is written, too
                        token.segments.append(segment)
                        segment.flushing += 1
        except OSError as error:
            if error.errno not in OUT_OF_DESCRIPTORS:
                raise
            return False
        # From now on it may be on the disk, whatever becomes of the token: see `truncate`.
        self.recovery_point = active_base
        token.unsealed_from, self._sealed_to = self._sealed_to, active_base
        return True

    def end_flush(self, token: FlushToken, *, synced: bool) -> None:
        """The sync of this token is over."""
        for segment in token.segments:
            segment.flushing -= 1
            if not synced:
                segment.dirty = True
        if token.checkpoints_failed:
            self._sealed_to = min(self._sealed_to, token.unsealed_from)

    def checkpoint_for_close(self, epochs: LeaderEpochCache, log_start_offset: int) -> None:
        """Write index and checkpoints of synced segments, so that the next start is quick.

        Raises:
            OSError: one could not be written; then the shutdown is not clean.
        """
        files = self._shared.files
        if self.segments:
            active = self.segments[-1]
            name = active.index_path.rpartition("/")[2]
            data = active.index_bytes(files.disk, files.use(active))
            place_file(files.disk, self.directory, name, data, sync=False)
        # Torn by a power cut, these are made of the first segment: if the log begins behind that,
        # they are synced one by one, else what was deleted would be back (rule R10).
        first = self.segments[0].base_offset if self.segments else -1
        for name, data in checkpoint_files(epochs, self._sealed_to, log_start_offset):
            place_file(files.disk, self.directory, name, data, sync=first < log_start_offset)

    # the log start

    def put_aside(self, start_offset: int) -> None:
        """The log starts over empty at this offset, at or behind its end.

        What is here stays on the disk until a flush has made the new start durable: a crash before
        that finds the old log, cut where the first new segment would leave a gap.
        """
        with _refusing():
            self.settle()
            self._forget_clean(start_offset, all_of_it=True)
        files = self._shared.files
        remove_snapshots(files.disk, self.directory, above=-1)
        kept = [segment for segment in self.segments if segment.base_offset == start_offset]
        for segment in self.segments:
            if segment not in kept:
                files.forget(segment)
                segment.dirty = False
        gone = self.segments[: len(self.segments) - len(kept)]
        self._aside = [*(self._aside or ()), *gone]
        self.segments = kept
        self.recovery_point = self._sealed_to = start_offset

    def empty(self, start_offset: int, epochs: LeaderEpochCache, log_start_offset: int) -> None:
        """Start over at an offset below the log's end. Durable on return.

        From the end backwards: a crash leaves a shorter log, or an empty one.

        Raises:
            WriteError: the disk is full. What is in `segments` is still there.
            OSError, CorruptionError: it stopped on the way; the files are in doubt.
        """
        with _refusing():
            self.settle()
            self._forget_clean(start_offset, all_of_it=True)
        files, disk = self._shared.files, self._shared.files.disk
        remove_snapshots(disk, self.directory, above=-1)
        if self.segments:
            self.truncate(self.segments[0].base_offset, epochs, log_start_offset)
            files.forget(self.segments[0])
            disk.unlink(self.segments[0].log_path)
            disk.sync_directory(self.directory)
            self.segments = []
        name, data = start_file(start_offset, start_offset)
        if self._aside:  # what the file still says of them must not be missed there
            with _refusing():
                write_atomically(disk, self.directory, name, data)
        for segment in reversed(self._aside or ()):
            disk.unlink(segment.index_path)
            disk.unlink(segment.log_path)
            disk.sync_directory(self.directory)
        self._aside = None
        with _refusing():
            write_atomically(disk, self.directory, name, data)
        self.recovery_point = self._sealed_to = start_offset

    def remove_below(self, log_start_offset: int, most: int) -> list[str]:
        """Take whole segments below a durable log start out of use; the files to be unlinked.

        They are renamed, so that nothing that is made later under their names is unlinked instead.
        """
        if self.pending is not None:
            return []
        files, disk = self._shared.files, self._shared.files.disk
        gone = list(self._aside or ())[:most]
        self._aside = (self._aside or [])[most:] or None
        while len(gone) < most and len(self.segments) > 1:
            first = self.segments[0]
            if self.segments[1].base_offset > log_start_offset or first.dirty or first.flushing:
                break
            files.forget(first)
            self.segments = self.segments[1:]
            gone.append(first)
        paths = [path for segment in gone for path in (segment.index_path, segment.log_path)]
        if gone and self.segments:
            paths += snapshots_below(disk, self.directory, self.segments[0].base_offset)
        renamed = []
        for path in paths:
            if disk.exists(path):
                disk.rename(path, path + REMOVED_SUFFIX)
                renamed.append(path + REMOVED_SUFFIX)
        return renamed

    def holds_below(self, log_start_offset: int) -> bool:
        """Whether `remove_below` has something left to do."""
        if self._aside:
            return True
        return len(self.segments) > 1 and self.segments[1].base_offset <= log_start_offset

    # compaction

    def sealed(self, durable_end: int) -> list[Segment]:
        """Closed segments, oldest first, that are synced and whose indexes are written.

        ``durable_end``: what has been synced is behind the seal, once it is inside the last one.
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

    @property
    def disk(self) -> Disk:
        """Where the files are."""
        return self._shared.files.disk

    def broken(self, error: BaseException) -> None:
        """The disk failed under compaction: the whole directory is in doubt (rule Q2)."""
        self._shared.on_failed(None, error)

    def replace(self, old: Sequence[Segment], swap: Swap, new: Segment, fd: int) -> None:
        """Read the new segment from now on; the files follow when the swap has run."""
        first = self.segments.index(old[0])
        self._shared.files.adopt(new, fd)
        for segment in old:
            self._shared.files.forget(segment)
        self.segments = [*self.segments[:first], new, *self.segments[first + len(old) :]]
        self.pending = swap

    def settle(self) -> None:
        """Have no replacement under way: names and files are about to change otherwise.

        Blocks the loop for as long as the swap takes; truncations and deletions are rare.

        Raises:
            OSError: it could not be finished.
        """
        if self.pending is not None:
            self.pending.run_once()
            self.pending.finish()
            self.pending = None

    def note_dropped(self, offset: int) -> None:
        """Below this offset, tombstones may be gone that this log never held. Durable on return.

        Raises:
            WriteError: the disk is full. OSError: it failed.
        """
        if offset > self.cleaned.dropped_to:
            with _refusing():
                self.settle()
                changed = self.cleaned.dropping(offset)
                write_state(self.disk, self.directory, changed)
                self.cleaned = changed

    def _forget_clean(self, end_offset: int, *, all_of_it: bool) -> None:
        """From this offset on, or from the start, other records may stand here. Durable on return.

        Nothing is known to be clean then. Which tombstones may be gone stays known (rule R7): what
        is below may stay, or be back after a crash.
        """
        known = self.cleaned
        stands = not all_of_it and known.cleaned_to <= end_offset
        changed = CleanState(
            known.marks if stands else (),
            known.epoch if stands else -1,
            min(known.dropped_to, end_offset),
        )
        if changed != known:
            self.cleaned = changed
            write_state(self.disk, self.directory, changed)

    # cutting and closing

    def truncate(
        self,
        end_offset: int,
        epochs: LeaderEpochCache,
        log_start_offset: int,
        *,
        start_anew: bool = False,
    ) -> int:
        """Remove everything from this offset on, whole batches; the new end. Durable on return.

        ``start_anew``: the file may name a log start that is not to be.

        Raises:
            WriteError: the disk is full, nothing was removed.
            OSError, CorruptionError: it stopped on the way; the files are in doubt.
        """
        with _refusing():
            self.settle()
            self._forget_clean(end_offset, all_of_it=False)
        files, disk = self._shared.files, self._shared.files.disk
        keep = max(
            number
            for number, segment in enumerate(self.segments)
            if segment.base_offset < end_offset or not number
        )
        last = self.segments[keep]
        with _refusing():
            fd = files.use(last)
        position, next_offset = 0, last.base_offset
        if end_offset >= last.next_offset:
            position, next_offset = last.size, last.next_offset
        elif end_offset > last.base_offset:
            position, header = last.find(disk, fd, end_offset)
            next_offset = header.base_offset
        if start_anew or last.base_offset < self.recovery_point:
            # These segments will be written to again: from now on a start must scan them.
            point = min(last.base_offset, self.recovery_point)
            with _refusing():
                for name, data in checkpoint_files(epochs, point, log_start_offset):
                    write_atomically(disk, self.directory, name, data)
            self.recovery_point = point
        self._sealed_to = min(self._sealed_to, last.base_offset)
        remove_snapshots(disk, self.directory, above=next_offset)
        last.index(disk, fd)
        disk.unlink(last.index_path)
        for segment in reversed(self.segments[keep + 1 :]):
            files.forget(segment)
            disk.unlink(segment.index_path)
            disk.unlink(segment.log_path)
            disk.sync_directory(self.directory)
            self.segments.pop()
        disk.truncate(fd, position)
        disk.sync_file(fd)
        last.cut(position, next_offset)
        return next_offset

    def close(self) -> None:
        """Release descriptors. A replacement that can't be finished now is, at the next start."""
        with contextlib.suppress(OSError):
            self.settle()
        for segment in self.segments:
            self._shared.files.forget(segment)
