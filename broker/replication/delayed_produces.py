"""Produces that were appended and wait for the high watermark or for a sync. Pure.

`Partition` adds a `DelayedProduce` for each produce that waits and calls `DelayedProduces` whenever
its role, its log or its high watermark changes. The callback of each produce is called exactly
once, with its `AppendOutcome`.

A produce is never judged by its offset alone. It is *ok* if the entry of its epoch still has that
offset when the high watermark passes it. It is *not written* only once the high watermark has
passed an entry of a newer epoch at or below that offset, and none of its records is in the log. A
truncation here proves nothing by itself, because another in-sync replica may still hold the entry
and be elected. A log that begins above the entry proves nothing either: the entry may have been
committed, read and deleted. At its deadline a produce is *unknown* (rule R5).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

NEVER_MS = 1 << 62
"""A monotonic time that is never reached: the deadline of an empty queue."""


class AppendOutcome(Enum):
    """The result of a delayed produce. UNKNOWN: its records may or may not be committed."""

    OK = "ok"
    NOT_WRITTEN = "not_written"
    UNKNOWN = "unknown"


class EpochView(Protocol):
    """The part of a log that returns the leader epoch of an offset."""

    @property
    def log_start_offset(self) -> int: ...
    @property
    def durable_end(self) -> int: ...
    @property
    def last_epoch(self) -> int: ...

    def epoch_at(self, offset: int) -> int: ...


@dataclass(slots=True)
class DelayedProduce:
    """A produce whose records are appended at ``base .. offset``, perhaps in several batches."""

    epoch: int
    base: int
    offset: int
    all_replicas: bool
    """True (acks=all): wait for the high watermark. False (acks=1): wait for the leader's own
    sync."""
    deadline_ms: int
    done: Callable[[AppendOutcome], None]


class DelayedProduces:
    """The delayed produces of one partition, over all its leader epochs on this broker.

    Owned by its `Partition`. Two queues in log order. Looking at the head of a queue is enough: an
    entry behind it has a higher offset in the same epoch, or a newer epoch, and the commitment of a
    newer epoch decides the head first.
    """

    __slots__ = ("_for_all", "_for_leader", "_soonest_ms")

    def __init__(self) -> None:
        # Created when first needed: an empty deque takes 0.6 KB, and most partitions are idle.
        self._for_all: deque[DelayedProduce] | None = None
        self._for_leader: deque[DelayedProduce] | None = None
        self._soonest_ms = NEVER_MS
        """No deadline is before this time, so that a tick before it need not search the queues."""

    def __len__(self) -> int:
        return len(self._for_all or ()) + len(self._for_leader or ())

    def add(self, delayed: DelayedProduce) -> None:
        """Add a produce; its ``done`` will be called exactly once.

        It is the last one of its queue, unless its records were appended before (a repeat): then it
        is inserted at its place in log order.
        """
        self._soonest_ms = min(self._soonest_ms, delayed.deadline_ms)
        queue = self._for_all if delayed.all_replicas else self._for_leader
        if queue is None:
            queue = deque()
            if delayed.all_replicas:
                self._for_all = queue
            else:
                self._for_leader = queue
        at = len(queue)
        while at and queue[at - 1].base > delayed.base and queue[at - 1].epoch >= delayed.epoch:
            at -= 1
        queue.insert(at, delayed)

    def resolve(self, log: EpochView, high_watermark: int) -> None:
        """Complete every produce whose outcome is certain now."""
        if self._for_all:
            _resolve(self._for_all, log, high_watermark, high_watermark)
        if self._for_leader:
            _resolve(self._for_leader, log, max(log.durable_end, high_watermark), high_watermark)

    def expire(self, now_ms: int) -> None:
        """Complete every produce whose deadline has passed, with outcome UNKNOWN."""
        if now_ms < self._soonest_ms:
            return
        late: list[DelayedProduce] = []
        for queue in self._queues():
            late += [delayed for delayed in queue if delayed.deadline_ms <= now_ms]
            kept = [delayed for delayed in queue if delayed.deadline_ms > now_ms]
            queue.clear()
            queue.extend(kept)
        left = (delayed.deadline_ms for queue in self._queues() for delayed in queue)
        self._soonest_ms = min(left, default=NEVER_MS)
        for delayed in late:
            delayed.done(AppendOutcome.UNKNOWN)

    def hasten(self, deadline_ms: int) -> None:
        """Move all deadlines to at most ``deadline_ms``.

        Used after a loss of leadership: outcomes that can become certain do so soon, or perhaps
        never.
        """
        self._soonest_ms = min(self._soonest_ms, deadline_ms)
        for queue in self._queues():
            for delayed in queue:
                delayed.deadline_ms = min(delayed.deadline_ms, deadline_ms)

    def give_up(self) -> None:
        """Complete all produces with outcome UNKNOWN, because this replica is being closed."""
        for queue in self._queues():
            while queue:
                queue.popleft().done(AppendOutcome.UNKNOWN)

    def _queues(self) -> list[deque[DelayedProduce]]:
        return [queue for queue in (self._for_all, self._for_leader) if queue]


def _resolve(
    queue: deque[DelayedProduce], log: EpochView, reached: int, high_watermark: int
) -> None:
    head = queue[0]
    if head.offset >= max(reached, high_watermark) and log.last_epoch <= head.epoch:
        return  # the usual case: the head is not reached, and the log has no newer epoch
    newest = log.epoch_at(high_watermark - 1) if high_watermark else -1
    while queue:
        delayed = queue[0]
        if delayed.offset < reached and log.epoch_at(delayed.offset) == delayed.epoch:
            outcome = AppendOutcome.OK
        elif delayed.offset < high_watermark or newest > delayed.epoch:
            # The first batch may be in the log without the last one: part of it is written then.
            in_part = log.epoch_at(delayed.base) == delayed.epoch
            # Below the log start this log proves nothing: the records there were deleted.
            deleted = delayed.base < log.log_start_offset
            outcome = AppendOutcome.UNKNOWN if in_part or deleted else AppendOutcome.NOT_WRITTEN
        else:
            return
        queue.popleft()
        delayed.done(outcome)
