"""`quorumlog consume -G` and `quorumlog group` on a real cluster: what is printed is committed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from http_api.client.sdk.producer import Producer
from tests.support.live_cluster import LiveCluster, running

PARTITIONS = 4
DONE_S = 30.0
KILLED_S = 1.5
READ_SOME_AND_HANG = """
import sys, time
from quorumlog import Consumer

topic, count, session_ms = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
consumer = Consumer(
    group_id=topic,
    auto_offset_reset="earliest",
    enable_auto_commit=False,
    session_timeout_ms=session_ms,
)
consumer.subscribe([topic])
found = 0
while found < count:
    found += len(consumer.consume(count - found))
consumer.commit()
print("committed", flush=True)
time.sleep(600)
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended."""

    code: int
    out: bytes
    err: str


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(tmp_path_factory.mktemp("cluster")) as found:
        asyncio.run(found.wait_healthy())
        yield found


def urls(cluster: LiveCluster) -> str:
    return ",".join(node.url for node in cluster.brokers)


async def start(cluster: LiveCluster, *arguments: str) -> asyncio.subprocess.Process:
    """Start a Python program that finds the cluster in its environment."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "QUORUMLOG_URL": urls(cluster)},
    )


async def run(cluster: LiveCluster, *arguments: str) -> Ended:
    process = await start(cluster, "-m", "http_api.cli", *arguments)
    async with asyncio.timeout(DONE_S):
        out, err = await process.communicate()
    assert process.returncode is not None
    return Ended(process.returncode, out, err.decode())


def records_of(out: bytes) -> list[Any]:
    return [json.loads(line) for line in out.splitlines()]


async def consume(cluster: LiveCluster, topic: str, group: str, *options: str) -> list[Any]:
    """The records that a member of a group prints until it ends."""
    ended = await run(cluster, "consume", topic, "-G", group, "--format", "json", *options)
    assert ended.code == 0, ended.err
    return records_of(ended.out)


async def create(cluster: LiveCluster, topic: str, each: int) -> None:
    await cluster.create_topic(topic, PARTITIONS)
    for partition in range(PARTITIONS if each else 0):
        answer = await cluster.produce(1, topic, *range(each), partition=partition)
        assert answer.status == 200, answer


def places(records: Sequence[Any]) -> list[tuple[int, int]]:
    return sorted((record["partition"], record["offset"]) for record in records)


async def test_a_member_of_a_group_commits_exactly_what_it_printed(
    cluster: LiveCluster,
) -> None:
    """With a count too: what was fetched and not printed comes to the next member."""
    await create(cluster, "kitchen", 3)
    first = await consume(cluster, "kitchen", "kitchen", "-n", "5")
    rest = await consume(cluster, "kitchen", "kitchen")
    assert len(first) == 5
    everything = [(partition, offset) for partition in range(PARTITIONS) for offset in range(3)]
    assert places(first + rest) == everything
    assert await consume(cluster, "kitchen", "kitchen") == []
    await cluster.produce(1, "kitchen", "new")
    assert [record["value"] for record in await consume(cluster, "kitchen", "kitchen")] == ["new"]


async def test_a_group_without_commits_begins_where_it_is_told(cluster: LiveCluster) -> None:
    """`-o latest` prints what came after the member; a later `-o` changes nothing."""
    await create(cluster, "menu", 2)
    assert await consume(cluster, "menu", "menu-late", "-o", "latest") == []
    process = await start(
        cluster, "-m", "http_api.cli", "consume", "menu", "-G", "menu-late", "-f", "-n", "1",
        "-o", "latest",
    )  # fmt: skip

    async def is_member() -> bool:
        shown = await run(cluster, "group", "describe", "menu-late")
        return "members=1" in shown.out.decode()

    await cluster.until(is_member, "the member joined")
    ended = asyncio.create_task(process.communicate())
    while not ended.done():  # the first may be written before the start is resolved
        await cluster.produce(1, "menu", "soup", partition=0)
        await asyncio.wait([ended], timeout=0.5)
    assert ended.result() == (b"soup\n", b"")
    begun = await consume(cluster, "menu", "menu", "-o", "earliest", "-n", "8")
    assert len(begun) == 8
    assert await consume(cluster, "menu", "menu", "-o", "earliest", "-n", "1") != begun[:1]


async def test_a_member_prints_what_a_reader_by_offset_prints(cluster: LiveCluster) -> None:
    """All formats as they are stored: spaces, numbers, nulls, headers, times, JSON as bytes."""
    topic = "kinds"
    await cluster.create_topic(topic, 1)
    with Producer(urls(cluster)) as producer:
        producer.send(topic, {"b": 1.5, "a": [None]}, key="text", timestamp=1_700_000_000_123)
        producer.send(topic, None, key={"id": 1}, headers={"trace": b"\xffab", "none": None})
        producer.send(topic, b' {"bytes": [1, 2]} ', key=b"7")
        producer.send(topic, 'two\nlines "ü"')
    with Producer(urls(cluster), value_format="string", key_format="string") as producer:
        producer.send(topic, "12", key="text")
    with Producer(urls(cluster), value_format="json") as producer:
        producer.send(topic, b'{"big": 12345678901234567890123, "n": 1.0}', key="text")
        producer.send(topic, b'"split \\u00fc"')
    for options in (["-k:"], ["-k:", "--binary"], ["--format=json"], ["--format=json", "--binary"]):
        expected = await run(cluster, "consume", topic, *options)
        assert expected.out.count(b"\n") >= 7
        group = "".join(filter(str.isalpha, "".join(options)))
        assert await run(cluster, "consume", topic, "-G", group, *options) == expected


async def test_a_record_that_is_no_json_ends_the_member_behind_those_before(
    cluster: LiveCluster,
) -> None:
    """Records before it are committed; with --binary the group goes on at the record itself."""
    await cluster.create_topic("odd", 1)
    with Producer(urls(cluster)) as producer:
        for value in (1, b"\xff\x00", 2):
            producer.send("odd", value)
    ended = await run(cluster, "consume", "odd", "-G", "odd")
    assert (ended.code, ended.out) == (1, b"1\n")
    assert "the value of odd:0 at offset 1 is not JSON; try --binary" in ended.err
    ended = await run(cluster, "consume", "odd", "-G", "odd", "--binary")
    assert (ended.code, ended.out) == (0, b"\xff\x00\n2\n")


async def test_a_killed_members_partitions_are_read_from_its_commits(cluster: LiveCluster) -> None:
    """Behind its session another member prints exactly what it had not committed."""
    await create(cluster, "killed", 25)
    session_ms = str(round(KILLED_S * 1_000))
    process = await start(cluster, "-c", READ_SOME_AND_HANG, "killed", "30", session_ms)
    assert process.stdout is not None
    async with asyncio.timeout(DONE_S):
        assert await process.stdout.readline() == b"committed\n"
    process.send_signal(signal.SIGKILL)
    await process.wait()
    rest = await consume(cluster, "killed", "killed", "-f", "-n", "70")
    assert len(set(places(rest))) == 70
    assert await consume(cluster, "killed", "killed") == []


async def test_groups_are_listed_described_and_moved(cluster: LiveCluster) -> None:
    """A group is moved only without members; its next member prints what was sought."""
    topic = group = "by-hand"
    await create(cluster, topic, 10)
    process = await start(
        cluster, "-m", "http_api.cli", "consume", topic, "-G", group, "-f", "--format", "json"
    )

    async def committed() -> bool:
        shown = await run(cluster, "group", "describe", group, "--format", "json")
        return bool(
            shown.code == 0
            and len(rows := json.loads(shown.out)[0]["partitions"]) == PARTITIONS
            and all(row["lag"] == 0 for row in rows)
        )

    await cluster.until(committed, "everything is committed", DONE_S)
    shown = (await run(cluster, "group", "describe", group)).out.decode()
    assert "state=stable" in shown
    assert "members=1 total_lag=0" in shown
    refused = await run(cluster, "group", "seek", group, "--to", "beginning")
    assert (refused.code, "40903" in refused.err) == (1, True)

    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(DONE_S):
        out, _ = await process.communicate()
    everything = [(partition, offset) for partition in range(PARTITIONS) for offset in range(10)]
    assert places(records_of(out)) == everything
    listed = (await run(cluster, "group", "list")).out.decode()
    assert [group, "empty"] in [line.split()[:2] for line in listed.splitlines()]
    moved = await run(cluster, "group", "seek", group, "--to", "4", "-t", f"{topic}:0,1")
    assert moved.code == 0, moved.err
    found = json.loads((await run(cluster, "group", "describe", group, "--format", "json")).out)
    assert [row["current_offset"] for row in found[0]["partitions"]] == [4, 4, 10, 10]
    again = await consume(cluster, topic, group)
    assert places(again) == [(p, offset) for p in (0, 1) for offset in range(4, 10)]
