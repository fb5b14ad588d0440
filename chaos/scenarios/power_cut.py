"""Scenario power-cut: all machines lose their power at one moment, twice.

Every acknowledged record must be on the disks.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from chaos.disks.power import Power
from chaos.net.links import node_name
from chaos.scenarios.machines import epochs, felt
from chaos.scenarios.stage import FELT_DEADLINE_S, Gauge, Scenario

if TYPE_CHECKING:
    from chaos.checkers.verdict import Verdict
    from chaos.history import Reading
    from chaos.scenarios.stage import Stage

KEPT = (0.0, 0.5)
"""Probability that an unsynced page reaches the disk anyway, for each power cut."""
COMES_BACK_S = 30.0
BETWEEN_S = 1.5
"""Time of writing between two cuts, so that the second one finds unsynced pages."""


async def _break(stage: Stage) -> None:
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
            written = dict(stage.writers.told.per_partition)
            told = stage.writers.told.per_partition
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


def _own_checks(_stage: Stage, _reading: Reading) -> list[Verdict]:
    return []


POWER_CUT = Scenario(
    name="power-cut",
    summary="every node loses its power at one moment, and what was not synced; twice",
    break_it=_break,
    own_checks=_own_checks,
    stops_writes=True,
    disks="power",
)
