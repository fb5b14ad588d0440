"""Disks that are full at any byte, and processes without descriptors: refused, read on, over.

Invariant L26 and rule R2: no acknowledgement, no half batch, no end of the process; and when room
returns everything goes on without a restart.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
from functools import partial
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from broker.log import log_manager
from broker.log.log_directory import LogConfig
from broker.record.batch import RecordFormat
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome, StorageError
from raft_metadata.common.ids import Claim
from tests.support.doors.log import log_directory_of, open_files_of
from tests.support.logs import Life, append, flush_each, records, values_of
from tests.support.simulated_disk import SimulatedDisk

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.log.partition_log import PartitionLog


LOG = "/data/log/orders-0/00000000000000000000.log"
SMALL = LogConfig(segment_bytes=700)
SEEDS = range(20)


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


class SmallDisk(SimulatedDisk):
    """Names need room too, as in a full file system whose inode tables are full."""

    @override
    def open(self, path: str, *, create: bool = False) -> int:
        if create and path not in self.live and self.room is not None and self.room < 1:
            raise OSError(errno.ENOSPC, "no space left on device", path)
        return super().open(path, create=create)


def refusal(step: Callable[[], object]) -> KafkaError | None:
    try:
        step()
    except KafkaError as error:
        return error
    return None


def found_empty(log: PartitionLog) -> bool:
    return log.log_start_offset == log.log_end_offset


class Story:
    """One log through everything it does; what a full disk refuses is left out of the model."""

    def __init__(self, room_at: int, room: int, *, follower: bool) -> None:
        self.disk = SmallDisk()
        self.disk.synced["/data"] = self.disk.live["/data"] = None
        self.life = Life(self.disk, SMALL)
        self.log = self.life.log()
        self.source = Life(SimulatedDisk(), SMALL, data_dir="/other").log() if follower else None
        self.model: list[str] = []
        self.start = 0
        self.steps = 0
        self.room_at = room_at
        self.room = room
        self.refused = 0

    def tried(self, step: Callable[[], object], *, adds: str | None = None) -> bool:
        if self.steps == self.room_at:
            self.disk.room = self.room
        if self.steps == self.room_at + 3:
            self.disk.room = None
        self.steps += 1
        found = refusal(step)
        if found is not None:
            assert found.code is ErrorCode.KAFKA_STORAGE_ERROR
            assert found.outcome is Outcome.NOT_WRITTEN
            assert "no space left" in found.message.lower()
            assert self.disk.room is not None, "only a full disk refuses"
            self.refused += 1
            if found_empty(self.log):  # it starts over later, what it had is gone by then
                del self.model[self.log.log_end_offset :]
            self.check()
            return False
        if adds is not None:
            self.model.append(adds)
        del self.model[self.log.log_end_offset :]
        self.model += ["gone"] * (self.log.log_end_offset - len(self.model))
        self.check()
        return True

    def check(self) -> None:
        assert self.life.failures == []
        assert self.log.failed is None
        start, end = self.log.log_start_offset, self.log.log_end_offset
        assert values_of(self.log, start) == self.model[start:end]

    def append(self, count: int) -> None:
        for _ in range(count):
            value = f"{self.steps}" + "x" * 150
            if self.source is None:
                self.tried(partial(append, self.log, [value]), adds=value)
                continue
            raw = append(self.source, [value])
            if not self.tried(partial(self.log.append_as_follower, raw), adds=value):
                self.source.truncate_to(self.log.log_end_offset)

    def run(self) -> None:
        self.append(8)
        self.tried(self.life.flush)
        self.append(4)
        self.tried(partial(self.log.advance_log_start, 3))
        self.tried(self.life.flush)
        self.life.manager.removals.rename_some()
        cut = self.log.log_end_offset - 4
        self.tried(partial(self.log.truncate_to, cut))
        if self.source is not None:
            self.source.truncate_to(self.log.log_end_offset)
        self.append(3)
        self.tried(self.log.roll)
        self.tried(self.life.flush)
        behind = len(self.model) + 5
        if self.source is None:
            self.tried(partial(self.log.start_over, behind))
            self.append(2)
            self.tried(partial(self.log.start_over, behind - 2))
        self.append(3)
        self.disk.room = None
        self.life.manager.flush_dirty()
        self.log.request_flush()
        self.life.flush()
        assert self.log.durable_end == self.log.log_end_offset == len(self.model)
        self.append(2)
        self.life.flush()


@pytest.mark.parametrize("follower", [False, True])
def test_invariant_l26_a_disk_that_is_full_at_any_byte_of_anything_ends_nothing(
    *, follower: bool
) -> None:
    refused = 0
    for room_at in range(40):
        for room in (0, 30 + room_at, 150 - room_at):
            story = Story(room_at, room, follower=follower)
            story.run()
            refused += story.refused
            expected = story.model[story.log.log_start_offset :]
            story.disk.cut_power(random.Random(room_at * 1000 + room))
            log = Life(story.disk, SMALL).log()
            assert log.log_end_offset == len(story.model)
            assert values_of(log, log.log_start_offset) == expected
    assert refused > 60


def test_a_full_disk_at_a_truncation_cuts_nothing_and_cuts_later() -> None:
    disk = SmallDisk()
    life = Life(disk, SMALL)
    log = life.log()
    for n in range(12):
        append(log, [f"{n}" + "x" * 150])
    life.flush()
    disk.room = 0
    with pytest.raises(KafkaError, match="no space left") as refused:
        log.truncate_to(2)
    assert refused.value.outcome is Outcome.NOT_WRITTEN
    assert (log.log_end_offset, log.failed, life.failures) == (12, None, [])
    assert len(values_of(log)) == 12
    disk.room = None
    log.truncate_to(2)
    assert log.log_end_offset == 2


def test_invariant_t4_a_segment_begun_for_what_found_no_room_keeps_the_producers_before_it() -> (
    None
):
    """A new segment seals the one before, whose headers no start reads: it needs its snapshot."""
    disk = SimulatedDisk()
    life = Life(disk, SMALL)
    log = life.log()
    large = SMALL.segment_bytes

    def write(sequence: int, value: str) -> None:
        log.append_as_leader(
            records([value]),
            key_format=RecordFormat.JSON, value_format=RecordFormat.JSON,
            leader_epoch=1, now_ms=1000 + sequence,
            claim=Claim(7, 0, sequence),
        )  # fmt: skip

    write(0, "a")
    disk.room = 0
    with pytest.raises(KafkaError, match="no space left"):
        write(1, "x" * large)
    assert len(log.segments) == 2
    disk.room = None
    life.flush()
    disk.kill()
    again = Life(disk, SMALL).log()
    assert again.producers is not None
    assert [producer for producer, _ in again.producers.items()] == [7]
    found = again.repeated(Claim(7, 0, 0), 1, 1002)
    assert found is not None
    assert found.first_offset == 0


def test_rule_q2_an_io_error_of_any_sync_fails_the_directory() -> None:
    for call in ("sync_data", "sync_file", "sync_directory", "sync_filesystem"):
        disk = SimulatedDisk()
        life = Life(disk, SMALL)
        life.flusher.sync_files_max = 0 if call == "sync_filesystem" else 100
        append(life.log(), ["a"])
        disk.fail_once(call)
        with pytest.raises(StorageError):
            life.flush()
        assert len(life.failures) == 1
        with pytest.raises(KafkaError, match="offline"):
            append(life.log(), ["b"])


# descriptors


class ScarceDisk(SimulatedDisk):
    """A process that may have so many descriptors open."""

    most = 10_000

    def _check(self) -> None:
        if len(self.descriptors) >= self.most:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    @override
    def open(self, path: str, *, create: bool = False) -> int:
        self._check()
        return super().open(path, create=create)

    @override
    def sync_directory(self, path: str) -> None:
        self._check()
        super().sync_directory(path)


@pytest.mark.parametrize("ack", [False, True])
def test_many_more_partitions_than_descriptors(*, ack: bool) -> None:
    """Appended to in turn, synced, read, rolled, closed and opened: 400 logs, 40 descriptors."""
    disk = ScarceDisk()
    config = LogConfig(segment_bytes=400, flush_before_ack=ack)
    life = Life(disk, config, open_files=30)
    disk.most = 40
    logs = [life.log(number) for number in range(400)]
    written = {log.name: 0 for log in logs}
    for turn in range(3):
        for log in logs:
            found = refusal(partial(append, log, [f"{turn}" + "x" * 100]))
            if found is not None:  # every descriptor waits for a sync
                assert found.outcome is Outcome.NOT_WRITTEN
                life.manager.flush_dirty()
                life.flush()
                append(log, [f"{turn}" + "x" * 100])
            written[log.name] += 1
        life.manager.flush_dirty()
        life.flush()
        assert all(log.durable_end == log.log_end_offset == turn + 1 for log in logs)
    assert life.failures == []
    assert all(len(values_of(log)) == 3 for log in logs)
    assert life.manager.open_segments <= 30
    life.close()
    disk.kill()
    reopened = Life(disk, config, open_files=30)
    assert reopened.manager.offline == {}
    assert all(len(values_of(reopened.log(number))) == 3 for number in range(400))


def test_a_process_out_of_descriptors_refuses_and_goes_on() -> None:
    """Connections have taken them all: nothing fails for good, the flusher does not end."""
    disk = ScarceDisk()
    life = Life(disk, SMALL)
    logs = [life.log(number) for number in range(30)]
    for log in logs:
        append(log, ["a"])
    disk.most = len(disk.descriptors)
    life.flush()  # with more files than it syncs each by itself: syncfs needs no descriptor
    assert all(log.durable_end == 1 for log in logs)
    append(logs[0], ["b"])
    life.flusher.sync_files_max = 100
    append(life.log(40), ["new"])  # what is synced gives its descriptors up
    disk.most = 0
    life.flush()
    assert life.failures == []
    with pytest.raises(KafkaError, match="open files"):
        append(life.log(41), ["no"])
    disk.most = 1_000
    append(life.log(41), ["yes"])
    life.flush()
    assert life.failures == []


async def test_rule_q6_an_unsynced_file_keeps_its_descriptor_and_is_synced_soon() -> None:
    """The limit is exceeded rather than that; whoever would exceed it has the others synced, with
    the loop's next turn: it may be amid a cut now (rule Q3)."""
    disk = SimulatedDisk()
    life = Life(disk, LogConfig(flush_before_ack=False), open_files=16)
    life.manager.start(asyncio.get_running_loop())
    logs = [life.log(number) for number in range(40)]
    for log in logs:
        append(log, ["a"])
    assert all(log.segments[0].fd >= 0 for log in logs)
    dirty = log_directory_of(life.manager).dirty
    assert dirty == set(logs), "not at once"
    await asyncio.sleep(0)
    assert not dirty, "a flush was asked for before its time"
    life.flush()
    append(life.log(41), ["b"])
    life.manager.flush_dirty()
    life.flush()
    for log in logs:
        assert values_of(log) == ["a"]
    assert life.manager.open_segments <= 40


# written whole, or not at all


def test_rule_r2_a_write_cut_short_at_any_byte_leaves_the_log_as_it_was(
    disk: SimulatedDisk,
) -> None:
    life = Life(disk)
    log = life.log()
    append(log, ["a"])
    size = len(disk.read_file(LOG) or b"")
    for room in range(0, size + 40, 3):
        disk.room = room
        with pytest.raises(KafkaError) as refused:
            append(log, ["b" * 100])
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert refused.value.outcome is Outcome.NOT_WRITTEN
        disk.room = None
        assert (log.log_end_offset, len(disk.read_file(LOG) or b"")) == (1, size)
    append(log, ["c"])
    assert values_of(log) == ["a", "c"]
    assert not life.failures


def test_rule_r2_a_follower_too_is_as_before_a_failed_write(disk: SimulatedDisk) -> None:
    life = Life(disk)
    raw = append(life.log(0), ["a", "b"])
    follower = life.log(1)
    disk.room = 150
    with pytest.raises(KafkaError):
        follower.append_as_follower(raw)
    assert (follower.log_end_offset, follower.last_epoch) == (0, -1)
    disk.room = None
    follower.append_as_follower(raw)
    assert values_of(follower) == ["a", "b"]


@pytest.mark.parametrize("seed", SEEDS)
def test_rule_r2_bytes_of_a_failed_write_do_not_come_back(disk: SimulatedDisk, seed: int) -> None:
    """A cut that was not synced could give one (epoch, offset) two contents after a power cut."""
    life = Life(disk)
    log = life.log()
    flush_each(life, log, ["a"])
    disk.room = 8200

    def written_back(operation: str, path: str) -> None:
        if operation == "truncate":
            disk.live[path].sync()  # type: ignore[union-attr]  # the kernel's own write-back

    disk.before = written_back
    with pytest.raises(KafkaError):
        append(log, ["x" * 4000, "y" * 4000, "z" * 4000])
    disk.room = None
    size = log.segments[0].size
    inode = disk.live[LOG]
    assert inode is not None
    assert len(inode.durable) == size
    disk.cut_power(random.Random(seed))
    assert values_of(Life(disk).log()) == ["a"]


def test_rule_r2_if_the_cut_fails_the_log_fails_and_the_outcome_is_unknown(
    disk: SimulatedDisk,
) -> None:
    life = Life(disk)
    log = life.log()
    append(log, ["a"])
    disk.room = 50
    disk.fail_once("truncate")
    with pytest.raises(KafkaError) as refused:
        append(log, ["b" * 100])
    assert refused.value.outcome is Outcome.UNKNOWN
    assert len(life.failures) == 1
    disk.room = None
    with pytest.raises(KafkaError) as refused:
        append(log, ["c"])
    assert refused.value.outcome is Outcome.NOT_WRITTEN


def test_rule_r2_a_disk_that_breaks_while_writing_fails_the_log(disk: SimulatedDisk) -> None:
    life = Life(disk)
    log = life.log()
    append(log, ["a"])
    disk.fail_once("write", errno.EIO)
    with pytest.raises(KafkaError):
        append(log, ["b"])
    assert len(life.failures) == 1


# a broker whose disk is full, or that has no descriptor left


def test_a_full_disk_does_not_stop_the_log_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_manager, "HIGH_WATERMARK_INTERVAL_MS", 5)
    disk = SimulatedDisk()
    life = Life(disk, flush_interval_ms=5)
    append(life.log(), ["a"])
    life.flush()
    disk.room = 0

    async def run() -> None:
        life.manager.start(asyncio.get_running_loop())
        async with asyncio.timeout(0.2):
            await life.manager.run()

    with pytest.raises(TimeoutError):
        asyncio.run(run())


class OverwritingNeedsNoRoom(SimulatedDisk):
    """As a real file system: only bytes behind the end of a file need room."""

    def write(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
        room, have = self.room, len(self._inode(fd).cache)
        if room is not None and position + len(data) <= have:
            self.room = None
        try:
            super().write(fd, data, position)
        finally:
            if self.room is None:
                self.room = room


def test_a_disk_that_is_full_at_a_roll_comes_back() -> None:
    disk = OverwritingNeedsNoRoom()
    config = LogConfig(segment_bytes=1024)
    life = Life(disk, config)
    log = life.log()
    append(log, ["a" * 900])
    life.flush()
    append(log, ["b" * 900])  # rolled
    disk.room = 0  # the data are there, the checkpoints of the sealed segment have no room
    life.flush()
    assert log.durable_end == log.log_end_offset
    disk.kill()
    disk.room = 0
    assert values_of(Life(disk, config).log()) == ["a" * 900, "b" * 900]


def test_a_read_without_a_free_descriptor_fails_the_read_not_the_broker(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(disk, LogConfig(segment_bytes=1024))
    log = life.log()
    flush_each(life, log, [f"{n}" + "x" * 500 for n in range(4)])
    open_files_of(life.manager).forget(log.segments[0])

    def no_descriptor(path: str, *, create: bool = False) -> int:
        raise OSError(errno.EMFILE, f"too many open files: {path} {create}")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "open", no_descriptor)
        with pytest.raises(KafkaError) as refused:
            log.read(0, 1 << 20, 4)
    assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert (life.failures, log.failed) == ([], None)
    assert log.read(0, 1 << 20, 4)
