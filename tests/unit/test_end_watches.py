"""Watches at the ends of partitions: one wait for all group reads, which ends with the last."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from broker.coordinator.end_watches import WAKE_SLICE, EndWatches, WakeUp, WatchedEnd
from broker.server.requests import PASSED_TO
from raft_metadata.common.ids import PartitionId, TopicId, TopicName, TopicPartition

END = WatchedEnd(TopicPartition(TopicName("t"), PartitionId(0)), TopicId("A" * 22), 7)


class Log:
    """Takes the place of the partitions: a wait ends when it is told to."""

    def __init__(self) -> None:
        self.waits: list[WatchedEnd] = []
        self.waits_until: Callable[[], int] = int
        self.ended = 0
        self.has_records = asyncio.Event()

    async def until_records(self, end: WatchedEnd, waits_until: Callable[[], int]) -> None:
        self.waits.append(end)
        self.waits_until = waits_until
        try:
            await self.has_records.wait()
        finally:
            self.ended += 1


async def test_reads_at_one_end_share_a_wait() -> None:
    log = Log()
    watches = EndWatches(log.until_records)
    reads = [WakeUp() for _ in range(3)]
    for read in reads:
        watches.join(END, read, 9)
    watches.join(END._replace(offset=8), WakeUp(), 9)
    await asyncio.sleep(0)
    assert log.waits == [END, END._replace(offset=8)]
    assert not any(read.is_set() for read in reads)
    log.has_records.set()
    async with asyncio.timeout(1):
        for read in reads:
            await read.wait()


async def test_a_wait_ends_with_its_last_read() -> None:
    log = Log()
    watches = EndWatches(log.until_records)
    first, last = WakeUp(), WakeUp()
    watches.join(END, first, 9)
    watches.join(END, last, 9)
    await asyncio.sleep(0)
    watches.leave(END, first)
    await asyncio.sleep(0)
    assert log.ended == 0
    watches.leave(END, last)
    watches.leave(END, last)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert log.ended == 1
    watches.join(END, WakeUp(), 9)
    await asyncio.sleep(0)
    assert len(log.waits) == 2, "a later read begins anew"


async def test_many_reads_are_woken_in_several_turns() -> None:
    log = Log()
    log.has_records.set()
    watches = EndWatches(log.until_records)
    reads = [WakeUp() for _ in range(2 * WAKE_SLICE)]
    for read in reads:
        watches.join(END, read, 9)
    await asyncio.sleep(0)
    assert sum(read.is_set() for read in reads) == WAKE_SLICE
    await asyncio.sleep(0)
    assert all(read.is_set() for read in reads)


async def test_a_wait_is_for_the_read_with_the_most_time() -> None:
    log = Log()
    watches = EndWatches(log.until_records)
    first, last = WakeUp(), WakeUp()
    watches.join(END, first, 7)
    await asyncio.sleep(0)
    assert log.waits_until() == 7
    watches.join(END, last, 9)
    assert log.waits_until() == 9
    watches.leave(END, last)
    assert log.waits_until() == 7
    watches.leave(END, first)


async def test_a_wait_writes_nothing_into_the_context_of_its_first_read() -> None:
    passed_to: list[int] = []
    token = PASSED_TO.set(passed_to)
    seen: list[list[int] | None] = []

    async def until_records(_end: WatchedEnd, _waits_until: Callable[[], int]) -> None:
        seen.append(PASSED_TO.get())

    EndWatches(until_records).join(END, WakeUp(), 9)
    await asyncio.sleep(0)
    PASSED_TO.reset(token)
    assert seen == [None]
