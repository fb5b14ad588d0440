"""Return of a broker to its partitions: from its unfencing until every ISR is whole again.

The broker is suspended until it is fenced and out of every ISR, then killed; the supervisor starts
it anew. All of its replicas request validation, and every leader proposes them, partition by
partition.
"""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

from benchmarks.metadata_log import MetadataLog, Seen
from benchmarks.report import Row, at_most

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.product import Product

LIMIT_S = 120.0
POLL_S = 0.02
BUDGET = at_most(5, " s")


async def measure(cluster: Product, partitions: int) -> list[Row]:
    """Measure a return; ``cluster`` holds one topic of so many partitions, all in sync."""
    brokers = cluster.now().brokers
    victim = brokers[-1]
    async with MetadataLog(cluster).followed() as log:
        fenced = log.first(lambda seen: seen.is_fence(victim.id))
        cluster.cluster.signal_node(victim, signal.SIGSTOP)
        async with asyncio.timeout(LIMIT_S):
            fence = await fenced
            isrs = _Isrs()
            await isrs.until(log, lambda isr: victim.id not in isr, partitions)
            unfenced = log.first(lambda seen: _is_unfence(seen, victim.id))
            cluster.cluster.signal_node(cluster.now().node(victim.id), signal.SIGKILL)
            back = await unfenced
            last = await isrs.until(log, lambda isr: len(isr) == len(brokers), partitions)
    took_s = (last.at_ms - back.at_ms) / 1000
    others = [seen for seen in log.fences() if seen.offset > back.offset]
    return [
        Row(
            what=f"a broker back to {partitions:,} partitions: unfenced → every ISR whole",
            product=f"{took_s:.2f} s",
            value=took_s,
            budget=BUDGET,
            note=f"fence at offset {fence.offset}, whole at {last.offset}; fences since: "
            f"{len(others)}",
        )
    ]


def _is_unfence(seen: Seen, broker: int) -> bool:
    record = seen.record
    return (
        record["type"] == "broker_registration_change"
        and record["state"] == "unfenced"
        and record["broker_id"] == broker
    )


class _Isrs:
    """The ISR of every partition that changed, as far as the log was read."""

    def __init__(self) -> None:
        self._isr: dict[tuple[str, int], list[int]] = {}
        self._looked = 0

    async def until(
        self, log: MetadataLog, wanted: Callable[[list[int]], bool], count: int
    ) -> Seen:
        """Return the record that brought so many partitions' ISRs to the wanted state."""
        good = {where for where, isr in self._isr.items() if wanted(isr)}
        while True:
            for seen in log.seen[self._looked :]:
                self._looked += 1
                record = seen.record
                if record["type"] != "partition_change":
                    continue
                where = record["topic_id"], record["partition"]
                self._isr[where] = record["isr"]
                (good.add if wanted(record["isr"]) else good.discard)(where)
                if len(good) >= count:
                    return seen
            await asyncio.sleep(POLL_S)
