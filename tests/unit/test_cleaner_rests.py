"""When the cleaner rests, and how a log is read of which little is left."""

from __future__ import annotations

import asyncio

import pytest

from broker.log.cleaner import CleaningStats, LogCleaner, ReplicaFacts
from broker.log.partition_log import PartitionLog
from raft_metadata.common.clock import SystemClock
from tests.support.compaction_model import LIMITS, append_keyed, clean, headers_of, read_all
from tests.support.logs import Life
from tests.support.simulated_disk import SimulatedDisk
from tests.unit.test_cleaner import CONFIG, LATER_MS, fill


@pytest.fixture
def life() -> Life:
    return Life(SimulatedDisk(), CONFIG)


@pytest.fixture
def log(life: Life) -> PartitionLog:
    return life.log()


def test_rule_r10_the_cleaner_rests_while_the_clock_is_not_trusted(
    life: Life, log: PartitionLog
) -> None:
    fill(life, log)
    facts = ReplicaFacts(log.high_watermark, log.high_watermark)
    trusted = [False]

    def note(_log: PartitionLog, _stats: CleaningStats, _to: int, _ms: int) -> None:
        pass

    cleaner = LogCleaner(
        life.manager.logs, lambda _log: facts, LIMITS, SystemClock(), note, lambda: trusted[0]
    )
    asyncio.run(cleaner.clean_dirty_logs())
    assert cleaner.totals.cleanings == 0
    trusted[0] = True
    asyncio.run(cleaner.clean_dirty_logs())
    assert cleaner.totals.cleanings == 1


def test_a_read_goes_on_behind_a_hole_and_ends_where_no_record_is_left(
    life: Life, log: PartitionLog
) -> None:
    """Every record of the closed segments is gone, over two epochs and with a producer's batch."""
    append_keyed(log, [(1, 1)], producer=(7, 0))
    for number in range(40):
        append_keyed(log, [(1, number)], epoch=1 + number // 20)
    append_keyed(log, [(1, None)], epoch=2)
    log.roll()
    append_keyed(log, [(2, 2)], epoch=2)
    life.flush()
    log.high_watermark = log.log_end_offset
    clean(log)
    log.roll()
    append_keyed(log, [(3, 3)], epoch=2)
    life.flush()
    log.high_watermark = log.log_end_offset
    clean(log, LATER_MS)
    assert read_all(log, 0, 100) == {42: (2, 2), 43: (3, 3)}
    headers = headers_of(log)
    assert [header.count for header in headers] == [0, 0, 0, 1, 1], "a producer's, one an epoch"
    assert headers[0].producer_id == 7
    for offset in range(42):
        [piece] = log.read(offset, 100, 43)
        assert (piece.first_offset, piece.next_offset) == (42, 43)
        assert log.read(offset, 100, 42) == [], "no record is left below"
