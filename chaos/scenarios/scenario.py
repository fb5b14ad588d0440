"""The scenario type, its context, and the faults that scenarios make.

The runner builds the context (cluster, network, load) and calls `Scenario.break_it` with it.
Network faults are made with its `broken`, faults of disks, power and machines with `felt` and
`disks_broken`; each records the growth of its gauges as the fault's effects.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from chaos.history import Effect, Fault, Note
from chaos.net.links import node_name, swallowed_since

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from random import Random

    from chaos.checkers.verdict import Verdict
    from chaos.cluster import ClusterFile, LocalCluster
    from chaos.disks.shim import DiskFault, Shim
    from chaos.history import History, Reading
    from chaos.http import Http
    from chaos.net.links import Faults, Link, Traffic
    from chaos.net.network import Network
    from chaos.watch import Watch
    from chaos.workloads import UniqueWriters
    from raft_metadata.common.clock import Clock


FELT_DEADLINE_S = 10.0
"""Longest extra time for a fault to be felt; then it is healed, and the run fails."""
COUNTED_DEADLINE_S = 3.0
"""Longest wait for the proxies' byte counts: they count a connection when it ends, as it does when
a silent link is healed."""
_LOOK_S = 0.03


class Gauge(NamedTuple):
    """A number that a fault must increase, read from outside."""

    what: str
    read: Callable[[], int]


@dataclass(slots=True, kw_only=True)
class ScenarioContext:
    """All that a scenario may read or do. Owned by the run."""

    cluster: LocalCluster
    now: ClusterFile
    network: Network
    http: Http
    history: History
    watch: Watch
    writers: UniqueWriters
    clock: Clock
    random: Random
    partitions: int
    duration_s: float
    say: Callable[[str], None]
    disks: Shim | None = None
    """Disk faults of all nodes; None unless the scenario needs them."""
    killed: set[str] = field(default_factory=set)
    """Names of the nodes that the scenario has killed."""
    figures: dict[str, int] = field(default_factory=dict)
    """Figures that a scenario records for its own checks."""

    @property
    def brokers(self) -> tuple[int, ...]:
        """The ids of all brokers."""
        return tuple(node.id for node in self.now.brokers)

    @property
    def controllers(self) -> tuple[int, ...]:
        """The ids of all controllers."""
        return tuple(node.id for node in self.now.controllers)

    def others(self, *nodes: int) -> tuple[int, ...]:
        """Return all nodes but these."""
        return tuple(node for node in (*self.controllers, *self.brokers) if node not in nodes)

    def kill(self, node: int) -> None:
        """Send SIGKILL to a node; the supervisor restarts it."""
        self.cluster.signal_node(self.cluster.read().node(node), signal.SIGKILL)
        self.killed.add(node_name(node))
        self.say(f"killed {node_name(node)}")

    def unanswered(self) -> Gauge:
        """Return a gauge of attempts with unknown outcome: timeouts and lost connections."""
        return Gauge("attempts of unknown outcome", lambda: self.writers.attempt_counts.unknown)

    def term(self) -> Gauge:
        """Return a gauge of the highest term reported by an active controller."""
        return Gauge("term", lambda: self.watch.term)

    @asynccontextmanager
    async def broken(
        self, name: str, target: str, faults: Faults, gauges: Sequence[Gauge] = ()
    ) -> AsyncIterator[None]:
        """Apply faults to the network during the block, and for the scenario's duration at least.

        Then each gauge gets a little longer to grow, the network is healed, and the fault is
        recorded with its effects: the gauges' growth and the bytes that the proxies swallowed.
        """
        before = [gauge.read() for gauge in gauges]
        traffic = await self.network.traffic()
        touched = faults.touches(self.network.links)
        at_ms = self.clock.monotonic_ms()
        await self.network.shape(faults)
        self.say(f"{name}: {target}; {len(touched)} links")
        self.history.add(
            Note(at_ms=at_ms, text=f"{name}: {target}: {[one.name for one in touched]}")
        )
        yield
        last = self.duration_s - (self.clock.monotonic_ms() - at_ms) / 1000
        await asyncio.sleep(max(0.0, last))
        await self._until(
            FELT_DEADLINE_S,
            lambda: all(gauge.read() > was for gauge, was in zip(gauges, before, strict=True)),
        )
        effects = [
            Effect(gauge.what, was, gauge.read()) for gauge, was in zip(gauges, before, strict=True)
        ]
        await self.network.heal()
        healed_ms = self.clock.monotonic_ms()
        self.say(f"healed after {(healed_ms - at_ms) / 1000:.1f} s")
        effects.append(Effect("bytes swallowed", 0, await self._swallowed(traffic, touched)))
        self.history.add(
            Fault(
                name=name,
                target=target,
                at_ms=at_ms,
                healed_ms=healed_ms,
                effects=tuple(effects),
                evidence=", ".join(f"{one.what} {one.before} → {one.after}" for one in effects),
            )
        )

    async def _swallowed(self, before: dict[Link, Traffic], touched: Sequence[Link]) -> int:
        deadline = self.clock.monotonic_ms() + COUNTED_DEADLINE_S * 1000
        while True:
            grown = swallowed_since(before, await self.network.traffic())
            total = sum(grown.get(link, 0) for link in touched)
            if total or self.clock.monotonic_ms() > deadline:
                return total
            await asyncio.sleep(_LOOK_S)

    async def _until(self, seconds: float, holds: Callable[[], bool]) -> bool:
        """Return True once `holds` returns True, False after `seconds`."""
        deadline = self.clock.monotonic_ms() + seconds * 1000
        while not holds():
            if self.clock.monotonic_ms() > deadline:
                return False
            await asyncio.sleep(_LOOK_S)
        return True

    async def felt_within(self, seconds: float, holds: Callable[[], bool]) -> bool:
        """Wait for an effect that a scenario builds on; return False if it does not come."""
        return await self._until(seconds, holds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A story of faults.

    `make_faults` breaks and heals; `own_checks` check promises of this story only.
    """

    name: str
    summary: str
    make_faults: Callable[[ScenarioContext], Awaitable[None]]
    own_checks: Callable[[ScenarioContext, Reading], list[Verdict]]
    replication_factor: int = 3
    stops_writes: bool = False
    """True if the fault may stop partitions: then writes are checked before and after it only."""
    disks: Literal["sound", "faults", "power"] = "sound"
    """Disk faults needed: none, failing disks, or power loss; the last two need a C compiler."""


@asynccontextmanager
async def felt(
    stage: ScenarioContext,
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
    stage: ScenarioContext,
    name: str,
    brokers: Sequence[int],
    faults: Sequence[DiskFault],
    gauges: Sequence[Gauge] = (),
) -> AsyncIterator[None]:
    """Put faults on these brokers' disks during the block; calls of each must be hit."""
    disks = stage.disks
    assert disks is not None, "the scenario says that it needs disks"
    nodes = [f"broker-{broker}" for broker in brokers]
    hit = [Gauge(f"calls hit on {node}", lambda node=node: disks.hit_count(node)) for node in nodes]  # type: ignore[misc] # a default binds the loop's variable
    async with felt(stage, name, ", ".join(nodes), [*hit, *gauges], disks.heal):
        for node in nodes:
            disks.set(node, *faults)
        yield


def epoch_of(stage: ScenarioContext, partition: int) -> Gauge:
    """Return a gauge that grows when another leader is elected."""
    return Gauge(f"leader epoch of partition {partition}", lambda: stage.watch.of(partition).epoch)


def epochs(stage: ScenarioContext) -> Gauge:
    """Return a gauge of all partitions' leader epochs together."""
    return Gauge(
        "leader epochs, summed",
        lambda: sum(stage.watch.of(partition).epoch for partition in range(stage.partitions)),
    )


def leader_of(stage: ScenarioContext, partition: int) -> int:
    """Return the leader of a partition before any fault."""
    leader = stage.watch.of(partition).leader
    assert leader is not None, "every partition has a leader before anything is broken"
    return leader


def machine(number: int) -> tuple[int, int]:
    """Return the broker and the controller on the same machine."""
    return number, 100 + number


def pause_nodes(stage: ScenarioContext, nodes: Sequence[int]) -> None:
    """Send SIGSTOP: the nodes fall silent, with every connection open."""
    for node in nodes:
        stage.cluster.signal_node(stage.cluster.read().node(node), signal.SIGSTOP)


def resume_nodes(stage: ScenarioContext, nodes: Sequence[int]) -> None:
    """Send SIGCONT."""
    for node in nodes:
        stage.cluster.signal_node(stage.cluster.read().node(node), signal.SIGCONT)
