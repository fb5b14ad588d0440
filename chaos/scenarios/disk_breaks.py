"""Scenario disk-breaks: one sync of a leader's disk fails, and the broker must end.

The next sync would succeed although the failed one's data is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.checkers.disks import check_ended_with
from chaos.disks.shim import broken
from chaos.net.links import node_name
from chaos.scenarios.machines import disks_broken, epoch_of, leader_of
from chaos.scenarios.stage import FELT_DEADLINE_S, Gauge, Scenario

if TYPE_CHECKING:
    from chaos.checkers.verdict import Verdict
    from chaos.history import Reading
    from chaos.scenarios.stage import Stage

EXIT_STORAGE = 74
BROKEN = "broker whose disk broke"


async def _break(stage: Stage) -> None:
    partition = stage.random.randrange(stage.partitions)
    leader = leader_of(stage, partition)
    lives = {stage.cluster.read().node(leader).pid}

    def lives_seen() -> int:
        pid = stage.cluster.read().node(leader).pid
        if pid is not None:
            lives.add(pid)
        return len(lives)

    gauges = [epoch_of(stage, partition), Gauge(f"lives of broker {leader}", lives_seen)]
    stage.killed.add(node_name(leader))  # the broker ends itself, as it must
    stage.told[BROKEN] = leader
    async with disks_broken(
        stage, "leader's sync fails", [leader], [broken("sync", times=1, part="/log")], gauges
    ):
        await stage.felt_within(
            FELT_DEADLINE_S, lambda: stage.cluster.read().node(leader).pid not in lives
        )
        if stage.disks is not None:
            stage.disks.heal()  # the restarted broker has a working disk with its durable data


def _own_checks(stage: Stage, _reading: Reading) -> list[Verdict]:
    said = stage.cluster.output.read_text(errors="replace")
    return [check_ended_with(said, node_name(stage.told.get(BROKEN, 0)), EXIT_STORAGE)]


DISK_BREAKS = Scenario(
    name="disk-breaks",
    summary="a sync of a leader's disk fails once, the next one would succeed",
    break_it=_break,
    own_checks=_own_checks,
    disks="faults",
)
