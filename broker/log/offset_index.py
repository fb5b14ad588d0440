"""A sparse index of one segment: about one entry per 4 KiB, in three flat arrays.

16 bytes an entry, so 4 MB for a gigabyte of log; Kafka's index.interval.bytes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from struct import Struct

from broker.record.batch import crc32
from raft_metadata.common.errors import CorruptionError

INDEX_INTERVAL_BYTES = 4096
NO_TIMESTAMP = -1
_MAGIC = b"QIX2"
_HEAD = Struct("<4sIqqqqqqI")


class OffsetIndex:
    """Entries (offset, position, newest timestamp before it); the first batch has one.

    Offsets are kept relative to the segment's base and positions below 4 GiB. Not thread-safe:
    lives on the loop with its segment.
    """

    __slots__ = ("_offsets", "_positions", "_times")

    def __init__(self) -> None:
        self._offsets = array("I")
        self._positions = array("I")
        self._times = array("q")

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, relative_offset: int, position: int, newest_before: int) -> None:
        """Note the batch at this position, if it is far enough from the last one noted."""
        if self._positions and position - self._positions[-1] < INDEX_INTERVAL_BYTES:
            return
        self._offsets.append(relative_offset)
        self._positions.append(position)
        self._times.append(newest_before)

    @property
    def entries(self) -> list[tuple[int, int]]:
        """(relative offset, position), in order."""
        return list(zip(self._offsets, self._positions, strict=True))

    def position_for(self, relative_offset: int) -> int:
        """The position of a batch at or before the one that holds the offset."""
        index = bisect_right(self._offsets, relative_offset) - 1
        return self._positions[index] if index >= 0 else 0

    def position_for_time(self, timestamp_ms: int) -> int:
        """A position such that every batch before it is older than the timestamp."""
        index = bisect_left(self._times, timestamp_ms) - 1
        return self._positions[index] if index >= 0 else 0

    def truncate(self, position: int) -> None:
        """Forget the batches at or behind this position."""
        keep = bisect_left(self._positions, position)
        del self._offsets[keep:]
        del self._positions[keep:]
        del self._times[keep:]


class IndexFileHead:
    """What an index file says about its segment, so that a sealed one is opened without a scan."""

    __slots__ = (
        "base_offset", "first_append_ms", "log_size", "max_timestamp", "newest_append_ms",
        "next_offset",
    )  # fmt: skip

    def __init__(
        self,
        base_offset: int,
        next_offset: int,
        log_size: int,
        max_timestamp: int,
        first_append_ms: int,
        newest_append_ms: int,
    ) -> None:
        self.base_offset = base_offset
        self.next_offset = next_offset
        self.log_size = log_size
        self.max_timestamp = max_timestamp
        self.first_append_ms = first_append_ms
        self.newest_append_ms = newest_append_ms


def encode_index(head: IndexFileHead, index: OffsetIndex) -> bytes:
    """The bytes of an index file: head, checksum, the three arrays (native order, checked)."""
    body = b"".join(
        (
            index._offsets.tobytes(),  # noqa: SLF001 this is the file form of that class
            index._positions.tobytes(),  # noqa: SLF001
            index._times.tobytes(),  # noqa: SLF001
        )
    )
    fields = (
        head.base_offset,
        head.next_offset,
        head.log_size,
        head.max_timestamp,
        head.first_append_ms,
        head.newest_append_ms,
        len(index),
    )
    check = crc32(body, crc32(_HEAD.pack(_MAGIC, 0, *fields)))
    return _HEAD.pack(_MAGIC, check, *fields) + body


def decode_index(data: bytes, path: str) -> tuple[IndexFileHead, OffsetIndex]:
    """The inverse of `encode_index`.

    Raises:
        CorruptionError: the file is damaged; the index can be rebuilt from the segment.
    """
    if len(data) >= _HEAD.size:
        magic, check, *fields = _HEAD.unpack_from(data)
        body = data[_HEAD.size :]
        sound = check == crc32(body, crc32(_HEAD.pack(_MAGIC, 0, *fields)))
        if magic == _MAGIC and sound:
            index = OffsetIndex()
            count = fields[6]
            index._offsets.frombytes(body[: 4 * count])  # noqa: SLF001
            index._positions.frombytes(body[4 * count : 8 * count])  # noqa: SLF001
            index._times.frombytes(body[8 * count :])  # noqa: SLF001
            return IndexFileHead(*fields[:6]), index
    msg = f"index {path} is damaged"
    raise CorruptionError(msg)
