"""Scenario disk-rots: one bit of a leader's log flips.

The damage must be detected when it is read, never served, and repaired from a peer.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from chaos.disks.rot import flip_a_bit
from chaos.http import CallError
from chaos.scenarios.machines import epoch_of, felt, leader_of
from chaos.scenarios.stage import FELT_DEADLINE_S, Scenario

if TYPE_CHECKING:
    from chaos.checkers.verdict import Verdict
    from chaos.history import Reading
    from chaos.scenarios.stage import Stage

TOPIC = "chaos"
PART = (0.1, 0.6)
"""Range of the flipped bit's place, as a share of the file: old enough to be durable, so that no
start may treat it as a torn tail."""
READ_S = 0.3
DEADLINE_S = 2.0


async def _break(stage: Stage) -> None:
    partition = stage.random.randrange(stage.partitions)
    leader = leader_of(stage, partition)
    url = stage.now.node(leader).url
    epoch = epoch_of(stage, partition)
    was = epoch.read()
    async with felt(stage, "a bit rots", f"broker {leader}, partition {partition}", [epoch]):
        part = stage.random.uniform(*PART)
        data_dir = stage.cluster.data_dir
        said = await asyncio.to_thread(flip_a_bit, data_dir, leader, TOPIC, partition, part)
        stage.say(said)

        async def read_from_the_start() -> None:
            offset = 0
            while epoch.read() == was:
                with suppress(CallError):  # the answer instead of the damaged record
                    lines, _ = await stage.http.fetch(
                        url, TOPIC, partition, offset, timeout_ms=100, deadline_s=DEADLINE_S
                    )
                    offset = lines[-1].offset + 1 if lines else 0
                await asyncio.sleep(READ_S)

        with suppress(TimeoutError):
            async with asyncio.timeout(FELT_DEADLINE_S):
                await read_from_the_start()


def _own_checks(_stage: Stage, _reading: Reading) -> list[Verdict]:
    return []


DISK_ROTS = Scenario(
    name="disk-rots",
    summary="a bit of a leader's log turns over under the running broker, and is read",
    break_it=_break,
    own_checks=_own_checks,
    stops_writes=True,
    disks="faults",
)
