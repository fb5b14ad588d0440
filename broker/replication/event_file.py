"""The events of a node on its disk: lines of JSON in ``events.ndjson``, and one older file.

Written for people and for checkers, never read by the broker itself: nothing here is synced, and
what a full or broken disk does not take is left out.
"""

from __future__ import annotations

import logging
import re
import threading
from typing import TYPE_CHECKING

from broker.log.disk import Disk

if TYPE_CHECKING:
    from collections.abc import Iterator

EVENT_FILE = "events.ndjson"
OLD_EVENT_FILE = "events.1.ndjson"
EVENT_FILE_BYTES = 16_777_216
"""A file that has grown to this is set aside; the one that was set aside before is gone. Two hold
about 100,000 events: weeks of a quiet cluster, ten minutes of a thousand busy partitions."""
_TAIL_BYTES = 65_536
"""Read at the start, to find the last event: some hundreds of them."""
_SEQUENCE = re.compile(rb'\{"sequence":(\d+),')

_log = logging.getLogger("broker.replication")


class EventFile:
    """Owned by an `EventJournal`. Methods run on any thread, one at a time; none raises."""

    def __init__(
        self, folder: str, disk: Disk | None = None, max_bytes: int = EVENT_FILE_BYTES
    ) -> None:
        self.failures = 0
        """How often a batch of events was not written."""
        self._folder = folder
        self._disk = disk or Disk()
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._fd: int | None = None
        self._size = 0
        self._torn = False
        self._failing = False

    def last_sequence(self) -> int:
        """Of the newest event on the disk; 0 where there is none."""
        for name in (EVENT_FILE, OLD_EVENT_FILE):
            for line in reversed(self._lines(name, _TAIL_BYTES)):
                sequence = sequence_of(line)
                if sequence is not None:
                    return sequence
        return 0

    def append(self, lines: list[bytes]) -> bool:
        """Write these lines, each with its line feed; False where the disk does not take them."""
        data = b"".join(lines)
        with self._lock:
            try:
                self._write(data)
            except OSError as error:
                self._gave_up(error)
                return False
        if self._failing:
            self._failing = False
            _log.info("events are written again folder=%s", self._folder)
        return True

    def _write(self, data: bytes) -> None:
        disk = self._disk
        if self._fd is None:
            self._fd = disk.open(f"{self._folder}/{EVENT_FILE}", create=True)
            self._size = disk.size(self._fd)
            self._torn = self._size > 0 and disk.read(self._fd, 1, self._size - 1) != b"\n"
        if self._size and self._size + len(data) > self._max_bytes:
            self._close()
            disk.rename(f"{self._folder}/{EVENT_FILE}", f"{self._folder}/{OLD_EVENT_FILE}")
            self._fd = disk.open(f"{self._folder}/{EVENT_FILE}", create=True)
            self._size, self._torn = 0, False
        if self._torn:
            data = b"\n" + data
        disk.write(self._fd, data, self._size)
        self._size += len(data)
        self._torn = False

    def _gave_up(self, error: OSError) -> None:
        """Whatever part was written is written over by the next batch that finds room."""
        self.failures += 1
        if not self._failing:
            self._failing = True
            _log.warning("events are not written folder=%s error=%s", self._folder, error)

    def close(self) -> None:
        """Give the descriptor back; a later `append` opens anew."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            self._disk.close(fd)

    def read(self, after: int, limit: int) -> list[bytes]:
        """The first events with a higher sequence number, oldest first, without line feeds."""
        found: list[bytes] = []
        for line in self._all():
            sequence = sequence_of(line)
            if sequence is not None and sequence > after:
                found.append(line)
                if len(found) == limit:
                    break
        return found

    def _all(self) -> Iterator[bytes]:
        for name in (OLD_EVENT_FILE, EVENT_FILE):
            yield from self._lines(name, None)

    def _lines(self, name: str, tail: int | None) -> list[bytes]:
        """Whole lines of a file, the last ``tail`` bytes of it; none where it can't be read."""
        try:
            fd = self._disk.open(f"{self._folder}/{name}")
        except OSError:
            return []
        try:
            size = self._disk.size(fd)
            start = 0 if tail is None else max(0, size - tail)
            return self._disk.read(fd, size - start, start).split(b"\n")[:-1]
        except OSError:
            return []
        finally:
            self._disk.close(fd)


def sequence_of(line: bytes) -> int | None:
    """The sequence number of an event as it is written; None for a line that is torn."""
    match = _SEQUENCE.match(line)
    return int(match[1]) if match and line.endswith(b"}") else None
