"""Scenarios pause-kill and part-kill: a majority that never held the acknowledged records.

Machine A is paused (or cut off) while the others continue to write; then B loses its power and C is
paused (cut off); A and B, which never held the records together, continue. Records acknowledged
meanwhile are on B's disk, synced, or lost: one missing sync would lose committed records
(guarantees §1.3).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from chaos.disks.power import Power
from chaos.net.links import NO_FAULTS, Faults, both_ways, node_name
from chaos.scenarios.machines import epochs, felt, go_on, machine, stand_still
from chaos.scenarios.stage import FELT_DEADLINE_S, Gauge, Scenario

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from chaos.checkers.verdict import Verdict
    from chaos.history import Reading
    from chaos.scenarios.stage import Stage

COMES_BACK_S = 30.0


async def _play(
    stage: Stage,
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
    told = stage.writers.told.per_partition
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


async def _pause(stage: Stage) -> None:
    async def silence(nodes: tuple[int, ...]) -> None:
        stand_still(stage, nodes)

    async def hear(nodes: tuple[int, ...]) -> None:
        go_on(stage, nodes)

    await _play(stage, "pause-kill", silence, hear)


async def _part(stage: Stage) -> None:
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

    await _play(stage, "part-kill", silence, hear)


def _own_checks(_stage: Stage, _reading: Reading) -> list[Verdict]:
    return []


PAUSE_KILL = Scenario(
    name="pause-kill",
    summary="a majority that never saw it: one machine paused, one without power, one paused",
    break_it=_pause,
    own_checks=_own_checks,
    stops_writes=True,
    disks="power",
)
PART_KILL = Scenario(
    name="part-kill",
    summary="the same with cut links: one machine cut off, one without power, one cut off",
    break_it=_part,
    own_checks=_own_checks,
    stops_writes=True,
    disks="power",
)
