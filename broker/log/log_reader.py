"""Reading a partition's segments: records by offset, and offsets by time.

`PartitionLog` calls `read`, `read_lines`, `read_pieces` and `read_raw` on the event loop. Each does
one `pread` from the nearest index entry, walks the headers, and returns slices of that one buffer.
There is no work per record, except where the first or the last batch is sliced.

`TimeSearch` finds the first record of a given time or later in short steps. The sparse index gives
the start; from there each header is examined, and each line of a batch that may hold the record. As
a rule one step suffices. But a batch may hold 65 MB of lines (a batch of an idempotent producer is
never split), and if times go up and down, or the log begins inside a segment, a whole log may have
to be searched: between two steps other tasks run on the event loop.

`cold_range` and `warm` keep reads from waiting for the disk on the event loop. A range of a file
counts as cached if its first and its last page are in the page cache: two system calls of less than
a microsecond each. (Checking every page, by a read that may not block, cost 11 µs a megabyte.) A
cold range is read once on a thread, where only the requesting reader waits for it; then the read on
the event loop finds it in the cache.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

from broker.log.compaction import without_front
from broker.log.index import INDEX_INTERVAL_BYTES
from broker.record.batch import (
    HEADER_SIZE,
    BatchError,
    BatchHeader,
    BatchSlice,
    Lines,
    parse_header,
    place_of,
    sound_run,
    verify,
    whole_lines,
    whole_slices,
)
from broker.record.compression import PackedSlice, Piece, lines_of, unpacked_size
from broker.record.render import offset_of_line
from raft_metadata.common.errors import CorruptionError, ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.log.segment import OpenFiles, ReadCounts, Segment
    from raft_metadata.common.disk import Disk

    Part = Piece | Lines
    Whole = Callable[
        [memoryview, int, tuple[int, int], int], tuple[Sequence[BatchSlice | Lines], int, int]
    ]
    """`whole_slices` or `whole_lines`."""

A = TypeVar("A")
T = TypeVar("T")


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


def read(
    files: OpenFiles, segments: list[Segment], from_offset: int, max_bytes: int, up_to_offset: int
) -> list[BatchSlice]:
    """Return the result of `read_pieces` with every batch unpacked.

    Raises:
        CorruptionError: a batch is damaged; names file and offset.
    """
    found = read_pieces(files, segments, from_offset, max_bytes, up_to_offset, packed=False)
    return cast("list[BatchSlice]", found)


def read_lines(
    files: OpenFiles, segments: list[Segment], from_offset: int, max_bytes: int, up_to_offset: int
) -> Lines:
    """Return only the lines of `read`, for a reader that needs no batch headers.

    Raises:
        CorruptionError: a batch is damaged; names file and offset.
    """
    wanted = (from_offset, up_to_offset)
    found = _read(files, segments, wanted, max_bytes, packed=False, whole=whole_lines)
    pieces: list[bytes | memoryview] = []
    for part in found:
        if isinstance(part, Lines):
            pieces += part.pieces
        elif isinstance(part, BatchSlice):
            pieces.append(part.lines)
    return Lines(pieces, found[-1].next_offset if found else from_offset)


def read_pieces(
    files: OpenFiles,
    segments: list[Segment],
    from_offset: int,
    max_bytes: int,
    up_to_offset: int,
    *,
    packed: bool,
) -> Sequence[Piece]:
    """Return records from ``from_offset``, which must be in the log, to before ``up_to_offset``.

    No record outside this range is returned. At least one record; else at most ``max_bytes`` of
    lines, sliced between records, inside the first batch too. The result ends at the end of a
    segment: continue at the last slice's next_offset. Every batch's crc is checked: damage is
    reported, never served (invariant L22).

    If compaction left no record at ``from_offset`` (rule R7), the search continues, in later
    segments too: the result is empty only if the whole range holds no record. That search is short:
    a hole is one batch for each leader epoch and segment, and those that producers' states need, 4
    MB at most.

    ``packed``: compressed batches that are wanted whole are returned as they are stored. Bytes are
    counted as lines either way; a packed batch that does not fit is left for the next read, not
    sliced.

    Raises:
        CorruptionError: a batch is damaged; names file and offset.
    """
    wanted = (from_offset, up_to_offset)
    found = _read(files, segments, wanted, max_bytes, packed=packed, whole=whole_slices)
    return cast("list[Piece]", found)


def _read(
    files: OpenFiles,
    segments: list[Segment],
    wanted: tuple[int, int],
    max_bytes: int,
    *,
    packed: bool,
    whole: Whole,
) -> list[Part]:
    offset, up_to_offset = wanted
    while offset < up_to_offset:
        segment = _segment_of(segments, offset)
        if segment is None:
            break
        buffer, at = _fetch(files, segment, offset, max_bytes)
        answer = _Answer(segment, (offset, up_to_offset), max_bytes, packed=packed)
        answer.take_all(buffer, at, whole)
        if answer.slices:
            return answer.slices
        if answer.reached <= offset:
            break
        offset = answer.reached
    return []


class _Answer:
    """A read in progress. ``reached``: the offset up to which no wanted record was found."""

    __slots__ = ("_packed", "_segment", "_wanted", "reached", "room", "slices")

    def __init__(
        self, segment: Segment, wanted: tuple[int, int], max_bytes: int, *, packed: bool
    ) -> None:
        self._segment = segment
        self._wanted = wanted
        self._packed = packed
        self.slices: list[Part] = []
        self.room = max_bytes
        self.reached = wanted[0]

    def take_all(self, buffer: bytes, at: int, whole: Whole) -> None:
        """Take all wanted batches of a buffer, by ``whole`` where possible, else one by one."""
        view, size, wanted = memoryview(buffer), len(buffer), self._wanted
        while True:
            found, at, self.room = whole(view, at, wanted, self.room)
            self.slices += found
            if at + HEADER_SIZE > size or (self.room <= 0 and self.slices):
                return
            header = _whole(self._segment, buffer, at)
            if header is None or header.base_offset >= wanted[1]:
                return
            lines_at, at = at + HEADER_SIZE, at + header.size
            if not self._take(header, buffer, view[lines_at:at], (lines_at, at)):
                return

    def _take(
        self, header: BatchHeader, text: bytes, stored: memoryview, place: tuple[int, int]
    ) -> bool:
        """Take the wanted records of one batch; return False if no further batch is needed.

        ``stored`` are its bytes behind the header, at ``place`` of ``text``.
        """
        from_offset, up_to_offset = self._wanted
        following = min(header.next_offset, up_to_offset)
        slices = self.slices
        if not header.count:
            self.reached = following
            if slices:
                slices[-1] = slices[-1]._replace(next_offset=following)
            return True
        inside = header.base_offset < from_offset or header.next_offset > up_to_offset
        lines: bytes | memoryview = stored
        if header.is_compressed:
            if self._packed and not inside:
                whole = _unpacked(self._segment, header, partial(PackedSlice.whole, header), stored)
                if whole.lines_size <= self.room:
                    slices.append(whole)
                    self.room -= whole.lines_size
                    return True
                if slices:
                    return False
            text = bytes(_unpacked(self._segment, header, partial(lines_of, header), stored))
            lines, place = text, (0, len(text))
        if not inside and len(lines) <= self.room:
            base, count = header.base_offset, header.count
            slices.append(BatchSlice(header, lines, base, header.next_offset, count))
            self.room -= len(lines)
            return True
        cut = _slice_batch(header, text, place, self._wanted, self.room, first=not slices)
        if cut is not None:
            slices.append(cut)
            self.room -= len(cut.lines)
            return cut.next_offset == header.next_offset
        if not slices:
            self.reached = following  # only a hole of a compacted batch lies behind from_offset
        return not slices


def read_raw(
    files: OpenFiles, segments: list[Segment], from_offset: int, max_bytes: int, up_to_offset: int
) -> bytes:
    """Return whole batches from ``from_offset`` on, none reaching past ``up_to_offset``.

    If ``from_offset`` lies inside a batch, the front of that batch is left out: a replica's log may
    end inside a batch that compaction merged here, and may begin inside any batch (rule R7). At
    least one batch, else at most ``max_bytes``. Every crc is checked here too: a follower that
    refuses a damaged batch can't report it, and would request it for ever (rule Q5).

    Raises:
        CorruptionError: a batch is damaged.
    """
    segment = _segment_of(segments, from_offset)
    if segment is None:
        return b""
    buffer, start = _fetch(files, segment, from_offset, max_bytes)
    at = sound_run(memoryview(buffer), start, up_to_offset, start + max_bytes)
    while at + HEADER_SIZE <= len(buffer):
        size, _, following = _place(segment, buffer, at)
        if following > up_to_offset or at + size > len(buffer):
            break
        if at > start and at + size - start > max_bytes:
            break
        _whole(segment, buffer, at)
        at += size
    if at == start:
        _whole(segment, buffer, start)  # raises if the header is damaged; else it is too long
        return b""
    size, base, _ = _place(segment, buffer, start)
    if base >= from_offset:
        return buffer[start:at]
    first = buffer[start : start + size]
    header = parse_header(first)
    cut = _unpacked(segment, header, partial(without_front, first, header), from_offset)
    # A frame may grow when its front is cut off; then it exceeds the size computed above, so it is
    # returned alone.
    return cut if len(cut) > size else cut + buffer[start + size : at]


def check_range(from_offset: int, log_start_offset: int, log_end_offset: int) -> None:
    """Refuse an offset outside the log.

    Raises:
        KafkaError: OFFSET_OUT_OF_RANGE, naming both ends.
    """
    if not log_start_offset <= from_offset <= log_end_offset:
        raise KafkaError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"offset {from_offset} is outside the log, which holds {log_start_offset} up to "
            f"{log_end_offset}",
        )


def _segment_of(segments: list[Segment], offset: int) -> Segment | None:
    if not segments or offset >= segments[-1].next_offset:
        return None
    return segments[max(bisect_right(segments, offset, key=_base_offset) - 1, 0)]


def _fetch(files: OpenFiles, segment: Segment, offset: int, max_bytes: int) -> tuple[bytes, int]:
    """Return a buffer that holds the whole batch with this offset, and that batch's place in it.

    Raises:
        CorruptionError: the batch's header begins behind the offset, or the batch is incomplete.
    """
    disk = files.disk
    fd = files.use(segment)
    position = segment.position_for(files, offset)
    length = min(max_bytes + INDEX_INTERVAL_BYTES + HEADER_SIZE, segment.size - position)
    buffer = disk.read(fd, length, position)
    at = 0
    while at + HEADER_SIZE <= len(buffer):
        size, base, following = _place(segment, buffer, at)
        if following > offset:
            if at + size <= len(buffer) and base <= offset:
                return buffer, at
            break
        at += size
    position += at
    size, base = 0, offset
    if position + HEADER_SIZE <= segment.size:
        header = disk.read(fd, HEADER_SIZE, position)
        if len(header) == HEADER_SIZE:  # else the file has been shortened behind our back
            size, base, _ = _place(segment, header, 0)
    if not size or base > offset or size > segment.size - position:
        msg = f"no batch holds the offset file={segment.log_path} offset={offset}"
        raise CorruptionError(msg)
    length = min(max(size, max_bytes), segment.size - position)
    return disk.read(fd, length, position), 0


def _place(segment: Segment, buffer: bytes, at: int) -> tuple[int, int, int]:
    try:
        return place_of(buffer, at)
    except (BatchError, ValueError) as error:
        msg = f"{error} file={segment.log_path}"
        raise CorruptionError(msg) from None


def _whole(segment: Segment, buffer: bytes, at: int) -> BatchHeader | None:
    """Return the checked header of the batch here; None if the buffer ends inside the batch."""
    size, base, _ = _place(segment, buffer, at)
    if at + size > len(buffer):
        return None
    try:
        return verify(buffer, at)
    except BatchError as error:
        msg = f"{error} file={segment.log_path} offset={base}"
        raise CorruptionError(msg) from None


def _unpacked(segment: Segment, header: BatchHeader, how: Callable[[A], T], what: A) -> T:
    """Call ``how``; report a frame that can't be unpacked as damage, like a wrong crc."""
    try:
        return how(what)
    except BatchError as error:
        msg = f"{error} file={segment.log_path} offset={header.base_offset}"
        raise CorruptionError(msg) from None


def _slice_batch(
    header: BatchHeader,
    text: bytes,
    place: tuple[int, int],
    wanted: tuple[int, int],
    room: int,
    *,
    first: bool,
) -> BatchSlice | None:
    """Return the records of a batch inside ``wanted`` that fit; None if none does.

    The ``first`` record of an answer always fits. The lines lie in ``text``, at ``place``: unwanted
    ones are neither copied nor examined.
    """
    from_offset, up_to_offset = wanted
    start, last = place
    end, following = last, header.next_offset
    if from_offset > header.base_offset:
        start = line_from(text, start, last, from_offset)
    if up_to_offset < following:
        end = line_from(text, start, last, up_to_offset)
        following = up_to_offset
    if end - start > room:
        end = text.rfind(b"\n", start, start + max(room, 0)) + 1
        if end <= start:
            if not first:
                return None
            end = text.index(b"\n", start) + 1
        following = header.next_offset if end == last else offset_of_line(text, end)
    if end <= start:
        return None
    return BatchSlice(
        header,
        text[start:end],  # a copy: a view would keep a large batch in memory for a slow reader
        offset_of_line(text, start),
        min(following, up_to_offset),
        text.count(b"\n", start, end),
    )


def line_from(text: bytes, start: int, end: int, offset: int) -> int:
    """Return the position of the first of these whole lines at or behind ``offset``, else ``end``.

    A binary search by the offsets in the lines, so a compacted batch is searched like any other
    (rule R7): a dozen lines examined in the largest batch, where splitting it took 0.3 ms.
    """
    while start < end:
        at = max(text.rfind(b"\n", start, (start + end) >> 1) + 1, start)
        if offset_of_line(text, at) >= offset:
            end = at
        else:
            start = text.index(b"\n", at) + 1
    return start


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
        self._batch: _BatchSearch | None = None
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
                    self._batch = _BatchSearch(segment, position, header)
                    if self._look_into(self._batch, files):
                        return True
                    if self._batch is not None:
                        return False
                self._reached = header.next_offset
            self._left -= 1
        return False

    def _look_into(self, batch: _BatchSearch, files: OpenFiles) -> bool:
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


class _BatchSearch:
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


STEP_BYTES = 1 << 20
"""Bytes per read on the thread, discarded at once: the memory that warming takes."""


class ColdRange(NamedTuple):
    """A range of a file that must come from the disk before a read can be served."""

    disk: Disk
    reads: ReadCounts
    fd: int
    position: int
    length: int


def cold_range(
    files: OpenFiles, segments: list[Segment], from_offset: int, max_bytes: int
) -> ColdRange | None:
    """Return the range that a read from ``from_offset`` on would wait for.

    None if it would not wait; then the read is counted as cached.
    """
    if not segments or from_offset >= segments[-1].next_offset:
        return None
    found = bisect_right(segments, from_offset, key=_base_offset) - 1
    segment = segments[max(found, 0)]
    fd = files.use(segment)
    position = segment.position_for(files, from_offset)
    length = min(max_bytes, segment.size - position)
    if length <= 0:
        return None
    if files.disk.is_cached(fd, position, length):
        files.reads.cached_bytes += length
        return None
    return ColdRange(files.disk, files.reads, fd, position, length)


async def warm(cold: ColdRange) -> None:
    """Wait until the range is in the page cache.

    Its file may be closed or truncated meanwhile: the bytes read here are not used.
    """
    cold.reads.cold_bytes += cold.length
    with contextlib.suppress(OSError):
        await asyncio.to_thread(_read_in_steps, cold)


def _read_in_steps(cold: ColdRange) -> None:
    for start in range(0, cold.length, STEP_BYTES):
        cold.disk.read(cold.fd, min(STEP_BYTES, cold.length - start), cold.position + start)
