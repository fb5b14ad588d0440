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
from chaos.history import Note
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
from chaos.scenarios.scenario import Scenario

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from chaos.checkers.verdict import Verdict
    from chaos.history import Reading
    from chaos.scenarios.scenario import ScenarioContext

WINDOW_S = (0.4, 2.5)
"""Range of a fault's length: shorter and longer than a session (1.2 s)."""
QUIET_S = (0.0, 1.5)
KILL_CHANCE = 0.3
PAUSE_CHANCE = 0.25
PAUSE_S = (0.3, 3.0)
LATENCIES_MS = (20, 100, 400, 1500)
SLICES_BYTES = (5, 50, 1000)
FIRST_CUT_S = 1.0


def _isolate_one(stage: ScenarioContext, random: Random) -> Faults:
    node = random.choice(stage.others())
    return Faults(both_ways([node], stage.others(node)))


def _isolate_a_leader(stage: ScenarioContext, random: Random) -> Faults:
    known = stage.watch.of(random.randrange(stage.partitions)).leader
    leader = known if known is not None else random.choice(stage.brokers)
    return Faults(both_ways([leader], stage.others(leader)))


def _halves(stage: ScenarioContext, random: Random) -> Faults:
    nodes = list(stage.others())
    random.shuffle(nodes)
    cut = random.randrange(1, len(nodes))
    return Faults(both_ways(nodes[:cut], nodes[cut:]))


def _one_way(stage: ScenarioContext, random: Random) -> Faults:
    nodes = stage.others()
    flows = [Flow(a, b) for a in nodes for b in nodes if a != b]
    return Faults(frozenset(random.sample(flows, random.randrange(1, 10))))


def _brokers_only(stage: ScenarioContext, random: Random) -> Faults:
    broker = random.choice(stage.brokers)
    return Faults(both_ways([broker], [other for other in stage.brokers if other != broker]))


def _from_controllers(stage: ScenarioContext, random: Random) -> Faults:
    return Faults(both_ways([random.choice(stage.brokers)], stage.controllers))


def _answers_lost(stage: ScenarioContext, random: Random) -> Faults:
    links = [link for link in stage.network.links if link.plane is not Plane.RAFT]
    return answers_lost(random.sample(links, random.randrange(1, 6)))


def _requests_lost(stage: ScenarioContext, random: Random) -> Faults:
    links = random.sample(stage.network.links, random.randrange(1, 6))
    return on_each(links, LinkState(drops_requests=True))


def _slow(stage: ScenarioContext, random: Random) -> Faults:
    links = random.sample(stage.network.links, random.randrange(1, 12))
    return on_each(links, LinkState(latency_ms=random.choice(LATENCIES_MS)))


def _in_pieces(stage: ScenarioContext, random: Random) -> Faults:
    return on_each(stage.network.links, LinkState(slice_bytes=random.choice(SLICES_BYTES)))


def _refused(stage: ScenarioContext, random: Random) -> Faults:
    return refused(random.sample(stage.network.links, random.randrange(1, 6)))


KINDS: tuple[Callable[[ScenarioContext, Random], Faults], ...] = (
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


async def _break_at_random(stage: ScenarioContext) -> None:
    random = stage.random
    first = _isolate_one(stage, random)
    async with stage.broken("storm", "any link", first, [stage.unanswered()]):
        await asyncio.sleep(FIRST_CUT_S)
        ends_ms = stage.clock.monotonic_ms() + (stage.duration_s - FIRST_CUT_S) * 1000
        while stage.clock.monotonic_ms() < ends_ms:
            await stage.network.shape(NO_FAULTS)
            await asyncio.sleep(random.uniform(*QUIET_S))
            kind = random.choice(KINDS)
            faults = kind(stage, random)
            names = [link.name for link in faults.touches(stage.network.links)]
            text = f"{kind.__name__.strip('_')}: {names}"
            stage.history.add(Note(at_ms=stage.clock.monotonic_ms(), text=text))
            await stage.network.shape(faults)
            if random.random() < KILL_CHANCE:
                _kill_one(stage, random)
            if random.random() < PAUSE_CHANCE:
                await _pause_one(stage, random)
            await asyncio.sleep(random.uniform(*WINDOW_S))


def _runs(stage: ScenarioContext, node: int) -> bool:
    """Return whether the node has a process; one that was just killed has none."""
    return stage.cluster.read().node(node).pid is not None


def _kill_one(stage: ScenarioContext, random: Random) -> None:
    node = random.choice(stage.others())
    if _runs(stage, node):
        stage.kill(node)


async def _pause_one(stage: ScenarioContext, random: Random) -> None:
    """Pause a process for a while, with every connection open."""
    node = random.choice(stage.others())
    if not _runs(stage, node):
        return
    stopped = stage.cluster.read().node(node)
    stage.cluster.signal_node(stopped, signal.SIGSTOP)
    text = f"paused {node_name(node)}"
    stage.say(text)
    stage.history.add(Note(at_ms=stage.clock.monotonic_ms(), text=text))
    try:
        await asyncio.sleep(random.uniform(*PAUSE_S))
    finally:
        with suppress(ClusterError):  # the supervisor may have ended meanwhile, and the node too
            stage.cluster.signal_node(stopped, signal.SIGCONT)


def _no_own_checks(_stage: ScenarioContext, _reading: Reading) -> list[Verdict]:
    return []


STORM = Scenario(
    name="storm",
    summary="one broken network after the other, drawn by the seed, and a kill now and then",
    make_faults=_break_at_random,
    own_checks=_no_own_checks,
    stops_writes=True,
)
