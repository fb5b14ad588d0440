"""Removal of segment files: renamed at once, unlinked later, off the event loop.

Unlinking a file of 1 GB takes 0.27 s. Segments below the log start wait for Kafka's
``file.delete.delay.ms``, so that a reader with an open file can finish. A crash in between costs
nothing: the next start removes what lies below a durable log start. Segments that a truncation
removes are unlinked at the next step, because a full disk may wait for their room. A start unlinks
every renamed file before it reads a log.
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
"""Segments renamed in one step: two renames each, about 3 ms of the event loop."""
FILES_AT_ONCE = 256
"""Files unlinked in one step, off the event loop."""
CUT_FILES_AT_ONCE = 4
"""Share of it for truncated segments: 1 to 2 s of a busy disk if each holds 1 GB."""
_log = logging.getLogger("broker.log")


class SegmentRemovals:
    """Segment files that wait to be unlinked; owned by the `LogManager`, on its event loop.

    The background flush task calls `run_some` after every interval.
    """

    def __init__(self, disk: Disk, delay_ms: int) -> None:
        self._disk = disk
        self._delay_ms = delay_ms
        self._now_ms = 0
        self._waiting: dict[PartitionLog, None] = {}
        self._renamed: deque[tuple[int, str]] = deque()
        """(time in ms from which it may be unlinked, path), the earliest first."""
        self._cut: deque[str] = deque()
        self._names_given = 0

    def put_away(self, path: str) -> None:
        """Remove a file as `Disk.unlink` does, but do the expensive part later, off the event loop.

        The file is renamed. That is as durable as an unlink once the directory is synced: no start
        takes the new name for a segment. No new name is given twice during one run, so a file
        created later is never unlinked instead.

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
            self._disk.unlink(path)  # an unlink needs no room for a longer name
        else:
            self._cut.append(renamed)

    def note(self, log: PartitionLog) -> None:
        """Check this log for segments below its start, which has moved or was just read."""
        if log.stored is not None and log.stored.holds_below(log.log_start_offset):
            self._waiting[log] = None

    def forget(self, log: PartitionLog) -> None:
        """Forget this log: it is deleted, with its directory."""
        self._waiting.pop(log, None)

    def rename_some(self) -> None:
        """Rename the next segments that lie below their log's start."""
        left = SEGMENTS_AT_ONCE
        for log in list(self._waiting):
            stored = log.stored
            if stored is None or log.failed is not None:
                del self._waiting[log]
                continue
            if log.durable_end < log.log_start_offset:
                continue  # the log starts over: until that is durable, a crash restores the old log
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
        """Run one step of removals; ``elapsed_ms`` have passed since the last one."""
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
