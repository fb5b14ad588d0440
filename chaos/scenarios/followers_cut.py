"""A leader reaches the controllers and no other broker: it may not acknowledge alone.

It keeps its session, so it keeps its leadership; its followers leave the ISR, which is then below
min ISR: nothing is acknowledged by one copy, and what was in flight is unknown until the heal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.net.links import Faults, both_ways
from chaos.scenarios.stage import Gauge, Scenario

if TYPE_CHECKING:
    from chaos.checkers.verdict import Verdict
    from chaos.history import Reading
    from chaos.scenarios.stage import Stage


async def _break(stage: Stage) -> None:
    partition = stage.random.randrange(stage.partitions)
    leader = stage.watch.of(partition).leader
    assert leader is not None, "every partition has a leader before anything is broken"
    replicas = len(stage.brokers)
    followers = [broker for broker in stage.brokers if broker != leader]
    gauges = [
        Gauge("replicas out of sync", lambda: replicas - len(stage.watch.of(partition).isr)),
        stage.unanswered(),
    ]
    async with stage.broken(
        "leader cut off from its followers",
        f"broker {leader}, partition {partition}",
        Faults(both_ways([leader], followers)),
        gauges,
    ):
        pass


def _own_checks(_stage: Stage, _reading: Reading) -> list[Verdict]:
    return []


FOLLOWERS_CUT = Scenario(
    name="followers-cut",
    summary="a leader reaches the controllers but no follower",
    break_it=_break,
    own_checks=_own_checks,
    stops_writes=True,
)
