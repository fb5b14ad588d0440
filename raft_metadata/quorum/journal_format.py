"""Byte format of the journal: a head, then records. Pure; `journal.py` and `offline.py` call it.

The head proves the content that the file was created with, which is synced before the file gets its
name. Each record carries the *durable end* known when it was written. A bad record below any end
proven later is therefore damage (refused), and one above it was torn by a power loss (left out):
rule Q5. Records start with a mark that is random per file, so that a payload cannot imitate a
record and the next record after lost pages can be found.

    head    magic 8s | mark 8s | proven end u64 | crc u32
    record  mark 8s | crc u32 | length u32 | index u64 | term u64 | durable end u64 | command

A record with index 0 is no entry: it only proves the end of the group before it, and is written
once the voter has been idle for a second.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from raft_metadata.common.errors import CorruptionError

MARK_BYTES = 8

_MAGIC = b"QLRAFTJ1"
_HEAD = struct.Struct("<8s8sQI")
_RECORD = struct.Struct("<8sIIQQQ")
_CHECKED = struct.Struct("<IQQQ")
_CRC_END = MARK_BYTES + 4
_PROOF_INDEX = 0

Entry = tuple[bytes, int, int]
"""(command, index, term): pysyncobj's own order."""


@dataclass(frozen=True, slots=True)
class _Record:
    entry: Entry
    durable_end: int
    end: int


@dataclass(frozen=True, slots=True)
class JournalScan:
    """Content of a journal file: the entries before byte `end`.

    Bytes before `proven` were once durable.
    """

    entries: list[Entry]
    end: int
    proven: int


def record_bytes(entry: Entry) -> int:
    """Return the length in bytes of an entry's record."""
    return _RECORD.size + len(entry[0])


def file_bytes(entries: Iterable[Entry]) -> int:
    """Return the length in bytes of a new file with these entries."""
    return _HEAD.size + sum(map(record_bytes, entries))


def encode_file(mark: bytes, entries: Iterable[Entry], length: int) -> Iterator[bytes]:
    """Yield the pieces of a new file of `length` bytes; its head proves all of them."""
    head = struct.pack("<8s8sQ", _MAGIC, mark, length)
    yield head + struct.pack("<I", zlib.crc32(head))
    yield b"".join([encode_record(mark, entry, 0) for entry in entries])


def encode_record(mark: bytes, entry: Entry, durable_end: int) -> bytes:
    """Return one record, which proves everything before byte `durable_end`."""
    command, index, term = entry
    body = _CHECKED.pack(len(command), index, term, durable_end) + command
    return mark + struct.pack("<I", zlib.crc32(body)) + body


def encode_proof(mark: bytes, durable_end: int) -> bytes:
    """Return a record without an entry, which only proves everything before byte `durable_end`."""
    return encode_record(mark, (b"", _PROOF_INDEX, 0), durable_end)


def parse_journal(data: bytes, path: Path) -> JournalScan:
    """Scan a whole file; raise CorruptionError if bytes that were proven durable are bad.

    Bytes after the result's ``end`` are torn. ``path`` is for the error text only.
    """
    head_ok = len(data) >= _HEAD.size and (
        zlib.crc32(data[: _HEAD.size - 4]) == _HEAD.unpack_from(data)[3]
    )
    if not head_ok or data[:8] != _MAGIC:
        msg = f"corrupt head file={path} offset=0"
        raise CorruptionError(msg)
    _, mark, proven, _ = _HEAD.unpack_from(data)
    scan = scan_records(data, mark, proven)
    if scan.end < scan.proven:
        msg = f"corrupt record file={path} offset={scan.end}: it was durable up to {scan.proven}"
        raise CorruptionError(msg)
    for before, after in pairwise(scan.entries):
        if after[1] != before[1] + 1:
            msg = f"index gap file={path} {before[1]} then {after[1]}"
            raise CorruptionError(msg)
    return scan


def scan_records(data: bytes, mark: bytes, proven: int) -> JournalScan:
    """Read records after the head, up to the first bad one.

    Good records after a bad one count only for the durable end that they prove: unsynced pages
    reach the disk in any order, so their presence alone proves nothing (rule Q5).
    """
    end, entries = _HEAD.size, []
    for record in _good_records(data, mark, end):
        end, proven = record.end, max(proven, record.durable_end)
        if record.entry[1] != _PROOF_INDEX:
            entries.append(record.entry)
    found = data.find(mark, end + 1)
    while found >= 0:
        later = _parse(data, mark, found)
        if later is not None:
            proven = max(proven, later.durable_end)
        found = data.find(mark, found + 1)
    return JournalScan(entries, end, proven)


def _parse(data: bytes, mark: bytes, offset: int) -> _Record | None:
    start = offset + _RECORD.size
    if start > len(data) or data[offset : offset + MARK_BYTES] != mark:
        return None
    _, crc, length, index, term, durable_end = _RECORD.unpack_from(data, offset)
    end = start + length
    if end > len(data) or zlib.crc32(memoryview(data)[offset + _CRC_END : end]) != crc:
        return None
    return _Record((data[start:end], index, term), durable_end, end)


def _good_records(data: bytes, mark: bytes, offset: int) -> Iterator[_Record]:
    while (record := _parse(data, mark, offset)) is not None:
        yield record
        offset = record.end
