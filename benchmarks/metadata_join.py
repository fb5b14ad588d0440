"""A broker that joins a cluster of 100,000 partitions: from its first fetch to its image.

Real controllers, the real feed, the real `MetadataLoader` in a process of its own over the real
channel. The brokers that hold the partitions are modelled: registered and heartbeating over HTTP,
without anything behind; the placement is the product's placer.

``python -m benchmarks.metadata_join CLUSTER_ID CONTROLLERS`` is the joining process.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import aiohttp

from benchmarks.metadata_log import ask
from benchmarks.metadata_stalls import Stalls
from benchmarks.processes import ROOT, memory_mb
from benchmarks.product import product, server_pids
from benchmarks.report import Row, at_most
from broker.config import BrokerConfig
from broker.server.metadata_loader import MetadataLoader
from http_api.node.node_start import run_loop
from http_api.peer import controller_paths as paths
from http_api.peer.controller_channel import HttpControllerChannel
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.errors import KafkaError
from raft_metadata.common.ids import (
    UNKNOWN_BROKER_EPOCH,
    BrokerId,
    ClusterId,
    DirectoryId,
    IncarnationId,
    MetadataOffset,
    NodeId,
    TopicId,
    TopicName,
)
from raft_metadata.controller.topic_control import place
from raft_metadata.records.commands import (
    BrokerHeartbeat,
    BrokerRegistered,
    CreateTopic,
    HeartbeatAnswer,
    RegisterBroker,
)
from raft_metadata.records.feature_levels import SUPPORTED_FEATURE_LEVEL
from raft_metadata.records.records import BrokerState
from raft_metadata.records.serde import from_json, to_json

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from benchmarks.product import Product
    from chaos.cluster import Node

MODELLED = tuple(BrokerId(1_001 + number) for number in range(6))
BEAT_S = 1.0
SESSION_MS = 30_000
"""Session of the modelled brokers, long because one process of a busy machine serves them all."""
PARTITIONS_PER_TOPIC = 1_000
"""Partitions of a topic: as many as one creation may assign by hand."""
JOIN_LIMIT_S = 60.0
TICK_S = 0.005
RETRY_S = 0.05
BUDGET = at_most(5, " s")


async def measure(partitions: int) -> list[Row]:
    """Fill the controllers, then let brokers join, one after another."""
    options = ("--brokers", "1", "--set", f"broker_session_timeout_ms={SESSION_MS}")
    async with product(*options) as cluster, _modelled_brokers(cluster):
        began = time.monotonic()
        await _fill(cluster, partitions)
        filled_s = time.monotonic() - began
        status = await _status(cluster)
        stalls = Stalls([node.url for node in cluster.now().controllers])
        first = await asyncio.to_thread(_join, cluster)
        again = await asyncio.to_thread(_join, cluster)
        silences = stalls.longest()
        resident = [
            memory_mb(pid)[0]
            for name, pid in server_pids(cluster.now()).items()
            if name.startswith("controller")
        ]
    if status["partitions"] != partitions or first["partitions"] != partitions:
        msg = f"{status['partitions']} partitions made, {first['partitions']} read"
        raise RuntimeError(msg)
    return _rows(partitions, first, again, silences, resident, filled_s)


def _rows(
    partitions: int,
    first: dict[str, Any],
    again: dict[str, Any],
    silences: dict[str, float],
    resident: list[float],
    filled_s: float,
) -> list[Row]:
    worst = max(first["seconds"], again["seconds"])
    return [
        Row(
            what=f"new broker, {partitions:,} partitions: first fetch → image current",
            product=f"{worst:.2f} s",
            value=worst,
            budget=BUDGET,
            note=f"first {first['seconds']:.2f}, second {again['seconds']:.2f} s; its own loop "
            f"stood still for {first['stall_ms']:.0f} ms at most; {first['resident_mb']:.0f} MB "
            f"resident then; made in {filled_s:.0f} s",
        ),
        Row(
            what="longest silence of a controller meanwhile",
            product=f"{max(silences.values()):.0f} ms",
            value=max(silences.values()),
            budget=at_most(250, " ms"),
        ),
        Row(
            what=f"controller with {partitions:,} partitions, resident",
            product=f"{max(resident):.0f} MB",
            note=f"largest of {len(resident)}",
        ),
    ]


async def _status(cluster: Product) -> dict[str, Any]:
    node = await cluster.active_controller()
    found: dict[str, Any] = await cluster.http.get_json(f"{node.url}/controller/v1/status")
    return found


# ---- modelled brokers


@asynccontextmanager
async def _modelled_brokers(cluster: Product) -> AsyncIterator[None]:
    """Keep brokers registered, unfenced and alive until the block ends."""
    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as tasks:
        brokers = [_Modelled(broker, cluster, session) for broker in MODELLED]
        beats = [tasks.create_task(broker.live()) for broker in brokers]
        async with asyncio.timeout(JOIN_LIMIT_S):
            for broker in brokers:
                await broker.unfenced.wait()
        yield
        for beat in beats:
            beat.cancel()


class _Modelled:
    """A broker that only registers and sends heartbeats."""

    def __init__(
        self, broker_id: BrokerId, cluster: Product, session: aiohttp.ClientSession
    ) -> None:
        self.unfenced = asyncio.Event()
        self._id = broker_id
        self._cluster = cluster
        self._cluster_id = cluster.now().cluster_id
        self._session = session

    async def live(self) -> None:
        """Register, then send heartbeats to every controller, until cancelled."""
        name = str(self._id)
        command = RegisterBroker(
            broker_id=self._id,
            cluster_id=ClusterId(self._cluster_id),
            incarnation_id=IncarnationId(name.rjust(22, "i")),
            directory_id=DirectoryId(name.rjust(22, "d")),
            http=f"127.0.0.1:{self._id}",
            peer=f"127.0.0.1:{self._id}",
            last_broker_epoch=UNKNOWN_BROKER_EPOCH,
            feature_level_max=SUPPORTED_FEATURE_LEVEL,
            min_insync_replicas=1,
        )
        active = await self._cluster.active_controller()
        answer = await self._ask(active, paths.command_path(RegisterBroker), command)
        epoch = from_json(answer, BrokerRegistered).broker_epoch
        offset = MetadataOffset(epoch + 1)
        while True:
            beat = BrokerHeartbeat(broker_id=self._id, broker_epoch=epoch, metadata_offset=offset)
            for node in self._cluster.now().controllers:
                heard = from_json(await self._ask(node, paths.HEARTBEAT, beat), HeartbeatAnswer)
                offset = max(offset, heard.committed_offset)
                if heard.is_active and heard.state is BrokerState.UNFENCED:
                    self.unfenced.set()
            await asyncio.sleep(BEAT_S if self.unfenced.is_set() else RETRY_S)

    async def _ask(self, node: Node, path: str, command: object) -> bytes:
        return await ask(self._session, self._cluster_id, node, path, to_json(command))


async def _fill(cluster: Product, partitions: int) -> None:
    """Create topics of 1,000 partitions, placed on the modelled brokers by the product's placer."""
    racks: dict[BrokerId, str | None] = dict.fromkeys(MODELLED)
    cluster_id = cluster.now().cluster_id
    active = await cluster.active_controller()
    async with aiohttp.ClientSession() as session:
        for number in range(partitions // PARTITIONS_PER_TOPIC):
            placed = place(
                racks, partitions=range(PARTITIONS_PER_TOPIC), replication_factor=3, start=number
            )
            command = CreateTopic(
                name=TopicName(f"t{number}"),
                topic_id=TopicId(f"{number}".rjust(22, "t")),
                replicas_assignments=dict(enumerate(placed)),
            )
            await ask(
                session, cluster_id, active, paths.command_path(CreateTopic), to_json(command)
            )


# ---- the joining process


def _join(cluster: Product) -> dict[str, Any]:
    """Run the joining process and return the figures it prints."""
    now = cluster.now()
    controllers = {node.id: urlsplit(node.url).netloc for node in now.controllers}
    command = [sys.executable, "-m", "benchmarks.metadata_join"]
    command += [now.cluster_id, json.dumps(controllers)]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=JOIN_LIMIT_S
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


async def _joined(cluster_id: str, controllers: dict[NodeId, str]) -> dict[str, Any]:
    channel = HttpControllerChannel(controllers=controllers, cluster_id=ClusterId(cluster_id))
    await channel.start()
    config = BrokerConfig(
        broker_id=BrokerId(9),
        cluster_id=ClusterId(cluster_id),
        directory_id=DirectoryId("d" * 22),
        data_dir=Path("/nonexistent"),
        advertised_http="127.0.0.1:1",
        advertised_peer="127.0.0.1:2",
    )

    loader = MetadataLoader(config, channel, SystemClock(), lambda _: iter(()), lambda *_: None)
    longest_s = [0.0]
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(_watch_loop(longest_s)), tasks.create_task(loader.run())]
        began = time.monotonic()
        await loader.loaded.wait()
        await loader.wait_for(await _newest(loader))
        seconds = time.monotonic() - began
        for task in running:
            task.cancel()
    await channel.stop()
    return {
        "seconds": seconds,
        "stall_ms": longest_s[0] * 1000,
        "partitions": sum(len(topic.partitions) for topic in loader.image.topics.values()),
        "resident_mb": memory_mb(os.getpid())[0],
    }


async def _newest(loader: MetadataLoader) -> MetadataOffset:
    """Return the offset that the active controller has committed by now."""
    while True:
        try:
            return await loader.newest_offset()
        except KafkaError:
            await asyncio.sleep(RETRY_S)


async def _watch_loop(longest_s: list[float]) -> None:
    """Keep the worst delay of a timer in ``longest_s[0]``, in seconds, until cancelled."""
    while True:
        asked = time.monotonic()
        await asyncio.sleep(TICK_S)
        longest_s[0] = max(longest_s[0], time.monotonic() - asked - TICK_S)


def _run_joining(cluster_id: str, controllers: dict[str, str]) -> None:
    addresses = {NodeId(int(node)): address for node, address in controllers.items()}
    print(json.dumps(run_loop(_joined(cluster_id, addresses))))


if __name__ == "__main__":
    _run_joining(sys.argv[1], json.loads(sys.argv[2]))
