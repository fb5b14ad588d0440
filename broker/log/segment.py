"""A segment: one append-only file of batches with its sparse index, and the cache of open files.

`LogSegments` owns the segments of a log and writes to the last one; readers, recovery and the
cleaner look up positions here. `OpenFiles` is one object for the whole broker: it hands out the
descriptor of a segment and closes the least recently used ones. The index of a closed segment is
read from its file on demand; if that file is damaged, the index is rebuilt from batch headers.
"""

from __future__ import annotations

import resource
import sys
from collections import OrderedDict
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from broker.log.index import (
    NO_TIMESTAMP,
    IndexFileHead,
    IndexMemory,
    OffsetIndex,
    StoredIndex,
    decode_index,
    encode_index,
    open_index,
)
from broker.record.batch import (
    HEADER_SIZE,
    MAGIC,
    WHOLE,
    BatchError,
    BatchHeader,
    verify,
)
from raft_metadata.common.disk import OUT_OF_DESCRIPTORS
from raft_metadata.common.errors import CorruptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from raft_metadata.common.disk import Disk

EVICTION_CANDIDATES_MAX = 64
"""Most open files examined in one search for files that can be closed."""
EVICTION_FILES = 16
"""Files closed at once when the process is out of descriptors: other users need some too."""
SCAN_BYTES = 1_048_576
"""Bytes per read where a whole segment is read in order."""
HEADERS_BYTES = 65_536
"""Bytes per read where only headers are needed; the payload of large batches is skipped."""
CLOSED = -1
DESCRIPTORS_KEPT = 64
"""Descriptors reserved for files that are open briefly: small files, directories, the journal."""
_new_tuple = tuple.__new__


class Segment:
    """Batches from ``base_offset`` up to, not including, ``next_offset``, in ``size`` bytes.

    Owned by one PartitionLog and used on the event loop only; the flusher thread gets bare
    descriptors. ``flushing`` counts syncs in flight. A segment that is neither ``dirty`` nor
    ``flushing`` is synced up to ``size``; only such a segment may lose its descriptor to the cache
    (rule Q6). ``size`` moves only after a complete write (rule R2).

    ``is_index_written``: the index file exists and matches these bytes, so its copy in memory may
    be dropped (`IndexMemory`). Never true for a segment that is being written to or was truncated.
    """

    __slots__ = (
        "_index",
        "_stored_index",
        "base_offset",
        "dirty",
        "fd",
        "first_append_ms",
        "flushing",
        "is_index_written",
        "max_timestamp",
        "newest_append_ms",
        "next_offset",
        "path",
        "size",
    )

    def __init__(self, directory: str, base_offset: int) -> None:
        self.path = f"{directory}/{base_offset:020d}"
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size = 0
        self.max_timestamp = NO_TIMESTAMP
        self.first_append_ms = NO_TIMESTAMP
        self.newest_append_ms = NO_TIMESTAMP
        """Newest append time, by the clock of the leader that appended; retention uses it (R10)."""
        self.fd = CLOSED
        self.dirty = False
        self.flushing = 0
        self.is_index_written = False
        self._index: OffsetIndex | None = OffsetIndex()
        """The whole index; None: it is in its file, or has to be rebuilt."""
        self._stored_index: StoredIndex | None = None

    @property
    def log_path(self) -> str:
        return self.path + ".log"

    @property
    def index_path(self) -> str:
        return self.path + ".index"

    def note(
        self,
        base_offset: int,
        next_offset: int,
        size: int,
        max_timestamp: int,
        append_timestamp: int,
    ) -> None:
        """Account for a batch that was appended completely at the end of the file."""
        if self._index is not None:
            self._index.add(base_offset - self.base_offset, self.size, self.max_timestamp)
        if not self.size:
            self.first_append_ms = append_timestamp
        self.size += size
        self.next_offset = next_offset
        self.max_timestamp = max(self.max_timestamp, max_timestamp)
        self.newest_append_ms = max(self.newest_append_ms, append_timestamp)

    def note_header(self, header: BatchHeader) -> None:
        """Call `note` with the fields of this batch header."""
        self.note(
            header.base_offset,
            header.next_offset,
            header.size,
            header.max_timestamp,
            header.append_timestamp,
        )

    def cut(self, position: int, next_offset: int) -> None:
        """Account for a truncation of the file to ``position``, a batch boundary.

        ``max_timestamp`` may stay too new: a search by time then examines this segment in vain and
        continues. ``newest_append_ms`` may stay too new as well: retention keeps the segment
        longer.
        """
        self.size = position
        self.next_offset = next_offset
        self.is_index_written = False
        self._stored_index = None
        if not position:
            self._index = OffsetIndex()
        elif self._index is not None:
            self._index.truncate(position)

    # reading; call `OpenFiles.use` first

    def position_for(self, files: OpenFiles, offset: int) -> int:
        """Return the position of a batch at or shortly before the one that holds ``offset``.

        Raises:
            CorruptionError: the index had to be rebuilt, and bytes in the segment are no batch.
        """
        index, relative = self._index, offset - self.base_offset
        if index is None:
            return self._search_index(files, lambda index: index.position_for(relative))
        if self.is_index_written:
            files.indexes.touch(self)
        return index.position_for(relative)

    def position_for_time(self, files: OpenFiles, timestamp_ms: int) -> int:
        """Return a position such that every batch before it is older than ``timestamp_ms``.

        Raises:
            CorruptionError: as `position_for`.
        """
        return self._search_index(files, lambda index: index.position_for_time(timestamp_ms))

    def find(self, files: OpenFiles, offset: int) -> tuple[int, BatchHeader]:
        """Return (position, header) of the batch that holds ``offset``.

        Raises:
            CorruptionError: bytes on the way are no batch, or the walk began behind the offset.
        """
        fd = files.use(self)
        for position, header in self.headers(files.disk, fd, self.position_for(files, offset)):
            if header.next_offset > offset:
                if header.base_offset > offset:
                    break  # a truncation here would leave records that must be removed
                return position, header
        msg = f"no batch holds the offset file={self.log_path} offset={offset}"
        raise CorruptionError(msg)

    def headers(self, disk: Disk, fd: int, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Yield each (position, header) from a batch boundary on; payloads are skipped, unchecked.

        Checksums are not verified either, so the place of a header is checked against its
        neighbours:
        a header is yielded once the next header, or the end of the segment, confirms where its
        batch ends in bytes and in offsets. All other fields may be damaged.

        Raises:
            CorruptionError: these bytes are no batch, or not the batch that belongs here.
        """
        chunk, start, size, end = b"", position, self.size, self.next_offset
        expected = self.base_offset if not position else None
        last: tuple[int, BatchHeader] | None = None
        unpack = WHOLE.unpack_from
        while position < size:
            at = position - start
            if at + HEADER_SIZE > len(chunk):
                chunk = disk.read(fd, min(HEADERS_BYTES, size - position), position)
                start, at = position, 0
            if len(chunk) - at < HEADER_SIZE or not chunk.startswith(MAGIC, at):
                msg = f"no batch header file={self.log_path} position={position}"
                raise CorruptionError(msg)
            header = _new_tuple(BatchHeader, unpack(chunk, at))
            if header.base_offset != expected and expected is not None:
                raise self._out_of_place(position, header.base_offset, expected)
            if last is not None:
                yield last
            last = position, header
            expected = header.base_offset + header.last_offset_delta + 1
            position += HEADER_SIZE + header.length
        if last is not None:
            if position != size or expected != end:
                raise self._out_of_place(position, expected, end)
            yield last

    def _out_of_place(self, position: int, found: int | None, expected: int) -> CorruptionError:
        where = f"file={self.log_path} position={position} size={self.size}"
        return CorruptionError(f"a header is wrong: offset {found}, expected {expected} {where}")

    def batch(self, disk: Disk, fd: int, position: int, header: BatchHeader) -> bytes:
        """Return one whole batch after checking its crc.

        Raises:
            CorruptionError: the crc is wrong; names file and offset.
        """
        raw = disk.read(fd, header.size, position)
        try:
            verify(raw)
        except BatchError as error:
            msg = f"{error} file={self.log_path} offset={header.base_offset}"
            raise CorruptionError(msg) from None
        return raw

    # the index file

    def index_bytes(self, disk: Disk, fd: int) -> bytes:
        """Return the content of this segment's index file as of now."""
        index = self._index
        if index is None:
            index = self._index = self._load_index(disk) or self._rebuild_index(disk, fd)
        return encode_index(self._head(), index)

    def _head(self) -> IndexFileHead:
        return IndexFileHead(
            self.base_offset,
            self.next_offset,
            self.size,
            self.max_timestamp,
            self.first_append_ms,
            self.newest_append_ms,
        )

    def restore(self, disk: Disk, log_size: int) -> bool:
        """Restore all fields from the index file, if it is valid and fits ``log_size`` bytes.

        Returns False, with nothing changed, otherwise.
        """
        try:
            head, _ = open_index(disk, self.index_path)
        except CorruptionError:
            return False
        if head.base_offset != self.base_offset or head.log_size != log_size:
            return False
        self.next_offset = head.next_offset
        self.size = head.log_size
        self.max_timestamp = head.max_timestamp
        self.first_append_ms = head.first_append_ms
        self.newest_append_ms = head.newest_append_ms
        self._index = None
        self.is_index_written = True
        return True

    def note_index_written(self, files: OpenFiles) -> None:
        """Record that the index file matches this segment: the copy in memory may be dropped."""
        self.is_index_written = True
        if self._index is not None:
            files.indexes.used(self, self._index.held_bytes)

    def drop_index(self) -> None:
        """Free the memory of the index, unless the index is only in memory."""
        if self.is_index_written:
            self._index = self._stored_index = None

    def pin_index(self, files: OpenFiles) -> None:
        """Load the whole index into memory and keep it: its file is removed, or the segment grows.

        If the file is damaged, the index is rebuilt when it is needed next.
        """
        if self._index is None:
            self._index = self._load_index(files.disk)
        self._stored_index = None
        self.is_index_written = False
        files.indexes.forget(self)

    def _search_index(
        self, files: OpenFiles, look: Callable[[OffsetIndex | StoredIndex], int]
    ) -> int:
        """Query the index in memory, in its file, or rebuilt from the headers, in this order."""
        if self._index is None and self.is_index_written:
            try:
                stored = self._stored_index or self._open_index(files.disk)
                found = look(stored)
            except CorruptionError:
                self.pin_index(files)  # the file is damaged: the index is rebuilt below
            else:
                files.indexes.used(self, stored.held_bytes)
                return found
        index = self._index
        if index is None:
            index = self._index = self._rebuild_index(files.disk, files.use(self))
        elif self.is_index_written:
            files.indexes.touch(self)
        return look(index)

    def _open_index(self, disk: Disk) -> StoredIndex | OffsetIndex:
        head, index = open_index(disk, self.index_path)
        if head != self._head():
            msg = f"index {self.index_path} is of another segment"
            raise CorruptionError(msg)
        if isinstance(index, OffsetIndex):  # this file format is read as a whole
            self._index = index
        else:
            self._stored_index = index
        return index

    def _load_index(self, disk: Disk) -> OffsetIndex | None:
        """Return the whole index from its file, or None if the file does not match this segment."""
        data = disk.read_file(self.index_path) if self.is_index_written else None
        try:
            if data is not None:
                head, index = decode_index(data, self.index_path)
                if head == self._head():
                    return index
        except CorruptionError:
            pass
        return None

    def _rebuild_index(self, disk: Disk, fd: int) -> OffsetIndex:
        index = OffsetIndex()
        newest = NO_TIMESTAMP
        for position, header in self.headers(disk, fd):
            index.add(header.base_offset - self.base_offset, position, newest)
            newest = max(newest, header.max_timestamp)
        return index


@dataclass(slots=True)
class ReadCounts:
    """Bytes that fetches requested from the log files of a broker, by `page_cache` state."""

    cached_bytes: int = 0
    cold_bytes: int = 0


def descriptors_for_segments() -> int:
    """Return the number of segments that may be open: three quarters of the process's limit.

    The rest is for connections, which are refused when it is used up.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(soft - soft // 4 - DESCRIPTORS_KEPT, soft // 4)


class OpenFiles:
    """Descriptors of segments for the whole broker; the least recently used one is closed first.

    Used on the event loop. A dirty segment, or one whose sync is in flight, keeps its descriptor: a
    failed write-back is reported only to descriptors that were open, so closing one would hide the
    error (rule Q6). Such segments may push the number of open files above ``limit``.
    """

    def __init__(self, disk: Disk, limit: int) -> None:
        self.disk = disk
        self.indexes = IndexMemory()
        """Accounting of the sealed segments' indexes that are in memory."""
        self.reads = ReadCounts()
        self.on_pressure: Callable[[], None] = lambda: None
        """Called when the limit is reached and no open file is synced, so none can be closed."""
        self._is_reporting_pressure = False
        self._limit = limit
        self._open: OrderedDict[Segment, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def use(self, segment: Segment) -> int:
        """Return the segment's descriptor; open the file, creating it, if it is not open."""
        if segment.fd >= 0:
            self._open.move_to_end(segment)
            return segment.fd
        excess = len(self._open) - self._limit + 1
        if excess > 0 and not self._evict(excess):
            self._report_pressure()
        try:
            segment.fd = self.disk.open(segment.log_path, create=True)
        except OSError as error:
            if error.errno not in OUT_OF_DESCRIPTORS or not self.make_room():
                raise
            segment.fd = self.disk.open(segment.log_path, create=True)
        self._open[segment] = None
        return segment.fd

    def adopt(self, segment: Segment, fd: int) -> None:
        """Take over a descriptor that was opened elsewhere as this segment's."""
        segment.fd = fd
        self._open[segment] = None

    def forget(self, segment: Segment) -> None:
        """Close the file and drop its index: the segment is removed, or its log is closed."""
        self.indexes.forget(segment)
        self._close(segment)

    def _close(self, segment: Segment) -> None:
        if segment.fd >= 0:
            del self._open[segment]
            self.disk.close(segment.fd)
            segment.fd = CLOSED

    def make_room(self) -> bool:
        """Close some files, as the process is out of descriptors; return False if none could be.

        In that case `on_pressure` is called, so that some can be closed after the next sync.
        """
        if self._evict(EVICTION_FILES):
            return True
        self._report_pressure()
        return False

    def _evict(self, wanted: int) -> int:
        """Close up to ``wanted`` of the least recently used synced files; return the number closed.

        Files that cannot be closed yet move to the end of the order, so that the next call examines
        others.
        """
        closed = 0
        for segment in list(islice(self._open, EVICTION_CANDIDATES_MAX)):
            if segment.dirty or segment.flushing:
                self._open.move_to_end(segment)
                continue
            self._close(segment)
            closed += 1
            if closed == wanted:
                break
        return closed

    def _report_pressure(self) -> None:
        """Call `on_pressure`: nearly every open file waits for a sync."""
        if not self._is_reporting_pressure:
            self._is_reporting_pressure = True  # the sync may open files too
            try:
                self.on_pressure()
            finally:
                self._is_reporting_pressure = False
