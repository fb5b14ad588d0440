"""Scenario leader-cut: a partition's leader is cut off from all other nodes.

Another replica must be elected, with every acknowledged record.
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
    """Cut one leader off from all brokers and controllers. Clients still reach it."""
    partition = stage.random.randrange(stage.partitions)
    leader = stage.watch.of(partition).leader
    assert leader is not None, "every partition has a leader before anything is broken"
    replicas = len(stage.brokers)
    gauges = [
        Gauge(f"leader epoch of partition {partition}", lambda: stage.watch.of(partition).epoch),
        Gauge("replicas out of sync", lambda: replicas - len(stage.watch.of(partition).isr)),
        stage.unanswered(),
    ]
    faults = Faults(both_ways([leader], stage.others(leader)))
    async with stage.broken(
        "leader cut off", f"broker {leader}, partition {partition}", faults, gauges
    ):
        pass


def _own_checks(_stage: Stage, _reading: Reading) -> list[Verdict]:
    return []


LEADER_CUT = Scenario(
    name="leader-cut",
    summary="a partition's leader is cut off from followers and controllers",
    break_it=_break,
    own_checks=_own_checks,
)
