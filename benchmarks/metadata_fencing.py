"""Fencings of live brokers under full load, counted in the metadata log itself (expected: none)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.load import produce_body, render_post
from benchmarks.metadata_log import MetadataLog
from benchmarks.processes import Load, Measured, run_load
from benchmarks.product import JSON_V2, product, server_pids, target
from benchmarks.report import Row, at_most

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.product import Product

TOPIC = "loaded"
PARTITIONS = 12
CONNECTIONS = 128
RECORDS = 100
VALUE_BYTES = 100
ROUND_S = 20.0
"""Length of a round; each has a new topic, so that the disk does not fill."""
GOOD = '"error_code":null'


async def measure(minutes: float) -> list[Row]:
    """Write in closed loops from 128 connections through all brokers: both cores are never idle."""
    rounds = max(1, round(minutes * 60 / ROUND_S))
    async with product() as cluster, MetadataLog(cluster).followed() as log:
        idle_before, all_before = _cpu_ticks()
        runs = [
            await _round(cluster, f"{TOPIC}-{number}", minutes * 60 / rounds)
            for number in range(rounds)
        ]
        idle_after, all_after = _cpu_ticks()
    idle = (idle_after - idle_before) / (all_after - all_before)
    return [fencing_row(log, runs, minutes=minutes, idle=idle)]


async def _round(cluster: Product, topic: str, seconds: float) -> Measured:
    await cluster.create_topic(topic, partitions=PARTITIONS)
    requests = [
        render_post(
            f"/topics/{topic}/partitions/{partition}",
            produce_body(RECORDS, VALUE_BYTES, partition),
            JSON_V2,
        )
        for partition in range(PARTITIONS)
    ]
    load = Load(
        targets=[target(broker) for broker in cluster.now().brokers],
        requests=requests,
        connections=CONNECTIONS,
        seconds=seconds,
        expect=GOOD,
    )
    run = await asyncio.to_thread(run_load, load, server_pids(cluster.now()))
    await cluster.delete_topic(topic)
    return run


def fencing_row(log: MetadataLog, runs: Sequence[Measured], *, minutes: float, idle: float) -> Row:
    """Return the row with the fencings of these runs; ``idle`` is the cores' idle share of time."""
    requests = sum(int(run.figures["requests"]) for run in runs)
    elections = sum(
        1
        for seen in log.seen
        if seen.record["type"] == "partition_change" and seen.record["leader_epoch"] > 0
    )
    problems = sorted({run.problem for run in runs if run.problem})
    note = (
        f"{requests * RECORDS / (minutes * 60):,.0f} records/s acknowledged by all replicas, "
        f"slowest {max(run.figures['worst_ms'] for run in runs):.0f} ms, cores idle "
        f"{idle * 100:.1f} % of the time, {elections} elections, {len(log.seen)} metadata records"
    )
    return Row(
        what=f"false fencings in {minutes:g} min at full load",
        product=str(len(log.fences())),
        value=len(log.fences()),
        budget=at_most(0, ""),
        note="; ".join([note, *problems]),
    )


def _cpu_ticks() -> tuple[int, int]:
    """Return (idle, all) ticks of the machine so far, over all cores."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return fields[3] + fields[4], sum(fields)
