"""Compressed topics on a real cluster of three: kills, compaction, and readers of both kinds."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest
import zstandard

from broker.record.batch import walk
from chaos.cluster import quorumlog_command
from http_api.client import consumer
from http_api.client.transport import Client
from tests.support.live_cluster import LiveCluster, running

ALL = (1, 2, 3)
NDJSON = {"Accept": "application/x-ndjson"}
JSON_V2 = {"Content-Type": "application/vnd.kafka.json.v2+json"}
TEXT = "scheduled, boarding, departed, delayed; "


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(
        tmp_path_factory.mktemp("zstd"), "--controllers", "1", "--set", "log_cleaner_backoff_ms=100"
    ) as cluster:
        yield cluster


def curl(url: str, *options: str) -> bytes:
    asked = ["curl", "-sS", "--fail-with-body", *options, "-H", "Accept: application/x-ndjson", url]
    return subprocess.run(asked, check=True, capture_output=True, timeout=30).stdout


def curl_knows_zstd() -> bool:
    asked = subprocess.run(["curl", "-V"], check=True, capture_output=True, timeout=30)
    return b"zstd" in asked.stdout


def unpacked(body: bytes) -> bytes:
    reader = zstandard.ZstdDecompressor().stream_reader(body, read_across_frames=True)
    return bytes(reader.read())


async def read_all(
    cluster: LiveCluster, broker: int, topic: str, max_bytes: int, *, zstd: bool, query: str = ""
) -> tuple[bytes, int]:
    """Every line that this broker gives, and how many bytes that took on the wire."""
    lines, wire, offset, end = b"", 0, 0, 1
    headers = NDJSON | {"Accept-Encoding": "zstd" if zstd else "identity"}
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        while offset < end:
            url = f"{cluster.url(broker)}/topics/{topic}/partitions/0/records"
            asked = f"?offset={offset}&timeout=500&max_bytes={max_bytes}{query}"
            async with session.get(url + asked, headers=headers) as answer:
                body = await answer.read()
                assert answer.status == 200, body
                wire += len(body)
                if "Content-Encoding" in answer.headers:
                    assert zstd
                    body = unpacked(body)
                    assert len(body) == int(answer.headers["Quorumlog-Decoded-Length"])
                end = int(answer.headers["Quorumlog-High-Watermark"])
                following = int(answer.headers["Quorumlog-Next-Offset"])
                assert following > offset or offset >= end
                lines, offset = lines + body, following
    return lines, wire


async def write(
    cluster: LiveCluster, topic: str, count: int, acknowledged: dict[int, str], tag: str
) -> None:
    """Bodies of ten records, through whoever answers, until so many were acknowledged."""
    brokers = itertools.cycle(ALL)
    broker, number = next(brokers), 0
    while count:
        number += 1
        values = [f"{tag} {number} {n} {TEXT * 3}" for n in range(10)]
        try:
            answer = await cluster.produce(broker, topic, *values, query="timeout=3000")
            stored = answer.body["offsets"]
        except (OSError, KeyError, TypeError):
            broker = next(brokers)
            await asyncio.sleep(0.05)
            continue
        for row, value in zip(stored, values, strict=True):
            if row["offset"] is not None and not row["error_code"]:
                acknowledged[row["offset"]] = value
        count -= 1


def parsed(lines: bytes) -> dict[int, Any]:
    rows = [json.loads(line) for line in lines.splitlines()]
    return {row["offset"]: row["value"] for row in rows}


async def test_acknowledged_records_are_read_by_every_client_after_the_leader_was_killed(
    cluster: LiveCluster,
) -> None:
    topic = "packed"
    await cluster.create_topic(topic, 1, 3, 1, compression_type="zstd", min_insync_replicas="2")
    await cluster.wait_healthy(topic)
    acknowledged: dict[int, str] = {}
    await write(cluster, topic, 20, acknowledged, "before")
    leader = await cluster.leader(topic)
    writing = asyncio.create_task(write(cluster, topic, 40, acknowledged, "amid"))
    pid = await cluster.kill(f"broker-{leader}")
    await writing
    await cluster.wait_restarted(f"broker-{leader}", pid)
    await cluster.wait_healthy(topic)
    await write(cluster, topic, 5, acknowledged, "after")

    expected, plain_wire = await read_all(cluster, 1, topic, 1 << 20, zstd=False)
    found = parsed(expected)
    assert {at: found[at] for at in acknowledged} == acknowledged
    for broker in ALL:
        for max_bytes, query in itertools.product((1 << 20, 1_700), ("", "&frames=many")):
            lines, wire = await read_all(cluster, broker, topic, max_bytes, zstd=True, query=query)
            assert lines == expected
            if max_bytes == 1 << 20:
                assert wire < plain_wire / 3
        lines, _ = await read_all(cluster, broker, topic, 1_700, zstd=False)
        assert lines == expected

    url = f"{cluster.url(1)}/topics/{topic}/partitions/0/records?offset=3&max_bytes=1000000"
    expected_there = expected.split(b"\n", 3)[3]
    for query in ("", "&frames=many"):
        raw = curl(url + query, "-H", "Accept-Encoding: zstd")
        assert unpacked(raw) == curl(url + query) == expected_there
    one = curl(url, "-H", "Accept-Encoding: zstd")
    assert zstandard.ZstdDecompressor().decompress(one) == expected_there, "a single frame"
    assert not curl_knows_zstd() or curl(url, "--compressed") == expected_there

    with Client([cluster.url(2)]) as client:  # the SDK, and with it Spark's reader
        page = client.run(consumer.fetch_stored(topic, 0, 0))
    stored = [line for line in page.body.splitlines() if not line.startswith(b'{"batch"')]
    assert b"\n".join(stored) + b"\n" == expected

    first = cluster.batches_on_disk(1, topic, 0)
    for broker in ALL:
        assert cluster.batches_on_disk(broker, topic, 0) == first, "the leader's bytes, everywhere"
        folder = cluster.data_dir / f"broker-{broker}" / "log" / f"{topic}-0"
        assert "sound" in quorumlog("log", "dump", str(folder), "--verify")
    chains = {
        str((await chain(cluster, topic, broker))["value"]) for broker in ALL
    }  # equal, as their bytes are
    assert len(chains) == 1


async def chain(cluster: LiveCluster, topic: str, broker: int) -> dict[str, object]:
    url = f"{cluster.url(broker)}/broker/v1/state?topic={topic}&partition=0&chain=true"
    answer = await cluster.ask("GET", url)
    found: dict[str, object] = answer.body["partitions"][0]["chain"]
    return found


def quorumlog(*words: str) -> str:
    asked = [*quorumlog_command(), *words]
    return subprocess.run(asked, check=True, capture_output=True, text=True, timeout=30).stdout


async def test_the_type_is_switched_while_the_topic_is_written_to(cluster: LiveCluster) -> None:
    topic = "switched"
    await cluster.create_topic(topic, 1, 3, 1)
    await cluster.wait_healthy(topic)
    config = f"{cluster.topics_url(1)}/{topic}/configs/compression.type"
    for refused in ("gzip", "snappy", "lz4"):
        answer = await cluster.ask("PUT", config, {"value": refused})
        assert answer.status == 400
        assert "expected uncompressed or producer or zstd" in answer.body["message"]
    acknowledged: dict[int, str] = {}
    writing = asyncio.create_task(write(cluster, topic, 60, acknowledged, "on"))
    for value in ("zstd", "producer", "zstd"):
        answer = await cluster.ask("PUT", config, {"value": value})
        assert answer.status == 204, answer
        await asyncio.sleep(0.15)
    await writing

    async def kinds() -> bool:
        await write(cluster, topic, 1, acknowledged, "until it is in force")
        return len({header.is_compressed for header in headers_of(cluster, topic)}) == 2

    await cluster.until(kinds, "batches of both kinds stand in the log")
    expected, _ = await read_all(cluster, 1, topic, 1 << 20, zstd=False)
    assert {at: parsed(expected)[at] for at in acknowledged} == acknowledged
    for broker in ALL:
        assert (await read_all(cluster, broker, topic, 5_000, zstd=True))[0] == expected


def headers_of(cluster: LiveCluster, topic: str) -> list[Any]:
    folder = cluster.data_dir / "broker-1" / "log" / f"{topic}-0"
    return [
        header for path in sorted(folder.glob("*.log")) for _, header in walk(path.read_bytes())
    ]


async def test_a_compact_topic_keeps_the_newest_of_every_key(cluster: LiveCluster) -> None:
    topic = "prices"
    await cluster.create_topic(
        topic, 1, 3, 1, compression_type="zstd", cleanup_policy="compact",
        segment_bytes="4096", min_cleanable_dirty_ratio="0.01", delete_retention_ms="300",
    )  # fmt: skip
    await cluster.wait_healthy(topic)
    newest: dict[str, str | None] = {}
    url = f"{cluster.url(2)}/topics/{topic}/partitions/0"
    for number in range(150):
        rows = [
            {"key": f"k{(number * 7 + n) % 40}", "value": f"{TEXT * 2}{number} {n}"}
            for n in range(10)
        ]
        answer = await cluster.ask("POST", url, {"records": rows}, JSON_V2)
        assert answer.status == 200, answer
        newest |= {row["key"]: row["value"] for row in rows}

    def compacted() -> bool:
        headers = headers_of(cluster, topic)
        holes = [each for each in headers if each.count and not each.is_dense]
        return sum(each.count for each in headers) < 600 and any(e.is_compressed for e in holes)

    await cluster.until(compacted, "batches were compressed again without what went", 30.0)
    for broker in ALL:
        for zstd in (True, False):
            lines, _ = await read_all(cluster, broker, topic, 3_000, zstd=zstd)
            rows = [json.loads(line) for line in lines.splitlines()]
            assert [row["offset"] for row in rows] == sorted({row["offset"] for row in rows})
            assert {row["key"]: row["value"] for row in rows} == newest
        folder = cluster.data_dir / f"broker-{broker}" / "log" / f"{topic}-0"
        assert "DAMAGED" not in quorumlog("log", "dump", str(folder), "--verify")
