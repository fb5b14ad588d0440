"""The Raft log and the vote of one voter, durable before anything is said about them.

File ``journal``: a head, then records. The head proves the content the file was born with (synced
before it had its name). Each record carries the *durable end* known when it was written, so that
a bad record below any end proven later is corruption (refused), and one above it was torn by a
power cut (cut off): rule Q5. Records start with a mark that is random per file, so that a payload
can't imitate a record, and the next one behind lost pages can be found.

    head    magic 8s | mark 8s | proven end u64 | crc u32
    record  mark 8s | crc u32 | length u32 | index u64 | term u64 | durable end u64 | command

A record with index 0 is no entry: it only proves the end of the group before it, once the voter
has been idle for a second.

Written bytes are never truncated in place: pages of the old tail, which prove a longer durable
end, could come back behind new records. A truncation below what was written is a new file.
"""

from __future__ import annotations

import logging
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from raft_metadata.common.errors import CorruptionError, StorageError
from raft_metadata.common.faults import FaultHandler
from raft_metadata.quorum.files import (
    FileHandle,
    Files,
    read_checked,
    replace_file,
    write_checked,
)

JOURNAL_FILE = "journal"
VOTE_FILE = "vote.json"
MARK_BYTES = 8

_MAGIC = b"QLRAFTJ1"
_HEAD = struct.Struct("<8s8sQI")
_RECORD = struct.Struct("<8sIIQQQ")
_CHECKED = struct.Struct("<IQQQ")
_CRC_END = MARK_BYTES + 4
_PROOF_INDEX = 0

Entry = tuple[bytes, int, int]
"""(command, index, term): pysyncobj's own order."""

_log = logging.getLogger("raft_metadata.quorum")


class Vote(msgspec.Struct, frozen=True):
    """The content of ``vote.json``: whom this voter promised its vote in which term."""

    term: int
    voted_for: str | None


@dataclass(frozen=True, slots=True)
class _Record:
    entry: Entry
    durable_end: int
    end: int


@dataclass(frozen=True, slots=True)
class JournalScan:
    """What a journal's bytes hold, up to ``end``; they were durable up to ``proven``."""

    entries: list[Entry]
    end: int
    proven: int


class DurableJournal:
    """Entries in memory and on disk. Owned by the loop, for the life of the node; not thread-safe.

    Opening raises CorruptionError (bytes proven durable are gone, a vote is missing) or OSError.
    After that, any failure to write or sync ends the process through the fault handler: the
    library has already changed its mind in memory (rule Q2, lesson 6).

    Invariants: indexes are contiguous; nothing is durable unless `durable_index` covers it.
    """

    def __init__(
        self,
        files: Files,
        directory: Path,
        faults: FaultHandler,
        *,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._files = files
        self._path = directory / JOURNAL_FILE
        self._vote_path = directory / VOTE_FILE
        self._faults = faults
        self._random_bytes = random_bytes
        self.entries: list[Entry] = []
        self._starts: list[int] = []
        self._buffer = bytearray()
        self._mark = b""
        self._handle: FileHandle | None = None
        self._length = 0
        self._durable_end = 0
        self._tail_proven = True
        self._added_since_timer = False
        self._must_rewrite = False
        self._dirty = False
        self._before_clear: list[Entry] | None = None
        self.installed: int | None = None
        """Index of a snapshot just installed, until its acknowledgement has been sent: the
        acknowledgement may only claim this much, not the entries kept behind it."""
        self.commit_index = 1
        self.sync_count = 0
        self._durable_index = 0
        self.vote = self._open()
        # rule Q1, open means synced: what was read may be in the page cache only. fsync alone
        # does not do, because after an EIO the cached pages look clean (rule Q2): everything is
        # written again, into a new file, and with it the directory is synced.
        self._write_file()

    def _open(self) -> Vote:
        if not self._files.exists(self._path):
            # The vote file first: a journal without one is a lost vote.
            if not self._files.exists(self._vote_path):
                self._write_vote(Vote(term=0, voted_for=None))
        else:
            self._load()
        body = read_checked(self._files, self._vote_path)
        vote = None if body is None else msgspec.json.decode(body, type=Vote)
        if vote is None or (self.entries and self.entries[-1][2] > vote.term):
            msg = f"vote missing or older than the journal file={self._vote_path}"
            raise CorruptionError(msg)
        return vote

    def _load(self) -> None:
        data = self._files.read(self._path)
        scan = parse_journal(data, self._path)
        if scan.end < len(data):
            cut = len(data) - scan.end
            _log.warning("torn tail cut file=%s offset=%d bytes=%d", self._path, scan.end, cut)
        self.entries = scan.entries

    # -- reading

    @property
    def last(self) -> Entry:
        """The newest entry; there always is one once the node has started."""
        return self.entries[-1]

    @property
    def durable_index(self) -> int:
        """Up to here every entry is on disk."""
        return self._durable_index

    @property
    def size_bytes(self) -> int:
        """Length of the file and of what waits to be written."""
        return self._length + len(self._buffer)

    def at(self, index: int) -> Entry | None:
        """The entry of a Raft index, None where it is compacted away or beyond the end."""
        position = index - self.entries[0][1] if self.entries else -1
        return self.entries[position] if 0 <= position < len(self.entries) else None

    # -- changing: nothing of it is durable before sync()

    def add(self, command: bytes, index: int, term: int) -> None:
        """Append one entry."""
        if self.entries and index != self.entries[-1][1] + 1:
            self._faults.fatal(f"journal append out of order {self.entries[-1][1]} then {index}")
        self._starts.append(self.size_bytes)
        self._buffer += _record(self._mark, (command, index, term), self._durable_end)
        self.entries.append((command, index, term))
        self._dirty = self._added_since_timer = True
        self._tail_proven = False
        if self._before_clear is not None and len(self.entries) == 2:
            self._keep_suffix(self._before_clear)

    def _keep_suffix(self, old: list[Entry]) -> None:
        """A snapshot was installed: clear, add its two entries. Raft keeps what agrees with it."""
        self._before_clear = None
        command, index, term = self.entries[-1]
        position = index - old[0][1] if old else -1
        if 0 <= position < len(old) and old[position] == (command, index, term):
            self.entries.extend(old[position + 1 :])
        self.installed = index

    def clear(self) -> None:
        """Forget all; the two head entries of a snapshot are added next."""
        self._before_clear = self.entries
        self.entries, self._starts = [], []
        self._durable_index = 0
        self._buffer.clear()
        self._must_rewrite = self._dirty = True

    def delete_from(self, position: int) -> None:
        """Drop a conflicting tail. A committed entry in it means Raft itself is broken."""
        if position >= len(self.entries):
            return
        index = self.entries[position][1]
        if index <= self.commit_index:
            self._faults.fatal(f"truncating committed entry {index}, commit {self.commit_index}")
        del self.entries[position:]
        self._durable_index = min(self._durable_index, index - 1)
        self._dirty = True
        if self._must_rewrite:
            return
        start = self._starts[position]
        del self._starts[position:]
        if start >= self._length:
            del self._buffer[start - self._length :]
        else:
            self._must_rewrite = True

    def delete_to(self, position: int) -> None:
        """Drop a prefix that a durable snapshot holds."""
        if position > 0:
            del self.entries[:position], self._starts[:position]
            self._must_rewrite = self._dirty = True

    def align(self, previous: Entry, last: Entry) -> None:
        """Fit the journal to a snapshot that ends with these two entries; at start only.

        pysyncobj clears a journal that does not start with them, and with it all that was
        acknowledged after the snapshot (defect 4).
        """
        if self.at(previous[1]) == previous and self.at(last[1]) == last:
            self.delete_to(previous[1] - self.entries[0][1])
            if self._dirty:
                self._write_file()
        elif self.entries and self.entries[0][1] > previous[1]:
            msg = f"starts at {self.entries[0][1]}, after the snapshot's {last[1]}: {self._path}"
            raise CorruptionError(msg)
        self.commit_index = last[1]

    # -- durability

    def sync(self) -> None:
        """Afterwards every entry is on disk, or the process has ended."""
        if not self._dirty:
            return
        try:
            if self._must_rewrite:
                self._write_file()
            else:
                self._append()
        except Exception as error:  # noqa: BLE001 whatever it is, the process ends
            self._faults.fatal(f"journal write failed file={self._path}", error)

    def _write_file(self) -> None:
        self._mark = self._random_bytes(MARK_BYTES)
        # 0: the head proves all of them.
        records = [_record(self._mark, entry, 0) for entry in self.entries]
        self._starts, end = [], _HEAD.size
        for record in records:
            self._starts.append(end)
            end += len(record)
        head = struct.pack("<8s8sQ", _MAGIC, self._mark, end)
        head += struct.pack("<I", zlib.crc32(head))
        replace_file(self._files, self._path, [head, b"".join(records)])
        if self._handle is not None:
            self._handle.close()
        self._handle = self._files.open(self._path)
        self._length = self._durable_end = end
        self._written(tail_proven=True)
        self._must_rewrite = False

    def _append(self) -> None:
        if self._handle is None:
            msg = f"closed file={self._path}"
            raise StorageError(msg)
        if self._buffer:
            self._handle.pwrite(bytes(self._buffer), self._length)
            self._length += len(self._buffer)
        self._handle.sync()
        self._durable_end = self._length
        self._written(tail_proven=self._tail_proven)

    def _written(self, *, tail_proven: bool) -> None:
        self._buffer.clear()
        self._dirty = False
        self._durable_index = self.entries[-1][1] if self.entries else 0
        self._tail_proven = tail_proven
        self.sync_count += 1

    def prove_tail(self) -> None:
        """Called every second: after an idle one, prove the last group.

        Rot there is then told from a torn write (lesson 10).
        """
        idle = not self._added_since_timer
        self._added_since_timer = False
        if not idle or self._dirty or self._tail_proven:
            return
        self._buffer += _record(self._mark, (b"", _PROOF_INDEX, 0), self._durable_end)
        self._dirty = self._tail_proven = True
        self.sync()

    # -- what Raft promises beside its entries

    def set_commit_index(self, index: int) -> None:
        """The leader counts its own copy only once it is on disk. Not stored: re-learnt."""
        if index > self.commit_index:
            self.sync()
            self.commit_index = index

    def set_vote(self, term: int, voted_for: str | None) -> None:
        """Durable before the message that tells it."""
        vote = Vote(term=term, voted_for=voted_for)
        if vote == self.vote:
            return
        try:
            self._write_vote(vote)
        except Exception as error:  # noqa: BLE001 the library already believes the new term
            self._faults.fatal(f"vote write failed file={self._vote_path}", error)
        self.vote = vote

    def _write_vote(self, vote: Vote) -> None:
        write_checked(self._files, self._vote_path, msgspec.json.encode(vote))

    def close(self) -> None:
        """Give the file up without another write."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None


def _record(mark: bytes, entry: Entry, durable_end: int) -> bytes:
    command, index, term = entry
    body = _CHECKED.pack(len(command), index, term, durable_end) + command
    return mark + struct.pack("<I", zlib.crc32(body)) + body


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


def parse_journal(data: bytes, path: Path) -> JournalScan:
    """The whole file: torn behind ``end``, or CorruptionError where that was proven durable.

    ``path`` is for the error only.
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
    for before, after in zip(scan.entries, scan.entries[1:], strict=False):
        if after[1] != before[1] + 1:
            msg = f"index gap file={path} {before[1]} then {after[1]}"
            raise CorruptionError(msg)
    return scan


def scan_records(data: bytes, mark: bytes, proven: int) -> JournalScan:
    """Read records from behind the head up to the first bad one.

    The good records behind it are used for one thing: what they prove about the durable end
    (rule Q5: unsynced pages reach the disk in any order, so their presence alone proves nothing).
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
