"""Faults in a row, drawn by a seed, on a cluster that is not given time to mend in between.

`make test-slow ARGS="tests/integration/test_cluster_torture.py"`. A seed draws the same faults
again, not the same interleaving: a red run is told by its logs, which stay in the test's folder.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterator

import pytest

from tests.support.live_cluster import LiveCluster, running
from tests.support.live_writer import LiveWriter, writing

pytestmark = pytest.mark.slow

log = logging.getLogger("tests.cluster")
TOPIC = "tortured"
PARTITIONS = 3
FAULTS = 12
PAUSE_S = (0.3, 3.0)
"""Shorter and longer than a session."""
BREATH_S = (0.0, 1.5)
RECOVERY_S = 60.0


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(tmp_path_factory.mktemp("torture")) as cluster:
        yield cluster


def names(cluster: LiveCluster, kind: str) -> list[str]:
    nodes = cluster.brokers if kind == "broker" else cluster.controllers
    return [f"{kind}-{one.id}" for one in nodes]


async def kill_some(cluster: LiveCluster, chance: random.Random, kind: str, most: int) -> str:
    chosen = chance.sample(names(cluster, kind), chance.randint(1, most))
    for name in chosen:
        if cluster.pid(name) is not None:
            await cluster.kill(name)
    return f"killed {chosen}"


async def pause_some(cluster: LiveCluster, chance: random.Random, kind: str, most: int) -> str:
    chosen = [
        name
        for name in chance.sample(names(cluster, kind), chance.randint(1, most))
        if cluster.pid(name) is not None
    ]
    for name in chosen:
        cluster.pause(name)
    for_s = chance.uniform(*PAUSE_S)
    await asyncio.sleep(for_s)  # the fault itself
    for name in chosen:
        cluster.resume(name)
    return f"paused {chosen} for {for_s:.1f} s"


async def kill_all(cluster: LiveCluster, _: random.Random) -> str:
    cluster.kill_everything()
    return f"killed everything, ready again after {await cluster.start():.1f} s"


FAULTS_BY_NAME: dict[str, Callable[[LiveCluster, random.Random], Awaitable[str]]] = {
    "a broker": lambda cluster, chance: kill_some(cluster, chance, "broker", 1),
    "brokers": lambda cluster, chance: kill_some(cluster, chance, "broker", 3),
    "controllers": lambda cluster, chance: kill_some(cluster, chance, "controller", 3),
    "still brokers": lambda cluster, chance: pause_some(cluster, chance, "broker", 2),
    "still controllers": lambda cluster, chance: pause_some(cluster, chance, "controller", 3),
    "all": kill_all,
}


async def torture(cluster: LiveCluster, chance: random.Random, writer: LiveWriter) -> None:
    for _ in range(FAULTS):
        fault = chance.choice(list(FAULTS_BY_NAME))
        said = await FAULTS_BY_NAME[fault](cluster, chance)
        log.info("%s", said)
        writer.bind(cluster.brokers)
        if chance.random() < 0.5:
            await cluster.wait_healthy(TOPIC, PARTITIONS, RECOVERY_S)
            await writer.more(20, RECOVERY_S)
        else:
            await asyncio.sleep(chance.uniform(*BREATH_S))  # the next one comes when it comes


@pytest.mark.parametrize("flush", ["ack", "os"])
@pytest.mark.parametrize("seed", range(1, 5))
async def test_whatever_comes_in_a_row_loses_nothing_and_the_cluster_mends(
    cluster: LiveCluster, seed: int, flush: str
) -> None:
    chance = random.Random(seed)
    await cluster.create_topic(TOPIC, PARTITIONS, flush=flush)
    async with writing(cluster, TOPIC, PARTITIONS) as writer:
        await torture(cluster, chance, writer)
        await cluster.wait_healthy(TOPIC, PARTITIONS, RECOVERY_S)
        await writer.more(50, RECOVERY_S)
    log.info("seed %d, flush=%s: %s", seed, flush, await writer.judge(cluster))
    await cluster.wait_same_on_disk(TOPIC, PARTITIONS)
