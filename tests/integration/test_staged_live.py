"""Staged transactions on a real cluster: chunks of any broker, leaders killed, stages moved."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from broker.transactions.chunk_records import stage_partition_of
from broker.transactions.messages import TransactionalId
from raft_metadata.common.ids import GroupId
from tests.support.live_cluster import Answer, LiveCluster, running

V2 = {"Content-Type": "application/vnd.kafka.json.v2+json"}
STAGED = "__staged"
ROWS = 20
SETTLE_S = 15


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(tmp_path_factory.mktemp("staged")) as cluster:
        yield cluster


class StagingProducer:
    """A producer of one id that stages chunks of `ROWS` rows under one attempt."""

    def __init__(self, cluster: LiveCluster, name: str, topic: str, attempt: str = "one") -> None:
        self.cluster = cluster
        self.name, self.topic, self.attempt = name, topic, attempt
        self.epoch = 0
        self.number = 0

    async def url(self, broker: int) -> str:
        cluster_id = self.cluster.read().cluster_id
        return f"{self.cluster.url(broker)}/v3/clusters/{cluster_id}/transactions/{self.name}"

    async def init(self) -> None:
        answer = await self.until_answered(f"{await self.url(1)}:init", {}, 1)
        self.epoch = answer.body["epoch"]

    async def stage(self, broker: int, chunk: int, padding: int = 0) -> Answer:
        rows = [
            {"key": f"k{chunk}", "value": [self.name, chunk, row, "x" * padding]}
            for row in range(ROWS)
        ]
        headers = V2 | {
            "Quorumlog-Transaction": self.name,
            "Quorumlog-Transaction-Epoch": str(self.epoch),
            "Quorumlog-Transaction-Number": str(self.number),
            "Quorumlog-Attempt": self.attempt,
            "Quorumlog-Chunk": str(chunk),
        }
        url = f"{self.cluster.url(broker)}/topics/{self.topic}"
        return await self.until_answered(url, {"records": rows}, broker, headers)

    async def commit(self, broker: int, chunks: int, rows: int | None = None) -> Answer:
        named = {
            "attempt_id": self.attempt,
            "chunks": chunks,
            "rows": ROWS * chunks if rows is None else rows,
        }
        body = {"epoch": self.epoch, "number": self.number, "attempts": [named]}
        return await self.until_answered(f"{await self.url(broker)}:commit", body, broker)

    async def until_answered(
        self, url: str, body: object, broker: int, headers: dict[str, str] | None = None
    ) -> Answer:
        """Repeat a request as it was while it is not answered for sure; 202 is not the end."""
        deadline = asyncio.get_running_loop().time() + 30
        answer: Answer | None = None
        while asyncio.get_running_loop().time() < deadline:
            try:
                answer = await self.cluster.ask("POST", url, body, headers)
            except OSError:
                answer = None
            if answer is not None and answer.status not in {202, 500, 503}:
                return answer
            await asyncio.sleep(0.2)
        raise AssertionError(f"{url} through broker {broker}: {answer}")

    async def partition(self) -> int:
        return stage_partition_of(TransactionalId(GroupId(""), self.name), self.attempt)


async def rows_of(cluster: LiveCluster, topic: str, partitions: int) -> list[Any]:
    """All values of a topic, partition by partition."""
    found = []
    for partition in range(partitions):
        url = f"{cluster.url(1)}/topics/{topic}/partitions/{partition}/records"
        offset = 0
        while True:
            answer = await cluster.ask(
                "GET", f"{url}?offset={offset}&timeout=0", None, {"Accept": V2["Content-Type"]}
            )
            assert answer.status == 200, answer
            if not answer.body:
                break
            found += [record["value"] for record in answer.body]
            offset = answer.body[-1]["offset"] + 1
    return found


async def staging(cluster: LiveCluster) -> dict[str, list[str]]:
    """The attempts that stages hold, by id, through each broker the same."""
    seen = []
    for broker in (1, 2, 3):
        url = f"{cluster.url(broker)}/v3/clusters/{cluster.read().cluster_id}/transactions"
        answer = await cluster.ask("GET", url)
        assert answer.status == 200, answer
        seen.append(
            {
                one["transaction_id"]: [each["attempt_id"] for each in one["attempts"]]
                for one in answer.body["data"]
                if one["attempts"]
            }
        )
    assert seen[0] == seen[1] == seen[2]
    return seen[0]


async def nothing_staged(cluster: LiveCluster) -> None:
    """Wait until no stage holds rows that may yet be named."""
    deadline = asyncio.get_running_loop().time() + SETTLE_S
    held = await staging(cluster)
    while held:
        assert asyncio.get_running_loop().time() < deadline, held
        await asyncio.sleep(0.2)
        held = await staging(cluster)


async def ends(cluster: LiveCluster, partition: int) -> tuple[int, int]:
    """The log start and the end of a stage partition."""
    url = f"{cluster.url(1)}/topics/{STAGED}/partitions/{partition}/offsets"
    answer = await cluster.ask("GET", url, None, {"Accept": V2["Content-Type"]})
    assert answer.status == 200, answer
    return int(answer.body["beginning_offset"]), int(answer.body["end_offset"])


async def set_config(cluster: LiveCluster, name: str, value: str | None) -> None:
    """Set a config of the cluster, or reset it."""
    url = f"{cluster.url(1)}/v3/clusters/{cluster.read().cluster_id}/broker-configs/{name}"
    method = "DELETE" if value is None else "PUT"
    answer = await cluster.ask(method, url, None if value is None else {"value": value})
    assert answer.status == 204, answer


def expected(producer: StagingProducer, chunks: int) -> list[tuple[int, int]]:
    return sorted((chunk, row) for chunk in range(chunks) for row in range(ROWS))


async def test_rule_s9_chunks_of_any_broker_are_committed_once_and_then_let_go(
    cluster: LiveCluster,
) -> None:
    await cluster.create_topic("whole", partitions=3)
    producer = StagingProducer(cluster, "whole-1", "whole")
    await producer.init()
    again = [(1 + chunk % 3, chunk) for chunk in range(9)] + [(1, chunk) for chunk in range(9)]
    answers = await asyncio.gather(*(producer.stage(*each) for each in again))
    assert {answer.status for answer in answers} == {200}
    assert all(row["offset"] is None for answer in answers for row in answer.body["offsets"])
    assert (await staging(cluster))["whole-1"] == ["one"]
    assert await rows_of(cluster, "whole", 3) == []
    for wrong in ((10, None), (9, 9 * ROWS - 1)):
        answer = await producer.commit(2, *wrong)
        assert (answer.status, answer.body["error_code"]) == (409, 40909), answer
    answer = await producer.commit(2, 9)
    assert (answer.status, answer.body["state"], answer.body["rows"]) == (200, "complete", 9 * ROWS)
    found = await rows_of(cluster, "whole", 3)
    assert sorted((chunk, row) for _, chunk, row, _ in found) == expected(producer, 9)
    for broker in (1, 3):
        repeat = await producer.commit(broker, 9)
        assert (repeat.status, repeat.body["rows"]) == (200, 9 * ROWS)
    await nothing_staged(cluster)
    assert len(await rows_of(cluster, "whole", 3)) == 9 * ROWS


async def test_rule_s9_a_sequence_has_one_content(cluster: LiveCluster) -> None:
    await cluster.create_topic("content")
    producer = StagingProducer(cluster, "content-1", "content")
    await producer.init()
    assert (await producer.stage(1, 0)).status == 200
    answer = await producer.stage(2, 0, padding=1)
    assert (answer.status, answer.body["error_code"]) == (409, 40908), answer
    answer = await producer.stage(2, 10_000)
    assert answer.status == 400, answer
    assert "transaction.max.chunks" in answer.body["message"]
    await set_config(cluster, "transaction.chunk.max.bytes", "50000")
    answer = await producer.stage(2, 1, padding=5_000)
    assert answer.status == 413, answer
    assert "transaction.chunk.max.bytes" in answer.body["message"]
    await set_config(cluster, "transaction.chunk.max.bytes", None)
    assert (await producer.stage(2, 1, padding=5_000)).status == 200


async def test_a_refused_row_refuses_its_chunk_and_a_deleted_topic_its_transaction(
    cluster: LiveCluster,
) -> None:
    await cluster.create_topic("strict", cleanup_policy="compact")
    producer = StagingProducer(cluster, "strict-1", "strict")
    await producer.init()
    headers = V2 | {
        "Quorumlog-Transaction": producer.name,
        "Quorumlog-Transaction-Epoch": str(producer.epoch),
        "Quorumlog-Transaction-Number": "0",
        "Quorumlog-Attempt": producer.attempt,
        "Quorumlog-Chunk": "0",
    }
    rows = {"records": [{"key": "k", "value": 1}, {"value": 2}]}
    answer = await cluster.ask("POST", f"{cluster.url(1)}/topics/strict", rows, headers)
    texts = [row["error"] for row in answer.body["offsets"]]
    assert ("NOT_STAGED" in texts[0], "needs a key" in texts[1]) == (True, True), answer
    assert (await producer.commit(1, 1)).body["error_code"] == 40909
    assert (await producer.stage(1, 0)).status == 200
    answer = await cluster.ask("DELETE", f"{cluster.topics_url(2)}/strict")
    assert answer.status == 204, answer
    answer = await producer.commit(1, 1)
    assert (answer.status, answer.body["error_code"]) == (404, 40401), answer


async def test_a_full_stage_is_refused_with_its_limit_and_takes_more_later(
    cluster: LiveCluster,
) -> None:
    producer = StagingProducer(cluster, "full-1", "content", attempt="full")
    await producer.init()
    assert (await producer.stage(1, 0, padding=40_000)).status == 200
    await set_config(cluster, "transaction.staged.max.bytes", str(1 << 20))
    answer = await producer.stage(2, 1, padding=40_000)
    assert (answer.status, answer.body["error_code"]) == (429, 42901), answer
    assert "transaction.staged.max.bytes" in answer.body["message"]
    assert "Retry-After" in answer.headers
    await set_config(cluster, "transaction.staged.max.bytes", None)
    assert (await producer.stage(2, 1, padding=40_000)).status == 200
    assert (await producer.commit(3, 2)).status == 200


async def test_clients_neither_read_nor_write_nor_trim_what_is_staged(cluster: LiveCluster) -> None:
    producer = StagingProducer(cluster, "closed-1", "content")
    await producer.init()
    assert (await producer.stage(1, 0)).status == 200
    for broker in (1, 2, 3):
        base = f"{cluster.url(broker)}/topics/{STAGED}"
        read = await cluster.ask(
            "GET", f"{base}/partitions/0/records?offset=0", None, {"Accept": V2["Content-Type"]}
        )
        write = await cluster.ask("POST", base, {"records": [{"value": 1}]}, V2)
        trim = await cluster.ask(
            "POST",
            f"{cluster.topics_url(broker)}/{STAGED}/partitions/0:delete-records",
            {"before_offset": -1},
        )
        grow = await cluster.ask(
            "POST",
            f"{cluster.topics_url(broker)}/{STAGED}/partitions:add",
            {"partitions_count": 24},
        )
        for answer in (read, write, trim):
            assert answer.status == 400, answer
            assert "cluster's own" in answer.body["message"]
        assert 400 <= grow.status < 500, grow
    described = await cluster.ask("GET", f"{cluster.topics_url(1)}/{STAGED}/configs")
    configs = {one["name"]: one["value"] for one in described.body["data"]}
    assert (configs["cleanup.policy"], configs["retention.ms"], configs["flush"]) == (
        "delete",
        "-1",
        "ack",
    )
    described = await cluster.ask("GET", f"{cluster.topics_url(1)}/__transaction_state")
    assert (described.body["partitions_count"], described.body["replication_factor"]) == (12, 3)


async def test_an_id_is_staging_while_a_stage_has_its_rows_and_empty_before(
    cluster: LiveCluster,
) -> None:
    await cluster.create_topic("listed", partitions=3)
    producer = StagingProducer(cluster, "listed-1", "listed")
    await producer.init()

    async def listed_as() -> list[str]:
        url = f"{cluster.url(2)}/v3/clusters/{cluster.read().cluster_id}/transactions?state="
        states = ("empty", "staging", "committing", "complete", "aborted")
        answers = {state: await cluster.ask("GET", url + state) for state in states}
        return [
            state
            for state, answer in answers.items()
            if any(one["transaction_id"] == "listed-1" for one in answer.body["data"])
        ]

    assert await listed_as() == ["empty"]
    await producer.stage(1, 0)
    assert await listed_as() == ["staging"]
    await producer.commit(1, 1)
    assert await listed_as() == ["complete"]


async def test_rule_s9_chunks_survive_the_death_of_their_stage(cluster: LiveCluster) -> None:
    await cluster.create_topic("killed", partitions=3)
    producer = StagingProducer(cluster, "killed-1", "killed")
    await producer.init()
    for chunk in range(4):
        assert (await producer.stage(1, chunk)).status == 200
    leader = await cluster.leader(STAGED, await producer.partition())
    other = 1 + leader % 3
    pid = await cluster.kill(f"broker-{leader}")
    for chunk in range(6):  # the first four are repeats, by the next leader's index
        assert (await producer.stage(other, chunk)).status == 200
    answer = await producer.commit(other, 6)
    assert (answer.status, answer.body["rows"]) == (200, 6 * ROWS), answer
    await cluster.wait_restarted(f"broker-{leader}", pid)
    await cluster.wait_healthy("killed", 3)
    found = await rows_of(cluster, "killed", 3)
    assert sorted((chunk, row) for _, chunk, row, _ in found) == expected(producer, 6)


async def test_rule_s10_a_slow_transaction_keeps_no_log_from_being_trimmed(
    cluster: LiveCluster,
) -> None:
    """Its chunk is moved to the end, and committed from there."""
    await cluster.create_topic("slow", partitions=3)
    await set_config(cluster, "transaction.staged.move.bytes", str(1 << 20))
    slow = StagingProducer(cluster, "slow-1", "slow")
    await slow.init()
    assert (await slow.stage(1, 0)).status == 200
    stage = await slow.partition()
    _, behind_slow = await ends(cluster, stage)
    busy = StagingProducer(cluster, "busy-1", "slow", attempt="0")
    await busy.init()
    sent = 0
    async with asyncio.timeout(60):
        while (await ends(cluster, stage))[0] < behind_slow:
            names = (f"{busy.number}-{n}" for n in range(100))
            id_ = TransactionalId(GroupId(""), busy.name)
            busy.attempt = next(name for name in names if stage_partition_of(id_, name) == stage)
            for chunk in range(2):
                assert (await busy.stage(2, chunk, padding=40_000)).status == 200
            assert (await busy.commit(3, 2)).status == 200
            busy.number += 1
            sent += 2
    answer = await slow.commit(2, 1)
    assert (answer.status, answer.body["rows"]) == (200, ROWS), answer
    found = await rows_of(cluster, "slow", 3)
    names = [name for name, _, _, _ in found]
    assert (names.count("slow-1"), names.count("busy-1")) == (ROWS, sent * ROWS)
    assert json.dumps(sorted(row[2] for row in found if row[0] == "slow-1")) == json.dumps(
        list(range(ROWS))
    )
