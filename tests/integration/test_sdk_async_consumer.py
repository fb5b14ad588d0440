"""`AsyncConsumer` on a real cluster: the main paths, with callbacks that are coroutines."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from http_api.client.client_errors import ClosedError, QuorumlogError, WakeupError
from http_api.client.sdk.async_consumer import AsyncConsumer
from http_api.client.sdk.record_types import TopicPartition
from tests.support.live_cluster import LiveCluster, running

DONE_S = 30.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(tmp_path_factory.mktemp("cluster")) as started:
        asyncio.run(started.wait_healthy())
        yield started


def open_consumer(cluster: LiveCluster, group: str | None, **more: Any) -> AsyncConsumer[Any, Any]:
    urls = [broker.url for broker in cluster.brokers]
    return AsyncConsumer(urls, group_id=group, auto_offset_reset="earliest", **more)


async def write(cluster: LiveCluster, topic: str, *values: object, partition: int = 0) -> None:
    answer = await cluster.produce(1, topic, *values, partition=partition)
    assert answer.status == 200, answer


async def test_a_group_reads_commits_and_goes_on(cluster: LiveCluster) -> None:
    await cluster.create_topic("async", 2)
    for partition in range(2):
        await write(cluster, "async", *range(10), partition=partition)
    threads = threading.active_count()
    called: list[str] = []

    async def assigned(consumer: AsyncConsumer[Any, Any], partitions: list[TopicPartition]) -> None:
        assert await consumer.committed(partitions) == partitions
        called.append("assign")

    async def revoked(consumer: AsyncConsumer[Any, Any], _: list[TopicPartition]) -> None:
        await consumer.commit()
        called.append("revoke")

    async def committed(error: QuorumlogError | None, _: list[TopicPartition]) -> None:
        called.append("commit" if error is None else str(error))

    async with open_consumer(cluster, "async", enable_auto_commit=False) as consumer:
        await consumer.subscribe(["async"], on_assign=assigned, on_revoke=revoked)
        count = 0
        async for record in consumer:
            count += 1
            if count == 20:
                await consumer.commit(record, asynchronous=True, callback=committed)
                break
        await write(cluster, "async", "more")
        found = await consumer.consume(10, DONE_S)
        assert [(one.partition, one.value) for one in found] == [(0, "more")]
        assert threading.active_count() == threads
    assert sorted(called) == ["assign", "commit", "revoke"]
    async with open_consumer(cluster, "async") as consumer:
        rows = await consumer.committed([TopicPartition("async", 0), TopicPartition("async", 1)])
        assert [row.offset for row in rows] == [11, 10]
    with pytest.raises(ClosedError):
        await consumer.poll(0.1)


async def test_polls_without_a_wait_let_fetching_go_on(cluster: LiveCluster) -> None:
    await cluster.create_topic("eager", 1)
    await write(cluster, "eager", 1)
    async with open_consumer(cluster, None) as consumer:
        until_s = asyncio.get_running_loop().time() + DONE_S
        await consumer.assign([TopicPartition("eager", 0, 0)])
        while (record := await consumer.poll(0)) is None:
            assert asyncio.get_running_loop().time() < until_s
        assert record.value == 1


async def test_two_members_share(cluster: LiveCluster) -> None:
    await cluster.create_topic("pair", 2)
    async with open_consumer(cluster, "pair") as first, open_consumer(cluster, "pair") as second:
        await first.subscribe(["pair"])
        await second.subscribe(["pair"])

        async def both() -> bool:
            await asyncio.gather(first.poll(0.05), second.poll(0.05))
            return len(first.assignment()) == 1 == len(second.assignment())

        await cluster.until(both, "each owns one")
        assert set(first.assignment()).isdisjoint(second.assignment())


async def test_a_cancelled_wait_loses_no_record(cluster: LiveCluster) -> None:
    await cluster.create_topic("cancel", 1)
    async with open_consumer(cluster, None) as consumer:
        await consumer.assign([TopicPartition("cancel", 0)])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await consumer.poll(None)
        await write(cluster, "cancel", 1, 2, 3)
        offsets = []
        for _ in range(3):
            record = await consumer.poll(DONE_S)
            assert record is not None
            offsets.append(record.offset)
        assert offsets == [0, 1, 2]
        waiting = asyncio.create_task(consumer.poll(DONE_S))
        await asyncio.sleep(0)  # the task begins
        with pytest.raises(QuorumlogError, match="another thread or task"):
            await consumer.poll(0.1)
        consumer.wakeup()
        with pytest.raises(WakeupError):
            await waiting
