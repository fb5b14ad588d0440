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


@pytest.mark.parametrize("name", ["kafka-bridge-client", "nlp-kafka-rest-api"])
def test_the_clients_are_as_they_were_published(name: str) -> None:
    files = [file for file in distribution(name).files or () if file.hash is not None]
    assert len(files) > 3
    for file in files:
        assert file.hash is not None
        digest = base64.urlsafe_b64encode(hashlib.sha256(file.read_binary()).digest())
        assert digest.decode().rstrip("=") == file.hash.value, file
