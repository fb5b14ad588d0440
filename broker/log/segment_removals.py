"""Segments out of use: renamed at once, unlinked later and off the loop (0.27 s for one of 1 GB).

Those below a log's start wait for Kafka's ``file.delete.delay.ms``: whoever still reads from an
open file finishes first. A crash in between costs nothing: what the next start finds below a
durable log start, it removes. Those that a cut removes go with the next step: a full disk waits for
their room. Whatever is renamed, a start unlinks before it looks at a log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

from broker.log.disk import PASSING
from broker.log.recovery import REMOVED_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.log.disk import Disk
    from broker.log.partition_log import PartitionLog

SEGMENTS_AT_ONCE = 64
"""Taken out of use in one step: two renames each, about 3 ms of the loop."""
FILES_AT_ONCE = 256
"""Unlinked in one step off the loop."""
CUT_FILES_AT_ONCE = 4
"""Of these, that a cut removed: 1 to 2 s of a busy disk where each holds 1 GB."""
_log = logging.getLogger("broker.log")


class SegmentRemovals:
    """Owned by the `LogManager`, on its loop; it is run with every background flush."""

    def __init__(self, disk: Disk, delay_ms: int) -> None:
        self._disk = disk
        self._delay_ms = delay_ms
        self._now_ms = 0
        self._waiting: dict[PartitionLog, None] = {}
        self._renamed: deque[tuple[int, str]] = deque()
        """(when it may go, path), the next one first."""
        self._cut: deque[str] = deque()
        self._names_given = 0

    def put_away(self, path: str) -> None:
        """What `Disk.unlink` does; the work of it comes later, off the loop.

        As durable once the directory is synced: no start takes the new name for a segment. None is
        given twice in one life, so nothing that stands there since is unlinked instead.

        Raises:
            OSError: as `Disk.unlink`.
        """
        if not self._disk.exists(path):
            return
        self._names_given += 1
        renamed = f"{path}.{self._names_given}{REMOVED_SUFFIX}"
        try:
            self._disk.rename(path, renamed)
        except OSError as error:
            if error.errno not in PASSING:
                raise
            self._disk.unlink(path)  # which needs no room for a longer name
        else:
            self._cut.append(renamed)

    def note(self, log: PartitionLog) -> None:
        """This log's start has moved, or is known: segments may lie below it."""
        if log.stored is not None and log.stored.holds_below(log.log_start_offset):
            self._waiting[log] = None

    def forget(self, log: PartitionLog) -> None:
        """This log is gone, its directory with it."""
        self._waiting.pop(log, None)

    def rename_some(self) -> None:
        """Take the next segments out of use."""
        left = SEGMENTS_AT_ONCE
        for log in list(self._waiting):
            stored = log.stored
            if stored is None or log.failed is not None:
                del self._waiting[log]
                continue
            if log.durable_end < log.log_start_offset:
                continue  # it starts over: until that is durable a crash brings the old log back
            try:
                paths = stored.remove_below(log.log_start_offset, left)
            except OSError as error:
                _log.warning("segments stay for now log=%s error=%s", log.name, error)
                paths = []
            self._renamed.extend((self._now_ms + self._delay_ms, path) for path in paths)
            left -= max(len(paths) // 2, 1)
            if not stored.holds_below(log.log_start_offset):
                del self._waiting[log]
            if left <= 0:
                return

    async def run_some(self, elapsed_ms: int) -> None:
        """A step of it; ``elapsed_ms`` have passed since the last one."""
        self._now_ms += elapsed_ms
        self.rename_some()
        due = self._due()
        if due:
            await asyncio.to_thread(self._unlink, due)

    def _due(self) -> list[str]:
        due = [self._cut.popleft() for _ in range(min(len(self._cut), CUT_FILES_AT_ONCE))]
        while self._renamed and self._renamed[0][0] <= self._now_ms and len(due) < FILES_AT_ONCE:
            due.append(self._renamed.popleft()[1])
        return due

    def _unlink(self, paths: Sequence[str]) -> None:
        for path in paths:
            try:
                self._disk.unlink(path)
            except OSError as error:
                _log.warning("file stays until the next start path=%s error=%s", path, error)
