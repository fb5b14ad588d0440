"""Topics that come, go, and come again under the same name, while brokers are away."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.support.live_cluster import LiveCluster, running

ALL = {1, 2, 3}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(tmp_path_factory.mktemp("topics"), "--no-restart") as cluster:
        yield cluster


async def values(cluster: LiveCluster, broker: int, topic: str) -> list[object]:
    answer = await cluster.fetch(broker, topic, wait_ms=100)
    assert answer.status == 200, (broker, answer)
    return [record["value"] for record in answer.body]


async def test_a_produce_makes_the_topic_and_two_at_once_make_one(cluster: LiveCluster) -> None:
    answers = await asyncio.gather(
        *(cluster.produce(broker, "made-by-produce", broker) for broker in sorted(ALL))
    )
    assert [answer.status for answer in answers] == [200] * 3, answers
    assert sorted(answer.body["offsets"][0]["offset"] for answer in answers) == [0, 1, 2]
    for broker in sorted(ALL):
        assert set(await values(cluster, broker, "made-by-produce")) == ALL
    described = await cluster.partition("made-by-produce")
    assert len(described["isr"]) == 3


async def test_invariant_c12_a_topic_made_again_serves_no_old_record(cluster: LiveCluster) -> None:
    topic = "again"
    for life in range(4):
        through = sorted(ALL)[life % 3]
        await cluster.create_topic(topic, through=through)
        for broker in sorted(ALL):
            assert await values(cluster, broker, topic) == [], f"life {life} broker {broker}"
        for broker in sorted(ALL):
            answer = await cluster.produce(broker, topic, [life, broker])
            assert answer.body["offsets"][0]["offset"] == broker - 1, answer
        for broker in sorted(ALL):
            assert await values(cluster, broker, topic) == [[life, one] for one in sorted(ALL)]
        deleted = await cluster.ask("DELETE", f"{cluster.topics_url(through % 3 + 1)}/{topic}")
        assert deleted.status == 204, deleted


async def test_invariant_c12_a_broker_that_was_away_brings_no_deleted_record_back(
    cluster: LiveCluster,
) -> None:
    topic = "away"
    old_id = await cluster.create_topic(topic)
    for number in range(20):
        assert (await cluster.produce(1, topic, f"old-{number}")).status == 200
    away = await cluster.leader(topic)
    living = [one.id for one in cluster.others(away)]
    await cluster.kill(f"broker-{away}")
    await cluster.wait_isr(topic, 0, set(living), living[0])
    deleted = await cluster.ask("DELETE", f"{cluster.topics_url(living[0])}/{topic}")
    assert deleted.status == 204, deleted
    assert await cluster.create_topic(topic, factor=2, through=living[1]) != old_id
    assert (await cluster.produce(living[0], topic, "new")).status == 200
    cluster.start_node(f"broker-{away}")
    await cluster.wait_healthy()
    for broker in sorted(ALL):
        assert await values(cluster, broker, topic) == ["new"]


async def test_invariant_c12_the_one_that_was_away_leads_the_topic_made_again(
    cluster: LiveCluster,
) -> None:
    """Its old data is of another topic id: it fills from the leader, then leads, from offset 0."""
    topic = "leads"
    await cluster.create_topic(topic)
    for number in range(20):
        assert (await cluster.produce(1, topic, f"old-{number}")).status == 200
    away = await cluster.leader(topic)
    living = [one.id for one in cluster.others(away)]
    cluster.pause(f"broker-{away}")  # silent, but still a live broker: it gets a replica
    deleted = await cluster.ask("DELETE", f"{cluster.topics_url(living[0])}/{topic}")
    assert deleted.status == 204, deleted
    await cluster.create_topic(topic, through=living[0])
    await cluster.kill(f"broker-{away}")
    assert (await cluster.produce(living[0], topic, "new")).status == 200
    assert b"old-0" in b"".join(cluster.batches_on_disk(away, topic, 0)), "what is to be forgotten"
    cluster.start_node(f"broker-{away}")
    await cluster.wait_isr(topic, 0, ALL, living[0])
    for broker in living:
        await cluster.kill(f"broker-{broker}")
    await cluster.wait_isr(topic, 0, {away}, away)
    assert await values(cluster, away, topic) == ["new"]
    for broker in living:
        cluster.start_node(f"broker-{broker}")
    await cluster.wait_healthy(topic)
    assert (await cluster.produce(away, topic, "newer")).body["offsets"][0]["offset"] == 1
    for broker in sorted(ALL):
        assert await values(cluster, broker, topic) == ["new", "newer"]
    await cluster.wait_same_on_disk(topic, 1)
