"""Waits for records at the ends of partitions: one fetch for all reads that wait at the same place.

A read of an instance that finds nothing joins the watch of each partition that it may read on, and
is woken once when there may be records. So five thousand reads that wait at one end cost this
broker and the partition's leader one waiting fetch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass
from typing import Final, NamedTuple

from raft_metadata.common.ids import TopicId, TopicPartition

WAKE_SLICE: Final = 200
"""Reads woken in one turn of the event loop; 5,000 in one turn would delay producers."""

_log = logging.getLogger("broker.coordinator")


class WakeUp:
    """An event that one task awaits once. It takes a fifth of an `asyncio.Event`'s memory."""

    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def set(self) -> None:
        """Wake the task; no effect if it was woken, or waits no more."""
        if not self._future.done():
            self._future.set_result(None)

    def is_set(self) -> bool:
        """Return True if the task was woken, or has given up to wait."""
        return self._future.done()

    def wait(self) -> Awaitable[None]:
        """Wait until it is set."""
        return self._future


class WatchedEnd(NamedTuple):
    """The place behind the last record that a read has seen of a partition."""

    partition: TopicPartition
    topic_id: TopicId
    offset: int


@dataclass(slots=True, eq=False)
class _EndWatch:
    """A fetch that waits, and the reads it is for, in the order in which they joined."""

    reads: dict[WakeUp, int]
    """For each read, the monotonic time in milliseconds until which it waits."""
    task: asyncio.Task[None] | None = None


class EndWatches:
    """The watches of one coordinator. Owned by the `InstanceReader`, on its event loop.

    A watch ends when it has woken its reads, or with the last of them that leaves.
    """

    def __init__(
        self, until_records: Callable[[WatchedEnd, Callable[[], int]], Awaitable[None]]
    ) -> None:
        """``until_records`` returns once there may be records at an end.

        It is given the end, and a function that returns until when the last of the reads waits.
        """
        self._until_records = until_records
        self._watches: dict[WatchedEnd, _EndWatch] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        """Tasks that have not ended; the loop alone would not keep them."""

    def join(self, end: WatchedEnd, read: WakeUp, until_ms: int) -> None:
        """Have a read woken once, when there may be records at this end.

        ``until_ms``: the monotonic time at which it leaves at the latest.
        """
        watch = self._watches.get(end)
        if watch is not None:
            watch.reads[read] = until_ms
            return
        watch = self._watches[end] = _EndWatch({read: until_ms})
        # It outlives the request of its first read, so it must not write into that one's context.
        watch.task = task = asyncio.get_running_loop().create_task(
            self._run(end, watch), context=Context()
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def leave(self, end: WatchedEnd, read: WakeUp) -> None:
        """Forget a read that waits no more; harmless if its watch has ended."""
        watch = self._watches.get(end)
        if watch is None:
            return
        watch.reads.pop(read, None)
        if not watch.reads:
            del self._watches[end]
            assert watch.task is not None
            watch.task.cancel()

    async def _run(self, end: WatchedEnd, watch: _EndWatch) -> None:
        try:
            await self._until_records(end, lambda: max(watch.reads.values()))
        except Exception:  # noqa: BLE001 each read finds out what it is by its own fetch
            _log.exception("watch failed partition=%s-%d", *end.partition)
        del self._watches[end]
        for index, read in enumerate(watch.reads, start=1):
            read.set()
            if index % WAKE_SLICE == 0:
                await asyncio.sleep(0)
