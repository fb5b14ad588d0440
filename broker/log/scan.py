"""The scan of batches in a file: which are good, and whether what follows is torn or rotten.

`batches` walks from one batch to the next: recovery, inspection and, by `whole_batches`, swaps, the
cleaner, salvage and producer snapshots go by it. `header_places` skips the payloads.
`sound_batches` searches at every byte, in a file of which nothing else is known: such batches may
prove what was durable once, by which recovery, inspection and the `LogManager` tell a torn file
from a damaged one (rule Q5). Reads for clients and the rebuilding of an index do not scan:
`log_reader` goes by the index, and `Segment.headers` confirms each header by the next one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from broker.log.segment import SCAN_BYTES
from broker.record.batch import (
    HEADER_SIZE,
    MAGIC,
    BatchError,
    BatchHeader,
    is_stamped,
    parse_header,
    place_of,
    verify,
)
from raft_metadata.common.errors import CorruptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raft_metadata.common.disk import Disk


SEGMENT_NAME = re.compile(r"(\d{20})\.log")
"""Name of a segment in use: not of a file that is out of use, or not yet in use."""


WHOLE_BYTES = 262_144
"""Bytes per read of `whole_batches`, which run beside clients: see the cleaner's pace."""


class GoodBatch(NamedTuple):
    """A batch that is whole and whose crc is right; its stamp is not examined."""

    position: int
    header: BatchHeader
    chunk: bytes
    at: int
    """Position of the batch in ``chunk``."""

    @property
    def raw(self) -> bytes:
        """The whole batch, copied."""
        return self.chunk[self.at : self.at + self.header.size]


class TornBatch(NamedTuple):
    """The end of a file inside a header: what a crash leaves behind."""

    position: int
    why: str


class RottenBatch(NamedTuple):
    """Bytes that begin no valid batch, or only a part of one. The header's fields prove nothing."""

    position: int
    why: str
    header: BatchHeader


FoundInFile = GoodBatch | TornBatch | RottenBatch


def batches(
    disk: Disk, fd: int, size: int, position: int = 0, read_bytes: int = SCAN_BYTES
) -> Iterator[FoundInFile]:
    """Yield each batch of a file from a batch boundary on; the first one that is not good ends it.

    Raises OSError.
    """
    chunk, start = b"", position
    while position < size:
        at = position - start
        if at + HEADER_SIZE > len(chunk):
            chunk = disk.read(fd, min(read_bytes, size - position), position)
            start, at = position, 0
            if len(chunk) < HEADER_SIZE:
                yield TornBatch(position, "the file ends inside a batch")
                return
        header = parse_header(chunk, at)
        length = min(header.size, size - position)
        if header.magic == MAGIC and at + length > len(chunk):
            length = min(max(length, read_bytes), size - position)
            chunk, start, at = disk.read(fd, length, position), position, 0
        try:
            verify(chunk, at)
        except BatchError as error:
            yield RottenBatch(position, str(error), header)
            return
        yield GoodBatch(position, header, chunk, at)
        position += header.size


def whole_batches(
    disk: Disk, fd: int, size: int, path: str, position: int = 0
) -> Iterator[GoodBatch]:
    """Yield each batch of a closed segment's file, every crc and stamp checked.

    Raises:
        CorruptionError: names file and position. Unreadable bytes count as damaged, because a read
            error does not mean that writes fail.
    """
    try:
        for found in batches(disk, fd, size, position, WHOLE_BYTES):
            position = found.position
            if not isinstance(found, GoodBatch):
                msg = f"{found.why} file={path} position={position}"
                raise CorruptionError(msg)
            if not is_stamped(found.header):
                msg = f"bad durable end stamp file={path} position={position}"
                raise CorruptionError(msg)
            yield found
            position += found.header.size
    except OSError as error:
        msg = f"{error} file={path} position={position}"
        raise CorruptionError(msg) from error


def header_places(
    disk: Disk, fd: int, size: int, path: str, position: int, read_bytes: int
) -> Iterator[tuple[int, bytes, int]]:
    """Yield (position, chunk, position in the chunk) of each whole header; payloads are not read.

    Raises:
        CorruptionError: names file and position.
        OSError: the file can't be read.
    """
    chunk, start = b"", position
    while position < size:
        at = position - start
        if at + HEADER_SIZE > len(chunk):
            chunk = disk.read(fd, min(read_bytes, size - position), position)
            start, at = position, 0
        try:
            if len(chunk) - at < HEADER_SIZE:
                msg = "the file ends inside a batch"
                raise BatchError(msg)
            length, _, _ = place_of(chunk, at)
        except BatchError as error:
            msg = f"{error} file={path} position={position}"
            raise CorruptionError(msg) from None
        yield position, chunk, at
        position += length


def holds_proof(disk: Disk, directory: str) -> bool:
    """Return True if any batch in the directory proves that something in it was durable once."""
    for name in disk.names(directory):
        if SEGMENT_NAME.fullmatch(name):
            fd = disk.open(f"{directory}/{name}")
            try:
                for _, header in sound_batches(disk, fd, 0):
                    if header.durable_end > 0:
                        return True
            finally:
                disk.close(fd)
    return False


def sound_batches(disk: Disk, fd: int, position: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of every whole and stamped batch from here on, at whatever byte."""
    size = disk.size(fd)
    while position < size:
        chunk = disk.read(fd, SCAN_BYTES, position)
        at = chunk.find(MAGIC)
        if at < 0:
            if position + len(chunk) >= size:
                return
            position += len(chunk) - len(MAGIC) + 1
            continue
        position += at
        found = sound_batch(disk, fd, position, size)
        if found is None:
            position += 1
            continue
        header, _ = found
        yield position, header
        position += header.size


def sound_batch(
    disk: Disk, fd: int, position: int, file_size: int
) -> tuple[BatchHeader, bytes] | None:
    """Return the (header, whole batch) at a position, or None if no whole and stamped one is there.

    Raises OSError.
    """
    try:
        header = parse_header(disk.read(fd, HEADER_SIZE, position))
        if header.magic != MAGIC or position + header.size > file_size:
            return None
        raw = disk.read(fd, header.size, position)
        verify(raw)
    except BatchError:
        return None
    return (header, raw) if is_stamped(header) else None
