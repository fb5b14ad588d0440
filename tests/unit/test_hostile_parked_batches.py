"""One produce of several batches, of which a leader change keeps the first only."""

from __future__ import annotations

from broker.record.batch import walk
from broker.replication.delayed_produces import AppendOutcome, DelayedProduce, DelayedProduces
from tests.support.logs import Life, append
from tests.support.simulated_disk import SimulatedDisk


def test_rule_r5_a_produce_that_survives_in_part_is_not_answered_not_written() -> None:
    log = Life(SimulatedDisk()).log()
    raw = append(log, ["x" * 600_000 for _ in range(4)], epoch=1)
    ends = [header.next_offset for _, header in walk(raw)]
    assert len(ends) > 1, "the request was to need several batches"
    fates: list[AppendOutcome] = []
    parked = DelayedProduces()
    parked.add(DelayedProduce(1, 0, ends[-1] - 1, True, 1 << 60, fates.append))
    new_leader = Life(SimulatedDisk()).log()
    new_leader.append_as_follower(raw[: next(iter(walk(raw)))[1].size])
    log.truncate_to(ends[0])
    log.append_as_follower(append(new_leader, range(10), epoch=2))
    parked.resolve(log, log.log_end_offset)
    assert log.epoch_at(0) == 1, "the first batch is committed"
    assert fates == [AppendOutcome.UNKNOWN]


def test_rule_r5_a_produce_of_which_nothing_survives_is_answered_not_written() -> None:
    log = Life(SimulatedDisk()).log()
    append(log, ["x" * 600_000 for _ in range(4)], epoch=1)
    fates: list[AppendOutcome] = []
    parked = DelayedProduces()
    parked.add(DelayedProduce(1, 0, 3, True, 1 << 60, fates.append))
    log.truncate_to(0)
    log.append_as_follower(append(Life(SimulatedDisk()).log(), ["other"], epoch=2))
    parked.resolve(log, 1)
    assert fates == [AppendOutcome.NOT_WRITTEN]
