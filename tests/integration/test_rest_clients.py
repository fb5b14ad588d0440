"""REST clients that others wrote, unchanged, through their produce, consume and commit cycle."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import warnings
from collections.abc import Iterator
from importlib.metadata import distribution
from typing import Any

import kafka_rest
import pytest

from tests.support.live_cluster import LiveCluster, running

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it takes a TypedDict of long ago
    from kafka_bridge_client import KafkaBridgeConsumer, KafkaBridgeProducer

MESSAGES = 5
ADDED_BY_PROXY = {"strimzi": 0, "confluent": 1}
"""What the dialect adds to a committed offset."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(tmp_path_factory.mktemp("cluster")) as started:
        yield started


async def offsets_of(cluster: LiveCluster, group: str) -> list[int]:
    now = cluster.read()
    url = f"{now.brokers[2].url}/v3/clusters/{now.cluster_id}/consumer-groups/{group}/offsets"
    answer = await cluster.ask("GET", url)
    return [row["offset"] for row in answer.body["data"]]


@pytest.mark.parametrize("proxy", ADDED_BY_PROXY)
async def test_kafka_bridge_client_in_both_modes(cluster: LiveCluster, proxy: str) -> None:
    topic = group = f"bridge-{proxy}"
    await cluster.create_topic(topic)
    produce_to, consume_from = cluster.url(1), cluster.url(2)

    def produce() -> None:
        producer = KafkaBridgeProducer(produce_to, timeout=10)
        assert producer.sends(
            topic, [{"key": str(n), "value": f"text {n}"} for n in range(MESSAGES)]
        )
        assert producer.send(topic, {"key": "b", "value": b"bytes \xff"}, binary=True)

    await asyncio.to_thread(produce)
    consumer = KafkaBridgeConsumer(
        topic,
        bootstrap_server=consume_from,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        consumer_name="one",
        sleep_interval_seconds=0,
        proxy=proxy,
    )
    found: list[dict[str, Any]] = []
    async with consumer:
        async for record in consumer.get_records(max_bytes=100_000, timeout=1_000):
            found.append(record)
            if len(found) == MESSAGES + 1:
                break
        await consumer.commit()
        assert await consumer.poll_records(max_bytes=100_000, timeout=0) == []
    values = [base64.b64decode(record["value"]) for record in found]
    assert values == [*(f'"text {n}"'.encode() for n in range(MESSAGES)), b"bytes \xff"]
    assert await offsets_of(cluster, group) == [MESSAGES + ADDED_BY_PROXY[proxy]]

    async with consumer:  # the same name again: it deletes what is left, and goes on
        again = await consumer.poll_records(max_bytes=100_000, timeout=0)
    assert len(again) == 1 - ADDED_BY_PROXY[proxy]


async def test_nlp_kafka_rest_api(cluster: LiveCluster) -> None:
    await cluster.create_topic("jobs-response", 2)
    settings = {"kafka_rest_api_url": cluster.url(3), "auth_headers": {}}

    def cycle() -> None:
        producer = kafka_rest.Producer(topic_id="jobs-response", **settings)
        keys = producer.produce([{"text": f"job {n}"} for n in range(MESSAGES)], "pke")
        with kafka_rest.Consumer(
            topic_id="jobs", consumer_group="nlp", instance="one", **settings
        ) as consumer:
            batches = consumer.consume_all(keys, interval_sec=0.05)
        found = {record["key"]: record["value"] for batch in batches for record in batch}
        assert found == {
            key: {"endpoint": "pke", "payload": {"text": f"job {n}"}} for n, key in enumerate(keys)
        }

    await asyncio.to_thread(cycle)
    assert sum(await offsets_of(cluster, "nlp")) == MESSAGES  # it left with auto-commit on


@pytest.mark.parametrize(
    ("position", "offsets"),
    [
        ("earliest", [2, 3, 4]),
        ("latest", []),
        ("-2", [3, 4]),
        ("-10", [2, 3, 4]),
        ("@0", [2, 3, 4]),
        ("2001-02-03T04:05:06Z", [2, 3, 4]),
        ("9999-12-31T23:59:59%2B01:00", []),
        ("@9223372036854775807", []),
    ],
)
async def test_every_broker_reads_from_every_position(
    cluster: LiveCluster, position: str, offsets: list[int]
) -> None:
    """Two of them ask the leader; the log starts at 2, because the first two were deleted."""
    topic = "positions"
    if topic not in (await cluster.ask("GET", f"{cluster.url(1)}/topics")).body:
        await cluster.create_topic(topic)
        assert (await cluster.produce(1, topic, *range(5))).status == 200
        url = f"{cluster.topics_url(1)}/{topic}/partitions/0:delete-records"
        assert (await cluster.ask("POST", url, {"before_offset": 2})).status == 200
    for broker in (1, 2, 3):
        url = f"{cluster.url(broker)}/topics/{topic}/partitions/0/records?timeout=0"
        answer = await cluster.ask("GET", f"{url}&offset={position}")
        assert answer.status == 200, answer
        assert [record["offset"] for record in answer.body] == offsets
        assert answer.headers["Quorumlog-Next-Offset"] == "5"
        assert answer.headers["Quorumlog-Log-Start-Offset"] == "2"
        answer = await cluster.ask("GET", f"{url}&offset=5000000000000000000")
        assert answer.body["error_code"] == 40002


@pytest.mark.parametrize("name", ["kafka-bridge-client", "nlp-kafka-rest-api"])
def test_the_clients_are_as_they_were_published(name: str) -> None:
    files = [file for file in distribution(name).files or () if file.hash is not None]
    assert len(files) > 3
    for file in files:
        assert file.hash is not None
        digest = base64.urlsafe_b64encode(hashlib.sha256(file.read_binary()).digest())
        assert digest.decode().rstrip("=") == file.hash.value, file
