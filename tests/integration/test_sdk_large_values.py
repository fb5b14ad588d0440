"""Values above ``max.message.bytes`` on a real cluster: split by producers, joined by consumers."""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from chaos.net.toxiproxy import REQUESTS, Toxic, ToxiproxyServer, find_server
from quorumlog import (
    ApiError,
    AsyncProducer,
    Consumer,
    InvalidRecordError,
    Producer,
    QuorumlogError,
    Receipt,
    TopicPartition,
)
from raft_metadata.common.local_ports import LOOPBACK, free_port
from tests.support.live_cluster import LiveCluster, running

LIMIT = 20_000
"""``max.message.bytes`` of most topics here."""
PARTS = 17
SLOW_KB_S = 6_000
"""Rate of the killed producer's requests: each of its parts takes some 0.2 s."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(tmp_path_factory.mktemp("large-values")) as started:
        yield started


def urls(cluster: LiveCluster) -> list[str]:
    return [broker.url for broker in cluster.brokers]


async def make_topic(cluster: LiveCluster, topic: str, **configs: str) -> None:
    await cluster.create_topic(topic, **{"max_message_bytes": str(LIMIT), **configs})


def read(cluster: LiveCluster, topic: str, count: int) -> list[tuple[Any, Any, Any]]:
    """Key, value and headers of the first records of a partition, as a consumer returns them."""
    with Consumer(urls(cluster)) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found = list(islice(consumer, count))
    return [(one.key, one.value, one.headers) for one in found]


async def test_long_values_come_back_whole_between_short_ones(cluster: LiveCluster) -> None:
    topic = "whole"
    await make_topic(cluster, topic)
    long_text, long_bytes = "ü" * 50_000, bytes(range(256)) * 400
    outcomes: list[tuple[QuorumlogError | None, Receipt]] = []

    def write() -> Receipt:
        with Producer(urls(cluster), large_messages="split") as producer:
            producer.produce(topic, "short", key="a")
            producer.produce(topic, {"text": long_text}, key="a", headers={"h": b"1"})
            producer.produce(topic, long_bytes, on_delivery=lambda *given: outcomes.append(given))
            producer.produce(topic, "short", headers=[])
            return producer.send(topic, long_text, key=b"k", headers=[])

    receipt = await asyncio.to_thread(write)
    assert await asyncio.to_thread(read, cluster, topic, 5) == [
        ("a", "short", []),
        ("a", {"text": long_text}, [("h", b"1")]),
        (None, long_bytes, []),
        (None, "short", []),
        (b"k", long_text, []),
    ]
    ((error, place),) = outcomes
    assert error is None
    assert place.offset < receipt.offset
    assert (receipt.value, receipt.key) == (long_text, b"k")
    end = await cluster.fetch(1, topic, offset=receipt.offset + 1, wait_ms=0)
    assert end.body == [], "the receipt names the last part"


async def test_the_asyncio_twin_splits_as_well(cluster: LiveCluster) -> None:
    topic = "async-whole"
    await make_topic(cluster, topic)
    async with AsyncProducer(urls(cluster), large_messages="split") as producer:
        await producer.produce(topic, b"x" * 100_000, on_delivery=lambda *_: None)
        await producer.send(topic, b"y" * 100_000)
        await producer.send("made-by-a-record", b"z")
    found = await asyncio.to_thread(read, cluster, topic, 2)
    assert [value for _, value, _ in found] == [b"x" * 100_000, b"y" * 100_000]


async def test_what_can_not_be_split_is_refused_and_says_why(cluster: LiveCluster) -> None:
    await make_topic(cluster, "compacts", cleanup_policy="compact")
    await make_topic(cluster, "plain")
    value = b"x" * 100_000

    def write() -> None:
        with Producer(urls(cluster), large_messages="split", buffer_memory=1 << 20) as producer:
            with pytest.raises(InvalidRecordError, match="compacted"):
                producer.send("compacts", value, key="k")
            with pytest.raises(InvalidRecordError, match="buffer_memory=1048576"):
                producer.send("plain", b"x" * (1 << 20))
            producer.send("plain", value)
        with Producer(urls(cluster)) as producer, pytest.raises(ApiError, match=f"{LIMIT} bytes"):
            producer.send("plain", value)

    await asyncio.to_thread(write)


SPLITTING = """
    from quorumlog import Producer
    producer = Producer(URL, large_messages="split", follow_leaders=False, max_in_flight=1)
    producer.send("killed", b"dead" * 3_100_000)
    """


async def test_a_value_whose_producer_is_killed_behind_the_ninth_part_is_never_returned(
    cluster: LiveCluster, tmp_path: Path
) -> None:
    topic = "killed"
    await cluster.create_topic(topic)
    first = cluster.url(1)
    listen = f"{LOOPBACK}:{free_port()}"
    toxiproxy = ToxiproxyServer(find_server(), tmp_path / "toxiproxy.log")
    api = toxiproxy.start()
    try:
        api.create("slow", listen, first.removeprefix("http://"))
        api.add_toxic("slow", Toxic("bandwidth", REQUESTS, (("rate", SLOW_KB_S),)))
        code = f"URL = 'http://{listen}'\n" + textwrap.dedent(SPLITTING)
        environment = os.environ | {"PYTHONPATH": os.getcwd()}  # noqa: PTH109 the root
        writer = await asyncio.create_subprocess_exec(sys.executable, "-c", code, env=environment)

        async def has_nine() -> bool:
            assert writer.returncode is None
            return await end_of(cluster, topic) >= 9

        await cluster.until(has_nine, "nine parts are written")
        writer.kill()
        await writer.wait()
    finally:
        toxiproxy.stop()
    assert 9 <= await end_of(cluster, topic) < PARTS

    def write_and_read() -> list[tuple[Any, Any, Any]]:
        with Producer(urls(cluster), large_messages="split") as producer:
            producer.produce(topic, "behind")
            producer.send(topic, b"live" * 3_100_000)
            producer.send(topic, "end")
        return read(cluster, topic, 3)

    found = await asyncio.to_thread(write_and_read)
    assert [value for _, value, _ in found] == ["behind", b"live" * 3_100_000, "end"]


async def end_of(cluster: LiveCluster, topic: str) -> int:
    answer = await cluster.ask("GET", f"{cluster.url(2)}/topics/{topic}/partitions/0/offsets")
    assert answer.status == 200, answer
    return int(answer.body["end_offset"])
