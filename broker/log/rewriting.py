"""What a cleaning does off the loop: reads keys, writes batches anew. By descriptors of its own.

Only closed files are read; nothing here knows a log, and nothing that is written is anybody's
before the loop has taken it (`broker.log.swap`).
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
"""Synced as they are written: one long sync at the end would hold up everybody else's."""

Pace = Callable[[int], None]
"""Called behind so many bytes of work; waits as long as it takes, raises `Stopped`."""


class Stopped(Exception):  # noqa: N818 nothing went wrong
    """The broker ends, or the log is not what it was any more: what was done so far is void."""


class ClosedFile(NamedTuple):
    """A closed segment, as another thread may know it."""

    path: str
    base_offset: int
    next_offset: int
    size: int


class KeyScan:
    """Off the loop: the newest offsets of keys in the dirty part, and the producers in all of it.

    ``end`` is how far it came: where the map was full, or the part that may be cleaned ends.
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
        """See the class.

        Raises:
            CorruptionError: names file and position. OSError, Stopped.
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
    """Off the loop: neighbouring segments into one file, synced under its first name.

    It takes as many of ``files`` as fit into one segment (``taken``). ``new`` is None where nothing
    would change. The file is written from the first change on only; what stands before it is copied
    as it is.
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
        """Bytes that are in the new file, or would be, unchanged, were there one."""
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
        """See the class.

        Raises:
            CorruptionError: names file and position. OSError, Stopped: nothing is left of it.
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
        """Something changes in, or behind, the first file: what came out of it so far is copied."""
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
        """Nobody takes it."""
        fd, self.fd = self.fd, CLOSED
        if fd != CLOSED:
            with contextlib.suppress(OSError):
                self._disk.close(fd)
                self._disk.unlink(self.path)


@contextlib.contextmanager
def _unpacking(header: BatchHeader, file: ClosedFile) -> Iterator[None]:
    """A frame that can't be unpacked is damage, as a wrong crc is."""
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
