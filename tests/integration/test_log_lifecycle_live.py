"""Where logs begin and what acknowledgements are worth, in a real cluster of three brokers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.live_cluster import LiveCluster, running

ALL = {1, 2, 3}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(
        tmp_path_factory.mktemp("lifecycle"),
        *("--controllers", "1", "--no-restart"),
        *("--set", "log_retention_check_interval_ms=200"),
        *("--set", "log_segment_delete_delay_ms=0"),
        *("--set", "log_flush_interval_ms=100"),
    ) as cluster:
        yield cluster


async def standing(cluster: LiveCluster, topic: str, broker: int) -> dict[str, Any]:
    url = f"{cluster.url(broker)}/broker/v1/state?topic={topic}&partition=0"
    answer = await cluster.ask("GET", url)
    assert answer.status == 200, answer
    row: dict[str, Any] = answer.body["partitions"][0]
    return row


async def same_everywhere(cluster: LiveCluster, topic: str) -> None:
    """Until all replicas begin and end at the same offsets, durably."""

    async def same() -> bool:
        rows = [await standing(cluster, topic, broker) for broker in sorted(ALL)]
        ends = {
            (row["log_start"], row["log_end"], row["durable_end"], row["high_watermark"])
            for row in rows
        }
        return len(ends) == 1

    await cluster.until(same, f"the replicas of {topic} begin and end at the same offsets")


def segments_of(cluster: LiveCluster, topic: str, broker: int) -> list[int]:
    folder = cluster.data_dir / f"broker-{broker}" / "log" / f"{topic}-0"
    return sorted(int(path.stem) for path in folder.glob("*.log"))


async def earliest(cluster: LiveCluster, topic: str, through: int) -> int:
    url = f"{cluster.topics_url(through)}/{topic}/partitions/0/offset"
    answer = await cluster.ask("GET", url)
    assert answer.status == 200, answer
    return int(answer.body["earliest_offset"])


async def filled(cluster: LiveCluster, topic: str, broker: int, count: int) -> None:
    for number in range(count):
        answer = await cluster.produce(broker, topic, f"{number}" + "x" * 1_000)
        assert answer.status == 200, answer


async def test_a_topic_of_bounded_size_stays_so_on_every_replica_one_that_was_away_too(
    cluster: LiveCluster,
) -> None:
    topic = "bounded"
    await cluster.create_topic(topic, segment_bytes="4096", retention_bytes="8192")
    await cluster.wait_healthy(topic)
    leader = await cluster.leader(topic)
    away, other = sorted(ALL - {leader})
    await filled(cluster, topic, leader, 30)

    def bounded() -> bool:
        return all(len(segments_of(cluster, topic, broker)) <= 5 for broker in (leader, other))

    await cluster.until(bounded, "old segments are gone from leader and follower")
    await cluster.kill(f"broker-{away}")
    held = max(segments_of(cluster, topic, away))
    await filled(cluster, topic, leader, 30)

    async def passed() -> bool:
        return await earliest(cluster, topic, leader) > held + 4

    await cluster.until(passed, "the log start has passed all that the absent replica holds")
    cluster.start_node(f"broker-{away}")
    await cluster.wait_isr(topic, 0, ALL, leader)
    await same_everywhere(cluster, topic)

    def old_ones_gone() -> bool:  # once it is durable that the log starts behind them
        return min(segments_of(cluster, topic, away)) > held

    await cluster.until(old_ones_gone, "what the absent replica held is gone")
    start = await earliest(cluster, topic, other)
    assert (await cluster.fetch(leader, topic, offset=start)).body[0]["offset"] == start


async def test_deleted_records_are_gone_on_every_replica_and_after_a_kill_of_all(
    cluster: LiveCluster,
) -> None:
    topic = "trimmed"
    await cluster.create_topic(topic)
    await cluster.wait_healthy(topic)
    leader = await cluster.leader(topic)
    through = min(ALL - {leader})
    await filled(cluster, topic, leader, 10)
    url = f"{cluster.topics_url(through)}/{topic}/partitions/0:delete-records"
    answer = await cluster.ask("POST", url, {"before_offset": 7})
    assert (answer.status, answer.body["log_start_offset"]) == (200, 7)
    too_far = await cluster.ask("POST", url, {"before_offset": 11})
    assert too_far.status == 400
    assert "log start offset 7, high watermark 10" in too_far.body["message"]
    await same_everywhere(cluster, topic)
    for broker in sorted(ALL):
        await cluster.kill(f"broker-{broker}")
    for broker in sorted(ALL):
        cluster.start_node(f"broker-{broker}")
    await cluster.wait_healthy(topic)
    assert await earliest(cluster, topic, through) == 7
    gone = await cluster.fetch(through, topic, offset=6)
    assert gone.status == 400
    assert (await cluster.fetch(through, topic, offset=7)).body[0]["offset"] == 7


PARTITIONS = 8
"""Each deletes on its own; the leader of all dies with the first answer."""


async def deleted_until_the_leader_dies(
    cluster: LiveCluster, topic: str, leader: int
) -> dict[int, int]:
    """Delete the beginning of every partition; where each begins, as far as it was answered.

    Those that the old leader did not answer are asked of the next one by the broker in between.
    """
    answered: dict[int, int] = {}
    pid = cluster.pid(f"broker-{leader}")
    assert pid is not None
    through = min(ALL - {leader})

    async def delete(partition: int) -> None:
        url = f"{cluster.topics_url(through)}/{topic}/partitions/{partition}:delete-records"
        answer = await cluster.ask("POST", url, {"before_offset": 1 + partition})
        if answer.status == 200:
            if not answered:
                os.kill(pid, signal.SIGKILL)
            answered[partition] = answer.body["log_start_offset"]
        else:
            assert (answer.status, answer.body["outcome"]) == (503, "unknown"), answer

    await asyncio.gather(*(delete(partition) for partition in range(PARTITIONS)))
    return answered


@pytest.mark.parametrize(
    "attempt",
    [1, 2, *(pytest.param(number, marks=pytest.mark.slow) for number in range(3, 31))],
)
async def test_rule_r10_a_leader_that_dies_right_after_a_deletion_brings_nothing_back(
    cluster: LiveCluster, attempt: int
) -> None:
    leader = 1 + attempt % len(ALL)
    topic, through = f"deleted-{attempt}", min(ALL - {leader})
    replicas = [leader, *sorted(ALL - {leader})]
    assigned = {str(partition): replicas for partition in range(PARTITIONS)}
    body = {"topic_name": topic, "replicas_assignments": assigned}
    assert (await cluster.ask("POST", cluster.topics_url(through), body)).status == 201
    for partition in range(PARTITIONS):
        await cluster.wait_isr(topic, partition, ALL, through)
        sent = await cluster.produce(leader, topic, *range(PARTITIONS), partition=partition)
        assert sent.status == 200, sent
    answered = await deleted_until_the_leader_dies(cluster, topic, leader)
    assert answered
    for partition, start in answered.items():

        async def led(partition: int = partition) -> bool:
            now = (await cluster.partition(topic, partition, through))["leader_id"]
            return now in ALL - {leader}

        assert start == 1 + partition
        await cluster.until(led, f"another broker leads partition {partition}")
        url = f"{cluster.topics_url(through)}/{topic}/partitions/{partition}/offset"
        assert (await cluster.ask("GET", url)).body["earliest_offset"] == start, partition
        gone = await cluster.fetch(through, topic, partition, offset=start - 1)
        assert gone.status == 400, gone
    cluster.start_node(f"broker-{leader}")
    for partition in range(PARTITIONS):
        await cluster.wait_isr(topic, partition, ALL, through)


async def test_each_level_of_acks_loses_as_said_when_the_leader_dies_right_after(
    cluster: LiveCluster,
) -> None:
    """A leader dies with what it had not got across; the others come back without it.

    0 and 1: answered, and gone. All (invariant L10): no success was claimed for it.
    """
    topics = {acks: f"acks-{acks}" for acks in ("0", "1", "all")}
    for topic in topics.values():
        body = {"topic_name": topic, "replicas_assignments": {"0": [1, 2, 3]}}
        assert (await cluster.ask("POST", cluster.topics_url(2), body)).status == 201
        await cluster.wait_isr(topic, 0, ALL, 2)
        assert (await cluster.produce(1, topic, "before")).status == 200
    for topic in topics.values():
        await same_everywhere(cluster, topic)
    for follower in (2, 3):
        cluster.pause(f"broker-{follower}")
    answers = {
        acks: await cluster.produce(1, topic, "last words", query=f"acks={acks}&timeout=200")
        for acks, topic in topics.items()
    }
    for broker in sorted(ALL):  # what was on its way is lost with their connections
        await cluster.kill(f"broker-{broker}")
    for follower in (2, 3):
        cluster.start_node(f"broker-{follower}")
    for topic in topics.values():

        async def led(topic: str = topic) -> bool:
            return (await cluster.partition(topic, 0, 2))["leader_id"] in {2, 3}

        await cluster.until(led, f"another broker leads {topic}")
    cluster.start_node("broker-1")
    for acks, topic in topics.items():
        await cluster.wait_isr(topic, 0, ALL, 2)
        values = [row["value"] for row in (await cluster.fetch(2, topic)).body]
        assert values == ["before"], acks
    for acks in ("0", "1"):
        assert answers[acks].status == 200
        assert answers[acks].body["offsets"][0]["error_code"] is None
    said = answers["all"]
    assert said.status != 200 or said.body["offsets"][0]["error_code"] is not None
