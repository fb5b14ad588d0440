"""A running query waits for all its partitions and topics, and sees those that come later."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from http_api.client.calls import Call
from spark_source.cluster import Cluster
from spark_source.offsets import NextOffset
from spark_source.options import source_options
from spark_source.stream_reader import Driver
from tests.support.spark_log import Log

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession
    from pyspark.sql.streaming import StreamingQuery

SEEN_S = 15
"""Longer than a micro-batch takes here, on a busy machine too."""
POLL_MS = 500
IDLE_S = 3.2


def until(log: Log, condition: Callable[[], bool], what: str, deadline_s: float = SEEN_S) -> None:
    asyncio.run(log.cluster.until(condition, what, deadline_s))


@pytest.fixture
def seen() -> list[Row]:
    return []


def started(
    spark: SparkSession, log: Log, topics: str, checkpoint: Path, seen: list[Row], **options: object
) -> StreamingQuery:
    return (
        log.load_stream(spark, topics, longPollMs=POLL_MS, **options)
        .writeStream.foreachBatch(lambda batch, _: seen.extend(batch.collect()))
        .option("checkpointLocation", str(checkpoint))
        .start()
    )


def test_records_of_any_partition_and_topic_and_of_partitions_added_meanwhile_are_seen(
    spark: SparkSession, log: Log, tmp_path: Path, seen: list[Row]
) -> None:
    log.create("few", 2)
    log.create("wide", 40)
    query = started(spark, log, "few,wide", tmp_path / "c", seen, metadataRefreshMs=500)
    try:
        log.post("wide", {"partition": 0, "value": "first"})
        until(log, lambda: len(seen) == 1, "the query runs", 60)
        time.sleep(3 * POLL_MS / 1000)  # it is idle now: its waits ended, and began again
        for topic, partition in (("wide", 39), ("few", 1)):
            count = len(seen)
            log.post(topic, {"partition": partition, "value": 1})
            until(log, lambda count=count: len(seen) == count + 1, f"{topic}-{partition} is seen")  # type: ignore[misc]
        log.grow("wide", 43)
        log.post("wide", {"partition": 42, "value": "new"})
        until(log, lambda: len(seen) == 4, "a record of an added partition is seen")
    finally:
        query.stop()
    assert query.exception() is None
    assert {(row.topic, row.partition) for row in seen} == {
        ("wide", 0), ("wide", 39), ("few", 1), ("wide", 42)
    }  # fmt: skip


@contextmanager
def driver(log: Log, topics: str, **options: object) -> Iterator[Driver]:
    """The planner of a stream, without Spark."""
    given = {"url": log.url, "subscribe": topics, **{k: str(v) for k, v in options.items()}}
    planner = Driver(source_options(given, {}, streaming=True))
    yield planner
    planner.cluster.close()


def test_an_idle_query_sends_at_most_two_requests_a_second_for_all_its_partitions(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create("idle-a", 50)
    log.create("idle-b", 14)
    asked: list[str] = []
    real_run = Cluster.run

    def run(cluster: Cluster, call: Call[Any], *, retry_s: float | None = None) -> Any:
        asked.append(call.request.path.partition("?")[0].rpartition("/")[2])
        return real_run(cluster, call, retry_s=retry_s)

    with driver(log, "idle-a,idle-b") as planner:
        begin = planner.initial()
        assert planner.latest(begin) == begin
        monkeypatch.setattr(Cluster, "run", run)
        began = time.monotonic()
        while time.monotonic() - began < IDLE_S:
            assert planner.latest(begin) == begin
        took_s = time.monotonic() - began
        assert 2 <= asked.count("records:poll") <= took_s + 1, "each of them waited"
        assert len(asked) <= 2 * took_s, asked
        at = time.monotonic()
        log.post("idle-a", {"partition": 49, "value": 1})
        end = planner.latest(begin)
        assert end["idle-a"].partitions[49] == NextOffset(1, 0)
        assert time.monotonic() - at < 1


def test_a_limit_cuts_with_the_epoch_that_the_log_has(log: Log) -> None:
    log.create("limited", 1)
    log.post("limited", *({"value": n} for n in range(10)))
    for is_ended in (False, True):
        with driver(log, "limited", startingOffsets="earliest") as planner:
            begin = planner.initial()
            assert begin["limited"].partitions == {0: NextOffset(0)}
            if is_ended:
                planner.set_target()
            assert planner.latest(begin, 4)["limited"].partitions == {0: NextOffset(4, 0)}
            assert planner.latest(begin)["limited"].partitions == {0: NextOffset(10, 0)}
