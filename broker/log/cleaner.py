"""Which logs are compacted when, and how: the shell around `broker.log.compaction`.

One log at a time, the dirtiest first. Reading, deciding and writing happen on a thread of their
own, by descriptors of their own, at a bounded rate; what changes a log (the swap of segments, how
far it is clean) is taken on the loop, and only if the log is still what it was: a truncation, a log
start that moved past it, a deletion in between make the result void.
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
    CleanState,
    CompactionConfig,
    Plan,
    Retention,
    Rewriter,
    SegmentFacts,
    closed_below,
    plan,
)
from broker.log.disk import PASSING
from broker.log.rewriting import ClosedFile, KeyScan, Pace, Rewrite, Stopped
from broker.log.segment import CLOSED, Segment
from broker.log.swap import StateChange, Swap
from raft_metadata.common.errors import CorruptionError

if TYPE_CHECKING:
    from broker.log.log_segments import LogSegments
    from broker.log.partition_log import PartitionLog
    from raft_metadata.common.clock import Clock

PASS_BYTES_MAX = 1 << 30
"""Dirty bytes of one log that one pass takes, whole segments, before another log has its turn."""
LOGS_PER_STEP = 200
"""Looked at before the loop has a turn: about 1 ms."""
BURST_MS = 50
"""How long the cleaner may work at full speed before it waits for its rate."""
_log = logging.getLogger("broker.log")


class ReplicaFacts(NamedTuple):
    """What replication knows of a log at this moment."""

    high_watermark: int
    replicated_to: int
    """Every assigned replica holds everything below, as the leader knows it (rule R7)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerLimits:
    """Kafka's ``log.cleaner.*``."""

    dedupe_buffer_bytes: int = 67_108_864
    """Memory for the keys of one pass; what does not fit waits for the next one."""
    io_max_bytes_per_second: int = 33_554_432
    """Read and written together."""
    backoff_ms: int = 15_000
    """Between two looks at which logs are dirty."""


@dataclass(slots=True)
class CleaningStats:
    """What one cleaning, or all of them, did."""

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
    """The log's segments as a plan sees them; none of a log that has no files."""
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
    """How far the log is clean, if its records are still those that were cleaned (invariant L11).

    After an unclean election others may stand in their place: then nothing is known to be clean.
    """
    stored = log.stored
    state = CleanState() if stored is None else stored.cleaned
    if state.marks and log.epoch_at(state.cleaned_to - 1) != state.epoch:
        return CleanState(dropped_to=state.dropped_to)
    return state


def plan_for(
    log: PartitionLog, config: CompactionConfig, high_watermark: int, now_ms: int
) -> Plan | None:
    """What there is to clean of a log now, whether or not it is worth it."""
    return plan(segment_facts(log), clean_state(log), high_watermark, now_ms, config)


class Cleaning:
    """One pass over one log. `steps` runs on the loop; what it yields runs anywhere, one by one.

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
        """Whether the log was cut since: what was read of it says nothing."""
        return self._log.generation != self._generation or self._log.failed is not None

    def steps(self) -> Generator[Callable[[], None]]:
        """Each yielded function is to be run before the next one is asked for.

        Where that raises, the pass is over: it is to be closed.

        Raises:
            Stopped: the log changed; what was swapped so far stays.
            CorruptionError: a batch is damaged. OSError: the disk is full, or failed.
        """
        stored = self._stored
        if stored.pending is not None:  # of a pass that found the disk full
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
        self._dropping_to = min(expired, facts.replicated_to)  # rule R7
        if self._dropping_to > state.dropped_to:
            state = state.dropping(self._dropping_to)
            yield from self._change(state)  # durable before the first of them goes
        retention = Retention(scan.keys, self._dropping_to)
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
        rewrite.fd = CLOSED  # the open files' now
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
        """Rule Q3's kind of proof: what was read is still what stands there.

        Rule R7: nobody has come meanwhile who may lack a tombstone that is to go.
        """
        stored = self._stored
        if self.is_void:
            raise Stopped
        if self._facts().replicated_to < self._dropping_to:
            raise Stopped
        if old:
            present = stored.segments
            at = next((n for n, segment in enumerate(present) if segment is old[0]), -1)
            there = present[at : at + len(old)] if at >= 0 else []
            if len(there) != len(old) or any(a is not b for a, b in zip(there, old, strict=True)):
                raise Stopped
            if stored.pending is not None:
                raise Stopped


def _pass_end(segments: list[SegmentFacts], planned: Plan) -> int:
    """At most `PASS_BYTES_MAX` of dirty segments, and one at least."""
    taken = 0
    for segment in segments:
        if segment.next_offset > planned.start:
            taken += segment.size
            if taken >= PASS_BYTES_MAX or segment.next_offset >= planned.end:
                return min(segment.next_offset, planned.end)
    return planned.end


class _Rate:
    """A `Pace` for the cleaner's thread: so many bytes a second; it ends when told to."""

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
        # A wait of 0 lets go of the interpreter: the loop may be waiting for it.
        if self.stop.wait(ahead_ms / 1000 if ahead_ms > BURST_MS else 0):
            raise Stopped


class LogCleaner:
    """Owns the cleaner's thread. Lives on the broker's loop; ``run`` until cancelled.

    A log that can't be cleaned is reported and left alone, until it is another one; the others go
    on.
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
        """``facts``: None of a log that is nobody's replica.

        ``may_clean``: not while the clock that tombstones grow old by can't be trusted.

        ``note``: told of each pass: what it did, how far the log is clean, how long it took (ms).
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
        self.uncleanable: dict[str, tuple[PartitionLog, int, str]] = {}
        """Logs that are left alone, by name: which one it is, its generation, and why."""

    async def run(self) -> None:
        """Look for dirty logs, clean them; endless."""
        try:
            while True:
                await asyncio.sleep(self._limits.backoff_ms / 1000)
                await self.clean_dirty_logs()
        finally:
            self._rate.stop.set()
            self._thread.shutdown(wait=True)

    async def clean_dirty_logs(self) -> None:
        """One pass over each log that is worth it, the dirtiest first."""
        for log in await self._dirty_logs():
            if log.failed is None and self._may_clean():
                await self.clean(log)

    async def _dirty_logs(self) -> list[PartitionLog]:
        """Kafka's order: what is overdue, then by the share of dirty bytes."""
        found = []
        for number, log in enumerate(list(self._logs())):
            if number % LOGS_PER_STEP == LOGS_PER_STEP - 1:
                await asyncio.sleep(0)
            config = log.config.compaction
            if config is None or log.stored is None or self._is_left_alone(log):
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

    def _is_left_alone(self, log: PartitionLog) -> bool:
        known = self.uncleanable.get(log.name)
        if known is None:
            return False
        if known[0] is log and known[1] == log.generation:
            return True
        del self.uncleanable[log.name]
        return False

    async def clean(self, log: PartitionLog) -> CleaningStats:
        """One pass over a log; what it did. Never raises but when cancelled."""
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
        except Stopped:
            _log.info("cleaning void log=%s", log.name)
        except CorruptionError as error:
            if cleaning.is_void:  # what was read was cut off meanwhile
                _log.info("cleaning void log=%s", log.name)
            else:
                _log.error("log can't be compacted log=%s error=%s", log.name, error)
                self.uncleanable[log.name] = (log, log.generation, str(error))
        except FileNotFoundError as error:
            _log.info("cleaning void log=%s gone=%s", log.name, error.filename)
        except OSError as error:
            if error.errno in PASSING:
                _log.warning("not compacted now log=%s error=%s", log.name, error)
            else:
                stored.broken(error)
        except Exception as error:  # noqa: BLE001 a bug here would end broker after broker, for ever
            _log.exception("log can't be compacted log=%s", log.name)
            self.uncleanable[log.name] = (log, log.generation, str(error))
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
