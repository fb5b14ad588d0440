"""Average departure delay and flights per carrier and month: from a topic, into a topic.

    python -m spark_source.pipelines.flights --url http://127.0.0.1:8082 --from flights --to delays

A streaming query (it reads everything present now, then ends) keeps the totals; each micro-batch
appends the rows it changed to the second topic through ``foreachBatch`` and the batch writer. That
is at least once: a micro-batch that Spark repeats appends its rows again, with the same totals. So
the last record of a key is valid, and the table is read back by that rule.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from contextlib import nullcontext
from os import environ
from typing import TYPE_CHECKING, Any

from spark_source.options import URL_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

VALUE = "carrier STRING, month INT, dep_delay DOUBLE"
"""Schema of a flight. A value without carrier or month is left out."""
ROW = "carrier STRING, month INT, flights BIGINT, departed BIGINT, delay DOUBLE, average DOUBLE"
COLUMNS = ("carrier", "month", "flights", "departed", "delay", "average")
NO_JAVA = (
    "Spark needs Java 17 or newer; on Debian and Ubuntu: apt-get install -y openjdk-17-jre-headless"
)
EXIT_USAGE = 2

Row = dict[str, Any]


def delays(
    spark: SparkSession,
    url: str,
    source: str,
    target: str,
    *,
    checkpoint: str,
    max_offsets_per_trigger: int | None = None,
) -> list[Row]:
    """Run the query over all that ``source`` holds now, and read the table back from ``target``.

    Args:
        spark: the session; see `spark_source.session`.
        url: brokers, separated by commas.
        source: topic of flights, each a JSON object.
        target: topic of results; made by the first write if it is not there.
        checkpoint: folder of the query. The same one again goes on where it ended; a new one
            counts from the first record.
        max_offsets_per_trigger: rows of a micro-batch; None takes all at once.

    Returns:
        `COLUMNS` by carrier and month: ``flights`` counts all, ``departed`` those with a delay
        (early: below zero), ``delay`` is the sum of their minutes, ``average`` that over departed.
    """
    reader = spark.readStream.format("quorumlog").option("url", url).option("subscribe", source)
    reader = reader.option("startingOffsets", "earliest")
    if max_offsets_per_trigger is not None:
        reader = reader.option("maxOffsetsPerTrigger", max_offsets_per_trigger)

    def append(changed: DataFrame, _batch: int) -> None:
        """Append the rows a micro-batch changed; at least once: a repeated batch appends again."""
        rows = changed.selectExpr(
            "concat(carrier, '-', month) AS key",
            f"to_json(struct({', '.join(COLUMNS)})) AS value",
        )
        writer = rows.write.format("quorumlog").option("url", url).option("topic", target)
        writer = writer.option("valueFormat", "json").option("keyFormat", "string")
        writer.mode("append").save()

    query = (
        totals(reader.load())
        .writeStream.outputMode("update")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .foreachBatch(append)
        .start()
    )
    query.awaitTermination()
    return read_back(spark, url, target)


def totals(flights: DataFrame) -> DataFrame:
    """Return `COLUMNS` computed from records of flights."""
    from pyspark.sql import functions as f

    parsed = flights.select(f.from_json(f.col("value").cast("string"), VALUE).alias("flight"))
    rows = parsed.select("flight.*").where("carrier IS NOT NULL AND month IS NOT NULL")
    summed = rows.groupBy("carrier", "month").agg(
        f.count(f.lit(1)).alias("flights"),
        f.count("dep_delay").alias("departed"),
        f.coalesce(f.sum("dep_delay"), f.lit(0.0)).alias("delay"),
    )
    return summed.withColumn("average", f.expr("round(try_divide(delay, departed), 2)"))


def read_back(spark: SparkSession, url: str, target: str) -> list[Row]:
    """Return the table in a topic of results: the last record of each key."""
    from pyspark.sql import functions as f

    records = spark.read.format("quorumlog").option("url", url).option("subscribe", target).load()
    # A key is always in one partition, so there its largest offset is its last record.
    last = records.groupBy("key").agg(f.max_by("value", "offset").alias("value"))
    parsed = last.select(f.from_json(f.col("value").cast("string"), ROW).alias("row"))
    table = parsed.select("row.*").orderBy("carrier", "month")
    return [row.asDict() for row in table.collect()]


def as_text(rows: Sequence[Row]) -> str:
    """Return the table as text for a person."""
    lines = [f"{'carrier':8}{'month':>6}{'flights':>9}{'departed':>10}{'average delay':>15}"]
    lines += [
        f"{row['carrier']:8}{row['month']:>6}{row['flights']:>9,}{row['departed']:>10,}"
        + (f"{row['average']:>11.2f} min" if row["average"] is not None else f"{'-':>15}")
        for row in rows
    ]
    return "\n".join(lines)


def has_java() -> bool:
    """Return True if Spark will find a Java."""
    return bool(environ.get("JAVA_HOME")) or shutil.which("java") is not None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m spark_source.pipelines.flights")
    parser.add_argument("--url", default=environ.get(URL_VARIABLE, "http://127.0.0.1:8082"))
    parser.add_argument("--from", dest="source", default="flights", help="topic of flights")
    parser.add_argument("--to", dest="target", default="delays", help="topic of results")
    parser.add_argument("--checkpoint", help="kept and gone on from; default: a new one each time")
    parser.add_argument("--max-offsets-per-trigger", type=int, help="rows of a micro-batch")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parsed_arguments = parser.parse_args(arguments)
    if not has_java():
        sys.stderr.write(NO_JAVA + "\n")
        return EXIT_USAGE
    from spark_source.presets import session

    spark = session("flights", quick=True)
    spark.sparkContext.setLogLevel("ERROR")
    kept = (
        nullcontext(parsed_arguments.checkpoint)
        if parsed_arguments.checkpoint
        else tempfile.TemporaryDirectory()
    )
    with kept as checkpoint:
        rows = delays(
            spark,
            parsed_arguments.url,
            parsed_arguments.source,
            parsed_arguments.target,
            checkpoint=checkpoint,
            max_offsets_per_trigger=parsed_arguments.max_offsets_per_trigger,
        )
        spark.stop()
    text = json.dumps(rows) if parsed_arguments.format == "json" else as_text(rows)
    sys.stdout.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
