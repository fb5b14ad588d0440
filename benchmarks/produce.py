"""acks=all at RF 3 beside the floor, single-connection latency, and a run over all brokers."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.load import produce_body, render_post
from benchmarks.processes import ROOT, Load, Measured, child, run_load
from benchmarks.product import JSON_V2, server_pids, target
from benchmarks.report import Row, at_most, ratio_at_least

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.product import Product

CONNECTIONS = 64
VALUE_BYTES = 100
RENDERED = 8
"""Number of different requests sent in turn, so that no cache can answer them."""
RECORDS_PER_REQUEST = (1, 100, 1000)
SPREAD_PARTITIONS = 6
GOOD_PRODUCT = '"error_code":null'
GOOD_FLOOR = '"count":'
RATIO_BATCH = ratio_at_least(0.6)
RATIO_SINGLE = ratio_at_least(0.4)
LATENCY_P50 = {"ack": at_most(1.3, " ms"), "os": at_most(0.5, " ms")}
FLUSH_NAMES = {"ack": "fsync", "os": "no fsync"}


def _requests(path: str, records: int) -> list[bytes]:
    return [
        render_post(path, produce_body(records, VALUE_BYTES, seed), JSON_V2)
        for seed in range(RENDERED)
    ]


@contextmanager
def floor(*, fsync: bool) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield a leader and two followers of the floor: its address and its pids."""
    home = ROOT / ".cache"
    home.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="floor-", dir=home))
    flags = ["--fsync"] if fsync else []
    module = "benchmarks.floor"
    try:
        with (
            child(module, "leader", directory / "leader", *flags) as leader,
            child(module, "follower", directory / "one", leader.words[1], *flags) as one,
            child(module, "follower", directory / "two", leader.words[1], *flags) as two,
        ):
            pids = {"leader": leader.pid, "follower 1": one.pid, "follower 2": two.pid}
            yield f"127.0.0.1:{leader.words[0]}", pids
    finally:
        shutil.rmtree(directory)


def _floor_run(*, flush: str, records: int, connections: int, seconds: float) -> Measured:
    with floor(fsync=flush == "ack") as (address, pids):
        load = Load(
            targets=[address],
            requests=_requests("/", records),
            connections=connections,
            seconds=seconds,
            expect=GOOD_FLOOR,
        )
        return run_load(load, pids)


async def _product_run(
    product: Product, topic: str, *, records: int, connections: int, seconds: float
) -> Measured:
    """Load one partition, directly at its leader."""
    leader = await product.leader(topic)
    load = Load(
        targets=[target(leader)],
        requests=_requests(f"/topics/{topic}/partitions/0", records),
        connections=connections,
        seconds=seconds,
        expect=GOOD_PRODUCT,
    )
    run = run_load(load, server_pids(product.now()))
    now_leader = await product.leader(topic)
    return replace(run, moved=now_leader.id != leader.id)


async def throughput(product: Product, seconds: float, rounds: int) -> list[Row]:
    """Alternate rounds of product and floor; each figure is the median of its rounds."""
    rows = []
    for flush, name in FLUSH_NAMES.items():
        for records in RECORDS_PER_REQUEST:
            topic = f"produce-{flush}-{records}"
            await product.create_topic(topic, flush=flush)
            floors, products = [], []
            for _ in range(rounds):
                size = {"records": records, "connections": CONNECTIONS}
                floors.append(_floor_run(flush=flush, seconds=seconds, **size))
                products.append(await _product_run(product, topic, seconds=seconds, **size))
            await product.delete_topic(topic)
            rows.append(_throughput_row(f"produce acks=all, {name}", records, products, floors))
    return rows


def _throughput_row(
    what: str, records: int, products: list[Measured], floors: list[Measured]
) -> Row:
    speed, floor_speed = (
        statistics.median(run.requests_per_s * records for run in runs)
        for runs in (products, floors)
    )
    return Row(
        what=f"{what}, {records} a request",
        product=f"{speed:,.0f} records/s",
        floor=f"{floor_speed:,.0f}",
        value=speed / floor_speed,
        budget=RATIO_SINGLE if records == 1 else RATIO_BATCH,
        note=_note(products, records),
    )


def _note(runs: list[Measured], records: int) -> str:
    """Return latency, CPU per record of the busiest broker and of all processes, problems."""
    last = runs[-1]
    done = max(1, last.figures["requests"] * records)
    figures = last.figures
    busiest, total = max(last.cpu_s.values()), sum(last.cpu_s.values())
    text = (
        f"p50 {figures['p50_ms']:.2f} p99 {figures['p99_ms']:.2f} ms, CPU per record: "
        f"busiest process {busiest / done * 1e6:.2f} µs, all {total / done * 1e6:.2f} µs"
    )
    return "; ".join([text, *(run.problem for run in runs if run.problem)])


async def latency(product: Product, seconds: float) -> list[Row]:
    """Measure one record per request over one connection, one after the other."""
    rows = []
    for flush, name in FLUSH_NAMES.items():
        topic = f"latency-{flush}"
        await product.create_topic(topic, flush=flush)
        floor_run = _floor_run(flush=flush, records=1, connections=1, seconds=seconds)
        run = await _product_run(product, topic, records=1, connections=1, seconds=seconds)
        p50, p99 = run.figures["p50_ms"], run.figures["p99_ms"]
        below = floor_run.figures
        rows.append(
            Row(
                what=f"one connection, acks=all, {name}",
                product=f"p50 {p50:.2f} p99 {p99:.2f} ms",
                floor=f"{below['p50_ms']:.2f} / {below['p99_ms']:.2f}",
                value=p50,
                budget=LATENCY_P50[flush],
                note=f"worst {run.figures['worst_ms']:.1f} ms {run.problem}".strip(),
            )
        )
    return rows


async def spread(product: Product, seconds: float) -> list[Row]:
    """Load six partitions through every broker: two of three requests are forwarded."""
    rows = []
    await product.create_topic("spread", partitions=SPREAD_PARTITIONS)
    now = product.now()
    for records in RECORDS_PER_REQUEST:
        paths = [f"/topics/spread/partitions/{p}" for p in range(SPREAD_PARTITIONS)]
        load = Load(
            targets=[target(broker) for broker in now.brokers],
            requests=[request for path in paths for request in _requests(path, records)[:2]],
            connections=CONNECTIONS,
            seconds=seconds,
            expect=GOOD_PRODUCT,
        )
        run = run_load(load, server_pids(now))
        rows.append(
            Row(
                what=f"produce over forwarding brokers, fsync, {records} a request",
                product=f"{run.requests_per_s * records:,.0f} records/s",
                note=_note([run], records),
            )
        )
    for head_first in (False, True):
        run = run_load(
            Load(
                targets=[target(await product.leader("spread"))],
                requests=_requests("/topics/spread/partitions/0", 1),
                connections=CONNECTIONS,
                seconds=seconds,
                expect=GOOD_PRODUCT,
                head_first=head_first,
            ),
            server_pids(now),
        )
        sent = "two packets" if head_first else "one packet"
        rows.append(
            Row(
                what=f"produce to the leader, fsync, 1 a request in {sent}",
                product=f"{run.requests_per_s:,.0f} records/s",
                note=_note([run], 1),
            )
        )
    return rows
