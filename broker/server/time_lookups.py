"""A read that begins at a time: which offset that is, without holding the loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from broker.log.log_reader import TimeSearch
from broker.replication.partition_state import LeaderState
from raft_metadata.common.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.server.reads import Standing
    from raft_metadata.common.clock import Clock

LOOKUPS_MAX = 100
"""That wait for their turn: the longer ones take turns, each may hold a batch of 65 MB."""
LOOKUP_TIMEOUT_MS = 30_000
"""A log whose times go up and down may have to be looked through: some 500,000 batches a second.
The wait for a turn counts: those before it end by theirs, so nobody waits longer than this."""


class TimeLookups:
    """Owned by who serves reads. Most look-ups are over in one step and wait for nothing."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def offset_of(self, timestamp_ms: int, standing: Callable[[], Standing]) -> int:
        """The first offset of this time or later; the high watermark where all is older.

        ``standing`` raises where nothing may be served any more. It is asked before each step, and
        between the last one and the return is no ``await``.

        Raises:
            KafkaError: what ``standing`` raises; NOT_LEADER_OR_FOLLOWER, the leader epoch changed;
                OFFSET_NOT_AVAILABLE, this leader does not know yet where what is committed ends;
                KAFKA_STORAGE_ERROR, a batch is damaged; QUEUE_FULL; REQUEST_TIMED_OUT.
        """
        search = TimeSearch(timestamp_ms)
        first = standing()
        if first.replica.log.step_time_search(search):
            return _answer(search, first)
        if self._waiting >= LOOKUPS_MAX:
            raise KafkaError(ErrorCode.QUEUE_FULL, f"{LOOKUPS_MAX} look-ups by time wait here")
        self._waiting += 1
        deadline_ms = self._clock.monotonic_ms() + LOOKUP_TIMEOUT_MS
        try:
            async with self._turn:
                return await self._look(search, first, standing, deadline_ms)
        finally:
            self._waiting -= 1

    async def _look(
        self,
        search: TimeSearch,
        first: Standing,
        standing: Callable[[], Standing],
        deadline_ms: int,
    ) -> int:
        while True:
            if search.work is None:
                await asyncio.sleep(0)
            else:
                await asyncio.to_thread(search.work)
            now = standing()
            if now.epoch != first.epoch or now.replica is not first.replica:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leader epoch changed")
            if now.replica.log.step_time_search(search):
                return _answer(search, now)
            if self._clock.monotonic_ms() >= deadline_ms:
                text = f"no record of that time was found within {LOOKUP_TIMEOUT_MS} ms"
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, text)


def _answer(search: TimeSearch, now: Standing) -> int:
    """Rule R8: below the high watermark, or with an end that may be believed."""
    partition = now.replica.partition
    found = partition.high_watermark if search.found is None else search.found
    role = partition.role
    if (
        isinstance(role, LeaderState)
        and partition.high_watermark < role.epoch_start
        and found >= partition.high_watermark
    ):
        raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE)
    return found
