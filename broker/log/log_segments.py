"""The files of one partition's log: written at the end, rolled, cut, sealed, synced.

Which offsets count, and for whom, is the PartitionLog's; here is what stands in which file, and
which of it the next start may take without a scan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from broker.log.checkpoints import place_file, write_atomically
from broker.log.disk import DISK_FULL
from broker.log.log_directory import PARTITION_FILE, make_partition_directory
from broker.log.recovery import checkpoint_files
from broker.log.segment import Segment
from raft_metadata.common.errors import Outcome

if TYPE_CHECKING:
    from broker.log.flusher import FlushToken
    from broker.log.leader_epoch_cache import LeaderEpochCache
    from broker.log.log_directory import LogConfig, LogDirectory
    from broker.log.recovery import RecoveredLog
    from raft_metadata.common.ids import PartitionId, TopicId, TopicName


class WriteError(Exception):
    """Bytes were not written. ``broken``: the file is in doubt, and so is the log directory."""

    def __init__(self, cause: OSError, outcome: Outcome, *, broken: bool) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.outcome = outcome
        self.broken = broken


class LogSegments:
    """The segments of one log, the last one being written. Made with the log's first byte.

    Bytes leave a file only by a cut that is synced before anything is written behind it, so an old
    tail never comes back to prove what is not there (ADR 0003). Segments below
    ``recovery_point`` are synced, and their index files speak for them at the next start.
    """

    __slots__ = (
        "_new_directory", "_new_segment", "_sealed_to", "_shared", "directory", "recovery_point",
        "segments",
    )  # fmt: skip

    def __init__(self, shared: LogDirectory, directory: str) -> None:
        self._shared = shared
        self.directory = directory
        self.segments: list[Segment] = []
        self.recovery_point = 0
        self._sealed_to = 0
        self._new_directory = False
        self._new_segment = False

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
        make_partition_directory(shared.files.disk, directory, topic, partition, topic_id)
        created = cls(shared, directory)
        created._new_directory = True
        return created

    @classmethod
    def restored(cls, shared: LogDirectory, directory: str, found: RecoveredLog) -> Self:
        """What recovery found; the caller syncs before it counts as durable (rule Q1)."""
        stored = cls(shared, directory)
        stored.segments = found.segments
        stored.recovery_point = stored._sealed_to = found.recovery_point
        # A full disk may have left names without a byte behind them, which nobody ever synced: the
        # first flush of this life does, before anything in these files counts (rule Q6).
        stored._new_directory = any(s.dirty for s in found.segments) or not found.proven_end
        return stored

    # writing

    def write(
        self, raw: bytes | bytearray, end_offset: int, now_ms: int, config: LogConfig
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
        """Name in the token all that everything written by now depends on (rule Q6)."""
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
        active = self.segments[-1]
        if active.base_offset > self._sealed_to:
            self._seal(token, active.base_offset)
            token.checkpoints += checkpoint_files(epochs, active.base_offset, log_start_offset)

    def _seal(self, token: FlushToken, active_base: int) -> None:
        """Segments were closed by a roll: once synced, they need no scan at the next start."""
        files = self._shared.files
        for segment in self.segments[:-1]:
            if segment.base_offset >= self._sealed_to:
                name = segment.index_path.rpartition("/")[2]
                data = segment.index_bytes(files.disk, files.use(segment))
                token.checkpoints.append((name, data))
        # From now on it may be on the disk, whatever becomes of the token: see `truncate`.
        self.recovery_point = active_base
        token.unsealed_from, self._sealed_to = self._sealed_to, active_base

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
        active = self.segments[-1]
        name = active.index_path.rpartition("/")[2]
        data = active.index_bytes(files.disk, files.use(active))
        place_file(files.disk, self.directory, name, data, sync=False)
        for name, data in checkpoint_files(epochs, self._sealed_to, log_start_offset):
            place_file(files.disk, self.directory, name, data, sync=False)

    # cutting and closing

    def truncate(self, end_offset: int, epochs: LeaderEpochCache, log_start_offset: int) -> int:
        """Remove everything from this offset on, whole batches; the new end. Durable on return.

        Raises:
            OSError, CorruptionError: it stopped on the way; the files are in doubt.
        """
        files, disk = self._shared.files, self._shared.files.disk
        keep = max(
            number
            for number, segment in enumerate(self.segments)
            if segment.base_offset < end_offset or not number
        )
        last = self.segments[keep]
        fd = files.use(last)
        position, next_offset = 0, last.base_offset
        if end_offset >= last.next_offset:
            position, next_offset = last.size, last.next_offset
        elif end_offset > last.base_offset:
            position, header = last.find(disk, fd, end_offset)
            next_offset = header.base_offset
        if last.base_offset < self.recovery_point:
            # These segments will be written to again: from now on a start must scan them.
            for name, data in checkpoint_files(epochs, last.base_offset, log_start_offset):
                write_atomically(disk, self.directory, name, data)
            self.recovery_point = last.base_offset
        self._sealed_to = min(self._sealed_to, last.base_offset)
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
        """Release descriptors."""
        for segment in self.segments:
            self._shared.files.forget(segment)
