"""Valid batches in files of which nothing else is known: they may prove what was durable once.

Recovery and the `LogManager` use them to tell a torn file from a damaged one (rule Q5).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from broker.log.segment import SCAN_BYTES
from broker.record.batch import (
    HEADER_SIZE,
    MAGIC,
    BatchError,
    BatchHeader,
    is_stamped,
    parse_header,
    verify,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raft_metadata.common.disk import Disk


SEGMENT_NAME = re.compile(r"(\d{20})\.log")
"""Name of a segment in use: not of a file that is out of use, or not yet in use."""


def holds_proof(disk: Disk, directory: str) -> bool:
    """Return True if any batch in the directory proves that something in it was durable once."""
    for name in disk.names(directory):
        if SEGMENT_NAME.fullmatch(name):
            fd = disk.open(f"{directory}/{name}")
            try:
                for header in sound_batches(disk, fd, 0):
                    if header.durable_end > 0:
                        return True
            finally:
                disk.close(fd)
    return False


def sound_batches(disk: Disk, fd: int, position: int) -> Iterator[BatchHeader]:
    """Yield every whole and stamped batch from this position on, at whatever byte it starts."""
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
        header = _sound_batch(disk, fd, position, size)
        if header is None:
            position += 1
            continue
        yield header
        position += header.size


def _sound_batch(disk: Disk, fd: int, position: int, file_size: int) -> BatchHeader | None:
    head = disk.read(fd, HEADER_SIZE, position)
    try:
        header = parse_header(head)
        if position + header.size > file_size:
            return None
        verify(disk.read(fd, header.size, position))
    except BatchError:
        return None
    return header if is_stamped(header) else None
