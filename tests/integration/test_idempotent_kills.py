"""Leaders killed under brokers that forward to them, and under clients that write under an id."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from http_api.client.client_errors import QuorumlogError
from http_api.client.sdk.async_producer import AsyncProducer
from http_api.client.sdk.record_types import Receipt
from tests.support.live_cluster import LiveCluster, running
from tests.support.live_writer import writing

log = logging.getLogger("tests.cluster")
KILLS = 3
LANES = 4
"""Writers beside each other: the forwarding brokers have several requests of a partition."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(tmp_path_factory.mktemp("idempotent")) as cluster:
        yield cluster


async def test_rule_f1_what_a_killed_leader_left_in_doubt_is_found_out_and_not_repeated(
    cluster: LiveCluster,
) -> None:
    """Through brokers that don't lead: no answer is *unknown*, and no value is there twice."""
    topic = "forwarded"
    await cluster.create_topic(topic)
    others = cluster.others(await cluster.leader(topic))
    async with writing(cluster, topic, 1, others) as first:
        writers = [first]
        async with asyncio.TaskGroup() as lanes:
            for _ in range(LANES - 1):
                writers.append(await _beside(cluster, topic, first, writers[-1], lanes))
            for _ in range(KILLS):
                leader = await cluster.leader(topic)
                for writer in writers:
                    writer.bind(cluster.others(leader))
                await first.more()
                pid = await cluster.kill(f"broker-{leader}")
                await first.more()
                await cluster.wait_restarted(f"broker-{leader}", pid)
                await cluster.wait_healthy(topic)
            for writer in writers:
                writer.stop()
    figures = await first.judge(cluster)
    log.info("%d kills: %s", KILLS, figures)
    assert first.unknown() == [], figures


async def _beside(
    cluster: LiveCluster, topic: str, first: Any, before: Any, lanes: asyncio.TaskGroup
) -> Any:
    """One more writer, with the first one's connections and history."""
    writer = type(first)(first.http, topic, 1, first.endpoints, beside=before)
    lanes.create_task(writer.run())
    return writer


async def producer(cluster: LiveCluster, through: int) -> int:
    now = cluster.read()
    answer = await cluster.ask(
        "POST", f"{cluster.url(through)}/v3/clusters/{now.cluster_id}/producer-ids"
    )
    assert answer.status == 200, answer
    return int(answer.body["producer_id"])


async def write(
    cluster: LiveCluster, through: int, topic: str, claim: tuple[int, int, int], *values: object
) -> Any:
    names = ("Quorumlog-Producer-Id", "Quorumlog-Producer-Epoch", "Quorumlog-Sequence")
    headers = dict(zip(names, map(str, claim), strict=True))
    body = {"records": [{"value": value} for value in values]}
    url = f"{cluster.url(through)}/topics/{topic}/partitions/0"
    return await cluster.ask("POST", url, body, headers)


async def test_invariant_t4_a_write_is_known_again_by_the_next_leader_and_after_kill_minus_nine(
    cluster: LiveCluster,
) -> None:
    """Mutant M22: a new leader, or a new life, that does not know its producers writes it twice."""
    topic = "known-again"
    await cluster.create_topic(topic)
    number = await producer(cluster, 1)
    first = await write(cluster, 1, topic, (number, 0, 0), "a", "b")
    assert [row["offset"] for row in first.body["offsets"]] == [0, 1], first
    leader = await cluster.leader(topic)
    pid = await cluster.kill(f"broker-{leader}")
    through = cluster.others(leader)[0].id
    again = await write(cluster, through, topic, (number, 0, 0), "a", "b")
    assert again.body == first.body, again
    await cluster.wait_restarted(f"broker-{leader}", pid)
    await cluster.wait_healthy(topic)
    pids = {broker.id: await cluster.kill(f"broker-{broker.id}") for broker in cluster.brokers}
    for broker, old in pids.items():
        await cluster.wait_restarted(f"broker-{broker}", old)
    await cluster.wait_healthy(topic)
    for broker in pids:
        again = await write(cluster, broker, topic, (number, 0, 0), "a", "b")
        assert again.body == first.body, again
    gap = await write(cluster, 1, topic, (number, 0, 3), "d")
    assert (gap.status, gap.body["error_code"], gap.body["outcome"]) == (409, 40904, "not_written")
    behind = await write(cluster, 2, topic, (number, 0, 2), "c")
    assert [row["offset"] for row in behind.body["offsets"]] == [2], behind


async def test_invariant_t1_the_sdk_s_producer_keeps_order_and_repeats_nothing_over_a_kill(
    cluster: LiveCluster,
) -> None:
    topic = "sdk"
    await cluster.create_topic(topic)
    leader = await cluster.leader(topic)
    offsets: list[int] = []

    async def on_delivery(error: QuorumlogError | None, receipt: Receipt) -> None:
        assert error is None, error
        offsets.append(receipt.offset)

    pid = 0
    urls = [broker.url for broker in cluster.others(leader)]
    async with AsyncProducer(urls, linger_ms=1) as producer:
        for number in range(400):
            await producer.produce(topic, number, on_delivery=on_delivery)
            if number == 200:
                pid = await cluster.kill(f"broker-{leader}")
            await asyncio.sleep(0.002)
    assert offsets == list(range(400)), "all there, once, in order"
    await cluster.wait_restarted(f"broker-{leader}", pid)
    await cluster.wait_healthy(topic)
    rows = (await cluster.fetch(cluster.others(leader)[0].id, topic)).body
    assert [row["value"] for row in rows] == list(range(400))


async def test_invariant_t5_no_producer_id_is_given_twice_over_kills(cluster: LiveCluster) -> None:
    given = [await producer(cluster, broker.id) for broker in cluster.brokers for _ in range(3)]
    active, _ = await cluster.active_controller()
    await cluster.kill(f"controller-{active}")
    pid = await cluster.kill("broker-1")
    given += [await producer(cluster, 2) for _ in range(3)]
    await cluster.wait_restarted("broker-1", pid)
    await cluster.wait_healthy()
    given += [await producer(cluster, broker.id) for broker in cluster.brokers for _ in range(3)]
    assert len(set(given)) == len(given), given
