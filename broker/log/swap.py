"""The replacement of some segments of a log by one, so that no crash leaves a hole, or both.

    <base>.log.cleaned   the new file; whole and synced before it gets its next name
    <base>.log.swap      it counts from now on: the segments it replaces may be removed
    <base>.log           it has taken the place of the first old segment; the others are removed

Each step is durable before the next (rule Q6). A start discards a ``.cleaned`` and finishes a
``.swap`` (`finish_swaps`). Before the rename to ``.swap``, the old segments count. The file
``cleaned`` beside the segments records how far a replica's log is clean.
"""

from __future__ import annotations

import logging
import re
import threading
from typing import TYPE_CHECKING, Protocol, cast

from broker.log.checkpoints import encode_checkpoint, read_checkpoint
from broker.log.compaction import NEVER_CLEANED, CleanState
from broker.log.scan import whole_batches
from raft_metadata.common.disk import DISK_FULL, replace_file
from raft_metadata.common.errors import CorruptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.log.segment import Segment
    from raft_metadata.common.disk import Disk

CLEANED_SUFFIX = ".log.cleaned"
SWAP_SUFFIX = ".log.swap"
STATE_FILE = "cleaned"
_SWAP_NAME = re.compile(r"(\d{20})\.log\.swap")
_SEGMENT_NAME = re.compile(r"(\d{20})\.(log|index)")
_log = logging.getLogger("broker.log")


class Swap:
    """A replacement in progress. ``run_once`` may be called from any thread, by more than one.

    The log reads the new segment already, through its open descriptor: until ``finish`` (on the
    event loop) it must not close that, since the file's final name does not lead to it yet.
    """

    def __init__(
        self, disk: Disk, directory: str, old: Sequence[Segment], new: Segment, index: bytes
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._new = new
        self._index = index
        self._gone = [segment.path for segment in old]
        self._lock = threading.Lock()
        self._ran = self._finished = self._indexed = False
        new.flushing += 1  # keeps the descriptor open (rule Q6)

    def run_once(self) -> None:
        """Put the new file in the place of the old ones, durably; later calls only wait for that.

        Raises:
            OSError: it stopped halfway. May be called again: each step is done or not.
        """
        with self._lock:
            if not self._ran:
                self._run()
                self._ran = True

    def _run(self) -> None:
        disk, path = self._disk, self._new.path
        if disk.exists(path + CLEANED_SUFFIX):
            disk.rename(path + CLEANED_SUFFIX, path + SWAP_SUFFIX)
        disk.sync_directory(self._directory)
        if disk.exists(path + SWAP_SUFFIX):
            _remove(disk, self._directory, self._gone, path)
            disk.rename(path + SWAP_SUFFIX, path + ".log")
        disk.sync_directory(self._directory)
        try:
            name = self._new.index_path.rpartition("/")[2]
            replace_file(disk, f"{self._directory}/{name}", [self._index])
            self._indexed = True
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            _log.warning("disk full, index left out file=%s error=%s", self._new.index_path, error)

    def finish(self) -> None:
        """Release the descriptor and the index in memory, after the swap has run.

        On the event loop.
        """
        if not self._finished:
            self._finished = True
            self._new.flushing -= 1
            self._new.is_index_written = self._indexed
            self._new.drop_index()


class StateChange:
    """A write, in progress, of how far the log is clean; used like a `Swap`."""

    def __init__(self, stored: CleanedLog, state: CleanState) -> None:
        self._stored = stored
        self.state = state
        self._lock = threading.Lock()
        self._ran = False

    def run_once(self) -> None:
        """Write the state, durably; later calls only wait for that.

        Raises:
            OSError: it was not written. May be called again.
        """
        with self._lock:
            if not self._ran:
                write_state(self._stored.disk, self._stored.directory, self.state)
                self._ran = True

    def finish(self) -> None:
        """Set the log's state, after it was written. On the event loop."""
        self._stored.cleaned = self.state


class CleanedLog(Protocol):
    """The part of a log's files that this module uses."""

    directory: str
    cleaned: CleanState

    @property
    def disk(self) -> Disk: ...


def _remove(disk: Disk, directory: str, gone: Sequence[str], new: str) -> None:
    """Unlink the replaced files, except the one that the last rename replaces."""
    for path in gone:
        disk.unlink(path + ".index")
        if path != new:
            disk.unlink(path + ".log")
    disk.sync_directory(directory)


def finish_swaps(disk: Disk, directory: str) -> None:
    """Discard or finish the replacements that a crash left, before the log is read.

    Raises:
        CorruptionError: a file that was synced whole is damaged; names it. Nothing was removed.
        OSError: the disk failed.
    """
    names = disk.names(directory)
    for name in names:
        if name.endswith(CLEANED_SUFFIX):
            disk.unlink(f"{directory}/{name}")
    for name in names:
        match = _SWAP_NAME.fullmatch(name)
        if match:
            _finish(disk, directory, names, int(match[1]))


def _finish(disk: Disk, directory: str, names: Sequence[str], base: int) -> None:
    new = f"{directory}/{base:020d}"
    end = _end_of_whole_file(disk, new + SWAP_SUFFIX, base)
    gone = {
        f"{directory}/{match[1]}"
        for match in map(_SEGMENT_NAME.fullmatch, names)
        if match and base <= int(match[1]) < end
    }
    _remove(disk, directory, sorted(gone | {new}), new)
    disk.rename(new + SWAP_SUFFIX, new + ".log")
    disk.sync_directory(directory)
    _log.info("replacement finished file=%s.log offsets=%d..%d", new, base, end)


def _end_of_whole_file(disk: Disk, path: str, base: int) -> int:
    end = base
    fd = disk.open(path)
    try:
        for found in whole_batches(disk, fd, disk.size(fd), path):
            header = found.header
            if header.base_offset != end:
                msg = f"a batch out of place file={path} offset={end}"
                raise CorruptionError(msg)
            end = header.next_offset
    finally:
        disk.close(fd)
    if end == base:
        msg = f"no batch in file={path}"
        raise CorruptionError(msg)
    return end


# ---- the state of cleaning


def write_state(disk: Disk, directory: str, state: CleanState) -> None:
    """Write how far the log is clean. Durable on return."""
    content = {"marks": state.marks, "epoch": state.epoch, "dropped_to": state.dropped_to}
    replace_file(disk, f"{directory}/{STATE_FILE}", [encode_checkpoint(content)])


def read_state(disk: Disk, directory: str, end_offset: int) -> CleanState:
    """Return how far a log that ends at ``end_offset`` is clean.

    Raises:
        CorruptionError: the file is damaged, and with it the bound that keeps a lagging replica
            from missing a tombstone dropped here (rule R7): this replica must be filled anew.
    """
    content = read_checkpoint(disk, f"{directory}/{STATE_FILE}")
    if content is None:
        return NEVER_CLEANED
    fields = cast("dict[str, object]", content)
    marks = tuple((mark[0], mark[1]) for mark in cast("list[list[int]]", fields["marks"]))
    return CleanState(
        marks, cast("int", fields["epoch"]), min(cast("int", fields["dropped_to"]), end_offset)
    )
