"""Tails: memory of a broker with a thousand that are idle, and the way of a record to one.

``python -m benchmarks.tails`` runs it alone. Tails and producer are connections of this process.
Their broker leads a third of the partitions, so most of what the tails wait for is led elsewhere.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from benchmarks.processes import cpu_seconds, memory_mb
from benchmarks.product import JSON_V2, product, server_pids
from benchmarks.report import Row, at_most, machine, table

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from benchmarks.product import Product

TAILS = 1_000
PARTITIONS = 6
TOPIC = "tailed"
RECORDS = 300
IDLE_S = 5.0
DEADLINE_S = 15.0
HEAD_END = b"\r\n\r\n"


@asynccontextmanager
async def _tail(url: str, path: str) -> AsyncIterator[asyncio.StreamReader]:
    """Open a tail and read its head; the body is chunks of lines."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode())
        head = await reader.readuntil(HEAD_END)
        if not head.startswith(b"HTTP/1.1 200 "):
            msg = f"no tail: {head!r}"
            raise RuntimeError(msg)
        yield reader
    finally:
        writer.close()


async def _idle(what: str, url: str, pid: int, paths: list[str]) -> Row:
    """Open tails at one broker and let them wait; a broker is used once, since memory stays."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(_tail(url, paths[0]))  # what the first one loads
        before = memory_mb(pid)[0]
        for path in paths[1:]:
            await stack.enter_async_context(_tail(url, path))
        used_s = cpu_seconds(pid)
        await asyncio.sleep(IDLE_S)
        held = memory_mb(pid)[0] - before
        cpu = (cpu_seconds(pid) - used_s) / IDLE_S * 100
    return Row(
        what=f"{TAILS:,} idle tails of {what}",
        product=f"{held:.0f} MB",
        value=held,
        budget=at_most(40, " MB"),
        note=f"memory of their broker; it used {cpu:.1f} % of a core meanwhile",
    )


async def _latency(product: Product, url: str, path: str, leader: str) -> list[float]:
    """Return the milliseconds from each acknowledgement to the record's arrival at a tail."""
    late: list[float] = []
    target = f"{leader}/topics/{TOPIC}/partitions/0"
    body = {"records": [{"value": "x" * 100}]}
    async with _tail(url, path) as reader:
        for _ in range(RECORDS):
            async with asyncio.TaskGroup() as tasks:
                arrival = tasks.create_task(_next_record(reader))
                await product.http.call(
                    "POST", target, body, content_type=JSON_V2, timeout_s=DEADLINE_S
                )
                acknowledged_s = time.perf_counter()
            late.append(max(0.0, (arrival.result() - acknowledged_s) * 1_000))
    return late


async def _next_record(reader: asyncio.StreamReader) -> float:
    while True:
        if b'"offset":' in await reader.readline():
            return time.perf_counter()


async def measure(product: Product) -> list[Row]:
    """Measure both, on a topic of its own."""
    await product.create_topic(TOPIC, partitions=PARTITIONS)
    leader = await product.leader(TOPIC)
    others = [node for node in product.now().brokers if node.id != leader.id]
    named = server_pids(product.now())
    pids = [named[f"broker {node.id}"] for node in others]
    one = f"/topics/{TOPIC}/partitions/%d/records?follow=true"
    each = [one % (number % PARTITIONS) for number in range(TAILS)]
    whole = f"/topics/{TOPIC}/records?follow=true"
    rows = [
        await _idle("one partition", others[0].url, pids[0], each),
        await _idle(f"{PARTITIONS} partitions", others[1].url, pids[1], [whole] * TAILS),
    ]
    other = others[0]
    for what, path in (("one partition", one % 0), (f"{PARTITIONS} partitions", whole)):
        late = await _latency(product, other.url, path, leader.url)
        p50, p99 = statistics.median(late), statistics.quantiles(late, n=100)[98]
        rows.append(
            Row(
                what=f"record acknowledged → at a tail of {what}",
                product=f"{p50:.1f} ms",
                value=p50,
                budget=at_most(20, " ms"),
                note=f"p50 of {RECORDS}; p99 {p99:.1f} ms; the tail's broker does not lead",
            )
        )
    await product.delete_topic(TOPIC)
    return rows


async def _run() -> list[Row]:
    async with product() as cluster:
        return await measure(cluster)


def main() -> int:
    """Measure and print."""
    note = machine()
    print(note, table(asyncio.run(_run())), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
