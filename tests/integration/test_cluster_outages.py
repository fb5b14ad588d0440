"""Nodes that stay away for a while: stopped brokers, a zombie leader, no controller at all.

The cluster runs with `--no-restart`; a test starts again by hand what it killed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator

import pytest

from tests.support.live_cluster import LiveCluster, running
from tests.support.live_writer import writing

log = logging.getLogger("tests.cluster")
ALL = {1, 2, 3}
STALL_S = 2.5
"""Two broker sessions."""
WITHOUT_CONTROLLERS_S = 3.0
"""More than two broker sessions: nobody may be fenced or stop because of it."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(tmp_path_factory.mktemp("outages"), "--no-restart") as cluster:
        yield cluster


async def test_each_acks_answers_and_too_few_replicas_refuse_only_acks_all(
    cluster: LiveCluster,
) -> None:
    topic = "acks"
    await cluster.create_topic(topic)
    leader = await cluster.leader(topic)
    for number, acks in enumerate(["all", "-1", "1"]):
        answer = await cluster.produce(leader, topic, acks, query=f"acks={acks}")
        assert (answer.status, answer.body["offsets"][0]["offset"]) == (200, number), answer
    answer = await cluster.produce(leader, topic, "0", query="acks=0")
    assert (answer.status, answer.body["offsets"][0]["offset"]) == (200, -1), answer

    followers = [f"broker-{one.id}" for one in cluster.others(leader)]
    for name in followers:
        await cluster.kill(name)
    await cluster.wait_isr(topic, 0, {leader}, leader)
    refused = await cluster.produce(leader, topic, "too few")
    assert (refused.status, refused.headers.get("Retry-After")) == (503, "1"), refused
    entry = refused.body["offsets"][0]
    assert entry["error_code"] == 50003, refused
    assert entry["error"].startswith("NOT_ENOUGH_REPLICAS:"), refused
    assert entry["outcome"] == "not_written", refused
    alone = await cluster.produce(leader, topic, "alone", query="acks=1")
    assert (alone.status, alone.body["offsets"][0]["offset"]) == (200, 4), alone

    for name in followers:
        cluster.start_node(name)
    await cluster.wait_isr(topic, 0, ALL, leader)
    answer = await cluster.produce(leader, topic, "again")
    assert (answer.status, answer.body["offsets"][0]["offset"]) == (200, 5), answer
    for broker in sorted(ALL):
        fetched = await cluster.fetch(broker, topic)
        values = [record["value"] for record in fetched.body]
        assert values == ["all", "-1", "1", "0", "alone", "again"], (broker, fetched)
    await cluster.wait_same_on_disk(topic, 1)


async def test_produce_and_fetch_go_on_without_controllers_and_a_create_says_503(
    cluster: LiveCluster,
) -> None:
    topic = "headless"
    await cluster.create_topic(topic, 2)
    before = [await cluster.partition(topic, partition) for partition in range(2)]
    names = [f"controller-{one.id}" for one in cluster.controllers]
    async with writing(cluster, topic, 2) as writer:
        for name in names:
            await cluster.kill(name)
        since_ms = writer.now_ms()
        while writer.now_ms() - since_ms < WITHOUT_CONTROLLERS_S * 1000:
            await writer.more(20)
            for broker in sorted(ALL):
                assert (await cluster.fetch(broker, topic)).body
        began = time.monotonic()
        answer = await cluster.ask(
            "POST", cluster.topics_url(1), {"topic_name": "impossible"}, deadline_s=30
        )
        waited_s = time.monotonic() - began
        assert (answer.status, answer.headers.get("Retry-After")) == (503, "1"), answer
        assert answer.body["retriable"] is True, answer
        await writer.more(20)
        for name in names:
            cluster.start_node(name)

        async def decides() -> bool:
            return (await cluster.active_controller())[0] is not None

        await cluster.until(decides, "a controller is active")
        await cluster.create_topic("possible-again", through=2)
        await writer.more(20)
        gap = writer.gap(since_ms)
    assert not writer.history.unacknowledged, writer.history.unacknowledged[:3]
    after = [await cluster.partition(topic, partition) for partition in range(2)]
    assert [one["leader_epoch"] for one in after] == [one["leader_epoch"] for one in before]
    log.info("create refused after %.1f s: %s", waited_s, answer.body)
    log.info("longest gap %d ms; %s", gap.ms, await writer.judge(cluster))


async def test_rule_f1_what_the_killed_leader_had_taken_is_unknown_and_stands_there_once(
    cluster: LiveCluster,
) -> None:
    """The forwarding broker holds the record as a follower: sent again, it would be there twice."""
    topic = "once"
    await cluster.create_topic(topic)
    await cluster.wait_isr(topic, 0, ALL, 1)
    leader = await cluster.leader(topic)
    forwarder, slow = (one.id for one in cluster.others(leader))
    assert (await cluster.produce(forwarder, topic, "before")).status == 200
    cluster.pause(f"broker-{slow}")
    sent = asyncio.create_task(cluster.produce(forwarder, topic, "in flight"))

    def replicated() -> bool:
        return b"in flight" in b"".join(cluster.batches_on_disk(forwarder, topic, 0))

    await cluster.until(replicated, "the forwarder holds the record")
    await cluster.kill(f"broker-{leader}")
    cluster.resume(f"broker-{slow}")
    entry = (await sent).body["offsets"][0]
    assert entry["outcome"] == "unknown", entry
    await cluster.wait_isr(topic, 0, ALL - {leader}, forwarder)
    cluster.start_node(f"broker-{leader}")
    await cluster.wait_isr(topic, 0, ALL, forwarder)
    assert (await cluster.produce(forwarder, topic, "after")).status == 200
    fetched = await cluster.fetch(leader, topic)
    assert [record["value"] for record in fetched.body] == ["before", "in flight", "after"]


async def test_what_a_zombie_leader_does_later_conflicts_with_nothing(
    cluster: LiveCluster,
) -> None:
    topic = "zombie"
    await cluster.create_topic(topic)
    await cluster.wait_isr(topic, 0, ALL, 1)
    before = await cluster.partition(topic)
    leader = int(before["leader_id"])
    living = cluster.others(leader)
    async with (
        writing(cluster, topic, 1, living) as writer,
        writing(
            cluster, topic, 1, [one for one in cluster.brokers if one not in living], writer
        ) as through_zombie,
    ):
        at_ms = writer.now_ms()
        cluster.pause(f"broker-{leader}")

        async def deposed() -> bool:
            described = await cluster.partition(topic, 0, living[0].id)
            return described["leader_epoch"] > before["leader_epoch"] and bool(
                described["leader_id"]
            )

        await cluster.until(deposed, "another broker leads")
        await writer.more()
        gap = writer.gap(at_ms)
        cluster.resume(f"broker-{leader}")
        await through_zombie.more()
        await cluster.wait_isr(topic, 0, ALL, living[0].id)
        await asyncio.gather(writer.more(), through_zombie.more())
    log.info("longest gap of the living %d ms; %s", gap.ms, await writer.judge(cluster))
    await cluster.wait_same_on_disk(topic, 1)
    assert (await cluster.partition(topic))["leader_epoch"] > before["leader_epoch"]


async def test_rule_m7_a_machine_that_stood_still_fences_nobody(cluster: LiveCluster) -> None:
    topic = "stalled"
    await cluster.create_topic(topic, 2)
    for partition in range(2):
        await cluster.wait_isr(topic, partition, ALL, 1)
    nodes = [f"broker-{one.id}" for one in cluster.brokers]
    nodes += [f"controller-{one.id}" for one in cluster.controllers]
    async with writing(cluster, topic, 2) as writer:
        before = [await cluster.partition(topic, partition) for partition in range(2)]
        for name in nodes:
            cluster.pause(name)
        await asyncio.sleep(STALL_S)  # the fault itself: nothing is waited for
        for name in reversed(nodes):
            cluster.resume(name)
        await writer.more(100)
        after = [await cluster.partition(topic, partition) for partition in range(2)]
    for one, other in zip(before, after, strict=True):
        assert (one["leader_epoch"], one["partition_epoch"]) == (
            other["leader_epoch"],
            other["partition_epoch"],
        ), (one, other)
    await writer.judge(cluster)
