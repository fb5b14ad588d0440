"""df.write and df.writeStream against a real cluster, and queries under which a broker dies."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from spark_source.pipelines import flights
from tests.support.spark_log import Log

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def append(frame: DataFrame, log: Log, **options: Any) -> None:
    writer = frame.write.format("quorumlog").option("url", log.url)
    writer.options(**options).mode("append").save()


def test_bytes_come_back_as_they_were_written(spark: SparkSession, log: Log) -> None:
    log.create("bytes")
    rows = [(bytes([n, 255 - n]), bytes(range(n)), None) for n in range(40)]
    rows += [(None, b"no key", None), (b"tombstone", None, None), (b"", b"", 2), (b"p", b"1", 0)]
    frame = spark.createDataFrame(rows, "key binary, value binary, partition int")
    append(frame, log, topic="bytes")
    found = log.load(spark, "bytes").collect()
    written = [(key, value) for key, value, _ in rows]
    assert Counter((as_bytes(r.key), as_bytes(r.value)) for r in found) == Counter(written)
    for row in found:
        named = {as_bytes(key): where for key, _, where in rows if where is not None}
        key = as_bytes(row.key)
        if key is not None:
            assert row.partition == named.get(key, zlib.crc32(key) % 3)
    assert len(log.read("bytes")) == len(rows)


def as_bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def test_json_is_stored_as_json(spark: SparkSession, log: Log) -> None:
    log.create("json", 1)
    rows = [("UA", '{"delay": 1.50, "id": 12345678901234567890}'), ("AA", None)]
    frame = spark.createDataFrame(rows, "key string, value string").coalesce(1)
    append(frame, log, topic="json", valueFormat="json", keyFormat="string")
    url = f"{log.cluster.brokers[1].url}/topics/json/partitions/0/records?offset=0"
    answer = asyncio.run(log.cluster.ask("GET", url, headers={"Accept": "application/x-ndjson"}))
    assert answer.body.splitlines() == [
        '{"offset":0,"key":"UA","value":{"delay": 1.50, "id": 12345678901234567890}}',
        '{"offset":1,"key":"AA","value":null}',
    ]


def test_rows_go_to_the_topic_they_name(spark: SparkSession, log: Log) -> None:
    for topic in ("left", "right"):
        log.create(topic, 1)
    frame = spark.range(10).selectExpr(
        "cast(id AS string) AS value", "if(id % 2 = 0, 'left', 'right') AS topic"
    )
    append(frame, log)
    assert len(log.read("left", 1)) == len(log.read("right", 1)) == 5


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        (["id"], {"topic": "e"}, "column id bigint can't be written: expected value"),
        (["'x' AS value"], {}, "no topic is named"),
        (["'x' AS value"], {"topic": "e", "deliveryGuarantee": "exactly-once"}, "later version"),
        (["'x' AS value"], {"topic": "e", "valueFormat": "json"}, "a value is not JSON"),
    ],
)
def test_a_write_that_can_not_be_says_why(
    spark: SparkSession, log: Log, columns: list[str], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(PySparkException, match=says):
        append(spark.range(1).selectExpr(*columns), log, **options)


def test_a_stream_into_a_topic_is_at_least_once(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.create("in")
    log.create("out")
    log.post("in", *({"key": n, "value": [n]} for n in range(30)))
    query = (
        log.load_stream(spark, "in", maxOffsetsPerTrigger=12)
        .select("key", "value")
        .writeStream.format("quorumlog")
        .options(url=log.url, topic="out", valueFormat="json")
        .option("checkpointLocation", str(tmp_path / "c"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    out = Counter(record["value"] for record in log.read("out").values())
    assert out == Counter(b"[%d]" % n for n in range(30))


@pytest.mark.usefixtures("restarted")
def test_a_leader_killed_under_a_query_that_reads_and_writes_fails_nothing(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.create("stormy")
    log.create("shelter")
    log.post("stormy", *({"value": n} for n in range(400)))
    query = (
        log.load_stream(spark, "stormy", maxOffsetsPerTrigger=40)
        .select("value")
        .writeStream.format("quorumlog")
        .options(url=log.url, topic="shelter")
        .option("checkpointLocation", str(tmp_path / "c"))
        .start()
    )
    batches = [0]

    def progressed() -> bool:
        assert query.exception() is None
        last = query.lastProgress
        batches[0] = 0 if last is None else int(last["batchId"])
        return batches[0] >= 2

    try:
        asyncio.run(log.cluster.until(progressed, "two micro-batches", 60))
        for topic, first in (("stormy", 400), ("shelter", 600)):
            leader = asyncio.run(log.cluster.leader(topic, 0))
            asyncio.run(log.cluster.kill(f"broker-{leader}"))
            through = next(one.id for one in log.cluster.brokers if one.id != leader)
            write_through(log, "stormy", through, range(first, first + 200))
            query.processAllAvailable()
            log.cluster.start_node(f"broker-{leader}")
            asyncio.run(log.cluster.wait_healthy("shelter", 3, 30))
    finally:
        query.stop()
    assert query.exception() is None
    written = set(range(800))
    assert {int(one["value"]) for one in log.read("stormy").values()} == written
    assert {int(one["value"]) for one in log.read("shelter").values()} == written


def write_through(log: Log, topic: str, broker: int, numbers: range) -> None:
    """Until all are acknowledged: while there is no leader, nothing is written."""
    url = f"{log.cluster.url(broker)}/topics/{topic}"
    body = {"records": [{"value": number} for number in numbers]}
    kind = {"Content-Type": "application/vnd.kafka.json.v2+json"}

    async def written() -> bool:
        answer = await log.cluster.ask("POST", url, body, kind)
        return answer.status == 200 and all(
            one["error_code"] is None for one in answer.body["offsets"]
        )

    asyncio.run(log.cluster.until(written, "the numbers are written", 30))


def test_the_flights_pipeline_counts_right_in_one_go_and_in_two(
    spark: SparkSession, log: Log, tmp_path: Path
) -> None:
    log.create("flights")
    rows = [
        {"carrier": carrier, "month": 1 + n % 2, "dep_delay": None if n % 7 == 0 else n - 5}
        for n, carrier in enumerate(["AA", "UA", "9E"] * 20)
    ]
    first, second = rows[:40], rows[40:]
    for part, most in ((first, 25), (second, None)):
        log.post("flights", *({"key": row["carrier"], "value": row} for row in part))
        log.post("flights", {"key": "AA", "value": {"after": "restart"}})
        table = flights.delays(
            spark,
            log.url,
            "flights",
            "delays",
            checkpoint=str(tmp_path / "c"),
            max_offsets_per_trigger=most,
        )
    assert {(row["carrier"], row["month"]): row for row in table} == expected_delays(rows)
    assert json.loads(json.dumps(table)) == table
    assert "AA" in flights.as_text(table)


def expected_delays(rows: list[dict[str, Any]]) -> dict[tuple[str, int], dict[str, Any]]:
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for row in rows:
        place = (row["carrier"], row["month"])
        one = found.setdefault(
            place,
            {"carrier": place[0], "month": place[1], "flights": 0, "departed": 0, "delay": 0.0},
        )
        one["flights"] += 1
        if row["dep_delay"] is not None:
            one["departed"] += 1
            one["delay"] += row["dep_delay"]
    for one in found.values():
        one["average"] = pytest.approx(one["delay"] / one["departed"], abs=0.006)
    return found
