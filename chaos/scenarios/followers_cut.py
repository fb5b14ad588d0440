"""Scenario followers-cut: a leader reaches the controllers but no other broker, then is killed.

It keeps its session, and so its leadership; its followers leave the ISR, which is then below min
ISR, so a single copy acknowledges nothing. After the kill a follower that left the ISR is elected
all the same, from the eligible leader replicas (KIP-966), with every acknowledged record.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from chaos.checkers.verdict import verdict
from chaos.net.links import Faults, both_ways
from chaos.scenarios.stage import FELT_DEADLINE_S, Gauge, Scenario

if TYPE_CHECKING:
    from chaos.checkers.verdict import Verdict
    from chaos.history import Reading
    from chaos.scenarios.stage import Stage

ALONE_S = 1.0
"""Shortest time in which writes reach the leader while no other replica is in sync."""
LEFT_ALONE = "followers out of sync when the leader was killed"


async def _break(stage: Stage) -> None:
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
        stage.told[LEFT_ALONE] = replicas - len(stage.watch.of(partition).isr)
        stage.kill(leader)


def _own_checks(stage: Stage, _reading: Reading) -> list[Verdict]:
    left = stage.told.get(LEFT_ALONE, 0)
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
    break_it=_break,
    own_checks=_own_checks,
    stops_writes=True,
)
