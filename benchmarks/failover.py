"""Longest silence after a fault, measured by writers that never stop trying.

Writes are sent every 10 ms whatever became of the earlier ones, through brokers that the fault does
not touch, so a request that hangs cannot hide that writing is possible again. A gap is the longest
time between two acknowledgements from the fault on.
"""

from __future__ import annotations

import asyncio
import signal
from itertools import pairwise
from typing import TYPE_CHECKING

from benchmarks.report import Row, at_most, percentile
from chaos.history import History, Record
from chaos.http import Stored
from chaos.workloads import MetadataProbe
from raft_metadata.common.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from benchmarks.product import Product
    from chaos.cluster import Node
    from chaos.http import Http

TOPIC = "failover"
EVERY_S = 0.01
TIMEOUT_MS = 5000
MAX_UNDER_WAY = 1000
"""Most writes in flight, 10 s of them: a longer silence is a failure, not a figure."""
CALM_BEFORE_S = 0.5
CALM_AFTER_S = 1.0
SILENCE_LIMIT_S = 15.0
METADATA_EVERY_S = 0.02


def longest_gap(times: Sequence[float], since: float) -> float:
    """Return the longest gap that ends after `since`; it may begin before `since`."""
    ordered = sorted(times)
    return max((b - a for a, b in pairwise(ordered) if b > since), default=0)


class Writer:
    """A writer of one record every `EVERY_S`, each request in a task of its own."""

    def __init__(self, http: Http, urls: list[str]) -> None:
        self._http = http
        self._urls = urls
        self._clock = SystemClock()
        self._stopped = False
        self._under_way = 0
        self.acknowledged_ms: list[float] = []
        self.slowest_ms = 0.0

    async def run(self) -> None:
        """Write until `stop`; return when every request is answered."""
        number = 0
        async with asyncio.TaskGroup() as tasks:
            while not self._stopped:
                if self._under_way < MAX_UNDER_WAY:
                    url = self._urls[number % len(self._urls)]
                    number += 1
                    tasks.create_task(self._write(url, number))
                await asyncio.sleep(EVERY_S)

    def stop(self) -> None:
        self._stopped = True

    async def _write(self, url: str, number: int) -> None:
        self._under_way += 1
        sent = self._clock.monotonic_ms()
        (result,) = await self._http.produce(
            url, TOPIC, [Record(b'"k"', b"%d" % number)], TIMEOUT_MS
        )
        now = self._clock.monotonic_ms()
        self._under_way -= 1
        if isinstance(result, Stored):
            self.acknowledged_ms.append(now)
            self.slowest_ms = max(self.slowest_ms, now - sent)


async def _produce_trial(product: Product, break_it: Callable[[Node], None]) -> tuple[float, float]:
    """Break the leader under load; return (longest gap, slowest acknowledged write) in ms."""
    leader = await product.leader(TOPIC)
    others = [broker.url for broker in product.now().brokers if broker.id != leader.id]
    writer = Writer(product.http, others)
    clock = SystemClock()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(writer.run())
        await asyncio.sleep(CALM_BEFORE_S)
        if not writer.acknowledged_ms:
            msg = "no write is acknowledged even before the fault"
            raise RuntimeError(msg)
        broken_ms = clock.monotonic_ms()
        break_it(leader)
        await _wait_calm(writer.acknowledged_ms, broken_ms)
        writer.stop()
    return longest_gap(writer.acknowledged_ms, broken_ms), writer.slowest_ms


async def _wait_calm(acknowledged_ms: Sequence[float], broken_ms: float) -> None:
    """Wait two sessions at least, and then until acknowledgements are steady again.

    Steady means: within the last `CALM_AFTER_S` no gap of 200 ms or more.
    """
    clock = SystemClock()
    await asyncio.sleep(2.5)
    while True:
        now = clock.monotonic_ms()
        recent = [at for at in acknowledged_ms if at > now - CALM_AFTER_S * 1000]
        steady = len(recent) > CALM_AFTER_S / EVERY_S / 4
        if steady and longest_gap([now - CALM_AFTER_S * 1000, *recent, now], 0) < 200:
            return
        if now - broken_ms > SILENCE_LIMIT_S * 1000:
            msg = f"writes did not resume within {SILENCE_LIMIT_S:g} s"
            raise RuntimeError(msg)
        await asyncio.sleep(0.1)


async def _metadata_trial(product: Product, trial: int) -> tuple[float, float]:
    """Kill the active controller under metadata writes; return (longest gap, slowest write), ms."""
    clock = SystemClock()
    now = product.now()
    history = History([])
    probes = [
        MetadataProbe(
            product.http,
            history,
            now.cluster_id,
            [broker],
            clock,
            name=f"gap-{trial}-{broker.id}",
            interval_s=METADATA_EVERY_S,
        )
        for broker in now.brokers
    ]
    async with asyncio.TaskGroup() as tasks:
        for probe in probes:
            tasks.create_task(probe.run())
        await asyncio.sleep(CALM_BEFORE_S)
        active = await product.active_controller()
        broken_ms = clock.monotonic_ms()
        product.cluster.signal_node(active, signal.SIGKILL)
        await asyncio.sleep(4.0)
        for probe in probes:
            probe.stop()
    good = [write for write in history.metadata_writes if write.ok]
    if not any(write.answered_ms > broken_ms for write in good):
        msg = "no metadata write after the controller was killed"
        raise RuntimeError(msg)
    gap = longest_gap([write.answered_ms for write in good], broken_ms)
    return gap, max(write.answered_ms - write.due_ms for write in good)


async def measure(product: Product, trials: int) -> list[Row]:
    """Inject each fault `trials` times, on a cluster that is whole again before each."""
    await product.create_topic(TOPIC)
    send = product.cluster.signal_node

    def leader_trial(number: signal.Signals) -> Callable[[int], Awaitable[tuple[float, float]]]:
        return lambda _: _produce_trial(product, lambda leader: send(leader, number))

    async def stopped(_: int) -> tuple[float, float]:
        leader = await product.leader(TOPIC)
        try:
            return await _produce_trial(product, lambda node: send(node, signal.SIGSTOP))
        finally:
            send(leader, signal.SIGCONT)

    faults: list[tuple[str, float | None, float, Callable[[int], Awaitable[tuple[float, float]]]]]
    faults = [
        ("leader killed → next write", 600, 2000, leader_trial(signal.SIGKILL)),
        ("leader silent (SIGSTOP) → next write", 1500, 3000, stopped),
        (
            "controller killed → next metadata write",
            None,
            1500,
            lambda trial: _metadata_trial(product, trial),
        ),
        ("controlled shutdown, longest gap", None, 250, leader_trial(signal.SIGTERM)),
    ]
    rows = []
    for what, p50_bar, worst_bar, trial in faults:
        results = []
        for number in range(trials):
            await product.wait_healthy(TOPIC)
            results.append(await trial(number))
        rows += _rows(what, results, p50_bar, worst_bar)
    return rows


def _rows(
    what: str, results: list[tuple[float, float]], p50_bar: float | None, worst_bar: float
) -> list[Row]:
    gaps = [gap for gap, _ in results]
    p50, worst = percentile(gaps, 0.5), max(gaps)
    note = f"slowest single write {max(slowest for _, slowest in results):,.0f} ms"
    rows = [
        Row(
            what=f"{what}: worst of {len(gaps)}",
            product=f"{worst:,.0f} ms",
            value=worst,
            budget=at_most(worst_bar, " ms"),
            note=note,
        )
    ]
    bar = None if p50_bar is None else at_most(p50_bar, " ms")
    rows.insert(0, Row(what=f"{what}: p50", product=f"{p50:,.0f} ms", value=p50, budget=bar))
    return rows
