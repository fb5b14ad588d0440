"""What the bytes of a simulated log say: entries by offset, with holes where compaction was."""

from __future__ import annotations

from typing import Any

from broker.record.batch import HEADER_SIZE, BatchError, BatchHeader, verify, walk
from broker.record.compression import lines_of
from broker.record.render import offset_of_line
from raft_metadata.common.ids import PartitionId, TopicId
from tests.support.replication_invariants import Entry, Violation

TOPIC = TopicId("A" * 22)
ZERO = PartitionId(0)
NAME = "t"
ROOT = "/data/log"
DIRECTORY = f"{ROOT}/{NAME}-0"
SWAP = ".log.swap"
_TIMESTAMP = b'"timestamp":'
_DECODED: dict[tuple[int, bytes, int, int], list[Entry | None]] = {}


def flip(inode: Any, position: int) -> None:
    """A bit of a file is another one, on the platters and in the cache."""
    for content in (inode.cache, inode.durable):
        if position < len(content):
            content[position] ^= 1


def entries_of(header: BatchHeader, raw: bytes) -> list[Entry | None]:
    """The entries of one batch, None where it holds the place of a record that is gone.

    The same bytes are read many times.
    """
    lines, delta = _lines_of(header, raw[HEADER_SIZE:]), header.last_offset_delta
    whole = header.count == delta + 1
    span = (0, 0) if whole else (header.base_offset, delta)
    key = (header.leader_epoch, lines, *span)
    found = _DECODED.get(key)
    if found is None:
        if len(_DECODED) > 5_000:
            _DECODED.clear()
        entries = [(header.leader_epoch, value_of(line)) for line in lines.split(b"\n")[:-1]]
        found = list(entries)
        if not whole:
            found = [None] * (delta + 1)
            at = 0
            for entry in entries:
                found[offset_of_line(lines, at) - header.base_offset] = entry
                at = lines.index(b"\n", at) + 1
        _DECODED[key] = found
    return found


def _lines_of(header: BatchHeader, stored: bytes) -> bytes:
    """What a reader was handed of a damaged frame is no record of anybody's."""
    try:
        return bytes(lines_of(header, stored))
    except BatchError:
        return b"{}\n" * header.count


def value_of(line: bytes) -> int:
    """The number of a stored record; -1 where a reader was handed damaged bytes.

    It is the record's value. A tombstone has it as its time, as all records of compacted topics do.
    """
    number = line[line.rfind(b":") + 1 : -1]
    if number == b"null":
        start = line.find(_TIMESTAMP) + len(_TIMESTAMP)
        number = line[start : line.find(b",", start)]
    return int(number) if number.isdigit() else -1


def batches_of(raw: bytes) -> list[tuple[BatchHeader, list[Entry | None]]]:
    """Whole batches with their entries, as a reader got them: each with its checksum."""
    found = []
    for at, header in walk(raw):
        try:
            verify(raw, at)
        except BatchError as error:
            raise Violation("L22", f"a reader was given a damaged batch: {error}") from error
        found.append((header, entries_of(header, raw[at : at + header.size])))
    return found


def place(log: list[Entry | None], header: BatchHeader, entries: list[Entry | None]) -> None:
    """Put a batch's entries where they stand; of a first one what lies behind the log start."""
    log.extend(entries[len(log) - header.base_offset :])
