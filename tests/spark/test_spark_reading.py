"""spark.read and spark.readStream against a real cluster."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from tests.support.spark_log import Log, places, run_to_the_end

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

KAFKA_SCHEMA = [
    ("key", "binary"),
    ("value", "binary"),
    ("topic", "string"),
    ("partition", "int"),
    ("offset", "bigint"),
    ("timestamp", "timestamp"),
    ("timestampType", "int"),
]


def numbered(first: int, count: int) -> list[dict[str, Any]]:
    return [{"key": f"k{n}", "value": {"n": n}} for n in range(first, first + count)]


def test_a_batch_read_is_what_curl_reads(spark: SparkSession, log: Log) -> None:
    log.create("mixed")
    log.post("mixed", *numbered(0, 30), {"value": None}, {"key": {"value": 1}, "value": [1, "ü"]})
    log.post("mixed", {"key": "AP8=", "value": "AAECAw=="}, {"value": None}, binary=True)
    log.post("mixed", {"key": 1, "value": 2, "timestamp": 123_456, "headers": [{"key": "h"}]})
    frame = log.load(spark, "mixed", includeHeaders=True)
    assert frame.drop("headers").dtypes == KAFKA_SCHEMA
    rows = frame.collect()
    expected = log.read("mixed")
    assert places(rows) == sorted(expected)
    assert len(expected) == 35
    for row in rows:
        record = expected[row.partition, row.offset]
        assert (row.topic, row.timestampType) == ("mixed", 0)
        assert none_or_bytes(row.key) == record["key"]
        assert none_or_bytes(row.value) == record["value"]
        assert round(row.timestamp.timestamp() * 1000) == record["timestamp"]
        headers = [{"key": one.key} for one in row.headers] if row.headers else None
        assert headers == ([{"key": "h"}] if "headers" in record else None)


def none_or_bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def test_offsets_named_in_part_columns_chosen_and_sql(spark: SparkSession, log: Log) -> None:
    log.create("partial")
    log.post("partial", *numbered(0, 60))
    held = sorted(log.read("partial"))
    options = {
        "startingOffsets": '{"partial":{"0":3}}',
        "endingOffsets": '{"partial":{"1":2,"2":-1}}',
    }
    found = log.load(spark, "partial", **options).collect()
    assert places(found) == [
        (partition, offset)
        for partition, offset in held
        if not (partition == 0 and offset < 3) and not (partition == 1 and offset >= 2)
    ]
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW partial USING quorumlog "
        f"OPTIONS (url '{log.url}', subscribe 'partial')"
    )
    (count,) = spark.sql("SELECT count(*) FROM partial WHERE partition = 0").collect()
    assert count[0] == sum(1 for partition, _ in held if partition == 0)
    few = spark.read.format("quorumlog").schema("offset bigint, value binary")
    assert few.option("url", log.url).option("subscribe", "partial").load().count() == len(held)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"subscribe": "nowhere"}, "topic nowhere does not exist"),
        ({"subscribe": "e", "startingOfsets": "latest"}, "did you mean startingOffsets"),
        (
            {"subscribe": "e", "url": "http://127.0.0.1:9", "retryTimeoutMs": 300},
            "no broker answers",
        ),
    ],
)
def test_errors_say_what_to_do(
    spark: SparkSession, log: Log, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(PySparkException, match=says):
        spark.read.format("quorumlog").options(**{"url": log.url, **options}).load().collect()


def test_available_now_ends_is_split_and_goes_on_from_its_checkpoint(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.create("stream")
    log.post("stream", *numbered(0, 50))
    seen: list[Row] = []
    frame = log.load_stream(spark, "stream", maxOffsetsPerTrigger=20)
    assert frame.dtypes == KAFKA_SCHEMA
    assert run_to_the_end(frame, tmp_path / "c", seen.extend) == [20, 20, 10]
    log.post("stream", *numbered(50, 15))
    assert run_to_the_end(frame, tmp_path / "c", seen.extend) == [15]
    assert places(seen) == sorted(log.read("stream"))
    assert run_to_the_end(frame, tmp_path / "c", seen.extend) == []
    newest = max((tmp_path / "c" / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
    kept = json.loads(newest.read_text().splitlines()[-1])
    assert kept["v"] == 2
    assert sum(offset for offset, _ in kept["topics"]["stream"]["p"].values()) == 65


def test_a_topic_created_anew_is_told_and_can_be_read_from_its_start(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.create("anew")
    log.post("anew", *numbered(0, 9))
    checkpoint = tmp_path / "c"
    assert run_to_the_end(log.load_stream(spark, "anew"), checkpoint, len) == [9]
    log.delete("anew")
    log.create("anew")
    log.post("anew", *numbered(0, 4))
    with pytest.raises(PySparkException, match="topic anew was deleted and created anew"):
        run_to_the_end(log.load_stream(spark, "anew"), checkpoint, len)
    frame = log.load_stream(spark, "anew", failOnDataLoss=False)
    assert run_to_the_end(frame, checkpoint, len) == [4]


def test_a_running_query_sees_a_new_record_soon_and_stops_at_once(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.create("live")
    seen: list[Row] = []
    query = (
        log.load_stream(spark, "live", longPollMs=30_000)
        .writeStream.foreachBatch(lambda batch, _: seen.extend(batch.collect()))
        .option("checkpointLocation", str(tmp_path / "c"))
        .start()
    )
    try:
        # The second is to come sooner than the long poll ends; the first waits for the start too.
        for count, deadline_s in ((1, 60), (2, 20)):
            log.post("live", *numbered(0, 1))
            arrived = log.cluster.until(
                lambda count=count: len(seen) == count, "it arrives", deadline_s
            )
            asyncio.run(arrived)
    finally:
        began = time.monotonic()
        query.stop()
    assert query.exception() is None
    assert time.monotonic() - began < 20, "the stop waited for the whole long poll"
