"""The half of a log's files that goes: cut off at the end, put aside, emptied.

A cut is refused as a whole or made as a whole. Whatever can be refused (a small file that a full
disk has no room for, a descriptor that the process may not have) comes first, and leaves the log
as it was; from the first byte that goes, no step needs either: names that went are synced through
a descriptor that was opened before. So out of descriptors, a cut is tried again later.
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
    """Bytes were not written. ``broken``: the file is in doubt, and so is the log directory."""

    def __init__(self, cause: OSError, outcome: Outcome, *, broken: bool) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.outcome = outcome
        self.broken = broken


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Nothing has been changed yet: a full disk, or no free descriptor, is no reason to end."""
    try:
        yield
    except OSError as error:
        if error.errno in PASSING:
            raise WriteError(error, Outcome.NOT_WRITTEN, broken=False) from error
        raise


class _Cut(NamedTuple):
    """Where a log is cut: so many bytes stay of this segment, and all of those before it."""

    keep: int
    fd: int
    position: int
    next_offset: int


class CutSegments:
    """See the module; `LogSegments` owns what is named here."""

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
        """Where the files are."""
        return self._shared.files.disk

    # compaction gives way

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

    @contextlib.contextmanager
    def _settled(self) -> Iterator[int]:
        """The open directory, for names that are about to change; no replacement is under way.

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
        """Below this offset, tombstones may be gone that this log never held. Durable on return.

        Raises:
            WriteError: the disk is full. OSError: it failed.
        """
        if offset > self.cleaned.dropped_to:
            with refusing():
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
            write_state(self.disk, self.directory, changed)
            self.cleaned = changed

    # cutting

    def boundary(self, end_offset: int) -> int:
        """Where `truncate` would end the log: at a batch's start. Nothing is changed.

        Raises:
            WriteError: no free descriptor. OSError, CorruptionError: the segment can't be read.
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
        """Remove everything from this offset on, whole batches; the new end. Durable on return.

        ``start_anew``: the file may name a log start that is not to be.

        Raises:
            WriteError: the disk is full, or no descriptor is free; nothing was removed.
            OSError, CorruptionError: it stopped on the way; the files are in doubt.
        """
        with self._settled() as names:
            with refusing():
                cut = self._find(end_offset)
                snapshots = snapshot_offsets(self.disk, self.directory)
                self._forget_clean(end_offset, all_of_it=False)
                base = self.segments[cut.keep].base_offset
                if start_anew or base < self.recovery_point:
                    # These segments are written to again: from now on a start must scan them.
                    point = min(base, self.recovery_point)
                    for name, data in checkpoint_files(epochs, point, log_start_offset):
                        write_atomically(self.disk, self.directory, name, data)
                    self.recovery_point = point
                self.segments[cut.keep].take_index(self._shared.files)  # its file goes
            self._sealed_to = min(self._sealed_to, base)
            gone = [offset for offset in snapshots if offset > cut.next_offset]
            unlink_snapshots(self.disk, self.directory, gone, names)
            self._remove_behind(cut, names)
        return cut.next_offset

    def _remove_behind(self, cut: _Cut, names: int) -> None:
        """From the end backwards: a crash leaves a longer log, never one with a hole.

        What goes as a whole loses its name here and now (ADR 0003); its bytes go off the loop.
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
        """The log starts over empty at this offset, at or behind its end.

        What is here stays on the disk until a flush has made the new start durable: a crash before
        that finds the old log, cut where the first new segment would leave a gap.

        Raises:
            WriteError: the disk is full, or no descriptor is free; all is as before.
            OSError: it failed.
        """
        with self._settled() as names, refusing():
            snapshots = snapshot_offsets(self.disk, self.directory)
            self._forget_clean(start_offset, all_of_it=True)
            # Should it fail, the old log goes on: what is void is read from its headers.
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
        """Start over at an offset below the log's end. Durable on return.

        From the end backwards: a crash leaves a shorter log, or an empty one.

        Raises:
            WriteError: the disk is full, or no descriptor is free. What is in `segments` is still
                there.
            OSError, CorruptionError: it stopped on the way; the files are in doubt.
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
        """The first segment, which is empty by now, and what was put aside before."""
        disk = self.disk
        if self.segments:
            self._shared.files.forget(self.segments[0])
            disk.unlink(self.segments[0].log_path)
            self.segments = []
        disk.sync_names(names)  # what was removed earlier may come back until then
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
        """What the file says of these segments must not be missed while they go.

        The log start stays: a crash amid them finds what is left of the old log, or nothing of it.
        Nobody synced them before they were put aside, and with the new start they would be a log
        that lacks its first segment (rule Q5).
        """
        try:
            said = read_checkpoint(self.disk, f"{self.directory}/{RECOVERY_POINT_FILE}")
        except CorruptionError:  # a start asks nothing then
            return
        if isinstance(said, dict):
            name, data = start_file(0, said["log_start_offset"])
            write_atomically(self.disk, self.directory, name, data)
