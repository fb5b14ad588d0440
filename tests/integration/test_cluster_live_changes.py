"""What operators change while records are written: configs, partitions, who holds a replica.

Four brokers, three replicas each: there is always somewhere to move to.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest

from raft_metadata.common.record_placement import partition_for_key
from tests.support.live_cluster import LiveCluster, running
from tests.support.live_writer import writing

log = logging.getLogger("tests.cluster")
FIRST, MOVED = [1, 2, 3], [4, 2, 3]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(tmp_path_factory.mktemp("changes"), "--brokers", "4", "--no-restart") as cluster:
        yield cluster


async def create(cluster: LiveCluster, topic: str, partitions: int = 1) -> None:
    """With its replicas where the test wants them."""
    assignments = {str(number): FIRST for number in range(partitions)}
    body = {"topic_name": topic, "replicas_assignments": assignments}
    answer = await cluster.ask("POST", cluster.topics_url(1), body)
    assert answer.status == 201, answer
    for number in range(partitions):
        await cluster.wait_isr(topic, number, set(FIRST), 1)


async def set_config(cluster: LiveCluster, topic: str, name: str, value: object) -> None:
    """None: back to the default."""
    url = f"{cluster.topics_url(2)}/{topic}/configs/{name}"
    if value is None:
        answer = await cluster.ask("DELETE", url)
    else:
        answer = await cluster.ask("PUT", url, {"value": str(value)})
    assert answer.status == 204, answer


def entry(answer: Any) -> dict[str, Any]:
    found: dict[str, Any] = answer.body["offsets"][0]
    return found


async def test_records_whose_time_is_too_far_from_now_are_refused_alone(
    cluster: LiveCluster,
) -> None:
    """KIP-937: through every broker, and no more once the topic takes any time again."""
    topic = "timely"
    await create(cluster, topic)
    now_ms, hour_ms = time.time_ns() // 1_000_000, 3_600_000
    times = [None, now_ms, now_ms + 3 * hour_ms, now_ms - 3 * hour_ms, now_ms - hour_ms]
    records = [
        {"value": n} | ({} if at is None else {"timestamp": at}) for n, at in enumerate(times)
    ]

    async def codes(broker: int) -> list[int | None]:
        url = f"{cluster.url(broker)}/topics/{topic}/partitions/0"
        answer = await cluster.ask("POST", url, {"records": records})
        assert answer.status == 200, answer
        rows = answer.body["offsets"]
        assert all("INVALID_TIMESTAMP" in row["error"] for row in rows if row["error_code"])
        return [row["error_code"] for row in rows]

    assert await codes(4) == [None] * 5
    await set_config(cluster, topic, "message.timestamp.after.max.ms", 2 * hour_ms)
    await set_config(cluster, topic, "message.timestamp.before.max.ms", 2 * hour_ms)
    for broker in (1, 2, 3, 4):

        async def limited(broker: int = broker) -> bool:
            return await codes(broker) == [None, None, 40002, 40002, None]

        await cluster.until(limited, f"broker {broker} knows the limits")
    await set_config(cluster, topic, "message.timestamp.type", "append")

    async def all_taken() -> bool:
        return await codes(1) == [None] * 5

    await cluster.until(all_taken, "the producer's times are dropped, and judged no more")


async def test_changed_configs_are_in_force_on_every_broker_without_a_restart(
    cluster: LiveCluster,
) -> None:
    topic = "configured"
    await create(cluster, topic)
    large = "x" * 5_000
    assert (await cluster.produce(4, topic, large)).status == 200

    await set_config(cluster, topic, "max.message.bytes", 1_000)
    for broker in (1, 2, 3, 4):

        async def refused(broker: int = broker) -> bool:
            return entry(await cluster.produce(broker, topic, large))["error_code"] == 413

        await cluster.until(refused, f"broker {broker} knows the limit")
    await set_config(cluster, topic, "max.message.bytes", None)
    assert entry(await cluster.produce(2, topic, large))["error_code"] is None

    await set_config(cluster, topic, "segment.bytes", 2_048)
    for number in range(6):
        assert (await cluster.produce(1, topic, "y" * 1_500 + str(number))).status == 200

    def rolled() -> bool:
        folders = [cluster.data_dir / f"broker-{one}" / "log" / f"{topic}-0" for one in FIRST]
        return all(len(list(folder.glob("*.log"))) >= 5 for folder in folders)

    await cluster.until(rolled, "leader and followers have rolled")


async def test_nothing_is_lost_while_flush_goes_back_and_forth(cluster: LiveCluster) -> None:
    topic = "flushed"
    await create(cluster, topic)
    async with writing(cluster, topic, 1) as writer:
        for value in ["os", "ack"] * 3:
            await set_config(cluster, topic, "flush", value)
            await writer.more(10)
        await writer.more(20)
    log.info("while flush changed: %s", await writer.judge(cluster))


async def test_a_min_isr_above_the_isr_refuses_at_once_and_a_lower_one_takes_again(
    cluster: LiveCluster,
) -> None:
    topic = "strict"
    await create(cluster, topic)
    await set_config(cluster, topic, "min.insync.replicas", 3)
    leader = await cluster.leader(topic)
    assert (await cluster.produce(4, topic, "all three")).status == 200
    follower = next(one for one in FIRST if one != leader)
    await cluster.kill(f"broker-{follower}")
    await cluster.wait_isr(topic, 0, set(FIRST) - {follower}, leader)
    answer = await cluster.produce(leader, topic, "too few")
    assert answer.status == 503, answer
    assert entry(answer)["error"].startswith("NOT_ENOUGH_REPLICAS:"), answer
    url = f"{cluster.topics_url(leader)}/{topic}/configs/min.insync.replicas"
    assert (await cluster.ask("PUT", url, {"value": "2"})).status == 204
    assert (await cluster.produce(leader, topic, "two are enough")).status == 200
    assert (await cluster.ask("PUT", url, {"value": "3"})).status == 204
    answer = await cluster.produce(leader, topic, "too few again")
    assert entry(answer)["outcome"] == "not_written", answer
    cluster.start_node(f"broker-{follower}")
    await cluster.wait_isr(topic, 0, set(FIRST), leader)
    assert (await cluster.produce(leader, topic, "all again")).status == 200
    values = [record["value"] for record in (await cluster.fetch(follower, topic)).body]
    assert values == ["all three", "two are enough", "all again"]


async def test_partitions_that_a_topic_is_given_are_there_through_every_broker(
    cluster: LiveCluster,
) -> None:
    topic = "growing"
    await create(cluster, topic)
    async with writing(cluster, topic, 1) as writer:
        url = f"{cluster.topics_url(3)}/{topic}"
        answer = await cluster.ask("PATCH", url, {"partitions_count": 6})
        assert answer.status == 200, answer
        for partition in range(1, 6):
            for broker in (1, 2, 3, 4):
                sent = await cluster.produce(broker, topic, broker, partition=partition)
                assert (sent.status, entry(sent)["partition"]) == (200, partition), sent
        await writer.more(20)  # though its key goes to another partition now
    for partition in range(1, 6):
        values = [record["value"] for record in (await cluster.fetch(4, topic, partition)).body]
        assert [value for value in values if isinstance(value, int)] == [1, 2, 3, 4]


async def test_a_growth_of_several_batches_stops_no_write_and_moves_a_key_once(
    cluster: LiveCluster,
) -> None:
    topic, before, after = "grows-far", 3, 2_300
    await create(cluster, topic, before)
    grown = asyncio.Event()

    async def lane(broker: int) -> list[tuple[str, int]]:
        """Keyed records through one broker until the growth is answered: (key, partition)."""
        url = f"{cluster.url(broker)}/topics/{topic}"
        sent: list[tuple[str, int]] = []
        while not grown.is_set() or len(sent) < 20:
            key = f"key-{len(sent) % 10}"
            answer = await cluster.ask("POST", url, {"records": [{"key": key, "value": broker}]})
            assert answer.status == 200, answer
            sent.append((key, entry(answer)["partition"]))
        return sent

    async with asyncio.TaskGroup() as tasks:
        lanes = [tasks.create_task(lane(broker)) for broker in (1, 2, 3, 4)]
        url = f"{cluster.topics_url(3)}/{topic}"
        answer = await cluster.ask("PATCH", url, {"partitions_count": after})
        assert answer.status == 200, answer
        grown.set()
    for done in lanes:
        counts = [
            {n for n in (before, after) if partition_for_key(f'"{key}"'.encode(), n) == partition}
            for key, partition in done.result()
        ]
        assert all(counts), "spread over a number of partitions that was never answered"
        sure = [count for count in counts if len(count) == 1]
        assert sure == sorted(sure, key=lambda count: after in count), "a key came back"
    for broker in (1, 2, 3, 4):
        sent = await cluster.produce(broker, topic, broker, partition=after - 1)
        assert sent.status == 200, sent
    key = next(n for n in range(100) if partition_for_key(f'"{n}"'.encode(), after) >= before)
    body = {"records": [{"key": str(key), "value": 1}]}
    answer = await cluster.ask("POST", f"{cluster.url(1)}/topics/{topic}", body)
    assert entry(answer)["partition"] == partition_for_key(f'"{key}"'.encode(), after)
    deleted = await cluster.ask("DELETE", f"{cluster.topics_url(1)}/{topic}")
    assert deleted.status == 204, deleted


async def move(cluster: LiveCluster, topic: str, partitions: int, replicas: list[int]) -> None:
    """Reassign, and wait until it is through and all of them are in sync."""
    for number in range(partitions):
        url = f"{cluster.topics_url(2)}/{topic}/partitions/{number}/reassignment"
        answer = await cluster.ask("POST", url, {"replicas": replicas})
        assert answer.status == 202, answer

    async def moved() -> bool:
        for number in range(partitions):
            described = await cluster.partition(topic, number, 2)
            if set(described["isr"]) != set(replicas) or described["leader_id"] not in replicas:
                return False
            url = f"{cluster.topics_url(2)}/{topic}/partitions/{number}/reassignment"
            if (await cluster.ask("GET", url)).status != 404:
                return False
        return True

    await cluster.until(moved, f"{topic} has moved to {replicas}")


async def test_replicas_move_under_load_and_come_back_without_their_old_data(
    cluster: LiveCluster,
) -> None:
    """Broker 1 leads at first: it gives up what it leads, and later fills from the others."""
    topic, partitions = "moving", 2
    await create(cluster, topic, partitions)
    async with writing(cluster, topic, partitions) as writer:
        await writer.more(100)
        topic_id = (await cluster.ask("GET", f"{cluster.topics_url(1)}/{topic}")).body["topic_id"]
        await move(cluster, topic, partitions, MOVED)
        home = cluster.data_dir / "broker-1" / "log"
        quarantined = {home / ".deleted" / f"{topic_id}:{n}:removed" for n in range(partitions)}
        await cluster.until(
            lambda: all(folder.is_dir() for folder in quarantined), "the old replicas are set aside"
        )
        assert not list(home.glob(f"{topic}-*")), "broker 1 holds no replica"
        await writer.more(100)
        await move(cluster, topic, partitions, FIRST)
        assert len(list(home.glob(f"{topic}-*"))) == partitions
        await writer.more(50)
    log.info("while replicas moved: %s", await writer.judge(cluster))

    def same() -> bool:
        for number in range(partitions):
            logs = [cluster.batches_on_disk(one, topic, number) for one in FIRST]
            if not logs[0] or any(one != logs[0] for one in logs):
                return False
        return True

    await cluster.until(same, "the replicas are equal")
