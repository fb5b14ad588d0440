"""Cases of the log that the simulated partition found, each in its shortest form."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from copy import deepcopy

import pytest

from broker.log.cleaner import CleanerLimits, LogCleaner, ReplicaFacts
from broker.log.compaction import CompactionConfig
from broker.log.log_directory import LogConfig
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.errors import KafkaError, StorageError
from raft_metadata.common.ids import PartitionId, TopicIdPartition
from tests.support.compaction_model import append_keyed
from tests.support.doors.log import FlusherThread, drive_cleaner
from tests.support.logs import EPOCH, TOPIC_ID, Life, append, values_of
from tests.support.simulated_disk import SimulatedDisk

KEY = TopicIdPartition(TOPIC_ID, PartitionId(0))


def test_rule_q2_whose_log_it_is_outlives_a_failed_sync_as_its_bytes_do() -> None:
    """The failed sync left both in a cache that looks clean; only the bytes were written again."""
    disk = SimulatedDisk()
    life = Life(disk)
    append(life.log(), ["a"])
    disk.fail_once("sync_filesystem")
    with pytest.raises(StorageError):
        life.flush()
    disk.kill()
    life = Life(disk)
    append(life.log(), ["b"])
    life.flush()  # and the next batch proves that the first one was durable
    append(life.log(), ["c"])
    life.flush()
    assert life.log().durable_end == 3
    disk.cut_power(random.Random(1))
    life = Life(disk)
    assert not life.manager.offline
    assert values_of(life.log()) == ["a", "b", "c"]


def test_rule_r6_the_mark_of_damage_goes_with_a_replica_that_is_removed() -> None:
    """The mark stayed on the disk, and the healthy log of the returning replica was refused."""
    disk = SimulatedDisk()
    life = Life(disk)
    for value in ("a", "b"):
        append(life.log(), [value])
        life.flush()
    disk.kill()
    path = next(path for path in disk.live if path.endswith(".log"))
    inode = disk.live[path]
    assert inode is not None
    inode.cache[100] ^= 1
    life = Life(disk)
    assert KEY in life.manager.offline
    life.manager.delete([KEY], mark=":removed")
    append(life.log(), ["c"])
    life.flush()
    disk.kill()
    life = Life(disk)
    assert not life.manager.offline
    assert values_of(life.log()) == ["c"]


def test_rule_q6_names_that_a_full_disk_left_empty_are_synced_with_their_first_bytes() -> None:
    """After a restart they looked like names of old: an acknowledged record went with them."""
    disk = SimulatedDisk()
    life = Life(disk)
    disk.room = 200
    with pytest.raises(KafkaError):
        append(life.log(), ["x" * 500])
    disk.kill()
    life = Life(disk)
    append(life.log(), ["a"])
    life.flush()
    assert life.log().durable_end == 1
    for seed in range(8):
        copy = deepcopy(disk)
        copy.cut_power(random.Random(seed))
        assert values_of(Life(copy).log()) == ["a"]


def test_rule_q3_no_round_begins_amid_a_cut_because_descriptors_are_short() -> None:
    """Such a round held descriptors that the truncation closed, and proved a removed end."""
    disk = SimulatedDisk()
    life = Life(disk, LogConfig(segment_bytes=100, flush_before_ack=False), open_files=1)
    log = life.log()
    append(log, ["a"])
    log.request_flush()
    life.flush()  # so that its descriptor goes to the next ones
    thread = FlusherThread(life.flusher)
    for value in ("b", "c", "d"):
        append(log, [value])
    log.truncate_to(1)
    assert all(token.end_offset <= 1 for token in thread.in_flight)
    for token in thread.in_flight:
        assert all(fd in disk.descriptors for fd in token.descriptors)
    for _ in range(4):
        thread.step()
    assert log.durable_end <= log.log_end_offset == 1


@pytest.mark.parametrize("everything", [False, True])
def test_rule_r10_what_was_deleted_stays_so_where_the_power_goes_amid_a_clean_shutdown(
    everything: bool,
) -> None:
    """Its checkpoint was in place before a byte of it was synced: the log began at 0 again."""
    disk = SimulatedDisk()
    life = Life(disk)
    log = life.log()
    append(log, ["a", "b"])
    append(log, ["c"])
    life.flush()
    if everything:
        log.start_over(3)
    else:
        log.advance_log_start(2)
    life.flush()
    assert log.log_start_offset == (3 if everything else 2)
    life.manager.removals.rename_some()
    disk.fail_once("sync_filesystem", path="/data/log")
    life.manager.close(EPOCH)
    for seed in range(16):
        copy = deepcopy(disk)
        copy.cut_power(random.Random(seed))
        found = Life(copy).log()
        assert found.log_start_offset == (3 if everything else 2)
        assert found.log_end_offset == 3


def test_rule_r10_a_log_that_began_anew_begins_there_where_the_power_goes_amid_a_shutdown() -> None:
    """The segment of before is back, and nothing else said where the log begins."""
    disk = SimulatedDisk()
    life = Life(disk)
    log = life.log()
    append(log, ["a"])
    life.flush()
    log.start_over(4)
    append(log, ["b"])
    life.flush()
    disk.fail_once("sync_filesystem", path="/data/log")
    life.manager.close(EPOCH)
    for seed in range(16):
        copy = deepcopy(disk)
        copy.cut_power(random.Random(seed))
        found = Life(copy).log()
        assert (found.log_start_offset, found.log_end_offset) == (4, 5)


def test_rule_q3_a_log_that_is_cut_amid_a_pass_of_the_cleaner_is_not_taken_for_damaged() -> None:
    """The log was never compacted again, until it was truncated once more."""
    life = Life(SimulatedDisk(), LogConfig(segment_bytes=300, compaction=CompactionConfig()))
    log = life.log()
    for number in range(20):
        append_keyed(log, [(number % 2, number)])
    life.flush()
    log.high_watermark = log.log_end_offset
    cleaner = LogCleaner(
        life.manager.logs,
        lambda log: ReplicaFacts(log.high_watermark, log.high_watermark),
        CleanerLimits(),
        SystemClock(),
        lambda *_: None,
    )

    async def drive(steps: Iterator[Callable[[], None]]) -> None:
        for work in steps:
            log.truncate_to(1)
            work()

    drive_cleaner(cleaner, drive)
    asyncio.run(cleaner.clean(log))
    assert cleaner.skipped_logs == {}
    assert cleaner.totals.cleanings == 0


def test_rule_q5_damage_below_the_log_start_does_not_take_what_stands_behind_it() -> None:
    """The damage was cut off as a torn tail, silently, with live records of the same file."""
    disk = SimulatedDisk()
    life = Life(disk)
    for value in ("a", "b"):
        append(life.log(), [value])
        life.flush()
    life.log().advance_log_start(2)
    life.flush()
    append(life.log(), ["c"])
    life.flush()
    disk.kill()
    path = next(path for path in disk.live if path.endswith(".log"))
    inode = disk.live[path]
    assert inode is not None
    inode.cache[100] ^= 1
    inode.durable[100] ^= 1
    life = Life(disk)
    assert KEY in life.manager.offline
    assert KEY in life.manager.unclean


def test_rule_q1_files_of_a_log_that_starts_over_stay_until_that_is_durable() -> None:
    """Some waited to be removed already; with the others gone, a start took the log for damaged."""
    disk = SimulatedDisk()
    life = Life(disk)
    for value in ("a", "b", "c"):
        append(life.log(), [value])
        life.log().roll()
    append(life.log(), ["d"])
    life.flush()
    life.log().advance_log_start(1)
    life.flush()
    life.log().start_over(10)
    life.manager.removals.rename_some()
    disk.kill()
    life = Life(disk)
    assert not life.manager.offline
    assert values_of(life.log(), 1) == ["b", "c", "d"]
    life.log().start_over(10)
    life.flush()
    life.manager.removals.rename_some()
    disk.kill()
    assert Life(disk).log().log_start_offset == 10


def test_rule_q5_a_log_start_proves_what_lies_below_it() -> None:
    """No later batch proves them then: acknowledged records were cut as a torn tail."""
    disk = SimulatedDisk()
    life = Life(disk)
    for value in ("a", "b", "c"):
        append(life.log(), [value])
    life.flush()
    life.log().advance_log_start(2)
    life.flush()
    disk.kill()
    path = next(path for path in disk.live if path.endswith(".log"))
    inode = disk.live[path]
    assert inode is not None
    inode.cache[100] ^= 1
    inode.durable[100] ^= 1
    life = Life(disk)
    assert KEY in life.manager.offline
    assert KEY in life.manager.unclean
