"""Spark's side of the benchmark: ``URLS TOPIC WRITTEN ROWS ROUNDS`` → figures as JSON.

Spark generates the rows and writes them to files and to the topic, so that both hold the same.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from spark_source import session

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

VALUE = "id BIGINT, user STRING, page STRING, ms BIGINT, ok BOOLEAN"
TASKS = 4


class Run:
    """A Spark session, the places it reads and writes, and the measured figures."""

    def __init__(self, spark: SparkSession, urls: str, folder: Path, rows: int) -> None:
        self.spark = spark
        self.urls = urls
        self.folder = folder
        self.rows = rows
        self.speeds: dict[str, list[float]] = {}
        self.count = 0

    def timed(self, name: str, work: Callable[[], float]) -> None:
        """Run ``work`` and note its rows per second.

        ``work`` returns the seconds that count, or 0 for all of its time.
        """
        began = time.monotonic()
        counted = work()
        took = counted or time.monotonic() - began
        self.speeds.setdefault(name, []).append(self.rows / took)
        print(f"{name} {self.rows / took:,.0f} rows/s", file=sys.stderr, flush=True)

    def values(self) -> DataFrame:
        """Return rows with a key and a JSON value of about 100 bytes."""
        return self.spark.range(0, self.rows, 1, TASKS).selectExpr(
            "concat('\"user-', id % 1000, '\"') AS key",
            "to_json(named_struct('id', id, 'user', concat('user-', id % 1000), 'page', "
            "concat('/products/', id % 97, '/details'), 'ms', id * 7 % 5000, 'ok', id % 3 = 0)) "
            "AS value",
        )

    def table(self, topic: str, schema: str | None = None, **options: str) -> DataFrame:
        """Return the topic for a batch query."""
        reader = self.spark.read.format("quorumlog").option("url", self.urls)
        reader = reader.options(subscribe=topic, **options)
        return (reader if schema is None else reader.schema(schema)).load()

    def live(self, topic: str, schema: str | None = None, **options: str) -> DataFrame:
        """Return the topic for a streaming query."""
        reader = self.spark.readStream.format("quorumlog").option("url", self.urls)
        reader = reader.options(subscribe=topic, startingOffsets="earliest", **options)
        return (reader if schema is None else reader.schema(schema)).load()

    def batch(self, frame: DataFrame) -> float:
        frame.write.format("noop").mode("overwrite").save()
        return 0.0

    def stream(self, frame: DataFrame, sink: str = "noop", **options: str) -> float:
        """Return the seconds of the micro-batches: planning a query does not count as reading."""
        self.count += 1
        query = (
            frame.writeStream.format(sink)
            .options(**options)
            .option("checkpointLocation", str(self.folder / f"checkpoint-{self.count}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        triggers = [one for one in query.recentProgress if one["numInputRows"]]
        assert sum(one["numInputRows"] for one in triggers) == self.rows, triggers
        return float(sum(one["durationMs"]["triggerExecution"] for one in triggers) / 1000)

    def timed_write(self, topic: str) -> None:
        """Write existing rows into the topic."""
        rows = self.values().cache()
        rows.count()
        self.timed("write", lambda: self.write(rows, topic))
        self.timed("file_write", lambda: self.write_files(rows))
        rows.unpersist()

    def write_files(self, rows: DataFrame) -> float:
        self.count += 1
        rows.write.json(str(self.folder / f"written-{self.count}"))
        return 0.0

    def write(self, frame: DataFrame, topic: str) -> float:
        writer = frame.write.format("quorumlog").option("url", self.urls).option("topic", topic)
        writer.option("valueFormat", "json").mode("append").save()
        return 0.0


def fill(run: Run, topic: str) -> None:
    """Write the same rows as files and to the topic."""
    run.values().select("value").write.text(str(run.folder / "files"))
    run.timed_write(topic)


def parsed(frame: DataFrame) -> DataFrame:
    """Return the columns of the values, parsed as for any source."""
    from pyspark.sql import functions as f

    return frame.select(f.from_json(f.col("value").cast("string"), VALUE).alias("v")).select("v.*")


def measure(run: Run, topic: str, written: str, rounds: int) -> None:
    """Measure every cell in turn, round after round."""
    files = str(run.folder / "files")
    for _ in range(rounds):
        run.timed("file_batch", lambda: run.batch(run.spark.read.schema(VALUE).json(files)))
        run.timed("file_stream", lambda: run.stream(run.spark.readStream.schema(VALUE).json(files)))
        run.timed("batch", lambda: run.batch(run.table(topic)))
        run.timed("batch_typed", lambda: run.batch(run.table(topic, VALUE, valueFormat="json")))
        run.timed("stream", lambda: run.stream(run.live(topic)))
        run.timed("from_json", lambda: run.stream(parsed(run.live(topic))))
        run.timed("typed", lambda: run.stream(run.live(topic, schema=VALUE, valueFormat="json")))
        run.timed_write(written)
    moved = run.live(topic).select("key", "value")
    options = {"url": run.urls, "topic": written, "valueFormat": "json"}
    run.timed("stream_write", lambda: run.stream(moved, "quorumlog", **options))


def main() -> int:
    """Measure and print."""
    urls, topic, written, rows, rounds = sys.argv[1:]
    folder = Path(tempfile.mkdtemp(prefix="quorumlog-bench-"))
    spark = session("bench")
    spark.sparkContext.setLogLevel("ERROR")
    try:
        run = Run(spark, urls, folder, int(rows))
        fill(run, topic)
        measure(run, topic, written, int(rounds))
        spark.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({"rows": run.rows, "speeds": run.speeds}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
