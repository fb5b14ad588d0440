"""Reads that would wait for the disk: known beforehand, counted, and waited for off the loop.

A range of a file counts as cached if its first and its last page are in the page cache: two system
calls of less than a microsecond each. Asking for every page, by a read that may not block, cost 11
µs a megabyte. What is cold is read once on a thread, where nobody waits for it but the reader that
asked; then the read on the loop finds it.
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
"""Read at once on a thread, and forgotten: so much memory it takes."""


class ColdRange(NamedTuple):
    """What has to come from the disk before a read can be served."""

    disk: Disk
    reads: ReadCounts
    fd: int
    position: int
    length: int


def cold_range(
    files: OpenFiles, segments: list[Segment], from_offset: int, max_bytes: int
) -> ColdRange | None:
    """What a read from this offset on would wait for; None: nothing, and the read is counted."""
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
    """Wait until it has come. Its file may be closed or cut meanwhile: the bytes are not used."""
    cold.reads.cold_bytes += cold.length
    with contextlib.suppress(OSError):
        await asyncio.to_thread(_read, cold)


def _read(cold: ColdRange) -> None:
    for start in range(0, cold.length, STEP_BYTES):
        cold.disk.read(cold.fd, min(STEP_BYTES, cold.length - start), cold.position + start)


def _base_offset(segment: Segment) -> int:
    return segment.base_offset
