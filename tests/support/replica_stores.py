"""Where a simulated replica keeps its log: the product's own log on a simulated disk.

A store outlives the processes that use it. It runs `LogManager`, `ReplicaLogs`, `PartitionLog`,
recovery and the `LogFlusher`. ``mirror`` is what the simulation knows the log to hold, by offset;
what the log really holds is read back and compared with it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from broker.config import BrokerConfig
from broker.log.directory_files import DirectoryFiles
from broker.log.log_directory import LogConfig
from broker.log.log_manager import LogManager
from broker.log.partition_log import PartitionLog
from broker.record.batch import RecordFormat, walk
from broker.replication.replica_logs import ReplicaLogs
from raft_metadata.common.disk import DISK_FULL
from raft_metadata.common.errors import CorruptionError, KafkaError, StorageError
from raft_metadata.common.ids import (
    BrokerEpoch,
    BrokerId,
    Claim,
    ClusterId,
    DirectoryId,
    IncarnationId,
    TopicIdPartition,
    TopicName,
)
from raft_metadata.image.metadata_image import MetadataImage
from tests.support.doors.log import (
    FlusherThread,
    are_damage_marks_saved,
    fail_all_logs,
    flusher_of,
    open_files_of,
)
from tests.support.replica_bytes import (
    NAME,
    TOPIC,
    ZERO,
    batches_of,
    entries_of,
    place,
)
from tests.support.replica_files import PowerCut, ReplicaFiles
from tests.support.replica_memory import StoreHost
from tests.support.replication_invariants import Entry, Violation, agree

SEGMENT_BYTES = (900, 6_000, 1 << 30)


class ToldLog:
    """A `PartitionLog` as its `Partition` has it; the store is told of what changes its content."""

    def __init__(self, store: DiskStore, log: PartitionLog) -> None:
        self.product_log = log
        self.append_as_follower = store.append_as_follower
        self.truncate_to = store.truncate_to
        self.start_over = store.start_over

    def __getattr__(self, name: str) -> Any:
        return getattr(self.product_log, name)


class DiskStore(ReplicaFiles):
    """The product's log directory on a disk that loses unsynced pages and names."""

    real = True

    def __init__(self, host: StoreHost, b: BrokerId, segment_bytes: int) -> None:
        self.host, self.id, self.segment_bytes = host, b, segment_bytes
        self.cuts = self.found_rotten = 0
        self.config = config_of(b)
        super().__init__(host.rng)
        self.lose_disk()

    def lose_disk(self) -> None:
        self.new_disk()
        self.pending: list[Entry | None] = []
        """What is being appended: where the power goes meanwhile it may be there, or not."""
        self.kept: list[Entry | None] | None = None
        """What the last power cut could not take."""
        self.aside: list[Entry | None] = []
        """Of a replica that was removed, and may not yet have been moved into quarantine."""
        self.cutting: int | None = None
        """Up to where the log is being cut: a crash leaves the longer log or the shorter one."""
        self.uncut: list[Entry | None] | None = None
        """Before a cut whose own sync failed: it may be found once more, whole."""
        self.shown_start = 0
        self.covered: list[tuple[int, int]] = []
        """(offset, when): a pass of the cleaner began then that made all below it clean."""
        self.manager: LogManager | None = None
        self.recovered: PartitionLog | None = None
        self.log: PartitionLog | None = None
        self.failure: list[BaseException] = []
        self.cache_lost = False
        """A sync has failed in this life, or before a start that has not been seen to its end."""
        self.marked = False
        """The mark of its damage is on the disk, and stays until the log was moved away."""

    @property
    def offline(self) -> bool:
        """The log was found to be damaged, and takes no more bytes."""
        return self.manager is not None and bool(self.manager.offline)

    @property
    def is_marked(self) -> bool:
        """Whatever happens to the process, the damage is reported again."""
        if self.manager is None:
            return self.marked
        return self.offline and bool(self.manager.unclean) and are_damage_marks_saved(self.manager)

    @property
    def failed(self) -> BaseException | None:
        """Why the process has to end."""
        if self.power_gone:
            return PowerCut()
        return None if self.manager is None else self.manager.failed

    @property
    def unclean(self) -> bool:
        return self.manager is not None and bool(self.manager.unclean)

    # life

    def start(self, incarnation: str) -> bool:
        """Whether the process came up; what recovery found is in ``mirror`` then."""
        before = [*(self.aside or self.mirror), *self.pending]
        durable = list(self.platter() if self.kept is None else self.kept)
        if self.kept is None:
            del durable[len(before) :]  # a cut that failed is done in the page cache only
        if self.cutting is not None:
            del durable[self.cutting :]
            self.uncut = before if self.uncut is None else self.uncut
        self.pending, self.cutting, self.aside, self.kept = [], None, [], None
        self.failure = []
        self.power_gone = False
        self.manager = LogManager(
            Path("/data"),
            on_failed=self.failure.append,
            on_cache_lost=self.lose_cache,
            disk=self.disk,
            max_open_segments=self.host.rng.choice((1, 2, 64)),
            default_config=LogConfig(segment_bytes=self.segment_bytes),
        )
        open_files_of(self.manager).indexes.limit_bytes = 0  # none but the last used one is kept
        is_noted = bool(DirectoryFiles(self.disk, self.manager.root).read_damaged())
        if self.marked and self.has_directory() and not is_noted:
            raise Violation("rule R6", f"broker {self.id}: the mark of damage is gone, its log not")
        try:
            self.manager.open()
            self.manager.identify(TopicName(NAME), ZERO, TOPIC)
        except (OSError, StorageError, PowerCut):
            self.aside = before  # the next start finds what this one might have found
            self.stop(power=self.power_gone)
            return False
        except Exception as error:
            raise Violation("rule Q5", f"broker {self.id} can't start: {error!r}") from error
        self.keeper = ReplicaLogs(self.config, IncarnationId(incarnation), self.manager)
        self.thread = FlusherThread(flusher_of(self.manager))
        self.log = None
        opened = self.recovered = self.manager.get(TOPIC, ZERO)
        if opened is None:
            begins_anew = durable and not (self.damaged and self.rotted and self.rotted.last >= 0)
            if not self.manager.offline and begins_anew:
                raise Violation("L23", f"broker {self.id} has lost its log, {len(durable)} durable")
            # A mark whose log was moved away stays until it is recorded, and refuses the next one.
            if self.manager.offline and not (self.damaged or is_noted):
                raise Violation("L22", f"broker {self.id} is refused: {self.manager.offline}")
            self.found_rotten += bool(self.manager.offline)
            self.mirror = []
            return True
        if self.marked:
            raise Violation("rule R6", f"broker {self.id} opens what was marked as damaged")
        if self.damaged:
            self.check_not_believed(opened)
        found_by_readers = self.damaged and opened.segments
        self.mirror = self.content(opened) if found_by_readers else self.read_all(opened)
        if not self.damaged:
            if self.uncut is not None:
                if agree(self.mirror, before) is not None or len(self.mirror) > len(before):
                    before = self.uncut
                durable = []
            elif opened.log_start_offset < self.shown_start:
                shown = f"{self.shown_start} was shown, {opened.log_start_offset} was found"
                raise Violation("L24", f"log start of broker {self.id}", shown)
            self.on_recovered(before, durable)
        return True

    on_recovered: Callable[[list[Entry | None], list[Entry | None]], None]

    def read_all(self, log: PartitionLog) -> list[Entry | None]:
        """Every record, as a reader gets it."""
        found: list[Entry | None] = [None] * log.log_start_offset
        while len(found) < log.log_end_offset:
            try:
                raw = log.read_raw(len(found), 1 << 20, log.log_end_offset)
            except CorruptionError:
                if not self.damaged:
                    raise Violation("L22", f"broker {self.id} holds rotten bytes") from None
                self.found_rotten += 1
                return found
            if not raw:
                raise Violation("L22", f"broker {self.id} reads nothing at {len(found)}")
            for header, entries in batches_of(raw):
                place(found, header, entries)
        return found

    def take(self, image: MetadataImage, config: LogConfig) -> ToldLog | None:
        """The log of the assigned replica; None while it is offline (rule Q5)."""
        assert self.manager is not None
        was_offline = bool(self.manager.offline)
        log = self.keeper.open(image, image.topics[TOPIC], ZERO, config)
        if log is not None and log is not self.log:
            if was_offline or log is not self.recovered:
                self._begin_anew(log)
            self.log = log
            log.on_durable = self._durable
        return None if log is None else ToldLog(self, log)

    def _begin_anew(self, log: PartitionLog) -> None:
        """What was damaged is set aside; or, where nobody has more, used as far as it is sound."""
        self.log, self.aside, self.uncut, self.shown_start = log, [], None, 0
        self.covered, self.cutting, self.marked = [], None, False
        self._forget_rot()
        self.mirror = self.content(log) if log.segments else [None] * log.log_start_offset

    def _durable(self) -> None:
        self.uncut = None
        self.host.durable()

    def append_as_follower(self, batches: memoryview | bytes) -> None:
        assert self.log is not None
        known = [
            (header, entries_of(header, bytes(batches)[at : at + header.size]))
            for at, header in walk(bytes(batches))
        ]
        self.pending = [entry for _, entries in known for entry in entries]
        try:
            self.log.append_as_follower(batches)
        except (KafkaError, ValueError):
            self.pending = []
            raise
        self.pending = []
        for header, entries in known:
            for offset, entry in enumerate(entries, header.base_offset):
                if entry is not None:
                    self.host.note(entry, offset)
            place(self.mirror, header, entries)

    def truncate_to(self, end_offset: int) -> None:
        log = self.log
        assert log is not None
        if end_offset >= log.log_end_offset:
            return
        self.cutting = end_offset
        self.uncut = list(self.mirror)
        log.truncate_to(end_offset)
        self.cutting, self.uncut = None, None
        self.host.cut(log.log_end_offset)
        self._clip(log.log_end_offset)
        self._heal_rot()

    def _heal_rot(self) -> None:
        """Where nothing is left that proves the damaged bytes, the fault is taken back."""
        rot = self.rotted
        if not self.damaged or rot is None or rot.last < 0:
            return
        if self.log is None or self.log.log_end_offset <= rot.last + 1 or self._proof() <= rot.last:
            if rot.stands:
                rot.flip()
            self.rotted = None
            if self.log is not None:
                self.mirror = self.content(self.log)  # of a log that is used as far as it is sound

    def start_over(self, offset: int, producers: bytes | None = None) -> None:
        """Nobody holds what comes between: the old log may be found once more, whole."""
        assert self.log is not None
        self.uncut, self.cutting = list(self.mirror), 0
        self.log.start_over(offset, producers)
        self.cutting = None
        self.mirror = [None] * offset
        self.covered = []

    def _clip(self, end: int) -> None:
        """The log ends here now."""
        del self.mirror[end:]
        self.covered = [(min(offset, end), at_ms) for offset, at_ms in self.covered]

    def look_at(self, image: MetadataImage) -> None:
        self.keeper.forget_recorded_damage(image)
        self.keeper.quarantine_some()

    def first_look(self, image: MetadataImage) -> None:
        self.keeper.set_aside_strays(image)

    def lose_cache(self) -> None:
        """A sync has failed: the broker forgets the boot id, even if it is killed right after."""
        self.cache_lost = True

    def let_go(self) -> None:
        """Its directory was moved away."""
        if self.log is not None:
            self.log.on_durable = None
        self.log = None

    def set_aside(self) -> None:
        self.keeper.set_aside(TopicIdPartition(TOPIC, ZERO), topic_lives=True)
        self.log = None
        self.aside = self.aside or self.mirror
        self.mirror = []

    def stop(self, *, power: bool) -> None:
        rng, disk = self.host.rng, self.disk
        if self.log is not None and self.uncut is None:
            self.shown_start = self.log.log_start_offset
        power = power or self.power_gone
        thread = getattr(self, "thread", None)
        syncs = thread is not None and thread.tokens is not None
        if power and syncs and not self.power_gone and rng.random() < 0.5:
            self.cut_at(rng.randint(0, 4))
            thread.work()
        if power:
            self.cuts += 1
            self.kept = self.platter()
            disk.cut_power(rng)
            self.platters.forget()
        else:
            if thread is not None and rng.random() < 0.5:
                # What the kernel was asked to do it does; an error that nobody has seen is reported
                # to the next one who syncs (errseq_t), so it does not happen here.
                armed, disk.before = disk.before, None
                thread.work()
                disk.before = armed
            self.kept = None
            disk.kill()
        self.power_gone = False
        if self.manager is not None:
            self.marked = self.is_marked or (self.marked and self.offline)
        self.manager, self.log = None, None

    def close(self, broker_epoch: BrokerEpoch | None) -> None:
        """A shutdown in good order; it is not believed if anything failed meanwhile."""
        assert self.manager is not None
        while not self.thread.is_idle:
            self.thread.step()
        self.thread.detach()
        self.manager.close(broker_epoch)
        self.stop(power=self.host.rng.random() < 0.5)

    # log

    def append(
        self, epoch: int, values: list[int], now_ms: int, claim: Claim | None = None
    ) -> None:
        assert self.log is not None
        records = [self.host.record_of(value) for value in values]
        base = len(self.mirror)
        self.pending = [(epoch, value) for value in values]
        self.log.append_as_leader(
            records,
            key_format=RecordFormat.JSON,
            value_format=RecordFormat.JSON,
            leader_epoch=epoch,
            now_ms=now_ms,
            claim=claim,
        )
        for offset, value in enumerate(values, base):
            self.host.note((epoch, value), offset)
        self.mirror += self.pending
        self.pending = []

    def read(self, start: int, high: int, max_bytes: int) -> tuple[bytes, int]:
        assert self.log is not None
        raw = self.log.read_raw(start, max_bytes, high)
        end = start
        for _, header in walk(raw):
            end = header.next_offset
        return raw, end

    def compacted(self) -> list[int]:
        """The log reads other segments now: the offsets of the records that are not in them."""
        assert self.log is not None
        found, before = self.content(self.log), self.mirror
        if len(found) != len(before) or agree(found, before) is not None:
            at = agree(found, before)
            raise Violation("rule R7", f"broker {self.id} compacted away its log", at, len(found))
        start = self.log.log_start_offset
        gone = [
            offset
            for offset in range(start, len(found))
            if found[offset] is None and before[offset] is not None
        ]
        back = [n for n, each in enumerate(found) if each is not None and before[n] is None]
        if back and back[-1] >= start:
            raise Violation("rule R7", f"broker {self.id}: {back} came back by compaction")
        self.mirror = found
        return gone

    def flush_step(self) -> None:
        if self.manager is not None:
            self.thread.step()

    def flush_all(self) -> None:
        if self.manager is None:
            return
        self.manager.flush_dirty()
        for _ in range(8):
            self.thread.step()

    def idle(self) -> None:
        """What the manager's own task does now and then."""
        if self.manager is None or self.log is None:
            return
        self.manager.flush_dirty()
        try:
            removals = self.manager.removals
            removals.rename_some()
            removals.unlink(removals.take_due(600_000))
            self.manager.checkpoint_high_watermarks()
        except OSError as error:
            if error.errno not in DISK_FULL:
                fail_all_logs(self.manager, error)


def config_of(b: BrokerId) -> BrokerConfig:
    return BrokerConfig(
        broker_id=b,
        cluster_id=ClusterId("simulated"),
        directory_id=DirectoryId(f"disk{b}.0"),
        data_dir=Path("/data"),
        advertised_http="h:1",
        advertised_peer="h:2",
    )
