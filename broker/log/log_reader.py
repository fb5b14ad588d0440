"""Reading a partition's segments: what a fetch and a catching-up follower get.

One `pread` from the nearest index entry, a walk over headers, slices of that one buffer. No work
per record, but where the first or the last batch has to be cut.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from broker.log.compaction import without_front
from broker.log.offset_index import INDEX_INTERVAL_BYTES
from broker.record.batch import (
    HEADER_SIZE,
    BatchError,
    BatchHeader,
    BatchSlice,
    parse_header,
    place_of,
    verify,
)
from broker.record.compression import PackedSlice, Piece, lines_of
from broker.record.render import offset_of_line
from broker.record.whole_batches import Lines, sound_run, whole_lines, whole_slices
from raft_metadata.common.errors import CorruptionError, ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.log.segment import OpenFiles, Segment

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
    """`read_pieces` with every batch unpacked.

    Raises:
        CorruptionError: names file and offset.
    """
    found = read_pieces(files, segments, from_offset, max_bytes, up_to_offset, packed=False)
    return cast("list[BatchSlice]", found)


def read_lines(
    files: OpenFiles, segments: list[Segment], from_offset: int, max_bytes: int, up_to_offset: int
) -> Lines:
    """The lines of `read` alone, for who does not ask what their batches say of them.

    Raises:
        CorruptionError: names file and offset.
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
    """Records from ``from_offset`` (which must be in the log) up to, not with, ``up_to_offset``.

    Never below the one, nor at or behind the other. At least one record; else at most
    ``max_bytes`` of lines, cut between records, inside the first batch too. Ends at the end of a
    segment: read on from the last slice's next_offset. Every batch's crc is checked (invariant
    L22: rot is reported, never served).

    Where compaction left no record (rule R7) the search goes on, in the next segments too: nothing
    comes back only where no record is in that range at all. That is a short search: a hole is one
    batch for each leader epoch and segment, and those that producers' states need, 4 MB at most.

    ``packed``: compressed batches that are wanted whole come as they are stored. Bytes are counted
    as lines either way; one that does not fit is then left for the next read, not cut.

    Raises:
        CorruptionError: names file and offset.
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
    """A read under way. ``reached``: how far it came where it found nothing that is wanted."""

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
        """What is wanted of a buffer: by ``whole`` where it can, the other batches one by one."""
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
        """What is wanted of the batch ``stored`` at ``place`` of ``text``; False: no more is."""
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
        cut = _cut(header, text, place, self._wanted, self.room, first=not slices)
        if cut is not None:
            slices.append(cut)
            self.room -= len(cut.lines)
            return cut.next_offset == header.next_offset
        if not slices:
            self.reached = following  # only a hole of a compacted batch lay behind from_offset
        return not slices


def read_raw(
    files: OpenFiles, segments: list[Segment], from_offset: int, max_bytes: int, up_to_offset: int
) -> bytes:
    """Whole batches from ``from_offset`` on, none reaching past the end given.

    Where that lies inside a batch, its front is left out: a replica's log may end inside what
    compaction made one batch here, and begin inside any (rule R7). At least one batch, else at
    most ``max_bytes``. Every crc is checked here too: a follower that refuses a rotten batch can't
    say so, and would ask for it for ever (rule Q5).

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
        _whole(segment, buffer, start)  # too long, or its header rotted
        return b""
    size, base, _ = _place(segment, buffer, start)
    if base >= from_offset:
        return buffer[start:at]
    first = buffer[start : start + size]
    header = parse_header(first)
    cut = _unpacked(segment, header, partial(without_front, first, header), from_offset)
    # A frame may grow as it is cut: it goes alone then, what fits was reckoned without that.
    return cut if len(cut) > size else cut + buffer[start + size : at]


def check_range(from_offset: int, log_start_offset: int, log_end_offset: int) -> None:
    """Refuse what is outside the log.

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
    """A buffer, and where in it the batch that holds the offset begins; that one is in it whole.

    Raises:
        CorruptionError: its header says that it begins behind the offset, or is not whole here.
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
        size, base, _ = _place(segment, disk.read(fd, HEADER_SIZE, position), 0)
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
    """The batch here, checked; None if the buffer ends inside it."""
    size, base, _ = _place(segment, buffer, at)
    if at + size > len(buffer):
        return None
    try:
        return verify(buffer, at)
    except BatchError as error:
        msg = f"{error} file={segment.log_path} offset={base}"
        raise CorruptionError(msg) from None


def _unpacked(segment: Segment, header: BatchHeader, how: Callable[[A], T], what: A) -> T:
    """A frame that can't be unpacked is damage, as a wrong crc is: reported, never served."""
    try:
        return how(what)
    except BatchError as error:
        msg = f"{error} file={segment.log_path} offset={header.base_offset}"
        raise CorruptionError(msg) from None


def _cut(
    header: BatchHeader,
    text: bytes,
    place: tuple[int, int],
    wanted: tuple[int, int],
    room: int,
    *,
    first: bool,
) -> BatchSlice | None:
    """The records of a batch inside ``wanted`` that fit; the first of an answer always fits.

    Its lines lie in ``text``, at ``place``: nothing of what is not wanted is copied or looked at.
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
        text[start:end],  # no view: a slow reader of a few lines would keep all of a large batch
        offset_of_line(text, start),
        min(following, up_to_offset),
        text.count(b"\n", start, end),
    )


def line_from(text: bytes, start: int, end: int, offset: int) -> int:
    """Where among whole lines the first one at or behind this offset begins; ``end``: nowhere.

    By halving, with the offsets that the lines say, so a compacted batch is searched as any other
    (rule R7): a dozen looks in the largest one, where splitting it took 0.3 ms.
    """
    while start < end:
        at = max(text.rfind(b"\n", start, (start + end) >> 1) + 1, start)
        if offset_of_line(text, at) >= offset:
            end = at
        else:
            start = text.index(b"\n", at) + 1
    return start
