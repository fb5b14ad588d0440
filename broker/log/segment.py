"""One append-only file of batches, with its sparse index, and the cache of open files."""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING

from broker.log.disk import OUT_OF_DESCRIPTORS, ReadCounts
from broker.log.index_file import (
    IndexFileHead,
    StoredIndex,
    decode_index,
    encode_index,
    open_index,
)
from broker.log.index_memory import IndexMemory
from broker.log.offset_index import NO_TIMESTAMP, OffsetIndex
from broker.record.batch import (
    HEADER_SIZE,
    MAGIC,
    WHOLE,
    BatchError,
    BatchHeader,
    verify,
)
from raft_metadata.common.errors import CorruptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from broker.log.disk import Disk

LOOKED_AT = 64
"""Open files looked at for one that can be closed."""
EVICTED_AT_ONCE = 16
"""Closed when the process is out of descriptors: others need some too."""
SCAN_BYTES = 1_048_576
"""Bytes read at once where a segment is read through."""
HEADERS_BYTES = 65_536
"""Bytes read at once where only headers are of interest: of large batches the rest is not read."""
CLOSED = -1
_new_tuple = tuple.__new__


class Segment:
    """Batches from ``base_offset`` up to ``next_offset``, in ``size`` bytes.

    Owned by one PartitionLog, used on the loop only; the flusher thread gets bare descriptors.
    ``flushing`` counts syncs in flight. A segment that is neither ``dirty`` nor ``flushing`` is
    synced up to ``size``; only such a one may lose its descriptor to the cache (rule Q6). ``size``
    moves only behind a whole write (rule R2).

    ``is_index_written``: the index file is there, and speaks of these bytes: what of it is in
    memory may go (`IndexMemory`). Never so of a segment that is written to or was cut.
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
        """Retention goes by it: the clock of the leader that took the batch (rule R10)."""
        self.fd = CLOSED
        self.dirty = False
        self.flushing = 0
        self.is_index_written = False
        self._index: OffsetIndex | None = OffsetIndex()
        """All of it; None: it is in its file, or has to be rebuilt."""
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
        """A batch now stands whole at the end of the file."""
        if self._index is not None:
            self._index.add(base_offset - self.base_offset, self.size, self.max_timestamp)
        if not self.size:
            self.first_append_ms = append_timestamp
        self.size += size
        self.next_offset = next_offset
        self.max_timestamp = max(self.max_timestamp, max_timestamp)
        self.newest_append_ms = max(self.newest_append_ms, append_timestamp)

    def note_header(self, header: BatchHeader) -> None:
        """`note`, from the batch's header."""
        self.note(
            header.base_offset,
            header.next_offset,
            header.size,
            header.max_timestamp,
            header.append_timestamp,
        )

    def cut(self, position: int, next_offset: int) -> None:
        """The file was cut at this batch boundary.

        ``max_timestamp`` may stay too new: a search by time then looks here in vain and goes on.
        So may ``newest_append_ms``: retention then keeps it longer.
        """
        self.size = position
        self.next_offset = next_offset
        self.is_index_written = False
        self._stored_index = None
        if not position:
            self._index = OffsetIndex()
        elif self._index is not None:
            self._index.truncate(position)

    # reading; `OpenFiles.use` comes first

    def position_for(self, files: OpenFiles, offset: int) -> int:
        """The position of a batch at or before the one that holds the offset, and close to it.

        Raises:
            CorruptionError: the index had to be rebuilt, and the walk met bytes that are no batch.
        """
        index, relative = self._index, offset - self.base_offset
        if index is None:
            return self._look(files, lambda index: index.position_for(relative))
        if self.is_index_written:
            files.indexes.touch(self)
        return index.position_for(relative)

    def position_for_time(self, files: OpenFiles, timestamp_ms: int) -> int:
        """A position such that every batch before it is older than the timestamp.

        Raises:
            CorruptionError: as `position_for`.
        """
        return self._look(files, lambda index: index.position_for_time(timestamp_ms))

    def find(self, files: OpenFiles, offset: int) -> tuple[int, BatchHeader]:
        """(position, header) of the batch that holds the offset.

        Raises:
            CorruptionError: the walk met bytes that are no batch, or began behind the offset.
        """
        fd = files.use(self)
        for position, header in self.headers(files.disk, fd, self.position_for(files, offset)):
            if header.next_offset > offset:
                if header.base_offset > offset:
                    break  # a cut here would leave what is to go
                return position, header
        msg = f"no batch holds the offset file={self.log_path} offset={offset}"
        raise CorruptionError(msg)

    def headers(self, disk: Disk, fd: int, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Each (position, header) from a batch boundary on; payloads are skipped, not checked.

        Nor is the checksum, so what a header says of its place is held against its neighbours: it
        comes once the next one, or the segment's end, has shown where it ends, in bytes and in
        offsets. All the rest of it may have rotted.

        Raises:
            CorruptionError: these bytes are no batch, or not the one that belongs here.
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
        """One whole batch, its crc checked.

        Raises:
            CorruptionError: names file and offset.
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
        """The index file of this segment as it is now."""
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
        """Take everything from the index file, if it is sound and speaks of a log of this size."""
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

    def index_is_written(self, files: OpenFiles) -> None:
        """The index file is on the disk as this segment is now: memory may let go of it."""
        self.is_index_written = True
        if self._index is not None:
            files.indexes.used(self, self._index.held_bytes)

    def drop_index(self) -> None:
        """Memory is needed for others. Nothing happens to one that is not in its file."""
        if self.is_index_written:
            self._index = self._stored_index = None

    def take_index(self, files: OpenFiles) -> None:
        """All of it into memory, to stay: the file goes, or the segment grows on.

        Where its file is damaged it is rebuilt when it is next needed.
        """
        if self._index is None:
            self._index = self._load_index(files.disk)
        self._stored_index = None
        self.is_index_written = False
        files.indexes.forget(self)

    def _look(self, files: OpenFiles, look: Callable[[OffsetIndex | StoredIndex], int]) -> int:
        """Ask the index: in memory, in its file, or rebuilt by walking the headers."""
        if self._index is None and self.is_index_written:
            try:
                stored = self._stored_index or self._open_index(files.disk)
                found = look(stored)
            except CorruptionError:
                self.take_index(files)  # not from a damaged file: rebuilt below
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
        if isinstance(index, OffsetIndex):  # of a file that is read as a whole
            self._index = index
        else:
            self._stored_index = index
        return index

    def _load_index(self, disk: Disk) -> OffsetIndex | None:
        """All of the index file, if it speaks of this segment."""
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


class OpenFiles:
    """Descriptors of segments, the least recently used one closed first; of the whole broker.

    A dirty segment, or one whose sync is in flight, keeps its descriptor: a failed write-back is
    reported to descriptors that were open, so closing one would lose the error (rule Q6). The
    limit is exceeded rather than that.
    """

    def __init__(self, disk: Disk, limit: int) -> None:
        self.disk = disk
        self.indexes = IndexMemory()
        """What of sealed segments' indexes is in memory."""
        self.reads = ReadCounts()
        self.on_pressure: Callable[[], None] = lambda: None
        """Called where the limit is reached and what is open is not synced."""
        self._pressed = False
        self._limit = limit
        self._open: OrderedDict[Segment, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def use(self, segment: Segment) -> int:
        """The segment's descriptor, opened (and the file created) if need be."""
        if segment.fd >= 0:
            self._open.move_to_end(segment)
            return segment.fd
        excess = len(self._open) - self._limit + 1
        if excess > 0 and not self._evict(excess):
            self._relieve()
        try:
            segment.fd = self.disk.open(segment.log_path, create=True)
        except OSError as error:
            if error.errno not in OUT_OF_DESCRIPTORS or not self.make_room():
                raise
            segment.fd = self.disk.open(segment.log_path, create=True)
        self._open[segment] = None
        return segment.fd

    def adopt(self, segment: Segment, fd: int) -> None:
        """A descriptor that was opened elsewhere is this segment's from now on."""
        segment.fd = fd
        self._open[segment] = None

    def forget(self, segment: Segment) -> None:
        """The segment goes, or the log is closed: nothing here holds on to it any more."""
        self.indexes.forget(segment)
        self._close(segment)

    def _close(self, segment: Segment) -> None:
        if segment.fd >= 0:
            del self._open[segment]
            self.disk.close(segment.fd)
            segment.fd = CLOSED

    def make_room(self) -> bool:
        """The process is out of descriptors: close some, or see that some can be closed soon."""
        if self._evict(EVICTED_AT_ONCE):
            return True
        self._relieve()
        return False

    def _evict(self, wanted: int) -> int:
        """Close so many of the least recently used; how many there were among the next ones.

        Those that can't be closed yet go behind the others: no look at the same ones again.
        """
        closed = 0
        for segment in list(islice(self._open, LOOKED_AT)):
            if segment.dirty or segment.flushing:
                self._open.move_to_end(segment)
                continue
            self._close(segment)
            closed += 1
            if closed == wanted:
                break
        return closed

    def _relieve(self) -> None:
        """Nearly all that is open waits for a sync."""
        if not self._pressed:
            self._pressed = True  # what is synced then may open files too
            try:
                self.on_pressure()
            finally:
                self._pressed = False
