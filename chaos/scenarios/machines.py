"""Faults outside the network (disks, power, whole machines), and measuring of their effects."""

from __future__ import annotations

import asyncio
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from chaos.history import Effect, Fault
from chaos.scenarios.stage import FELT_DEADLINE_S, Gauge

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from chaos.disks import shim
    from chaos.scenarios.stage import Stage


@asynccontextmanager
async def felt(
    stage: Stage,
    name: str,
    target: str,
    gauges: Sequence[Gauge],
    mend: Callable[[], object] = lambda: None,
) -> AsyncIterator[None]:
    """Make a fault last for the block and the scenario's duration; every gauge must grow.

    `mend` ends the fault, whatever happened in the block.
    """
    before = [gauge.read() for gauge in gauges]
    at_ms = stage.clock.monotonic_ms()
    stage.say(f"{name}: {target}")
    try:
        yield
        last = stage.duration_s - (stage.clock.monotonic_ms() - at_ms) / 1000
        await asyncio.sleep(max(0.0, last))
        await stage.felt_within(
            FELT_DEADLINE_S,
            lambda: all(gauge.read() > was for gauge, was in zip(gauges, before, strict=True)),
        )
    finally:
        mend()
    healed_ms = stage.clock.monotonic_ms()
    effects = tuple(
        Effect(gauge.what, was, gauge.read()) for gauge, was in zip(gauges, before, strict=True)
    )
    stage.say(f"over after {(healed_ms - at_ms) / 1000:.1f} s")
    stage.history.add(
        Fault(
            name=name,
            target=target,
            at_ms=at_ms,
            healed_ms=healed_ms,
            effects=effects,
            evidence=", ".join(f"{one.what} {one.before} → {one.after}" for one in effects),
        )
    )


@asynccontextmanager
async def disks_broken(
    stage: Stage,
    name: str,
    brokers: Sequence[int],
    faults: Sequence[shim.Fault],
    gauges: Sequence[Gauge] = (),
) -> AsyncIterator[None]:
    """Put faults on these brokers' disks during the block; calls of each must be hit."""
    disks = stage.disks
    assert disks is not None, "the scenario says that it needs disks"
    nodes = [f"broker-{broker}" for broker in brokers]
    hit = [Gauge(f"calls hit on {node}", lambda node=node: disks.felt(node)) for node in nodes]  # type: ignore[misc] # a default binds the loop's variable
    async with felt(stage, name, ", ".join(nodes), [*hit, *gauges], disks.heal):
        for node in nodes:
            disks.set(node, *faults)
        yield


def epoch_of(stage: Stage, partition: int) -> Gauge:
    """Return a gauge that grows when another leader is elected."""
    return Gauge(f"leader epoch of partition {partition}", lambda: stage.watch.of(partition).epoch)


def epochs(stage: Stage) -> Gauge:
    """Return a gauge of all partitions' leader epochs together."""
    return Gauge(
        "leader epochs, summed",
        lambda: sum(stage.watch.of(partition).epoch for partition in range(stage.partitions)),
    )


def leader_of(stage: Stage, partition: int) -> int:
    """Return the leader of a partition before any fault."""
    leader = stage.watch.of(partition).leader
    assert leader is not None, "every partition has a leader before anything is broken"
    return leader


def machine(number: int) -> tuple[int, int]:
    """Return the broker and the controller on the same machine."""
    return number, 100 + number


def stand_still(stage: Stage, nodes: Sequence[int]) -> None:
    """Send SIGSTOP: the nodes fall silent, with every connection open."""
    for node in nodes:
        stage.cluster.signal_node(stage.cluster.read().node(node), signal.SIGSTOP)


def go_on(stage: Stage, nodes: Sequence[int]) -> None:
    """Send SIGCONT."""
    for node in nodes:
        stage.cluster.signal_node(stage.cluster.read().node(node), signal.SIGCONT)
