"""Scenario storm: one broken network after another, drawn by the seed, with some kills and pauses.

Windows are short, so that elections, truncations and catching up overlap. Availability is not
checked while it lasts, but nothing acknowledged may be lost, changed, duplicated or reordered.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from chaos.cluster import ClusterError
from chaos.net.links import (
    NO_FAULTS,
    Faults,
    Flow,
    LinkState,
    Plane,
    answers_lost,
    both_ways,
    node_name,
    on_each,
    refused,
)
from chaos.scenarios.scenario import (
    BreakNetwork,
    FaultPlan,
    Scenario,
    named,
    unknown_attempts,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from chaos.scenarios.scenario import FaultTarget, ScenarioContext

WINDOW_S = (0.4, 2.5)
"""Range of a fault's length: shorter and longer than a session (1.2 s)."""
QUIET_S = (0.0, 1.5)
KILL_CHANCE = 0.3
PAUSE_CHANCE = 0.25
PAUSE_S = (0.3, 3.0)
LATENCIES_MS = (20, 100, 400, 1500)
SLICES_BYTES = (5, 50, 1000)
FIRST_CUT_S = 1.0


def _isolate_one(context: ScenarioContext) -> Faults:
    node = context.random.choice(context.others())
    return Faults(both_ways([node], context.others(node)))


def _isolate_a_leader(context: ScenarioContext) -> Faults:
    known = context.watch.of(context.random.randrange(context.partitions)).leader
    leader = known if known is not None else context.random.choice(context.brokers)
    return Faults(both_ways([leader], context.others(leader)))


def _halves(context: ScenarioContext) -> Faults:
    nodes = list(context.others())
    context.random.shuffle(nodes)
    cut = context.random.randrange(1, len(nodes))
    return Faults(both_ways(nodes[:cut], nodes[cut:]))


def _one_way(context: ScenarioContext) -> Faults:
    nodes = context.others()
    flows = [Flow(a, b) for a in nodes for b in nodes if a != b]
    return Faults(frozenset(context.random.sample(flows, context.random.randrange(1, 10))))


def _brokers_only(context: ScenarioContext) -> Faults:
    broker = context.random.choice(context.brokers)
    return Faults(both_ways([broker], [other for other in context.brokers if other != broker]))


def _from_controllers(context: ScenarioContext) -> Faults:
    return Faults(both_ways([context.random.choice(context.brokers)], context.controllers))


def _answers_lost(context: ScenarioContext) -> Faults:
    links = [link for link in context.network.links if link.plane is not Plane.RAFT]
    return answers_lost(context.random.sample(links, context.random.randrange(1, 6)))


def _requests_lost(context: ScenarioContext) -> Faults:
    links = context.random.sample(context.network.links, context.random.randrange(1, 6))
    return on_each(links, LinkState(drops_requests=True))


def _slow(context: ScenarioContext) -> Faults:
    links = context.random.sample(context.network.links, context.random.randrange(1, 12))
    return on_each(links, LinkState(latency_ms=context.random.choice(LATENCIES_MS)))


def _in_pieces(context: ScenarioContext) -> Faults:
    return on_each(
        context.network.links, LinkState(slice_bytes=context.random.choice(SLICES_BYTES))
    )


def _refused(context: ScenarioContext) -> Faults:
    return refused(context.random.sample(context.network.links, context.random.randrange(1, 6)))


KINDS: tuple[Callable[[ScenarioContext], Faults], ...] = (
    _isolate_one,
    _isolate_a_leader,
    _halves,
    _one_way,
    _brokers_only,
    _from_controllers,
    _answers_lost,
    _requests_lost,
    _refused,
    _slow,
    _in_pieces,
)


async def _break_at_random(context: ScenarioContext, _target: FaultTarget) -> None:
    random = context.random
    await asyncio.sleep(FIRST_CUT_S)
    ends_ms = context.clock.monotonic_ms() + (context.duration_s - FIRST_CUT_S) * 1000
    while context.clock.monotonic_ms() < ends_ms:
        await context.network.shape(NO_FAULTS)
        await asyncio.sleep(random.uniform(*QUIET_S))
        kind = random.choice(KINDS)
        faults = kind(context)
        names = [link.name for link in faults.touches(context.network.links)]
        context.note(f"{kind.__name__.strip('_')}: {names}")
        await context.network.shape(faults)
        if random.random() < KILL_CHANCE:
            _kill_one(context)
        if random.random() < PAUSE_CHANCE:
            await _pause_one(context)
        await asyncio.sleep(random.uniform(*WINDOW_S))


def _kill_one(context: ScenarioContext) -> None:
    node = context.random.choice(context.others())
    if context.pid(node) is not None:  # one that was just killed has no process
        context.kill(node)


async def _pause_one(context: ScenarioContext) -> None:
    """Pause a process for a while, with every connection open."""
    stopped = context.cluster.read().node(context.random.choice(context.others()))
    if stopped.pid is None:
        return
    context.cluster.signal_node(stopped, signal.SIGSTOP)
    text = f"paused {node_name(stopped.id)}"
    context.say(text)
    context.note(text)
    try:
        await asyncio.sleep(context.random.uniform(*PAUSE_S))
    finally:
        with suppress(ClusterError):  # the supervisor may have ended meanwhile, and the node too
            context.cluster.signal_node(stopped, signal.SIGCONT)


STORM = Scenario(
    name="storm",
    summary="one broken network after the other, drawn by the seed, and a kill now and then",
    faults=(
        FaultPlan(
            name="storm",
            target=named("any link"),
            breaks=BreakNetwork(lambda context, _: _isolate_one(context)),
            felt_as=(unknown_attempts,),
            meanwhile=_break_at_random,
        ),
    ),
    stops_writes=True,
)
