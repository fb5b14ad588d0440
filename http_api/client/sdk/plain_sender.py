"""Sending without idempotence: one request of a partition under way, never a blind repeat. Pure.

Used with ``enable_idempotence=False`` and ``acks`` of 0 or 1, in place of a `SequencedSender`, with
the same methods. Nothing tells a leader that a request is a repeat. So a batch is sent again only
if it certainly was not written, and the next batch waits until then: without sequences nothing else
keeps records in order (rule F1).
"""

from __future__ import annotations

from collections import deque
from typing import Final

from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import Claim
from raft_metadata.common.sequenced_sender import (
    CONTENT_REFUSALS,
    RETRIABLE_REFUSALS,
    InFlightBatch,
    PendingProduce,
)

NO_CLAIM: Final = Claim(0, 0, 0)
"""In place of a producer's id and sequence, which these batches do not have."""


class PlainSender:
    """The ordered stream of batches to one partition, each sent alone and under way alone."""

    __slots__ = ("_in_flight", "_is_under_way", "_number", "_queue")

    needs_producer_id: Final = False

    def __init__(self) -> None:
        self._queue: deque[PendingProduce] = deque()
        self._in_flight: InFlightBatch | None = None
        """The batch under way, or to be sent again."""
        self._is_under_way = False
        self._number = 0

    @property
    def is_idle(self) -> bool:
        return not self._queue and self._in_flight is None

    def add(self, waiting: PendingProduce) -> None:
        """Append a batch to the queue."""
        self._queue.append(waiting)

    def next_deadline_ms(self) -> int | None:
        """Return the earliest deadline of a pending batch, when `expire` is due; or None."""
        waiting = [*self._queue] if self._in_flight is None else [self._in_flight.first]
        return min((each.deadline_ms for each in waiting), default=None)

    def due(self) -> InFlightBatch | None:
        """Return the next batch to send and mark it as under way, or None."""
        if self._is_under_way:
            return None
        if self._in_flight is None:
            if not self._queue:
                return None
            self._in_flight = InFlightBatch([self._queue.popleft()], NO_CLAIM, self._number)
            self._number += 1
        self._is_under_way = True
        return self._in_flight

    def succeeded(self, batch: InFlightBatch, base_offset: int) -> None:
        """Complete a batch that was appended at ``base_offset``; -1 for acks=0."""
        if batch is self._in_flight:
            self._end(batch, base_offset, None)

    def failed(
        self,
        batch: InFlightBatch,
        error: KafkaError,
        *,
        is_final: bool = False,
        refused_record: int | None = None,
    ) -> None:
        """Record a failed attempt: complete the batch, take it apart, or have it sent again."""
        if batch is not self._in_flight:
            return  # given up meanwhile
        self._is_under_way = False
        batch.error = error
        if error.outcome is Outcome.UNKNOWN:
            self._end(batch, -1, error)
        elif error.code in CONTENT_REFUSALS and batch.split(refused_record):
            self._in_flight = None
            self._queue.extendleft(reversed(batch.members))
        elif is_final or error.code not in RETRIABLE_REFUSALS:
            self._end(batch, -1, error)

    def take_apart(self, batch: InFlightBatch, pending: list[PendingProduce]) -> None:
        """End an answered batch of which only the ``pending`` parts are to be sent again."""
        if batch is not self._in_flight:
            return
        self._is_under_way = False
        self._in_flight = None
        self._queue.extendleft(reversed(pending))

    def expire(self, now_ms: int) -> None:
        """Complete batches whose deadline has passed, but not one under way: its answer decides."""
        last = None if self._in_flight is None else self._in_flight.error
        if not self._is_under_way and self._in_flight is not None:
            batch = self._in_flight
            if batch.first.deadline_ms <= now_ms:
                self._end(batch, -1, _too_late(last))
        while self._queue and self._queue[0].deadline_ms <= now_ms:
            self._queue.popleft().settle(-1, _too_late(last))

    def give_up(self) -> None:
        """Complete all batches because the producer stops; one under way has an unknown outcome."""
        if self._in_flight is not None:
            unknown = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the producer was closed")
            batch = self._in_flight
            self._end(batch, -1, unknown if self._is_under_way else _too_late(batch.error))
        while self._queue:
            self._queue.popleft().settle(-1, _too_late(None))

    def _end(self, batch: InFlightBatch, base_offset: int, error: KafkaError | None) -> None:
        self._is_under_way = False
        self._in_flight = None
        for member in batch.members:
            member.settle(base_offset, error)


def _too_late(last: KafkaError | None) -> KafkaError:
    reason = "" if last is None else f": {last.message}"
    text = f"no leader took the records in time{reason}"
    return KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, text, outcome=Outcome.NOT_WRITTEN)
