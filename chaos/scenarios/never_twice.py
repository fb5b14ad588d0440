"""Scenario never-twice: values are sent once while replies are lost and leaders killed.

Writers use brokers that do not lead. A broker that forwarded a request and got no answer sends it
again under the same sequence number. So most requests end acknowledged, and nothing is duplicated
(rules F1, K). The losses are shorter than a writer's timeout; a longer one ends as unknown, as in
replies-lost.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from chaos.checkers.once import check_once
from chaos.net.links import NO_FAULTS, Plane, answers_lost
from chaos.scenarios.machines import epochs
from chaos.scenarios.stage import Scenario

if TYPE_CHECKING:
    from chaos.checkers.verdict import Verdict
    from chaos.history import Reading
    from chaos.scenarios.stage import Stage

LOST_S = 0.35
"""Length of a loss; shorter than the silence after which a stream is made anew (rule R9)."""
FLOWS_S = 0.9
KILL_EVERY = 3
UNKNOWN_MAX = 0.1
"""Largest share of unknown attempts. A writer waits 1 s; a killed leader is sometimes replaced
later than that, and clients' own connections to it are lost with it."""


async def _break(stage: Stage) -> None:
    links = [link for link in stage.network.links if link.plane is Plane.PEER]
    faults = answers_lost(links)
    ends_ms = stage.clock.monotonic_ms() + stage.duration_s * 1000
    async with stage.broken(
        "replies lost, leaders killed", "every broker", faults, [epochs(stage)]
    ):
        rounds = 0
        while True:
            await asyncio.sleep(LOST_S)
            rounds += 1
            if rounds % KILL_EVERY == 1:
                leader = stage.watch.of(stage.random.randrange(stage.partitions)).leader
                if leader is not None and stage.cluster.read().node(leader).pid is not None:
                    stage.kill(leader)  # its last replies are lost at this moment
            await stage.network.shape(NO_FAULTS)
            await asyncio.sleep(FLOWS_S)
            if stage.clock.monotonic_ms() >= ends_ms:
                return
            await stage.network.shape(faults)


def _own_checks(stage: Stage, reading: Reading) -> list[Verdict]:
    return [check_once(stage.history, reading, UNKNOWN_MAX)]


NEVER_TWICE = Scenario(
    name="never-twice",
    summary="values sent once through brokers that don't lead; replies lost, leaders killed",
    break_it=_break,
    own_checks=_own_checks,
)
"""`stops_writes` is false, so the floor of acknowledged writes also applies during the fault: only
unknown attempts would prove nothing."""
