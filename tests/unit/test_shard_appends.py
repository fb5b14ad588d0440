"""The log of a shard: what is said of several batches when one fails, and what is read of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.coordinator.records import ProbeKey, ProbeValue, ShardRecord, UndecodableRecord
from broker.server import coordinator_ports as module
from broker.server.coordinator_ports import ReplicaShardLog
from broker.transactions.home_records import NextKey, NextValue
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import LeaderEpoch, PartitionId
from tests.support.one_broker import HERE, ME, image, one_broker

DECISION = [ShardRecord(ProbeKey(), ProbeValue())]


class Failing:
    """A broker whose append number ``good`` and those behind it are refused, or not led."""

    def __init__(self, good: int, *, leads: bool) -> None:
        self.good, self.leads = good, leads
        self.appended = 0

    def leading(self, _partition: object) -> object:
        if self.appended >= self.good and not self.leads:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return SimpleNamespace(), SimpleNamespace(epoch=1)

    async def append(self, _append: object) -> None:
        if self.appended >= self.good:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, outcome=Outcome.NOT_WRITTEN)
        self.appended += 1


@pytest.mark.parametrize("leads", [True, False])
@pytest.mark.parametrize(
    ("good", "outcome"), [(0, Outcome.NOT_WRITTEN), (1, Outcome.UNKNOWN), (2, Outcome.UNKNOWN)]
)
async def test_rule_s1_decisions_of_a_committed_batch_are_never_told_not_written(
    good: int, outcome: Outcome, *, leads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch was committed, then a replica left the ISR, or this broker was deposed."""
    monkeypatch.setattr(module, "BATCH_BYTES_MAX", 1)  # each decision is a batch
    log = ReplicaShardLog(cast("Any", Failing(good, leads=leads)), HERE, LeaderEpoch(1))
    with pytest.raises(KafkaError) as caught:
        await log.append([DECISION] * 3)
    assert caught.value.outcome is outcome


async def test_a_load_reads_the_newest_of_close_records_as_compaction_would_leave_them(
    tmp_path: Path,
) -> None:
    first, second, third = (NextKey(5, HERE.topic_id, PartitionId(number)) for number in range(3))
    decisions = [
        [ShardRecord(first, NextValue(1, 9)), ShardRecord(second, NextValue(2, 9))],
        [ShardRecord(third, NextValue(3, 9)), ShardRecord(first, NextValue(4, 9))],
        [ShardRecord(second, None)],
    ]
    async with one_broker(tmp_path) as here:
        here.manager.on_metadata_update(image(1, (ME,)))
        log = ReplicaShardLog(here.local, HERE, LeaderEpoch(1))
        await log.append(decisions)
        assert log.bounds == (0, 5)
        newest = [
            ShardRecord(third, NextValue(3, 9)),
            ShardRecord(first, NextValue(4, 9)),
            ShardRecord(second, None),
        ]
        assert log.read(0, 5) == (newest, 5)
        assert log.read(0, 2) == ([*decisions[0]], 2)


async def test_a_load_reads_what_is_known_of_a_key_whose_newest_record_is_undecodable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = NextKey(5, HERE.topic_id, PartitionId(0))
    async with one_broker(tmp_path) as here:
        here.manager.on_metadata_update(image(1, (ME,)))
        log = ReplicaShardLog(here.local, HERE, LeaderEpoch(1))
        known = [ShardRecord(key, NextValue(number, 9)) for number in (1, 2)]
        await log.append([[one] for one in known])
        monkeypatch.setattr(module, "encode_value", lambda _: b'{"number":"two"}')
        await log.append([[known[0]]])
        (first, second, spoilt), _ = log.read(0, 3)
        assert [first, second] == known
        assert isinstance(spoilt, UndecodableRecord)
        assert spoilt.key == key
