"""kill -9 of one process at a time, under load, with `up` starting it again."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.support.live_cluster import LiveCluster, running
from tests.support.live_writer import writing

log = logging.getLogger("tests.cluster")
"""Figures: shown by `--log-cli-level=INFO`, and where a test fails."""
PARTITIONS = 2
GAP_MS_MAX = 10_000
"""That writes go on at all; how soon is measured in benchmarks/."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(tmp_path_factory.mktemp("kills")) as cluster:
        yield cluster


async def victim(cluster: LiveCluster, role: str, topic: str) -> str:
    active, _ = await cluster.active_controller()
    described = await cluster.partition(topic)
    if role == "leader":
        return f"broker-{described['leader_id']}"
    if role == "follower":
        return f"broker-{next(one for one in described['isr'] if one != described['leader_id'])}"
    standby = next(one.id for one in cluster.controllers if one.id != active)
    return f"controller-{active if role == 'active controller' else standby}"


@pytest.mark.parametrize("role", ["leader", "follower", "active controller", "standby"])
async def test_a_process_killed_under_load_takes_no_acknowledged_record_with_it(
    cluster: LiveCluster, role: str
) -> None:
    topic = f"killed-{role.replace(' ', '-')}"
    await cluster.create_topic(topic, PARTITIONS)
    async with writing(cluster, topic, PARTITIONS) as writer:
        name = await victim(cluster, role, topic)
        at_ms = writer.now_ms()
        pid = await cluster.kill(name)
        await writer.more()
        await cluster.wait_restarted(name, pid)
        await cluster.wait_healthy(topic, PARTITIONS)
        await writer.more()
        gap = writer.gap(at_ms)
    figures = await writer.judge(cluster)
    log.info("%s (%s) killed: longest gap %d ms; %s", role, name, gap.ms, figures)
    assert gap.ms < GAP_MS_MAX


async def test_a_forwarding_broker_repeats_nothing_through_leader_kills(
    cluster: LiveCluster,
) -> None:
    topic = "forwarded"
    await cluster.create_topic(topic)
    async with writing(cluster, topic, 1, cluster.others(await cluster.leader(topic))) as writer:
        for _ in range(3):
            leader = await cluster.leader(topic)
            writer.bind(cluster.others(leader))
            pid = await cluster.kill(f"broker-{leader}")
            await writer.more()
            await cluster.wait_restarted(f"broker-{leader}", pid)
            await cluster.wait_healthy(topic)
    log.info("through brokers that do not lead: %s", await writer.judge(cluster))


async def test_the_pid_file_of_the_readme_kills_and_the_next_write_is_answered(
    cluster: LiveCluster,
) -> None:
    topic = "readme"
    await cluster.create_topic(topic, 3)
    for broker in cluster.brokers:
        name = f"broker-{broker.id}"
        assert int(cluster.file(f"{name}/node.pid")) == cluster.pid(name)
        pid = await cluster.kill(name)
        through = cluster.others(broker.id)[0].id
        for partition in range(3):
            answer = await cluster.produce(through, topic, broker.id, partition=partition)
            assert answer.status == 200, answer
            assert answer.body["offsets"][0]["offset"] == broker.id - 1, answer
        await cluster.wait_restarted(name, pid)
        await cluster.wait_healthy(topic, 3)
