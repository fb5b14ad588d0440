"""Tails while brokers are killed: resumed elsewhere, counted at the end, nothing is skipped."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from tests.support.live_cluster import LiveCluster, running
from tests.support.tail_stream import EVENTS, open_tail

TOPIC = "followed"
PARTITIONS = 3
REPEATS_MAX = 65_536 // 40
"""Records of one flush at the most: they are 40 bytes and longer."""
Seen = Counter[tuple[int, int]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(tmp_path_factory.mktemp("tails")) as found:
        yield found


@dataclass
class Writer:
    """Writes to all partitions through any broker, and knows what was acknowledged."""

    cluster: LiveCluster
    topic: str
    acknowledged: dict[tuple[int, int], int] = field(default_factory=dict)
    stopped: bool = False

    async def run(self) -> None:
        number = 0
        while not self.stopped:
            number += 1
            partition = number % PARTITIONS
            with suppress(OSError):
                answer = await self.cluster.produce(
                    1 + number % 3, self.topic, number, query="timeout=2000", partition=partition
                )
                if answer.status == 200 and "offset" in answer.body["offsets"][0]:
                    offset = answer.body["offsets"][0]["offset"]
                    if offset is not None:
                        self.acknowledged[partition, offset] = number
            await asyncio.sleep(0.002)


@dataclass
class Follower:
    """Follows through one broker, and through the next one once that breaks."""

    cluster: LiveCluster
    path: str
    accept: str | None
    broker: int
    seen: Seen = field(default_factory=Counter)
    values: dict[tuple[int, int], int] = field(default_factory=dict)
    resumed: int = 0
    mark: str = ""
    """The last token, or the last id."""
    stopped: bool = False

    async def run(self) -> None:
        broker = self.broker
        while not self.stopped:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                await self._follow(broker)
            self.resumed += 1
            broker = 1 + broker % 3
            await asyncio.sleep(0.05)

    async def _follow(self, broker: int) -> None:
        path, headers = self.path, {}
        if self.mark and self.accept == EVENTS:
            headers = {"Last-Event-ID": self.mark}
        elif self.mark:
            path = path.replace("offset=earliest", f"after={self.mark}")
        async with open_tail(self.cluster.url(broker), path, self.accept, headers) as stream:
            assert stream.status in {200, 503}, (stream.status, stream.body)
            if stream.status != 200:
                return
            while not self.stopped:
                if self.accept == EVENTS:
                    event = await stream.event()
                    self.mark = stream.last_id or self.mark
                    if event is None or event[0] == "end":
                        return
                    assert event[0] == "message", event
                    self._take(json.loads(event[1]))
                    continue
                line = await stream.json()
                if line is None:
                    return
                if "next" in line:
                    self.mark = line["next"]
                else:
                    self._take(line)

    def _take(self, record: dict[str, int]) -> None:
        assert "error_code" not in record, record
        place = record.get("partition", 0), record["offset"]
        assert self.values.setdefault(place, record["value"]) == record["value"], "it changed"
        self.seen[place] += 1


@pytest.mark.parametrize(
    ("kills", "topic"),
    [
        pytest.param(1, TOPIC, id="everyday"),
        pytest.param(12, f"{TOPIC}-long", id="whole", marks=pytest.mark.slow),
    ],
)
async def test_tails_skip_nothing_while_their_brokers_and_leaders_are_killed(
    cluster: LiveCluster, kills: int, topic: str
) -> None:
    await cluster.wait_healthy()
    await cluster.create_topic(topic, partitions=PARTITIONS)
    await cluster.wait_healthy(topic, PARTITIONS)
    writer = Writer(cluster, topic)
    whole, one = f"/topics/{topic}/records", f"/topics/{topic}/partitions/0/records"
    followers = [
        Follower(cluster, f"{whole}?offset=earliest&heartbeat_ms=1000", EVENTS, 1),
        Follower(cluster, f"{whole}?follow=true&include=tokens&offset=earliest", None, 2),
        Follower(cluster, f"{one}?offset=earliest", EVENTS, 1),
        Follower(cluster, f"{one}?follow=true&include=tokens&offset=earliest", None, 3),
    ]
    shown = await _command(cluster, topic)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(writer.run())
        following = [tasks.create_task(each.run()) for each in followers]
        for kill in range(kills):
            await _more(cluster, writer)
            victim = 1 + kill % 3 if kill % 2 == 0 else await cluster.leader(topic, 0)
            pid = await cluster.kill(f"broker-{victim}")
            if kill == kills - 1:
                break  # the others serve what is left
            await cluster.wait_restarted(f"broker-{victim}", pid)
            await cluster.wait_healthy(topic, PARTITIONS, deadline_s=30)
        await _more(cluster, writer)
        writer.stopped = True
        everything = set(writer.acknowledged)
        for each in followers:
            wanted = {p for p in everything if p[0] == 0} if one in each.path else everything
            await cluster.until(lambda e=each, w=wanted: w <= set(e.values), f"all of {each.path}")  # type: ignore[misc]
            each.stopped = True
        for task in following:
            task.cancel()
    for each in followers:
        _judge(each, writer, exact=one in each.path and each.accept == EVENTS)
    assert followers[0].resumed > 0, "its broker was killed"
    printed = await _printed(shown, len(everything))
    assert max(printed.values()) == 1, "the command prints each record once"
    assert everything <= set(printed)


async def _more(cluster: LiveCluster, writer: Writer) -> None:
    """Wait until each partition has twenty acknowledged records more than now."""
    wanted = Counter(partition for partition, _ in writer.acknowledged)
    wanted.update(dict.fromkeys(range(PARTITIONS), 20))
    await cluster.until(
        lambda: Counter(partition for partition, _ in writer.acknowledged) >= wanted, "more"
    )


def _judge(follower: Follower, writer: Writer, *, exact: bool) -> None:
    for partition in range(PARTITIONS):
        offsets = sorted(offset for p, offset in follower.seen if p == partition)
        assert offsets == list(range(len(offsets))), "nothing was skipped"
    for place, value in follower.values.items():
        assert writer.acknowledged.get(place, value) == value
    repeats = sum(follower.seen.values()) - len(follower.seen)
    assert repeats <= (0 if exact else REPEATS_MAX * follower.resumed), follower.path


async def _command(cluster: LiveCluster, topic: str) -> asyncio.subprocess.Process:
    urls = ",".join(node.url for node in cluster.brokers)
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "http_api.cli", "consume", topic, "-f", "--format", "json"),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "QUORUMLOG_URL": urls},
        limit=1 << 20,
    )


async def _printed(command: asyncio.subprocess.Process, count: int) -> Seen:
    """Return how often each record was printed, once as many are; end the command."""
    assert command.stdout is not None
    seen: Seen = Counter()
    async with asyncio.timeout(20):
        while len(seen) < count:
            record = json.loads(await command.stdout.readline())
            assert {"partition", "offset", "timestamp", "key", "value"} <= set(record)
            seen[record["partition"], record["offset"]] += 1
    command.send_signal(signal.SIGINT)
    await command.wait()
    rest = await command.stdout.read()
    for line in rest.splitlines():
        record = json.loads(line)
        seen[record["partition"], record["offset"]] += 1
    return seen
