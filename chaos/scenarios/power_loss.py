"""Scenarios in which machines lose their power, and with it everything not synced.

power-cut: all machines at one moment, twice; every acknowledged record must be on the disks.

pause-kill and part-kill: machine A is paused (or cut off) while the others continue to write; then
B loses its power and C is paused (cut off); A and B, which never held the records together,
continue. Records acknowledged meanwhile are on B's disk, synced, or lost: one missing sync would
lose committed records.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from chaos.disks.power import Power
from chaos.net.links import NO_FAULTS, Faults, both_ways, node_name
from chaos.scenarios.scenario import (
    FELT_DEADLINE_S,
    Gauge,
    Scenario,
    epochs,
    felt,
    machine,
    pause_nodes,
    resume_nodes,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from chaos.checkers.verdict import Verdict
    from chaos.history import Reading
    from chaos.scenarios.scenario import ScenarioContext


KEPT = (0.0, 0.5)
"""Probability that an unsynced page reaches the disk anyway, for each power cut."""
COMES_BACK_S = 30.0
BETWEEN_S = 1.5
"""Time of writing between two cuts, so that the second one finds unsynced pages."""


async def _cut_power_twice(stage: ScenarioContext) -> None:
    assert stage.disks is not None, "the scenario says that it needs disks"
    power = Power(stage.cluster, stage.disks, stage.random)
    nodes = [node_name(node) for node in stage.others()]
    stage.killed.update(nodes)
    unsynced = Gauge("unsynced pages and names when power failed", lambda: power.taken)
    for number, keep in enumerate(KEPT, 1):
        name = f"power cut {number} of {len(KEPT)}"
        async with felt(stage, name, "every node", [unsynced, epochs(stage)], power.restore):
            cuts = await power.cut(nodes, keep)
            power.restore()
            for node, cut in zip(nodes, cuts, strict=True):
                stage.say(f"{node}: {cut}")
            written = dict(stage.writers.attempt_counts.per_partition)
            told = stage.writers.attempt_counts.per_partition
            await stage.felt_within(
                COMES_BACK_S,
                lambda told=told, written=written: all(  # type: ignore[misc] # bound now
                    told.get(partition, 0) > written.get(partition, 0)
                    for partition in range(stage.partitions)
                ),
            )
        await asyncio.sleep(BETWEEN_S)
        await stage.felt_within(
            FELT_DEADLINE_S, lambda: stage.watch.all_in_sync(len(stage.brokers))
        )


def _no_own_checks(_stage: ScenarioContext, _reading: Reading) -> list[Verdict]:
    return []


POWER_CUT = Scenario(
    name="power-cut",
    summary="every node loses its power at one moment, and what was not synced; twice",
    make_faults=_cut_power_twice,
    own_checks=_no_own_checks,
    stops_writes=True,
    disks="power",
)


async def _separate_majorities(
    stage: ScenarioContext,
    name: str,
    silence: Callable[[tuple[int, ...]], Awaitable[None]],
    hear: Callable[[tuple[int, ...]], Awaitable[None]],
) -> None:
    """Play the story.

    `silence` separates a machine's nodes from all others, `hear` reconnects them.
    """
    assert stage.disks is not None, "the scenario says that it needs disks"
    power = Power(stage.cluster, stage.disks, stage.random)
    order = list(stage.brokers)
    stage.random.shuffle(order)
    away, crashed, last = (machine(number) for number in order)
    broker = away[0]
    told = stage.writers.attempt_counts.per_partition
    out = Gauge(
        f"partitions without broker {broker} in sync",
        lambda: sum(broker not in stage.watch.of(p).isr for p in range(stage.partitions)),
    )
    target = f"machines {order[0]}, then {order[1]} and {order[2]}"
    unsynced = Gauge("lives without power", lambda: lost)
    lost = 0
    async with felt(stage, name, target, [epochs(stage), unsynced], power.restore):
        await silence(away)
        await stage.felt_within(FELT_DEADLINE_S, lambda: out.read() == stage.partitions)
        await asyncio.sleep(stage.duration_s)  # records written now never reach A
        names = [node_name(node) for node in crashed]
        stage.killed.update(names)
        for node, cut in zip(names, await power.cut(names), strict=True):
            stage.say(f"{node} lost its power: {cut}")
            lost += 1
        await silence(last)
        await hear(away)
        power.restore()
        written = dict(told)
        await stage.felt_within(
            COMES_BACK_S,
            lambda: all(told.get(p, 0) > written.get(p, 0) for p in range(stage.partitions)),
        )
        await hear(last)


async def _pause_machines(stage: ScenarioContext) -> None:
    async def silence(nodes: tuple[int, ...]) -> None:
        pause_nodes(stage, nodes)

    async def hear(nodes: tuple[int, ...]) -> None:
        resume_nodes(stage, nodes)

    await _separate_majorities(stage, "pause-kill", silence, hear)


async def _cut_off_machines(stage: ScenarioContext) -> None:
    cut_off: set[int] = set()

    async def shape() -> None:
        faults = Faults(both_ways(cut_off, stage.others(*cut_off))) if cut_off else NO_FAULTS
        await stage.network.shape(faults)

    async def silence(nodes: tuple[int, ...]) -> None:
        cut_off.update(nodes)
        await shape()

    async def hear(nodes: tuple[int, ...]) -> None:
        cut_off.difference_update(nodes)
        await shape()

    await _separate_majorities(stage, "part-kill", silence, hear)


PAUSE_KILL = Scenario(
    name="pause-kill",
    summary="a majority that never saw it: one machine paused, one without power, one paused",
    make_faults=_pause_machines,
    own_checks=_no_own_checks,
    stops_writes=True,
    disks="power",
)
PART_KILL = Scenario(
    name="part-kill",
    summary="the same with cut links: one machine cut off, one without power, one cut off",
    make_faults=_cut_off_machines,
    own_checks=_no_own_checks,
    stops_writes=True,
    disks="power",
)
