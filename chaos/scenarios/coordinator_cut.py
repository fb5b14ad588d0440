"""Scenario coordinator-cut: a group's coordinator is cut off.

Another broker must take over, and the group must continue from its commit.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from chaos.checkers.groups import check_commits_stay, check_nothing_skipped, check_read_on
from chaos.checkers.verdict import Verdict
from chaos.group_readers import GroupReaders, committed_offsets, coordinator_of
from chaos.http import CallError
from chaos.load import Endpoint
from chaos.net.links import Faults, both_ways
from chaos.scenarios.stage import FELT_DEADLINE_S, Gauge, Scenario

if TYPE_CHECKING:
    from chaos.history import Reading
    from chaos.scenarios.stage import Stage

GROUP = "readers"
MEMBERS = 2
TOPIC = "chaos"
FIRST_COMMITS_S = 20.0
CATCH_UP_S = 30.0
READ_ON_S = 2.0
LEAST_AFTER = 20
_LOOK_S = 0.1
_COMMITTED = "committed in partition {}"


async def _coordinators(stage: Stage, spared: set[int], seen: list[int]) -> None:
    """Record every coordinator that a broker reports; the spared brokers are not asked."""
    while True:
        for node in stage.now.brokers:
            if node.id not in spared:
                with suppress(CallError):
                    found = await coordinator_of(stage.http, stage.now, node.url, GROUP)
                    if not seen or seen[-1] != found:
                        seen.append(found)
        await asyncio.sleep(_LOOK_S)


async def _break(stage: Stage) -> None:
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
        stage.told[_COMMITTED.format(partition)] = end


async def _cut(stage: Stage, seen: list[int], spared: set[int]) -> None:
    coordinator = seen[-1]
    spared.add(coordinator)
    gauges = [Gauge("coordinators of the group", lambda: len(seen)), stage.unanswered()]
    faults = Faults(both_ways([coordinator], stage.others(coordinator)))
    async with stage.broken(
        "coordinator cut off", f"broker {coordinator}, group {GROUP}", faults, gauges
    ):
        pass


def _ends(stage: Stage) -> dict[int, int]:
    """Return the end of the acknowledged records per partition, up to which the group must read."""
    ends = dict.fromkeys(range(stage.partitions), 0)
    for ack in stage.history.acknowledgements:
        for position in ack.positions:
            ends[position.partition] = max(ends[position.partition], position.offset + 1)
    return ends


async def _committed(stage: Stage) -> dict[int, int]:
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


def _own_checks(stage: Stage, _reading: Reading) -> list[Verdict]:
    committed = {
        partition: stage.told.get(_COMMITTED.format(partition), 0)
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
    break_it=_break,
    own_checks=_own_checks,
)
