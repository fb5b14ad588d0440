"""Reads that would wait for the disk: detected, counted, and waited for off the event loop.

A range of a file counts as cached if its first and its last page are in the page cache: two system
calls of less than a microsecond each. (Checking every page, by a read that may not block, cost 11
µs a megabyte.) A cold range is read once on a thread, where only the requesting reader waits for
it; then the read on the event loop finds it in the cache.
"""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from broker.log.disk import Disk, ReadCounts
    from broker.log.segment import OpenFiles, Segment

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
        await asyncio.to_thread(_read, cold)


def _read(cold: ColdRange) -> None:
    for start in range(0, cold.length, STEP_BYTES):
        cold.disk.read(cold.fd, min(STEP_BYTES, cold.length - start), cold.position + start)


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
