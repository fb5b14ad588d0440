"""Where a simulated replica keeps its log: in memory, or the product's own log on a simulated disk.

A store outlives the processes that use it. `DiskStore` runs `LogManager`, `LogKeeper`,
`PartitionLog`, recovery and the `Flusher`; the flusher's thread is an actor that does its work
when the scheduler says so. ``mirror`` is what the simulation knows the log to hold, by offset;
what the log really holds is read back and compared with it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from broker.config import BrokerConfig
from broker.log.checkpoints import decode_checkpoint
from broker.log.disk import DISK_FULL
from broker.log.log_directory import PARTITION_FILE, LogConfig
from broker.log.log_manager import LogManager
from broker.log.partition_log import PartitionLog
from broker.log.producer_state import ProducerStates
from broker.log.recovery import LEADER_EPOCH_FILE, RECOVERY_POINT_FILE, recover_log
from broker.log.segment import OpenFiles
from broker.record.batch import HEADER_SIZE, BatchError, BatchHeader, RecordFormat, verify, walk
from broker.record.lines import ProduceRecord, make_raw
from broker.replication.log_keeper import LogKeeper
from raft_metadata.common.errors import CorruptionError, KafkaError, StorageError
from raft_metadata.common.ids import (
    BrokerEpoch,
    BrokerId,
    ClusterId,
    DirectoryId,
    IncarnationId,
    PartitionId,
    TopicId,
)
from raft_metadata.common.producer_claims import Claim
from raft_metadata.image.metadata_image import MetadataImage
from tests.support.memory_log import MemoryLog, decode, encode
from tests.support.replication_invariants import Entry, Violation, agree
from tests.support.simulated_disk import SimulatedDisk

TOPIC = TopicId("A" * 22)
ZERO = PartitionId(0)
ROOT = "/data/log"
KEYS = tuple(f'"k{number}{"x" * pad}"'.encode() for number, pad in enumerate((0, 60, 900, 3000)))
SEGMENT_BYTES = (900, 6_000, 1 << 30)


class StoreHost(Protocol):
    """What a store asks of the simulated broker that owns it."""

    rng: random.Random

    def note(self, entry: Entry, offset: int) -> None:
        """An entry was appended."""

    def cut(self, end: int) -> None:
        """The log is about to be cut."""

    def durable(self) -> None:
        """The durable end moved."""


class MemoryStore:
    """A `MemoryLog`: cheap, with no file beneath it. Every fault of it is one of this class."""

    real = False

    def __init__(self, host: StoreHost) -> None:
        self.host = host
        self.failed: BaseException | None = None
        self.unclean = False
        self.damaged = False
        self.renew()

    def renew(self) -> None:
        self.log = CuttingLog(self.host)
        self.damaged = False

    @property
    def mirror(self) -> list[Entry]:
        return self.log.entries

    def platter(self) -> list[Entry]:
        return self.log.synced

    # life

    def start(self, incarnation: str) -> bool:
        self.log.synced = list(self.log.entries)  # rule Q1: open means synced
        self.log.durable_end = len(self.log.entries)
        self.log.generation, self.log.flush = 0, None
        self.unclean = self.damaged
        return True

    def take(self, image: MetadataImage, config: LogConfig) -> MemoryLog:
        """The log of the assigned replica."""
        return self.log

    def look_at(self, image: MetadataImage) -> None:
        """Nothing: what is damaged is forgotten when the controller has recorded it."""

    def set_aside(self) -> None:
        """The replica was removed from this broker."""
        self.renew()

    def stop(self, *, power: bool) -> None:
        """SIGKILL keeps the page cache; a power cut keeps at least what was synced."""
        log, rng = self.log, self.host.rng
        if power:
            same = 0
            while same < min(len(log.entries), len(log.synced)):
                if log.entries[same] != log.synced[same]:
                    break
                same += 1
            if rng.random() < 0.4:
                log.synced = log.entries[: rng.randint(same, len(log.entries))]
            log.recover(log.synced, keep_cache=False)
        else:
            log.recover(log.entries, keep_cache=rng.random() < 0.5)

    def close(self, broker_epoch: BrokerEpoch | None) -> None:
        self.log.flush_now()
        self.stop(power=False)

    def lose_disk(self) -> None:
        self.renew()

    def rot(self) -> bool:
        """Durable bytes are gone under the same directory id; recovery notices (rules Q5, R6)."""
        kept = self.log.entries[: self.host.rng.randint(0, len(self.log.entries))]
        self.log.recover(kept, keep_cache=False)
        self.log.synced = list(self.log.entries)
        self.damaged = True
        return True

    def recorded(self) -> None:
        """The controller knows of the damage, and has taken the replica out."""
        self.damaged = False

    # log

    def append(
        self, epoch: int, values: list[int], now_ms: int, claim: Claim | None = None
    ) -> None:
        for value in values:
            self.log.append((epoch, value))

    def read(self, start: int, high: int, max_bytes: int) -> tuple[bytes, int]:
        entries = self.log.entries[start : min(high, start + 2)]  # catch-up in small quanta
        return encode(entries), start + len(entries)

    def flush_step(self) -> None:
        if self.log.flush is None:
            self.log.flush_start()
        elif self.log.flush_end():
            self.host.durable()

    def flush_all(self) -> None:
        self.log.flush_start()
        if self.log.flush_end():
            self.host.durable()

    def idle(self) -> None:
        """What a broker does now and then."""


class CuttingLog(MemoryLog):
    """Says before it is cut, as `ToldLog` does."""

    def __init__(self, host: StoreHost) -> None:
        super().__init__(host.note)
        self._host = host

    def truncate_to(self, end_offset: int) -> None:
        if end_offset < len(self.entries):
            self._host.cut(end_offset)
        super().truncate_to(end_offset)


# ---- the product's own log


class PowerCut(BaseException):
    """The power went at this very call of the disk."""


class FlusherThread:
    """Stands where the flusher's thread, its queue and its event are: works when told to."""

    def __init__(self, flusher: Any) -> None:
        self.flusher = flusher
        self.tokens: Any = None
        flusher._thread = flusher._queue = flusher._round_over = self

    def put(self, tokens: Any) -> None:
        self.tokens = tokens

    def work(self) -> None:
        tokens, self.tokens = self.tokens, None
        if tokens is not None:
            self.flusher._finished.append(self.flusher._work(tokens))

    def wait(self) -> None:
        """The loop waits for the round under way: `Flusher.drain`."""
        self.work()

    def clear(self) -> None: ...

    def join(self) -> None:
        self.work()

    def step(self) -> None:
        if self.tokens is not None:
            self.work()
        elif self.flusher._finished:
            self.flusher._collect()
            self.flusher._kick()
        else:
            self.flusher._kick()


class ToldLog:
    """A `PartitionLog` as its `Partition` has it; the store is told of what changes its content."""

    def __init__(self, store: DiskStore, log: PartitionLog) -> None:
        self._log = log
        self.append_as_follower = store.append_as_follower
        self.truncate_to = store.truncate_to
        self.start_over = store.start_over

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


class DiskStore:
    """The product's log directory on a disk that loses unsynced pages and names."""

    real = True

    def __init__(self, host: StoreHost, b: BrokerId, segment_bytes: int) -> None:
        self.host, self.id, self.segment_bytes = host, b, segment_bytes
        self.cuts = self.full = self.found_rotten = 0
        self.config = _config(b)
        self.lose_disk()

    def lose_disk(self) -> None:
        self.disk = SimulatedDisk()
        self.disk.make_directory(ROOT)
        self.disk.synced = dict(self.disk.live)
        self.mirror: list[Entry | None] = []
        self.pending: list[Entry] = []
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
        self.rotted: tuple[Any, int, int] | None = None  # inode, position, last offset
        self.manager: LogManager | None = None
        self.recovered: PartitionLog | None = None
        self.log: PartitionLog | None = None
        self.failure: list[BaseException] = []
        self.power_gone = False
        self._platter: tuple[int, list[Entry | None]] = (-1, [])
        self._parsed: dict[str, tuple[Any, bytes, list[tuple[BatchHeader, list[Entry]]]]] = {}

    @property
    def damaged(self) -> bool:
        """Ground truth: bytes that were proven durable are not what they were."""
        return self.rotted is not None

    @property
    def failed(self) -> BaseException | None:
        """Why the process has to end."""
        if self.power_gone:
            return PowerCut()
        if self.manager is None:
            return None
        if self.manager.lost:
            return self.manager.lost[0][1]
        return self.manager.failed

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
            disk=self.disk,
            max_open_segments=self.host.rng.choice((1, 2, 64)),
            default_config=LogConfig(segment_bytes=self.segment_bytes),
        )
        try:
            self.manager.open()
            self.manager.identify(_NAME, ZERO, TOPIC)
        except (OSError, StorageError, PowerCut):
            self.stop(power=self.power_gone)
            return False
        self.keeper = LogKeeper(self.config, IncarnationId(incarnation), self.manager)
        self.thread = FlusherThread(self.manager._opened().flusher)
        self.log = None
        opened = self.recovered = self.manager.get(TOPIC, ZERO)
        if opened is None:
            if not self.manager.offline and durable and not self.damaged:
                raise Violation("L23", f"broker {self.id} has lost its log, {len(durable)} durable")
            if self.manager.offline and not self.damaged:
                raise Violation("L22", f"broker {self.id} is refused: {self.manager.offline}")
            self.found_rotten += bool(self.manager.offline)
            self.mirror = []
            return True
        try:
            self.mirror = self.read_all(opened)
        except OSError:  # the rot was found, and could not be noted
            self.stop(power=False)
            return False
        if not self.damaged:
            if self.uncut is not None:
                if agree(self.mirror, self.uncut) is None:
                    before = max(before, self.uncut, key=len)
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
                self.mirror, self.aside, self.uncut, self.shown_start = [], [], None, 0
                self.rotted = None  # what was damaged is set aside
            self.log = log
            log.on_durable = self._durable
        return None if log is None else ToldLog(self, log)

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
        del self.mirror[log.log_end_offset :]
        self._heal_rot()

    def _heal_rot(self) -> None:
        """Where nothing is left that proves the damaged bytes, the fault is taken back."""
        if self.rotted is None:
            return
        inode, position, last = self.rotted
        if self.log is None or self.log.log_end_offset <= last + 1 or self._proof() <= last:
            _flip(inode, position)
            self.rotted = None

    def start_over(self, offset: int) -> None:
        """Nobody holds what comes between: the old log may be found once more, whole."""
        assert self.log is not None
        self.uncut, self.cutting = list(self.mirror), 0
        self.log.start_over(offset)
        self.cutting = None
        self.mirror = [None] * offset
        self.rotted = None

    def look_at(self, image: MetadataImage) -> None:
        self.keeper.forget_recorded_damage(image)
        self.keeper.quarantine_some()

    def first_look(self, image: MetadataImage) -> None:
        self.keeper.set_aside_strays(image)

    def set_aside(self) -> None:
        from raft_metadata.common.ids import TopicIdPartition

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
            self._platter = (-1, [])
        else:
            if thread is not None and rng.random() < 0.5:
                thread.work()  # what the kernel was asked to do it does
            self.kept = None
            disk.kill()
        self.power_gone = False
        self.manager, self.log = None, None

    def close(self, broker_epoch: BrokerEpoch | None) -> None:
        """A shutdown in good order; it is not believed if anything failed meanwhile."""
        assert self.manager is not None
        while self.thread.tokens is not None or self.thread.flusher._finished:
            self.thread.step()
        self.thread.flusher._thread = None
        self.manager.close(broker_epoch)
        self.stop(power=self.host.rng.random() < 0.5)

    # faults

    def cut_at(self, calls: int) -> None:
        """The power goes at a call of the disk, so many from here."""
        left = calls

        def hook(operation: str, path: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                self.power_gone = True
                raise PowerCut

        self.disk.before = hook

    def fail_sync(self) -> None:
        self.disk.fail_once(self.host.rng.choice(("sync_data", "sync_filesystem", "sync_file")))

    def fill(self) -> None:
        """So many bytes are free, and nobody makes room for a while."""
        self.full += 1
        self.disk.room = self.host.rng.choice((0, 1, 50, 200, 1000, 4000))

    def relieve(self) -> None:
        self.disk.room = None

    def rot(self) -> bool:
        """A bit of a record that was proven durable flips; False where there is none."""
        assert self.manager is None
        proof = self._proof()
        sealed = [
            (inode, position, header)
            for inode, position, header in self._batches()
            if header.next_offset <= proof
        ]
        if not sealed:
            return False
        inode, position, header = self.host.rng.choice(sealed)
        at = position + self.host.rng.randrange(HEADER_SIZE, header.size)
        _flip(inode, at)
        self.rotted = (inode, at, header.last_offset)
        return True

    def recorded(self) -> None:
        """The controller knows; the bytes are set aside when the log is opened next."""

    def _files(self) -> list[tuple[str, Any]]:
        start = f"{ROOT}/{_NAME}-0/"
        return [
            (path, self.disk.live[path])
            for path in sorted(self.disk.live)
            if path.startswith(start) and path.endswith(".log")
        ]

    def _batches(self) -> list[tuple[Any, int, BatchHeader]]:
        found = []
        for _, inode in self._files():
            try:
                found += [(inode, at, header) for at, header in walk(bytes(inode.cache))]
            except BatchError:
                return []  # a torn tail: nothing is rotted in such a log
        return found

    def _proof(self) -> int:
        return max((header.durable_end for _, _, header in self._batches()), default=0)

    # log

    def append(
        self, epoch: int, values: list[int], now_ms: int, claim: Claim | None = None
    ) -> None:
        assert self.log is not None
        rng = self.host.rng
        records = [
            ProduceRecord(key=make_raw(rng.choice(KEYS)), value=make_raw(b"%d" % value))
            for value in values
        ]
        base = len(self.mirror)
        self.pending = [(epoch, value) for value in values]
        self.log.append_as_leader(
            records,
            key_format=RecordFormat.JSON,
            value_format=RecordFormat.JSON,
            leader_epoch=epoch,
            now_ms=now_ms,
            **_named(claim),
        )
        for offset, entry in enumerate(self.pending, base):
            self.host.note(entry, offset)
        self.mirror += self.pending
        self.pending = []

    def read(self, start: int, high: int, max_bytes: int) -> tuple[bytes, int]:
        assert self.log is not None
        raw = self.log.read_raw(start, max_bytes, high)
        end = start
        for _, header in walk(raw):
            end = header.next_offset
        return raw, end

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
            removals._now_ms += 600_000
            removals.rename_some()
            removals._unlink(removals._due())
            self.manager.checkpoint_high_watermarks()
        except OSError as error:
            if error.errno not in DISK_FULL:
                self.manager._fail_all(error)

    # from its bytes

    def runs(self) -> list[tuple[int, int, int]]:
        """(base, next, epoch) of every batch on the disk, out of use or not."""
        assert self.log is not None
        used = {segment.log_path for segment in self.log.segments}
        return [
            (header.base_offset, header.next_offset, header.leader_epoch)
            for path, inode in self._files()
            if path in used
            for _, header in walk(bytes(inode.cache))
        ]

    def producers(self) -> tuple[object, object]:
        """What the log remembers of its producers, and what a replay of its bytes gives (T4)."""
        assert self.log is not None
        replayed = ProducerStates()
        used = {segment.log_path for segment in self.log.segments}
        for path, inode in self._files():
            for _, header in walk(bytes(inode.cache)) if path in used else ():
                if header.producer_id >= 0:
                    replayed.applied(header)
        known = self.log.producers
        return sorted(known.items() if known else ()), sorted(replayed.items())

    def mirror_start(self) -> int:
        return next((at for at, each in enumerate(self.mirror) if each is not None), 0)

    def rebuilt_epochs(self) -> list[tuple[int, int]]:
        """The epoch cache, from a copy of the log without any checkpoint of epochs."""
        copy = SimulatedDisk()
        for path, inode in self.disk.live.items():
            keep = not path.endswith((LEADER_EPOCH_FILE, ".index"))
            if keep and inode is not None:
                fd = copy.open(path, create=True)
                copy.write(fd, bytes(inode.cache), 0)
        files = OpenFiles(copy, 64)
        return recover_log(files, f"{ROOT}/{_NAME}-0").epochs.entries

    # what a power cut can't take

    def platter(self) -> list[Entry | None]:
        """What of the log is on the platters for sure, by its bytes and names."""
        version = len(self.disk.calls)
        if version != self._platter[0]:
            self._platter = (version, self._read_platter())
        return self._platter[1]

    def _read_platter(self) -> list[Entry | None]:
        disk, directory = self.disk, f"{ROOT}/{_NAME}-0"
        found: list[Entry | None] = []
        whose = disk.synced.get(f"{directory}/{PARTITION_FILE}")
        if directory not in disk.synced or whose is None or not whose.durable.strip(b"\0"):
            return found  # whatever lies there, it would be set aside
        files = {
            int(path[-24:-4]): (path, inode)
            for path, inode in disk.synced.items()
            if path.startswith(directory + "/") and path.endswith(".log") and inode is not None
        }
        start = self._durable_start(f"{directory}/{RECOVERY_POINT_FILE}")
        first = max((base for base in files if base <= start), default=min(files, default=start))
        found = [None] * first
        for base in sorted(base for base in files if base >= first):
            if base != len(found):
                break
            for header, entries in self._parse(*files[base]):
                if header.base_offset != len(found):
                    return found
                place(found, header, entries)
        return found

    def _durable_start(self, path: str) -> int:
        inode = self.disk.synced.get(path)
        if inode is None:
            return 0
        try:
            content: Any = decode_checkpoint(bytes(inode.durable), path)
        except (CorruptionError, ValueError):
            return 0
        return int(content["log_start_offset"])

    def _parse(self, path: str, inode: Any) -> list[tuple[BatchHeader, list[Entry]]]:
        known = self._parsed.get(path)
        if known is not None and known[0] is inode and inode.durable.startswith(known[1]):
            done, batches = known[1], known[2]
            if len(inode.durable) == len(done):
                return batches
        else:
            done, batches = b"", []
        durable = bytes(inode.durable)
        at = len(done)
        batches = list(batches)
        while at < len(durable):
            try:
                header = verify(durable, at)
            except BatchError:
                break
            batches.append((header, entries_of(header, durable[at : at + header.size])))
            at += header.size
        self._parsed[path] = (inode, durable[:at], batches)
        return batches


_NAME = "t"
_DECODED: dict[tuple[int, bytes], list[Entry]] = {}


def _flip(inode: Any, position: int) -> None:
    for content in (inode.cache, inode.durable):
        if position < len(content):
            content[position] ^= 1


def entries_of(header: BatchHeader, raw: bytes) -> list[Entry]:
    """The entries of one batch; the same bytes are read many times."""
    key = (header.leader_epoch, raw[HEADER_SIZE:])
    found = _DECODED.get(key)
    if found is None:
        if len(_DECODED) > 5_000:
            _DECODED.clear()
        lines = raw[HEADER_SIZE:].split(b"\n")[:-1]
        found = _DECODED[key] = [(header.leader_epoch, _value(line)) for line in lines]
    return found


def _named(claim: Claim | None) -> dict[str, int]:
    if claim is None:
        return {}
    return {
        "producer_id": claim.producer_id,
        "producer_epoch": claim.epoch,
        "base_sequence": claim.sequence,
    }


def _value(line: bytes) -> int:
    """The value of a stored record; -1 where a reader was handed damaged bytes."""
    number = line[line.rfind(b":") + 1 : -1]
    return int(number) if number.isdigit() else -1


def batches_of(raw: bytes) -> list[tuple[BatchHeader, list[Entry]]]:
    """Whole batches with their entries, as a reader got them: each with its checksum."""
    found = []
    for at, header in walk(raw):
        try:
            verify(raw, at)
        except BatchError as error:
            raise Violation("L22", f"a reader was given a damaged batch: {error}") from error
        found.append((header, entries_of(header, raw[at : at + header.size])))
    return found


def place(log: list[Entry | None], header: BatchHeader, entries: list[Entry]) -> None:
    """Put a batch's entries where they stand; of a first one what lies behind the log start."""
    log.extend(entries[len(log) - header.base_offset :])


def _config(b: BrokerId) -> BrokerConfig:
    return BrokerConfig(
        broker_id=b,
        cluster_id=ClusterId("simulated"),
        directory_id=DirectoryId(f"disk{b}.0"),
        data_dir=Path("/data"),
        advertised_http="h:1",
        advertised_peer="h:2",
    )


__all__ = ["DiskStore", "MemoryStore", "PowerCut", "decode"]
