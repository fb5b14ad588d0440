"""Spark reads and writes a topic, beside Spark's own JSON file source on the same rows.

A separate process runs Spark (`benchmarks.spark_run`); its output is turned into rows here. Budgets
are multiples of Spark's Kafka connector, as measured when the design was made; its figures are from
another run, so they are fixed limits, not ratios of this run. The ratio of this run is to the file
source.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.processes import ROOT
from benchmarks.report import Budget, Row, at_least

if TYPE_CHECKING:
    from benchmarks.product import Product

TOPIC = "spark"
WRITTEN = "spark-written"
PARTITIONS = 4
ROWS = 1_000_000
QUICK_ROWS = 200_000
RUN_TIMEOUT_S = 900.0

KAFKA_STREAM_ROWS_PER_S = 510_000
KAFKA_TYPED_ROWS_PER_S = 350_000
KAFKA_WRITE_ROWS_PER_S = 105_000

CELLS: dict[str, tuple[str, str, Budget | None]] = {
    "batch": ("Spark batch read", "file_batch", None),
    "batch_typed": ("Spark batch read, typed columns", "file_batch", None),
    "stream": (
        "Spark stream read",
        "file_stream",
        at_least(2 * KAFKA_STREAM_ROWS_PER_S, " rows/s"),
    ),
    "typed": (
        "Spark stream read, typed columns",
        "file_stream",
        at_least(4 * KAFKA_TYPED_ROWS_PER_S, " rows/s"),
    ),
    "from_json": ("Spark stream read, from_json", "file_stream", None),
    "write": ("Spark batch write", "file_write", at_least(2 * KAFKA_WRITE_ROWS_PER_S, " rows/s")),
    "stream_write": ("Spark stream write, topic to topic", "file_write", None),
}
"""Cell → its description, the comparable cell of Spark's JSON files, the budget."""


async def measure(product: Product, rounds: int, *, quick: bool) -> list[Row]:
    """Measure every cell, the best of the rounds and of one before them that warms up the JVM."""
    for topic in (TOPIC, WRITTEN):
        await product.create_topic(topic, partitions=PARTITIONS)
    urls = ",".join(broker.url for broker in product.now().brokers)
    rows = QUICK_ROWS if quick else ROWS
    command = [sys.executable, "-m", "benchmarks.spark_run", urls, TOPIC, WRITTEN]
    # Blocking is intended: nothing else may run on this loop meanwhile.
    answer = subprocess.run(  # noqa: ASYNC221 see above
        [*command, str(rows), str(rounds + 1)],
        cwd=Path(ROOT),
        stdout=subprocess.PIPE,
        check=True,
        timeout=RUN_TIMEOUT_S,
    ).stdout
    figures: dict[str, Any] = json.loads(answer)
    return [_row(name, figures) for name in CELLS if name in figures["speeds"]]


def _row(name: str, figures: dict[str, Any]) -> Row:
    what, beside, budget = CELLS[name]
    speeds = figures["speeds"][name]
    floor = max(figures["speeds"][beside])
    best = max(speeds)
    return Row(
        what=what,
        product=f"{best:,.0f} rows/s",
        floor=f"{floor:,.0f} (JSON files)",
        value=best,
        budget=budget,
        note=f"{best / floor:.2f} × files; median of {len(speeds)}: "
        f"{statistics.median(speeds):,.0f}; {figures['rows']:,} rows of 100 bytes",
    )
