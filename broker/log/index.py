"""The sparse index of a segment: in memory, in its file, and the memory limit of all of them.

`OffsetIndex` has about one entry per 4 KiB (Kafka's index.interval.bytes), in three flat arrays: 16
bytes an entry, 4 MB for a gigabyte of log. `Segment` writes it to a file when it is sealed
(`encode_index`) and opens that when it is read (`open_index`). `IndexMemory` bounds the memory of
indexes that their files can restore, for the whole broker. The file, of which a reader needs a few
kilobytes:

    head      the fields of `IndexFileHead`, the number of entries, a checksum of head and summary
    summary   of each block its first offset, its first time, its checksum: three flat arrays
    blocks    `BLOCK_ENTRIES` entries each, as three flat arrays; the last one may be shorter

Reading and checking the whole index of a gigabyte took 8 ms of the event loop. Its summary is 8 KB,
and so is the block for the 2 MB around an offset. All numbers are in native order, and each byte is
covered by a checksum that is verified before use.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, Protocol

from broker.record.batch import crc32
from raft_metadata.common.errors import CorruptionError

if TYPE_CHECKING:
    from raft_metadata.common.disk import Disk


INDEX_INTERVAL_BYTES = 4096
NO_TIMESTAMP = -1
ENTRY_BYTES = 16
EMPTY_BYTES = 400
"""Bytes of memory that an index takes before its first entry."""


class OffsetIndex:
    """Entries (offset, position, newest timestamp before it); the first batch has an entry.

    Offsets are relative to the segment's base, positions are below 4 GiB. Not thread-safe: lives on
    the event loop with its segment.
    """

    __slots__ = ("_offsets", "_positions", "_times")

    def __init__(self) -> None:
        self._offsets = array("I")
        self._positions = array("I")
        self._times = array("q")

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, relative_offset: int, position: int, newest_before: int) -> None:
        """Add the batch at this position, if it is far enough from the last entry."""
        if self._positions and position - self._positions[-1] < INDEX_INTERVAL_BYTES:
            return
        self._offsets.append(relative_offset)
        self._positions.append(position)
        self._times.append(newest_before)

    @property
    def held_bytes(self) -> int:
        """Bytes of memory, about."""
        return EMPTY_BYTES + ENTRY_BYTES * len(self._offsets)

    def part(self, first: int, end: int) -> tuple[int, int, bytes]:
        """Return the entries [first, end): offset and time of the first, and the bytes of all."""
        offsets, times = self._offsets[first:end], self._times[first:end]
        raw = (offsets.tobytes(), self._positions[first:end].tobytes(), times.tobytes())
        return offsets[0], times[0], b"".join(raw)

    def extend(self, part: memoryview) -> None:
        """Add the entries from such bytes, in native order."""
        count = len(part) // ENTRY_BYTES
        self._offsets.frombytes(part[: 4 * count])
        self._positions.frombytes(part[4 * count : 8 * count])
        self._times.frombytes(part[8 * count :])

    @property
    def entries(self) -> list[tuple[int, int]]:
        """All (relative offset, position), in order."""
        return list(zip(self._offsets, self._positions, strict=True))

    def position_for(self, relative_offset: int) -> int:
        """Return the position of a batch at or before the one that holds the offset."""
        index = bisect_right(self._offsets, relative_offset) - 1
        return self._positions[index] if index >= 0 else 0

    def position_for_time(self, timestamp_ms: int) -> int:
        """Return a position such that every batch before it is older than the timestamp."""
        index = bisect_left(self._times, timestamp_ms) - 1
        return self._positions[index] if index >= 0 else 0

    def truncate(self, position: int) -> None:
        """Remove the entries of batches at or behind this position."""
        keep = bisect_left(self._positions, position)
        del self._offsets[keep:]
        del self._positions[keep:]
        del self._times[keep:]


INDEX_MEMORY_BYTES = 67_108_864
"""Limit of the memory: whole indexes of 16 GB of log, or the needed parts of those of 4,000
segments that are read at one place each (a summary of 8 KB and a block of the same size). A miss
costs 15 µs if the file is in the page cache."""


class Indexed(Protocol):
    """The part of a segment that is used here."""

    def drop_index(self) -> None:
        """Free the memory of its index."""
        ...


class IndexMemory:
    """Segments with an index in memory that they could read back from its file, last used last.

    On the event loop. Segments that are being written to, or have no index file yet, are not
    included:
    restoring their index would mean walking the segment, so they keep it.
    """

    def __init__(self, limit_bytes: int = INDEX_MEMORY_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._held: OrderedDict[Indexed, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def used(self, segment: Indexed, size: int) -> None:
        """Record a use of this segment's index, now ``size`` bytes; drop others above the limit."""
        held = self._held
        before = held.get(segment, 0)
        if before == size:
            held.move_to_end(segment)
            return
        held[segment] = size
        held.move_to_end(segment)
        self.held_bytes += size - before
        while self.held_bytes > self.limit_bytes and len(held) > 1:
            oldest, freed = held.popitem(last=False)
            self.held_bytes -= freed
            oldest.drop_index()

    def touch(self, segment: Indexed) -> None:
        """Record a use of this segment's index, whose size is unchanged."""
        if segment in self._held:
            self._held.move_to_end(segment)

    def forget(self, segment: Indexed) -> None:
        """Stop counting this segment: it is removed, or keeps its index from now on."""
        self.held_bytes -= self._held.pop(segment, 0)


BLOCK_ENTRIES = 512
FIRST_READ_BYTES = 16_384
"""Bytes of the first read: head and summary of a segment of up to 2 GB."""
_MAGIC = b"QIX1"
_HEAD = Struct("<4sIqqqqqqI")
BLOCK_BYTES = BLOCK_ENTRIES * ENTRY_BYTES
_SUMMARY_BYTES = 16
"""Bytes of the summary per block."""


class IndexFileHead(NamedTuple):
    """The state of a segment in its index file: a sealed segment is opened without a scan."""

    base_offset: int
    next_offset: int
    log_size: int
    max_timestamp: int
    first_append_ms: int
    newest_append_ms: int


class StoredIndex:
    """The index of a sealed segment in its file; blocks are read when they are needed.

    Gives the same results as the `OffsetIndex` that was written. The file must stay unchanged: a
    block of another file is taken for damage.
    """

    __slots__ = (
        "_blocks",
        "_checks",
        "_count",
        "_disk",
        "_path",
        "_starts",
        "_times",
        "held_bytes",
    )

    def __init__(self, disk: Disk, path: str, count: int, summary: memoryview) -> None:
        blocks = _blocks(count)
        self._disk = disk
        self._path = path
        self._count = count
        self._starts, self._times, self._checks = array("I"), array("q"), array("I")
        self._starts.frombytes(summary[: 4 * blocks])
        self._times.frombytes(summary[4 * blocks : 12 * blocks])
        self._checks.frombytes(summary[12 * blocks :])
        self._blocks: dict[int, OffsetIndex] = {}
        self.held_bytes = EMPTY_BYTES + len(summary)
        """Bytes of memory, with the blocks read so far."""

    def position_for(self, relative_offset: int) -> int:
        """Return the greatest indexed position at or below an offset (`OffsetIndex.position_for`).

        Raises:
            CorruptionError: the file is damaged, or lost.
            OSError: it can't be read.
        """
        block = bisect_right(self._starts, relative_offset) - 1
        return self._block(block).position_for(relative_offset) if block >= 0 else 0

    def position_for_time(self, timestamp_ms: int) -> int:
        """Return a position before the first batch of a time (`OffsetIndex.position_for_time`).

        Raises:
            CorruptionError: the file is damaged, or lost.
            OSError: it can't be read.
        """
        block = bisect_left(self._times, timestamp_ms) - 1
        return self._block(block).position_for_time(timestamp_ms) if block >= 0 else 0

    def _block(self, number: int) -> OffsetIndex:
        found = self._blocks.get(number)
        if found is None:
            found = self._read(number)
            self._blocks[number] = found
            self.held_bytes += EMPTY_BYTES + ENTRY_BYTES * len(found)
        return found

    def _read(self, number: int) -> OffsetIndex:
        entries = min(BLOCK_ENTRIES, self._count - number * BLOCK_ENTRIES)
        position = _HEAD.size + _SUMMARY_BYTES * len(self._checks) + BLOCK_BYTES * number
        fd = _open(self._disk, self._path)
        try:
            data = self._disk.read(fd, ENTRY_BYTES * entries, position)
        finally:
            self._disk.close(fd)
        if len(data) != ENTRY_BYTES * entries or crc32(data) != self._checks[number]:
            raise _damage(self._path)
        index = OffsetIndex()
        index.extend(memoryview(data))
        return index


def open_index(disk: Disk, path: str) -> tuple[IndexFileHead, StoredIndex | OffsetIndex]:
    """Open an index file; return its head, and the index. Only the needed parts are read.

    Raises:
        CorruptionError: the file is damaged, or does not exist; the index can be rebuilt.
        OSError: it can't be read.
    """
    fd = _open(disk, path)
    try:
        data = disk.read(fd, FIRST_READ_BYTES, 0)
        if data[:4] == _MAGIC and len(data) >= _HEAD.size:
            count = _HEAD.unpack_from(data)[8]
            if len(data) < _body_at(count):
                data = disk.read(fd, _body_at(count), 0)
            if disk.size(fd) == _body_at(count) + ENTRY_BYTES * count:
                head = _head(data, path)
                summary = memoryview(data)[_HEAD.size : _body_at(count)]
                return head, StoredIndex(disk, path, count, summary)
        return decode_index(disk.read(fd, disk.size(fd), 0), path)
    finally:
        disk.close(fd)


def encode_index(head: IndexFileHead, index: OffsetIndex) -> bytes:
    """Return the bytes of an index file."""
    starts, times, checks, parts = array("I"), array("q"), array("I"), []
    for first in range(0, len(index), BLOCK_ENTRIES):
        offset, time, block = index.part(first, first + BLOCK_ENTRIES)
        starts.append(offset)
        times.append(time)
        checks.append(crc32(block))
        parts.append(block)
    summary = b"".join((starts.tobytes(), times.tobytes(), checks.tobytes()))
    check = crc32(summary, crc32(_HEAD.pack(_MAGIC, 0, *head, len(index))))
    return b"".join((_HEAD.pack(_MAGIC, check, *head, len(index)), summary, *parts))


def decode_index(data: bytes, path: str) -> tuple[IndexFileHead, OffsetIndex]:
    """Decode the result of `encode_index`; all of it is checked.

    Raises:
        CorruptionError: the file is damaged; the index can be rebuilt from the segment.
    """
    head, index = _head(data, path), OffsetIndex()
    count: int = _HEAD.unpack_from(data)[8]
    body = memoryview(data)[_body_at(count) :]
    checks = memoryview(data)[_HEAD.size + 12 * _blocks(count) : _body_at(count)].cast("I")
    if len(body) != ENTRY_BYTES * count:
        raise _damage(path)
    for number, check in enumerate(checks):
        block = body[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES]
        if crc32(block) != check:
            raise _damage(path)
        index.extend(block)
    return head, index


def _head(data: bytes, path: str) -> IndexFileHead:
    if len(data) >= _HEAD.size:
        magic, check, *fields = _HEAD.unpack_from(data)
        end = _body_at(fields[6])
        checked = memoryview(data)[_HEAD.size : end]
        known = crc32(checked, crc32(_HEAD.pack(_MAGIC, 0, *fields)))
        if magic == _MAGIC and len(data) >= end and check == known:
            return IndexFileHead(*fields[:6])
    raise _damage(path)


def _open(disk: Disk, path: str) -> int:
    try:
        return disk.open(path)
    except FileNotFoundError:
        msg = f"index {path} is gone"
        raise CorruptionError(msg) from None


def _blocks(count: int) -> int:
    return -(-count // BLOCK_ENTRIES)


def _body_at(count: int) -> int:
    return _HEAD.size + _SUMMARY_BYTES * _blocks(count)


def _damage(path: str) -> CorruptionError:
    return CorruptionError(f"index {path} is damaged")
