"""The log cleaner: selects the logs to compact, and runs `broker.log.compaction` on them.

`LogCleaner.run` is a task of the broker. It cleans one log at a time, the dirtiest first. A
`Cleaning` runs a `KeyScan` and then one `Rewrite` per group of segments on the cleaner's thread,
with descriptors of its own, at a bounded rate. Only closed files are read there, and no written
file is part of a log before the event loop has taken it (`broker.log.swap`). Changes of a log (the
swap of segments, how far it is clean) are made on the event loop, and only if the log is unchanged:
a truncation, a log start that moved past it, or a deletion meanwhile makes the result void.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from broker.log.compaction import (
    PIECE_BYTES,
    CleaningPlan,
    CleanState,
    CompactionConfig,
    KeyMap,
    RecordRetention,
    Rewriter,
    SeenProducers,
    SegmentFacts,
    closed_below,
    fits_behind,
    keyed_records,
    pieces,
    plan,
)
from broker.log.scan import header_places, whole_batches
from broker.log.segment import CLOSED, Segment
from broker.log.swap import CLEANED_SUFFIX, StateChange, Swap
from broker.record.batch import HEADER_SIZE, BatchError, parse_header
from broker.record.compression import lines_of
from raft_metadata.common.disk import TRANSIENT_ERRNOS
from raft_metadata.common.errors import CorruptionError

if TYPE_CHECKING:
    from broker.log.partition_log import PartitionLog
    from broker.log.segments import LogSegments
    from broker.record.batch import BatchHeader
    from raft_metadata.common.clock import Clock
    from raft_metadata.common.disk import Disk


HEADERS_BYTES = 16_384
"""Bytes per read where only headers are needed."""
WRITE_BYTES = 262_144
SYNC_BYTES = 4_194_304
"""Bytes written between two syncs: one long sync at the end would delay the flusher's syncs."""

Pace = Callable[[int], None]
"""Called after so many bytes of work; waits to keep the rate, or raises `CleaningStopped`."""


class CleaningStopped(Exception):  # noqa: N818 nothing went wrong
    """The end of a pass without an error: the broker ends, or the log has changed.

    Its work is void.
    """


class ClosedFile(NamedTuple):
    """The fields of a closed segment that another thread may use."""

    path: str
    base_offset: int
    next_offset: int
    size: int


class KeyScan:
    """The newest offset of each key in the dirty part of a log, and the producers in all of it.

    Runs off the event loop. ``end`` is the offset it reached: where the map was full, or the part
    that may be cleaned ends.
    """

    def __init__(
        self,
        disk: Disk,
        files: list[ClosedFile],
        planned: CleaningPlan,
        memory_bytes: int,
        pace: Pace,
    ) -> None:
        self._disk = disk
        self._files = files
        self._planned = planned
        self._pace = pace
        self.keys = KeyMap(memory_bytes)
        self.producers = SeenProducers()
        self.end = planned.start
        self.bytes_read = 0

    def run(self) -> None:
        """Read all files up to ``end``.

        Raises:
            CorruptionError: a batch is damaged; names file and position.
            OSError: a file can't be read.
            CleaningStopped: from ``pace``.
        """
        start, end = self._planned.start, self._planned.end
        for file in self._files:
            if self.keys.is_full or file.base_offset >= end:
                return
            with _opened(self._disk, file.path + ".log") as fd:
                if file.next_offset <= start:
                    self._see_headers(file, fd)
                    self._pace(0)
                else:
                    self._read(file, fd, start)

    def _see_headers(self, file: ClosedFile, fd: int) -> None:
        path = file.path + ".log"
        try:
            for _, chunk, at in header_places(self._disk, fd, file.size, path, 0, HEADERS_BYTES):
                self.producers.see(parse_header(chunk, at))
        except OSError as error:  # unreadable bytes count as damaged, as in `whole_batches`
            msg = f"{error} file={path}"
            raise CorruptionError(msg) from error

    def _read(self, file: ClosedFile, fd: int, start: int) -> None:
        for found in whole_batches(self._disk, fd, file.size, file.path + ".log"):
            header = found.header
            if self.keys.is_full:
                return
            self.producers.see(header)
            if header.next_offset > start:
                with _unpacking(header, file):
                    lines = bytes(lines_of(header, found.raw[HEADER_SIZE:]))
                for piece in pieces(lines):
                    self.keys.add(keyed_records(piece, header.key_format))
                    self._pace(len(piece))
            if header.next_offset > start:
                self.end = header.next_offset
            self.bytes_read += header.size


class Rewrite:
    """The rewrite of neighbouring segments into one file, synced under its first name.

    Runs off the event loop. It takes as many of ``files`` as fit into one segment (``taken``).
    ``new`` is None if nothing would change. The file is written from the first change on only;
    batches before it are copied as they are.
    """

    def __init__(
        self,
        disk: Disk,
        files: list[ClosedFile],
        rewriter: Rewriter,
        segment_bytes: int,
        pace: Pace,
    ) -> None:
        self._disk = disk
        self._files = files
        self._rewriter = rewriter
        self._segment_bytes = segment_bytes
        self._pace = pace
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._unsynced = 0
        self._size = 0
        """Bytes in the new file; while there is none, unchanged bytes to be copied to it."""
        directory = files[0].path.rpartition("/")[0]
        self._new = Segment(directory, files[0].base_offset)
        self.path = files[0].path + CLEANED_SUFFIX
        self.new: Segment | None = None
        self.fd = CLOSED
        self.index = b""
        self.taken = 0
        self.bytes_read = 0
        self.bytes_written = 0
        self.records_dropped = 0

    def run(self) -> None:
        """Read the files and write the new one.

        Raises:
            CorruptionError: a batch is damaged; names file and position.
            OSError: the disk failed, or is full.
            CleaningStopped: from ``pace``. The new file is removed.
        """
        try:
            self._run()
        except BaseException:
            self.discard()
            raise

    def _run(self) -> None:
        for file in self._files:
            if not self._fits(file):
                break
            with _opened(self._disk, file.path + ".log") as fd:
                for found in whole_batches(self._disk, fd, file.size, file.path + ".log"):
                    with _unpacking(found.header, file):
                        self._put(found.header, found.raw, fd)
                self.taken += 1
                if self.fd == CLOSED and self._has_more_room():
                    self._begin_file(fd)
        self._take(self._rewriter.end())
        if self.fd == CLOSED:
            return
        self._write_out()
        self._disk.sync_file(self.fd)
        self._new.next_offset = self._files[self.taken - 1].next_offset
        self.index = self._new.index_bytes(self._disk, self.fd)
        self.new = self._new

    def _fits(self, file: ClosedFile) -> bool:
        return not self.taken or fits_behind(
            self._new.size, self._new.base_offset, file.size, file.next_offset, self._segment_bytes
        )

    def _has_more_room(self) -> bool:
        return self.taken < len(self._files) and self._fits(self._files[self.taken])

    def _put(self, header: BatchHeader, raw: bytes, fd: int) -> None:
        self.bytes_read += len(raw)
        self.records_dropped += header.count
        written = self._rewriter.put(header, raw, self._pace)
        if self._rewriter.changed and self.fd == CLOSED:
            self._begin_file(fd)
        self._take(written)
        self._pace(len(raw))

    def _begin_file(self, fd: int) -> None:
        """Create the new file at the first change, and copy the unchanged batches before it."""
        self.fd = self._disk.open(self.path, create=True)
        self._disk.truncate(self.fd, 0)
        at = 0
        while at < self._size:
            piece = self._disk.read(fd, min(WRITE_BYTES, self._size - at), at)
            self._disk.write(self.fd, piece, at)
            at += len(piece)
            self.bytes_written += len(piece)
            self._note_written(len(piece))

    def _take(self, raw: bytes) -> None:
        if not raw:
            return
        header = parse_header(raw)
        self._new.note_header(header)
        self.records_dropped -= header.count
        if self.fd == CLOSED:
            self._size += len(raw)
            return
        self._pending.append(raw)
        self._pending_bytes += len(raw)
        if self._pending_bytes >= WRITE_BYTES:
            self._write_out()

    def _write_out(self) -> None:
        data = b"".join(self._pending)
        self._disk.write(self.fd, data, self._size)
        self._size += len(data)
        self.bytes_written += len(data)
        self._pending.clear()
        self._pending_bytes = 0
        self._note_written(len(data))

    def _note_written(self, size: int) -> None:
        self._unsynced += size
        if self._unsynced >= SYNC_BYTES:
            self._disk.sync_data(self.fd)
            self._unsynced = 0
        self._pace(size)

    def discard(self) -> None:
        """Close and remove the new file, unless the log has taken it."""
        fd, self.fd = self.fd, CLOSED
        if fd != CLOSED:
            with contextlib.suppress(OSError):
                self._disk.close(fd)
                self._disk.unlink(self.path)


@contextlib.contextmanager
def _unpacking(header: BatchHeader, file: ClosedFile) -> Iterator[None]:
    """Report a frame that can't be unpacked as damage, like a wrong crc."""
    try:
        yield
    except BatchError as error:
        msg = f"{error} file={file.path}.log offset={header.base_offset}"
        raise CorruptionError(msg) from None


@contextlib.contextmanager
def _opened(disk: Disk, path: str) -> Iterator[int]:
    fd = disk.open(path)
    try:
        yield fd
    finally:
        disk.close(fd)


PASS_BYTES_MAX = 1 << 30
"""Dirty bytes of one log that one pass cleans, in whole segments, before the next log."""
LOGS_PER_STEP = 200
"""Logs examined between two turns of the event loop: about 1 ms."""
BURST_MS = 50
"""Time in ms that the cleaner may work at full speed before it waits to keep its rate."""
_log = logging.getLogger("broker.log")


class ReplicaFacts(NamedTuple):
    """The state of a log's replication at one moment."""

    high_watermark: int
    replicated_to: int
    """Every assigned replica holds everything below this offset, as the leader knows (rule R7)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerLimits:
    """Limits of the cleaner: Kafka's ``log.cleaner.*``."""

    dedupe_buffer_bytes: int = 67_108_864
    """Memory for the keys of one pass; the rest waits for the next pass."""
    io_max_bytes_per_second: int = 33_554_432
    """Bytes per second, read and written together."""
    backoff_ms: int = 15_000
    """Time between two searches for dirty logs."""


@dataclass(slots=True)
class CleaningStats:
    """Totals of one cleaning, or of all."""

    cleanings: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    records_dropped: int = 0
    segments_replaced: int = 0

    def add(self, other: CleaningStats) -> None:
        self.cleanings += other.cleanings
        self.bytes_read += other.bytes_read
        self.bytes_written += other.bytes_written
        self.records_dropped += other.records_dropped
        self.segments_replaced += other.segments_replaced


def segment_facts(log: PartitionLog) -> list[SegmentFacts]:
    """Return the log's segments as a plan needs them; empty for a log without files."""
    stored = log.stored
    if stored is None or not stored.segments:
        return []
    sealed = set(stored.sealed(log.durable_end))
    return [
        SegmentFacts(
            segment.base_offset,
            segment.next_offset,
            segment.size,
            segment.first_append_ms,
            segment in sealed,
        )
        for segment in stored.segments
    ]


def clean_state(log: PartitionLog) -> CleanState:
    """Return how far the log is clean, if it still has the cleaned records (invariant L11).

    After an unclean election other records may be in their place: then nothing is known to be
    clean.
    """
    stored = log.stored
    state = CleanState() if stored is None else stored.cleaned
    if state.marks and log.epoch_at(state.cleaned_to - 1) != state.epoch:
        return CleanState(dropped_to=state.dropped_to)
    return state


def plan_for(
    log: PartitionLog, config: CompactionConfig, high_watermark: int, now_ms: int
) -> CleaningPlan | None:
    """Return what there is to clean of a log now, however little, or None."""
    return plan(segment_facts(log), clean_state(log), high_watermark, now_ms, config)


class Cleaning:
    """A pass over one log. `steps` runs on the event loop.

    The functions it yields run on any thread.

    Every crash point leaves the log as before or as after: see `broker.log.swap`.
    """

    def __init__(
        self,
        log: PartitionLog,
        stored: LogSegments,
        config: CompactionConfig,
        facts: Callable[[], ReplicaFacts],
        limits: CleanerLimits,
        now_ms: int,
        pace: Pace,
    ) -> None:
        self._log = log
        self._stored = stored
        self._config = config
        self._facts = facts
        self._limits = limits
        self._now_ms = now_ms
        self._pace = pace
        self._generation = log.generation
        self._dropping_to = 0
        self.stats = CleaningStats()
        self.cleaned_to = 0

    @property
    def is_void(self) -> bool:
        """True if the log was truncated or went offline since: its records may have changed."""
        return self._log.generation != self._generation or self._log.failed is not None

    def steps(self) -> Generator[Callable[[], None]]:
        """Yield functions; each must be run before the next one is requested.

        If a function raises, the pass is over: close the generator.

        Raises:
            CleaningStopped: the log changed; segments swapped so far stay.
            CorruptionError: a batch is damaged.
            OSError: the disk is full, or failed.
        """
        stored = self._stored
        if stored.pending is not None:  # left by a pass that found the disk full
            yield stored.pending.run_once
            stored.settle()
        facts = self._facts()
        state = clean_state(self._log)
        segments = segment_facts(self._log)
        planned = plan(segments, state, facts.high_watermark, self._now_ms, self._config)
        if planned is None:
            return
        planned = planned._replace(end=_pass_end(segments, planned))
        old = list(stored.segments)
        files = [ClosedFile(s.path, s.base_offset, s.next_offset, s.size) for s in old]
        scan = KeyScan(stored.disk, files, planned, self._limits.dedupe_buffer_bytes, self._pace)
        yield scan.run
        self.stats.bytes_read += scan.bytes_read
        expired = state.tombstones_expired_to(self._now_ms, self._config.delete_retention_ms)
        self._dropping_to = min(expired, facts.replicated_to)  # all replicas have these (rule R7)
        if self._dropping_to > state.dropped_to:
            state = state.dropping(self._dropping_to)
            yield from self._change(state)  # durable before the first tombstone is dropped
        retention = RecordRetention(scan.keys, self._dropping_to)
        needed = scan.producers.needed()
        at, behind = 0, closed_below(segments, scan.end)
        while at < behind:
            rewriter = Rewriter(retention, needed, scan.end)
            segment_bytes = self._config.segment_bytes
            rewrite = Rewrite(stored.disk, files[at:behind], rewriter, segment_bytes, self._pace)
            try:
                yield rewrite.run
                yield from self._replace(old[at : at + rewrite.taken], rewrite)
            finally:
                rewrite.discard()
            at += rewrite.taken
        self.cleaned_to = scan.end
        epoch = self._log.epoch_at(scan.end - 1)
        retention_ms = self._config.delete_retention_ms
        yield from self._change(state.cleaned(scan.end, epoch, self._now_ms, retention_ms))
        self.stats.cleanings = 1

    def _replace(self, old: list[Segment], rewrite: Rewrite) -> Iterator[Callable[[], None]]:
        self.stats.bytes_read += rewrite.bytes_read
        self.stats.bytes_written += rewrite.bytes_written
        new = rewrite.new
        if new is None:
            return
        self._check_unchanged(old)
        stored = self._stored
        swap = Swap(stored.disk, stored.directory, old, new, rewrite.index)
        stored.replace(old, swap, new, rewrite.fd)
        rewrite.fd = CLOSED  # the descriptor belongs to the open files now
        self.stats.records_dropped += rewrite.records_dropped
        self.stats.segments_replaced += len(old)
        yield swap.run_once
        stored.settle()

    def _change(self, state: CleanState) -> Iterator[Callable[[], None]]:
        self._check_unchanged([])
        stored = self._stored
        stored.pending = StateChange(stored, state)
        yield stored.pending.run_once
        stored.settle()
        self._check_unchanged([])

    def _check_unchanged(self, old: list[Segment]) -> None:
        """Raise `CleaningStopped` unless the log still holds what was read from it (as in rule Q3).

        Also if a replica was assigned meanwhile that may lack a tombstone to be dropped (rule R7).
        """
        stored = self._stored
        if self.is_void:
            raise CleaningStopped
        if self._facts().replicated_to < self._dropping_to:
            raise CleaningStopped
        if old:
            present = stored.segments
            at = next((n for n, segment in enumerate(present) if segment is old[0]), -1)
            there = present[at : at + len(old)] if at >= 0 else []
            if len(there) != len(old) or any(a is not b for a, b in zip(there, old, strict=True)):
                raise CleaningStopped
            if stored.pending is not None:
                raise CleaningStopped


def _pass_end(segments: list[SegmentFacts], planned: CleaningPlan) -> int:
    """Return the end of a pass of at most `PASS_BYTES_MAX` of dirty segments, at least one."""
    taken = 0
    for segment in segments:
        if segment.next_offset > planned.start:
            taken += segment.size
            if taken >= PASS_BYTES_MAX or segment.next_offset >= planned.end:
                return min(segment.next_offset, planned.end)
    return planned.end


class _Rate:
    """A `Pace` for the cleaner's thread: limits bytes per second; raises once ``stop`` is set."""

    def __init__(self, bytes_per_second: int, clock: Clock) -> None:
        self._bytes_per_ms = max(1.0, bytes_per_second / 1000)
        self._clock = clock
        self._free_ms = 0.0
        self._size = 0
        self.stop = threading.Event()

    def __call__(self, size: int) -> None:
        self._size += size
        if size and self._size < PIECE_BYTES:
            return
        size, self._size = self._size, 0
        now_ms = self._clock.monotonic_ms()
        self._free_ms = max(self._free_ms, now_ms) + size / self._bytes_per_ms
        ahead_ms = self._free_ms - now_ms
        # A wait of 0 releases the interpreter lock: the event loop may be waiting for it.
        if self.stop.wait(ahead_ms / 1000 if ahead_ms > BURST_MS else 0):
            raise CleaningStopped


class LogCleaner:
    """The cleaner of a broker with its thread. Lives on the broker's loop; ``run`` until cancelled.

    A log that can't be cleaned is reported and skipped until it changes; the others continue.
    """

    def __init__(
        self,
        logs: Callable[[], Iterable[PartitionLog]],
        facts: Callable[[PartitionLog], ReplicaFacts | None],
        limits: CleanerLimits,
        clock: Clock,
        note: Callable[[PartitionLog, CleaningStats, int, int], None],
        may_clean: Callable[[], bool] = lambda: True,
    ) -> None:
        """Create the cleaner; nothing runs before `run`.

        ``facts``: returns None for a log that is not a replica here.

        ``may_clean``: False while the clock that tombstones age by can't be trusted.

        ``note``: called after each pass with its totals, how far the log is clean, and the time
        (ms).
        """
        self._logs = logs
        self._facts = facts
        self._limits = limits
        self._clock = clock
        self._note = note
        self._may_clean = may_clean
        self._rate = _Rate(limits.io_max_bytes_per_second, clock)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cleaner")
        self.totals = CleaningStats()
        self.skipped_logs: dict[str, tuple[PartitionLog, int, str]] = {}
        """Logs that are skipped, by name: (log, its generation, reason)."""

    async def run(self) -> None:
        """Look for dirty logs and clean them, endlessly."""
        try:
            while True:
                await asyncio.sleep(self._limits.backoff_ms / 1000)
                await self.clean_dirty_logs()
        finally:
            self._rate.stop.set()
            self._thread.shutdown(wait=True)

    async def clean_dirty_logs(self) -> None:
        """Run one pass over each log that is dirty enough, the dirtiest first."""
        for log in await self._dirty_logs():
            if log.failed is None and self._may_clean():
                await self.clean(log)

    async def _dirty_logs(self) -> list[PartitionLog]:
        """Return the logs to clean in Kafka's order: overdue ones, then by share of dirty bytes."""
        found = []
        for number, log in enumerate(list(self._logs())):
            if number % LOGS_PER_STEP == LOGS_PER_STEP - 1:
                await asyncio.sleep(0)
            config = log.config.compaction
            self._forget_changed(log)
            if config is None or log.stored is None or log.name in self.skipped_logs:
                continue
            facts = self._facts(log)
            if facts is None:
                continue
            planned = plan_for(log, config, facts.high_watermark, self._clock.wall_ms())
            if planned is not None:
                worth = planned.worth
                if worth.overdue or worth.ratio > config.min_dirty_ratio:
                    found.append((worth, log))
        found.sort(key=lambda each: each[0], reverse=True)
        return [log for _, log in found]

    def _forget_changed(self, log: PartitionLog) -> None:
        """Try a log again that a pass failed on, if it is another one or was truncated since."""
        known = self.skipped_logs.get(log.name)
        if known is not None and (known[0] is not log or known[1] != log.generation):
            del self.skipped_logs[log.name]

    async def clean(self, log: PartitionLog) -> CleaningStats:
        """Run one pass over a log and return its totals. Raises only when cancelled."""
        config, stored = log.config.compaction, log.stored
        if config is None or stored is None:
            return CleaningStats()
        cleaning = Cleaning(
            log, stored, config, lambda: self._facts(log) or ReplicaFacts(0, 0),
            self._limits, self._clock.wall_ms(), self._rate,
        )  # fmt: skip
        started_ms = self._clock.monotonic_ms()
        try:
            with contextlib.closing(cleaning.steps()) as steps:
                await self._drive(steps)
        except CleaningStopped:
            _log.info("compaction abandoned log=%s", log.name)
        except CorruptionError as error:
            if cleaning.is_void:  # the records read were truncated meanwhile
                _log.info("compaction abandoned log=%s", log.name)
            else:
                _log.error("log can't be compacted log=%s error=%s", log.name, error)
                self.skipped_logs[log.name] = (log, log.generation, str(error))
        except FileNotFoundError as error:
            _log.info("compaction abandoned log=%s gone=%s", log.name, error.filename)
        except OSError as error:
            if error.errno in TRANSIENT_ERRNOS:
                _log.warning("compaction postponed log=%s error=%s", log.name, error)
            else:
                stored.broken(error)
        except Exception as error:  # noqa: BLE001 a bug here would end broker after broker, for ever
            _log.exception("log can't be compacted log=%s", log.name)
            self.skipped_logs[log.name] = (log, log.generation, str(error))
        stats = cleaning.stats
        self.totals.add(stats)
        if stats.cleanings:
            self._note(log, stats, cleaning.cleaned_to, self._clock.monotonic_ms() - started_ms)
        return stats

    async def _drive(self, steps: Iterator[Callable[[], None]]) -> None:
        loop = asyncio.get_running_loop()
        work = next(steps, None)
        while work is not None:
            future = loop.run_in_executor(self._thread, work)
            try:
                await asyncio.shield(future)
            except asyncio.CancelledError:
                self._rate.stop.set()
                await asyncio.wait([future])
                raise
            work = next(steps, None)
