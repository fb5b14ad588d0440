"""kill -9 of everything at once, the supervisor too; then `up` again on the same directory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from tests.support.live_cluster import LiveCluster, running
from tests.support.live_writer import writing

log = logging.getLogger("tests.cluster")
PROCESSES = 7
PARTITIONS = 2


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(tmp_path_factory.mktemp("restarts")) as cluster:
        yield cluster


@pytest.mark.parametrize("flush", ["ack", "os"])
async def test_everything_killed_at_once_comes_back_with_every_acknowledged_record(
    cluster: LiveCluster, flush: str
) -> None:
    """The page cache survives kill -9, so a flush=os topic has its data, too."""
    topic = f"kept-{flush}"
    await cluster.create_topic(topic, PARTITIONS, flush=flush)
    async with writing(cluster, topic, PARTITIONS) as writer:
        await writer.more()
        assert cluster.kill_everything() == PROCESSES
        ready_s = await cluster.start()
        await writer.more()
        await cluster.wait_healthy(topic, PARTITIONS)
    log.info("flush=%s: ready after %.1f s; %s", flush, ready_s, await writer.judge(cluster))
    await cluster.wait_same_on_disk(topic, PARTITIONS)


async def test_a_removed_broker_folder_is_served_by_the_others_and_filled_again(
    cluster: LiveCluster,
) -> None:
    topic = "disk-lost"
    await cluster.create_topic(topic, PARTITIONS)
    async with writing(cluster, topic, PARTITIONS) as writer:
        await writer.more()
        lost = await cluster.leader(topic)
        assert cluster.kill_everything() == PROCESSES
        before = cluster.directory_id(f"broker-{lost}")
        cluster.remove_folder(f"broker-{lost}")
        acknowledged = writer.acknowledged()
        await cluster.start()
        assert cluster.directory_id(f"broker-{lost}") != before
        served = await cluster.fetch(cluster.others(lost)[0].id, topic)
        assert (served.status, served.body[0]["offset"]) == (200, 0), served
        await writer.more()
        await cluster.wait_healthy(topic, PARTITIONS)
    log.info("%d acknowledged before; %s", acknowledged, await writer.judge(cluster))
    await cluster.wait_same_on_disk(topic, PARTITIONS)


async def test_rule_r6_an_emptied_broker_that_is_back_first_is_not_elected(
    cluster: LiveCluster,
) -> None:
    """The broker led and was in the ISR; now it has another directory id and no data."""
    topic = "emptied"
    await cluster.create_topic(topic)
    async with writing(cluster, topic, 1) as writer:
        await writer.more()
    lost = await cluster.leader(topic)
    assert cluster.kill_everything() == PROCESSES
    before = cluster.directory_id(f"broker-{lost}")
    cluster.remove_folder(f"broker-{lost}")
    starting = asyncio.create_task(cluster.start())  # only `up` formats a folder

    def formatted() -> bool:
        return cluster.directory_id(f"broker-{lost}") != before

    await cluster.until(formatted, "the folder is formatted anew")
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    cluster.kill_everything()

    for controller in cluster.controllers:
        cluster.start_node(f"controller-{controller.id}")
    cluster.start_node(f"broker-{lost}")

    async def unfenced() -> bool:
        return (await cluster.ask("GET", f"{cluster.url(lost)}/readyz")).status == 200

    await cluster.until(unfenced, "the emptied broker is unfenced")
    assert (await cluster.partition(topic, 0, lost))["leader_id"] is None
    for broker in cluster.others(lost):
        cluster.start_node(f"broker-{broker.id}")
    await cluster.wait_healthy(topic)
    await writer.judge(cluster)
    cluster.kill_everything()
    await cluster.start()
