"""The half of a log's files that removes segments: truncation and starting over.

`PartitionLog` calls `truncate`, `put_aside` and `empty` through `LogSegments`. A truncation is
refused as a whole or done as a whole. Every step that can be refused (a small file for which a
full disk has no room, a descriptor that the process may not open) comes first and leaves the log
unchanged. From the first removed byte on, no step needs disk space or a new descriptor: removed
names are synced through a directory descriptor that was opened before. So a truncation that fails
for lack of descriptors can be retried later.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from broker.log.checkpoints import read_checkpoint, write_atomically
from broker.log.compaction import CleanState
from broker.log.disk import PASSING
from broker.log.producer_snapshot import snapshot_offsets, unlink_snapshots, void_snapshots
from broker.log.recovery import RECOVERY_POINT_FILE, checkpoint_files, start_file
from broker.log.swap import write_state
from raft_metadata.common.errors import CorruptionError, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.log.disk import Disk
    from broker.log.leader_epoch_cache import LeaderEpochCache
    from broker.log.log_directory import LogDirectory
    from broker.log.segment import Segment
    from broker.log.swap import StateChange, Swap


class WriteError(Exception):
    """Bytes were not written. ``broken``: the file, and with it the log directory, is in doubt."""

    def __init__(self, cause: OSError, outcome: Outcome, *, broken: bool) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.outcome = outcome
        self.broken = broken


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Turn a full disk or a lack of descriptors into a WriteError; nothing has been changed yet."""
    try:
        yield
    except OSError as error:
        if error.errno in PASSING:
            raise WriteError(error, Outcome.NOT_WRITTEN, broken=False) from error
        raise


class _Cut(NamedTuple):
    """A truncation point: segments before ``keep`` stay, and ``position`` bytes of that one."""

    keep: int
    fd: int
    position: int
    next_offset: int


class CutSegments:
    """Truncation and starting over of one log's files, for its only heir `LogSegments`."""

    __slots__ = (
        "_aside", "_sealed_to", "_shared", "cleaned", "directory", "pending", "recovery_point",
        "segments",
    )  # fmt: skip

    directory: str
    segments: list[Segment]
    recovery_point: int
    cleaned: CleanState
    pending: Swap | StateChange | None
    _shared: LogDirectory
    _aside: list[Segment] | None
    _sealed_to: int

    @property
    def disk(self) -> Disk:
        """The disk that holds the files."""
        return self._shared.files.disk

    # compaction in progress

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
    def _settled(self) -> Iterator[int]:
        """Yield an open descriptor of the directory once no replacement is under way.

        The caller is about to change names in that directory.

        Raises:
            WriteError: the disk is full, or no descriptor is free.
        """
        with refusing():
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
            with refusing():
                self.settle()
                changed = self.cleaned.dropping(offset)
                write_state(self.disk, self.directory, changed)
                self.cleaned = changed

    def _forget_clean(self, end_offset: int, *, all_of_it: bool) -> None:
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
        with refusing():
            return self._find(end_offset).next_offset

    def _find(self, end_offset: int) -> _Cut:
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
        return _Cut(keep, fd, position, next_offset)

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
        with self._settled() as names:
            with refusing():
                cut = self._find(end_offset)
                snapshots = snapshot_offsets(self.disk, self.directory)
                self._forget_clean(end_offset, all_of_it=False)
                base = self.segments[cut.keep].base_offset
                if start_anew or base < self.recovery_point:
                    # These segments will be written to again: the next start must scan them.
                    point = min(base, self.recovery_point)
                    for name, data in checkpoint_files(epochs, point, log_start_offset):
                        write_atomically(self.disk, self.directory, name, data)
                    self.recovery_point = point
                self.segments[cut.keep].take_index(self._shared.files)  # its file is removed
            self._sealed_to = min(self._sealed_to, base)
            gone = [offset for offset in snapshots if offset > cut.next_offset]
            unlink_snapshots(self.disk, self.directory, gone, names)
            self._remove_behind(cut, names)
        return cut.next_offset

    def _remove_behind(self, cut: _Cut, names: int) -> None:
        """Remove the data behind the truncation point, from the end backwards.

        A crash leaves a longer log, never one with a hole. A segment that is removed as a whole
        loses its name at once (ADR 0003); its bytes are unlinked later, off the event loop.
        """
        disk, last = self.disk, self.segments[cut.keep]
        disk.unlink(last.index_path)
        for segment in reversed(self.segments[cut.keep + 1 :]):
            self._shared.files.forget(segment)
            disk.unlink(segment.index_path)
            self._shared.put_away(segment.log_path)
            disk.sync_names(names)
            self.segments.pop()
        disk.truncate(cut.fd, cut.position)
        disk.sync_file(cut.fd)
        last.cut(cut.position, cut.next_offset)

    # starting over

    def put_aside(self, start_offset: int) -> None:
        """Make the log start over empty at ``start_offset``, which is at or behind its end.

        The old segments stay on the disk until a flush has made the new start durable: after a
        crash before that, the next start finds the old log, truncated where the first new segment
        would leave a gap.

        Raises:
            WriteError: the disk is full, or no descriptor is free; nothing has changed.
            OSError: the disk failed.
        """
        with self._settled() as names, refusing():
            snapshots = snapshot_offsets(self.disk, self.directory)
            self._forget_clean(start_offset, all_of_it=True)
            # If this fails, the old log stays: voided snapshots are rebuilt from its headers.
            void_snapshots(self.disk, self.directory, snapshots, names)
        kept = [segment for segment in self.segments if segment.base_offset == start_offset]
        for segment in self.segments:
            if segment not in kept:
                self._shared.files.forget(segment)
                segment.dirty = False
        gone = self.segments[: len(self.segments) - len(kept)]
        self._aside = [*(self._aside or ()), *gone]
        self.segments = kept
        self.recovery_point = self._sealed_to = start_offset

    def empty(self, start_offset: int, epochs: LeaderEpochCache, log_start_offset: int) -> None:
        """Make the log start over at an offset below its end. Durable on return.

        Segments are removed from the end backwards: a crash leaves a shorter log, or an empty one.

        Raises:
            WriteError: the disk is full, or no descriptor is free; everything in `segments` still
                exists.
            OSError, CorruptionError: the removal stopped halfway; the files are in doubt.
        """
        with self._settled() as names:
            with refusing():
                snapshots = snapshot_offsets(self.disk, self.directory)
                self._forget_clean(start_offset, all_of_it=True)
            if self.segments:
                self.truncate(self.segments[0].base_offset, epochs, log_start_offset)
            unlink_snapshots(self.disk, self.directory, snapshots, names)
            self._unlink_all(names, start_offset)
        self.recovery_point = self._sealed_to = start_offset

    def _unlink_all(self, names: int, start_offset: int) -> None:
        """Unlink the first segment, empty by now, and those of before the log started over."""
        disk = self.disk
        if self.segments:
            self._shared.files.forget(self.segments[0])
            disk.unlink(self.segments[0].log_path)
            self.segments = []
        disk.sync_names(names)  # until then, files removed earlier may come back after a crash
        if self._aside:
            with refusing():
                self._ask_nothing_of_aside()
        for segment in reversed(self._aside or ()):
            disk.unlink(segment.index_path)
            self._shared.put_away(segment.log_path)
            disk.sync_names(names)
        self._aside = None
        with refusing():
            name, data = start_file(start_offset, start_offset)
            write_atomically(disk, self.directory, name, data)

    def _ask_nothing_of_aside(self) -> None:
        """Reset the recovery point to 0 while the old segments are removed.

        The log start stays: after a crash during the removal, the next start finds the rest of the
        old log, or nothing. The old segments were not synced before they were replaced; with the
        new recovery point they would count as a log without its first segment (rule Q5).
        """
        try:
            said = read_checkpoint(self.disk, f"{self.directory}/{RECOVERY_POINT_FILE}")
        except CorruptionError:  # then a start relies on no recovery point
            return
        if isinstance(said, dict):
            name, data = start_file(0, said["log_start_offset"])
            write_atomically(self.disk, self.directory, name, data)
