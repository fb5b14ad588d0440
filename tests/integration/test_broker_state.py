"""The white-box view of a running cluster: states that agree, chains that compare, a true story."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.live_cluster import LiveCluster, running

TOPIC = "seen"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(tmp_path_factory.mktemp("state"), "--controllers", "1") as cluster:
        yield cluster


async def state(cluster: LiveCluster, broker: int, query: str = "") -> dict[str, Any]:
    answer = await cluster.ask("GET", f"{cluster.url(broker)}/broker/v1/state{query}")
    assert answer.status == 200, answer
    told: dict[str, Any] = answer.body
    return told


async def events(cluster: LiveCluster, broker: int, query: str = "") -> dict[str, Any]:
    answer = await cluster.ask("GET", f"{cluster.url(broker)}/broker/v1/events{query}")
    assert answer.status == 200, answer
    told: dict[str, Any] = answer.body
    return told


async def test_replicas_of_a_partition_show_the_same_and_their_story(cluster: LiveCluster) -> None:
    await cluster.create_topic(TOPIC)
    await cluster.wait_healthy(TOPIC)
    leader = await cluster.leader(TOPIC)
    for number in range(30):
        await cluster.produce(leader, TOPIC, *[f"{number}-{n}" for n in range(100)])
    query = f"?topic={TOPIC}&partition=0&chain=true&from=0&to=3000"

    async def all_told() -> bool:
        rows = [
            (await state(cluster, broker, query.partition("&chain")[0]))["partitions"][0]
            for broker in (1, 2, 3)
        ]
        return all(row["high_watermark"] == row["durable_end"] == 3_000 for row in rows)

    await cluster.until(all_told, "every replica knows the high watermark")
    said = {broker: await state(cluster, broker, query) for broker in (1, 2, 3)}
    rows = {broker: told["partitions"][0] for broker, told in said.items()}
    assert len({row["chain"]["value"] for row in rows.values()}) == 1
    assert [told["state"] for told in said.values()] == ["unfenced"] * 3
    assert sorted(broker for broker, row in rows.items() if row["role"] == "leader") == [leader]
    followers = rows[leader]["followers"]
    assert [(each["log_end"], each["durable_end"]) for each in followers] == [(3_000, 3_000)] * 2

    pid = await cluster.kill(f"broker-{leader}")
    follower = next(broker for broker in (1, 2, 3) if broker != leader)

    async def moved() -> bool:
        now = (await state(cluster, follower, f"?topic={TOPIC}"))["partitions"][0]
        return bool(now["leader_epoch"] > rows[follower]["leader_epoch"])

    await cluster.until(moved, "another broker leads")
    await cluster.wait_restarted(f"broker-{leader}", pid)
    await cluster.wait_healthy(TOPIC)
    story = []
    for broker in (1, 2, 3):
        told = await events(cluster, broker)
        assert [event["sequence"] for event in told["events"]] == list(
            range(told["events"][0]["sequence"], told["next"] + 1)
        )
        story += [(broker, event) for event in told["events"]]
        assert (await events(cluster, broker, f"?after={told['next']}"))["broker_id"] == broker
    reigns = {
        (event["leader_epoch"], broker)
        for broker, event in story
        if event["kind"] == "role_changed"
        and event["topic"] == TOPIC
        and event["facts"]["role"] == "leader"
    }
    assert len({epoch for epoch, _ in reigns}) == len(reigns) >= 2
    lives = {event["incarnation_id"] for broker, event in story if broker == leader}
    assert len(lives) == 2, "the story goes on over a kill"
    assert {"isr_changed", "high_watermark", "started"} <= {event["kind"] for _, event in story}


async def test_bad_questions_are_told_what_was_expected(cluster: LiveCluster) -> None:
    url = f"{cluster.url(1)}/broker/v1"
    for query, status, text in [
        ("/state?topic=none-such", 404, "unknown to broker 1"),
        ("/state?partition=0", 400, "Parameter 'topic' is missing"),
        ("/state?chain=true", 400, "Parameter 'partition' is missing"),
        ("/state?limit=0", 400, "an integer from 1 to"),
        ("/state?after=nowhere", 400, "TOPIC:PARTITION"),
        (f"/state?topic={TOPIC}&partition=0&chain=true&to=9999999", 400, "no chain up to"),
        ("/events?after=x", 400, "an integer from 0"),
    ]:
        answer = await cluster.ask("GET", url + query)
        assert answer.status == status, (query, answer)
        assert text in answer.body["message"], (query, answer)


async def test_a_broker_without_controllers_still_shows_what_it_holds(cluster: LiveCluster) -> None:
    cluster.pause("controller-101")
    try:
        before = await state(cluster, 1)
        assert before["partitions"]
        assert before["next"] is None
    finally:
        cluster.resume("controller-101")
