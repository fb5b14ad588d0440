"""``quorumlog bench`` as its users start it, and the load run it is made of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from types import MappingProxyType

import pytest

from broker.server.requests import FetchRequest, ProduceRequest
from http_api.client.load_run import HttpAnswer, Latencies, LoadRun, RateLimit, RequestResult
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import BrokerId
from tests.support.http_door import open_door
from tests.unit.test_cli_commands import Shell


@pytest.fixture
async def shell() -> AsyncIterator[Shell]:
    """Over a door that is itself the leader of everything."""
    async with open_door() as door:
        image = door.apis.image
        brokers = {
            key: replace(known, http=door.address) if key == BrokerId(1) else known
            for key, known in image.brokers.items()
        }
        door.apis.image = replace(image, brokers=MappingProxyType(brokers))
        yield Shell(door)


async def test_produce_makes_a_topic_of_its_own_and_removes_it(shell: Shell) -> None:
    done = await shell(
        *(
            "bench",
            "produce",
            "-n",
            "250",
            "-b",
            "100",
            "--connections",
            "2",
            "-s",
            "20",
            "--partitions",
            "2",
        ),
        *("--format", "json"),
    )
    assert done.code == 0, done.err
    summary = done.json
    assert (summary["records"], summary["requests"], summary["errors"]) == (250, 3, 0)
    assert summary["mb_per_s"] > 0
    latency = summary["latency"]
    assert 0 < latency["p50_ms"] <= latency["p99_9_ms"] <= latency["longest_ms"]
    assert summary["topic"].startswith("bench-")
    apis = shell.door.apis
    assert {topic.name for topic in apis.image.topics.values()} == {"flights"}
    writes = [asked for asked in apis.requests if isinstance(asked, ProduceRequest)]
    assert sorted(len(write.records) for write in writes) == [50, 100, 100]
    assert {write.partition for write in writes} == {0, 1}
    assert {len(record.value) for write in writes for record in write.records} == {20}


async def test_a_topic_that_is_named_is_kept_and_read_once(shell: Shell) -> None:
    wrote = await shell(
        *("bench", "produce", "-t", "flights", "-d", "1.5", "--throughput", "100", "-b", "10"),
        *("--acks", "1", "--connections", "1"),
    )
    assert wrote.code == 0, wrote.err
    written = sum(log.end for log in shell.door.apis.logs.values())
    assert 100 <= written <= 170  # a hundred a second, in tens
    assert wrote.lines[0].startswith(f"produce {written} records in 1.")
    assert "p99.9" in wrote.lines[1]
    assert wrote.lines[2] == "errors 0"
    assert " records  " in wrote.err  # one line a second

    read = await shell("bench", "fetch", "-t", "flights", "--connections", "2", "--format", "json")
    assert read.code == 0, read.err
    assert read.json["records"] == written
    assert read.json["partitions"] == 2
    fetches = [asked for asked in shell.door.apis.requests if isinstance(asked, FetchRequest)]
    assert len(fetches) >= 2


async def test_fetch_fills_a_topic_of_its_own_first(shell: Shell) -> None:
    done = await shell("bench", "fetch", "-n", "700", "--connections", "1", "--format", "json")
    assert done.code == 0, done.err
    assert done.json["records"] == 700
    assert {topic.name for topic in shell.door.apis.image.topics.values()} == {"flights"}


async def test_errors_are_counted_told_and_make_it_fail(shell: Shell) -> None:
    shell.door.apis.record_errors = {1: KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "one of two")}
    done = await shell("bench", "produce", "-n", "4", "-b", "2", "--connections", "1")
    assert done.code == 1
    assert done.lines[2] == "errors 2"
    assert "NOT_ENOUGH_REPLICAS: one of two" in done.err


async def test_an_unknown_topic_and_an_unknown_cluster_are_one_line(shell: Shell) -> None:
    unknown = await shell("bench", "fetch", "-t", "nowhere")
    assert (unknown.code, unknown.err.splitlines()[-1][:10]) == (1, "quorumlog:")
    nobody = await shell("bench", "produce", "--url", "127.0.0.1:1", "-n", "1")
    assert nobody.code == 1
    assert nobody.err.startswith("quorumlog:")


def test_percentiles_are_within_a_percent() -> None:
    times = Latencies()
    assert times.percentile(0.5) == times.mean_s == 0.0
    for microseconds in range(1, 10_001):
        times.add(microseconds / 1e6)
    for share in (0.5, 0.95, 0.99, 0.999, 1.0):
        assert times.percentile(share) == pytest.approx(share / 100, rel=0.011)
    assert times.longest_s == 0.01
    assert times.mean_s == pytest.approx(0.005, rel=0.01)


def test_a_pace_spreads_requests_and_catches_up_for_a_second_at_most() -> None:
    pace = RateLimit(100.0, 0.0)
    assert [pace.take(10, 0.0) for _ in range(3)] == pytest.approx([0.0, 0.1, 0.2])
    assert pace.take(10, 60.0) == pytest.approx(59.0)
    assert RateLimit(0.0, 0.0).take(10, 5.0) == 5.0


class Pings:
    """Three requests that anything may answer."""

    partition = 0

    def __init__(self) -> None:
        self.left = 3

    def request(self) -> bytes | None:
        self.left -= 1
        return b"ping\r\n\r\n" if self.left >= 0 else None

    def records_in_request(self) -> int:
        return 1

    def receive_answer(self, answer: HttpAnswer) -> RequestResult:
        return RequestResult(1, len(answer.body))


async def test_a_connection_that_breaks_is_made_anew_to_whoever_leads_then() -> None:
    asked: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if len(asked) == 1:
            writer.close()
            return
        for _ in range(2):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            await reader.readuntil(b"\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def leader_of(partition: int) -> str:
        asked.append(partition)
        return f"http://127.0.0.1:{port}"

    work = Pings()
    run = LoadRun([work], leader_of, duration_s=0.0)
    await asyncio.wait_for(run.run(), 10)
    server.close()
    assert asked == [0, 0]
    assert (run.counts.requests, run.counts.records, run.counts.bytes) == (2, 2, 4)
    assert run.counts.errors == 1
    assert "0 bytes read" in run.counts.reasons[0]
