"""One replication link of 400 KB/s, by Toxiproxy: a slow follower slows itself, and nobody else."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.processes import memory_mb
from chaos.net.links import Link, Plane
from chaos.net.toxiproxy import ANSWERS, Toxic
from chaos.proxied_cluster import ProxiedCluster

log = logging.getLogger("tests.chaos")
KB_PER_S = 400
FILLED_MB = 3
BODY_RECORDS = 100
LEADER, FRIEND, SLOW = 1, 2, 3


class Door:
    """Broker 1's own door: not through a proxy."""

    def __init__(self, session: aiohttp.ClientSession, url: str, cluster_id: str) -> None:
        self._session = session
        self._url = url
        self._v3 = f"{url}/v3/clusters/{cluster_id}"

    async def create(self, name: str, replicas: list[int]) -> None:
        body = {
            "topic_name": name,
            "replicas_assignments": {"0": replicas},
            "configs": [{"name": "min.insync.replicas", "value": "2"}],
        }
        answer = await self._session.post(f"{self._v3}/topics", json=body)
        assert answer.status == 201, await answer.text()

    async def write(self, name: str, value: object = 1, count: int = 1) -> float:
        """acks=all; how long it took, in seconds."""
        began = time.monotonic()
        answer = await self._session.post(
            f"{self._url}/topics/{name}/partitions/0",
            json={"records": [{"value": value}] * count},
            headers={"Content-Type": "application/vnd.kafka.json.v2+json"},
        )
        assert answer.status == 200, await answer.text()
        return time.monotonic() - began

    async def isr(self, name: str) -> set[int]:
        answer = await self._session.get(f"{self._v3}/topics/{name}/partitions/0")
        described: dict[str, Any] = await answer.json()
        return set(described["isr"])

    async def reassign(self, name: str, replicas: list[int]) -> None:
        url = f"{self._v3}/topics/{name}/partitions/0/reassignment"
        answer = await self._session.post(url, json={"replicas": replicas})
        assert answer.status == 202, await answer.text()


async def test_rule_r9_a_slow_link_slows_its_own_follower_only(tmp_path: Path) -> None:
    """While 3 MB are filled over it, what is in sync over the same link goes on being so."""
    async with ProxiedCluster(tmp_path) as cluster, aiohttp.ClientSession() as session:
        await cluster.local.start()
        now = cluster.local.read()
        leader = now.node(LEADER)
        door = Door(session, leader.url, now.cluster_id)
        await door.create("large", [LEADER, FRIEND])
        await door.create("through", [LEADER, FRIEND, SLOW])
        await door.create("around", [LEADER, FRIEND])
        for _ in range(FILLED_MB * 10):
            await door.write("large", "x" * 1_000, BODY_RECORDS)
        link = Link(SLOW, LEADER, Plane.PEER)
        slow = Toxic("bandwidth", ANSWERS, (("rate", KB_PER_S),))
        cluster.network.server_api().add_toxic(link.name, slow)
        assert leader.pid is not None
        before_mb = memory_mb(leader.pid)[0]
        await door.reassign("large", [LEADER, SLOW])
        through, around, began = [], [], time.monotonic()
        async with asyncio.timeout(90):
            while await door.isr("large") != {LEADER, SLOW}:
                through.append(await door.write("through"))
                around.append(await door.write("around"))
                assert await door.isr("through") == {LEADER, FRIEND, SLOW}, "in sync all the time"
        seconds = time.monotonic() - began
        grown_mb = memory_mb(leader.pid)[0] - before_mb
        log.info(
            "%d MB in %.0f s; over the slow link p50 %.2f worst %.2f s, around it p50 %.3f "
            "worst %.2f s; the leader grew by %.0f MB",
            FILLED_MB, seconds, _p50(through), max(through), _p50(around), max(around), grown_mb,
        )  # fmt: skip
        assert seconds > FILLED_MB * 1_000 / KB_PER_S / 2, "the link was slow"
        assert _p50(around) < 0.3, "whoever needs no slow link does not feel it"
        assert _p50(through) < 1.5, "and who does waits behind a small share of the filling"
        assert grown_mb < 60


def _p50(seconds: list[float]) -> float:
    return sorted(seconds)[len(seconds) // 2]
