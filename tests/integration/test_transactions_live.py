"""Transactions over three brokers, by plain HTTP: each request through another broker."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.live_cluster import Answer, LiveCluster, running

TOPICS = ("debits", "credits", "invoices", "orders")
PARTITIONS = 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(tmp_path_factory.mktemp("transactions")) as started:
        for topic in TOPICS:
            asyncio.run(started.create_topic(topic, PARTITIONS))
        yield started


class Desk:
    """Sends each request through the next broker."""

    def __init__(self, cluster: LiveCluster) -> None:
        self._cluster = cluster
        self._brokers: Iterator[int] = itertools.cycle([1, 2, 3])

    async def send(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        """Send below the cluster, or anywhere if the path begins with a slash."""
        now = self._cluster.read()
        url = self._cluster.url(next(self._brokers))
        full = path if path.startswith("/") else f"/v3/clusters/{now.cluster_id}/{path}"
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self._cluster.ask(method, url + full, body, named)

    async def values(self, topic: str) -> list[Any]:
        """All values of a topic that can be read, in no order."""
        found: list[Any] = []
        for partition in range(PARTITIONS):
            path = f"/topics/{topic}/partitions/{partition}/records?offset=0&timeout=0"
            answer = await self.send("GET", path)
            found += [record["value"] for record in answer.body]
        return found


@pytest.fixture
def desk(cluster: LiveCluster) -> Desk:
    return Desk(cluster)


def transfer(name: str, amount: int) -> dict[str, Any]:
    return {
        "topics": [
            {"topic_name": "debits", "records": [{"key": "alice", "value": [name, -amount]}]},
            {"topic_name": "credits", "records": [{"key": "bob", "value": [name, amount]}]},
        ]
    }


async def test_a_transfer_is_written_once_through_whichever_broker(desk: Desk) -> None:
    answers = [
        await desk.send("POST", "transactions", transfer("t", 5), Idempotency_Key="transfer-1")
        for _ in range(4)
    ]
    assert [one.status for one in answers] == [200] * 4
    assert {one.body["state"] for one in answers} == {"complete"}
    assert all(one.body["partitions"] == answers[0].body["partitions"] for one in answers)
    assert answers[0].body["rows"] == 2
    rival = await desk.send("POST", "transactions", transfer("t", 6), Idempotency_Key="transfer-1")
    assert (rival.status, rival.body["error_code"]) == (409, 40908)
    assert [one for one in await desk.values("debits") if one[0] == "t"] == [["t", -5]]
    assert [one for one in await desk.values("credits") if one[0] == "t"] == [["t", 5]]
    found = await desk.send("GET", "transactions/key:transfer-1")
    assert (found.status, found.body["state"]) == (200, "complete")


async def test_a_produce_with_a_key_gets_the_offsets_of_the_first(desk: Desk) -> None:
    body = {"records": [{"value": ["keyed", number]} for number in range(3)]}
    answers = [
        await desk.send("POST", "/topics/invoices", body, Idempotency_Key="invoice-1")
        for _ in range(3)
    ]
    assert [one.status for one in answers] == [200] * 3
    assert all(one.body == answers[0].body for one in answers)
    assert all(row["offset"] >= 0 for row in answers[0].body["offsets"])
    seen = [one for one in await desk.values("invoices") if one[0] == "keyed"]
    assert sorted(seen) == [["keyed", 0], ["keyed", 1], ["keyed", 2]]


async def test_keyless_rows_under_a_key_go_where_the_partitioner_says(desk: Desk) -> None:
    body = {"records": [{"value": ["spread", number]} for number in range(6)]}
    for partitioner, count in (("round_robin", PARTITIONS), ("sticky", 1)):
        path = f"/topics/orders?partitioner={partitioner}"
        answers = [
            await desk.send("POST", path, body, Idempotency_Key=f"spread-{partitioner}")
            for _ in range(3)
        ]
        assert all(one.body == answers[0].body for one in answers)
        rows = answers[0].body["offsets"]
        assert len({row["partition"] for row in rows}) == count
        assert all(row["offset"] >= 0 for row in rows)


async def test_offsets_move_with_the_rows_or_nothing_does(desk: Desk) -> None:
    path = "consumer-groups/copiers/transactions"

    def body(name: str, expected: int, offset: int) -> dict[str, Any]:
        move = {"topic_name": "orders", "partition_id": 0, "offset": offset}
        return {
            "topics": [{"topic_name": "invoices", "records": [{"value": ["moved", name]}]}],
            "offsets": [move | {"expected_offset": expected}],
        }

    await desk.send("POST", "/topics/orders/partitions/0", {"records": [{"value": 1}] * 20})
    first = await desk.send("POST", path, body("a", -1, 5), Idempotency_Key="a")
    assert first.status == 200, first
    again = await desk.send("POST", path, body("a", -1, 5), Idempotency_Key="a")
    assert (again.status, again.body["partitions"]) == (200, first.body["partitions"])
    late = await desk.send("POST", path, body("b", -1, 7), Idempotency_Key="b")
    assert (late.status, late.body["error_code"]) == (409, 40912)
    assert late.body["outcome"] == "not_written"
    second = await desk.send("POST", path, body("c", 5, 9), Idempotency_Key="c")
    assert second.status == 200, second
    offsets = await desk.send("GET", "consumer-groups/copiers/offsets")
    assert [row["offset"] for row in offsets.body["data"]] == [9]
    seen = [one for one in await desk.values("invoices") if one[0] == "moved"]
    assert sorted(seen) == [["moved", "a"], ["moved", "c"]]


def chunk(epoch: int, number: int, sequence: int, name: str = "billing-1") -> dict[str, str]:
    return {
        "Quorumlog_Transaction": name,
        "Quorumlog_Transaction_Epoch": str(epoch),
        "Quorumlog_Transaction_Number": str(number),
        "Quorumlog_Chunk": str(sequence),
    }


async def test_staged_rows_are_seen_from_their_commit_on(desk: Desk) -> None:
    life = await desk.send("POST", "transactions/billing-1:init", {})
    assert life.status == 200, life
    epoch = life.body["epoch"]
    for sequence in (1, 0, 1):
        body = {"records": [{"value": ["staged", sequence]}]}
        staged = await desk.send("POST", "/topics/invoices", body, **chunk(epoch, 0, sequence))
        assert staged.status == 200, staged
        assert [row["offset"] for row in staged.body["offsets"]] == [None]
    assert [one for one in await desk.values("invoices") if one[0] == "staged"] == []
    attempt = {"attempt_id": f"{epoch}.0", "chunks": 2, "rows": 2}
    short = {"epoch": epoch, "number": 0, "attempts": [attempt | {"chunks": 3, "rows": 3}]}
    refused = await desk.send("POST", "transactions/billing-1:commit", short)
    assert (refused.status, refused.body["error_code"]) == (409, 40909)
    commit = {"epoch": epoch, "number": 0, "attempts": [attempt]}
    for _ in range(2):
        done = await desk.send("POST", "transactions/billing-1:commit", commit)
        assert (done.status, done.body["state"]) == (200, "complete"), done
    seen = [one for one in await desk.values("invoices") if one[0] == "staged"]
    assert sorted(seen) == [["staged", 0], ["staged", 1]]
    await desk.send(
        "POST", "/topics/invoices", {"records": [{"value": ["gone", 0]}]}, **chunk(epoch, 1, 0)
    )
    aborted = await desk.send("POST", "transactions/billing-1:abort", {"epoch": epoch, "number": 1})
    assert (aborted.status, aborted.body) == (200, {"state": "aborted", "lost": []})
    assert [one for one in await desk.values("invoices") if one[0] == "gone"] == []


async def test_a_zombie_is_fenced_and_told_so(desk: Desk) -> None:
    old = (await desk.send("POST", "transactions/zombie:init", {})).body["epoch"]
    rows = [{"topic_name": "debits", "records": [{"value": ["zombie", 1]}]}]
    done = await desk.send(
        "POST", "transactions/zombie:commit", {"epoch": old, "number": 0, "topics": rows}
    )
    assert done.status == 200, done
    life = await desk.send("POST", "transactions/zombie:init", {})
    assert life.body["epoch"] > old
    last = {"epoch": old, "number": 0, "state": "complete", "lost_rows": 0}
    assert life.body["last"] == last
    late = await desk.send(
        "POST", "transactions/zombie:commit", {"epoch": old, "number": 1, "topics": rows}
    )
    assert (late.status, late.body["error_code"]) == (409, 40907)
    again = await desk.send(
        "POST", "transactions/zombie:commit", {"epoch": old, "number": 0, "topics": rows}
    )
    assert (again.status, again.body["state"]) == (200, "complete"), "a repeat hears its fate"
    assert [one for one in await desk.values("debits") if one[0] == "zombie"] == [["zombie", 1]]


async def test_a_number_is_decided_once_whichever_run_brings_it(desk: Desk) -> None:
    def body(run: str, value: str, source: str = "range-7") -> dict[str, Any]:
        rows = [{"topic_name": "credits", "records": [{"value": ["numbered", value]}]}]
        return {"number": 7, "run_id": run, "input": source, "topics": rows}

    first = await desk.send("POST", "transactions/job:1:commit", body("a", "x"))
    assert (first.status, first.body["already"]) == (200, False), first
    later = await desk.send("POST", "transactions/job:1:commit", body("b", "y"))
    assert (later.status, later.body["already"]) == (200, True), later
    other = await desk.send("POST", "transactions/job:1:commit", body("c", "z", "range-8"))
    assert (other.status, other.body["error_code"]) == (409, 40908)
    seen = [one for one in await desk.values("credits") if one[0] == "numbered"]
    assert seen == [["numbered", "x"]]
    listed = await desk.send("GET", "transactions?state=complete")
    assert "job:1" in [row["transaction_id"] for row in listed.body["data"]]
    assert (await desk.send("DELETE", "transactions/job:1")).status == 204
    assert (await desk.send("GET", "transactions/job:1")).status == 404
