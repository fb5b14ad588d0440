"""Scenarios in which one node is cut off: a leader, a coordinator, a controller.

leader-cut: a partition's leader is cut off from all other nodes; another replica must be elected,
with every acknowledged record.

followers-cut: a leader reaches the controllers but no other broker, then is killed. It keeps its
session, and so its leadership; its followers leave the ISR, which is then below min ISR, so a
single copy acknowledges nothing. After the kill a follower that left the ISR is elected all the
same, from the eligible leader replicas (KIP-966), with every acknowledged record.

coordinator-cut: another broker must take over a group, which continues from its commit.

controller-cut: the active controller is cut off, then killed; another must take over, and the
first must notice the loss of its leadership. one-way-controller: it can send but not receive, then
the reverse; metadata writes must continue, with few elections.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from chaos.checkers.faults import check_metadata_gap, windows
from chaos.checkers.groups import check_commits_stay, check_nothing_skipped, check_read_on
from chaos.checkers.metadata import check_churn, check_stepped_down
from chaos.checkers.verdict import Verdict, verdict
from chaos.http import CallError
from chaos.net.links import Faults, Flow, both_ways
from chaos.scenarios.scenario import FELT_DEADLINE_S, Gauge, Scenario
from chaos.workloads import Endpoint, GroupReaders, committed_offsets, coordinator_of

if TYPE_CHECKING:
    from chaos.history import Reading
    from chaos.scenarios.scenario import ScenarioContext


async def _cut_off_leader(stage: ScenarioContext) -> None:
    """Cut one leader off from all brokers and controllers. Clients still reach it."""
    partition = stage.random.randrange(stage.partitions)
    leader = stage.watch.of(partition).leader
    assert leader is not None, "every partition has a leader before anything is broken"
    replicas = len(stage.brokers)
    gauges = [
        Gauge(f"leader epoch of partition {partition}", lambda: stage.watch.of(partition).epoch),
        Gauge("replicas out of sync", lambda: replicas - len(stage.watch.of(partition).isr)),
        stage.unanswered(),
    ]
    faults = Faults(both_ways([leader], stage.others(leader)))
    async with stage.broken(
        "leader cut off", f"broker {leader}, partition {partition}", faults, gauges
    ):
        pass


def _no_own_checks(_stage: ScenarioContext, _reading: Reading) -> list[Verdict]:
    return []


LEADER_CUT = Scenario(
    name="leader-cut",
    summary="a partition's leader is cut off from followers and controllers",
    make_faults=_cut_off_leader,
    own_checks=_no_own_checks,
)


ALONE_S = 1.0
"""Shortest time in which writes reach the leader while no other replica is in sync."""
LEFT_ALONE = "followers out of sync when the leader was killed"


async def _cut_off_followers(stage: ScenarioContext) -> None:
    partition = stage.random.randrange(stage.partitions)
    leader = stage.watch.of(partition).leader
    assert leader is not None, "every partition has a leader before anything is broken"
    replicas = len(stage.brokers)
    followers = [broker for broker in stage.brokers if broker != leader]
    gauges = [
        Gauge(f"leader epoch of partition {partition}", lambda: stage.watch.of(partition).epoch),
        stage.unanswered(),
    ]
    async with stage.broken(
        "leader cut off from its followers, then killed",
        f"broker {leader}, partition {partition}",
        Faults(both_ways([leader], followers)),
        gauges,
    ):
        began = stage.clock.monotonic_ms()
        await stage.felt_within(
            FELT_DEADLINE_S, lambda: replicas - len(stage.watch.of(partition).isr) == len(followers)
        )
        alone = stage.duration_s - (stage.clock.monotonic_ms() - began) / 1000
        await asyncio.sleep(max(ALONE_S, alone))
        stage.figures[LEFT_ALONE] = replicas - len(stage.watch.of(partition).isr)
        stage.kill(leader)


def _check_leader_was_alone(stage: ScenarioContext, _reading: Reading) -> list[Verdict]:
    left = stage.figures.get(LEFT_ALONE, 0)
    return [
        verdict(
            "the leader was left alone",
            f"{left} of its followers were out of sync when it was killed",
            [] if left == len(stage.brokers) - 1 else [f"only {left}"],
        )
    ]


FOLLOWERS_CUT = Scenario(
    name="followers-cut",
    summary="a leader reaches the controllers but no follower, then is killed",
    make_faults=_cut_off_followers,
    own_checks=_check_leader_was_alone,
    stops_writes=True,
)


GROUP = "readers"
MEMBERS = 2
TOPIC = "chaos"
FIRST_COMMITS_S = 20.0
CATCH_UP_S = 30.0
READ_ON_S = 2.0
LEAST_AFTER = 20
_LOOK_S = 0.1
_COMMITTED = "committed in partition {}"


async def _coordinators(stage: ScenarioContext, spared: set[int], seen: list[int]) -> None:
    """Record every coordinator that a broker reports; the spared brokers are not asked."""
    while True:
        for node in stage.now.brokers:
            if node.id not in spared:
                with suppress(CallError):
                    found = await coordinator_of(stage.http, stage.now, node.url, GROUP)
                    if not seen or seen[-1] != found:
                        seen.append(found)
        await asyncio.sleep(_LOOK_S)


async def _cut_off_coordinator(stage: ScenarioContext) -> None:
    endpoints = [Endpoint(node.id, node.url) for node in stage.now.brokers]
    readers = GroupReaders(
        *(stage.http, stage.history, TOPIC, endpoints, stage.clock), group=GROUP, members=MEMBERS
    )
    seen: list[int] = []
    spared: set[int] = set()
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(readers.run())
        looking = tasks.create_task(_coordinators(stage, spared, seen))
        partitions = range(stage.partitions)
        await stage.felt_within(
            FIRST_COMMITS_S,
            lambda: bool(seen) and all(readers.committed.get(p) for p in partitions),
        )
        if seen:
            await _cut(stage, seen, spared)
        looking.cancel()
        await asyncio.sleep(READ_ON_S)
        ends = _ends(stage)
        await stage.felt_within(
            CATCH_UP_S, lambda: all(readers.committed.get(p, 0) >= ends[p] for p in partitions)
        )
        readers.stop()
        await reading
    for partition, end in (await _committed(stage)).items():
        stage.figures[_COMMITTED.format(partition)] = end


async def _cut(stage: ScenarioContext, seen: list[int], spared: set[int]) -> None:
    coordinator = seen[-1]
    spared.add(coordinator)
    gauges = [Gauge("coordinators of the group", lambda: len(seen)), stage.unanswered()]
    faults = Faults(both_ways([coordinator], stage.others(coordinator)))
    async with stage.broken(
        "coordinator cut off", f"broker {coordinator}, group {GROUP}", faults, gauges
    ):
        pass


def _ends(stage: ScenarioContext) -> dict[int, int]:
    """Return the end of the acknowledged records per partition, up to which the group must read."""
    ends = dict.fromkeys(range(stage.partitions), 0)
    for ack in stage.history.acknowledgements:
        for position in ack.positions:
            ends[position.partition] = max(ends[position.partition], position.offset + 1)
    return ends


async def _committed(stage: ScenarioContext) -> dict[int, int]:
    """Return the committed offsets from the first broker that answers."""
    found: dict[int, int] = {}

    async def ask() -> None:
        while not found:
            for node in stage.now.brokers:
                with suppress(CallError):
                    found.update(
                        await committed_offsets(stage.http, stage.now, node.url, GROUP, TOPIC)
                    )
                    return
            await asyncio.sleep(_LOOK_S)

    with suppress(TimeoutError):
        async with asyncio.timeout(FELT_DEADLINE_S):
            await ask()
    return found


def _check_group(stage: ScenarioContext, _reading: Reading) -> list[Verdict]:
    committed = {
        partition: stage.figures.get(_COMMITTED.format(partition), 0)
        for partition in range(stage.partitions)
    }
    healed = [fault.healed_ms for fault in stage.history.faults if fault.healed_ms is not None]
    return [
        check_nothing_skipped(stage.history, committed),
        check_commits_stay(stage.history, committed),
        check_read_on(max(healed, default=0), stage.history, LEAST_AFTER),
    ]


COORDINATOR_CUT = Scenario(
    name="coordinator-cut",
    summary="the coordinator of a consumer group is cut off while the group reads",
    make_faults=_cut_off_coordinator,
    own_checks=_check_group,
)


METADATA_GAP_LIMIT_MS = 5000
"""Longest gap in metadata writes after a controller falls silent: the followers' longest election
timeout is 1 s, a broker's attempt at the old one 1.5 s; the rest allows for a slow machine."""
STEPPED_DOWN = "cut-off controller stepped down after ms"
STEP_DOWN_LIMIT_MS = 5000
"""Longest time to step down: `raft_step_down_ms` is 1 s, which holds on an idle machine; five allow
for one that runs other tests."""


async def _cut_off_controller(stage: ScenarioContext) -> None:
    """Cut off the active controller, wait for a successor, and kill the first."""
    await stage.felt_within(FELT_DEADLINE_S, lambda: stage.watch.active is not None)
    active = stage.watch.active
    assert active is not None, "there is an active controller before anything is broken"
    pid = stage.cluster.read().node(active).pid
    lives = {pid}

    def lives_seen() -> int:
        now = stage.cluster.read().node(active).pid
        if now is not None:
            lives.add(now)
        return len(lives)

    gauges = [stage.term(), Gauge(f"lives of controller {active}", lives_seen)]
    faults = Faults(both_ways([active], stage.others(active)))
    async with stage.broken(
        "active controller cut off, then killed", f"controller {active}", faults, gauges
    ):
        began = stage.clock.monotonic_ms()
        await stage.felt_within(FELT_DEADLINE_S, lambda: active not in stage.watch.active_claims)
        stage.figures[STEPPED_DOWN] = stage.clock.monotonic_ms() - began
        await stage.felt_within(FELT_DEADLINE_S, lambda: stage.watch.active not in (None, active))
        stage.kill(active)


def _check_succession(stage: ScenarioContext, _reading: Reading) -> list[Verdict]:
    history = stage.history
    gaps = [
        check_metadata_gap(history, fault, until_ms, METADATA_GAP_LIMIT_MS)
        for fault, until_ms in windows(history)
    ]
    took = stage.figures.get(STEPPED_DOWN)
    return [*gaps, check_stepped_down(took, STEP_DOWN_LIMIT_MS)]


CONTROLLER_CUT = Scenario(
    name="controller-cut",
    summary="the active controller is cut off, then killed while it still is",
    make_faults=_cut_off_controller,
    own_checks=_check_succession,
)


TERMS_MAX = 3
"""Most new terms per fault: one election, and two more by split votes."""
BETWEEN_S = 1.0


async def _silence_one_way(stage: ScenarioContext, name: str, *, deaf: bool) -> None:
    await stage.felt_within(FELT_DEADLINE_S, lambda: stage.watch.active is not None)
    active = stage.watch.active
    assert active is not None, "there is an active controller before anything is broken"
    others = [controller for controller in stage.controllers if controller != active]
    silent = frozenset(Flow(other, active) if deaf else Flow(active, other) for other in others)
    async with stage.broken(name, f"controller {active}", Faults(silent), [stage.term()]):
        pass


async def _silence_each_way(stage: ScenarioContext) -> None:
    await _silence_one_way(stage, "active controller deaf", deaf=True)
    await stage.felt_within(BETWEEN_S, lambda: False)
    await _silence_one_way(stage, "active controller mute", deaf=False)


def _check_few_elections(stage: ScenarioContext, _reading: Reading) -> list[Verdict]:
    history = stage.history
    gaps = [
        check_metadata_gap(history, fault, until_ms, METADATA_GAP_LIMIT_MS)
        for fault, until_ms in windows(history)
    ]
    return [*gaps, *(check_churn(history, fault, TERMS_MAX) for fault in history.faults)]


ONE_WAY_CONTROLLER = Scenario(
    name="one-way-controller",
    summary="the active controller hears no other controller, then is heard by none",
    make_faults=_silence_each_way,
    own_checks=_check_few_elections,
)
