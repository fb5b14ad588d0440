"""Scenarios as declarations: what breaks, how, how it must be felt, and what must hold.

A `Scenario` lists its faults as `FaultPlan`s. `make_faults` makes them one after another: it draws
the target, breaks it, lets `meanwhile` act, waits until every gauge has grown, mends what was
broken, and records the fault with the gauges' growth as its effects. The runner builds the context
(cluster, network, load), calls `make_faults` under load, and checks what every scenario promises;
`own_checks` check the promises of one scenario. The gauges and targets that several scenarios use
stand at the end.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from chaos.deadline import TooLateError, read_until, wait_until
from chaos.history import Effect, Fault, Note
from chaos.ledger import Ledger
from chaos.net.links import Faults, both_ways, node_name, swallowed_since

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager
    from random import Random

    from chaos.checkers.verdict import Verdict
    from chaos.cluster import ClusterFile, LocalCluster
    from chaos.disks.power import Power
    from chaos.disks.shim import DiskFault, Shim
    from chaos.history import History, Reading
    from chaos.http import Http
    from chaos.ledger import MoneyEnd
    from chaos.net.links import Link, Traffic
    from chaos.net.network import Network
    from chaos.watch import Watch
    from chaos.workloads import GroupReaders, UniqueWriters
    from raft_metadata.common.clock import Clock


TOPIC = "chaos"
"""The topic that every scenario writes and reads."""
FELT_DEADLINE_S = 10.0
"""Longest extra time for a fault to be felt; then it is healed, and the run fails."""
COUNTED_DEADLINE_S = 3.0
"""Longest wait for the proxies' byte counts: they count a connection when it ends, as it does when
a silent link is healed."""


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
    group: GroupReaders
    """A consumer group; it reads only in scenarios that run it."""
    clock: Clock
    random: Random
    partitions: int
    duration_s: float
    say: Callable[[str], None]
    shim: Shim | None
    """Disk faults of all nodes; None unless the scenario declares `disks`, as is `power_supply`."""
    power_supply: Power | None
    killed: set[str] = field(default_factory=set)
    """Names of the nodes that the scenario has killed."""
    figures: dict[str, int] = field(default_factory=dict)
    """Measurements that a scenario records for its own checks."""
    ledger: Ledger = field(default_factory=Ledger)
    """Transfers of the clients with money; empty unless the scenario runs them."""
    money_end: MoneyEnd | None = None
    """The end of the accounts, once they are settled."""

    @property
    def brokers(self) -> tuple[int, ...]:
        """The ids of all brokers."""
        return tuple(node.id for node in self.now.brokers)

    @property
    def controllers(self) -> tuple[int, ...]:
        """The ids of all controllers."""
        return tuple(node.id for node in self.now.controllers)

    @property
    def disks(self) -> Shim:
        """The disk faults of a scenario that declares `disks`."""
        assert self.shim is not None, "the scenario declares the disks that it needs"
        return self.shim

    @property
    def power(self) -> Power:
        """The power supply of a scenario that declares `disks`."""
        assert self.power_supply is not None, "the scenario declares the disks that it needs"
        return self.power_supply

    def others(self, *nodes: int) -> tuple[int, ...]:
        """Return all nodes but these."""
        return tuple(node for node in (*self.controllers, *self.brokers) if node not in nodes)

    def pid(self, node: int) -> int | None:
        """Return the process id of a node; None while it is down."""
        return self.cluster.read().node(node).pid

    def kill(self, node: int) -> None:
        """Send SIGKILL to a node; the supervisor restarts it."""
        self.signal(signal.SIGKILL, node)
        self.killed.add(node_name(node))
        self.say(f"killed {node_name(node)}")

    def signal(self, number: signal.Signals, *nodes: int) -> None:
        """Send a signal to the present processes of these nodes."""
        for node in nodes:
            self.cluster.signal_node(self.cluster.read().node(node), number)

    def note(self, text: str) -> None:
        """Add a remark to the history."""
        self.history.add(Note(at_ms=self.clock.monotonic_ms(), text=text))

    def out_of_sync(self, partition: int) -> int:
        """Return the number of brokers outside the partition's ISR."""
        return len(self.brokers) - len(self.watch.of(partition).isr)

    def all_in_sync(self) -> bool:
        """Return whether every broker is in sync for every partition."""
        return self.watch.all_in_sync(len(self.brokers))

    def new_writes(self, *partitions: int) -> Callable[[], bool]:
        """Return a condition: these partitions (default: all) acknowledged a write after now."""
        counts = self.writers.attempt_counts.per_partition
        before = dict(counts)
        wanted = partitions or range(self.partitions)
        return lambda: all(counts.get(one, 0) > before.get(one, 0) for one in wanted)


# ---------------------------------------------------------------- declarations


@dataclass(frozen=True, slots=True)
class FaultTarget:
    """The part of the cluster that a fault hits, drawn by the seed when the fault begins."""

    text: str
    """Its name in the history and on the screen."""
    nodes: tuple[int, ...] = ()
    partition: int = -1
    """The partition that is watched; -1 if the fault hits none in particular."""

    @property
    def node(self) -> int:
        """The only or the first node."""
        return self.nodes[0]


@dataclass(frozen=True, slots=True)
class BreakNetwork:
    """Faults of links. They are healed at the end, and the links must have swallowed bytes."""

    faults: Callable[[ScenarioContext, FaultTarget], Faults]


@dataclass(frozen=True, slots=True)
class BreakDisks:
    """A fault of the disks of the target's nodes. It is healed at the end, and each was hit."""

    fault: Callable[[ScenarioContext], DiskFault]


async def _nothing(*_: object) -> None:
    pass


async def _no_verdicts(_: ScenarioContext) -> list[Verdict]:
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """A fault to make: it lasts for `meanwhile`, and for the run's duration at least."""

    name: str
    target: Callable[[ScenarioContext], FaultTarget]
    breaks: BreakNetwork | BreakDisks | None
    """None if `meanwhile` breaks the target itself, and mends it."""
    felt_as: tuple[Callable[[ScenarioContext, FaultTarget], Gauge], ...]
    """Gauges that must grow while it lasts, in addition to those of `breaks`."""
    meanwhile: Callable[[ScenarioContext, FaultTarget], Awaitable[None]] = _nothing
    afterwards: Callable[[ScenarioContext], Awaitable[object]] = _nothing
    """Waits before the next fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A story of faults, and what must hold in it beyond what holds in every scenario."""

    name: str
    summary: str
    faults: tuple[FaultPlan, ...]
    own_checks: Callable[[ScenarioContext, Reading], list[Verdict]] = lambda *_: []
    """Checks of promises of this scenario only, on what the first broker served in the end."""
    disk_checks: Callable[[ScenarioContext], Awaitable[list[Verdict]]] = _no_verdicts
    """Checks of this scenario only, on the files of the stopped brokers."""
    beside: Callable[[ScenarioContext], AbstractAsyncContextManager[None]] = lambda _: nullcontext()
    """A load of its own around all faults."""
    replication_factor: int = 3
    stops_writes: bool = False
    """True if the fault may stop partitions: then writes are checked before and after it only."""
    disks: Literal["sound", "faults", "power"] = "sound"
    """Disk faults needed: none, failing disks, or power loss; the last two need a C compiler."""


# ---------------------------------------------------------------- making the faults


async def make_faults(scenario: Scenario, context: ScenarioContext) -> None:
    """Make the faults of a scenario in their order, each after the active controller is known."""
    async with scenario.beside(context):
        for plan in scenario.faults:
            await wait_until(FELT_DEADLINE_S, lambda: context.watch.active is not None)
            await _make_fault(context, plan)
            await plan.afterwards(context)


async def _make_fault(context: ScenarioContext, plan: FaultPlan) -> None:
    """Make one fault and record it with its effects.

    Gauges are read before the mending, because some fall again after it. Bytes are counted after
    it, because a proxy counts those of ended connections only.
    """
    target = plan.target(context)
    broken_disks = target.nodes if isinstance(plan.breaks, BreakDisks) else ()
    gauges = [_hit_calls(context, node) for node in broken_disks]
    gauges += [gauge(context, target) for gauge in plan.felt_as]
    before = [gauge.read() for gauge in gauges]
    traffic = await context.network.traffic()

    def read_effects() -> list[Effect]:
        return [Effect(one.what, was, one.read()) for one, was in zip(gauges, before, strict=True)]

    at_ms = context.clock.monotonic_ms()
    try:
        touched = await _break(context, plan, target)
        await plan.meanwhile(context, target)
        last = context.duration_s - (context.clock.monotonic_ms() - at_ms) / 1000
        await asyncio.sleep(max(0.0, last))
        await wait_until(
            FELT_DEADLINE_S, lambda: all(one.after > one.before for one in read_effects())
        )
        effects = read_effects()
    finally:
        await _mend(context, plan)
    healed_ms = context.clock.monotonic_ms()
    ended = "over" if touched is None else "healed"
    context.say(f"{ended} after {(healed_ms - at_ms) / 1000:.1f} s")
    if touched is not None:
        swallowed = await _swallowed(context, traffic, touched)
        effects.append(Effect("bytes swallowed", 0, swallowed))
    context.history.add(
        Fault(
            name=plan.name,
            target=target.text,
            at_ms=at_ms,
            healed_ms=healed_ms,
            effects=tuple(effects),
            evidence=", ".join(f"{one.what} {one.before} → {one.after}" for one in effects),
        )
    )


def _hit_calls(context: ScenarioContext, node: int) -> Gauge:
    name = node_name(node)
    return Gauge(f"calls hit on {name}", lambda: context.disks.hit_count(name))


async def _break(
    context: ScenarioContext, plan: FaultPlan, target: FaultTarget
) -> tuple[Link, ...] | None:
    """Break the target; return the links that a fault of the network touches, else None."""
    if isinstance(plan.breaks, BreakNetwork):
        faults = plan.breaks.faults(context, target)
        touched = faults.touches(context.network.links)
        await context.network.shape(faults)
        context.say(f"{plan.name}: {target.text}; {len(touched)} links")
        context.note(f"{plan.name}: {target.text}: {[one.name for one in touched]}")
        return touched
    context.say(f"{plan.name}: {target.text}")
    if plan.breaks is not None:
        for node in target.nodes:
            context.disks.set(node_name(node), plan.breaks.fault(context))
    return None


async def _mend(context: ScenarioContext, plan: FaultPlan) -> None:
    match plan.breaks:
        case BreakNetwork():
            await context.network.heal()
        case BreakDisks():
            context.disks.heal()
        case None:
            pass


async def _swallowed(
    context: ScenarioContext, before: dict[Link, Traffic], touched: Sequence[Link]
) -> int:
    """Return the bytes that the touched links swallowed, once any are counted."""

    async def count() -> int:
        grown = swallowed_since(before, await context.network.traffic())
        return sum(grown.get(link, 0) for link in touched)

    return await read_until(COUNTED_DEADLINE_S, bool, count)


# ---------------------------------------------------------------- targets


def named(text: str) -> Callable[[ScenarioContext], FaultTarget]:
    """Return the choice of a target of which only the name matters."""
    return lambda _: FaultTarget(text)


def any_leader(context: ScenarioContext) -> FaultTarget:
    """Draw a partition and return its leader."""
    partition = context.random.randrange(context.partitions)
    leader = context.watch.of(partition).leader
    if leader is None:
        msg = f"partition {partition} has no leader"
        raise TooLateError(msg)
    return FaultTarget(f"broker {leader}, partition {partition}", (leader,), partition)


def active_controller(context: ScenarioContext) -> FaultTarget:
    """Return the active controller."""
    active = context.watch.active
    if active is None:
        msg = "no controller is active"
        raise TooLateError(msg)
    return FaultTarget(f"controller {active}", (active,))


def cut_off(context: ScenarioContext, target: FaultTarget) -> Faults:
    """Return faults that separate the target from all other nodes; clients still reach it."""
    return Faults(both_ways(target.nodes, context.others(*target.nodes)))


# ---------------------------------------------------------------- gauges


def leader_epoch(context: ScenarioContext, target: FaultTarget) -> Gauge:
    """Return a gauge that grows when another leader of the target's partition is elected."""
    partition = target.partition
    what = f"leader epoch of partition {partition}"
    return Gauge(what, lambda: context.watch.of(partition).epoch)


def leader_epochs(context: ScenarioContext, _target: FaultTarget) -> Gauge:
    """Return a gauge of all partitions' leader epochs together."""
    return Gauge(
        "leader epochs, summed",
        lambda: sum(context.watch.of(partition).epoch for partition in range(context.partitions)),
    )


def replicas_out_of_sync(context: ScenarioContext, target: FaultTarget) -> Gauge:
    """Return a gauge of the replicas outside the ISR of the target's partition."""
    return Gauge("replicas out of sync", lambda: context.out_of_sync(target.partition))


def unknown_attempts(context: ScenarioContext, _target: FaultTarget) -> Gauge:
    """Return a gauge of attempts with unknown outcome: timeouts and lost connections."""
    counts = context.writers.attempt_counts
    return Gauge("attempts of unknown outcome", lambda: counts.unknown)


def term(context: ScenarioContext, _target: FaultTarget) -> Gauge:
    """Return a gauge of the highest term reported by an active controller."""
    return Gauge("term", lambda: context.watch.term)


def lives(context: ScenarioContext, target: FaultTarget) -> Gauge:
    """Return a gauge of the processes that the target's node has had."""
    node = context.now.node(target.node)
    seen = {context.pid(node.id)}

    def count() -> int:
        seen.add(context.pid(node.id))
        return len(seen - {None})

    return Gauge(f"lives of {node.kind} {node.id}", count)
