"""Records of the SDK on disk and on the way: zstd batches, and reads of a rack.

Both are invisible to a program, so the brokers' folders and access logs are the evidence.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from broker.record.batch import walk
from http_api.client.sdk.consumer import Consumer
from http_api.client.sdk.producer import Producer
from http_api.client.sdk.record_types import Record, TopicPartition
from tests.support.live_cluster import LiveCluster, running

DONE_S = 30.0
RACKS = {1: "a", 2: "b", 3: "c"}
TEXT = "scheduled, boarding, departed, delayed; " * 5


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    """Three brokers, each in a rack of its own, that note all requests."""
    with running(tmp_path_factory.mktemp("racks"), "--controllers", "1") as started:
        asyncio.run(put_into_racks(started))
        yield started


async def put_into_racks(cluster: LiveCluster) -> None:
    """Restart the cluster with racks and whole access logs: both stand in config.toml only."""
    cluster.kill_everything()
    for broker, rack in RACKS.items():
        config = cluster.data_dir / f"broker-{broker}" / "config.toml"
        text = config.read_text().replace("[node]\n", f'[node]\nrack = "{rack}"\n', 1)
        config.write_text(text.replace("[log]\n", '[log]\naccess = "all"\n', 1))
    await cluster.start()
    await cluster.wait_healthy()
    url = f"{cluster.topics_url(1).removesuffix('/topics')}/broker-configs/replica.selector"
    assert (await cluster.ask("PUT", url, {"value": "rack"})).status == 204


def urls(cluster: LiveCluster) -> list[str]:
    return [broker.url for broker in cluster.brokers]


def write(cluster: LiveCluster, topic: str, *values: object, **settings: Any) -> None:
    with Producer(urls(cluster), **settings) as producer:
        for value in values:
            producer.produce(topic, value, partition=0)


def read(consumer: Consumer[Any, Any], count: int) -> list[Record[Any, Any]]:
    until_s = time.monotonic() + DONE_S
    found: list[Record[Any, Any]] = []
    while len(found) < count:
        assert time.monotonic() < until_s, f"{len(found)} of {count} records"
        found += consumer.consume(count - len(found), 0.5)
    return found


def polls(cluster: LiveCluster, broker: int) -> list[dict[str, Any]]:
    """Return the polls that a broker has answered, by its access log."""
    path = cluster.data_dir / f"broker-{broker}" / "access.ndjson"
    lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    return [line for line in lines if str(line["path"]).endswith("/records:poll")]


def test_a_consumer_reads_from_the_follower_in_its_rack(cluster: LiveCluster) -> None:
    """The consumer asks the follower itself, once a page names it: the leader passes on no more.

    The first page may be the leader's, as a follower serves only while it knows that it is in sync.
    """
    asyncio.run(cluster.create_topic("racks"))
    asyncio.run(cluster.wait_healthy("racks"))
    leader = asyncio.run(cluster.leader("racks"))
    follower = leader % 3 + 1
    with Consumer([cluster.url(leader)], rack=RACKS[follower]) as consumer:
        consumer.assign([TopicPartition("racks", 0, 0)])
        for number in range(2):
            write(cluster, "racks", number)
            read(consumer, 1)
        before = {one: len(polls(cluster, one)) for one in RACKS}
        for number in range(5):
            write(cluster, "racks", number, TEXT * 100)
            assert [one.value for one in read(consumer, 2)] == [number, TEXT * 100]

    def served() -> list[dict[str, Any]]:
        return [line for line in polls(cluster, follower)[before[follower] :] if line["bytes_out"]]

    def is_logged() -> bool:
        return sum(line["bytes_out"] for line in served()) > 5 * len(TEXT * 100)

    asyncio.run(cluster.until(is_logged, "the follower sent all records"))
    assert {line["forwarded_to"] for line in served()} == {None}, "it read them from its own log"
    elsewhere = [
        line for one in RACKS if one != follower for line in polls(cluster, one)[before[one] :]
    ]
    assert sum(line["bytes_out"] or 0 for line in elsewhere) < 1_000


@pytest.mark.parametrize("batch_size", [262_144, 1_024])
def test_records_of_a_zstd_topic_are_stored_compressed_and_read_as_written(
    cluster: LiveCluster, batch_size: int
) -> None:
    topic = f"packed-{batch_size}"
    asyncio.run(cluster.create_topic(topic, compression_type="zstd"))
    asyncio.run(cluster.wait_healthy(topic))
    values = [f"{number} {TEXT}" for number in range(500)]
    write(cluster, topic, *values, batch_size=batch_size)
    with Consumer(urls(cluster), max_partition_fetch_bytes=20_000) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found = read(consumer, len(values))
        assert [one.value for one in found] == values
        assert [one.offset for one in found] == list(range(len(values)))
        consumer.seek(TopicPartition(topic, 0, 333))  # within a batch
        assert read(consumer, 1)[0].value == values[333]
    asyncio.run(cluster.wait_same_on_disk(topic, 1))
    for broker in RACKS:
        folder = cluster.data_dir / f"broker-{broker}" / "log" / f"{topic}-0"
        stored = [path.read_bytes() for path in sorted(folder.glob("*.log"))]
        headers = [header for content in stored for _, header in walk(content)]
        assert all(header.is_compressed for header in headers)
        assert sum(header.count for header in headers) == len(values)
        assert sum(map(len, stored)) < sum(map(len, values)) / 3
