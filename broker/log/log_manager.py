"""All partition logs of one broker, in one log directory: open, create, delete, checkpoint, close.

<data_dir>/log/lock                     held while a process uses the directory (rule Q4)
<data_dir>/log/clean-shutdown           last thing written on close, deleted at start
<data_dir>/log/high-watermark           of every log, written now and then
<data_dir>/log/damaged                  what to report until it is recorded (rule R6)
<data_dir>/log/.deleted/…               quarantine: unlinked after a grace period (rule M5)
<data_dir>/log/<topic>-<partition>/     partition.json, <base offset>.log|.index,
                                        leader-epoch, recovery-point
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, cast

from typing_extensions import override

from broker.log.checkpoints import decode_checkpoint
from broker.log.damaged_logs import DamagedLogs
from broker.log.directory_files import CleanShutdown, encode_high_watermarks, text_of
from broker.log.disk import PASSING, Disk, ReadCounts, descriptors_for_segments
from broker.log.flusher import Flushable, Flusher
from broker.log.log_directory import PARTITION_FILE, LogConfig, LogDirectory
from broker.log.partition_log import PartitionLog
from broker.log.producer_snapshot import ProducerLimits
from broker.log.recovery import recover_log
from broker.log.segment import OpenFiles
from broker.log.sound_batches import holds_proof
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
    from collections.abc import Callable, Iterable
    from pathlib import Path


LOCK_FILE = "lock"
HIGH_WATERMARK_INTERVAL_MS = 5_000
"""Kafka's replica.high.watermark.checkpoint.interval.ms."""
_DIRECTORY_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}-\d+")
_log = logging.getLogger("broker.log")


class LogManager(DamagedLogs):
    """Owns every PartitionLog, the open files, the flusher; lives on the broker's loop.

    ``open`` locks the directory, recovers every log in it and syncs what it found (rule Q1);
    nothing may be acknowledged or registered before. A partition whose durable bytes are gone is
    in ``offline``, the others serve. After a failed sync or write the whole directory is suspect:
    all logs fail and ``on_failed`` is told once; the broker must end (rule Q2).
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        on_failed: Callable[[BaseException], None],
        disk: Disk | None = None,
        max_open_segments: int = 4_096,
        flush_interval_ms: int = 1_000,
        remove_delay_ms: int = 60_000,
        default_config: LogConfig | None = None,
        producers: ProducerLimits | None = None,
    ) -> None:
        self.root = str(data_dir / "log")
        self._disk = disk or Disk()
        super().__init__(self._disk, self.root, remove_delay_ms)
        self._on_failed = on_failed
        self._files = OpenFiles(self._disk, min(max_open_segments, descriptors_for_segments()))
        self._files.on_pressure = self._flush_for_descriptors
        self._flush_interval_ms = flush_interval_ms
        self._default_config = default_config or LogConfig()
        self._producers = producers or ProducerLimits()
        self._shared: LogDirectory | None = None
        self._lock = -1
        self.clean_broker_epoch: BrokerEpoch | None = None
        """The broker epoch of the last life, if it was shut down cleanly."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unidentified: dict[str, CorruptionError] = {}
        self.on_log_start: Callable[[PartitionLog], None] = lambda _: None
        """Told when a log's start has moved and is durable."""

    # life

    def open(self) -> None:
        """Lock, recover, sync. Blocks: nothing else runs yet.

        Raises:
            BlockingIOError: another process uses the directory.
            OSError, StorageError: the disk failed.
        """
        disk = self._disk
        disk.make_directory(self.root)
        disk.sync_directory(self.root.rpartition("/")[0])  # rule Q6: its own name too
        self._lock = disk.open(f"{self.root}/{LOCK_FILE}", create=True)
        try:
            disk.lock(self._lock)
        except OSError:
            disk.close(self._lock)
            self._lock = -1
            raise
        flusher = Flusher(disk, self.root, self._fail_all)
        self._shared = LogDirectory(
            self.root,
            self._files,
            flusher,
            self._on_log_failed,
            set(),
            self._on_log_start,
            self.removals.put_away,
            self._producers,
        )
        self.unclean = self._small.read_damaged()
        said = self._small.take_clean_shutdown()
        self.clean_broker_epoch = None if said is None else said.broker_epoch
        clean = None if said is None else said.logs
        watermarks = self._small.read_high_watermarks()
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
        """From now on syncs run on the flusher's thread."""
        self._loop = loop
        self._opened().in_turns = self._in_turns
        self._opened().flusher.start(loop)

    async def run(self) -> None:
        """The background flush of ``flush=os`` logs, and the high watermark checkpoint; endless."""
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
                    await asyncio.to_thread(self._small.write_high_watermarks, data)
                except OSError as error:
                    if error.errno not in PASSING:
                        raise
                    # One that is too low costs nothing: the next leader raises it again.
                    _log.warning("high watermarks not written error=%s", error)

    def flush_dirty(self) -> None:
        """Ask for a sync of every log that nobody asked to sync since it was written."""
        dirty = self._opened().dirty
        for log in list(dirty):
            log.request_flush()
        dirty.clear()

    def _flush_for_descriptors(self) -> None:
        """Files that are not synced keep theirs: sync them soon, not with the next second.

        Never at once: who needs a descriptor may be amid a cut. A round that began there would hold
        files that the cut closes, and prove an end that it takes away (rule Q3).
        """
        if self._loop is not None:
            self._loop.call_soon(self._flush_if_open)

    def _in_turns(self, step: Callable[[], bool]) -> None:
        """Call this in turns of the loop until it says that it is through, or all is closed."""

        def turn() -> None:
            if self._shared is not None and not step():
                self._in_turns(step)

        assert self._loop is not None, "nothing takes turns before the loop runs"
        self._loop.call_soon(turn)

    def _flush_if_open(self) -> None:
        if self._shared is not None:
            self.flush_dirty()

    def close(self, broker_epoch: BrokerEpoch | None) -> None:
        """Sync everything, then say so in ``clean-shutdown``, last (rule R11).

        Without a broker epoch, or after any failure, no clean shutdown is claimed.
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
            for log in (*self._logs.values(), *self.damaged.values()):
                log.close()
            flusher.close()
            self._disk.close(self._lock)
            self._shared = None

    @property
    def flush_rounds(self) -> int:
        """Of the flusher, in this life."""
        return 0 if self._shared is None else self._shared.flusher.rounds

    @property
    def open_segments(self) -> int:
        """Files that are open now."""
        return len(self._files)

    @property
    def read_counts(self) -> ReadCounts:
        """How much of what fetches asked for was in the page cache."""
        return self._files.reads

    # partitions

    def get(self, topic_id: TopicId, partition: PartitionId) -> PartitionLog | None:
        """The log of this life of the topic, if it is open here."""
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
        """The partition's log; a new one touches the disk at its first append only.

        Raises:
            KafkaError: INCONSISTENT_TOPIC_ID, the directory belongs to another life of the topic
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
        """The one object that names this open log: there may be thousands of them."""
        return self._keys[log.name]

    def holder(self, topic: TopicName, partition: PartitionId) -> TopicId | None:
        """The topic id whose log has this name's directory, or None."""
        key = self._keys.get(f"{topic}-{partition}")
        return None if key is None else key.topic_id

    def identify(self, topic: TopicName, partition: PartitionId, topic_id: TopicId) -> None:
        """This life of the topic owns the directory of that name: if it is unreadable, say so.

        To be called for every assigned partition before registering, so that a directory whose
        ``partition.json`` is gone is reported in time (rule R6).
        """
        error = self._unidentified.pop(f"{topic}-{partition}", None)
        if error is not None:
            self._refuse(f"{topic}-{partition}", TopicIdPartition(topic_id, partition), error)

    def delete(self, partitions: Iterable[TopicIdPartition], *, mark: str = "") -> None:
        """Close these logs and move their directories into quarantine; durable on return.

        Call this for facts only: a topic was deleted, a replica removed (rule M5); `purge` unlinks
        later. ``mark`` ends their names there. One sync serves all of them: syncing each would stop
        the loop for as long as a session lasts.
        """
        moved = marked = False
        for key in partitions:
            log = self._logs.pop(key, None)
            if log is not None:
                log.close()
                self.in_use.discard(key)
                self.removals.forget(log)
                moved |= self._set_aside(log.name, text_of(key) + mark)
            elif key in self.offline:
                self._close_damaged(key)
                moved |= self._set_aside(self._name_of(key), text_of(key) + mark)
            self.offline.pop(key, None)
            marked |= self.unclean.pop(key, None) is not None
        if moved:
            self._quarantine.sync()
        if marked:  # else a replica that comes back, sound, is refused at the next start
            self._small.write_damaged(self.unclean)

    def checkpoint_high_watermarks(self) -> None:
        """Write every log's high watermark now."""
        self._small.write_high_watermarks(encode_high_watermarks(self._logs.items()))

    # inside

    def _opened(self) -> LogDirectory:
        assert self._shared is not None, "the log manager is not open"
        return self._shared

    def _open_one(
        self,
        name: str,
        clean: tuple[int, str] | None,
        watermarks: dict[str, tuple[int, int]],
        *,
        cuts: bool = True,
    ) -> None:
        """Recover one directory; a damaged one is refused alone, the others serve (rule Q5)."""
        directory = f"{self.root}/{name}"
        data = self._disk.read_file(f"{directory}/{PARTITION_FILE}")
        if not data or not data.strip(b"\0"):
            self._refuse_torn(name)
            return
        try:
            content = decode_checkpoint(data, f"{directory}/{PARTITION_FILE}")
        except CorruptionError as error:
            _log.error("partition unreadable error=%s", error)
            self._unidentified[name] = error
            return
        fields = cast("dict[str, object]", content)
        topic = TopicName(str(fields["topic"]))
        key = TopicIdPartition(
            TopicId(str(fields["topic_id"])), PartitionId(int(str(fields["partition"])))
        )
        if key in self.unclean:
            # Found damaged in an earlier life, perhaps where recovery does not look again.
            self._refuse(name, key, CorruptionError(self.unclean[key]))
            return
        try:
            clean_end = None if clean is None else clean[0]
            found = recover_log(
                self._files, directory, clean_end=clean_end, producers=self._producers, cuts=cuts
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

    def open_refused(self, topic_id: TopicId, partition: PartitionId) -> bool:
        """Open a log after all that a start refused, as nobody has more; whether it could be.

        What recovery finds wanting stays offline, and untouched.
        """
        key = TopicIdPartition(topic_id, partition)
        name = self._name_of(key)
        if not self._disk.read_file(f"{self.root}/{name}/{PARTITION_FILE}"):
            return False
        del self.offline[key]
        self.forget_unclean(topic_id, partition)
        self._open_one(name, None, {}, cuts=False)
        log = self._logs.get(key)
        if log is not None:
            log.request_flush()
        return log is not None

    def _refuse_torn(self, name: str) -> None:
        """A crash came before this directory's first sync: nothing in it was ever durable."""
        if holds_proof(self._disk, f"{self.root}/{name}"):
            msg = f"{self.root}/{name}/{PARTITION_FILE} is gone"
            self._unidentified[name] = CorruptionError(msg)
            _log.error("partition unreadable error=%s", msg)
            return
        _log.warning("never synced directory set aside log=%s", name)
        self._quarantine.move(name, f"torn:{name}")
        self._quarantine.sync()

    def _check_creatable(self, topic: TopicName, key: TopicIdPartition) -> None:
        name = f"{topic}-{key.partition}"
        self.identify(topic, key.partition, key.topic_id)
        if key in self.offline or self.failed is not None:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"log {name} is offline: {self.offline.get(key) or self.failed}",
            )
        other = self._keys.get(name)
        if other is not None and other != key:
            raise KafkaError(
                ErrorCode.INCONSISTENT_TOPIC_ID,
                f"log {name} belongs to topic id {other.topic_id}, not {key.topic_id}",
            )

    def _close_cleanly(self, flusher: Flusher, broker_epoch: BrokerEpoch) -> None:
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
        self._small.write_clean_shutdown(CleanShutdown(broker_epoch, ends))

    def _on_log_start(self, log: Flushable) -> None:
        assert isinstance(log, PartitionLog)
        self.removals.note(log)
        self.on_log_start(log)

    @override
    def _fail_all(self, error: BaseException) -> None:
        """Rule Q2: after a failed sync or write no log of this directory is believed."""
        if self.failed is not None:
            return
        self.failed = error
        for log in self._logs.values():
            log.failed = log.failed or error
        self._on_failed(error)
