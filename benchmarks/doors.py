"""The REST doors beside their budgets: streamed produce, a group's read, and what waits.

`streamed` writes over one connection of v3 ``records``, as fast as receipts come and one record at
a time. `group_read` compares reads of a consumer instance with direct fetches of the same records.
`waiting` counts what idle instances, waiting reads and reads of instances hold, and what they cost
others.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import orjson

from benchmarks.processes import memory_mb
from benchmarks.product import JSON_V2, server_pids
from benchmarks.product import product as new_product
from benchmarks.report import Row, at_least, at_most, percentile

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from benchmarks.product import Product
    from chaos.cluster import Node

STREAM_BUDGET = at_least(50_000, " records/s")
SINGLE_BUDGET = at_most(3, " ms")
READ_BUDGET = at_most(3, " × a direct fetch")
WAITING_BUDGET = at_most(60, " MB")
VALUE: Final = "v" * 100
RECORD: Final = orjson.dumps({"value": {"type": "STRING", "data": VALUE}})
PIECE_RECORDS: Final = 500
"""Records that the client writes at once."""
READ_RECORDS: Final = 1_000
WAITING: Final = 5_000
CONNECTIONS: Final = 2 * WAITING
"""Connections that a broker of the benchmark takes from this one address."""
GROUPS: Final = 10
"""Groups of the idle instances; a group takes 1,000."""
AT_ONCE: Final = 32
"""Requests under way while instances are created or reads begin."""
PROBES: Final = 200
SETTLED_S: Final = 2.0
"""Time after which the last reads have begun to wait."""
CALL_S: Final = 15.0
MS: Final = 1_000


async def measure(product: Product, seconds: float, rounds: int) -> list[Row]:
    """Return the rows of all three."""
    return [
        *await streamed(product, seconds),
        await group_read(product, max(20, 20 * rounds)),
        *await waiting(),
    ]


# streamed produce


class _Stream:
    """One connection that streams records in and reads receipts out."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, node: Node, path: str) -> _Stream:
        """Connect and send the head; the answer's head comes with the first receipt."""
        parts = urlsplit(node.url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(
            f"POST {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
            "Transfer-Encoding: chunked\r\n\r\n".encode()
        )
        return cls(reader, writer)

    async def send(self, count: int) -> None:
        """Send records in one chunk; wait while the broker takes no more."""
        text = RECORD * count
        self._writer.write(b"%x\r\n%b\r\n" % (len(text), text))
        await self._writer.drain()

    async def receipts(self) -> int:
        """Return the number of receipts in what has arrived; at least one is awaited."""
        arrived = await self._reader.read(1 << 18)
        if not arrived:
            msg = "the stream was closed"
            raise ConnectionError(msg)
        return arrived.count(b'"error_code":200')

    async def close(self) -> None:
        """End the body and the connection."""
        self._writer.write(b"0\r\n\r\n")
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


async def streamed(product: Product, seconds: float) -> list[Row]:
    """Write over one connection: with many records under way, then one at a time."""
    topic = "streamed"
    await product.create_topic(topic)
    leader = await product.leader(topic)
    path = f"/v3/clusters/{product.now().cluster_id}/topics/{topic}/records"
    stream = await _Stream.open(leader, path)

    async def write_until(end: float) -> None:
        while time.monotonic() < end:
            await stream.send(PIECE_RECORDS)

    began, settled = time.monotonic(), 0
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(write_until(began + seconds))
        while time.monotonic() < began + seconds:
            settled += await stream.receipts()
        rate = settled / (time.monotonic() - began)
    await stream.close()
    single = await _Stream.open(leader, path)
    times: list[float] = []
    while sum(times) < seconds * MS:
        sent = time.monotonic()
        await single.send(1)
        while not await single.receipts():
            pass
        times.append((time.monotonic() - sent) * MS)
    await single.close()
    await product.delete_topic(topic)
    p50 = percentile(times, 0.5)
    return [
        Row(
            what="streamed v3 produce, one connection",
            product=f"{rate:,.0f} records/s",
            value=rate,
            budget=STREAM_BUDGET,
            note="acks=all, synced; the client is Python on the same cores",
        ),
        Row(
            what="streamed v3 produce, one record at a time",
            product=f"p50 {p50:.2f} ms",
            value=p50,
            budget=SINGLE_BUDGET,
            note=f"p99 {percentile(times, 0.99):.2f} ms",
        ),
    ]


# a group's read


async def group_read(product: Product, reads: int) -> Row:
    """Read the same records through an instance and directly, in turn."""
    topic = "group-read"
    await product.create_topic(topic, flush="os")
    leader = await product.leader(topic)
    rows: dict[str, Any] = {"records": [{"value": VALUE}] * READ_RECORDS}
    for _ in range(reads):
        await _post(product, f"{leader.url}/topics/{topic}", rows)
    base = f"{leader.url}/consumers/bench-read"
    settings = {
        "name": "one",
        "format": "json",
        "auto.offset.reset": "earliest",
        "auto.commit.enable": "false",
        "max.poll.records": READ_RECORDS,
    }
    await _post(product, base, settings)
    instance = f"{base}/instances/one"
    place = {"partitions": [{"topic": topic, "partition": 0}]}
    await _post(product, f"{instance}/assignments", place)
    fetch = f"{leader.url}/topics/{topic}/partitions/0/records"
    through_group: list[float] = []
    direct: list[float] = []
    for number in range(reads):
        records = await _timed(product, f"{instance}/records", through_group)
        assert records == READ_RECORDS, f"the instance read {records} records"
        offset = number * READ_RECORDS
        query = f"offset={offset}&end_offset={offset + READ_RECORDS}"
        assert await _timed(product, f"{fetch}?{query}", direct) == READ_RECORDS
    await product.http.call("DELETE", instance, timeout_s=CALL_S)
    await product.delete_topic(topic)
    group_ms, direct_ms = percentile(through_group, 0.5), percentile(direct, 0.5)
    return Row(
        what=f"v2 read of {READ_RECORDS:,} records by an instance",
        product=f"p50 {group_ms:.2f} ms",
        value=group_ms / direct_ms,
        budget=READ_BUDGET,
        note=f"the same records fetched directly: {direct_ms:.2f} ms",
    )


async def _timed(product: Product, url: str, times: list[float]) -> int:
    """Read once, note the time and return the number of records."""
    began = time.monotonic()
    answer = await product.http.call("GET", url, accept=JSON_V2, timeout_s=CALL_S)
    times.append((time.monotonic() - began) * MS)
    return answer.body.count(b'"offset":')


async def _post(product: Product, url: str, body: object) -> None:
    await product.http.call("POST", url, body, content_type=JSON_V2, timeout_s=CALL_S)


# what waits


async def waiting() -> list[Row]:
    """Hold idle instances, waiting reads, and both; compare the time of a write with that alone.

    Each has a cluster of its own, because a process keeps memory that it once used.
    """
    rows = []
    for hold in (_hold_instances, _hold_reads, _hold_group_reads):
        async with new_product("--set", f"max.connections.per.ip={CONNECTIONS}") as product:
            rows.append(await hold(product))
    return rows


async def _hold_instances(product: Product) -> Row:
    topic = "waiting"
    await product.create_topic(topic)
    leader = await product.leader(topic)
    write = f"{leader.url}/topics/{topic}/partitions/0"
    alone_ms = await _write_p50(product, write)
    before = _brokers_mb(product)
    await _many(lambda number: _create(product, leader, number))
    held_mb = _brokers_mb(product) - before
    beside_ms = await _write_p50(product, write)
    return _waiting_row(f"{WAITING:,} idle instances", held_mb, alone_ms, beside_ms)


async def _hold_reads(product: Product) -> Row:
    topic = "waiting"
    await product.create_topic(topic)
    leader = await product.leader(topic)
    path = f"/topics/{topic}/partitions/0/records?offset=0&timeout=60000"
    return await _hold_connections(product, leader, f"{WAITING:,} waiting reads", [path] * WAITING)


async def _hold_group_reads(product: Product) -> Row:
    """Hold a read of each of 5,000 instances of one partition, all through one broker."""
    topic = "waiting"
    await product.create_topic(topic)
    leader = await product.leader(topic)
    place = {"partitions": [{"topic": topic, "partition": 0}]}

    async def create(number: int) -> None:
        instance = await _create(product, leader, number)
        await _post(product, f"{leader.url}{instance}/assignments", place)

    await _many(create)
    paths = [f"{_instance(number)}/records?timeout=60000" for number in range(WAITING)]
    what = f"{WAITING:,} waiting reads of instances"
    return await _hold_connections(product, leader, what, paths)


async def _hold_connections(product: Product, node: Node, what: str, paths: list[str]) -> Row:
    """Hold a waiting read of each path; a write to another topic leaves the reads waiting."""
    await product.create_topic("beside")
    other = await product.leader("beside")
    write = f"{other.url}/topics/beside/partitions/0"
    alone_ms = await _write_p50(product, write)
    before = _brokers_mb(product)
    readers = [await _waiting_read(node, path) for path in paths]
    try:
        await asyncio.sleep(SETTLED_S)
        held_mb = _brokers_mb(product) - before
        beside_ms = await _write_p50(product, write)
    finally:
        for writer in readers:
            writer.close()
    return _waiting_row(what, held_mb, alone_ms, beside_ms)


def _instance(number: int) -> str:
    """Return the path of an instance; the instances are in `GROUPS` groups."""
    return f"/consumers/idle-{number % GROUPS}/instances/i{number}"


async def _create(product: Product, node: Node, number: int) -> str:
    """Create an instance and return its path."""
    path = _instance(number)
    group, _, name = path.partition("/instances/")
    await _post(product, f"{node.url}{group}", {"name": name})
    return path


def _waiting_row(what: str, held_mb: float, alone_ms: float, beside_ms: float) -> Row:
    return Row(
        what=what,
        product=f"{held_mb:.0f} MB",
        value=held_mb,
        budget=WAITING_BUDGET,
        note=f"all brokers; a write takes {beside_ms:.2f} ms (p50), without them {alone_ms:.2f} ms",
    )


def _brokers_mb(product: Product) -> float:
    pids = server_pids(product.now())
    return sum(memory_mb(pid)[0] for name, pid in pids.items() if name.startswith("broker"))


async def _many(call: Callable[[int], Awaitable[object]]) -> None:
    """Make all calls, `AT_ONCE` at a time."""
    numbers = iter(range(WAITING))

    async def some() -> None:
        for number in numbers:
            await call(number)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(AT_ONCE):
            tasks.create_task(some())


async def _waiting_read(node: Node, path: str) -> asyncio.StreamWriter:
    """Begin a read that finds nothing and waits for a minute."""
    parts = urlsplit(node.url)
    _, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
    return writer


async def _write_p50(product: Product, url: str) -> float:
    times: list[float] = []
    for _ in range(PROBES):
        began = time.monotonic()
        await _post(product, url, {"records": [{"value": 1}]})
        times.append((time.monotonic() - began) * MS)
    return percentile(times, 0.5)
