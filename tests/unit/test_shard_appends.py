"""Several batches of one shard's append: what is said of all of them when a later one fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.coordinator.records import ProbeKey, ProbeValue, ShardRecord
from broker.server import coordinator_ports as module
from broker.server.coordinator_ports import ReplicaShardLog
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import LeaderEpoch
from tests.support.one_broker import HERE

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
