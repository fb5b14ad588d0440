"""What a start believes: damage, clean shutdowns, high watermarks, whose data a folder holds."""

from __future__ import annotations

import random

import pytest

from broker.record.batch import HEADER_SIZE
from raft_metadata.common.errors import (
    ErrorCode,
    KafkaError,
)
from raft_metadata.common.ids import PartitionId, TopicId, TopicIdPartition
from tests.support.logs import TOPIC, TOPIC_ID, Life, append, flush_each, values_of
from tests.support.replica_bytes import flip
from tests.support.simulated_disk import SimulatedDisk

LOG = "/data/log/orders-0/00000000000000000000.log"
SEEDS = range(20)


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.mark.parametrize("seed", SEEDS)
def test_rule_r6_a_damaged_partition_is_reported_until_it_is_set_aside(
    disk: SimulatedDisk, seed: int
) -> None:
    life = Life(disk)
    flush_each(life, life.log(), ["a", "b", "c"])
    flip(disk.live[LOG], HEADER_SIZE + 3)
    disk.kill()
    for _ in range(2):  # recovery may find a neatly cut log the second time: the mark stays
        life = Life(disk)
        assert list(life.manager.unclean) == [(TOPIC_ID, 0)]
        assert list(life.manager.offline) == [(TOPIC_ID, 0)]
        disk.cut_power(random.Random(seed))
    life = Life(disk)
    life.manager.reset_damaged(TOPIC_ID, PartitionId(0))
    append(life.log(), ["from a peer"])
    life.flush()
    disk.cut_power(random.Random(seed))
    life = Life(disk)
    assert life.manager.unclean == {}
    assert values_of(life.log()) == ["from a peer"]


@pytest.mark.parametrize("own_last_epoch", [4, 3])
def test_invariant_l11_a_reign_without_records_claims_none(own_last_epoch: int) -> None:
    """Elected in 5, deposed before the first append; then records of epoch 4 arrive."""
    disk = SimulatedDisk()
    life = Life(disk)
    log = life.log()
    append(log, list(range(10)), epoch=own_last_epoch)
    other = Life(SimulatedDisk()).log()
    append(other, list(range(10)), epoch=min(own_last_epoch, 3))
    batch = append(other, ["x", "y"], epoch=4)
    log.start_epoch(5)
    log.append_as_follower(batch)
    assert log.log_end_offset == 12
    assert log.epoch_at(10) == 4
    assert log.end_of_epoch(4) == (4, 12)


def test_rule_r6_a_directory_that_vanished_after_a_clean_shutdown_is_unclean(
    disk: SimulatedDisk,
) -> None:
    life = Life(disk)
    append(life.log(), ["a"])
    life.close()
    disk.remove_tree("/data/log/orders-0")
    life = Life(disk)
    assert list(life.manager.unclean) == [(TOPIC_ID, 0)]
    with pytest.raises(KafkaError, match="offline"):
        life.log()


def test_rule_r11_the_clean_proof_is_consumed_at_start(disk: SimulatedDisk) -> None:
    life = Life(disk)
    append(life.log(), ["a"])
    life.close()
    life = Life(disk)
    assert life.manager.clean_broker_epoch == 7
    disk.kill()
    assert Life(disk).manager.clean_broker_epoch is None


def test_rule_m5_deleted_data_stays_in_quarantine(disk: SimulatedDisk) -> None:
    life = Life(disk)
    append(life.log(), ["a"])
    life.manager.delete([TopicIdPartition(TOPIC_ID, PartitionId(0))])
    assert life.manager.get(TOPIC_ID, PartitionId(0)) is None
    assert "/data/log/orders-0" not in disk.live
    assert life.manager.quarantined() == [f"{TOPIC_ID}:0"]
    assert life.log(topic_id=TopicId("N" * 22)).log_end_offset == 0
    life.manager.purge(life.manager.quarantined())
    assert life.manager.quarantined() == []


def test_another_life_of_the_topic_does_not_get_the_old_data(disk: SimulatedDisk) -> None:
    life = Life(disk)
    append(life.log(), ["a"])
    disk.kill()
    life = Life(disk)
    with pytest.raises(KafkaError) as refused:
        life.manager.get_or_create(TOPIC, PartitionId(0), TopicId("N" * 22))
    assert refused.value.code is ErrorCode.INCONSISTENT_TOPIC_ID


def test_rule_r8_a_high_watermark_of_another_history_is_not_believed(disk: SimulatedDisk) -> None:
    """An unclean election cut this log; a crash before the next checkpoint: the file is too high.

    Believed, it would be shown to readers by the next leader, or end this process for ever: below
    it nothing may be cut.
    """
    life = Life(disk)
    log = life.log()
    append(log, range(50), epoch=4)
    append(log, range(50), epoch=4)
    log.high_watermark = 100
    life.manager.checkpoint_high_watermarks()
    log.truncate_to(50)
    assert log.high_watermark == 50
    append(log, range(70), epoch=5)
    life.flush()
    disk.kill()
    log = Life(disk).log()
    assert log.log_end_offset == 120
    assert log.high_watermark <= 50


def test_rule_r8_a_high_watermark_of_this_history_is_kept(disk: SimulatedDisk) -> None:
    life = Life(disk)
    log = life.log()
    append(log, range(100), epoch=4)
    append(log, range(10), epoch=5)
    log.high_watermark = 100
    life.manager.checkpoint_high_watermarks()
    life.flush()
    disk.kill()
    assert Life(disk).log().high_watermark == 100


def test_rule_r8_a_high_watermark_above_a_lost_tail_stands_at_the_log_end(
    disk: SimulatedDisk,
) -> None:
    life = Life(disk)
    log = life.log()
    append(log, range(50), epoch=4)
    append(log, range(10), epoch=4)
    log.high_watermark = 60
    life.manager.checkpoint_high_watermarks()
    log.truncate_to(50)
    life.flush()
    disk.kill()
    assert Life(disk).log().high_watermark == 50


def test_rule_r8_a_high_watermark_that_the_log_lost_is_not_believed(disk: SimulatedDisk) -> None:
    """Another history may stand there next, whose records look alike."""
    life = Life(disk)
    log = life.log()
    append(log, range(50), epoch=4)
    append(log, range(10), epoch=4)
    log.high_watermark = 60
    life.manager.checkpoint_high_watermarks()
    life.flush()
    log.truncate_to(50)
    append(log, range(5), epoch=5)
    life.flush()
    disk.kill()
    log = Life(disk).log()
    assert (log.log_end_offset, log.high_watermark) == (55, 0)
