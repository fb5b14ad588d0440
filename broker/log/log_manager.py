"""All partition logs of one broker, in one log directory: open, create, delete, damage, close.

    <data_dir>/log/lock                   locked while a process uses the directory (rule Q4)
    <data_dir>/log/clean-shutdown         last thing written on close, deleted at start
    <data_dir>/log/high-watermark         of every log, written every five seconds
    <data_dir>/log/damaged                what to report until the controller recorded it (rule R6)
    <data_dir>/log/.deleted/…             quarantine: unlinked after a grace period (rule M5)
    <data_dir>/log/<topic>-<partition>/   partition.json, <base offset>.log|.index,
                                          leader-epoch, recovery-point

The broker calls `LogManager.open` before it registers, then `start`, runs `run` as a task, and
calls `close` last. Replication gets logs by `get_or_create` and deletes them by `delete`.

A log whose bytes are damaged is offline: it takes no more bytes, and is reported at every
registration until the controller has recorded it (rules Q5, R6). Then its directory is quarantined
whole, for its operator, and the replica begins anew, empty (`reset_damaged`); or, if no replica has
more, the log is used as it is (`use_damaged`).

Segments below a log's start, or behind a truncation, are renamed at once and unlinked later, off
the event loop (`SegmentRemovals`): unlinking a file of 1 GB takes 0.27 s. Segments below the start
wait for Kafka's ``file.delete.delay.ms``, so that a reader with an open file can finish. A start
unlinks every renamed file before it reads a log.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from broker.log.checkpoints import decode_checkpoint
from broker.log.directory_files import (
    CleanShutdown,
    DirectoryFiles,
    Quarantine,
    encode_high_watermarks,
    text_of,
)
from broker.log.flusher import Flushable, LogFlusher
from broker.log.log_directory import PARTITION_FILE, InDoubtError, LogConfig, LogDirectory
from broker.log.partition_log import PartitionLog
from broker.log.producer_snapshot import ProducerLimits
from broker.log.recovery import REMOVED_SUFFIX, recover_log
from broker.log.scan import holds_proof
from broker.log.segment import OpenFiles, ReadCounts, descriptors_for_segments
from raft_metadata.common.disk import TRANSIENT_ERRNOS, Disk
from raft_metadata.common.errors import (
    CorruptionError,
    ErrorCode,
    KafkaError,
    StorageError,
)
from raft_metadata.common.ids import (
    BrokerEpoch,
    PartitionId,
    TopicId,
    TopicIdPartition,
    TopicName,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path


SEGMENTS_RENAMED_PER_STEP = 64
"""Segments renamed in one step: two renames each, about 3 ms of the event loop."""
FILES_UNLINKED_PER_STEP = 256
"""Files unlinked in one step, off the event loop."""
TRUNCATED_FILES_PER_STEP = 4
"""Share of it for truncated segments: 1 to 2 s of a busy disk if each holds 1 GB."""
LOCK_FILE = "lock"
HIGH_WATERMARK_INTERVAL_MS = 5_000
"""Kafka's replica.high.watermark.checkpoint.interval.ms."""
_DIRECTORY_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}-\d+")

_log = logging.getLogger("broker.log")


class SegmentRemovals:
    """Segment files that wait to be unlinked; owned by the `LogManager`, on its event loop.

    The background flush task calls `run_some` after every interval.
    """

    def __init__(self, disk: Disk, delay_ms: int) -> None:
        self._disk = disk
        self._delay_ms = delay_ms
        self._now_ms = 0
        self._waiting: dict[PartitionLog, None] = {}
        self._renamed: deque[tuple[int, str]] = deque()
        """(time in ms from which it may be unlinked, path), the earliest first."""
        self._truncated_files: deque[str] = deque()
        self._names_given = 0

    def unlink_later(self, path: str) -> None:
        """Remove a file as `Disk.unlink` does, but do the expensive part later, off the event loop.

        The file is renamed. That is as durable as an unlink once the directory is synced: no start
        takes the new name for a segment. No new name is given twice during one run, so a file
        created later is never unlinked instead.

        Raises:
            OSError: as `Disk.unlink`.
        """
        if not self._disk.exists(path):
            return
        self._names_given += 1
        renamed = f"{path}.{self._names_given}{REMOVED_SUFFIX}"
        try:
            self._disk.rename(path, renamed)
        except OSError as error:
            if error.errno not in TRANSIENT_ERRNOS:
                raise
            self._disk.unlink(path)  # an unlink needs no room for a longer name
        else:
            self._truncated_files.append(renamed)

    def note(self, log: PartitionLog) -> None:
        """Check this log for segments below its start, which has moved or was just read."""
        if log.stored is not None and log.stored.holds_below(log.log_start_offset):
            self._waiting[log] = None

    def forget(self, log: PartitionLog) -> None:
        """Forget this log: it is deleted, with its directory."""
        self._waiting.pop(log, None)

    def rename_some(self) -> None:
        """Rename the next segments that lie below their log's start."""
        left = SEGMENTS_RENAMED_PER_STEP
        for log in list(self._waiting):
            stored = log.stored
            if stored is None or log.failed is not None:
                del self._waiting[log]
                continue
            if log.durable_end < log.log_start_offset:
                continue  # the log starts over: until that is durable, a crash restores the old log
            try:
                paths = stored.remove_below(log.log_start_offset, left)
            except OSError as error:
                _log.warning(
                    "segments not removed, tried again later log=%s error=%s", log.name, error
                )
                paths = []
            self._renamed.extend((self._now_ms + self._delay_ms, path) for path in paths)
            left -= max(len(paths) // 2, 1)
            if not stored.holds_below(log.log_start_offset):
                del self._waiting[log]
            if left <= 0:
                return

    async def run_some(self, elapsed_ms: int) -> None:
        """Run one step of removals; ``elapsed_ms`` have passed since the last one."""
        due = self.take_due(elapsed_ms)
        self.rename_some()
        if due:
            await asyncio.to_thread(self.unlink, due)

    def take_due(self, elapsed_ms: int) -> list[str]:
        """Return the files to unlink next; ``elapsed_ms`` have passed since the last call."""
        self._now_ms += elapsed_ms
        due = [
            self._truncated_files.popleft()
            for _ in range(min(len(self._truncated_files), TRUNCATED_FILES_PER_STEP))
        ]
        while (
            self._renamed
            and self._renamed[0][0] <= self._now_ms
            and len(due) < FILES_UNLINKED_PER_STEP
        ):
            due.append(self._renamed.popleft()[1])
        return due

    def unlink(self, paths: Sequence[str]) -> None:
        """Unlink these files, on any thread; what fails is left to the next start."""
        for path in paths:
            try:
                self._disk.unlink(path)
            except OSError as error:
                _log.warning(
                    "file not removed, tried again at the next start path=%s error=%s", path, error
                )


@dataclass(frozen=True, slots=True)
class OfflineLog:
    """A partition that is not served from this disk: not in ISR or ELR (rules Q5, R6)."""

    error: StorageError
    log: PartitionLog | None = None
    """The log, if it was open when its damage was found; None if recovery refused it."""
    has_too_many_copies: bool = False
    """True if it was not quarantined at the last try: `DAMAGED_COPIES_MAX` copies exist."""


class DamageMarks:
    """Partitions to report as damaged at every registration, with reasons; durable (rule R6).

    Owned by the `LogManager`. A mark is on the disk before the broker registers without the
    replica, so that no later start takes the damaged log for a healthy one.
    """

    def __init__(self, files: DirectoryFiles) -> None:
        self._files = files
        self.reasons: dict[TopicIdPartition, str] = {}
        self.is_saved = True
        """True if the file ``damaged`` on the disk equals ``reasons``."""

    def load(self) -> None:
        """Read the marks of the last run."""
        self.reasons = self._files.read_damaged()

    def add(self, key: TopicIdPartition, reason: str) -> None:
        """Mark a partition; durable after `save`."""
        self.reasons[key] = reason
        self.is_saved = False

    def remove(self, key: TopicIdPartition) -> bool:
        """Remove a mark; return False if there was none. Durable after `save`."""
        if self.reasons.pop(key, None) is None:
            return False
        self.is_saved = False
        return True

    def save(self) -> None:
        """Write the marks to the disk if they have changed.

        Raises:
            OSError: the disk failed, or is full; then it must be called again.
        """
        if not self.is_saved:
            self._files.write_damaged(self.reasons)
            self.is_saved = True


class LogManager:
    """All partition logs of a broker, its open segment files and its flusher; on the event loop.

    ``open`` locks the directory, recovers every log in it and syncs what it found (rule Q1);
    nothing may be acknowledged or registered before. A partition whose durable bytes are damaged is
    in ``offline``; the others serve. After a failed sync or write the whole directory is in doubt:
    all logs go offline, ``on_failed`` is called once, and the broker must end (rule Q2). Before
    that ``on_cache_lost`` is called, on the flusher's thread too: it must not raise, and the next
    start must not count on the page cache.
    """

    def __init__(  # noqa: PLR0913 each is set once, by name, where a broker is wired
        self,
        data_dir: Path,
        *,
        on_failed: Callable[[BaseException], None],
        on_cache_lost: Callable[[], None] = lambda: None,
        disk: Disk | None = None,
        max_open_segments: int = 4_096,
        flush_interval_ms: int = 1_000,
        remove_delay_ms: int = 60_000,
        default_config: LogConfig | None = None,
        producers: ProducerLimits | None = None,
    ) -> None:
        self.root = str(data_dir / "log")
        self._disk = disk or Disk()
        self.offline: dict[TopicIdPartition, OfflineLog] = {}
        """Partitions on this disk that are not served; never in ``_logs`` too."""
        self.found_damage: list[tuple[str, BaseException]] = []
        """(log name, error) of damage in open logs, not yet taken by `take_found_damage`."""
        self.failed: BaseException | None = None
        """The failure of the disk, after which no log of this directory is trusted (rule Q2)."""
        self.removals = SegmentRemovals(self._disk, remove_delay_ms)
        self._logs: dict[TopicIdPartition, PartitionLog] = {}
        self._keys: dict[str, TopicIdPartition] = {}
        self._directory_files = DirectoryFiles(self._disk, self.root)
        self._marks = DamageMarks(self._directory_files)
        self._quarantine = Quarantine(self._disk, self.root)
        self._on_failed = on_failed
        self._on_cache_lost = on_cache_lost
        self._files = OpenFiles(self._disk, min(max_open_segments, descriptors_for_segments()))
        self._files.on_pressure = self._flush_for_descriptors
        self._flush_interval_ms = flush_interval_ms
        self._default_config = default_config or LogConfig()
        self._producers = producers or ProducerLimits()
        self._shared: LogDirectory | None = None
        self._lock = -1
        self.clean_broker_epoch: BrokerEpoch | None = None
        """The broker epoch before this start, if that broker was shut down cleanly."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unidentified_logs: dict[str, CorruptionError] = {}
        self.on_log_start: Callable[[PartitionLog], None] = lambda _: None
        """Called when a log's start has moved and is durable."""

    # life

    def open(self) -> None:
        """Lock the directory, recover all logs and sync them. Blocks: nothing else runs yet.

        Raises:
            BlockingIOError: another process uses the directory.
            OSError, StorageError: the disk failed.
        """
        disk = self._disk
        disk.make_directory(self.root)
        disk.sync_directory(self.root.rpartition("/")[0])  # the directory's own name too (Q6)
        self._lock = disk.open(f"{self.root}/{LOCK_FILE}", create=True)
        try:
            disk.lock(self._lock)
        except OSError:
            disk.close(self._lock)
            self._lock = -1
            raise
        flusher = LogFlusher(disk, self.root, self._fail_all, self._on_cache_lost)
        self._shared = LogDirectory(
            self.root,
            self._files,
            flusher,
            self._on_log_failed,
            set(),
            self._on_log_start,
            self.removals.unlink_later,
            self._producers,
        )
        self._marks.load()
        last_shutdown = self._directory_files.take_clean_shutdown()
        self.clean_broker_epoch = None if last_shutdown is None else last_shutdown.broker_epoch
        clean = None if last_shutdown is None else last_shutdown.logs
        watermarks = self._directory_files.read_high_watermarks()
        for name in disk.names(self.root):
            if _DIRECTORY_NAME.fullmatch(name):
                was_clean = None if clean is None else clean.pop(name, None)
                self._open_one(name, was_clean, watermarks)
        for name, (_, topic_id) in (clean or {}).items():
            self._refuse(
                name,
                TopicIdPartition(TopicId(topic_id), PartitionId(int(name.rpartition("-")[2]))),
                CorruptionError(f"the directory {self.root}/{name} is gone"),
            )
        for log in self._logs.values():
            log.request_flush()
        flusher.flush_all()
        disk.sync_directory(self.root)
        _log.info(
            "logs opened count=%d offline=%d clean=%s",
            len(self._logs),
            len(self.offline),
            clean is not None,
        )

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run syncs on the flusher's thread from now on."""
        self._loop = loop
        self._opened().call_each_turn = self._call_each_turn
        self._opened().flusher.start(loop)

    async def run(self) -> None:
        """Flush ``flush=os`` logs, unlink removed segments and write high watermarks.

        Runs endlessly.
        """
        elapsed = 0
        while True:
            await asyncio.sleep(self._flush_interval_ms / 1000)
            self.flush_dirty()
            await self.removals.run_some(self._flush_interval_ms)
            elapsed += self._flush_interval_ms
            if elapsed >= HIGH_WATERMARK_INTERVAL_MS:
                elapsed = 0
                data = encode_high_watermarks(self._logs.items())
                try:
                    await asyncio.to_thread(self._directory_files.write_high_watermarks, data)
                except OSError as error:
                    if error.errno not in TRANSIENT_ERRNOS:
                        raise
                    # A high watermark that is too low costs nothing: the next leader raises it.
                    _log.warning("high watermarks not written error=%s", error)

    def flush_dirty(self) -> None:
        """Request a sync of every log that was written to and not yet requested to sync."""
        dirty = self._opened().dirty
        for log in list(dirty):
            log.request_flush()
        dirty.clear()

    def _flush_for_descriptors(self) -> None:
        """Request a sync soon: files that are not synced keep their descriptors.

        Never at once: the caller that needs a descriptor may be in the middle of a truncation. A
        flush that began there would hold files that the truncation closes, and would prove an end
        that the truncation removes (rule Q3).
        """
        if self._loop is not None:
            self._loop.call_soon(self._flush_if_open)

    def _call_each_turn(self, step: Callable[[], bool]) -> None:
        """Call ``step`` once per turn of the event loop until it returns True or the logs close."""

        def turn() -> None:
            if self._shared is not None and not step():
                self._call_each_turn(step)

        assert self._loop is not None, "nothing takes turns before the loop runs"
        self._loop.call_soon(turn)

    def _flush_if_open(self) -> None:
        if self._shared is not None:
            self.flush_dirty()

    def close(self, broker_epoch: BrokerEpoch | None) -> None:
        """Sync everything, then write ``clean-shutdown`` as the last file (rule R11).

        Without a broker epoch, or after any failure, the file is not written.
        """
        if self._shared is None:
            return
        flusher = self._shared.flusher
        try:
            if self.failed is None and broker_epoch is not None:
                self._close_cleanly(flusher, broker_epoch)
        except (OSError, StorageError) as error:
            _log.error("shutdown is not clean error=%s", error)
        finally:
            for log in self._logs.values():
                log.close()
            for offline in self.offline.values():
                if offline.log is not None:
                    offline.log.close()
            flusher.close()
            self._disk.close(self._lock)
            self._shared = None

    @property
    def flush_rounds(self) -> int:
        """The number of rounds of the flusher since the logs were opened."""
        return 0 if self._shared is None else self._shared.flusher.rounds

    @property
    def open_segments(self) -> int:
        """The number of segment files that are open now."""
        return len(self._files)

    @property
    def read_counts(self) -> ReadCounts:
        """The bytes that fetches found, and did not find, in the page cache."""
        return self._files.reads

    # partitions

    def get(self, topic_id: TopicId, partition: PartitionId) -> PartitionLog | None:
        """Return the log of this partition and topic id, if it is open here."""
        return self._logs.get(TopicIdPartition(topic_id, partition))

    def logs(self) -> Iterable[PartitionLog]:
        return self._logs.values()

    def get_or_create(
        self,
        topic: TopicName,
        partition: PartitionId,
        topic_id: TopicId,
        config: LogConfig | None = None,
    ) -> PartitionLog:
        """Return the partition's log; a new one touches the disk only at its first append.

        Raises:
            KafkaError: INCONSISTENT_TOPIC_ID, the directory belongs to another topic of this name
                (`delete` that first); KAFKA_STORAGE_ERROR, the partition is offline here.
        """
        key = TopicIdPartition(topic_id, partition)
        log = self._logs.get(key)
        if log is None:
            self._check_creatable(topic, key)
            log = PartitionLog(
                self._opened(), topic, partition, topic_id, config or self._default_config
            )
            self._logs[key] = log
            self._keys[log.name] = key
        elif config is not None:
            log.config = config
        return log

    def key_of(self, log: PartitionLog) -> TopicIdPartition:
        """Return the shared key object of this open log: there may be thousands of logs."""
        return self._keys[log.name]

    def holder(self, topic: TopicName, partition: PartitionId) -> TopicId | None:
        """Return the topic id of the log that owns this partition's directory, or None."""
        key = self._keys.get(f"{topic}-{partition}")
        return None if key is None else key.topic_id

    def identify(self, topic: TopicName, partition: PartitionId, topic_id: TopicId) -> None:
        """Assign an unreadable directory of this name to this topic id and report it as damaged.

        Must be called for every assigned partition before registering, so that a directory whose
        ``partition.json`` is lost is reported in time (rule R6).
        """
        error = self._unidentified_logs.pop(f"{topic}-{partition}", None)
        if error is not None:
            self._refuse(f"{topic}-{partition}", TopicIdPartition(topic_id, partition), error)

    def delete(self, partitions: Iterable[TopicIdPartition], *, mark: str = "") -> None:
        """Close these logs and move their directories into quarantine; durable on return.

        To be called only for recorded facts: a topic was deleted, a replica removed (rule M5).
        `purge` unlinks later. ``mark`` is the suffix of their names in quarantine. All of them
        share one sync: syncing each would block the event loop for as long as a session lasts.
        """
        moved = marked = False
        for key in partitions:
            log = self._logs.pop(key, None)
            if log is not None:
                log.close()
                self.removals.forget(log)
                moved |= self._quarantine_directory(log.name, text_of(key) + mark)
            elif key in self.offline:
                self._close_damaged(key)
                moved |= self._quarantine_directory(self._name_of(key), text_of(key) + mark)
            self.offline.pop(key, None)
            marked |= self._marks.remove(key)
        if moved:
            self._quarantine.sync()
        if marked:  # otherwise the next start would refuse a healthy new replica
            self._marks.save()

    def checkpoint_high_watermarks(self) -> None:
        """Write every log's high watermark now."""
        self._directory_files.write_high_watermarks(encode_high_watermarks(self._logs.items()))

    # damage

    @property
    def unclean(self) -> Mapping[TopicIdPartition, str]:
        """Partitions to report at every registration, with reasons, until `forget_unclean`."""
        return self._marks.reasons

    def save_damage_marks(self) -> None:
        """Write `unclean` to the disk if it has changed.

        Raises:
            OSError: the disk failed, or is full; then it must be called again.
        """
        self._marks.save()

    def was_open(self, key: TopicIdPartition) -> bool:
        """Return True if this partition is offline and its log was open when damage was found."""
        offline = self.offline.get(key)
        return offline is not None and offline.log is not None

    def is_served_damaged(self, key: TopicIdPartition) -> bool:
        """Return True if this log is damaged and served as it is (`use_damaged`)."""
        log = self._logs.get(key)
        return log is not None and log.is_served_damaged

    def partitions_with_too_many_copies(self) -> list[TopicIdPartition]:
        """Return the offline partitions that keep their place: too many damaged copies exist."""
        return [key for key, offline in self.offline.items() if offline.has_too_many_copies]

    def _refuse(
        self, name: str, key: TopicIdPartition, error: StorageError, log: PartitionLog | None = None
    ) -> None:
        _log.error("partition offline log=%s error=%s", name, error)
        self._keys[name] = key
        self.offline[key] = OfflineLog(error, log)
        self._marks.add(key, str(error))
        self._marks.save()

    def _on_log_failed(self, name: str | None, error: BaseException) -> None:
        """Take one log offline whose durable bytes are damaged; all (None) if the disk failed."""
        if name is None:
            self._fail_all(error)
            return
        key = self._keys[name]
        log = self._logs.get(key)
        if log is None:
            return
        if log.is_served_damaged and not isinstance(error, InDoubtError):
            log.serve_damaged(self.failed)  # only this read is refused; the rest is served
            return
        self.found_damage.append((name, error))
        self.take_offline(key, error)

    def key_by_name(self, name: str) -> TopicIdPartition | None:
        """Return the key of the log of this name; None if it was deleted since."""
        return self._keys.get(name)

    def take_offline(self, key: TopicIdPartition, error: BaseException) -> None:
        """Take this open log offline as damaged: it takes no more bytes and is reported."""
        log = self._logs.pop(key)
        log.take_offline(error)
        damage = error if isinstance(error, CorruptionError) else CorruptionError(str(error))
        try:
            self._refuse(log.name, key, damage, log)
        except OSError as full:
            if full.errno not in TRANSIENT_ERRNOS:
                self._fail_all(full)

    def take_found_damage(self) -> list[tuple[str, BaseException]]:
        """Return the damage found in open logs since the last call."""
        found, self.found_damage = self.found_damage, []
        return found

    def reset_damaged(self, topic_id: TopicId, partition: PartitionId) -> bool:
        """Quarantine a damaged log, so that an empty one can be filled from a peer.

        To be called only once the controller has recorded the damage: the mark in `unclean` is
        removed too. A crash in between leaves the mark without a directory, which is reported
        again. Returns False if as many damaged copies of this replica as are kept exist already.

        Raises:
            OSError: not possible now; the next call does the rest.
        """
        key = TopicIdPartition(topic_id, partition)
        offline = self.offline.get(key)
        if offline is None:
            return True
        name = self._name_of(key)
        if self._quarantine.has_yet_to_move(name):
            place = self._quarantine.place_for_damaged(key)
            if place is None:
                self.offline[key] = replace(offline, has_too_many_copies=True)
                return False
            self._close_damaged(key)
            self._quarantine.move(name, place)
        self._quarantine.sync()
        self.forget_unclean(topic_id, partition)
        self._marks.save()
        del self.offline[key], self._keys[name]
        return True

    def use_damaged(self, topic_id: TopicId, partition: PartitionId) -> None:
        """Serve this damaged open log as it is, as no replica has more: it takes bytes again.

        The mark in `unclean` is removed: a start may open the log as it is, and finds unreadable
        batches again.

        Raises:
            OSError: the mark could not be removed; must be called again.
        """
        key = TopicIdPartition(topic_id, partition)
        log = self.offline[key].log
        assert log is not None, f"{key} was not open when its damage was found"
        self.forget_unclean(topic_id, partition)
        self._marks.save()
        del self.offline[key]
        log.serve_damaged(self.failed)
        self._logs[key] = log
        self.removals.note(log)
        log.request_flush()

    def forget_unclean(self, topic_id: TopicId, partition: PartitionId) -> None:
        """Stop reporting this partition: the broker's image shows it recorded (rule R6)."""
        if self._marks.remove(TopicIdPartition(topic_id, partition)):
            self._marks.save()

    def _close_damaged(self, key: TopicIdPartition) -> None:
        """Close an offline log that was open when its damage was found, once."""
        offline = self.offline[key]
        if offline.log is not None:
            self.offline[key] = replace(offline, log=None)
            offline.log.close()
            self.removals.forget(offline.log)

    # quarantine

    def purge(self, names: Iterable[str]) -> None:
        """Unlink these quarantined directories: their grace period is over."""
        self._quarantine.purge(names)

    def quarantined(self) -> list[str]:
        """Return the names that `purge` may take: ``<topic id>:<partition><mark>`` of each log."""
        return self._quarantine.names()

    def _quarantine_directory(self, name: str, quarantined: str) -> bool:
        """Move the directory to quarantine, not yet durably; return False if there was none."""
        self._keys.pop(name, None)
        return self._quarantine.move(name, quarantined)

    def _name_of(self, key: TopicIdPartition) -> str:
        return next(name for name, other in self._keys.items() if other == key)

    # internal

    def _opened(self) -> LogDirectory:
        assert self._shared is not None, "the log manager is not open"
        return self._shared

    def _open_one(
        self,
        name: str,
        clean: tuple[int, str] | None,
        watermarks: dict[str, tuple[int, int]],
        *,
        may_truncate: bool = True,
    ) -> None:
        """Recover one directory; if it is damaged, only this partition goes offline (rule Q5)."""
        directory = f"{self.root}/{name}"
        data = self._disk.read_file(f"{directory}/{PARTITION_FILE}")
        if not data or not data.strip(b"\0"):
            self._quarantine_torn(name)
            return
        try:
            content = decode_checkpoint(data, f"{directory}/{PARTITION_FILE}")
        except CorruptionError as error:
            _log.error("partition unreadable error=%s", error)
            self._unidentified_logs[name] = error
            return
        fields = cast("dict[str, object]", content)
        topic = TopicName(str(fields["topic"]))
        key = TopicIdPartition(
            TopicId(str(fields["topic_id"])), PartitionId(int(str(fields["partition"])))
        )
        if key in self._marks.reasons:
            # Found damaged before this start, perhaps in bytes that recovery does not read again.
            self._refuse(name, key, CorruptionError(self._marks.reasons[key]))
            return
        try:
            clean_end = None if clean is None else clean[0]
            found = recover_log(
                self._files,
                directory,
                clean_end=clean_end,
                producers=self._producers,
                may_truncate=may_truncate,
            )
        except CorruptionError as error:
            self._refuse(name, key, error)
            return
        log = PartitionLog(self._opened(), topic, key.partition, key.topic_id, self._default_config)
        log.restore(found)
        end, epoch = watermarks.get(text_of(key), (0, -1))
        end = min(end, log.log_end_offset)
        end = end if log.epoch_at(end - 1) == epoch else 0
        log.high_watermark = max(end, log.log_start_offset)  # invariant L8
        if found.producers is not None:
            found.producers.committed(log.high_watermark)
        self.removals.note(log)
        self._logs[key] = log
        self._keys[name] = key

    def open_offline(self, topic_id: TopicId, partition: PartitionId) -> bool:
        """Open a log that was refused at start, as no replica has more; return True on success.

        A log that recovery refuses stays offline and unchanged.
        """
        key = TopicIdPartition(topic_id, partition)
        name = self._name_of(key)
        if not self._disk.read_file(f"{self.root}/{name}/{PARTITION_FILE}"):
            return False
        del self.offline[key]
        self.forget_unclean(topic_id, partition)
        self._open_one(name, None, {}, may_truncate=False)
        log = self._logs.get(key)
        if log is not None:
            log.request_flush()
        return log is not None

    def _quarantine_torn(self, name: str) -> None:
        """Quarantine a directory that a crash left before its first sync: it held nothing durable.

        If a batch in it proves otherwise, the directory stays as one that can't be identified.
        """
        if holds_proof(self._disk, f"{self.root}/{name}"):
            msg = f"{self.root}/{name}/{PARTITION_FILE} is gone"
            self._unidentified_logs[name] = CorruptionError(msg)
            _log.error("partition unreadable error=%s", msg)
            return
        _log.warning("directory that was never synced is set aside log=%s", name)
        self._quarantine.move(name, f"torn:{name}")
        self._quarantine.sync()

    def _check_creatable(self, topic: TopicName, key: TopicIdPartition) -> None:
        name = f"{topic}-{key.partition}"
        self.identify(topic, key.partition, key.topic_id)
        offline = self.offline.get(key)
        if offline is not None or self.failed is not None:
            reason = self.failed if offline is None else offline.error
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"log {name} is offline: {reason}")
        other = self._keys.get(name)
        if other is not None and other != key:
            raise KafkaError(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"log {name} belongs to topic id {other.topic_id}, not {key.topic_id}",
            )

    def _close_cleanly(self, flusher: LogFlusher, broker_epoch: BrokerEpoch) -> None:
        for log in list(self._logs.values()):
            log.request_flush()
        flusher.flush_all()
        ends = {}
        for log in self._logs.values():
            log.checkpoint_for_close()
            if log.log_end_offset > log.log_start_offset:
                ends[log.name] = (log.log_end_offset, log.topic_id)
        fd = self._disk.open_directory(self.root)
        try:
            self._disk.sync_filesystem(fd)
        finally:
            self._disk.close(fd)
        self.checkpoint_high_watermarks()
        self._directory_files.write_clean_shutdown(CleanShutdown(broker_epoch, ends))

    def _on_log_start(self, log: Flushable) -> None:
        assert isinstance(log, PartitionLog)
        self.removals.note(log)
        self.on_log_start(log)

    def _fail_all(self, error: BaseException) -> None:
        """Take all logs offline: after a failed sync or write none is trusted (rule Q2)."""
        if self.failed is not None:
            return
        self.failed = error
        self._on_cache_lost()
        for log in self._logs.values():
            log.take_offline(error)
        self._on_failed(error)
