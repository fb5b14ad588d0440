"""The Raft log and the vote of one voter, durable before any message about them is sent.

`open_voter_disk` opens the `DurableJournal`; the library changes it through `JournalAdapter`, and
`RaftNode` adds entries and calls `flush`.

Entries are written and synced by the `Flusher`, a thread that waits for the disk so that the loop
does not (rule M7): a slow disk must delay acknowledgements, never heartbeats, because late
heartbeats cause elections. One hand-over is in flight at a time; entries added meanwhile wait for
the next one. `durable_index` is the last durable entry, and messages about later entries wait for
it (`transport.py`, `raft_node.py`). The vote changes rarely and is written on the loop.

Written bytes are never truncated in place: pages of the old tail, which prove a longer durable
end, could reappear after new records. A truncation below what was written creates a new file.

The file format comes first (a head, then records), as pure functions; `DurableJournal` follows.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from queue import SimpleQueue
from typing import Protocol

import msgspec

from raft_metadata.common.disk import Disk, read_checked, replace_file, write_checked
from raft_metadata.common.errors import CorruptionError, StorageError
from raft_metadata.common.faults import FaultHandler

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


def parse_journal(data: bytes, path: str) -> JournalScan:
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


Work = Callable[[], None]


class Flusher(Protocol):
    """A port that runs pieces of work one after another.

    Owned by the journal and called on its loop.
    """

    def start(self, work: Work, done: Work) -> None:
        """Run `work` elsewhere, then `done` on the loop. `work` handles its own errors."""
        ...

    def wait(self) -> None:
        """Block until every `work` started has ended; their `done` may still be pending."""
        ...

    def close(self) -> None:
        """Wait for started work and end the thread.

        A `done` may still follow and must be harmless.
        """
        ...


class InlineFlusher:
    """A flusher without a thread, for opening a journal and for tests."""

    def start(self, work: Work, done: Work) -> None:
        """Run `work`, then `done`, before returning."""
        work()
        done()

    def wait(self) -> None:
        """Return at once: no work is ever pending."""

    def close(self) -> None:
        """Return at once: there is no thread to end."""


class ThreadFlusher:
    """A daemon thread, started with the first piece of work; ends with `close` or the process."""

    def __init__(self, post: Callable[[Work], object]) -> None:
        self._post = post
        """Posts a callback to the loop: ``loop.call_soon_threadsafe``."""
        self._queue: SimpleQueue[tuple[Work, Work] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, work: Work, done: Work) -> None:
        """Queue `work` for the thread; `done` is posted to the loop after it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="raft-flusher", daemon=True)
            self._thread.start()
        self._queue.put((work, done))

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            work, done = job
            try:
                work()
            finally:
                # Posted even after an exception that `work` does not catch: the journal then sees
                # unfinished work and ends the process; a dead thread would hang it (rule Q6).
                self._post(done)

    def wait(self) -> None:
        """Block until the thread has finished all work queued so far."""
        if self._thread is not None:
            reached = threading.Event()
            self._queue.put((reached.set, _nothing))
            reached.wait()

    def close(self) -> None:
        """Finish the queued work, end the thread and join it."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join()


def _nothing() -> None:
    pass


JOURNAL_FILE = "journal"
VOTE_FILE = "vote.json"

_log = logging.getLogger("raft_metadata.quorum")


class Vote(msgspec.Struct, frozen=True):
    """The content of ``vote.json``: the last term, and the candidate this voter voted for in it."""

    term: int
    voted_for: str | None


class _Flush:
    """A hand-over to the flusher. `work` runs on the flusher's thread, the rest on the loop.

    Carries the truncation generation in which it began (rule Q3), the last index that it makes
    durable, and the length of the file at that time.
    """

    def __init__(
        self,
        write: Callable[[], int],
        generation: int,
        index: int,
        end: int,
        *,
        proves: bool,
    ) -> None:
        self._write = write
        self.generation = generation
        self.index = index
        self.end = end
        self.proves = proves
        """True if the file proves its own end afterwards (rule Q5)."""
        self.fd: int | None = None
        """The written file, once it is synced; None before, and after a failure."""
        self.error: Exception | None = None

    def work(self) -> None:
        try:
            self.fd = self._write()
        except Exception as error:  # noqa: BLE001 reported on the loop, which ends the process
            self.error = error


class DurableJournal:
    """Entries in memory and on disk. Owned by the loop, for the life of the node; not thread-safe.

    Opening raises CorruptionError (bytes proven durable are missing, or the vote is) or OSError.
    After that, any failure to write or sync ends the process through the fault handler, because the
    library has already changed its state in memory (rule Q2, lesson 6).

    Invariants: indexes are contiguous; an entry is durable only if `durable_index` covers it; at
    most one flush is in flight, and it proves nothing if a truncation has followed it (rule Q3).
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        faults: FaultHandler,
        *,
        flusher: Flusher | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._disk = disk
        self._path = f"{directory}/{JOURNAL_FILE}"
        self._vote_path = f"{directory}/{VOTE_FILE}"
        self._faults = faults
        self._flusher = flusher or InlineFlusher()
        self._random_bytes = random_bytes
        self.entries: list[Entry] = []
        self._mark = b""
        self._fd: int | None = None
        self._length = 0
        self._handed_over_count = 0
        """Number of leading `entries` that are written, or are in the flush in flight."""
        self._waiting_bytes = 0
        self._must_rewrite = False
        self._must_prove = False
        self._tail_proven = True
        self._added_since_timer = False
        self._durable_end = 0
        self._durable_index = 0
        self.generation = 0
        """Number of truncations so far; a statement made about the log in an older generation may
        no longer hold."""
        self._in_flight: _Flush | None = None
        self._cleared_entries: list[Entry] | None = None
        self.installed_snapshot_index: int | None = None
        """Index of a snapshot just installed, until its acknowledgement is sent. The
        acknowledgement may claim entries up to here, not the unchecked ones kept after it."""
        self.commit_index = 1
        self.sync_count = 0
        self.on_durable: Callable[[], None] = _nothing
        """Callback on the loop, called when `durable_index` may have grown."""
        self.vote = self._open()
        # An open journal is a synced one (rule Q1), but the bytes just read may exist in the page
        # cache only. fsync alone does not help, because after an EIO the cached pages look clean
        # (rule Q2). So everything is written again, into a new file, and the directory is synced.
        self._rewrite_now()

    def _open(self) -> Vote:
        data = self._disk.read_file(self._path)
        if data is not None:
            self._load(data)
        elif not self._disk.exists(self._vote_path):
            # The vote file is created first: a journal without one counts as a lost vote.
            self._write_vote(Vote(term=0, voted_for=None))
        body = read_checked(self._disk, self._vote_path)
        vote = None if body is None else msgspec.json.decode(body, type=Vote)
        if vote is None or (self.entries and self.entries[-1][2] > vote.term):
            msg = f"vote missing or older than the journal file={self._vote_path}"
            raise CorruptionError(msg)
        return vote

    def _load(self, data: bytes) -> None:
        scan = parse_journal(data, self._path)
        if scan.end < len(data):
            cut = len(data) - scan.end
            _log.warning(
                "torn tail truncated file=%s offset=%d bytes=%d", self._path, scan.end, cut
            )
        self.entries = scan.entries

    # -- reading

    @property
    def last(self) -> Entry:
        """The newest entry; one always exists once the node has started."""
        return self.entries[-1]

    @property
    def durable_index(self) -> int:
        """Index of the last entry that is on disk together with all before it."""
        return self._durable_index

    @property
    def is_durable(self) -> bool:
        """True if every entry is on disk."""
        return not self.entries or self._durable_index == self.entries[-1][1]

    @property
    def size_bytes(self) -> int:
        """Length of the file plus the bytes that wait to be written."""
        return self._length + self._waiting_bytes

    def at(self, index: int) -> Entry | None:
        """Return the entry at a Raft index; None if it is compacted away or beyond the end."""
        position = index - self.entries[0][1] if self.entries else -1
        return self.entries[position] if 0 <= position < len(self.entries) else None

    # -- changing: an entry is durable only once `durable_index` covers it

    def add(self, command: bytes, index: int, term: int) -> None:
        """Append one entry."""
        if self.entries and index != self.entries[-1][1] + 1:
            self._faults.fatal(f"journal append out of order {self.entries[-1][1]} then {index}")
        entry = (command, index, term)
        self.entries.append(entry)
        self._waiting_bytes += record_bytes(entry)
        self._added_since_timer = True
        if self._cleared_entries is not None and len(self.entries) == 2:
            self._keep_suffix(self._cleared_entries)

    def _keep_suffix(self, old: list[Entry]) -> None:
        """Keep old entries that continue an installed snapshot.

        The library clears the journal and adds the snapshot's two entries. Raft requires that
        entries which agree with the snapshot are kept.
        """
        self._cleared_entries = None
        command, index, term = self.entries[-1]
        position = index - old[0][1] if old else -1
        if 0 <= position < len(old) and old[position] == (command, index, term):
            self.entries.extend(old[position + 1 :])
        self.installed_snapshot_index = index

    def clear(self) -> None:
        """Remove all entries; the two head entries of a snapshot are added next."""
        self._cleared_entries = self.entries
        self.entries = []
        self._replaced_from(0)
        self._must_rewrite = True

    def delete_from(self, position: int) -> None:
        """Truncate a conflicting tail.

        A committed entry in it means Raft is broken, which is fatal.
        """
        if position >= len(self.entries):
            return
        index = self.entries[position][1]
        if index <= self.commit_index:
            self._faults.fatal(f"truncating committed entry {index}, commit {self.commit_index}")
        del self.entries[position:]
        self._replaced_from(index)
        if position < self._handed_over_count:
            self._must_rewrite = True

    def _replaced_from(self, index: int) -> None:
        # A flush in flight began before this truncation and proves nothing any more (rule Q3).
        self.generation += 1
        self._durable_index = min(self._durable_index, max(0, index - 1))
        self._waiting_bytes = sum(map(record_bytes, self.entries[self._handed_over_count :]))

    def delete_to(self, position: int) -> None:
        """Remove a prefix that a durable snapshot holds."""
        if position > 0:
            del self.entries[:position]
            self._must_rewrite = True

    def align(self, previous: Entry, last: Entry) -> None:
        """Fit the journal to a snapshot that ends with these two entries; at start only.

        pysyncobj clears a journal that does not begin with them, and with it every entry
        acknowledged after the snapshot (defect 4). Raises CorruptionError if entries between
        snapshot and journal are missing.
        """
        if self.at(previous[1]) == previous and self.at(last[1]) == last:
            self.delete_to(previous[1] - self.entries[0][1])
            if self._must_rewrite:
                self._rewrite_now()
        elif self.entries and self.entries[0][1] > previous[1]:
            msg = f"starts at {self.entries[0][1]}, after the snapshot's {last[1]}: {self._path}"
            raise CorruptionError(msg)
        self.commit_index = last[1]

    # -- durability

    def flush(self) -> None:
        """Begin to make all entries durable; `on_durable` reports progress.

        Does nothing while a flush is in flight: entries added since then belong to the next one,
        which begins by itself.
        """
        if self._in_flight is not None or not self._is_dirty:
            return
        flush = self._in_flight = self._next_flush()
        self._flusher.start(flush.work, lambda: self._on_flushed(flush))

    @property
    def _is_dirty(self) -> bool:
        return self._must_rewrite or self._must_prove or self._handed_over_count < len(self.entries)

    def _next_flush(self) -> _Flush:
        index = self.entries[-1][1] if self.entries else 0
        proves = self._must_rewrite or self._handed_over_count == len(self.entries)
        write = self._new_file() if self._must_rewrite else self._group()
        self._handed_over_count, self._waiting_bytes = len(self.entries), 0
        self._must_rewrite = self._must_prove = False
        return _Flush(write, self.generation, index, self._length, proves=proves)

    def _group(self) -> Callable[[], int]:
        disk, fd, offset = self._disk, self._fd, self._length
        if fd is None:
            msg = f"closed file={self._path}"
            raise StorageError(msg)
        mark, durable_end = self._mark, self._durable_end
        new = self.entries[self._handed_over_count :]
        data = b"".join([encode_record(mark, entry, durable_end) for entry in new])
        data = data or encode_proof(mark, durable_end)
        self._length += len(data)

        def write() -> int:
            disk.write(fd, data, offset)
            disk.sync_data(fd)
            return fd

        return write

    def _new_file(self) -> Callable[[], int]:
        disk, path, entries = self._disk, self._path, list(self.entries)
        mark = self._mark = self._random_bytes(MARK_BYTES)
        length = self._length = file_bytes(entries)

        def write() -> int:
            replace_file(disk, path, encode_file(mark, entries, length))
            return disk.open(path)

        return write

    def _on_flushed(self, flush: _Flush) -> None:
        if flush is not self._in_flight:
            return  # `sync` has handled it already, or the journal is closed
        self._in_flight = None
        if flush.fd is None:
            # rule Q2: a failed write is never retried, and none of it is trusted.
            self._faults.fatal(f"journal write failed file={self._path}", flush.error)
        self._apply_flush(flush, flush.fd)
        self.on_durable()
        self.flush()

    def _apply_flush(self, flush: _Flush, fd: int) -> None:
        if self._fd is not None and self._fd != fd:
            self._disk.close(self._fd)
        self._fd = fd
        self.sync_count += 1
        if flush.generation != self.generation:
            # Some written entries were replaced meanwhile; a new file must be written (rule Q3).
            self._must_rewrite = True
            return
        self._durable_end, self._durable_index = flush.end, flush.index
        self._tail_proven = flush.proves

    def sync(self) -> None:
        """Block until everything is durable, or the process has ended. Not for a running voter."""
        self.flush()
        while (flush := self._in_flight) is not None:
            self._flusher.wait()
            self._on_flushed(flush)

    def _rewrite_now(self) -> None:
        """Write all entries into a new file at start; errors are raised to the opener."""
        self._must_rewrite = True
        flush = self._next_flush()
        flush.work()
        if flush.fd is None:
            assert flush.error is not None, "it was run"
            raise flush.error
        self._apply_flush(flush, flush.fd)

    def prove_tail(self) -> None:
        """Prove the last group of records after an idle second; called every second.

        Damage there can then be distinguished from a torn write (lesson 10).
        """
        idle = not self._added_since_timer
        self._added_since_timer = False
        if idle and not self._tail_proven and self._in_flight is None:
            self._must_prove = True
            self.flush()

    # -- commit index and vote

    def set_commit_index(self, index: int) -> None:
        """Record the index up to which nothing may be truncated.

        Not stored: learnt again after a start.
        """
        self.commit_index = max(self.commit_index, index)

    def set_vote(self, term: int, voted_for: str | None) -> None:
        """Store a vote durably before the message about it is sent; on the loop, once per term."""
        vote = Vote(term=term, voted_for=voted_for)
        if vote == self.vote:
            return
        try:
            self._write_vote(vote)
        except Exception as error:  # noqa: BLE001 the library already believes the new term
            self._faults.fatal(f"vote write failed file={self._vote_path}", error)
        self.vote = vote

    def _write_vote(self, vote: Vote) -> None:
        write_checked(self._disk, self._vote_path, msgspec.json.encode(vote))

    def close(self) -> None:
        """Close the file after the flusher's last write; begins no other write."""
        self._flusher.close()
        flush, self._in_flight = self._in_flight, None
        for fd in {self._fd, None if flush is None else flush.fd}:
            if fd is not None:
                self._disk.close(fd)
        self._fd = None
