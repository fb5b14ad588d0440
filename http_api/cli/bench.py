"""``quorumlog bench produce | fetch``: measure how fast a cluster writes and reads.

Finds or creates a topic, gives each connection of a `LoadRun` its work, prints progress to standard
error and a summary to standard output. A topic that the command created is deleted at the end.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import click

from http_api.cli.options import (
    DURATION_MS,
    SIZE_BYTES,
    TOPIC,
    client_of,
    examples,
    format_option,
    print_client_errors,
    print_json,
    url_option,
)
from http_api.client import admin
from http_api.client.client_errors import QuorumlogError
from http_api.client.load_run import (
    ConnectionWork,
    Counts,
    LoadRun,
    ReadPartition,
    RecordBudget,
    WriteBatches,
)
from http_api.client.transport import Client
from http_api.node.node_start import run_loop

DURATION_S = 10.0
FILL_RECORDS = 500_000
FILL_BATCH = 500
VALUE_BYTES_MIN = 3
ANSWER_BYTES_MIN = 1_000
PERCENTILES = ((0.5, "p50_ms"), (0.95, "p95_ms"), (0.99, "p99_ms"), (0.999, "p99_9_ms"))

topic_option = click.option(
    "-t",
    "--topic",
    type=TOPIC,
    help="Use this topic and keep it.  [default: a new one, removed at the end]",
)
partitions_option = click.option(
    "--partitions",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Give the new topic so many partitions.",
)
size_option = click.option(
    "-s",
    "--size",
    type=SIZE_BYTES,
    default=100,
    show_default=True,
    help="Write values of this size, 3 bytes at least: 100, 1KiB.",
)
connections_option = click.option(
    "--connections",
    type=click.IntRange(1, 1_000),
    default=8,
    show_default=True,
    help="Use so many connections, each with one request under way, to one partition.",
)
duration_option = click.option(
    "-d",
    "--duration",
    "duration_ms",
    type=DURATION_MS,
    help=f"Stop after this long: 10s, 1m.  [default: {DURATION_S:g}s, without --records]",
)
records_option = click.option(
    "-n", "--records", type=click.IntRange(1), help="Stop after so many records."
)


@dataclass(frozen=True, slots=True)
class BenchTopic:
    """Topic of a benchmark, with the client that finds its partitions' leaders."""

    client: Client
    cluster_id: str
    topic: str
    partitions: int
    client_lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while `client` is used, which only one thread may do at a time."""

    async def leader_of(self, partition: int) -> str:
        """Return the URL of a partition's leader, or of any live broker while it has none."""
        try:
            return await asyncio.to_thread(self._leader_of, partition)
        except QuorumlogError as error:
            raise ConnectionError(str(error)) from error

    def _leader_of(self, partition: int) -> str:
        with self.client_lock:
            call = admin.partition(self.cluster_id, self.topic, partition)
            leader = self.client.run(call).leader
            brokers = self.client.run(admin.brokers(self.cluster_id))
        urls = {broker.broker_id: broker.url for broker in brokers}
        if not urls:
            msg = "no broker is alive"
            raise ConnectionError(msg)
        return urls.get(-1 if leader is None else leader, next(iter(urls.values())))


@click.group()
def bench() -> None:
    """Measure how fast a cluster writes and reads, as a client sees it.

    Values are random text. A line a second goes to standard error, the summary to standard output.
    The figures include this client, which on a small machine takes much of the processor; `make
    bench` measures the servers alone.
    """


@examples(
    "quorumlog bench produce -n 10000",
    "quorumlog bench produce -t weblog -d 1s --size 1KiB --connections 4",
)
@bench.command()
@topic_option
@partitions_option
@records_option
@size_option
@click.option(
    "-b", "--batch", type=click.IntRange(1), default=100, show_default=True,
    help="Send so many records with each request.",
)  # fmt: skip
@connections_option
@click.option(
    "--acks", type=click.Choice(["all", "1", "0"]), default="all", show_default=True,
    help="Wait for all in-sync replicas, for the leader, or for nothing.",
)  # fmt: skip
@click.option(
    "--throughput", type=click.FloatRange(min=0), default=0.0,
    help="Send at most so many records a second.  [default: no limit]",
)  # fmt: skip
@duration_option
@url_option
@format_option
@print_client_errors
def produce(  # noqa: PLR0913, PLR0917 one argument an option
    topic: str | None,
    partitions: int,
    records: int | None,
    size: int,
    batch: int,
    connections: int,
    acks: str,
    throughput: float,
    duration_ms: int | None,
    url: str,
    form: str,
) -> int:
    """Measure writes, sent to the leaders.

    Each connection sends one request after the other.
    """
    _at_least("--size", size, VALUE_BYTES_MIN)
    with client_of(url) as client, _bench_topic(client, topic, partitions) as found:
        budget = RecordBudget(records)
        works = _writes(found, connections, batch, size, acks, budget)
        seconds = _duration_s(duration_ms, records)
        run = _run(found, works, seconds, throughput, form)
    arguments = {"batch": batch, "size": size, "acks": acks}
    return _print("produce", found, run, connections, arguments, form)


@examples("quorumlog bench fetch -n 20000")
@bench.command()
@topic_option
@partitions_option
@click.option(
    "-n", "--records", type=click.IntRange(1), default=FILL_RECORDS, show_default=True,
    help="Write so many records to the new topic before it is read.",
)  # fmt: skip
@size_option
@click.option(
    "--max-bytes", type=SIZE_BYTES, default=1 << 20, show_default="1MiB",
    help="Ask for answers of at most this size, 1KB at least.",
)  # fmt: skip
@connections_option
@duration_option
@url_option
@format_option
@print_client_errors
def fetch(  # noqa: PLR0913, PLR0917 one argument an option
    topic: str | None,
    partitions: int,
    records: int,
    size: int,
    max_bytes: int,
    connections: int,
    duration_ms: int | None,
    url: str,
    form: str,
) -> int:
    """Measure reads of stored lines, from the start of each partition.

    Each connection reads its partition to the end once; with --duration again and again.
    """
    _at_least("--max-bytes", max_bytes, ANSWER_BYTES_MIN)
    _at_least("--size", size, VALUE_BYTES_MIN)
    with client_of(url) as client, _bench_topic(client, topic, partitions) as found:
        if topic is None:
            budget = RecordBudget(records)
            fill = _writes(found, max(4, found.partitions), FILL_BATCH, size, "all", budget)
            filled = _run(found, fill, 0.0, 0.0, "quiet").counts
            if filled.errors:
                msg = f"the topic could not be filled: {filled.reasons[0]}"
                raise click.ClickException(msg)
        again = duration_ms is not None
        works = [
            ReadPartition(found.topic, number % found.partitions, max_bytes, again=again)
            for number in range(connections)
        ]
        run = _run(found, works, (duration_ms or 0) / 1000, 0.0, form)
    return _print("fetch", found, run, connections, {"max_bytes": max_bytes}, form)


def _duration_s(duration_ms: int | None, records: int | None) -> float:
    if duration_ms is None:
        return DURATION_S if records is None else 0.0
    return duration_ms / 1000


def _at_least(option: str, size: int, least: int) -> None:
    if size < least:
        msg = f"{option} {size}: expected at least {least} bytes, as in {option} {least}"
        raise click.UsageError(msg)


@contextmanager
def _bench_topic(client: Client, topic: str | None, partitions: int) -> Iterator[BenchTopic]:
    """Yield the named topic, or a new one that is deleted afterwards."""
    cluster_id = client.run(admin.cluster()).cluster_id
    if topic is not None:
        found = client.run(admin.topic(cluster_id, topic))
        yield BenchTopic(client, cluster_id, topic, found.partitions_count)
        return
    name = f"bench-{secrets.token_hex(4)}"
    client.run(admin.create_topic(cluster_id, name, partitions=partitions))
    try:
        yield BenchTopic(client, cluster_id, name, partitions)
    finally:
        client.run(admin.delete_topic(cluster_id, name))


def _writes(
    found: BenchTopic, connections: int, batch: int, size: int, acks: str, budget: RecordBudget
) -> list[WriteBatches]:
    chance = random.Random()
    return [
        WriteBatches(found.topic, number % found.partitions, batch, size, acks, budget, chance)
        for number in range(connections)
    ]


def _run(
    found: BenchTopic, works: Sequence[ConnectionWork], duration_s: float, per_s: float, form: str
) -> LoadRun:
    run = LoadRun(works, found.leader_of, duration_s=duration_s, records_per_s=per_s)
    progress: Callable[[float, Counts], None] | None = None if form == "quiet" else _progress
    run_loop(run.run(progress))
    return run


def _progress(now_s: float, recent: Counts) -> None:
    times = recent.latencies
    click.echo(
        f"{now_s:5.0f} s  {recent.records:>9,} records  {recent.bytes / 1e6:8.1f} MB  "
        f"mean {times.mean_s * 1e3:.2f} ms  p99 {times.percentile(0.99) * 1e3:.2f} ms"
        + (f"  {recent.errors} errors" if recent.errors else ""),
        err=True,
    )


def _print(
    kind: str,
    found: BenchTopic,
    run: LoadRun,
    connections: int,
    arguments: dict[str, Any],
    form: str,
) -> int:
    counts, elapsed_s = run.counts, max(run.elapsed_s, 1e-6)
    times = counts.latencies
    summary: dict[str, Any] = {
        "kind": kind,
        "topic": found.topic,
        "partitions": found.partitions,
        "connections": connections,
        **arguments,
        "seconds": round(run.elapsed_s, 3),
        "requests": counts.requests,
        "records": counts.records,
        "records_per_s": round(counts.records / elapsed_s, 1),
        "mb_per_s": round(counts.bytes / 1e6 / elapsed_s, 3),
        "errors": counts.errors,
        "reasons": counts.reasons,
        "latency": {
            "mean_ms": round(times.mean_s * 1e3, 3),
            **{name: round(times.percentile(share) * 1e3, 3) for share, name in PERCENTILES},
            "longest_ms": round(times.longest_s * 1e3, 3),
        },
    }
    if form == "json":
        print_json(summary)
    else:
        _print_text(summary)
    return 1 if counts.errors or not counts.records else 0


def _print_text(summary: dict[str, Any]) -> None:
    latency = summary["latency"]
    click.echo(
        f"{summary['kind']} {summary['records']:,} records in {summary['seconds']:.1f} s: "
        f"{summary['records_per_s']:,.0f} records/s, {summary['mb_per_s']:,.1f} MB/s"
    )
    click.echo(
        f"latency of a request: p50 {latency['p50_ms']:.2f}, p95 {latency['p95_ms']:.2f}, "
        f"p99 {latency['p99_ms']:.2f}, p99.9 {latency['p99_9_ms']:.2f}, "
        f"longest {latency['longest_ms']:.2f} ms over {summary['requests']:,} requests"
    )
    click.echo(f"errors {summary['errors']}")
    for reason in summary["reasons"]:
        click.echo(f"quorumlog: {reason}", err=True)
