"""The file form of a segment's index, of which a reader needs no more than a few kilobytes.

    head      the fields of `IndexFileHead`, the number of entries, a checksum of head and summary
    summary   of each block its first offset, its first time, its checksum: three flat arrays
    blocks    `BLOCK_ENTRIES` entries each, as three flat arrays; the last one may be shorter

`Segment` writes the file when it is sealed (`encode_index`) and opens it when it is read
(`open_index`). A gigabyte of log has 4 MB of index: reading and checking all of it took 8 ms of the
event loop. Its summary is 8 KB, and so is the block for the 2 MB around an offset. All numbers are
in native order, and each byte is covered by a checksum that is verified before use.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from broker.log.offset_index import EMPTY_BYTES, ENTRY_BYTES, OffsetIndex
from broker.record.batch import crc32
from raft_metadata.common.errors import CorruptionError

if TYPE_CHECKING:
    from broker.log.disk import Disk

BLOCK_ENTRIES = 512
FIRST_READ_BYTES = 16_384
"""Bytes of the first read: head and summary of a segment of up to 2 GB."""
_MAGIC = b"QIX3"
_MAGIC_OF_ONE_BLOCK = b"QIX2"
"""Magic of files without a summary, with one checksum of everything: read as a whole."""
_HEAD = Struct("<4sIqqqqqqI")
_BLOCK_BYTES = BLOCK_ENTRIES * ENTRY_BYTES
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
        """Return what `OffsetIndex.position_for` returns.

        Raises:
            CorruptionError: the file is damaged, or lost.
            OSError: it can't be read.
        """
        block = bisect_right(self._starts, relative_offset) - 1
        return self._block(block).position_for(relative_offset) if block >= 0 else 0

    def position_for_time(self, timestamp_ms: int) -> int:
        """Return what `OffsetIndex.position_for_time` returns.

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
        position = _HEAD.size + _SUMMARY_BYTES * len(self._checks) + _BLOCK_BYTES * number
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
    if data[:4] == _MAGIC_OF_ONE_BLOCK:
        index.extend(memoryview(data)[_HEAD.size :])
        return head, index
    body = memoryview(data)[_body_at(count) :]
    checks = memoryview(data)[_HEAD.size + 12 * _blocks(count) : _body_at(count)].cast("I")
    if len(body) != ENTRY_BYTES * count:
        raise _damage(path)
    for number, check in enumerate(checks):
        block = body[number * _BLOCK_BYTES : (number + 1) * _BLOCK_BYTES]
        if crc32(block) != check:
            raise _damage(path)
        index.extend(block)
    return head, index


def _head(data: bytes, path: str) -> IndexFileHead:
    if len(data) >= _HEAD.size:
        magic, check, *fields = _HEAD.unpack_from(data)
        end = len(data)
        if magic == _MAGIC:
            end = _body_at(fields[6])
        elif magic != _MAGIC_OF_ONE_BLOCK or end != _HEAD.size + ENTRY_BYTES * fields[6]:
            raise _damage(path)
        checked = memoryview(data)[_HEAD.size : end]
        if len(data) >= end and check == crc32(checked, crc32(_HEAD.pack(magic, 0, *fields))):
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
