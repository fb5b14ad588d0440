"""Scenarios in which machines lose their power, and with it everything not synced.

power-cut: all machines at one moment, twice; every acknowledged record must be on the disks.

pause-kill and part-kill: machine A is paused (or cut off) while the others continue to write; then
B loses its power and C is paused (cut off); A and B, which never held the records together,
continue. Records acknowledged meanwhile are on B's disk, synced, or lost: one missing sync would
lose committed records.
"""

from __future__ import annotations

import asyncio
import signal
from functools import partial
from typing import TYPE_CHECKING

from chaos.deadline import wait_until
from chaos.net.links import NO_FAULTS, Faults, both_ways, node_name
from chaos.scenarios.scenario import (
    FELT_DEADLINE_S,
    FaultPlan,
    FaultTarget,
    Gauge,
    Scenario,
    leader_epochs,
    named,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from chaos.scenarios.scenario import ScenarioContext


KEPT = (0.0, 0.5)
"""Probability that an unsynced page reaches the disk anyway, for each power cut."""
COMES_BACK_S = 30.0
BETWEEN_S = 1.5
"""Time of writing between two cuts, so that the second one finds unsynced pages."""


def _unsynced(context: ScenarioContext, _target: FaultTarget) -> Gauge:
    what = "unsynced pages and names when power failed"
    return Gauge(what, lambda: context.power.taken)


async def _cut_and_restore(context: ScenarioContext, _target: FaultTarget, *, keep: float) -> None:
    nodes = [node_name(node) for node in context.others()]
    context.killed.update(nodes)
    try:
        cuts = await context.power.cut(nodes, keep)
    finally:
        context.power.restore()
    for node, cut in zip(nodes, cuts, strict=True):
        context.say(f"{node}: {cut}")
    await wait_until(COMES_BACK_S, context.new_writes())


async def _write_in_sync(context: ScenarioContext) -> None:
    await asyncio.sleep(BETWEEN_S)
    await wait_until(FELT_DEADLINE_S, context.all_in_sync)


POWER_CUT = Scenario(
    name="power-cut",
    summary="every node loses its power at one moment, and what was not synced; twice",
    faults=tuple(
        FaultPlan(
            name=f"power cut {number} of {len(KEPT)}",
            target=named("every node"),
            breaks=None,
            felt_as=(_unsynced, leader_epochs),
            meanwhile=partial(_cut_and_restore, keep=keep),
            afterwards=_write_in_sync,
        )
        for number, keep in enumerate(KEPT, 1)
    ),
    stops_writes=True,
    disks="power",
)


def _three_machines(context: ScenarioContext) -> FaultTarget:
    order = list(context.brokers)
    context.random.shuffle(order)
    return FaultTarget(f"machines {order[0]}, then {order[1]} and {order[2]}", tuple(order))


def _machine(number: int) -> tuple[int, int]:
    """Return the broker and the controller on the same machine."""
    return number, 100 + number


def _lives_without_power(context: ScenarioContext, _target: FaultTarget) -> Gauge:
    return Gauge("lives without power", lambda: context.power.cuts)


async def _separate_majorities(
    context: ScenarioContext,
    target: FaultTarget,
    silence: Callable[[tuple[int, ...]], Awaitable[None]],
    reconnect: Callable[[tuple[int, ...]], Awaitable[None]],
) -> None:
    """Play the story of machines A, B and C.

    `silence` separates a machine's nodes from all others, `reconnect` undoes it.
    """
    away, crashed, last = (_machine(number) for number in target.nodes)
    broker = away[0]
    partitions = range(context.partitions)
    names = [node_name(node) for node in crashed]
    await silence(away)
    await wait_until(
        FELT_DEADLINE_S,
        lambda: all(broker not in context.watch.of(one).isr for one in partitions),
    )
    await asyncio.sleep(context.duration_s)  # records written now never reach A
    context.killed.update(names)
    try:
        for name, cut in zip(names, await context.power.cut(names), strict=True):
            context.say(f"{name} lost its power: {cut}")
        await silence(last)
        await reconnect(away)
    finally:
        context.power.restore()
    await wait_until(COMES_BACK_S, context.new_writes())
    await reconnect(last)


async def _pause_machines(context: ScenarioContext, target: FaultTarget) -> None:
    async def pause(nodes: tuple[int, ...]) -> None:
        context.signal(signal.SIGSTOP, *nodes)

    async def resume(nodes: tuple[int, ...]) -> None:
        context.signal(signal.SIGCONT, *nodes)

    await _separate_majorities(context, target, pause, resume)


async def _cut_off_machines(context: ScenarioContext, target: FaultTarget) -> None:
    silent: set[int] = set()

    async def shape() -> None:
        faults = Faults(both_ways(silent, context.others(*silent))) if silent else NO_FAULTS
        await context.network.shape(faults)

    async def silence(nodes: tuple[int, ...]) -> None:
        silent.update(nodes)
        await shape()

    async def reconnect(nodes: tuple[int, ...]) -> None:
        silent.difference_update(nodes)
        await shape()

    await _separate_majorities(context, target, silence, reconnect)


PAUSE_KILL = Scenario(
    name="pause-kill",
    summary="a majority that never saw it: one machine paused, one without power, one paused",
    faults=(
        FaultPlan(
            name="pause-kill",
            target=_three_machines,
            breaks=None,
            felt_as=(leader_epochs, _lives_without_power),
            meanwhile=_pause_machines,
        ),
    ),
    stops_writes=True,
    disks="power",
)
PART_KILL = Scenario(
    name="part-kill",
    summary="the same with cut links: one machine cut off, one without power, one cut off",
    faults=(
        FaultPlan(
            name="part-kill",
            target=_three_machines,
            breaks=None,
            felt_as=(leader_epochs, _lives_without_power),
            meanwhile=_cut_off_machines,
        ),
    ),
    stops_writes=True,
    disks="power",
)
