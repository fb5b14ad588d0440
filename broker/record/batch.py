"""The record batch: a fixed binary header in front of newline-terminated JSON lines (decision D4).

A batch is written to the log and pushed to followers as it is; a fetch returns its lines. Layout,
little-endian, 84 bytes, then the lines:

    magic            4   0xFF and "QB1": 0xFF never occurs in UTF-8, so no payload can imitate it
    length           u32 bytes after the fixed header
    durable_end      i64 LOCAL: the log end this replica knew as durable when it wrote the batch
    durable_check    u32 LOCAL: crc32 of durable_end, seeded with crc
    crc              u32 crc32 of everything behind it
    base_offset      i64, count u32, last_offset_delta u32 (rule R7: they differ after compaction;
                     count 0, no lines: an empty batch, all of whose records were compacted away)
    leader_epoch     i32
    append_timestamp i64 broker's wall clock (ms); retention goes by it
    base_timestamp   i64, max_timestamp i64: create time (ms)
    producer_id      i64, producer_epoch i16, base_sequence i32
    attributes       u16 bits 0-1 key format, 2-3 value format, 4 transactional, 5 control,
                     6-8 compression: 0 none, 4 zstd (`broker.record.compression`)

The local part lies outside the crc, so that each replica stamps its own (rule Q5, ADR 0003).
Hot functions take and return bytes and plain numbers on purpose.

Runs of plain batches (whole, valid, not empty, not compressed, all wanted) are taken by
`sound_run`, `whole_slices` and `whole_lines`, with one header and one crc per batch; `log_reader`
handles a batch that ends a run with `verify`, which names the fault.
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Buffer = bytes | bytearray | memoryview

crc32: Callable[..., int]
try:  # the same polynomial, 13 times as fast (56 against 4.2 GB/s where the design was measured)
    from isal import isal_zlib

    crc32 = isal_zlib.crc32
except ImportError:
    crc32 = zlib.crc32

MAGIC = b"\xffQB1"
_LOCAL = Struct("<4sIqII")
_REST = Struct("<qIIiqqqqhiH")
WHOLE = Struct("<4sIqIIqIIiqqqqhiH")
"""The fields of a `BatchHeader`."""
_PLACE = Struct("<4sIqIIqII")
_I64 = Struct("<q")
_STAMP = Struct("<qI")
HEADER_SIZE = WHOLE.size
_STAMP_AT = 8
CRC_FROM = 24
"""Position in a batch of the first byte that its crc covers."""
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1

_VALUE_FORMAT_SHIFT = 2
_FORMAT_MASK = 0b11
FORMATS_MASK = 0b1111
"""Attribute bits of the key format and the value format."""
_LENGTH, _CRC, _BASE_OFFSET, _COUNT, _DELTA, _LEADER_EPOCH = 1, 4, 5, 6, 7, 8
"""Places in a `BatchHeader`: access by number costs a third of access by name."""
_new_tuple = tuple.__new__
_TRANSACTIONAL = 1 << 4
_CONTROL = 1 << 5
COMPRESSION_SHIFT = 6
COMPRESSION_MASK = 0b111 << COMPRESSION_SHIFT


class RecordFormat(IntEnum):
    """The meaning of the JSON text of a key or value (interfaces, section 3)."""

    JSON = 0
    """Any JSON text, byte for byte as the client sent it."""
    BINARY = 1
    """A JSON string that holds base64."""
    STRING = 2
    """A JSON string that holds text."""


class BatchError(ValueError):
    """The bytes are not a whole, valid batch."""


class BatchHeader(NamedTuple):
    """The header of a batch, field by field, in the order of the bytes."""

    magic: bytes
    length: int
    durable_end: int
    durable_check: int
    crc: int
    base_offset: int
    count: int  # type: ignore[assignment]  # tuple.count is of no use here
    last_offset_delta: int
    leader_epoch: int
    append_timestamp: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    attributes: int

    @property
    def size(self) -> int:
        """Bytes of header and lines together."""
        return HEADER_SIZE + self.length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The base offset of the batch behind this one."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def is_dense(self) -> bool:
        """True without holes: line k holds offset base + k (rule R7)."""
        return self.count == self.last_offset_delta + 1

    @property
    def key_format(self) -> RecordFormat:
        return RecordFormat(self.attributes & _FORMAT_MASK)

    @property
    def value_format(self) -> RecordFormat:
        return RecordFormat(self.attributes >> _VALUE_FORMAT_SHIFT & _FORMAT_MASK)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & _CONTROL)

    @property
    def is_compressed(self) -> bool:
        """True if the stored batch holds a zstd frame behind its header, not lines."""
        return bool(self.attributes & COMPRESSION_MASK)


class BatchSlice(NamedTuple):
    """Some consecutive records of one batch, as stored lines.

    ``header`` describes the whole batch (formats, timestamps, epoch). ``lines`` holds ``count``
    whole lines, the first of them at ``first_offset``; reading continues at ``next_offset``.
    ``lines`` may be a view into a larger buffer: copy it if it must outlive the response.
    """

    header: BatchHeader
    lines: bytes | memoryview
    first_offset: int
    next_offset: int
    count: int  # type: ignore[assignment]  # as above


def attributes_of(
    key_format: RecordFormat,
    value_format: RecordFormat,
    *,
    transactional: bool = False,
    control: bool = False,
) -> int:
    """Return the attribute bits of a batch."""
    return (
        key_format
        | value_format << _VALUE_FORMAT_SHIFT
        | (_TRANSACTIONAL if transactional else 0)
        | (_CONTROL if control else 0)
    )


def build_header(  # noqa: PLR0913 one argument a field: this runs once per batch on the hot path
    lines: Buffer,
    *,
    durable_end: int,
    base_offset: int,
    count: int,
    last_offset_delta: int,
    leader_epoch: int,
    append_timestamp: int,
    base_timestamp: int,
    max_timestamp: int,
    attributes: int,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
) -> bytes:
    """Return the 84 bytes that belong in front of these lines."""
    rest = _REST.pack(
        base_offset,
        count,
        last_offset_delta,
        leader_epoch,
        append_timestamp,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        attributes,
    )
    crc = crc32(lines, crc32(rest))
    check = crc32(_I64.pack(durable_end), crc)
    return _LOCAL.pack(MAGIC, len(lines), durable_end, check, crc) + rest


def parse_header(buffer: Buffer, at: int = 0) -> BatchHeader:
    """Read the header at this position. Only its length of 84 bytes is checked.

    Raises:
        BatchError: fewer bytes than a header.
    """
    if len(buffer) - at < HEADER_SIZE:
        msg = f"{len(buffer) - at} bytes are fewer than a batch header"
        raise BatchError(msg)
    return BatchHeader._make(WHOLE.unpack_from(buffer, at))


def place_of(buffer: Buffer, at: int) -> tuple[int, int, int]:
    """Return (size, base offset, next offset) of the batch whose whole header lies here.

    The magic is checked. The short form of `parse_header` for walks over many small batches.

    Raises:
        BatchError: no batch starts here.
    """
    magic, length, _, _, _, base, _, delta = _PLACE.unpack_from(buffer, at)
    if magic != MAGIC:
        msg = "no batch starts here"
        raise BatchError(msg)
    return HEADER_SIZE + length, base, base + delta + 1


def verify(buffer: Buffer, at: int = 0) -> BatchHeader:
    """Read the batch at this position and check its magic, size, crc and counts.

    The local part is checked by `is_stamped`: a batch from a peer carries the peer's.

    Raises:
        BatchError: the batch is invalid; the message names the fault.
    """
    header = parse_header(buffer, at)
    if header.magic != MAGIC:
        msg = "bad magic"
        raise BatchError(msg)
    end = at + HEADER_SIZE + header.length
    if end > len(buffer):
        msg = f"{end - len(buffer)} bytes of the batch are missing"
        raise BatchError(msg)
    with memoryview(buffer) as view:
        crc = crc32(view[at + CRC_FROM : end])
    if crc != header.crc:
        msg = f"crc is {crc:#010x}, the header says {header.crc:#010x}"
        raise BatchError(msg)
    if header.count > header.last_offset_delta + 1 or bool(header.count) != bool(header.length):
        msg = (
            f"count {header.count} does not fit last offset delta {header.last_offset_delta} and "
            f"{header.length} bytes of lines"
        )
        raise BatchError(msg)
    return header


def rebuilt(header: BatchHeader, lines: Buffer) -> bytes:
    """Return a batch with this header's fields and these lines; length, crc and local part are new.

    The durable end stays: it was true when the batch was first written here (rule Q5).
    """
    return b"".join(
        (
            build_header(
                lines,
                durable_end=header.durable_end,
                base_offset=header.base_offset,
                count=header.count,
                last_offset_delta=header.last_offset_delta,
                leader_epoch=header.leader_epoch,
                append_timestamp=header.append_timestamp,
                base_timestamp=header.base_timestamp,
                max_timestamp=header.max_timestamp,
                attributes=header.attributes,
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=header.base_sequence,
            ),
            lines,
        )
    )


def is_stamped(header: BatchHeader) -> bool:
    """Return True if the local part is whole and belongs to this batch (rule Q5)."""
    return header.durable_check == crc32(_I64.pack(header.durable_end), header.crc)


def stamp(buffer: bytearray | memoryview, at: int, durable_end: int, crc: int) -> None:
    """Replace the local part of the batch at this position by this replica's own (rule Q5)."""
    _STAMP.pack_into(buffer, at + _STAMP_AT, durable_end, crc32(_I64.pack(durable_end), crc))


def stamp_run(
    buffer: bytearray | memoryview, headers: Sequence[BatchHeader], durable_end: int
) -> None:
    """Call `stamp` for every batch of a run with these headers."""
    at, end = 0, _I64.pack(durable_end)
    for header in headers:
        _STAMP.pack_into(buffer, at + _STAMP_AT, durable_end, crc32(end, header.crc))
        at += HEADER_SIZE + header.length


def walk(buffer: Buffer, at: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Yield each (position, header) of a run of whole batches; magic checked, crc not.

    Raises:
        BatchError: the run does not consist of whole batches.
    """
    end = len(buffer)
    while at < end:
        header = parse_header(buffer, at)
        if header.magic != MAGIC or at + header.size > end:
            msg = f"no whole batch at byte {at}"
            raise BatchError(msg)
        yield at, header
        at += header.size


def _verify_quickly(view: memoryview, at: int, end: int) -> BatchHeader | None:
    """Return the header here if everything `verify` checks is right, else None.

    Takes half the time of `verify`, which then names the fault: a follower does this for every
    batch, and many batches hold one record.
    """
    if end - at < HEADER_SIZE:
        return None
    fields = WHOLE.unpack_from(view, at)
    stop = at + HEADER_SIZE + fields[_LENGTH]
    if fields[0] != MAGIC or stop > end or crc32(view[at + CRC_FROM : stop]) != fields[_CRC]:
        return None
    if not (0 < fields[_COUNT] <= fields[_DELTA] + 1 and fields[_LENGTH]):
        return None
    return _new_tuple(BatchHeader, fields)


def verify_run(buffer: Buffer, next_offset: int, epoch: int) -> list[BatchHeader]:
    """Check a run of batches that is to follow a log with this end and last epoch.

    Return the headers.

    Raises:
        BatchError: the bytes are not whole valid batches.
        ValueError: they are, but leave a gap, or their leader epoch goes back.
    """
    headers = []
    at, end = 0, len(buffer)
    with memoryview(buffer) as view:
        while at < end:
            header = _verify_quickly(view, at, end)
            if header is None:
                try:
                    header = verify(buffer, at)
                except BatchError as error:
                    msg = f"{error} at offset {next_offset}"
                    raise BatchError(msg) from None
            fields: tuple[Any, ...] = header
            base, delta, of_epoch = fields[_BASE_OFFSET], fields[_DELTA], fields[_LEADER_EPOCH]
            if base != next_offset or of_epoch < epoch:
                msg = (
                    f"batch at offset {base} of epoch {of_epoch} does not "
                    f"follow offset {next_offset} of epoch {epoch}"
                )
                raise ValueError(msg)
            headers.append(header)
            next_offset, epoch = base + delta + 1, of_epoch
            at += HEADER_SIZE + fields[_LENGTH]
    return headers


_SLICE = Struct("<IIqq")


def encode_slices(slices: Sequence[BatchSlice]) -> bytes:
    """Encode slices as one frame body, for the broker that forwards a fetch (decision D7)."""
    parts: list[Buffer] = []
    for piece in slices:
        parts.append(
            _SLICE.pack(len(piece.lines), piece.count, piece.first_offset, piece.next_offset)
        )
        parts.append(WHOLE.pack(*piece.header))
        parts.append(piece.lines)
    return b"".join(parts)


def decode_slices(frame: bytes | memoryview) -> list[BatchSlice]:
    """Decode the result of `encode_slices`; the lines are views into the frame.

    Raises:
        BatchError: the frame is cut short.
    """
    view = memoryview(frame)
    slices = []
    at = 0
    while at < len(view):
        if len(view) - at < _SLICE.size + HEADER_SIZE:
            msg = "the frame ends inside a slice's header"
            raise BatchError(msg)
        length, count, first, following = _SLICE.unpack_from(view, at)
        at += _SLICE.size
        header = BatchHeader._make(WHOLE.unpack_from(view, at))
        at += HEADER_SIZE
        if at + length > len(view):
            msg = "the frame ends inside a slice's lines"
            raise BatchError(msg)
        slices.append(BatchSlice(header, view[at : at + length], first, following, count))
        at += length
    return slices


_LOOK = Struct("<4sI12xIqII42xH")
"""Magic, length, crc, base offset, count, last offset delta, attributes."""


class Lines(NamedTuple):
    """The lines of consecutive batches, without the batches' headers."""

    pieces: Sequence[bytes | memoryview]
    next_offset: int
    """The offset at which reading continues."""


def sound_run(view: memoryview, at: int, up_to: int, limit: int) -> int:
    """Return the position up to which valid whole batches reach from this position on.

    The run ends before the first batch that is not whole or not valid, reaches past the offset
    ``up_to``, or past the position ``limit``. Empty and compressed batches are included.
    """
    unpack = _LOOK.unpack_from
    limit = min(limit, len(view))
    last = limit - HEADER_SIZE
    while at <= last:
        magic, length, crc, base, count, delta, _ = unpack(view, at)
        end = at + HEADER_SIZE + length
        following = base + delta + 1
        if magic != MAGIC or end > limit or following > up_to:
            break
        if count > following - base or bool(count) != bool(length):
            break
        if crc32(view[at + CRC_FROM : end]) != crc:
            break
        at = end
    return at


def whole_slices(
    view: memoryview, at: int, wanted: tuple[int, int], room: int
) -> tuple[list[BatchSlice], int, int]:
    """Return valid batches from this position on that a response takes unchanged.

    The run ends before the first batch that is not whole, not valid, empty, compressed, not all
    inside ``wanted`` (first offset, end), or longer than the rest of ``room``.

    Returns:
        The slices, the position behind them, the room left.
    """
    slices: list[BatchSlice] = []
    add, unpack = slices.append, WHOLE.unpack_from
    first, up_to = wanted
    size = len(view)
    last = size - HEADER_SIZE
    while at <= last and room > 0:
        fields = unpack(view, at)
        magic, length, _, _, crc, base, count, delta = fields[:8]
        start = at + HEADER_SIZE
        end = start + length
        following = base + delta + 1
        if magic != MAGIC or not 0 < count <= following - base or not 0 < length <= room:
            break
        if base < first or following > up_to or fields[-1] & COMPRESSION_MASK:
            break
        if end > size or crc32(view[at + CRC_FROM : end]) != crc:
            break
        header = _new_tuple(BatchHeader, fields)
        add(_new_tuple(BatchSlice, (header, view[start:end], base, following, count)))
        room -= length
        at = end
    return slices, at, room


def whole_lines(
    view: memoryview, at: int, wanted: tuple[int, int], room: int
) -> tuple[list[Lines], int, int]:
    """Return the result of `whole_slices` for a reader of lines alone, as one `Lines`, if any.

    Creating unused headers takes half of a read if batches hold one record each.
    """
    lines: list[bytes | memoryview] = []
    add, unpack = lines.append, _LOOK.unpack_from
    first, up_to = wanted
    size = len(view)
    last, reached = size - HEADER_SIZE, first
    while at <= last and room > 0:
        magic, length, crc, base, count, delta, attributes = unpack(view, at)
        start = at + HEADER_SIZE
        end = start + length
        following = base + delta + 1
        if magic != MAGIC or not 0 < count <= following - base or not 0 < length <= room:
            break
        if base < first or following > up_to or attributes & COMPRESSION_MASK:
            break
        if end > size or crc32(view[at + CRC_FROM : end]) != crc:
            break
        add(view[start:end])
        room -= length
        at, reached = end, following
    return [Lines(lines, reached)] if lines else [], at, room
