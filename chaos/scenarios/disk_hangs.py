"""Scenario disk-hangs: a leader's disk stops answering.

Its leaderships must move to brokers whose disks answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.checkers.verdict import verdict
from chaos.disks.shim import slow
from chaos.scenarios.machines import disks_broken, epoch_of, leader_of
from chaos.scenarios.stage import FELT_DEADLINE_S, Scenario

if TYPE_CHECKING:
    from chaos.checkers.verdict import Verdict
    from chaos.history import Reading
    from chaos.scenarios.stage import Stage

HANG_MS = 30_000
"""Length of a hang; longer than the fault, because a hanging call ends only by itself."""
LIMIT_MS = 10_000
"""Longest time until writes continue: a hang is detected after 1.5 s, heartbeats end 1.2 s later,
the session 1.2 s after them; the rest allows for a slow machine."""
TOOK = "written again after ms"


async def _break(stage: Stage) -> None:
    partition = stage.random.randrange(stage.partitions)
    leader = leader_of(stage, partition)
    epoch = epoch_of(stage, partition)
    hang_ms = min(HANG_MS, int(stage.duration_s * 1000) + LIMIT_MS)
    async with disks_broken(
        stage, "leader's disk hangs", [leader], [slow("sync", hang_ms)], [epoch]
    ):
        began, was = stage.clock.monotonic_ms(), epoch.read()
        await stage.felt_within(LIMIT_MS / 1000, lambda: epoch.read() > was)
        told = stage.writers.told.per_partition
        written = told.get(partition, 0)
        if await stage.felt_within(FELT_DEADLINE_S, lambda: told.get(partition, 0) > written):
            stage.told[TOOK] = stage.clock.monotonic_ms() - began


def _own_checks(stage: Stage, _reading: Reading) -> list[Verdict]:
    took = stage.told.get(TOOK)
    told = "never" if took is None else f"after {took / 1000:.1f} s"
    late = took is None or took > LIMIT_MS
    return [
        verdict(
            "writes go on while the disk hangs",
            f"{told}, limit {LIMIT_MS / 1000:g} s",
            [told] if late else [],
        )
    ]


DISK_HANGS = Scenario(
    name="disk-hangs",
    summary="a leader's disk does not answer; its process and its network do",
    break_it=_break,
    own_checks=_own_checks,
    stops_writes=True,
    disks="faults",
)
