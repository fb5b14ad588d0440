"""``quorumlog txn`` as processes, against a real HTTP door in front of a fake broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from broker.transactions.messages import (
    NO_GROUP,
    LastPosition,
    LostRows,
    PendingTarget,
    PlacedRows,
    ProducerInitialized,
    StagedAttempt,
    TransactionalId,
    TransactionDescription,
    TransactionState,
)
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import BrokerId, GroupId, PartitionId, TopicId
from tests.support.http_door import open_door
from tests.unit.test_cli_commands import Shell

FLIGHTS_ID = TopicId("flightsxxxxxxxxxxxxxxx")
PRODUCER = TransactionDescription(
    id=TransactionalId(GroupId("pilots"), "billing-1"),
    epoch=3,
    last=LastPosition(3, 6, TransactionState.COMMITTING),
    state=TransactionState.COMMITTING,
    placed=(
        PlacedRows(FLIGHTS_ID, PartitionId(0), 2, 812),
        PlacedRows(FLIGHTS_ID, PartitionId(1), 1, None),
    ),
    pending=(PendingTarget(FLIGHTS_ID, PartitionId(1), "no leader"),),
    dropped=((TopicId("gone"), PartitionId(3)),),
    lost=(LostRows(FLIGHTS_ID, PartitionId(2), 7), LostRows(TopicId("gone"), PartitionId(0), 1)),
    attempts=(
        StagedAttempt(
            attempt_id="3.7", chunks=5, rows=50, bytes=6_400, age_ms=1_200, number=7, epoch=3
        ),
    ),
    home_leader=BrokerId(2),
    home_partition=PartitionId(4),
)
KEY = TransactionDescription(
    id=TransactionalId(NO_GROUP, "key:transfer-17"),
    epoch=-1,
    last=LastPosition(0, 0, TransactionState.COMPLETE),
    state=TransactionState.COMPLETE,
    home_leader=BrokerId(1),
    home_partition=PartitionId(9),
)


@pytest.fixture
async def shell() -> AsyncIterator[Shell]:
    async with open_door() as door:
        door.apis.transactions.found = [KEY, PRODUCER]
        yield Shell(door)


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


async def test_list_shows_what_was_decided_and_what_is_staged(shell: Shell) -> None:
    heading = ["ID", "GROUP", "STATE", "EPOCH", "LAST", "WAITING"]
    heading += ["STAGED-ROWS", "STAGED-BYTES", "AGE-MS"]
    key = ["key:transfer-17", "-", "complete", "-", "0", "0", "0", "0", "-"]
    producer = ["billing-1", "pilots", "committing", "3", "3.6", "1", "50", "6400", "1200"]
    assert words((await shell("txn", "list")).out) == [heading, key, producer]
    assert words((await shell("txn", "list", "-g", "pilots")).out) == [heading, producer]
    found = (await shell("txn", "list", "--state", "complete", "--format", "json")).json
    assert [row["transaction_id"] for row in found] == ["key:transfer-17"]
    wrong = await shell("txn", "list", "--state", "open")
    assert wrong.code == 2


async def test_describe_says_what_each_target_waits_for(shell: Shell) -> None:
    shown = await shell("txn", "describe", "billing-1", "--group", "pilots")
    assert shown.code == 0
    lines = shown.lines
    assert lines[0] == (
        "billing-1 group=pilots state=committing epoch=3 last=3.6 (committing) "
        "home=__consumer_offsets-4 leader=2"
    )
    assert [line.split() for line in lines[1:]] == [
        ["PARTITION", "ROWS", "BASE-OFFSET", "WAITS-FOR"],
        ["flights:0", "2", "812", "-"],
        ["flights:1", "1", "-", "no", "leader"],
        ["dropped", "with", "its", "topic:", "gone-3"],
        ["lost", "with", "its", "stage:", "7", "rows", "of", "flights:2"],
        ["lost", "with", "its", "stage:", "1", "rows", "of", "gone:0"],
        ["ATTEMPT", "NUMBER", "CHUNKS", "ROWS", "BYTES", "AGE-MS"],
        ["3.7", "7", "5", "50", "6400", "1200"],
    ]
    as_json = (await shell("txn", "describe", "billing-1", "-g", "pilots", "--format", "json")).json
    assert as_json[0]["pending"] == [{"topic": "flights", "partition": 1, "reason": "no leader"}]


async def test_a_name_that_fails_does_not_stop_the_next(shell: Shell) -> None:
    shown = await shell("txn", "describe", "nobody", "key:transfer-17")
    assert shown.code == 1
    assert "there is no transaction nobody" in shown.err
    assert shown.lines == [
        "key:transfer-17 state=complete last=0 (complete) home=__transaction_state-9 leader=1"
    ]


async def test_abort_fences_the_producer(shell: Shell) -> None:
    unsure = await shell("txn", "abort", "billing-1")
    assert unsure.code == 2
    assert "add --yes" in unsure.err
    assert shell.door.apis.requests == []
    shell.door.apis.transactions.answers["init"] = ProducerInitialized(
        epoch=4, last=LastPosition(3, 6, TransactionState.COMMITTING)
    )
    done = await shell("txn", "abort", "billing-1", "--group", "pilots", "--yes")
    assert done.lines == ["fenced billing-1: epoch=4, last=3.6 (committing)"]
    assert shell.door.apis.requests == [(TransactionalId(GroupId("pilots"), "billing-1"), 10_000)]
    lost = LastPosition(3, 6, TransactionState.COMPLETE, 7)
    shell.door.apis.transactions.answers["init"] = ProducerInitialized(epoch=4, last=lost)
    done = await shell("txn", "abort", "billing-1", "--yes")
    assert done.lines == ["fenced billing-1: epoch=4, last=3.6 (complete, 7 rows lost)"]
    shell.door.apis.transactions.answers["init"] = ProducerInitialized(epoch=1)
    found: dict[str, Any] = (await shell("txn", "abort", "b", "-y", "--format", "json")).json
    assert found == {
        "transaction_id": "b",
        "group": None,
        "epoch": 1,
        "last": None,
        "forgotten_to_epoch": 0,
        "chunk_max_bytes": 1_048_576,
    }
    of_a_key = await shell("txn", "abort", "key:k", "--yes")
    assert of_a_key.code == 1
    assert "is a key" in of_a_key.err


async def test_forget_says_what_it_forgot(shell: Shell) -> None:
    assert (await shell("txn", "forget", "job:1")).code == 2
    done = await shell("txn", "forget", "job:1", "key:a/b", "--yes")
    assert done.lines == ["forgot job:1", "forgot key:a/b"]
    ids = [TransactionalId(NO_GROUP, name) for name in ("job:1", "key:a/b")]
    assert shell.door.apis.transactions.forgotten == ids
    shell.door.apis.transactions.answers["forget"] = KafkaError(
        ErrorCode.CONCURRENT_TRANSACTIONS, "it is committing"
    )
    refused = await shell("txn", "forget", "job:1", "--yes")
    assert refused.code == 1
    assert "it is committing" in refused.err
