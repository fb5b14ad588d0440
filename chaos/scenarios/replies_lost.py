"""Scenario replies-lost: requests between brokers run, and their replies never arrive.

Outcomes must be reported as unknown, and nothing may be duplicated. The topic has two replicas, so
one broker holds none of each partition: its forwarded requests cross one link, and losing that
link's replies affects no replication. The loss comes and goes, so that requests are in flight each
time it begins; a link that is silent for long is not dialled.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from chaos.checkers.once import check_once
from chaos.checkers.reads import check_unknown_ran
from chaos.net.links import Link, Plane, answers_lost
from chaos.scenarios.stage import Scenario

if TYPE_CHECKING:
    from chaos.checkers.verdict import Verdict
    from chaos.history import Reading
    from chaos.scenarios.stage import Stage

LOST_S = 1.5
"""Length of a loss; longer than a forwarded request's timeout, so that it ends unanswered."""
FLOWS_S = 1.0
UNKNOWN_MAX = 0.5
"""Largest share of unknown attempts: replies are lost for longer than a writer waits."""


def forwarding_links(stage: Stage) -> list[Link]:
    """Return, per partition, the link to its leader from the broker that holds no replica."""
    links = []
    for partition in range(stage.partitions):
        known = stage.watch.of(partition)
        outsiders = [broker for broker in stage.brokers if broker not in known.isr]
        if known.leader is not None:
            links += [Link(broker, known.leader, Plane.PEER) for broker in outsiders]
    return links


async def _break(stage: Stage) -> None:
    links = forwarding_links(stage)
    target = ", ".join(f"{link.target} → {link.source}" for link in links)
    faults = answers_lost(links)
    async with stage.broken("replies lost", target, faults, [stage.unanswered()]):
        ends_ms = stage.clock.monotonic_ms() + stage.duration_s * 1000
        while True:
            await asyncio.sleep(LOST_S)
            if stage.clock.monotonic_ms() >= ends_ms:
                return
            await stage.network.heal()
            await asyncio.sleep(FLOWS_S)
            await stage.network.shape(faults)


def _own_checks(stage: Stage, reading: Reading) -> list[Verdict]:
    return [
        check_unknown_ran(stage.history, reading),
        check_once(stage.history, reading, UNKNOWN_MAX),
    ]


REPLIES_LOST = Scenario(
    name="replies-lost",
    summary="requests between brokers run, their replies are lost on the way back",
    break_it=_break,
    own_checks=_own_checks,
    replication_factor=2,
)
