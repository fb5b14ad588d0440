"""Cost as data grows, which must stay flat: a fetch in a large log, writes to many partitions."""

from __future__ import annotations

import random
import statistics
from typing import TYPE_CHECKING

from benchmarks.load import produce_body, render_get, render_post
from benchmarks.processes import Load, Measured, run_load
from benchmarks.produce import GOOD_PRODUCT
from benchmarks.product import JSON_V2, target
from benchmarks.report import NO_FIGURE, Row, at_most

if TYPE_CHECKING:
    from benchmarks.product import Product
    from chaos.cluster import Node

LARGE_BYTES = 4 << 30
SMALL_BYTES = 200 << 20
VALUE_BYTES = 900
FILL_RECORDS = 500
FILL_CONNECTIONS = 4
FETCH_BYTES = 4_096
"""Size of an answer: a few records, so that the cost of finding them shows."""
OFFSETS = 2_000
"""Number of random offsets, fetched in turn."""
PARTITIONS = 5_000
FETCH_BUDGET = at_most(1.2, " × of the small log")
PRODUCE_BUDGET = at_most(1.5, " × of one partition")


async def measure(product: Product, seconds: float, rounds: int, scale: float) -> list[Row]:
    """Measure both; ``scale`` 1.0: 4 GB against 200 MB, 5,000 partitions against one."""
    rows = []
    for what, figure in (("fetch", _fetches), ("produce", _produces)):
        try:
            rows.append(await figure(product, seconds, rounds, scale))
        except RuntimeError as error:  # the other figure may still be measured
            rows.append(Row(what=f"growth, {what}", product=NO_FIGURE, note=str(error)[:300]))
    return rows


# ---- a fetch at a random offset


async def _fetches(product: Product, seconds: float, rounds: int, scale: float) -> Row:
    """Measure the broker's CPU per fetch, replication factor 1, both logs in the page cache."""
    sizes = {"small": int(SMALL_BYTES * scale), "large": int(LARGE_BYTES * scale)}
    requests, leaders = {}, {}
    for name, size in sizes.items():
        topic = f"growth-{name}"
        await product.create_topic(topic, flush="os", replicas=1)
        leaders[name] = await product.leader(topic)
        end = _fill(leaders[name], topic, size)
        requests[name] = _at_random(topic, end)
    costs: dict[str, list[float]] = {name: [] for name in sizes}
    for _ in range(rounds):
        for name, leader in leaders.items():
            run = _run(leader, requests[name], seconds, '"offset":', connections=4)
            costs[name].append(run.cpu_s["broker"] / max(1, run.figures["requests"]) * 1e6)
    for name in sizes:
        await product.delete_topic(f"growth-{name}")
    small, large = (statistics.median(costs[name]) for name in ("small", "large"))
    gigabytes = sizes["large"] / (1 << 30)
    return Row(
        what=f"CPU per fetch at a random offset, {gigabytes:.2f} GB against 1/20 of it",
        product=f"{large:.0f} µs",
        floor=f"{small:.0f}",
        value=large / small,
        budget=FETCH_BUDGET,
        note=f"{large / small:.2f} ×, {FETCH_BYTES} bytes a fetch",
    )


def _fill(leader: Node, topic: str, size: int) -> int:
    """Write so many bytes of values; return the number of records."""
    path = f"/topics/{topic}/partitions/0"
    bodies = [produce_body(FILL_RECORDS, VALUE_BYTES, seed) for seed in range(2)]
    load = Load(
        targets=[target(leader)],
        requests=[render_post(path, body, JSON_V2) for body in bodies],
        connections=FILL_CONNECTIONS,
        seconds=1.0,
        warm_up_s=0.0,
        expect=GOOD_PRODUCT,
    )
    records = 0
    while records * VALUE_BYTES < size:
        run = run_load(load, {})
        if run.problem:
            raise RuntimeError(run.problem)
        records += run.figures["requests"] * FILL_RECORDS
    return records


def _at_random(topic: str, end: int) -> list[bytes]:
    chance = random.Random(1)
    path = f"/topics/{topic}/partitions/0/records"
    return [
        render_get(
            f"{path}?offset={chance.randrange(end)}&max_bytes={FETCH_BYTES}", "application/x-ndjson"
        )
        for _ in range(OFFSETS)
    ]


# ---- a produce among many partitions


async def _produces(product: Product, seconds: float, rounds: int, scale: float) -> Row:
    """Measure p50 over one connection, acks=all, RF 3, fsync, to a broker's partitions in turn."""
    count = max(2, int(PARTITIONS * scale))
    await product.create_topic("growth-one")
    await product.create_topic("growth-many", partitions=count)
    one = await product.leader("growth-one")
    led = await product.led_by(one, "growth-many")
    body = produce_body(1, 100, 1)
    requests = {
        "one": [render_post("/topics/growth-one/partitions/0", body, JSON_V2)],
        "many": [
            render_post(f"/topics/growth-many/partitions/{number}", body, JSON_V2) for number in led
        ],
    }
    _write_each_once(one, requests["many"])
    await product.wait_healthy("growth-one")
    p50s: dict[str, list[float]] = {name: [] for name in requests}
    for _ in range(rounds):
        for name, rendered in requests.items():
            run = _run(one, rendered, seconds, GOOD_PRODUCT, connections=1)
            p50s[name].append(run.figures["p50_ms"])
    for topic in ("growth-one", "growth-many"):
        await product.delete_topic(topic)
    single, many = (statistics.median(p50s[name]) for name in ("one", "many"))
    return Row(
        what=f"produce p50, {count:,} partitions against one",
        product=f"{many:.2f} ms",
        floor=f"{single:.2f}",
        value=many / single,
        budget=PRODUCE_BUDGET,
        note=f"{many / single:.2f} ×, {len(led):,} of them written in turn",
    )


def _write_each_once(leader: Node, requests: list[bytes]) -> None:
    """Write to each partition: the first write creates files, which is not to be measured."""
    load = Load(
        targets=[target(leader)],
        requests=requests,
        connections=4,
        seconds=2.0,
        expect=GOOD_PRODUCT,
    )
    done = 0
    while done < 2 * len(requests):
        done += run_load(load, {}).figures["requests"]


def _run(
    leader: Node, requests: list[bytes], seconds: float, expect: str, *, connections: int
) -> Measured:
    assert leader.pid is not None
    load = Load(
        targets=[target(leader)],
        requests=requests,
        connections=connections,
        seconds=seconds,
        expect=expect,
    )
    run = run_load(load, {"broker": leader.pid})
    if run.problem:
        raise RuntimeError(run.problem)
    return run
