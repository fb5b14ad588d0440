"""Repeats at bad moments: a stuck neighbour, a clock that jumped, a log that was let go."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING

import pytest

from broker.log.producer_state import EXPIRATION_MS, ProducerStates
from broker.record.batch import RecordFormat
from broker.replication.delayed_produces import AppendOutcome, DelayedProduce, DelayedProduces
from broker.server.local_partitions import LocalPartitions
from broker.server.requests import ACKS_ALL
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import Claim
from tests.support.doors.log import batches_to_undo, forbid_producer_replay
from tests.support.logs import Life, append
from tests.support.logs import records as values
from tests.support.simulated_disk import SimulatedDisk
from tests.unit.test_broker_local_partitions import ME, OTHER, Here, here, image, records
from tests.unit.test_idempotent_appends import claimed

if TYPE_CHECKING:
    from broker.log.partition_log import PartitionLog

__all__ = ["here"]


async def test_rule_r5_a_repeat_of_what_is_committed_waits_for_nobody(here: Here) -> None:
    here.manager.on_metadata_update(image(1, (ME,)))
    assert await here.local.append(claimed(0, acks=ACKS_ALL)) == 0
    here.manager.on_metadata_update(image(2, (ME, OTHER)))
    stuck = asyncio.create_task(here.local.append(records(1, ACKS_ALL)))
    await asyncio.sleep(0)
    async with asyncio.timeout(20):
        assert await here.local.append(claimed(0, acks=ACKS_ALL)) == 0
    assert not stuck.done(), "the follower has not got it"
    stuck.cancel()


async def test_a_repeat_that_finds_no_room_to_wait_is_not_called_unwritten(here: Here) -> None:
    here.manager.on_metadata_update(image(1, (ME, OTHER)))
    limits = dataclasses.replace(here.config.limits, max_parked_produces=1)
    small = dataclasses.replace(here.config, limits=limits)
    local = LocalPartitions(small, here.manager, SystemClock(), lambda: True)
    first = asyncio.create_task(local.append(claimed(0, acks=ACKS_ALL)))
    await asyncio.sleep(0)
    with pytest.raises(KafkaError) as full:
        await local.append(claimed(0, acks=ACKS_ALL))
    assert (full.value.code, full.value.outcome) == (ErrorCode.QUEUE_FULL, Outcome.UNKNOWN)
    first.cancel()


def test_rule_r5_a_repeat_waits_at_its_own_place_and_not_behind_what_came_later() -> None:
    log = Life(SimulatedDisk()).log()
    append(log, range(30), epoch=1)
    told: list[int] = []
    parked = DelayedProduces()

    def wait(base: int) -> None:
        parked.add(DelayedProduce(1, base, base + 9, True, 1 << 60, lambda _: told.append(base)))

    for base in (10, 20, 0, 10):
        wait(base)
    parked.resolve(log, 20)
    assert told == [0, 10, 10]
    parked.resolve(log, 30)
    assert told == [0, 10, 10, 20]


def test_rule_r5_what_stood_below_the_log_start_is_not_called_unwritten() -> None:
    """A deposed leader that starts over where the next one begins, behind deleted records.

    Its batch may have been kept by the next leader, committed, read and only then deleted.
    """
    log = Life(SimulatedDisk()).log()
    append(log, range(100), epoch=1)
    fates: list[AppendOutcome] = []
    parked = DelayedProduces()
    parked.add(DelayedProduce(1, 90, 99, True, 1 << 60, fates.append))
    log.start_over(200)
    parked.resolve(log, 200)
    assert fates == [AppendOutcome.UNKNOWN]


def _write(log: PartitionLog, numbers: range) -> None:
    for number in numbers:
        log.append_as_leader(
            values([number]),
            key_format=RecordFormat.JSON,
            value_format=RecordFormat.JSON,
            leader_epoch=1,
            now_ms=1_000,
            claim=Claim(7, 0, number),
        )


def test_invariant_t4_a_deposed_leader_takes_a_second_of_batches_back_without_reading_its_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of each of its partitions; 1,000,000 headers in front of them would hold the loop for 5 s."""
    disk = SimulatedDisk()
    log = Life(disk).log()
    _write(log, range(500))
    log.high_watermark = 500
    _write(log, range(500, 2_500))
    forbid_producer_replay(monkeypatch)
    log.truncate_to(600)
    assert log.producers is not None
    known = log.producers.get(7)
    assert known is not None
    assert known.last_sequence == 599


def test_invariant_t4_after_a_crash_what_is_not_committed_can_be_taken_back_and_no_more_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = SimulatedDisk()
    life = Life(disk)
    log = life.log()
    _write(log, range(1_500))
    log.high_watermark = 1_000
    life.manager.checkpoint_high_watermarks()
    disk.kill()
    log = Life(disk).log()
    assert (log.log_end_offset, log.high_watermark) == (1_500, 1_000)
    assert log.producers is not None
    assert batches_to_undo(log.producers) == 500, (
        "memory of what is committed would be kept for ever"
    )
    forbid_producer_replay(monkeypatch)
    log.truncate_to(1_001)
    known = log.producers.get(7)
    assert known is not None
    assert known.last_sequence == 1_000


def test_invariant_t1_a_clock_that_jumps_before_a_repeat_makes_no_second_one() -> None:
    states = ProducerStates()
    claim, later = Claim(7, 0, 5), 10 * EXPIRATION_MS
    states.note(claim, 100, 101, 1_000, 0)
    repeat = states.check(claim, 2, later)
    assert repeat is not None
    assert repeat.first_offset == 100
    states.note(Claim(8, 0, 0), 102, 102, later, 0)  # the log's time jumps, too
    repeat = states.check(claim, 2, later)
    assert repeat is not None
    assert states.check(Claim(7, 0, 400), 1, later) is None, "else it may begin anywhere (KIP-360)"
