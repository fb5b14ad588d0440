"""Scenario disk-full: a leader's disk fills up, then a follower's, then all.

Writes are refused, or the follower leaves the ISR; nothing is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.checkers.disks import check_told
from chaos.disks.shim import full
from chaos.scenarios.machines import disks_broken, leader_of
from chaos.scenarios.stage import FELT_DEADLINE_S, Gauge, Scenario

if TYPE_CHECKING:
    from chaos.checkers.verdict import Verdict
    from chaos.history import Reading
    from chaos.scenarios.stage import Stage

BYTES_LEFT = 5_000
"""Bytes that still fit. The write that crosses this is partial before it fails, the worst case of a
full disk (rule R2)."""


async def _break(stage: Stage) -> None:
    partition = stage.random.randrange(stage.partitions)
    leader = leader_of(stage, partition)
    others = [broker for broker in stage.brokers if broker != leader]
    refused = Gauge("refused attempts", lambda: stage.writers.told.refused)
    out = Gauge(
        "replicas out of sync",
        lambda: len(stage.brokers) - len(stage.watch.of(partition).isr),
    )
    for name, brokers, gauges in (
        ("leader's disk full", [leader], [refused]),
        ("follower's disk full", others[:1], [out]),
        ("all disks full", list(stage.brokers), [refused]),
    ):
        async with disks_broken(stage, name, brokers, [full(BYTES_LEFT)], gauges):
            pass
        await stage.felt_within(
            FELT_DEADLINE_S, lambda: stage.watch.all_in_sync(len(stage.brokers))
        )


def _own_checks(stage: Stage, _reading: Reading) -> list[Verdict]:
    return [check_told(stage.history, "No space left on device")]


DISK_FULL = Scenario(
    name="disk-full",
    summary="a leader's disk fills up, then a follower's, then all of them",
    break_it=_break,
    own_checks=_own_checks,
    stops_writes=True,
    disks="faults",
)
