"""Groups on a real cluster under what hurts them: first use at once, pauses, names made again."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from benchmarks import group_churn
from benchmarks.group_churn import SESSION_S, DirectMember, InstanceMember, ObservedGroup
from tests.integration.test_group_coordinator_kills import (
    JSON,
    READ,
    V2,
    Consumer,
    coordinator_of,
    kill_coordinator,
)
from tests.support.live_cluster import Answer, LiveCluster, running

ROUNDS = 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(tmp_path_factory.mktemp("hostile-groups")) as cluster:
        yield cluster


async def test_the_first_groups_come_through_all_brokers_at_once(cluster: LiveCluster) -> None:
    """Every broker finds the offsets topic missing and makes it."""

    async def create(number: int) -> Answer:
        url = f"{cluster.url(1 + number % 3)}/consumers/first-{number}"
        return await cluster.ask("POST", url, {"name": "one", "format": "json"}, V2)

    answers = await asyncio.gather(*(create(number) for number in range(12)))
    assert [answer.status for answer in answers] == [200] * 12, answers
    described = await cluster.ask("GET", f"{cluster.topics_url(1)}/__consumer_offsets")
    assert described.body["partitions_count"] == 12
    assert described.body["is_internal"] is True


async def test_clients_neither_write_nor_delete_the_offsets_topic(cluster: LiveCluster) -> None:
    for broker in (1, 2, 3):
        url = f"{cluster.url(broker)}/topics/__consumer_offsets"
        body: object = {"records": [{"key": ["offset", "g", "t", 0], "value": {"offset": 0}}]}
        for path in (url, f"{url}/partitions/0"):
            answer = await cluster.ask("POST", path, body, JSON)
            assert 400 <= answer.status < 500, answer
        answer = await cluster.ask("DELETE", f"{cluster.topics_url(broker)}/__consumer_offsets")
        assert 400 <= answer.status < 500, answer
        body = {"topic_name": "__consumer_offsets", "partitions_count": 1}
        answer = await cluster.ask("POST", cluster.topics_url(broker), body)
        assert 400 <= answer.status < 500, answer


async def test_clients_neither_trim_the_offsets_topic_nor_read_it_in_a_group(
    cluster: LiveCluster,
) -> None:
    name = "__consumer_offsets"
    clusters_url = f"{cluster.url(2)}/v3/clusters/{cluster.read().cluster_id}"
    path = f"{cluster.topics_url(2)}/{name}/partitions/0:delete-records"
    answer = await cluster.ask("POST", path, {"before_offset": -1})
    assert (answer.status, "cluster's own" in answer.body["message"]) == (400, True), answer
    path = f"{clusters_url}/consumer-groups/curious/offsets"
    body: object = {"data": [{"topic_name": name, "partition_id": 0, "offset": 0}]}
    answer = await cluster.ask("PATCH", path, body)
    assert (answer.status, "no group reads it" in answer.body["message"]) == (400, True), answer
    answer = await cluster.ask("POST", f"{cluster.url(1)}/consumers/curious", {"name": "one"}, V2)
    assert answer.status == 200, answer
    instance = f"{cluster.url(1)}/consumers/curious/instances/one"
    answer = await cluster.ask("POST", f"{instance}/subscription", {"topics": [name]}, V2)
    assert answer.status == 400, answer
    place = {"topic": name, "partition": 0}
    answer = await cluster.ask("POST", f"{instance}/assignments", {"partitions": [place]}, V2)
    assert answer.status == 400, answer
    await cluster.create_topic("plain")
    answer = await cluster.ask("POST", f"{instance}/subscription", {"topic_pattern": ".*"}, V2)
    assert answer.status == 204, answer
    answer = await cluster.ask("GET", f"{instance}/subscription", None, V2)
    assert "plain" in answer.body["topics"]
    assert name not in answer.body["topics"]


async def committed(cluster: LiveCluster, broker: int, group: str, deadline_s: float) -> int | None:
    """What one broker says; None where it says nothing."""
    url = f"{cluster.url(broker)}/v3/clusters/{cluster.read().cluster_id}/consumer-groups/{group}"
    try:
        answer = await cluster.ask("GET", f"{url}/offsets", deadline_s=deadline_s)
    except OSError:
        return None
    if answer.status != 200:
        return None
    return int(answer.body["data"][0]["offset"])


async def test_rule_g3_a_coordinator_that_was_paused_shows_no_older_commit(
    cluster: LiveCluster,
) -> None:
    """Asked before it stops, while it stands, and in the moment it goes on."""
    topic, group = "paused", "paused"
    await cluster.create_topic(topic)
    now = cluster.read()

    async def commit(broker: int, offset: int) -> None:
        path = f"/v3/clusters/{now.cluster_id}/consumer-groups/{group}/offsets"
        body = {"data": [{"topic_name": topic, "partition_id": 0, "offset": offset}]}
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                answer = await cluster.ask("PATCH", cluster.url(broker) + path, body, None, 3.0)
            except OSError:
                continue
            if answer.status == 204:
                return
            await asyncio.sleep(0.05)
        raise AssertionError(offset)

    offsets = itertools.count(1)
    await commit(1, next(offsets))
    answered = 0
    for _ in range(ROUNDS):
        paused = await coordinator_of(cluster, group)
        other = 1 + paused % 3
        cluster.pause(f"broker-{paused}")
        # Their bytes wait in its socket: it reads them the moment it goes on.
        waiting = [
            asyncio.ensure_future(committed(cluster, paused, group, 15.0)) for _ in range(20)
        ]
        newest = 0
        for _ in range(3):
            newest = next(offsets)
            await commit(other, newest)
        late = [asyncio.ensure_future(committed(cluster, paused, group, 15.0)) for _ in range(20)]
        await asyncio.sleep(0.1)
        cluster.resume(f"broker-{paused}")
        for found in await asyncio.gather(*waiting, *late):
            assert found is None or found >= newest - 3, "older than what was acknowledged"
        for found in [await task for task in late]:
            assert found is None or found == newest, f"{found} behind {newest}"
            answered += found is not None
        await cluster.wait_healthy("__consumer_offsets", 12)
    assert answered, "nobody said anything: nothing was shown"


async def test_rule_g2_a_topic_made_again_is_read_from_its_first_record(
    cluster: LiveCluster,
) -> None:
    topic, group = "again", "again"
    reader = Consumer(
        cluster, group, "one", auto_offset_reset="latest", auto_commit_enable="true",
        auto_commit_interval_ms=100,
    )  # fmt: skip
    await cluster.create_topic(topic, 2)
    await reader.start(topic)
    by_hand = Consumer(cluster, "by-hand-again", "one", auto_offset_reset="latest")
    answer = await by_hand.ask("POST", f"/consumers/{by_hand.group}", by_hand.create)
    assert answer.status == 200, answer
    places = {"partitions": [{"topic": topic, "partition": number} for number in range(2)]}
    answer = await by_hand.ask("POST", f"{by_hand.path}/assignments", places)
    assert answer.status == 204, answer
    for life in range(3):
        values = [{"value": [life, n], "partition": n % 2} for n in range(20 - 5 * life)]
        answer = await reader.ask("POST", f"/topics/{topic}", {"records": values}, JSON)
        assert answer.status == 200, answer
        for consumer in (reader, by_hand):
            found: list[Any] = []
            deadline = time.monotonic() + 10
            while len(found) < len(values) and time.monotonic() < deadline:
                found += [record["value"] for record in await consumer.read(300)]
            assert sorted(found) == sorted([life, n] for n in range(len(values))), "skipped"
        await asyncio.sleep(0.2)
        answer = await cluster.ask("DELETE", f"{cluster.topics_url(1)}/{topic}")
        assert answer.status == 204, answer
        await cluster.create_topic(topic, 2)


async def test_names_with_control_characters_reach_no_coordinator(cluster: LiveCluster) -> None:
    for name in ("a%0Ab", "a%00b", "%2e%2e", "a%2Fb", "a%20b", "%C3%A9", "x" * 250):
        for broker in (1, 2, 3):
            url = f"{cluster.url(broker)}/consumers/{name}"
            answer = await cluster.ask("POST", url, {"format": "json"}, V2)
            assert 400 <= answer.status < 500, (name, answer)
            url = f"{cluster.url(broker)}/consumers/g/instances/{name}/records"
            answer = await cluster.ask("GET", url, headers=READ)
            assert 400 <= answer.status < 500, (name, answer)
    url = f"{cluster.url(1)}/v3/clusters/{cluster.read().cluster_id}/consumer-groups/surrogate"
    place = {"topic_name": "paused", "partition_id": 0, "offset": 1, "metadata": "\ud800"}
    answer = await cluster.ask("PATCH", f"{url}/offsets", {"data": [place]})
    assert 400 <= answer.status < 500, answer


async def test_a_read_whose_client_left_moves_no_position(cluster: LiveCluster) -> None:
    """A long poll and Ctrl-C, through each broker; what is written then is read by the next one."""
    topic, group = "left", "left"
    await cluster.create_topic(topic)
    reader = Consumer(cluster, group, "one", auto_offset_reset="earliest")
    await reader.start(topic)
    for number, broker in enumerate((1, 2, 3)):
        url = f"{cluster.url(broker)}{reader.path}/records?timeout=20000"
        with pytest.raises(OSError, match="Timeout"):
            await cluster.ask("GET", url, headers=READ, deadline_s=0.5)
        await asyncio.sleep(0.3)
        answer = await cluster.produce(1, topic, number)
        assert answer.status == 200, answer
        await asyncio.sleep(0.3)
        found = [record["offset"] for record in await reader.read(1_000)]
        assert found == [number], f"through broker {broker}"


async def test_members_of_both_kinds_share_fewer_as_many_and_more_partitions(
    cluster: LiveCluster,
) -> None:
    """Two, four and six members of four partitions: each owns its share, and nothing twice."""
    topic, partitions = "both-kinds", 4
    await cluster.create_topic(topic, partitions)
    async with aiohttp.ClientSession() as http:
        group = ObservedGroup(cluster.read(), topic, partitions, http, random.Random(1))
        await group.produce(20)
        direct = [DirectMember(group, f"d{number}") for number in range(3)]
        instances = [InstanceMember(group, f"i{number}") for number in range(3)]
        tasks: list[asyncio.Task[None]] = []
        for count, least, most in ((1, 2, 2), (2, 1, 1), (3, 0, 1)):
            tasks += [
                asyncio.create_task(one.live()) for one in (direct[count - 1], instances[count - 1])
            ]

            async def is_shared(count: int = count, least: int = least, most: int = most) -> bool:
                parts = [set(one.positions) for one in direct[:count]]
                for one in instances[:count]:
                    answer = await group.ask("GET", f"{one.path}/assignments")
                    if answer.status != 200:
                        return False
                    parts.append({row["partition"] for row in answer.body["partitions"]})
                owned = sorted(number for part in parts for number in part)
                sizes = {len(part) for part in parts}
                return owned == list(range(partitions)) and sizes <= set(range(least, most + 1))

            await cluster.until(is_shared, f"{2 * count} members share {partitions} partitions")
        await cluster.until(lambda: sum(group.read_up_to.values()) == 20, "everything is read")
        for one in (*direct, *instances):
            one.stops.set()
        await asyncio.gather(*tasks)
        for one in (*direct, *instances):
            await one.end("leave")
        assert group.double_owners == []


async def churn(
    cluster: LiveCluster,
    topic: str,
    members: int,
    partitions: int,
    seconds: float,
    kill_every_s: float,
) -> None:
    """Let members come and go while the coordinator is killed, and see that the group settles."""
    await cluster.create_topic(topic, partitions)

    async def kill_or_pause(until_s: float) -> None:
        if kill_every_s and time.monotonic() + kill_every_s < until_s:
            await asyncio.sleep(kill_every_s)
            dead = await kill_coordinator(cluster, f"{topic}-group")
            await cluster.wait_restarted(*dead)
        else:
            await group_churn.pause(until_s)

    found = await group_churn.churn(
        cluster.read(),
        topic,
        members=members,
        partitions=partitions,
        seconds=seconds,
        between_writes=kill_or_pause,
    )
    logging.getLogger("tests.cluster").info(
        "%d members came and went: %d grants, settled in %.1f s",
        members, found.granted, found.settled_s,
    )  # fmt: skip
    assert found.double_owners == ()
    assert found.settled_s <= SESSION_S + 1
    assert found.granted > members


async def test_invariant_g14_members_come_and_go_and_the_group_settles(
    cluster: LiveCluster,
) -> None:
    await churn(cluster, "churn", 24, 12, 3.0, 0)


@pytest.mark.slow
async def test_invariant_g14_two_hundred_members_come_and_go_for_two_minutes(
    cluster: LiveCluster,
) -> None:
    """The coordinator is killed meanwhile; half of the members are static."""
    await churn(cluster, "churn-long", 200, 64, 120.0, 20)
