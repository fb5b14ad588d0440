"""Spark leg of the demo: a query from the flights into a second topic, checked by recomputation."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from chaos.checkers.delays import check_delays
from chaos.cluster import ClusterError
from chaos.deadline import within
from chaos.demo.context import TOPIC
from chaos.http import NDJSON

if TYPE_CHECKING:
    from pathlib import Path

    from chaos.cluster import ClusterFile
    from chaos.demo.context import DemoContext
    from chaos.history import Line
    from chaos.http import Http

PIPELINE = "spark_source.pipelines.flights"
RESULTS = "delays"
SPARK_DEADLINE_S = 240.0
"""Deadline of the query: some 30 s on two quiet cores, its start included; much more on busy ones.
"""
TABLE_LINES = 9
READ_MAX_BYTES = 4 << 20


async def play(stage: DemoContext) -> None:
    """Run the query as a user would, show its table, and check the topic of results."""
    held = stage.held
    assert held is not None, "the legs before have read the topic back"
    began = time.monotonic()
    stage.screen.say(f"Spark: delays per carrier and month, from {TOPIC} into topic {RESULTS}")
    table = await _query(stage.now(), stage.directory)
    stage.screen.say(f"Spark answered in {time.monotonic() - began:.1f} s")
    lines = table.splitlines()
    for line in lines[:TABLE_LINES]:
        stage.screen.say(f"    {line}")
    if len(lines) > TABLE_LINES:
        stage.screen.say(f"    … {len(lines) - TABLE_LINES} more")
    flights = [line for lines_of in held.partitions.values() for line in lines_of]
    found = check_delays(flights, await _results(stage.http, stage.now().brokers[-1].url))
    stage.judge(replace(found, name=f"Spark: {found.name}"))


async def _results(http: Http, broker: str) -> list[Line]:
    described = await http.get_json(f"{broker}/topics/{RESULTS}")
    return [
        line
        for one in described["partitions"]
        for line in await http.read_partition(
            broker, RESULTS, one["partition"], accept=NDJSON, max_bytes=READ_MAX_BYTES
        )
    ]


async def _query(now: ClusterFile, directory: Path) -> str:
    """Run the pipeline and return the table that it printed."""
    urls = ",".join(node.url for node in now.brokers)
    errors = directory / "spark.err"
    with errors.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            PIPELINE,
            *("--url", urls, "--from", TOPIC, "--to", RESULTS),
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
    try:
        async with within(SPARK_DEADLINE_S, "Spark answers"):
            table, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        last = errors.read_text(errors="replace").strip().splitlines()[-1:]
        msg = f"Spark ended with {process.returncode}: {''.join(last)} (see {errors})"
        raise ClusterError(msg)
    return table.decode()
