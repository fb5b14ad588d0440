"""The product as the benchmarks use it: a cluster of its own, topics, leaders, pids."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from benchmarks.processes import ROOT
from chaos.cluster import LocalCluster
from chaos.deadline import TooLateError
from chaos.http import CallError, Http

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from chaos.cluster import ClusterFile, Node

JSON_V2 = "application/vnd.kafka.json.v2+json"
HEALTHY_DEADLINE_S = 60.0


@dataclass(frozen=True, slots=True)
class Product:
    """A running cluster and a client session."""

    cluster: LocalCluster
    http: Http

    def now(self) -> ClusterFile:
        """The present content of cluster.json."""
        return self.cluster.read()

    async def create_topic(
        self, name: str, *, partitions: int = 1, flush: str = "ack", replicas: int = 3
    ) -> None:
        """Create a topic with the given flush policy; by default RF 3, min in-sync replicas 2."""
        configs = [{"name": "flush", "value": flush}]
        if replicas < 2:
            configs.append({"name": "min.insync.replicas", "value": "1"})
        now = self.now()
        body = {
            "topic_name": name,
            "partitions_count": partitions,
            "replication_factor": replicas,
            "configs": configs,
        }
        await self.http.post_json(f"{now.brokers[0].url}/v3/clusters/{now.cluster_id}/topics", body)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic, so that its dirty pages do not slow the next measurement."""
        now = self.now()
        await self.http.call(
            "DELETE",
            f"{now.brokers[0].url}/v3/clusters/{now.cluster_id}/topics/{name}",
            timeout_s=15.0,
        )

    async def describe(self, topic: str, partition: int = 0) -> dict[str, Any]:
        """Return a partition as the first answering broker describes it."""
        now = self.now()
        path = f"/v3/clusters/{now.cluster_id}/topics/{topic}/partitions/{partition}"
        last: CallError | None = None
        for broker in now.brokers:
            try:
                described: dict[str, Any] = await self.http.get_json(broker.url + path, 2.0)
            except CallError as error:
                last = error
            else:
                return described
        assert last is not None
        raise last

    async def leader(self, topic: str, partition: int = 0) -> Node:
        """Return the partition's leader."""
        described = await self.describe(topic, partition)
        return self.now().node(int(described["leader"]["related"].rsplit("/", 1)[1]))

    async def led_by(self, broker: Node, topic: str) -> list[int]:
        """Return the numbers of the topic's partitions that this broker leads."""
        now = self.now()
        path = f"/v3/clusters/{now.cluster_id}/topics/{topic}/partitions"
        listed = await self.http.get_json(now.brokers[0].url + path, 30.0)
        return [
            row["partition_id"]
            for row in listed["data"]
            if row["leader"] is not None
            and int(row["leader"]["related"].rsplit("/", 1)[1]) == broker.id
        ]

    async def wait_healthy(self, topic: str) -> None:
        """Wait until every node runs, every broker is ready and the partition's ISR is whole."""
        async with asyncio.timeout(HEALTHY_DEADLINE_S):
            while not await self._is_healthy(topic):  # noqa: ASYNC110 others' state: polled
                await asyncio.sleep(0.1)

    async def _is_healthy(self, topic: str) -> bool:
        now = self.now()
        if any(node.pid is None for node in (*now.brokers, *now.controllers)):
            return False
        try:
            for node in now.controllers:
                await self.http.get_json(f"{node.url}/controller/v1/status", 2.0)
            for node in now.brokers:
                await self.http.wait_ready(node.url, 10.0)
            described = await self.describe(topic)
        except (CallError, TimeoutError, TooLateError):
            return False
        return described["leader"] is not None and len(described["isr"]) == len(now.brokers)

    async def active_controller(self) -> Node:
        """Return the controller that reports itself active, in the highest term."""
        found: tuple[int, Node] | None = None
        for node in self.now().controllers:
            try:
                status = await self.http.get_json(f"{node.url}/controller/v1/status", 2.0)
            except CallError:
                continue
            if status["is_active"] and (found is None or status["term"] > found[0]):
                found = (status["term"], node)
        if found is None:
            msg = "no controller says it is active"
            raise CallError(msg)
        return found[1]


def target(node: Node) -> str:
    """Return host:port for the load generator."""
    parts = urlsplit(node.url)
    return f"{parts.hostname}:{parts.port}"


def server_pids(now: ClusterFile) -> dict[str, int]:
    """Return name → pid of every running node."""
    return {
        f"{node.kind} {node.id}": node.pid
        for node in (*now.brokers, *now.controllers)
        if node.pid is not None
    }


@asynccontextmanager
async def product(*options: str) -> AsyncIterator[Product]:
    """Yield a fresh cluster on this machine's disk; it is deleted when the block ends."""
    home = ROOT / ".cache"
    home.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir=home))
    cluster = LocalCluster(directory, options)
    try:
        await cluster.start()
        async with Http() as http:
            yield Product(cluster, http)
    finally:
        cluster.kill_everything()
        shutil.rmtree(directory)
