"""A reader at the tail while leaders are killed: what it saw never goes back (rule R8)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.support.live_cluster import LiveCluster, running

pytestmark = pytest.mark.slow
log = logging.getLogger("tests.cluster")
KILLS = 30
TOPIC = "tail"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(tmp_path_factory.mktemp("tail")) as cluster:
        yield cluster


class Tail:
    """Writes, reads on, and asks for the end, through every broker in turn, until `stopped`."""

    def __init__(self, cluster: LiveCluster) -> None:
        self._cluster = cluster
        self.stopped = False
        self.seen: list[object] = []
        self.end = 0
        self.asked = 0
        self.refused = 0

    async def write(self) -> None:
        number = 0
        while not self.stopped:
            with suppress(OSError):
                await self._cluster.produce(1 + number % 3, TOPIC, number, query="timeout=2000")
            number += 1
            await asyncio.sleep(0.01)

    async def read(self) -> None:
        turn = 0
        while not self.stopped:
            turn += 1
            with suppress(OSError):
                answer = await self._cluster.fetch(1 + turn % 3, TOPIC, 0, len(self.seen), 200)
                if answer.status >= 500:
                    self.refused += 1
                    continue
                assert answer.status == 200, f"a reset: {answer}"
                for record in answer.body:
                    assert record["offset"] == len(self.seen), answer
                    self.seen.append(record["value"])

    async def ends(self) -> None:
        turn = 0
        while not self.stopped:
            turn += 1
            with suppress(OSError):
                url = f"{self._cluster.url(1 + turn % 3)}/topics/{TOPIC}/partitions/0/offsets"
                answer = await self._cluster.ask("GET", url, deadline_s=6.0)
                if answer.status == 200:
                    end = answer.body["end_offset"]
                    assert end >= self.end, f"the end went back from {self.end} to {end}"
                    self.end, self.asked = end, self.asked + 1
            await asyncio.sleep(0.005)


async def test_rule_r8_a_tail_and_the_end_never_go_back_through_30_leader_kills(
    cluster: LiveCluster,
) -> None:
    await cluster.create_topic(TOPIC)
    await cluster.wait_healthy(TOPIC)
    tail = Tail(cluster)
    async with asyncio.TaskGroup() as tasks:
        for task in (tail.write(), tail.read(), tail.ends()):
            tasks.create_task(task)
        for kill in range(KILLS):
            leader = await cluster.leader(TOPIC)
            before = len(tail.seen)
            pid = await cluster.kill(f"broker-{leader}")
            await cluster.wait_restarted(f"broker-{leader}", pid)
            await cluster.wait_isr(TOPIC, 0, {1, 2, 3}, through=1, deadline_s=30)
            await cluster.until(lambda before=before: len(tail.seen) > before + 5, f"kill {kill}")  # type: ignore[misc]
        tail.stopped = True
    log.info("%d records, %d ends, %d refusals", len(tail.seen), tail.asked, tail.refused)
    whole = await cluster.fetch(1, TOPIC, 0, 0)
    for record in whole.body:
        assert record["value"] == tail.seen[record["offset"]], "as it was read the first time"
