"""Programs for aiokafka, written as its documentation writes them, on a real cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from quorumlog.compat.aiokafka import (
    AIOKafkaConsumer,
    AIOKafkaProducer,
    ConsumerRebalanceListener,
    ConsumerRecord,
    ConsumerStoppedError,
    IllegalOperation,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
)
from quorumlog.compat.aiokafka.errors import (
    CommitFailedError,
    IllegalStateError,
    KafkaConnectionError,
    MessageSizeTooLargeError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    ProducerClosed,
    UnknownTopicOrPartitionError,
)
from tests.support.live_cluster import LiveCluster, running

DONE_S = 20.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(tmp_path_factory.mktemp("cluster")) as started:
        asyncio.run(started.wait_healthy())
        yield started


def servers(cluster: LiveCluster) -> list[str]:
    return [broker.url.removeprefix("http://") for broker in cluster.brokers]


def new_producer(cluster: LiveCluster, **more: Any) -> AIOKafkaProducer:
    return AIOKafkaProducer(bootstrap_servers=servers(cluster), **more)


def new_consumer(cluster: LiveCluster, *topics: str, **more: Any) -> AIOKafkaConsumer:
    more.setdefault("auto_offset_reset", "earliest")
    return AIOKafkaConsumer(*topics, bootstrap_servers=servers(cluster), **more)


async def write(cluster: LiveCluster, topic: str, *values: bytes, partition: int = 0) -> None:
    async with new_producer(cluster) as producer:
        for value in values:
            await producer.send(topic, value, partition=partition)


async def test_send_and_iterate(cluster: LiveCluster) -> None:
    """The first example of aiokafka's documentation, with all fields of a record."""
    await cluster.create_topic("first", 1)
    producer = new_producer(cluster)
    await producer.start()
    try:
        sent = await producer.send_and_wait(
            "first", b"Super message", key=b"k", timestamp_ms=1_700_000_000_000,
            headers=[("h", b"1"), ("none", None)],
        )  # fmt: skip
        await producer.send_and_wait("first", None, b"gone")
        await producer.send_and_wait("first", b"")
    finally:
        await producer.stop()
    assert (sent.topic, sent.partition, sent.offset) == ("first", 0, 0)
    assert sent.topic_partition == TopicPartition("first", 0)
    assert (sent.timestamp, sent.timestamp_type) == (1_700_000_000_000, 0)

    consumer = new_consumer(cluster, "first")
    await consumer.start()
    read = []
    try:
        async for msg in consumer:
            read.append(msg)
            if len(read) == 3:
                break
    finally:
        await consumer.stop()
    assert read[0] == ConsumerRecord(
        "first", 0, 0, 1_700_000_000_000, 0, b"k", b"Super message", None, 1, 13,
        (("h", b"1"), ("none", None)),
    )  # fmt: skip
    assert [(one.key, one.value) for one in read[1:]] == [(b"gone", None), (None, b"")]
    assert [(one.serialized_key_size, one.serialized_value_size) for one in read[1:]] == [
        (4, -1),
        (-1, 0),
    ]
