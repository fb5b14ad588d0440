"""The SDK's group consumer and `quorumlog group` on a real cluster: members and brokers die."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from chaos.cluster import quorumlog_command
from http_api.client.client_errors import QuorumlogError
from http_api.client.group_consumer import GroupConsumer
from http_api.client.groups import InstanceSettings, Place
from http_api.client.transport import Client
from tests.support.live_cluster import LiveCluster, running

PARTITIONS = 4
FAST = InstanceSettings(auto_offset_reset="earliest", session_timeout_ms=1_500)
BATCH_BYTES = 2_000
DONE_S = 30.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@dataclass
class Member:
    """A consumer in a thread: reads, notes, commits, until told to stop or to fall silent."""

    urls: list[str]
    topic: str
    group: str
    read: list[tuple[int, int]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    leave: bool = True
    """False: gone without a word, as a killed process is."""

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with Client(self.urls) as client:
            consumer = GroupConsumer(client, self.group, FAST)
            consumer.subscribe([self.topic])
            while not self.stop.is_set():
                try:
                    records = consumer.poll(wait_ms=300, max_bytes=BATCH_BYTES)
                    self.read += [(record.partition, record.offset) for record in records]
                    consumer.commit()
                except QuorumlogError as error:  # said to the caller, who goes on
                    self.errors.append(str(error))
            if self.leave:
                consumer.close()

    async def end(self, *, leave: bool = True) -> None:
        self.leave = leave
        self.stop.set()
        await asyncio.to_thread(self._thread.join, DONE_S)
        assert not self._thread.is_alive()


async def fill(cluster: LiveCluster, topic: str, each: int) -> set[tuple[int, int]]:
    """Write that many records to each partition; all places there are now."""
    for partition in range(PARTITIONS):
        values = ["x" * 60] * each
        answer = await cluster.produce(1, topic, *values, partition=partition)
        assert answer.status == 200, answer
    return {(partition, offset) for partition in range(PARTITIONS) for offset in range(each)}


async def owners(cluster: LiveCluster, group: str) -> dict[str, list[Place]]:
    """Partitions by member, as v3 tells."""
    now = cluster.read()
    base = f"{now.brokers[0].url}/v3/clusters/{now.cluster_id}/consumer-groups/{group}/consumers"
    found = {}
    for row in (await cluster.ask("GET", base)).body.get("data", ()):  # perhaps no such group yet
        url = f"{base}/{row['consumer_id']}/assignments"
        data = (await cluster.ask("GET", url)).body.get("data", ())  # perhaps it left
        found[row["consumer_id"]] = [(one["topic_name"], one["partition_id"]) for one in data]
    return found


async def test_members_share_come_and_go_and_nothing_is_missed(cluster: LiveCluster) -> None:
    topic = "shared"
    await cluster.create_topic(topic, PARTITIONS)
    everything = await fill(cluster, topic, 200)
    urls = [broker.url for broker in cluster.brokers]
    members = [Member([urls[n], *urls], topic, topic) for n in range(3)]

    async def shared() -> bool:
        found = await owners(cluster, topic)
        places = [place for owned in found.values() for place in owned]
        alone = len(places) == len(set(places))  # asked one by one: while they move it may fail
        return alone and sorted(map(len, found.values())) == [1, 1, 2]

    await cluster.until(shared, "three members share four partitions")
    await members[0].end(leave=False)

    async def taken_over() -> bool:
        found = await owners(cluster, topic)
        return len(found) == 2 and sum(map(len, found.values())) == PARTITIONS

    await cluster.until(taken_over, "the silent member's partitions are taken over")
    await members[1].end()

    def complete() -> bool:
        return {place for member in members for place in member.read} >= everything

    await cluster.until(complete, "every record was read", DONE_S)
    await members[2].end()
    counted = Counter(place for member in members for place in member.read)
    assert set(counted) == everything
    assert [member.errors for member in members] == [[], [], []]


async def test_reading_goes_on_while_brokers_die(cluster: LiveCluster) -> None:
    topic = "outages"
    await cluster.create_topic(topic, PARTITIONS)
    await cluster.wait_healthy("__consumer_offsets", 12)
    everything = await fill(cluster, topic, 100)
    member = Member([broker.url for broker in cluster.brokers], topic, topic)
    await cluster.until(lambda: len(member.read) > 50, "it reads")
    for broker in (1, 2, 3):
        pid = await cluster.kill(f"broker-{broker}")
        await cluster.wait_restarted(f"broker-{broker}", pid)
        await cluster.wait_healthy("__consumer_offsets", 12)
        through = next(one.id for one in cluster.brokers)
        for partition in range(PARTITIONS):
            wrote = await cluster.produce(through, topic, "more", partition=partition)
            assert wrote.status == 200, wrote
            everything.add((partition, wrote.body["offsets"][0]["offset"]))
    await cluster.until(lambda: set(member.read) >= everything, "every record was read", DONE_S)
    await member.end()
    highest = dict.fromkeys(range(PARTITIONS), -1)
    for partition, offset in member.read:
        assert offset <= highest[partition] + 1, f"skipped to {offset} in {partition}"
        highest[partition] = max(highest[partition], offset)
    assert set(member.read) == everything


async def quorumlog(cluster: LiveCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run,
        [*quorumlog_command(), *arguments, "--url", cluster.url(2)],
        capture_output=True,
        text=True,
        check=False,
        timeout=DONE_S,
    )


async def test_the_command_line_lists_describes_and_seeks(cluster: LiveCluster) -> None:
    topic = group = "by-hand"
    await cluster.create_topic(topic, PARTITIONS)
    everything = await fill(cluster, topic, 10)
    member = Member([cluster.url(1)], topic, group)
    await cluster.until(lambda: set(member.read) >= everything, "everything is read")

    async def committed() -> bool:
        shown = await quorumlog(cluster, "group", "describe", group, "--format", "json")
        return bool(
            shown.returncode == 0
            and len(rows := json.loads(shown.stdout)[0]["partitions"]) == PARTITIONS
            and all(row["lag"] == 0 for row in rows)
        )

    await cluster.until(committed, "everything is committed")
    shown = await quorumlog(cluster, "group", "describe", group)
    assert "state=stable" in shown.stdout
    assert "members=1 total_lag=0" in shown.stdout
    refused = await quorumlog(cluster, "group", "seek", group, "--to", "beginning")
    assert (refused.returncode, "40903" in refused.stderr) == (1, True)
    await member.end()
    listed = await quorumlog(cluster, "group", "list")
    assert [group, "empty"] in [line.split()[:2] for line in listed.stdout.splitlines()]
    moved = await quorumlog(cluster, "group", "seek", group, "--to", "4", "-t", f"{topic}:0,1")
    assert moved.returncode == 0, moved.stderr
    found = await quorumlog(cluster, "group", "describe", group, "--format", "json")
    rows = json.loads(found.stdout)[0]["partitions"]
    assert [row["current_offset"] for row in rows] == [4, 4, 10, 10]

    again = Member([cluster.url(3)], topic, group)
    await cluster.until(lambda: len(again.read) >= 12, "what was sought is read again")
    await again.end()
    assert sorted(again.read) == [(p, offset) for p in (0, 1) for offset in range(4, 10)]
