"""A compact topic on a real cluster: written, compacted and killed at the same time."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Iterator

import pytest

from tests.support.live_cluster import LiveCluster, running

log = logging.getLogger("tests.cluster")
KEYS = 12
CONFIGS = {
    "cleanup_policy": "compact",
    "segment_bytes": "4096",
    "min_cleanable_dirty_ratio": "0.01",
    "delete_retention_ms": "300",
}
JSON_V2 = {"Content-Type": "application/vnd.kafka.json.v2+json"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(
        tmp_path_factory.mktemp("compacted"), "--set", "log_cleaner_backoff_ms=100"
    ) as cluster:
        yield cluster


class KeyedWriter:
    """One request in flight; what was acknowledged, and what may have been written."""

    def __init__(self, cluster: LiveCluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self.acknowledged: dict[int, tuple[int, int | None]] = {}
        """Key to (offset, value) of its newest acknowledged record."""
        self.unknown: dict[int, set[int | None]] = {}
        """Values that may stand behind that."""
        self.sent = 0
        self._stopping = False

    async def run(self) -> None:
        brokers = itertools.cycle(self._cluster.brokers)
        broker = next(brokers)
        while not self._stopping:
            self.sent += 1
            key = self.sent % KEYS
            value = None if self.sent % 31 == 0 else self.sent
            url = f"{broker.url}/topics/{self._topic}/partitions/0?timeout=3000"
            try:
                answer = await self._cluster.ask(
                    "POST", url, {"records": [{"key": key, "value": value}]}, JSON_V2
                )
                [stored] = answer.body["offsets"]
            except (OSError, KeyError, TypeError, ValueError):
                stored = {}
            if stored.get("offset") is not None and not stored.get("error_code"):
                self.acknowledged[key] = (stored["offset"], value)
                self.unknown.pop(key, None)
            else:
                self.unknown.setdefault(key, set()).add(value)
                broker = next(brokers)
                await asyncio.sleep(0.05)

    def stop(self) -> None:
        self._stopping = True

    async def more(self, records: int) -> None:
        goal = self.sent + records
        await self._cluster.until(lambda: self.sent >= goal, f"{records} more were sent", 30.0)


def cleanings(cluster: LiveCluster, broker: int) -> int:
    """Passes that this broker noted, over all its lives."""
    journal = cluster.data_dir / f"broker-{broker}" / "events.ndjson"
    lines = journal.read_text().splitlines() if journal.exists() else []
    return sum('"cleaned"' in line for line in lines)


async def shown_by(cluster: LiveCluster, broker: int, topic: str) -> list[dict[str, object]]:
    """Every record, as this broker gives them; each answer makes progress."""
    records: list[dict[str, object]] = []
    offset, end = 0, None
    while end is None or offset < end:
        answer = await cluster.fetch(broker, topic, offset=offset, wait_ms=500)
        assert answer.status == 200, answer
        end = int(answer.headers["Quorumlog-High-Watermark"])
        following = int(answer.headers["Quorumlog-Next-Offset"])
        assert following > offset or offset >= end, (offset, following, end)
        records += answer.body
        offset = following
    offsets = [int(str(record["offset"])) for record in records]
    assert offsets == sorted(set(offsets))
    return records


async def test_compaction_amid_kills_keeps_the_newest_of_every_key(cluster: LiveCluster) -> None:
    """Rule R7 on processes: leaders and followers die while each of them compacts."""
    topic = "prices"
    await cluster.create_topic(topic, 1, 3, 1, **CONFIGS)
    writer = KeyedWriter(cluster, topic)
    task = asyncio.create_task(writer.run())
    try:
        await writer.more(120)
        for number in range(3):
            leader = await cluster.leader(topic)
            victim = leader if number % 2 == 0 else cluster.others(leader)[0].id
            done = cleanings(cluster, victim)
            await cluster.until(
                lambda victim=victim, done=done: cleanings(cluster, victim) > done,  # type: ignore[misc]
                f"broker {victim} compacts",
                30.0,
            )
            pid = await cluster.kill(f"broker-{victim}")
            await writer.more(80)
            await cluster.wait_restarted(f"broker-{victim}", pid)
            await cluster.wait_healthy(topic)
    finally:
        writer.stop()
        await task
    await cluster.wait_healthy(topic)
    sizes = {}
    for endpoint in cluster.brokers:
        records = await shown_by(cluster, endpoint.id, topic)
        sizes[endpoint.id] = len(records)
        newest = {record["key"]: record for record in records}
        for key, (offset, value) in writer.acknowledged.items():
            found = newest.get(key)
            may_be = writer.unknown.get(key, set())
            if found is None:
                assert value is None or None in may_be, f"key {key} is gone"
                continue
            assert int(str(found["offset"])) >= offset, f"key {key} went back (rule R7)"
            assert found["value"] == value or found["value"] in may_be
    passes = {endpoint.id: cleanings(cluster, endpoint.id) for endpoint in cluster.brokers}
    log.info("sent %d, shown %s, passes %s", writer.sent, sizes, passes)
    assert all(passes.values()), passes
    assert max(sizes.values()) < writer.sent / 2


async def test_a_record_without_a_key_is_refused_alone(cluster: LiveCluster) -> None:
    topic = "keyed"
    await cluster.create_topic(topic, 1, 3, 1, cleanup_policy="compact,delete")
    url = f"{cluster.url(1)}/topics/{topic}"
    records = [{"key": 1, "value": "a"}, {"value": "b"}, {"key": None, "value": "c"}, {"key": 2}]
    answer = await cluster.ask("POST", url, {"records": records}, JSON_V2)
    assert answer.status == 200
    codes = [entry["error_code"] for entry in answer.body["offsets"]]
    assert codes == [None, 40002, 40002, None], json.dumps(answer.body)
    assert "INVALID_RECORD" in answer.body["offsets"][1]["error"]
    assert "cleanup.policy" in answer.body["offsets"][1]["error"]


async def test_the_offsets_topic_is_compacted_unless_told_otherwise(cluster: LiveCluster) -> None:
    group = f"{cluster.url(1)}/consumers/any"
    made = await cluster.ask("POST", group, {"name": "one", "format": "json"})
    assert made.status == 200, made
    answer = await cluster.ask("GET", f"{cluster.topics_url(1)}/__consumer_offsets/configs")
    said = {entry["name"]: entry["value"] for entry in answer.body["data"]}
    assert said["cleanup.policy"] == "compact"
    assert said["segment.bytes"] == "104857600"
