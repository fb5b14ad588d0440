"""The Python SDK: one process that calls it for each record, on the cores of the cluster.

Replication factor 3, acks=all, flush=ack, values of 100 bytes, six partitions. The floor of the
writers is what ready-made requests of 1,000 records reach in the same run: a slower machine lowers
both. Programs written for confluent-kafka follow, through the SDK and against Kafka itself.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from benchmarks import beside_kafka
from benchmarks.processes import ROOT
from benchmarks.report import Budget, Row, at_least, at_most, ratio_at_least

if TYPE_CHECKING:
    from benchmarks.product import Product

PARTITIONS: Final = 6
TOPIC: Final = "client"
COMPAT_TOPIC: Final = "client-compat"
"""Holds what programs for confluent-kafka write, and read."""
PRODUCED: Final = 300_000
KEYED: Final = 150_000
"""Records a second of the budget, on a machine that is quick enough."""
CONSUMED: Final = 300_000
POLLED: Final = 250_000
RATIO: Final = 0.4
"""Part of the raw requests' throughput that suffices in place of `PRODUCED`."""
SEND_BUDGET: Final = at_most(2, " ms")
MEMORY_BUDGET: Final = at_most(92, " MB")
"""The buffer of 32 MiB and 60 MB."""
IMPORT_BUDGET: Final = at_most(150, " ms")
IMPORTS: Final = 5
CHILD_S: Final = 120.0


async def measure(product: Product, seconds: float, rounds: int) -> list[Row]:
    """Return the rows of the section: writers in turn with the raw requests, `send`, the import."""
    await product.create_topic(TOPIC, partitions=PARTITIONS)
    urls = ",".join(node.url for node in product.now().brokers)
    runs: dict[str, list[dict[str, Any]]] = {"raw": [], "plain": [], "keyed": [], "asyncio": []}
    for _ in range(rounds):
        for mode, figures in runs.items():
            figures.append(_write(mode, urls, seconds))
    raw = statistics.median(_per_second(each) for each in runs["raw"])
    readers = _readers(urls, seconds)
    rows = [
        _throughput("produce, no key, no callback", runs["plain"], raw, PRODUCED),
        _throughput("produce, keyed, with on_delivery", runs["keyed"], raw, KEYED),
        _throughput("produce, asyncio, no key", runs["asyncio"], raw, None),
        _memory(runs["plain"]),
        _one_at_a_time(_write("send", urls, seconds)),
        *readers,
        _arrival(_read("latency", urls, seconds, 1)[0]),
        _import_time(),
    ]
    own_per_s = {
        mode: statistics.median(_per_second(each) for each in runs[mode])
        for mode in ("plain", "keyed")
    }
    for mode in ("consume", "poll"):
        (found,) = [one for one in readers if one.what == f"SDK {mode}, one consumer"]
        own_per_s[mode] = found.value or 0.0
    rows += beside_kafka.measure(urls, COMPAT_TOPIC, own_per_s, seconds, rounds)
    await product.delete_topic(TOPIC)
    await product.delete_topic(COMPAT_TOPIC)
    return rows


def _write(mode: str, urls: str, seconds: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.client_write", mode, urls, TOPIC, str(seconds)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=CHILD_S + seconds
    )
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def _per_second(figures: dict[str, Any]) -> float:
    return float(figures["records"] / figures["elapsed_s"])


def _throughput(
    what: str, runs: list[dict[str, Any]], raw_per_s: float, enough_per_s: int | None
) -> Row:
    """Return a row: met by so many records a second, or by the ratio to the raw requests."""
    per_s = statistics.median(_per_second(each) for each in runs)
    cpu_us = statistics.median(each["cpu_s"] / each["records"] for each in runs) * 1e6
    ratio = per_s / raw_per_s
    budget: Budget | None = None
    if enough_per_s is not None:
        budget = at_least(enough_per_s, " records/s")
        if per_s < enough_per_s:
            budget = ratio_at_least(RATIO * enough_per_s / PRODUCED)
    return Row(
        what=f"SDK {what}",
        product=f"{per_s:,.0f} records/s",
        floor=f"{raw_per_s:,.0f} records/s",
        value=ratio if budget is not None and budget.of_floor else per_s,
        budget=budget,
        note=f"{ratio:.2f} × raw requests of 1,000; {cpu_us:.1f} µs of CPU a record",
    )


def _memory(runs: list[dict[str, Any]]) -> Row:
    grown_mb = max(each["grown_mb"] for each in runs)
    return Row(
        what="SDK produce, memory at full speed",
        product=f"{grown_mb:.0f} MB",
        value=grown_mb,
        budget=MEMORY_BUDGET,
        note="the process's largest growth; its buffer is 32 MiB",
    )


def _readers(urls: str, seconds: float) -> list[Row]:
    """Return the rows of readers: each way alone, then several members of one group."""
    rows = []
    for mode, enough_per_s in (
        ("consume", CONSUMED), ("iterate", CONSUMED), ("poll", POLLED), ("asyncio", None),
    ):  # fmt: skip
        (figures,) = _read(mode, urls, seconds, 1)
        budget = None if enough_per_s is None else at_least(enough_per_s, " records/s")
        rows.append(_reading(f"{mode}, one consumer", [figures], budget))
        if mode == "consume":
            rows.append(_reader_memory(figures))
    alone = rows[0].value or 0.0
    for members in (2, 4):
        runs = _read("consume", urls, seconds, members)
        row = _reading(f"consume, {members} consumers of a group, in sum", runs, None)
        rows.append(replace(row, note=f"{(row.value or 0.0) / alone:.2f} × one; {row.note}"))
    return rows


def _read(mode: str, urls: str, seconds: float, members: int) -> list[dict[str, Any]]:
    group = f"{mode}-{members}-{time.monotonic_ns()}"
    command = [sys.executable, "-m", "benchmarks.client_read", mode, urls, TOPIC, group]
    running = [
        subprocess.Popen([*command, str(seconds)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for _ in range(members)
    ]
    return [json.loads(each.communicate(timeout=CHILD_S + seconds)[0]) for each in running]


def _reading(what: str, runs: list[dict[str, Any]], budget: Budget | None) -> Row:
    per_s = sum(map(_per_second, runs))
    cpu_us = (
        sum(each["cpu_s"] for each in runs) / max(1, sum(each["records"] for each in runs)) * 1e6
    )
    return Row(
        what=f"SDK {what}",
        product=f"{per_s:,.0f} records/s",
        value=per_s,
        budget=budget,
        note=f"{cpu_us:.1f} µs of CPU a record, start and end included",
    )


def _reader_memory(figures: dict[str, Any]) -> Row:
    return Row(
        what="SDK consume, memory at full speed",
        product=f"{figures['grown_mb']:.0f} MB",
        value=figures["grown_mb"],
        budget=at_most(124, " MB"),
        note="the process's largest growth; its queue is 64 MiB",
    )


def _one_at_a_time(figures: dict[str, Any]) -> Row:
    return Row(
        what="SDK send, one at a time, p50",
        product=f"{figures['p50_ms']:.2f} ms",
        value=figures["p50_ms"],
        budget=SEND_BUDGET,
        note=f"p99 {figures['p99_ms']:.2f} ms, {_per_second(figures):,.0f} records/s",
    )


def _arrival(figures: dict[str, Any]) -> Row:
    return Row(
        what="record acknowledged → at a waiting SDK consumer, p50",
        product=f"{figures['p50_ms']:.1f} ms",
        value=figures["p50_ms"],
        budget=at_most(20, " ms"),
        note=f"p99 {figures['p99_ms']:.1f} ms, {figures['records']} records",
    )


def _import_time() -> Row:
    """Return the row of the import: the quickest of several, in a process each."""
    times_ms, whole_ms = [], []
    for _ in range(IMPORTS):
        nothing_s = _python("pass")
        times_ms.append((_python("import quorumlog") - nothing_s) * 1_000)
        whole_s = _python("from quorumlog import Consumer, Producer")
        whole_ms.append((whole_s - nothing_s) * 1_000)
    return Row(
        what="import quorumlog",
        product=f"{min(times_ms):.0f} ms",
        value=min(times_ms),
        budget=IMPORT_BUDGET,
        note=f"the quickest of {IMPORTS}, without the interpreter's own start; with Producer "
        f"and Consumer {min(whole_ms):.0f} ms",
    )


def _python(code: str) -> float:
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=CHILD_S)
    return time.monotonic() - began
