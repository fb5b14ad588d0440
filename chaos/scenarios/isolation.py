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
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from chaos.checkers.faults import check_metadata_gap, windows
from chaos.checkers.groups import check_commits_stay, check_nothing_skipped, check_read_on
from chaos.checkers.metadata import check_churn, check_stepped_down
from chaos.checkers.verdict import Verdict, verdict
from chaos.deadline import TooLateError, read_until, wait_until
from chaos.http import CallError
from chaos.net.links import Faults, Flow, both_ways
from chaos.scenarios.scenario import (
    FELT_DEADLINE_S,
    BreakNetwork,
    FaultPlan,
    FaultTarget,
    Gauge,
    Scenario,
    active_controller,
    any_leader,
    cut_off,
    leader_epoch,
    lives,
    replicas_out_of_sync,
    term,
    unknown_attempts,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from chaos.history import Reading
    from chaos.scenarios.scenario import ScenarioContext


LEADER_CUT = Scenario(
    name="leader-cut",
    summary="a partition's leader is cut off from followers and controllers",
    faults=(
        FaultPlan(
            name="leader cut off",
            target=any_leader,
            breaks=BreakNetwork(cut_off),
            felt_as=(leader_epoch, replicas_out_of_sync, unknown_attempts),
        ),
    ),
)


ALONE_S = 1.0
"""Shortest time in which writes reach the leader while no other replica is in sync."""
LEFT_ALONE = "followers out of sync when the leader was killed"


async def _kill_once_alone(context: ScenarioContext, target: FaultTarget) -> None:
    began = context.clock.monotonic_ms()
    followers = len(context.brokers) - 1
    await wait_until(FELT_DEADLINE_S, lambda: context.out_of_sync(target.partition) == followers)
    alone = context.duration_s - (context.clock.monotonic_ms() - began) / 1000
    await asyncio.sleep(max(ALONE_S, alone))
    context.figures[LEFT_ALONE] = context.out_of_sync(target.partition)
    context.kill(target.node)


def _check_leader_was_alone(context: ScenarioContext, _reading: Reading) -> list[Verdict]:
    left = context.figures.get(LEFT_ALONE, 0)
    return [
        verdict(
            "the leader was left alone",
            f"{left} of its followers were out of sync when it was killed",
            [] if left == len(context.brokers) - 1 else [f"only {left}"],
        )
    ]


FOLLOWERS_CUT = Scenario(
    name="followers-cut",
    summary="a leader reaches the controllers but no follower, then is killed",
    faults=(
        FaultPlan(
            name="leader cut off from its followers, then killed",
            target=any_leader,
            breaks=BreakNetwork(
                lambda context, leader: Faults(both_ways(leader.nodes, context.brokers))
            ),
            felt_as=(leader_epoch, unknown_attempts),
            meanwhile=_kill_once_alone,
        ),
    ),
    own_checks=_check_leader_was_alone,
    stops_writes=True,
)


FIRST_COMMITS_S = 20.0
CATCH_UP_S = 30.0
READ_ON_S = 2.0
LEAST_AFTER = 20
_COMMITTED = "committed in partition {}"


@asynccontextmanager
async def _group_reads(context: ScenarioContext) -> AsyncIterator[None]:
    """Let the group read beside the fault and up to the end, and record its committed offsets."""
    group, partitions = context.group, range(context.partitions)
    async with asyncio.TaskGroup() as tasks:
        reading = tasks.create_task(group.run())
        watching = tasks.create_task(group.watch_coordinator())
        await wait_until(
            FIRST_COMMITS_S,
            lambda: bool(group.coordinators) and all(group.committed.get(p) for p in partitions),
        )
        yield
        watching.cancel()
        await asyncio.sleep(READ_ON_S)
        ends = _ends(context)
        await wait_until(
            CATCH_UP_S, lambda: all(group.committed.get(p, 0) >= ends[p] for p in partitions)
        )
        group.stop()
        await reading
    for partition, end in (await _committed(context)).items():
        context.figures[_COMMITTED.format(partition)] = end


def _ends(context: ScenarioContext) -> dict[int, int]:
    """Return the end of the acknowledged records per partition, up to which the group must read."""
    ends = dict.fromkeys(range(context.partitions), 0)
    for ack in context.history.acknowledgements:
        for position in ack.positions:
            ends[position.partition] = max(ends[position.partition], position.offset + 1)
    return ends


async def _committed(context: ScenarioContext) -> dict[int, int]:
    """Return the committed offsets from the first broker that answers."""

    async def ask() -> dict[int, int]:
        for node in context.now.brokers:
            with suppress(CallError):
                return await context.group.committed_offsets(node.url)
        return {}

    return await read_until(FELT_DEADLINE_S, bool, ask)


def _coordinator(context: ScenarioContext) -> FaultTarget:
    """Return the group's coordinator, and no longer ask it for the coordinator."""
    group = context.group
    if not group.coordinators:
        msg = f"no broker named a coordinator of group {group.name}"
        raise TooLateError(msg)
    coordinator = group.coordinators[-1]
    group.unasked.add(coordinator)
    return FaultTarget(f"broker {coordinator}, group {group.name}", (coordinator,))


def _coordinators(context: ScenarioContext, _target: FaultTarget) -> Gauge:
    return Gauge("coordinators of the group", lambda: len(context.group.coordinators))


def _check_group(context: ScenarioContext, _reading: Reading) -> list[Verdict]:
    history = context.history
    committed = {
        partition: context.figures.get(_COMMITTED.format(partition), 0)
        for partition in range(context.partitions)
    }
    healed = [fault.healed_ms for fault in history.faults if fault.healed_ms is not None]
    return [
        check_nothing_skipped(history, committed),
        check_commits_stay(history, committed),
        check_read_on(max(healed, default=0), history, LEAST_AFTER),
    ]


COORDINATOR_CUT = Scenario(
    name="coordinator-cut",
    summary="the coordinator of a consumer group is cut off while the group reads",
    beside=_group_reads,
    faults=(
        FaultPlan(
            name="coordinator cut off",
            target=_coordinator,
            breaks=BreakNetwork(cut_off),
            felt_as=(_coordinators, unknown_attempts),
        ),
    ),
    own_checks=_check_group,
)


METADATA_GAP_LIMIT_MS = 5000
"""Longest gap in metadata writes after a controller falls silent: the followers' longest election
timeout is 1 s, a broker's attempt at the old one 1.5 s; the rest allows for a slow machine."""
STEPPED_DOWN = "cut-off controller stepped down after ms"
STEP_DOWN_LIMIT_MS = 5000
"""Longest time to step down: `raft_step_down_ms` is 1 s, which holds on an idle machine; five allow
for one that runs other tests."""


async def _kill_once_succeeded(context: ScenarioContext, target: FaultTarget) -> None:
    """Measure how long the controller claims to be active, and kill it once it has a successor."""
    began = context.clock.monotonic_ms()
    watch, node = context.watch, target.node
    await wait_until(FELT_DEADLINE_S, lambda: node not in watch.active_claims)
    context.figures[STEPPED_DOWN] = context.clock.monotonic_ms() - began
    await wait_until(FELT_DEADLINE_S, lambda: watch.active not in (None, node))
    context.kill(node)


def _check_metadata_gaps(context: ScenarioContext) -> list[Verdict]:
    return [
        check_metadata_gap(context.history, fault, until_ms, METADATA_GAP_LIMIT_MS)
        for fault, until_ms in windows(context.history)
    ]


def _check_succession(context: ScenarioContext, _reading: Reading) -> list[Verdict]:
    took = context.figures.get(STEPPED_DOWN)
    return [*_check_metadata_gaps(context), check_stepped_down(took, STEP_DOWN_LIMIT_MS)]


CONTROLLER_CUT = Scenario(
    name="controller-cut",
    summary="the active controller is cut off, then killed while it still is",
    faults=(
        FaultPlan(
            name="active controller cut off, then killed",
            target=active_controller,
            breaks=BreakNetwork(cut_off),
            felt_as=(term, lives),
            meanwhile=_kill_once_succeeded,
        ),
    ),
    own_checks=_check_succession,
)


TERMS_MAX = 3
"""Most new terms per fault: one election, and two more by split votes."""
BETWEEN_S = 1.0


def _receives_nothing(context: ScenarioContext, target: FaultTarget) -> Faults:
    others = [controller for controller in context.controllers if controller != target.node]
    return Faults(frozenset(Flow(other, target.node) for other in others))


def _sends_nothing(context: ScenarioContext, target: FaultTarget) -> Faults:
    others = [controller for controller in context.controllers if controller != target.node]
    return Faults(frozenset(Flow(target.node, other) for other in others))


async def _pause(_context: ScenarioContext) -> None:
    await asyncio.sleep(BETWEEN_S)


def _check_few_elections(context: ScenarioContext, _reading: Reading) -> list[Verdict]:
    history = context.history
    churn = [check_churn(history, fault, TERMS_MAX) for fault in history.faults]
    return [*_check_metadata_gaps(context), *churn]


ONE_WAY_CONTROLLER = Scenario(
    name="one-way-controller",
    summary="the active controller hears no other controller, then is heard by none",
    faults=(
        FaultPlan(
            name="active controller deaf",
            target=active_controller,
            breaks=BreakNetwork(_receives_nothing),
            felt_as=(term,),
            afterwards=_pause,
        ),
        FaultPlan(
            name="active controller mute",
            target=active_controller,
            breaks=BreakNetwork(_sends_nothing),
            felt_as=(term,),
        ),
    ),
    own_checks=_check_few_elections,
)
