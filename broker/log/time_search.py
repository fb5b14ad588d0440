"""The first record of a given time or later, searched in short steps.

The sparse index gives the start; from there each header is examined, and each line of a batch that
may hold the record. As a rule one step suffices. But a batch may hold 65 MB of lines (a batch of an
idempotent producer is never split), and if times go up and down, or the log begins inside a
segment, a whole log may have to be searched: between two steps other tasks run on the event loop.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import TYPE_CHECKING

from broker.record.batch import HEADER_SIZE, BatchError, verify
from broker.record.compression import lines_of, unpacked_size
from raft_metadata.common.errors import CorruptionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.log.disk import Disk
    from broker.log.segment import OpenFiles, Segment
    from broker.record.batch import BatchHeader

HEADERS_PER_STEP = 1_000
"""Headers examined per step: about 1 ms."""
LINES_BYTES_PER_STEP = 262_144
"""Bytes of lines examined per step: about 1 ms if lines are short."""
BATCH_COST = 10
BYTES_LIKE_A_HEADER = LINES_BYTES_PER_STEP // HEADERS_PER_STEP
"""Bytes of lines that count as one of `HEADERS_PER_STEP`."""
LARGE_BYTES = 1_048_576
"""Stored bytes, or lines, above which a batch is read in pieces and unpacked on a thread."""
PIECE_BYTES = 4_194_304
"""Bytes of a large batch read in one step."""
_LINE = re.compile(rb'\{"offset":(\d+),(?:"timestamp":(\d+),)?[^\n]*\n')
"""A whole stored line: the next match begins with the next line."""


class TimeSearch:
    """A search in one log, owned by the requesting task; restarted if the log is truncated."""

    __slots__ = ("_batch", "_generation", "_left", "_reached", "_timestamp_ms", "found", "work")

    def __init__(self, timestamp_ms: int) -> None:
        self._timestamp_ms = timestamp_ms
        self._reached = 0
        """Every record below this offset is older than the searched time."""
        self._batch: _Batch | None = None
        self._generation = -1
        self._left = 0
        self.found: int | None = None
        """The offset found, once the search is over; None: all records are older."""
        self.work: Callable[[], None] | None = None
        """Work to run on a thread before the next step; None: none."""

    def step(
        self, files: OpenFiles, segments: list[Segment], log_start: int, generation: int
    ) -> bool:
        """Continue where the last step ended; return True when the search is over.

        ``generation``: the log's truncation generation; a new one means that the log was truncated.

        Raises:
            CorruptionError: a batch is damaged; names file and offset.
        """
        self.work = None
        if generation != self._generation:
            self._generation, self._reached, self._batch = generation, 0, None
        self._left = HEADERS_PER_STEP
        self._reached = max(self._reached, log_start)
        if self._batch is None:
            return self._look_at_headers(files, segments)
        if self._batch.segment not in segments:
            self._batch = None  # its segment was compacted meanwhile: search for the batch again
            return False
        return self._look_into(self._batch, files)

    def _look_at_headers(self, files: OpenFiles, segments: list[Segment]) -> bool:
        first = max(bisect_right(segments, self._reached, key=_base_offset) - 1, 0)
        for segment in segments[first:]:
            if segment.max_timestamp >= self._timestamp_ms and segment.next_offset > self._reached:
                if self._look_at_segment(files, segment):
                    return True
                if self._left <= 0 or self._batch is not None:
                    return False
        return True

    def _look_at_segment(self, files: OpenFiles, segment: Segment) -> bool:
        fd = files.use(segment)
        start = segment.position_for_time(files, self._timestamp_ms)
        if self._reached > segment.base_offset:
            start = max(start, segment.position_for(files, self._reached))
        for position, header in segment.headers(files.disk, fd, start):
            if header.next_offset > self._reached:
                if self._left <= 0:
                    return False
                if header.count and header.max_timestamp >= self._timestamp_ms:
                    self._batch = _Batch(segment, position, header)
                    if self._look_into(self._batch, files):
                        return True
                    if self._batch is not None:
                        return False
                self._reached = header.next_offset
            self._left -= 1
        return False

    def _look_into(self, batch: _Batch, files: OpenFiles) -> bool:
        """Search the next piece of this batch; clear ``_batch`` at its end. True: found."""
        if batch.text is None:
            self.work = batch.read_on(files)
        if batch.text is None:
            return False
        begin = batch.at
        self.found = batch.look(self._timestamp_ms, self._reached)
        if self.found is not None:
            return True
        self._left -= BATCH_COST + (batch.at - begin) // BYTES_LIKE_A_HEADER
        if batch.at >= len(batch.text):
            self._reached = batch.header.next_offset
            self._batch = None
        return False


class _Batch:
    """A batch that may hold the record: read, unpacked, and searched line by line."""

    __slots__ = ("_raw", "at", "header", "position", "segment", "text")

    def __init__(self, segment: Segment, position: int, header: BatchHeader) -> None:
        self.segment = segment
        self.position = position
        self.header = header
        self._raw: bytearray | None = bytearray()
        """The bytes read of a large batch; None: the thread found it damaged."""
        self.text: bytes | bytearray | None = None
        """Lines of the batch, not yet searched from ``at`` on; None: not read yet."""
        self.at = 0

    def read_on(self, files: OpenFiles) -> Callable[[], None] | None:
        """Read the next piece, if any is left; return the work that a thread must do then, or None.

        Raises:
            CorruptionError: the batch is damaged; names file and offset.
        """
        size, raw = self.header.size, self._raw
        if raw is None or size <= LARGE_BYTES:
            fd = files.use(self.segment)
            whole = self.segment.batch(files.disk, fd, self.position, self.header)
            if raw is not None and self._is_long(whole):
                self._raw = bytearray(whole)
                return self._open
            self._unpack(whole)
            return None
        if len(raw) < size:
            raw += self._piece(files.disk, files.use(self.segment), size - len(raw), len(raw))
        return self._open if len(raw) >= size else None

    def _piece(self, disk: Disk, fd: int, left: int, at: int) -> bytes:
        piece = disk.read(fd, min(left, PIECE_BYTES), self.position + at)
        if not piece:
            raise self._damage("the file ends inside a batch")
        return piece

    def _is_long(self, whole: bytes) -> bool:
        try:
            return (
                self.header.is_compressed
                and bool(self.header.count)
                and unpacked_size(memoryview(whole)[HEADER_SIZE:]) > LARGE_BYTES
            )
        except BatchError as error:
            raise self._damage(str(error)) from None

    def _open(self) -> None:
        """Check and unpack, on a thread. Damage is found again, and raised, on the event loop."""
        raw = self._raw
        assert raw is not None
        try:
            verify(raw)
            self._unpack(raw)
        except (BatchError, CorruptionError):
            self._raw = self.text = None

    def _unpack(self, whole: bytes | bytearray) -> None:
        if not self.header.is_compressed:
            self.at, self.text = HEADER_SIZE, whole
            return
        try:
            lines = lines_of(self.header, memoryview(whole)[HEADER_SIZE:])
        except BatchError as error:
            raise self._damage(str(error)) from None
        self._raw = bytearray()
        self.at, self.text = 0, bytes(lines)

    def _damage(self, why: str) -> CorruptionError:
        return CorruptionError(
            f"{why} file={self.segment.log_path} offset={self.header.base_offset}"
        )

    def look(self, timestamp_ms: int, from_offset: int) -> int | None:
        """Search the next lines; return the offset found, or None."""
        text = self.text
        assert text is not None, "read_on comes first"
        end = min(self.at + LINES_BYTES_PER_STEP, len(text))
        if end < len(text):
            end = text.rfind(b"\n", self.at, end) + 1 or text.index(b"\n", end) + 1
        appended = self.header.append_timestamp
        for match in _LINE.finditer(text, self.at, end):
            offset, stamp = match.groups()
            if (appended if stamp is None else int(stamp)) >= timestamp_ms:
                found = int(offset)
                if found >= from_offset:
                    return found
        self.at = end
        return None


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
