"""Runs of valid batches that a response takes unchanged: the work of a fetch per batch.

`log_reader` calls these functions on the buffer it has read: one header and one crc per batch,
nothing twice. A batch that is not plain (not whole, not valid, empty, compressed, not all wanted)
ends a run; `log_reader` then handles it with `verify`, which names the fault.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from broker.record.batch import (
    COMPRESSION_MASK,
    CRC_FROM,
    HEADER_SIZE,
    MAGIC,
    WHOLE,
    BatchHeader,
    BatchSlice,
    crc32,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOOK = Struct("<4sI12xIqII42xH")
"""Magic, length, crc, base offset, count, last offset delta, attributes."""
_new_tuple = tuple.__new__


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
