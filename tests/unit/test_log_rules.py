"""Rules Q1 to Q6: what counts as durable, and what a start believes of a file; one story each."""

from __future__ import annotations

import asyncio
import errno
import random

import pytest

from broker.log.log_directory import LogConfig
from broker.record.batch import HEADER_SIZE, is_stamped, parse_header, walk
from raft_metadata.common.errors import (
    CorruptionError,
    ErrorCode,
    KafkaError,
    Outcome,
    StorageError,
)
from tests.support.doors.log import open_files_of
from tests.support.logs import TOPIC_ID, Life, append, flush_each, values_of
from tests.support.replica_bytes import flip
from tests.support.simulated_disk import SimulatedDisk
from tests.support.waiting import until

LOG = "/data/log/orders-0/00000000000000000000.log"
SEEDS = range(20)


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


# Q1


@pytest.mark.parametrize("seed", SEEDS)
def test_rule_q1_what_sigkill_left_in_the_cache_is_synced_at_open(
    disk: SimulatedDisk, seed: int
) -> None:
    append(Life(disk).log(), ["never synced", "x" * 9000])
    disk.kill()
    log = Life(disk).log()
    assert log.durable_end == log.log_end_offset == 2
    disk.cut_power(random.Random(seed))
    assert values_of(Life(disk).log()) == ["never synced", "x" * 9000]


@pytest.mark.parametrize("seed", SEEDS)
def test_rule_q1_after_a_failed_sync_the_cache_is_not_believed(
    disk: SimulatedDisk, seed: int
) -> None:
    """The pages look clean and the disk has not got them: open writes them again."""
    life = Life(disk)
    flush_each(life, life.log(), ["a", "b"])
    append(life.log(), ["x" * 9000])
    disk.fail_once("sync_data")
    with pytest.raises(StorageError):
        life.flush()
    disk.kill()
    log = Life(disk).log()
    promised = log.durable_end
    disk.cut_power(random.Random(seed))
    assert Life(disk).log().log_end_offset >= promised
    assert promised == 3


# Q2


@pytest.mark.parametrize(
    ("operation", "partitions"),
    [("sync_data", 1), ("sync_file", 1), ("sync_directory", 1), ("sync_filesystem", 4)],
)
def test_rule_q2_a_failed_sync_poisons(
    disk: SimulatedDisk, operation: str, partitions: int
) -> None:
    life = Life(disk)
    if operation != "sync_filesystem":
        life.flusher.sync_files_max = 100
    logs = [life.log(number) for number in range(partitions)]
    if operation == "sync_data":
        flush_each(life, logs[0], ["a"])
    durable = logs[0].durable_end
    for log in logs:
        append(log, ["b"])
    disk.fail_once(operation)
    with pytest.raises(StorageError, match="offline"):
        life.flush()
    with pytest.raises(StorageError, match="offline"):  # the next one would "succeed"
        life.flush()
    assert [log.durable_end for log in logs] == [durable] + [0] * (partitions - 1)
    assert len(life.failures) == 1
    for log in [*logs, life.log(0)]:
        with pytest.raises(KafkaError) as refused:
            append(log, ["c"])
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert refused.value.outcome is Outcome.NOT_WRITTEN


def test_rule_q2_no_clean_shutdown_after_a_failed_sync(disk: SimulatedDisk) -> None:
    life = Life(disk)
    append(life.log(), ["a"])
    disk.fail_once("sync_filesystem")
    life.close()
    assert "/data/log/clean-shutdown" not in disk.live
    assert Life(disk).manager.clean_broker_epoch is None


# Q3


def test_rule_q3_a_flush_begun_before_a_truncation_proves_nothing(disk: SimulatedDisk) -> None:
    life = Life(disk)
    log = life.log()
    append(log, ["a"])
    append(log, ["old"])
    token = log.begin_flush()
    assert token is not None
    log.truncate_to(1)
    append(log, ["new"], epoch=2)
    log.end_flush(token, synced=True)
    assert log.durable_end == 0
    life.flush()
    assert log.durable_end == 2


def test_rule_q3_truncation_lowers_the_durable_end(disk: SimulatedDisk) -> None:
    life = Life(disk)
    log = life.log()
    flush_each(life, log, ["a", "b", "c"])
    log.truncate_to(1)
    append(log, ["new"], epoch=2)
    assert log.durable_end == 1


@pytest.mark.parametrize("segment_bytes", [100, 1 << 30])
@pytest.mark.parametrize("seed", SEEDS)
def test_rule_q3_an_old_tail_never_comes_back_to_prove_anything(
    disk: SimulatedDisk, seed: int, segment_bytes: int
) -> None:
    """Its stamps prove a durable end that the new records behind the cut don't have."""
    life = Life(disk, LogConfig(segment_bytes=segment_bytes))
    log = life.log()
    flush_each(life, log, ["a", "x" * 5000, "y" * 5000, "z" * 5000])
    log.truncate_to(1)
    for value in ("A" * 5000, "B" * 5000, "C" * 5000):
        append(log, [value], epoch=2)
    disk.cut_power(random.Random(seed))
    life = Life(disk)
    assert life.manager.offline == {}
    assert life.log().end_of_epoch(1) == (1, 1)


@pytest.mark.parametrize("number", range(12))
def test_rule_q3_a_crash_inside_a_truncation_leaves_one_log_or_the_other(
    disk: SimulatedDisk, number: int
) -> None:
    life = Life(disk, LogConfig(segment_bytes=1500))
    log = life.log()
    flush_each(life, log, [str(n) + "x" * 600 for n in range(9)])
    calls = 0

    def power_fails(_operation: str, _path: str) -> None:
        nonlocal calls
        calls += 1
        if calls > number:
            raise KeyboardInterrupt

    disk.before = power_fails
    try:
        log.truncate_to(3)
    except KeyboardInterrupt:
        pass
    else:
        pytest.skip("the truncation has fewer steps")
    disk.cut_power(random.Random(number))
    life = Life(disk, LogConfig(segment_bytes=1500))
    assert life.manager.offline == {}
    values = values_of(life.log())
    assert [str(value)[0] for value in values] == list("012345678")[: len(values)]
    assert len(values) >= 3


# Q4


def test_rule_q4_one_process_one_directory(disk: SimulatedDisk) -> None:
    Life(disk)
    with pytest.raises(BlockingIOError):
        Life(disk)


# Q5


@pytest.mark.parametrize(("page", "end"), [(0, 1), (1, 1), (2, 2)])
def test_rule_q5_a_lost_page_in_the_unsynced_middle_is_cut(
    disk: SimulatedDisk, page: int, end: int, caplog: pytest.LogCaptureFixture
) -> None:
    life = Life(disk)
    log = life.log()
    flush_each(life, log, ["a"])
    for value in ("x" * 5000, "y" * 5000, "z" * 5000):
        append(log, [value])
    inode = disk.live[LOG]
    assert inode is not None
    inode.cache[page * 4096 + 300 : page * 4096 + 4096] = bytes(3796)
    disk.kill()
    life = Life(disk)
    assert life.manager.offline == {}
    assert life.log().log_end_offset == end
    assert f"torn tail truncated file={LOG} bytes=" in caplog.text


@pytest.mark.parametrize("batch", range(3))
def test_rule_q5_a_bad_batch_below_a_durable_end_proven_later_is_refused(
    disk: SimulatedDisk, batch: int, caplog: pytest.LogCaptureFixture
) -> None:
    life = Life(disk)
    log = life.log()
    flush_each(life, log, ["a", "b", "c", "d"])
    append(life.log(1), ["other"])
    positions = [at for at, _ in walk(disk.read_file(LOG) or b"")]
    flip(disk.live[LOG], positions[batch] + HEADER_SIZE + 3)
    disk.kill()
    before = disk.read_file(LOG)
    for _ in range(2):  # the second start finds it again, not a neatly cut log
        life = Life(disk)
        ((key, error),) = life.manager.offline.items()
        assert (key.topic_id, key.partition) == (TOPIC_ID, 0)
        assert f"file={LOG}" in str(error)
        assert f"offset={batch}:" in str(error)
        assert values_of(life.log(1)) == ["other"]
        with pytest.raises(KafkaError, match="offline"):
            life.log(0)
        disk.kill()
    assert disk.read_file(LOG) == before
    assert "partition offline log=orders-0" in caplog.text


def test_rule_q5_the_last_group_has_no_proof_and_is_cut(disk: SimulatedDisk) -> None:
    """Known and accepted: no later group proves it, so rot in it looks like a torn tail."""
    life = Life(disk)
    flush_each(life, life.log(), ["a", "b"])
    flip(disk.live[LOG], (parse_header(disk.read_file(LOG) or b"").size) + HEADER_SIZE + 1)
    disk.kill()
    assert Life(disk).log().log_end_offset == 1


def test_rule_q5_a_clean_shutdown_proves_the_end(disk: SimulatedDisk) -> None:
    life = Life(disk)
    flush_each(life, life.log(), ["a", "b"])
    life.close()
    inode = disk.live[LOG]
    assert inode is not None
    del inode.cache[-1:]
    life = Life(disk)
    assert list(life.manager.offline) == [(TOPIC_ID, 0)]


def test_rule_q5_a_sealed_segment_that_vanished_is_refused(disk: SimulatedDisk) -> None:
    life = Life(disk, LogConfig(segment_bytes=100))
    flush_each(life, life.log(), ["a", "b", "c"])
    del disk.live["/data/log/orders-0/00000000000000000001.log"]
    disk.kill()
    assert list(Life(disk).manager.offline) == [(TOPIC_ID, 0)]


def test_rule_q5_each_replica_stamps_its_own_durable_end(disk: SimulatedDisk) -> None:
    """A leader's durable end says nothing of a follower's disk."""
    life = Life(disk)
    leader, follower = life.log(0), life.log(1)
    for value in ("a", "b", "c"):
        append(leader, [value])
        leader_token = leader.begin_flush()
        assert leader_token is not None
        leader.end_flush(leader_token, synced=True)
    follower.append_as_follower(leader.read_raw(0, 1 << 20, 3))
    stamps = [header for _, header in walk(follower.read_raw(0, 1 << 20, 3))]
    assert [header.durable_end for header in stamps] == [0, 0, 0]
    assert all(is_stamped(header) for header in stamps)
    assert [h.durable_end for _, h in walk(leader.read_raw(0, 1 << 20, 3))] == [0, 1, 2]


# Q6


@pytest.mark.parametrize("files_max", [0, 100])
def test_rule_q6_the_first_flush_syncs_the_directories(disk: SimulatedDisk, files_max: int) -> None:
    life = Life(disk)
    life.flusher.sync_files_max = files_max
    append(life.log(), ["a"])
    disk.calls.clear()
    life.flush()
    assert_directories_synced(disk, "/data/log/orders-0", "/data/log")
    assert life.log().durable_end == 1
    life.log().config = LogConfig(segment_bytes=10)
    append(life.log(), ["in a new segment"])
    disk.calls.clear()
    life.flush()
    checkpoints_begin = [operation for operation, _ in disk.calls].index("create")
    before_checkpoints = disk.calls[:checkpoints_begin]
    assert_directories_synced(disk, "/data/log/orders-0", calls=before_checkpoints)


def assert_directories_synced(
    disk: SimulatedDisk, *paths: str, calls: list[tuple[str, str]] | None = None
) -> None:
    calls = disk.calls if calls is None else calls
    synced = {path for operation, path in calls if operation == "sync_directory"}
    whole = any(operation == "sync_filesystem" for operation, _ in calls)
    assert whole or set(paths) <= synced


def test_rule_q6_a_dirty_file_is_never_evicted(disk: SimulatedDisk) -> None:
    life = Life(disk, open_files=1)
    logs = [life.log(number) for number in range(4)]
    for log in logs:
        append(log, ["a"])
    tokens = [log.begin_flush() for log in logs[:2]]
    append(life.log(5), ["one more file, one over the limit"])
    assert all(log.segments[0].fd >= 0 for log in logs)
    for token in tokens:
        assert token is not None
        token.log.end_flush(token, synced=True)
    values_of(logs[3])
    append(logs[3], ["b"])
    life.log(4)
    append(life.log(4), ["a"])
    assert sum(log.segments[0].fd >= 0 for log in logs) < 4


async def test_rule_q6_an_exception_in_the_flusher_is_no_silent_hang(disk: SimulatedDisk) -> None:
    life = Life(disk)
    life.manager.start(asyncio.get_running_loop())

    def broken(_fd: int) -> None:
        msg = "a bug"
        raise ZeroDivisionError(msg)

    life.flusher.sync_files_max = 100
    disk.sync_data = broken  # type: ignore[method-assign]
    log = life.log()
    append(log, ["a"])
    await until(lambda: bool(life.failures))
    assert log.durable_end == 0
    life.manager.close(None)


async def test_rule_q6_a_broken_durable_callback_fails_the_directory(disk: SimulatedDisk) -> None:
    life = Life(disk)
    life.manager.start(asyncio.get_running_loop())
    log = life.log()

    def broken() -> None:
        msg = "a bug"
        raise ZeroDivisionError(msg)

    log.on_durable = broken
    append(log, ["a"])
    await until(lambda: bool(life.failures))
    life.manager.close(None)


def test_rule_q5_rot_found_by_a_reader_stays_out_of_service_after_a_restart() -> None:
    disk = SimulatedDisk()
    config = LogConfig(segment_bytes=1024)
    life = Life(disk, config)
    log = life.log()
    for n in range(6):
        append(log, [f"{n}" * 500])
        life.flush()
    flip(disk.live[LOG], 300)  # in a sealed segment: recovery does not read those again
    with pytest.raises(CorruptionError):
        log.read(0, 1 << 20, log.log_end_offset)
    disk.kill()
    again = Life(disk, config)
    assert list(again.manager.offline) == [(TOPIC_ID, 0)]


def test_rule_q6_a_flush_that_can_not_begin_proves_nothing_later() -> None:
    """One log's flush fails to begin: the others' bytes must not count as synced afterwards."""
    disk = SimulatedDisk()
    life = Life(disk, LogConfig(segment_bytes=1024), open_files=64)
    first, second = life.log(0), life.log(1)
    for log in (first, second):
        append(log, ["a" * 100])
    life.flush()
    append(first, ["acknowledged"])
    append(second, ["b" * 1000])  # rolls: the next flush seals the segment before
    open_files_of(life.manager).forget(second.segments[0])  # closed by the cache: it is clean
    real_open = disk.open

    def broken(path: str, *, create: bool = False) -> int:
        raise OSError(errno.EIO, f"can't be opened: {path} {create}")

    disk.open = broken  # type: ignore[method-assign]
    with pytest.raises(StorageError):
        life.flush()
    disk.open = real_open  # type: ignore[method-assign]
    assert life.manager.failed is not None
    assert first.durable_end < first.log_end_offset
