"""Cost to acks=all while a new replica is filled beside it: alone, unthrottled, throttled.

``python -m benchmarks.catch_up [--megabytes 1024] [--rate 20]``. A topic of one partition is moved
to a broker that lacks it (Kafka's reassignment), while one connection writes one record after the
other to another partition with the same leader, all three brokers in sync.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp

from benchmarks.metadata import calm_product
from benchmarks.product import JSON_V2
from benchmarks.report import Row, at_most, machine, missed, percentile, table

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from benchmarks.product import Product

FILLED, BESIDE = "filled", "beside"
RECORDS_PER_BODY = 1_000
RECORD_BYTES = 1_000
FILLERS = 4
ALONE_S = 5.0
THROTTLED_S = 10.0
WHOLE_LIMIT_S = 120.0
POLL_S = 0.1
MB = 1 << 20


@dataclass(frozen=True, slots=True)
class Latencies:
    """Latencies of one phase, in milliseconds."""

    millis: list[float]
    seconds: float

    def text(self) -> str:
        """Return p50, p99 and the worst as text."""
        p50, p99 = percentile(self.millis, 0.5), percentile(self.millis, 0.99)
        return f"{p50:.1f} / {p99:.1f} / {max(self.millis):.0f} ms"


async def measure(cluster: Product, megabytes: int, rate_mb: int) -> list[Row]:
    """Run the three phases on one cluster."""
    base = f"{cluster.now().brokers[0].url}/v3/clusters/{cluster.now().cluster_id}"
    async with aiohttp.ClientSession(raise_for_status=True) as session:
        await _create(session, base, FILLED, [1, 2], flush="os")
        await _create(session, base, BESIDE, [1, 2, 3], flush="ack")
        url = cluster.now().brokers[0].url
        await _fill(session, url, megabytes)
        await asyncio.to_thread(os.sync)  # else the disk is busy with the filled data for seconds
        alone = await _write(session, url, asyncio.sleep(ALONE_S))
        free = await _write(session, url, _move(session, base, [1, 3]))
        await _throttle(session, base, rate_mb * MB)
        await _start_move(session, base, [1, 2])
        held = await _write(session, url, asyncio.sleep(THROTTLED_S))
        left = await _left(session, base)
    moved_mb = megabytes - left / MB * RECORD_BYTES  # offsets are records
    return [
        Row(what="acks=all alone: p50 / p99 / worst", product=alone.text()),
        Row(
            what=f"while a replica of {megabytes} MB is filled, no throttle",
            product=free.text(),
            value=percentile(free.millis, 0.99),
            budget=at_most(250, " ms"),
            note=f"filled and in sync after {free.seconds:.1f} s, "
            f"{megabytes / free.seconds:.0f} MB/s",
        ),
        Row(
            what=f"while one is filled at {rate_mb} MB/s",
            product=held.text(),
            value=percentile(held.millis, 0.99),
            budget=at_most(50, " ms"),
            note=f"{moved_mb / held.seconds:.1f} MB/s of records in {held.seconds:.1f} s",
        ),
    ]


async def _create(
    session: aiohttp.ClientSession, base: str, name: str, replicas: list[int], *, flush: str
) -> None:
    body = {
        "topic_name": name,
        "replicas_assignments": {"0": replicas},
        "configs": [{"name": "flush", "value": flush}],
    }
    await (await session.post(f"{base}/topics", json=body)).read()


async def _fill(session: aiohttp.ClientSession, url: str, megabytes: int) -> None:
    record = b'{"value":"' + b"x" * RECORD_BYTES + b'"}'
    body = b'{"records":[' + b",".join([record] * RECORDS_PER_BODY) + b"]}"
    left = megabytes * MB // (RECORD_BYTES * RECORDS_PER_BODY)

    async def some() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            headers = {"Content-Type": JSON_V2}
            await (
                await session.post(
                    f"{url}/topics/{FILLED}/partitions/0", data=body, headers=headers
                )
            ).read()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(FILLERS):
            tasks.create_task(some())


async def _write(
    session: aiohttp.ClientSession, url: str, until: Coroutine[Any, Any, None]
) -> Latencies:
    """Write one record after the other until `until` completes; return the latencies."""
    millis: list[float] = []
    began = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        done = tasks.create_task(until)
        await _write_on(session, url, millis, done)
    return Latencies(millis, time.monotonic() - began)


async def _write_on(
    session: aiohttp.ClientSession, url: str, millis: list[float], done: asyncio.Task[None]
) -> None:
    while not done.done():
        sent = time.monotonic()
        answer = await session.post(
            f"{url}/topics/{BESIDE}/partitions/0",
            data=b'{"records":[{"value":1}]}',
            headers={"Content-Type": JSON_V2},
        )
        await answer.read()
        millis.append((time.monotonic() - sent) * 1000)


async def _start_move(session: aiohttp.ClientSession, base: str, replicas: list[int]) -> None:
    url = f"{base}/topics/{FILLED}/partitions/0/reassignment"
    await (await session.post(url, json={"replicas": replicas})).read()


async def _move(session: aiohttp.ClientSession, base: str, replicas: list[int]) -> None:
    await _start_move(session, base, replicas)
    async with asyncio.timeout(WHOLE_LIMIT_S):
        while True:
            answer = await session.get(f"{base}/topics/{FILLED}/partitions/0")
            if sorted((await answer.json())["isr"]) == replicas:
                return
            await asyncio.sleep(POLL_S)


async def _left(session: aiohttp.ClientSession, base: str) -> int:
    """Return the number of offsets that the new replica lacks."""
    answer = await session.get(f"{base}/topics/{FILLED}/partitions/0/reassignment")
    moving = await answer.json()
    return int(max(row["lag"] for row in moving["progress"] if not row["is_in_sync"]))


async def _throttle(session: aiohttp.ClientSession, base: str, rate: int) -> None:
    body = {"data": [{"name": "leader.replication.throttled.rate", "value": str(rate)}]}
    await (await session.post(f"{base}/broker-configs:alter", json=body)).read()


async def run(megabytes: int, rate_mb: int) -> list[Row]:
    """Run the phases on a fresh cluster."""
    async with calm_product() as cluster:
        return await measure(cluster, megabytes, rate_mb)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.catch_up", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1_024)
    parser.add_argument("--rate", type=int, default=20, help="of the throttle, MB/s")
    said = parser.parse_args(arguments)
    note = machine()
    rows = asyncio.run(run(said.megabytes, said.rate))
    print(note, table(rows), missed(rows), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
