"""Every kind of reader behind an unclean election, with real processes (invariant G16, KIP-320).

Two partitions of one cluster. In one the log is cut from 100 to 80 and grows to 120; in the other
a stale replica's log takes the place of what was read up to 70. Readers stood at 100 and at 70.
Spark's are in `tests/spark`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from http_api.client.client_errors import LogTruncatedError
from http_api.client.sdk.consumer import Consumer
from http_api.client.sdk.record_types import TopicPartition
from tests.support.live_cluster import Answer, LiveCluster, running
from tests.support.unclean_elections import TwoReplicas, cut_log, replaced_log

JSON_V2 = "application/vnd.kafka.json.v2+json"


@dataclass(frozen=True)
class Position:
    """Place of a reader before the election, and the broker that holds no replica."""

    topic: str
    offset: int
    epoch: int
    other: int
    token: str
    """The same place as the token of a tail."""


async def position(cluster: LiveCluster, topic: str, other: int) -> Position:
    """The end of the log as a reader meets it, with its epoch."""
    answer = await cluster.fetch(other, topic)
    headers = answer.headers
    offset = int(headers["Quorumlog-Next-Offset"])
    page = await cluster.ask("GET", f"{cluster.url(other)}/topics/{topic}/records?offset=latest")
    return Position(
        topic,
        offset,
        int(headers["Quorumlog-Next-Leader-Epoch"]),
        other,
        page.headers["Quorumlog-Next"],
    )


async def commit(cluster: LiveCluster, group: str, at: Position) -> None:
    now = cluster.read()
    url = f"{now.node(at.other).url}/v3/clusters/{now.cluster_id}/consumer-groups/{group}/offsets"
    row = {"topic_name": at.topic, "partition_id": 0, "offset": at.offset, "leader_epoch": at.epoch}

    async def committed() -> bool:
        return (await cluster.ask("PATCH", url, {"data": [row]})).status == 204

    await cluster.until(committed, f"group {group} has committed")


async def tail(cluster: LiveCluster, at: Position) -> str:
    """Follow from a position until the stream ends; all that came."""
    url = f"{cluster.url(at.other)}/topics/{at.topic}/records?follow=true&after={at.token}"
    answer = await cluster.ask("GET", url, deadline_s=60)
    return answer.body if isinstance(answer.body, str) else json.dumps(answer.body)


@dataclass(frozen=True)
class Story:
    cluster: LiveCluster
    cut: Position
    replaced: Position
    tails: dict[str, str]
    """Answer of a tail of each topic that was open at the position during the election."""


async def happen(cluster: LiveCluster) -> Story:
    positions: dict[str, Position] = {}
    tails: dict[str, asyncio.Task[str]] = {}

    async def read_to_end(topic: TwoReplicas) -> None:
        """Let a group commit the end, and a tail follow from there."""
        positions[topic.topic] = at = await position(cluster, topic.topic, topic.other)
        await commit(cluster, f"stood-at-{at.offset}", at)
        tails[topic.topic] = asyncio.create_task(tail(cluster, at))

    # While a broker is down, the offsets topic would not be made.
    made = await cluster.ask("POST", f"{cluster.url(1)}/consumers/first", {"name": "one"})
    assert made.status == 200, made
    await cut_log(cluster, "cut", read_to_end)
    await replaced_log(cluster, "replaced", read_to_end)
    cut, replaced = positions["cut"], positions["replaced"]
    assert (cut.offset, replaced.offset) == (100, 70)
    return Story(cluster, cut, replaced, {name: await each for name, each in tails.items()})


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with running(tmp_path_factory.mktemp("unclean"), "--no-restart") as cluster:
        yield asyncio.run(happen(cluster))


async def fetch(story: Story, at: Position, broker: int) -> Answer:
    path = f"/topics/{at.topic}/partitions/0/records?offset={at.offset}&leader_epoch={at.epoch}"
    return await story.cluster.ask("GET", story.cluster.url(broker) + path)


@pytest.mark.parametrize("broker", [1, 2, 3])
async def test_invariant_g16_a_fetch_is_refused_by_every_broker(story: Story, broker: int) -> None:
    answer = await fetch(story, story.cut, broker)
    assert (answer.status, answer.body["error_code"]) == (409, 40950)
    assert answer.headers["Quorumlog-Diverging-Offset"] == "80"
    answer = await fetch(story, story.replaced, broker)
    assert (answer.status, answer.body["error_code"]) == (409, 40950)
    assert answer.headers["Quorumlog-Diverging-Offset"] == "0"
    assert "diverged" in answer.body["message"]


async def instance(story: Story, group: str, at: Position, reset: str) -> str:
    url = f"{story.cluster.url(at.other)}/consumers/{group}"
    settings = {"name": reset, "format": "json", "auto.offset.reset": reset}
    made = await story.cluster.ask("POST", url, settings | {"auto.commit.enable": "false"})
    assert made.status == 200, made
    one: dict[str, Any] = {"partitions": [{"topic": at.topic, "partition": 0}]}
    assigned = await story.cluster.ask("POST", f"{url}/instances/{reset}/assignments", one)
    assert assigned.status == 204, assigned
    return f"{url}/instances/{reset}/records?timeout=5000"


async def test_invariant_g16_an_instance_goes_on_where_the_log_was_cut(story: Story) -> None:
    url = await instance(story, "stood-at-100", story.cut, "earliest")
    answer = await story.cluster.ask("GET", url, headers={"Accept": JSON_V2})
    assert answer.headers["Quorumlog-Moved"] == "cut-0 100->80 truncated"
    assert [record["offset"] for record in answer.body] == list(range(80, 120))


async def test_invariant_g16_an_instance_stays_where_another_log_stands(story: Story) -> None:
    url = await instance(story, "stood-at-70", story.replaced, "latest")
    answer = await story.cluster.ask("GET", url, headers={"Accept": JSON_V2})
    assert answer.headers["Quorumlog-Moved"] == "replaced-0 70->70 diverged"
    assert [record["offset"] for record in answer.body] == list(range(70, 95))


@pytest.mark.parametrize("name", ["cut", "replaced"])
async def test_invariant_g16_an_instance_without_a_reset_policy_stops(
    story: Story, name: str
) -> None:
    at = story.cut if name == "cut" else story.replaced
    url = await instance(story, f"stood-at-{at.offset}", at, "none")
    for _ in range(2):
        answer = await story.cluster.ask("GET", url, headers={"Accept": JSON_V2})
        assert (answer.status, answer.body["error_code"]) == (409, 40950), answer


def sdk_consumer(story: Story, reset: str, reported: list[Exception]) -> Consumer[Any, Any]:
    urls = [story.cluster.url(story.cut.other)]
    return Consumer(urls, auto_offset_reset=reset, on_error=reported.append)


@pytest.mark.parametrize("name", ["cut", "replaced"])
def test_invariant_g16_an_sdk_consumer_goes_on_and_reports(story: Story, name: str) -> None:
    at = story.cut if name == "cut" else story.replaced
    expected = range(80, 120) if name == "cut" else range(70, 95)
    reported: list[Exception] = []
    place = TopicPartition(at.topic, 0, at.offset, leader_epoch=at.epoch)
    with sdk_consumer(story, "earliest", reported) as consumer:
        consumer.assign([place])
        found = []
        while len(found) < len(expected):
            record = consumer.poll(20.0)
            assert record is not None
            found.append(record.offset)
    assert found == list(expected)
    (error,) = [one for one in reported if isinstance(one, LogTruncatedError)]
    assert error.diverging == (80 if name == "cut" else 0)


@pytest.mark.parametrize("name", ["cut", "replaced"])
def test_invariant_g16_an_sdk_consumer_without_a_reset_policy_stops(
    story: Story, name: str
) -> None:
    at = story.cut if name == "cut" else story.replaced
    place = TopicPartition(at.topic, 0, at.offset, leader_epoch=at.epoch)
    with sdk_consumer(story, "none", []) as consumer:
        consumer.assign([place])
        for _ in range(2):
            with pytest.raises(LogTruncatedError):
                consumer.poll(20.0)
        assert [one.offset for one in consumer.position([place])] == [at.offset]
        consumer.seek(TopicPartition(at.topic, 0, 80))
        record = consumer.poll(20.0)
        assert record is not None
        assert record.offset == 80


@pytest.mark.parametrize("name", ["cut", "replaced"])
@pytest.mark.parametrize("accept", ["application/x-ndjson", "text/event-stream"])
async def test_invariant_g16_a_tail_does_not_begin_there(
    story: Story, name: str, accept: str
) -> None:
    at = story.cut if name == "cut" else story.replaced
    topic = f"{story.cluster.url(at.other)}/topics/{at.topic}"
    for path in (
        f"/records?after={at.token}",
        f"/records?follow=true&after={at.token}",
        f"/partitions/0/records?follow=true&offset={at.offset}&leader_epoch={at.epoch}",
    ):
        answer = await story.cluster.ask("GET", topic + path, headers={"Accept": accept})
        assert (answer.status, answer.body["error_code"]) == (409, 40950), answer
        expected = "80" if name == "cut" else "0"
        assert answer.headers["Quorumlog-Diverging-Offset"] == expected


@pytest.mark.parametrize("name", ["cut", "replaced"])
def test_invariant_g16_a_tail_that_is_open_ends_with_the_error(story: Story, name: str) -> None:
    *records, last = story.tails[name].splitlines()
    assert [line for line in records if line.strip()] == [], "nothing of the other log"
    assert json.loads(last)["error_code"] == 40950


async def test_invariant_g16_a_poll_reports_both_in_one_answer(story: Story) -> None:
    rows = [
        {
            "topic_name": at.topic,
            "partition_id": 0,
            "offset": at.offset,
            "leader_epoch": at.epoch,
        }
        for at in (story.cut, story.replaced)
    ]
    now = story.cluster.read()
    for broker in (1, 2, 3):
        url = f"{story.cluster.url(broker)}/v3/clusters/{now.cluster_id}/records:poll"
        answer = await story.cluster.ask("POST", url, {"partitions": rows, "wait_ms": 2_000})
        assert answer.status == 200, answer
        pages = [json.loads(line)["page"] for line in answer.body.splitlines()]
        found = {page["topic_name"]: page for page in pages}
        assert [found[at.topic]["error_code"] for at in (story.cut, story.replaced)] == [40950] * 2
        assert found["cut"]["diverging_offset"] == 80
        assert found["replaced"]["diverging_offset"] == 0
        assert all(page["bytes"] == 0 for page in pages)
