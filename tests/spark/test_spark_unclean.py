"""A query behind a real unclean election, of which its position is no longer true (KIP-320)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from tests.support.live_cluster import LiveCluster
from tests.support.spark_log import Log, run_to_the_end
from tests.support.unclean_elections import Readers, TwoReplicas, cut_log, replaced_log

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession
    from pyspark.sql.streaming import StreamingQuery

FAILS_S = 30

Records = list[tuple[str, int, bytes]]
"""(topic, offset, value), sorted."""


def records(rows: Sequence[Row]) -> Records:
    return sorted((row.topic, row.offset, bytes(row.value)) for row in rows)


def in_log(log: Log, topic: str, offsets: range) -> Records:
    """Return the records at these offsets as a direct fetch reads them."""
    held = log.read(topic, 1)
    return [(topic, offset, held[0, offset]["value"]) for offset in offsets]


@pytest.mark.usefixtures("restarted")
@pytest.mark.parametrize(
    ("name", "elections", "read", "lost", "left"),
    [
        ("cut", cut_log, 100, r"offsets 80 to 99,.*the log was truncated", range(80, 120)),
        pytest.param(
            "replaced",
            replaced_log,
            70,
            r"offsets 0 to 69,.*the log diverged",
            range(70, 95),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["cut", "replaced"],
)
def test_invariant_g16_a_query_fails_behind_an_unclean_election_or_goes_on_where_logs_differ(
    spark: SparkSession,
    log: Log,
    tmp_path: Path,
    name: str,
    elections: Callable[[LiveCluster, str, Readers], Coroutine[Any, Any, None]],
    read: int,
    lost: str,
    left: range,
) -> None:
    """One query runs during the election; the next goes on from its checkpoint behind the loss."""
    beside = f"beside-{name}"  # of the same query; no election touches it
    log.create(beside, 1)
    log.post(beside, *({"value": n} for n in range(3)))
    topics, checkpoint = f"{name},{beside}", tmp_path / "c"
    seen: list[Row] = []
    queries: list[StreamingQuery] = []

    async def read_to_end(topic: TwoReplicas) -> None:
        stream = log.load_stream(spark, topics).writeStream
        stream = stream.foreachBatch(lambda batch, _: seen.extend(batch.collect()))
        queries.append(stream.option("checkpointLocation", str(checkpoint)).start())
        await topic.cluster.until(lambda: len(seen) == read + 3, "all is read", 60)

    reason = (
        rf"(?s)partition 0 of topic {name}: {lost}.*"
        rf"failOnDataLoss=false goes on at offset {left.start}\b"
    )
    try:
        asyncio.run(elections(log.cluster, name, read_to_end))
        with pytest.raises(PySparkException, match=reason):
            queries[0].awaitTermination(FAILS_S)
    finally:
        for query in queries:
            query.stop()
    log.post(beside, *({"value": n} for n in range(3, 5)))
    assert len(seen) == read + 3, "nothing behind the loss"
    rest: list[Row] = []
    run_to_the_end(log.load_stream(spark, topics, failOnDataLoss=False), checkpoint, rest.extend)
    assert records(rest) == in_log(log, beside, range(3, 5)) + in_log(log, name, left)
