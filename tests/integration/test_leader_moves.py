"""Leaderships move from broker to broker while everybody writes: drains, and elections for all."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.live_cluster import LiveCluster, running
from tests.support.live_writer import writing

log = logging.getLogger("tests.cluster")
PARTITIONS = 6
GAP_MAX_MS = 2_500
"""A lane has one request in flight. What only the old leader held is unknown after a second
(`DEPOSED_WAIT_MS`), and only then is the next one sent."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(tmp_path_factory.mktemp("moves")) as cluster:
        yield cluster


async def leaders(cluster: LiveCluster, topic: str) -> set[int]:
    return {await cluster.leader(topic, index, through=1) for index in range(PARTITIONS)}


async def asked(cluster: LiveCluster, path: str, body: dict[str, str]) -> Any:
    now = cluster.read()
    url = f"{now.node(1).url}/v3/clusters/{now.cluster_id}/{path}"
    answer = await cluster.ask("POST", url, body)
    assert answer.status == 200, answer
    return answer.body


async def test_planned_moves_under_load_lose_nothing_and_hold_nobody_for_long(
    cluster: LiveCluster,
) -> None:
    topic = "moved"
    await cluster.create_topic(topic, partitions=PARTITIONS)
    assert await leaders(cluster, topic) == {1, 2, 3}
    async with writing(cluster, topic, PARTITIONS) as writer:
        since_ms = writer.now_ms()
        for broker in (1, 2, 3):
            await asked(cluster, f"brokers/{broker}:drain", {"scope": "leaders"})

            async def is_rid(broker: int = broker) -> bool:
                return broker not in await leaders(cluster, topic)

            await cluster.until(is_rid, f"broker {broker} leads nothing")
            await writer.more(20)
            await asked(cluster, f"brokers/{broker}:drain", {"scope": "none"})
        await asked(cluster, "topics/-/partitions/-/leader:elect", {"election": "preferred"})
        await writer.more(20)
        gap = writer.gap(since_ms)
    assert await leaders(cluster, topic) == {1, 2, 3}, "the preferred ones"
    figures = await writer.judge(cluster)
    log.info("planned moves gap_ms=%d %s", gap.ms, figures)
    assert gap.ms <= GAP_MAX_MS, figures
