"""The work of a cleaning off the event loop: read keys, write batches anew, by own descriptors.

`Cleaning` runs a `KeyScan` and then one `Rewrite` per group of segments on the cleaner's thread.
Only closed files are read; nothing here knows a log, and no written file is part of a log before
the event loop has taken it (`broker.log.swap`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from broker.log.compaction import (
    KeyMap,
    Plan,
    Producers,
    Rewriter,
    fits_behind,
    keyed_records,
    pieces,
)
from broker.log.segment import CLOSED, Segment
from broker.log.swap import CLEANED_SUFFIX, headers, whole_batches
from broker.record.batch import HEADER_SIZE, BatchError, parse_header
from broker.record.compression import lines_of
from raft_metadata.common.errors import CorruptionError

if TYPE_CHECKING:
    from broker.log.disk import Disk
    from broker.record.batch import BatchHeader

WRITE_BYTES = 262_144
SYNC_BYTES = 4_194_304
"""Bytes written between two syncs: one long sync at the end would delay the flusher's syncs."""

Pace = Callable[[int], None]
"""A function called after so many bytes of work; waits to keep the rate, or raises `Stopped`."""


class Stopped(Exception):  # noqa: N818 nothing went wrong
    """The end of a pass without an error: the broker ends, or the log has changed.

    Its work is void.
    """


class ClosedFile(NamedTuple):
    """The fields of a closed segment that another thread may use."""

    path: str
    base_offset: int
    next_offset: int
    size: int


class KeyScan:
    """The newest offset of each key in the dirty part of a log, and the producers in all of it.

    Runs off the event loop. ``end`` is the offset it reached: where the map was full, or the part
    that may be cleaned ends.
    """

    def __init__(
        self, disk: Disk, files: list[ClosedFile], planned: Plan, memory_bytes: int, pace: Pace
    ) -> None:
        self._disk = disk
        self._files = files
        self._planned = planned
        self._pace = pace
        self.keys = KeyMap(memory_bytes)
        self.producers = Producers()
        self.end = planned.start
        self.bytes_read = 0

    def run(self) -> None:
        """Read all files up to ``end``.

        Raises:
            CorruptionError: a batch is damaged; names file and position.
            OSError: a file can't be read.
            Stopped: from ``pace``.
        """
        start, end = self._planned.start, self._planned.end
        for file in self._files:
            if self.keys.is_full or file.base_offset >= end:
                return
            with _opened(self._disk, file.path + ".log") as fd:
                if file.next_offset <= start:
                    for header in headers(self._disk, fd, file.size, file.path + ".log"):
                        self.producers.see(header)
                    self._pace(0)
                else:
                    self._read(file, fd, start)

    def _read(self, file: ClosedFile, fd: int, start: int) -> None:
        for header, raw in whole_batches(self._disk, fd, file.size, file.path + ".log"):
            if self.keys.is_full:
                return
            self.producers.see(header)
            if header.next_offset > start:
                with _unpacking(header, file):
                    lines = bytes(lines_of(header, raw[HEADER_SIZE:]))
                for piece in pieces(lines):
                    self.keys.add(keyed_records(piece, header.key_format))
                    self._pace(len(piece))
            if header.next_offset > start:
                self.end = header.next_offset
            self.bytes_read += len(raw)


class Rewrite:
    """The rewrite of neighbouring segments into one file, synced under its first name.

    Runs off the event loop. It takes as many of ``files`` as fit into one segment (``taken``).
    ``new`` is None if nothing would change. The file is written from the first change on only;
    batches before it are copied as they are.
    """

    def __init__(
        self,
        disk: Disk,
        files: list[ClosedFile],
        rewriter: Rewriter,
        segment_bytes: int,
        pace: Pace,
    ) -> None:
        self._disk = disk
        self._files = files
        self._rewriter = rewriter
        self._segment_bytes = segment_bytes
        self._pace = pace
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._unsynced = 0
        self._size = 0
        """Bytes in the new file; while there is none, unchanged bytes to be copied to it."""
        directory = files[0].path.rpartition("/")[0]
        self._new = Segment(directory, files[0].base_offset)
        self.path = files[0].path + CLEANED_SUFFIX
        self.new: Segment | None = None
        self.fd = CLOSED
        self.index = b""
        self.taken = 0
        self.bytes_read = 0
        self.bytes_written = 0
        self.records_dropped = 0

    def run(self) -> None:
        """Read the files and write the new one.

        Raises:
            CorruptionError: a batch is damaged; names file and position.
            OSError: the disk failed, or is full.
            Stopped: from ``pace``. The new file is removed.
        """
        try:
            self._run()
        except BaseException:
            self.discard()
            raise

    def _run(self) -> None:
        for file in self._files:
            if not self._fits(file):
                break
            with _opened(self._disk, file.path + ".log") as fd:
                for header, raw in whole_batches(self._disk, fd, file.size, file.path + ".log"):
                    with _unpacking(header, file):
                        self._put(header, raw, fd)
                self.taken += 1
                if self.fd == CLOSED and self._has_more_room():
                    self._begin(fd)
        self._take(self._rewriter.end())
        if self.fd == CLOSED:
            return
        self._write_out()
        self._disk.sync_file(self.fd)
        self._new.next_offset = self._files[self.taken - 1].next_offset
        self.index = self._new.index_bytes(self._disk, self.fd)
        self.new = self._new

    def _fits(self, file: ClosedFile) -> bool:
        return not self.taken or fits_behind(
            self._new.size, self._new.base_offset, file.size, file.next_offset, self._segment_bytes
        )

    def _has_more_room(self) -> bool:
        return self.taken < len(self._files) and self._fits(self._files[self.taken])

    def _put(self, header: BatchHeader, raw: bytes, fd: int) -> None:
        self.bytes_read += len(raw)
        self.records_dropped += header.count
        written = self._rewriter.put(header, raw, self._pace)
        if self._rewriter.changed and self.fd == CLOSED:
            self._begin(fd)
        self._take(written)
        self._pace(len(raw))

    def _begin(self, fd: int) -> None:
        """Create the new file at the first change, and copy the unchanged batches before it."""
        self.fd = self._disk.open(self.path, create=True)
        self._disk.truncate(self.fd, 0)
        at = 0
        while at < self._size:
            piece = self._disk.read(fd, min(WRITE_BYTES, self._size - at), at)
            self._disk.write(self.fd, piece, at)
            at += len(piece)
            self.bytes_written += len(piece)
            self._written(len(piece))

    def _take(self, raw: bytes) -> None:
        if not raw:
            return
        header = parse_header(raw)
        self._new.note_header(header)
        self.records_dropped -= header.count
        if self.fd == CLOSED:
            self._size += len(raw)
            return
        self._pending.append(raw)
        self._pending_bytes += len(raw)
        if self._pending_bytes >= WRITE_BYTES:
            self._write_out()

    def _write_out(self) -> None:
        data = b"".join(self._pending)
        self._disk.write(self.fd, data, self._size)
        self._size += len(data)
        self.bytes_written += len(data)
        self._pending.clear()
        self._pending_bytes = 0
        self._written(len(data))

    def _written(self, size: int) -> None:
        self._unsynced += size
        if self._unsynced >= SYNC_BYTES:
            self._disk.sync_data(self.fd)
            self._unsynced = 0
        self._pace(size)

    def discard(self) -> None:
        """Close and remove the new file, unless the log has taken it."""
        fd, self.fd = self.fd, CLOSED
        if fd != CLOSED:
            with contextlib.suppress(OSError):
                self._disk.close(fd)
                self._disk.unlink(self.path)


@contextlib.contextmanager
def _unpacking(header: BatchHeader, file: ClosedFile) -> Iterator[None]:
    """Report a frame that can't be unpacked as damage, like a wrong crc."""
    try:
        yield
    except BatchError as error:
        msg = f"{error} file={file.path}.log offset={header.base_offset}"
        raise CorruptionError(msg) from None


@contextlib.contextmanager
def _opened(disk: Disk, path: str) -> Iterator[int]:
    fd = disk.open(path)
    try:
        yield fd
    finally:
        disk.close(fd)
