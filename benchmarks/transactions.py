"""Transactions beside the plain produces that they are made of.

One-shots by the raw generator; staged rows, large commits and homes that are killed by tasks of
this process, whose requests hold 1,000 rows or are few. Every figure has plain produces of the same
rows, through the same brokers and in the same run, beside it.
"""

from __future__ import annotations

import asyncio
import signal
import statistics
import sys
import time
import uuid
from typing import TYPE_CHECKING, Final

import orjson

from benchmarks import beside_kafka
from benchmarks.load import produce_body, render_post
from benchmarks.processes import Load, Measured, run_load
from benchmarks.product import JSON_V2, server_pids, target
from benchmarks.report import Row, at_least, at_most, percentile, ratio_at_least

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from benchmarks.product import Product
    from chaos.cluster import Node

TOPIC: Final = "transactions"
PARTITIONS: Final = 6
CONNECTIONS: Final = 64
CROWD: Final = 1_000
CROWD_S: Final = 1.0
"""Short, as each transaction is an id that a home loads when its leader is killed."""
VALUE_BYTES: Final = 100
NUMBER: Final = "000000000000"
"""Place of the number that makes each Idempotency-Key another one."""
KILL_TOPIC: Final = "transactions-killed"
JSON: Final = "application/json"
GOOD_PRODUCE: Final = '"error_code":null'
GOOD_ONE_SHOT: Final = '"KafkaTransaction"'
"""In the beginning of an answer; only one that is complete has the status 200."""

CHUNK_ROWS: Final = 1_000
COMMIT_ROWS: Final = 100_000
COMMITS: Final = 4
"""Transactions of a round of staged rows."""
LARGE_ROWS: Final = 1_000_000
"""Rows of the large commit: 100 MB."""
CHUNKS_AT_ONCE: Final = 16
"""Produces or chunks of 1,000 rows under way."""
BESIDE_CONNECTIONS: Final = 8
"""Connections of the plain writer beside staged load."""
KILL_WRITERS: Final = 32
KILL_BEFORE_S: Final = 1.0
REPEAT_EVERY_S: Final = 0.02
CALL_S: Final = 70.0
TIMEOUT_MS: Final = 60_000
MS: Final = 1_000

LATENCY_BUDGET = at_most(3, " × a plain produce")
RATE_BUDGET = at_least(2_000, "/s")
STAGED_BUDGET = ratio_at_least(0.45)
LARGE_BUDGET = at_most(1.5, " s")
KILLED_BUDGET = at_most(500, " ms behind the election")
BESIDE_BUDGET = at_most(2, " × without")


async def measure(product: Product, seconds: float, rounds: int, trials: int) -> list[Row]:
    """Return all rows of the section, the fault last."""
    await product.create_topic(TOPIC, partitions=PARTITIONS)
    await product.create_topic(KILL_TOPIC, partitions=PARTITIONS)
    rows: list[Row] = []

    def add(row: Row) -> None:
        print(row.what, row.product, row.floor, row.note, sep=" | ", file=sys.stderr, flush=True)
        rows.append(row)

    for row in await one_shots(product, seconds, rounds):
        add(row)
    stager = Stager(product)
    staged, plain = await _staged_rates(stager, rounds)
    add(_staged_row(staged, plain))
    add(await large_commit(stager, rounds, statistics.median(plain)))
    halves = statistics.median(staged) / 2, statistics.median(plain) / 2
    add(await beside_staged(product, seconds, *halves))
    await product.delete_topic(TOPIC)
    add(await home_killed(product, trials))
    return rows


# one-shots, by the raw generator


def _one_shots(cluster_id: str, *, keyed: bool = True) -> list[bytes]:
    """Return a request for each pair of neighbouring partitions, a row for each of the two."""
    run = uuid.uuid4().hex
    requests = []
    for one in range(PARTITIONS):
        pair = (one, (one + 1) % PARTITIONS)
        rows = [{"value": "v" * (VALUE_BYTES - 2), "partition": number} for number in pair]
        requests.append(
            render_post(
                f"/v3/clusters/{cluster_id}/transactions",
                orjson.dumps({"topics": [{"topic_name": TOPIC, "records": rows}]}),
                JSON,
                f"Idempotency-Key: {run}-{one}-{NUMBER}\r\n" if keyed else "",
            )
        )
    return requests


def _plain(records: int) -> list[bytes]:
    body = produce_body(records, VALUE_BYTES, 1)
    return [
        render_post(f"/topics/{TOPIC}/partitions/{number}", body, JSON_V2)
        for number in range(PARTITIONS)
    ]


def _brokers(product: Product) -> dict[str, int]:
    pids = server_pids(product.now())
    return {name: pid for name, pid in pids.items() if name.startswith("broker")}


async def _loads(
    product: Product, connections: int, seconds: float, rounds: int
) -> dict[str, list[Measured]]:
    """Return runs of plain one-row produces and of one-shots, in turn, through all brokers."""
    now = product.now()
    kinds = {
        "plain": (_plain(1), GOOD_PRODUCE, ""),
        "keyed": (_one_shots(now.cluster_id), GOOD_ONE_SHOT, NUMBER),
        "keyless": (_one_shots(now.cluster_id, keyed=False), GOOD_ONE_SHOT, ""),
    }
    found: dict[str, list[Measured]] = {kind: [] for kind in kinds}
    for number in range(rounds):
        for kind, (requests, expect, placeholder) in kinds.items():
            if kind == "keyless" and number:
                continue  # a figure beside the others
            load = Load(
                targets=[target(broker) for broker in now.brokers],
                requests=requests,
                connections=connections,
                seconds=seconds,
                expect=expect,
                placeholder=placeholder,
            )
            found[kind].append(await asyncio.to_thread(run_load, load, _brokers(product)))
    return found


async def one_shots(product: Product, seconds: float, rounds: int) -> list[Row]:
    """Compare one-shots with plain one-row produces, and with transactional producers of Kafka."""
    one = await _loads(product, 1, seconds, rounds)
    many = await _loads(product, CONNECTIONS, seconds, rounds)
    crowd = await _loads(product, CROWD, CROWD_S, 1)
    p50_ms, per_s = _median(one["keyed"], "p50_ms"), _median(many["keyed"], "requests_per_s")
    rows = [_latency(one, p50_ms), _rate(many, per_s), _crowd(crowd)]
    kafka = await asyncio.to_thread(
        beside_kafka.kafka_transactions, CONNECTIONS, 2 * seconds, rounds
    )
    if kafka is not None:
        rows.append(
            Row(
                what="the same through Kafka: transactional producers of confluent-kafka",
                product=f"p50 {p50_ms:.2f} ms; {per_s:,.0f}/s",
                floor=f"{kafka.one_p50_ms:.1f} ms; {kafka.many_per_s:,.0f}/s",
                note=f"one producer; {CONNECTIONS} of them; {per_s / kafka.many_per_s:.1f} × as "
                "many, and Kafka syncs nothing",
            )
        )
    return rows


def _latency(runs: Mapping[str, list[Measured]], p50_ms: float) -> Row:
    floor = _median(runs["plain"], "p50_ms")
    return Row(
        what="one-shot of two targets, one connection",
        product=f"p50 {p50_ms:.2f} p99 {_median(runs['keyed'], 'p99_ms'):.2f} ms",
        floor=f"{floor:.2f} / {_median(runs['plain'], 'p99_ms'):.2f}",
        value=p50_ms / floor,
        budget=LATENCY_BUDGET,
        note=f"without a key {_median(runs['keyless'], 'p50_ms'):.2f} ms; {_note(runs)}",
    )


def _rate(runs: Mapping[str, list[Measured]], per_s: float) -> Row:
    floor = _median(runs["plain"], "requests_per_s")
    return Row(
        what=f"one-shots of 2 rows on 2 partitions, {CONNECTIONS} connections",
        product=f"{per_s:,.0f}/s",
        floor=f"{floor:,.0f}",
        value=per_s,
        budget=RATE_BUDGET,
        note=f"without a key {_median(runs['keyless'], 'requests_per_s'):,.0f}/s; {_note(runs)}",
    )


def _crowd(runs: Mapping[str, list[Measured]]) -> Row:
    return Row(
        what=f"the same, {CROWD} connections",
        product=f"{_median(runs['keyed'], 'requests_per_s'):,.0f}/s",
        floor=f"{_median(runs['plain'], 'requests_per_s'):,.0f}",
        note=f"without a key {_median(runs['keyless'], 'requests_per_s'):,.0f}/s; {_note(runs)}",
    )


def _median(runs: Iterable[Measured], figure: str) -> float:
    return statistics.median(run.figures[figure] for run in runs)


def _note(runs: Mapping[str, list[Measured]]) -> str:
    """Return the CPU of all brokers for a request of each kind, and what went wrong."""
    cpu_ms = {
        kind: MS
        * sum(sum(run.cpu_s.values()) for run in group)
        / max(1, sum(run.figures["requests"] for run in group))
        for kind, group in runs.items()
    }
    shown = ", ".join(f"{kind} {cost:.2f}" for kind, cost in cpu_ms.items())
    problems = (run.problem for group in runs.values() for run in group if run.problem)
    return "; ".join([f"ms of CPU of all brokers a request: {shown}", *problems])


# staged rows


class Stager:
    """Writes rows through all brokers in turn, plain or staged, some requests at once."""

    def __init__(self, product: Product) -> None:
        now = product.now()
        self._http = product.http
        self._urls = [broker.url for broker in now.brokers]
        self._cluster = f"/v3/clusters/{now.cluster_id}"
        self._body = produce_body(CHUNK_ROWS, VALUE_BYTES, 1)
        self._gate = asyncio.Semaphore(CHUNKS_AT_ONCE)

    async def write(self, number: int, headers: Mapping[str, str] | None = None) -> None:
        """Send 1,000 rows to one partition; the headers make them a chunk.

        Raises:
            RuntimeError: they were not taken.
        """
        async with self._gate:
            url = self._urls[number % len(self._urls)]
            # Not in step with the brokers, so that leaders and others are met alike.
            partition = number // len(self._urls) % PARTITIONS
            await self._post(
                f"{url}/topics/{TOPIC}/partitions/{partition}?timeout={TIMEOUT_MS}",
                self._body,
                {"Content-Type": JSON_V2, **(headers or {})},
            )

    async def stage(self, key: str, rows: int) -> None:
        """Stage all rows of a transaction."""
        async with asyncio.TaskGroup() as tasks:
            for chunk in range(rows // CHUNK_ROWS):
                tasks.create_task(self.write(chunk, staging(key, chunk)))

    async def commit(self, key: str, rows: int, number: int = 0) -> float:
        """Commit what is staged; return the seconds until all of it can be read."""
        url = self._urls[number % len(self._urls)]
        attempt = {"attempt_id": "a", "chunks": rows // CHUNK_ROWS, "rows": rows}
        began = time.monotonic()
        await self._post(
            f"{url}{self._cluster}/transactions/key:{key}:commit?timeout={TIMEOUT_MS}",
            orjson.dumps({"attempts": [attempt]}),
            {"Content-Type": JSON},
        )
        return time.monotonic() - began

    async def transaction(self, rows: int, number: int) -> None:
        """Stage and commit a transaction of its own."""
        key = uuid.uuid4().hex
        await self.stage(key, rows)
        await self.commit(key, rows, number)

    async def _post(self, url: str, body: bytes, headers: Mapping[str, str]) -> None:
        answer = await self._http.ask("POST", url, body, headers, CALL_S)
        if answer.status != 200:
            msg = f"{url} answered {answer.status}: {answer.reason}"
            raise RuntimeError(msg)


def staging(key: str, chunk: int) -> dict[str, str]:
    """Return the headers of a chunk."""
    return {
        "Quorumlog-Transaction": f"key:{key}",
        "Quorumlog-Attempt": "a",
        "Quorumlog-Chunk": str(chunk),
    }


async def _staged_rates(stager: Stager, rounds: int) -> tuple[list[float], list[float]]:
    """Return rows a second of each round, staged until committed, and plain until acknowledged."""

    async def plain() -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(COMMITS * COMMIT_ROWS // CHUNK_ROWS):
                tasks.create_task(stager.write(number))

    async def staged() -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(COMMITS):
                tasks.create_task(stager.transaction(COMMIT_ROWS, number))

    await stager.transaction(CHUNK_ROWS, 0)  # makes the internal topic
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for work, rates in zip((staged, plain), found, strict=True):
            rates.append(COMMITS * COMMIT_ROWS / await _timed(work))
    return found


async def _timed(work: Callable[[], Awaitable[None]]) -> float:
    began = time.monotonic()
    await work()
    return time.monotonic() - began


def _staged_row(staged: list[float], plain: list[float]) -> Row:
    ours, floor = statistics.median(staged), statistics.median(plain)
    return Row(
        what=f"rows staged by {CHUNK_ROWS:,} and committed by {COMMIT_ROWS:,}, any broker",
        product=f"{ours:,.0f} rows/s",
        floor=f"{floor:,.0f}",
        value=ours / floor,
        budget=STAGED_BUDGET,
        note=f"floor: the same requests as plain produces; {len(staged)} rounds in turn",
    )


async def large_commit(stager: Stager, rounds: int, plain_rate: float) -> Row:
    """Time commits of 100 MB to six targets, from the request to its answer."""
    took = []
    for number in range(rounds):
        key = uuid.uuid4().hex
        await stager.stage(key, LARGE_ROWS)
        took.append(await stager.commit(key, LARGE_ROWS, number))
    median = statistics.median(took)
    return Row(
        what=f"commit of 100 MB in rows of {VALUE_BYTES} bytes to {PARTITIONS} targets",
        product=f"{median:.2f} s",
        floor=f"{LARGE_ROWS / plain_rate:.2f}",
        value=median,
        budget=LARGE_BUDGET,
        note=f"floor: the same rows as plain produces; all: {' '.join(f'{s:.2f}' for s in took)} s",
    )


async def beside_staged(product: Product, seconds: float, staged: float, plain: float) -> Row:
    """Compare p99 of plain one-row produces beside staged load with that of those alone.

    ``staged``, ``plain``: half of the rows a second that can be staged, or written plainly. p99
    beside plain rows is in the note.
    """
    now = product.now()
    load = Load(
        targets=[target(broker) for broker in now.brokers],
        requests=_plain(1),
        connections=BESIDE_CONNECTIONS,
        seconds=2 * seconds,
        expect=GOOD_PRODUCE,
    )
    alone = await asyncio.to_thread(run_load, load, _brokers(product))
    runs: list[tuple[Measured, float]] = []
    for feed, rows_per_s in ((_feed_staged, staged), (_feed_plain, plain)):
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            feeding = tasks.create_task(feed(Stager(product), rows_per_s, stop))
            run = await asyncio.to_thread(run_load, load, _brokers(product))
            stop.set()
        runs.append((run, feeding.result()))
    (beside, fed), (beside_plain, fed_plain) = runs
    ours, floor = beside.figures["p99_ms"], alone.figures["p99_ms"]
    return Row(
        what="plain produce beside staged load of half the capacity",
        product=f"p99 {ours:.2f} ms",
        floor=f"{floor:.2f}",
        value=ours / floor,
        budget=BESIDE_BUDGET,
        note=f"{fed:,.0f} of {staged:,.0f} staged rows/s wanted; "
        f"p50 {beside.figures['p50_ms']:.2f}, alone {alone.figures['p50_ms']:.2f} ms; "
        f"beside {fed_plain:,.0f} of {plain:,.0f} plain rows/s p99 "
        f"{beside_plain.figures['p99_ms']:.2f} ms {beside.problem}".strip(),
    )


async def _feed_staged(stager: Stager, rows_per_s: float, stop: asyncio.Event) -> float:
    """Stage and commit at a fixed rate until told to stop; return the rate of what was sent."""
    chunks = COMMIT_ROWS // CHUNK_ROWS
    began, sent = time.monotonic(), 0
    async with asyncio.TaskGroup() as tasks:
        while not stop.is_set():
            key, number = uuid.uuid4().hex, sent // chunks
            async with asyncio.TaskGroup() as staged:
                for chunk in range(chunks):
                    staged.create_task(stager.write(chunk, staging(key, chunk)))
                    sent += 1
                    due = began + sent * CHUNK_ROWS / rows_per_s
                    await asyncio.sleep(max(0.0, due - time.monotonic()))
            tasks.create_task(stager.commit(key, COMMIT_ROWS, number))
        elapsed = time.monotonic() - began
    return sent * CHUNK_ROWS / elapsed


async def _feed_plain(stager: Stager, rows_per_s: float, stop: asyncio.Event) -> float:
    """Write the same requests plainly at a fixed rate until told to stop."""
    began, sent = time.monotonic(), 0
    async with asyncio.TaskGroup() as tasks:
        while not stop.is_set():
            tasks.create_task(stager.write(sent))
            sent += 1
            due = began + sent * CHUNK_ROWS / rows_per_s
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        elapsed = time.monotonic() - began
    return sent * CHUNK_ROWS / elapsed


# a home that is killed


class Transfers:
    """One-shots through living brokers, each repeated until it is complete."""

    def __init__(self, product: Product, urls: list[str]) -> None:
        self._http = product.http
        self._urls = urls
        self._path = f"/v3/clusters/{product.now().cluster_id}/transactions"
        self._stopped = False
        self.done = 0

    async def run(self, writer: int) -> float:
        """Commit one after the other until `stop`; return when the last one was complete."""
        pair = (writer % PARTITIONS, (writer + 1) % PARTITIONS)
        rows = [{"value": "v" * (VALUE_BYTES - 2), "partition": number} for number in pair]
        body = orjson.dumps({"topics": [{"topic_name": KILL_TOPIC, "records": rows}]})
        at = 0.0
        while not self._stopped:
            await self._complete(writer, body, uuid.uuid4().hex)
            at = time.monotonic()
            self.done += 1
        return at

    def stop(self) -> None:
        """Begin no more of them."""
        self._stopped = True

    async def _complete(self, writer: int, body: bytes, key: str) -> None:
        headers = {"Content-Type": JSON, "Idempotency-Key": key}
        async with asyncio.timeout(CALL_S):
            while True:
                url = self._urls[writer % len(self._urls)]
                answer = await self._http.ask("POST", url + self._path, body, headers, CALL_S)
                if answer.status == 200:
                    return
                await asyncio.sleep(REPEAT_EVERY_S)


async def home_killed(product: Product, trials: int) -> Row:
    """Kill a broker amid one-shots; time until those under way are complete."""
    completed, elected = [], []
    for trial in range(trials):
        await product.wait_healthy(KILL_TOPIC)
        brokers = product.now().brokers
        found = await _kill_trial(product, brokers[trial % len(brokers)])
        completed.append(found[0])
        elected.append(found[1])
    await product.wait_healthy(KILL_TOPIC)
    behind = [ours - plain for ours, plain in zip(completed, elected, strict=True)]
    return Row(
        what=f"leader of homes killed (-9) amid {KILL_WRITERS} one-shots: until all are complete",
        product=f"p50 {statistics.median(completed):.0f} worst {max(completed):.0f} ms",
        floor=f"{statistics.median(elected):.0f} / {max(elected):.0f}",
        value=percentile(behind, 0.5),
        budget=KILLED_BUDGET,
        note=f"floor: until a plain produce to one of its partitions; {trials} trials, "
        f"behind it by {' '.join(f'{ms:.0f}' for ms in behind)} ms",
    )


async def _kill_trial(product: Product, victim: Node) -> tuple[float, float]:
    """Return ms from the kill until all transactions are complete, and until a plain produce."""
    urls = [broker.url for broker in product.now().brokers if broker.id != victim.id]
    (led, *_) = await product.led_by(victim, KILL_TOPIC)
    transfers = Transfers(product, urls)
    async with asyncio.TaskGroup() as tasks:
        writers = [tasks.create_task(transfers.run(number)) for number in range(KILL_WRITERS)]
        await asyncio.sleep(KILL_BEFORE_S)
        if not transfers.done:
            msg = "no transaction is complete even before the fault"
            raise RuntimeError(msg)
        killed = time.monotonic()
        product.cluster.signal_node(victim, signal.SIGKILL)
        transfers.stop()
        plain = tasks.create_task(_until_written(product, urls[0], led))
    return (max(task.result() for task in writers) - killed) * MS, (plain.result() - killed) * MS


async def _until_written(product: Product, url: str, partition: int) -> float:
    """Repeat a plain produce until it is acknowledged; return when that was."""
    path = f"{url}/topics/{KILL_TOPIC}/partitions/{partition}"
    body, headers = produce_body(1, VALUE_BYTES, 1), {"Content-Type": JSON_V2}
    async with asyncio.timeout(CALL_S):
        while True:
            answer = await product.http.ask("POST", path, body, headers, CALL_S)
            if answer.status == 200:
                return time.monotonic()
            await asyncio.sleep(REPEAT_EVERY_S)
