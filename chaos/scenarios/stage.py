"""What a scenario stands on: the cluster, its network, its load, and one way to break something."""

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
    from chaos.disks.shim import Shim
    from chaos.history import History, Reading
    from chaos.http import Http
    from chaos.net.links import Faults, Link, Traffic
    from chaos.net.network import Network
    from chaos.unique import UniqueWriters
    from chaos.watch import Watch
    from raft_metadata.common.clock import Clock

FELT_DEADLINE_S = 10.0
"""How long after its time a fault may take to be felt; then it is healed, and the run is red."""
COUNTED_DEADLINE_S = 3.0
"""Proxies count the bytes of a connection when it ends, which healing a silence does."""
_LOOK_S = 0.03


class Gauge(NamedTuple):
    """A number that a fault must make grow, read from outside."""

    what: str
    read: Callable[[], int]


@dataclass(slots=True, kw_only=True)
class Stage:
    """Owned by the run. Everything a scenario may look at or do."""

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
    """Under every node, where the scenario needs them to fail."""
    killed: set[str] = field(default_factory=set)
    """Names of the nodes that `kill` has ended."""
    told: dict[str, int] = field(default_factory=dict)
    """Figures a scenario leaves for its own checks."""

    @property
    def brokers(self) -> tuple[int, ...]:
        """Their ids."""
        return tuple(node.id for node in self.now.brokers)

    @property
    def controllers(self) -> tuple[int, ...]:
        """Their ids."""
        return tuple(node.id for node in self.now.controllers)

    def others(self, *nodes: int) -> tuple[int, ...]:
        """All nodes but these."""
        return tuple(node for node in (*self.controllers, *self.brokers) if node not in nodes)

    def kill(self, node: int) -> None:
        """SIGKILL; the supervisor starts it again."""
        self.cluster.signal_node(self.cluster.read().node(node), signal.SIGKILL)
        self.killed.add(node_name(node))
        self.say(f"killed {node_name(node)}")

    def unanswered(self) -> Gauge:
        """Attempts whose outcome stayed unknown: time-outs and lost connections."""
        return Gauge("attempts of unknown outcome", lambda: self.writers.told.unknown)

    def term(self) -> Gauge:
        """The highest term in which somebody said it is active."""
        return Gauge("term", lambda: self.watch.term)

    @asynccontextmanager
    async def broken(
        self, name: str, target: str, faults: Faults, gauges: Sequence[Gauge] = ()
    ) -> AsyncIterator[None]:
        """The network is like this while the block runs, and for the scenario's duration at least.

        Then each gauge gets a little longer to have grown, the network is healed, and the fault is
        written down with what it did: the gauges' growth and the bytes that the proxies swallowed.
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
        """Whether it held within the time."""
        deadline = self.clock.monotonic_ms() + seconds * 1000
        while not holds():
            if self.clock.monotonic_ms() > deadline:
                return False
            await asyncio.sleep(_LOOK_S)
        return True

    async def felt_within(self, seconds: float, holds: Callable[[], bool]) -> bool:
        """Wait for a consequence that a scenario builds on; False if it does not come."""
        return await self._until(seconds, holds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One story. `break_it` breaks and heals; `own_checks` judge what only this story promises."""

    name: str
    summary: str
    break_it: Callable[[Stage], Awaitable[None]]
    own_checks: Callable[[Stage, Reading], list[Verdict]]
    replication_factor: int = 3
    stops_writes: bool = False
    """The fault may stop partitions while it lasts: then only before and after it are judged."""
    disks: Literal["sound", "faults", "power"] = "sound"
    """Whether disks are told to fail, or lose what they did not sync: both need a C compiler."""
